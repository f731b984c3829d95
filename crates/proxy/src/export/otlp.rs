//! Spans in OTLP 1: `opentelemetry/proto/collector/trace/v1/trace_service.proto` and what it needs.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;

use super::source::{Source, Value, attributes, error, is_server, name};
use crate::seen::Seen;

/// The request of a collector's `Export`.
pub(super) fn encode(source: &Source, batch: &[Arc<Seen>]) -> Vec<u8> {
    let resource = [
        ("service.name", &source.service),
        ("service.namespace", &source.namespace),
        ("service.instance.id", &source.workload),
    ];
    let resource = resource.map(|(key, text)| key_value(key, Value::Text(text.clone())));
    let scope = Scope { name: "leno".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
    let spans = batch.iter().filter_map(|seen| span(seen)).collect();
    let spans = ScopeSpans { scope: Some(scope), spans };
    let resource = Resource { attributes: resource.into() };
    let spans = ResourceSpans { resource: Some(resource), scope_spans: vec![spans] };
    ExportRequest { resource_spans: vec![spans] }.encode_to_vec()
}

/// How many spans a collector says that it refused, of those that it took in.
pub(super) fn refused(answer: &[u8]) -> u64 {
    let answer = ExportAnswer::decode(answer).unwrap_or_default();
    let refused = answer.partial_success.map_or(0, |partial| partial.rejected_spans);
    u64::try_from(refused).unwrap_or(0)
}

fn span(seen: &Seen) -> Option<Span> {
    let context = seen.span?;
    let kind = if is_server(seen) { KIND_SERVER } else { KIND_CLIENT };
    let status = error(seen).map(|message| Status { message, code: STATUS_ERROR });
    let attributes = attributes(seen).into_iter().map(|(key, value)| key_value(key, value));
    Some(Span {
        trace_id: context.trace.0.get().to_be_bytes().into(),
        span_id: context.id.0.get().to_be_bytes().into(),
        parent_span_id: context
            .parent
            .map(|id| id.0.get().to_be_bytes().into())
            .unwrap_or_default(),
        name: name(seen),
        kind,
        start_time_unix_nano: nanoseconds(seen.began()),
        end_time_unix_nano: nanoseconds(seen.ended),
        attributes: attributes.collect(),
        status,
        flags: u32::from(context.is_sampled),
    })
}

fn key_value(key: &str, value: Value) -> KeyValue {
    let value = match value {
        Value::Text(text) => any_value::Value::Text(text),
        Value::Number(number) => any_value::Value::Number(number),
    };
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

fn nanoseconds(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Scope {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Span {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    pub(super) parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(super) name: String,
    #[prost(int32, tag = "6")]
    pub(super) kind: i32,
    #[prost(fixed64, tag = "7")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    pub(super) end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    pub(super) status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    pub(super) flags: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(string, tag = "2")]
    pub(super) message: String,
    #[prost(int32, tag = "3")]
    pub(super) code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AnyValue {
    #[prost(oneof = "any_value::Value", tags = "1, 3")]
    pub(super) value: Option<any_value::Value>,
}

pub(super) mod any_value {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(crate) enum Value {
        #[prost(string, tag = "1")]
        Text(String),
        #[prost(int64, tag = "3")]
        Number(i64),
    }
}

#[derive(Clone, PartialEq, Message)]
struct ExportAnswer {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_spans: i64,
}

const KIND_SERVER: i32 = 2;
const KIND_CLIENT: i32 = 3;
const STATUS_ERROR: i32 = 2;
