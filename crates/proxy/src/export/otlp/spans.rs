//! Encodes spans in OTLP 1, as `opentelemetry/proto/collector/trace/v1/trace_service.proto` defines them.

use std::sync::Arc;

use leno_outside::ResourceIdentity;
use leno_outside::otlp::{
    InstrumentationScope, KeyValue, OtlpResource, key_value, unix_nanoseconds,
};
use prost::Message;

use super::super::source::{is_inbound, span_attributes, span_error, span_name};
use crate::request_trace::TraceEntry;

/// Encodes the spans of a batch as one `Export` request; entries without a span are skipped.
pub(in crate::export) fn encode_request(
    resource_identity: &ResourceIdentity,
    batch: &[Arc<TraceEntry>],
) -> Vec<u8> {
    let spans = batch.iter().filter_map(|trace_entry| build_span(trace_entry)).collect();
    let scope_spans = ScopeSpans { scope: Some(InstrumentationScope::own_scope()), spans };
    let resource = Some(OtlpResource::from_source(resource_identity));
    let resource_spans = ResourceSpans { resource, scope_spans: vec![scope_spans] };
    ExportRequest { resource_spans: vec![resource_spans] }.encode_to_vec()
}

/// Builds the OTLP span of an entry; `None` if the entry has no span.
fn build_span(trace_entry: &TraceEntry) -> Option<Span> {
    let context = trace_entry.span?;
    let kind = if is_inbound(trace_entry) { KIND_SERVER } else { KIND_CLIENT };
    let status = span_error(trace_entry).map(|message| Status { message, code: STATUS_ERROR });
    let attributes =
        span_attributes(trace_entry).into_iter().map(|(key, value)| key_value(key, value));
    Some(Span {
        trace_id: context.trace.0.get().to_be_bytes().into(),
        span_id: context.id.0.get().to_be_bytes().into(),
        parent_span_id: context
            .parent
            .map(|id| id.0.get().to_be_bytes().into())
            .unwrap_or_default(),
        name: span_name(trace_entry),
        kind,
        start_time_unix_nano: unix_nanoseconds(trace_entry.started_at()),
        end_time_unix_nano: unix_nanoseconds(trace_entry.ended_at),
        attributes: attributes.collect(),
        status,
        flags: u32::from(context.is_sampled),
    })
}

/// `ExportTraceServiceRequest`.
#[derive(Clone, PartialEq, Message)]
pub(in crate::export) struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    pub(in crate::export) resource_spans: Vec<ResourceSpans>,
}

/// `ResourceSpans`.
#[derive(Clone, PartialEq, Message)]
pub(in crate::export) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub(in crate::export) resource: Option<OtlpResource>,
    #[prost(message, repeated, tag = "2")]
    pub(in crate::export) scope_spans: Vec<ScopeSpans>,
}

/// `ScopeSpans`.
#[derive(Clone, PartialEq, Message)]
pub(in crate::export) struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub(in crate::export) scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    pub(in crate::export) spans: Vec<Span>,
}

/// `Span`.
#[derive(Clone, PartialEq, Message)]
pub(in crate::export) struct Span {
    #[prost(bytes = "vec", tag = "1")]
    pub(in crate::export) trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(in crate::export) span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    pub(in crate::export) parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(in crate::export) name: String,
    #[prost(int32, tag = "6")]
    pub(in crate::export) kind: i32,
    #[prost(fixed64, tag = "7")]
    pub(in crate::export) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    pub(in crate::export) end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    pub(in crate::export) attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    pub(in crate::export) status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    pub(in crate::export) flags: u32,
}

/// `Status`.
#[derive(Clone, PartialEq, Message)]
pub(in crate::export) struct Status {
    #[prost(string, tag = "2")]
    pub(in crate::export) message: String,
    #[prost(int32, tag = "3")]
    pub(in crate::export) code: i32,
}

/// `SPAN_KIND_SERVER`.
const KIND_SERVER: i32 = 2;
/// `SPAN_KIND_CLIENT`.
const KIND_CLIENT: i32 = 3;
/// `STATUS_CODE_ERROR`.
const STATUS_ERROR: i32 = 2;
