//! Encodes spans and access log entries as OTLP 1 export requests.

pub(super) mod records;
pub(super) mod spans;
