//! OTLP 1 export requests for spans and log records.

pub(super) mod records;
pub(super) mod spans;
