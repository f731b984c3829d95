//! Access log entries in OTLP 1, as `opentelemetry/proto/collector/logs/v1/logs_service.proto` defines them.

use std::sync::Arc;

use leno_model::{LogForm, Reason};
use leno_outside::otlp::{
    AnyValue, ELEMENT_BYTES, KeyValue, REQUEST_BYTES_MAX, Resource, Scope, any_value, key_value,
    unix_nanoseconds,
};
use leno_outside::{Source, Value};
use leno_telemetry::LogValue;
use prost::Message;

use crate::access_log;
use crate::seen::Seen;

/// Encodes the collector's `Export` requests for these entries, each with the number of its records.
pub(in crate::export) fn encode_requests(
    source: &Source,
    batch: &[Arc<Seen>],
    form: &LogForm,
) -> Vec<(Vec<u8>, u64)> {
    let mut requests = Vec::new();
    let (mut records, mut bytes) = (Vec::new(), 0);
    for seen in batch {
        let record = log_record(seen, form);
        bytes += record.encoded_len() + ELEMENT_BYTES;
        records.push(record);
        if bytes >= REQUEST_BYTES_MAX {
            requests.push(encode_request(source, std::mem::take(&mut records)));
            bytes = 0;
        }
    }
    if !records.is_empty() {
        requests.push(encode_request(source, records));
    }
    requests
}

fn encode_request(source: &Source, records: Vec<LogRecord>) -> (Vec<u8>, u64) {
    let count = records.len() as u64;
    let logs = ScopeLogs { scope: Some(Scope::own_scope()), records };
    let logs =
        ResourceLogs { resource: Some(Resource::from_source(source)), scope_logs: vec![logs] };
    (ExportRequest { resource_logs: vec![logs] }.encode_to_vec(), count)
}

fn log_record(seen: &Seen, form: &LogForm) -> LogRecord {
    let mut line = String::new();
    access_log::append_line(seen, form, &mut line);
    line.truncate(line.trim_end_matches('\n').len());
    let attributes = access_log::with_entry(seen, |entry| {
        // The record has fields of its own for the trace and span IDs.
        let reported =
            entry.present_fields().filter(|(name, _)| !["trace_id", "span_id"].contains(name));
        reported.map(|(name, value)| key_value(name, of_log(value))).collect()
    });
    let (severity_number, severity_text) = severity_of(seen);
    let ended = unix_nanoseconds(seen.ended);
    LogRecord {
        time_unix_nano: ended,
        observed_time_unix_nano: ended,
        severity_number,
        severity_text: severity_text.to_owned(),
        body: Some(AnyValue { value: Some(any_value::Value::Text(line)) }),
        attributes,
        flags: seen.span.map_or(0, |span| span.is_sampled.into()),
        trace_id: seen.span.map(|it| it.trace.0.get().to_be_bytes().into()).unwrap_or_default(),
        span_id: seen.span.map(|it| it.id.0.get().to_be_bytes().into()).unwrap_or_default(),
    }
}

/// Returns the severity: an error if a request failed, a warning if the client caused it or the response status
/// indicates one.
fn severity_of(seen: &Seen) -> (i32, &'static str) {
    let outcome = &seen.outcome;
    let gone = [Reason::DownstreamClosed, Reason::AttemptAbandoned].map(Reason::label);
    let is_clients = outcome.reason.is_some_and(|reason| gone.contains(&reason));
    match outcome.status {
        400..=499 => (13, "WARN"),
        _ if is_clients => (13, "WARN"),
        _ if outcome.is_failure() => (17, "ERROR"),
        _ => (9, "INFO"),
    }
}

fn of_log(value: LogValue<'_>) -> Value {
    match value {
        LogValue::Text(text) => Value::Text(text.to_owned()),
        LogValue::Number(number) => Value::Number(i64::try_from(number).unwrap_or(i64::MAX)),
        LogValue::Milliseconds(milliseconds) => Value::Fraction(milliseconds),
        LogValue::Address(address) => Value::Text(address.to_string()),
    }
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::export) struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    pub(in crate::export) resource_logs: Vec<ResourceLogs>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::export) struct ResourceLogs {
    #[prost(message, optional, tag = "1")]
    pub(in crate::export) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(in crate::export) scope_logs: Vec<ScopeLogs>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::export) struct ScopeLogs {
    #[prost(message, optional, tag = "1")]
    pub(in crate::export) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(in crate::export) records: Vec<LogRecord>,
}

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
