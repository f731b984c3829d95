//! OTLP 1: requests that are about what was seen.

pub(super) mod records;
pub(super) mod spans;
