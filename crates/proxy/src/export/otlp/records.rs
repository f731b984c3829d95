//! Encodes access log entries in OTLP 1, as `opentelemetry/proto/collector/logs/v1/logs_service.proto` defines them.

use std::sync::Arc;

use leno_model::{LogFormat, Reason};
use leno_outside::otlp::{
    AnyValue, ELEMENT_BYTES, InstrumentationScope, KeyValue, MAX_REQUEST_BYTES, OtlpResource,
    any_value, key_value, unix_nanoseconds,
};
use leno_outside::{AttributeValue, ResourceIdentity};
use leno_telemetry::LogValue;
use prost::Message;

use crate::access_log;
use crate::request_trace::TraceEntry;

/// Encodes a batch as `Export` requests. Each request ends with the record that reaches [`MAX_REQUEST_BYTES`]. Returns
/// each request with the number of its records.
pub(in crate::export) fn encode_requests(
    resource_identity: &ResourceIdentity,
    batch: &[Arc<TraceEntry>],
    format: &LogFormat,
) -> Vec<(Vec<u8>, u64)> {
    let mut requests = Vec::new();
    let (mut records, mut bytes) = (Vec::new(), 0);
    for trace_entry in batch {
        let record = build_record(trace_entry, format);
        bytes += record.encoded_len() + ELEMENT_BYTES;
        records.push(record);
        if bytes >= MAX_REQUEST_BYTES {
            requests.push(encode_request(resource_identity, std::mem::take(&mut records)));
            bytes = 0;
        }
    }
    if !records.is_empty() {
        requests.push(encode_request(resource_identity, records));
    }
    requests
}

/// Encodes one `Export` request; returns it with the number of its records.
fn encode_request(resource_identity: &ResourceIdentity, records: Vec<LogRecord>) -> (Vec<u8>, u64) {
    let count = records.len() as u64;
    let scope_logs = ScopeLogs { scope: Some(InstrumentationScope::own_scope()), records };
    let resource_logs = ResourceLogs {
        resource: Some(OtlpResource::from_source(resource_identity)),
        scope_logs: vec![scope_logs],
    };
    (ExportRequest { resource_logs: vec![resource_logs] }.encode_to_vec(), count)
}

fn build_record(trace_entry: &TraceEntry, format: &LogFormat) -> LogRecord {
    let mut line = String::new();
    access_log::append_log_line(trace_entry, format, &mut line);
    line.truncate(line.trim_end_matches('\n').len());
    let attributes = access_log::with_log_entry(trace_entry, |entry| {
        // The record has separate fields for the trace and span IDs.
        let fields =
            entry.present_fields().filter(|(name, _)| !["trace_id", "span_id"].contains(name));
        fields.map(|(name, value)| key_value(name, attribute_value(value))).collect()
    });
    let (severity_number, severity_text) = log_severity(trace_entry);
    let ended_ns = unix_nanoseconds(trace_entry.ended_at);
    LogRecord {
        time_unix_nano: ended_ns,
        observed_time_unix_nano: ended_ns,
        severity_number,
        severity_text: severity_text.to_owned(),
        body: Some(AnyValue { value: Some(any_value::AnyValueKind::Text(line)) }),
        attributes,
        flags: trace_entry.span.map_or(0, |span| span.is_sampled.into()),
        trace_id: trace_entry
            .span
            .map(|span| span.trace.0.get().to_be_bytes().into())
            .unwrap_or_default(),
        span_id: trace_entry
            .span
            .map(|span| span.id.0.get().to_be_bytes().into())
            .unwrap_or_default(),
    }
}

/// Returns the number and text of the severity: a warning if the client caused the failure or the status is
/// 4xx, an error for other failures, and information otherwise. The numbers are those of the OpenTelemetry log data
/// model.
fn log_severity(trace_entry: &TraceEntry) -> (i32, &'static str) {
    let outcome = &trace_entry.outcome;
    let client_reasons = [Reason::DownstreamClosed, Reason::AttemptAbandoned].map(Reason::label);
    let is_caused_by_client = outcome.reason.is_some_and(|reason| client_reasons.contains(&reason));
    match outcome.status {
        400..=499 => (13, "WARN"),
        _ if is_caused_by_client => (13, "WARN"),
        _ if outcome.is_failure() => (17, "ERROR"),
        _ => (9, "INFO"),
    }
}

fn attribute_value(value: LogValue<'_>) -> AttributeValue {
    match value {
        LogValue::Text(text) => AttributeValue::Text(text.to_owned()),
        LogValue::Number(number) => AttributeValue::Int(i64::try_from(number).unwrap_or(i64::MAX)),
        LogValue::Milliseconds(milliseconds) => AttributeValue::Double(milliseconds),
        LogValue::Address(address) => AttributeValue::Text(address.to_string()),
    }
}

/// `ExportLogsServiceRequest`.
#[derive(Clone, PartialEq, Message)]
pub(in crate::export) struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    pub(in crate::export) resource_logs: Vec<ResourceLogs>,
}

/// `ResourceLogs`.
#[derive(Clone, PartialEq, Message)]
pub(in crate::export) struct ResourceLogs {
    #[prost(message, optional, tag = "1")]
    pub(in crate::export) resource: Option<OtlpResource>,
    #[prost(message, repeated, tag = "2")]
    pub(in crate::export) scope_logs: Vec<ScopeLogs>,
}

/// `ScopeLogs`.
#[derive(Clone, PartialEq, Message)]
pub(in crate::export) struct ScopeLogs {
    #[prost(message, optional, tag = "1")]
    pub(in crate::export) scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    pub(in crate::export) records: Vec<LogRecord>,
}

/// `LogRecord`.
#[derive(Clone, PartialEq, Message)]
pub(in crate::export) struct LogRecord {
    #[prost(fixed64, tag = "1")]
    pub(in crate::export) time_unix_nano: u64,
    #[prost(int32, tag = "2")]
    pub(in crate::export) severity_number: i32,
    #[prost(string, tag = "3")]
    pub(in crate::export) severity_text: String,
    #[prost(message, optional, tag = "5")]
    pub(in crate::export) body: Option<AnyValue>,
    #[prost(message, repeated, tag = "6")]
    pub(in crate::export) attributes: Vec<KeyValue>,
    #[prost(fixed32, tag = "8")]
    pub(in crate::export) flags: u32,
    #[prost(bytes = "vec", tag = "9")]
    pub(in crate::export) trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "10")]
    pub(in crate::export) span_id: Vec<u8>,
    #[prost(fixed64, tag = "11")]
    pub(in crate::export) observed_time_unix_nano: u64,
}
