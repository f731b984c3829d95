//! OTLP 1: what the requests of all signals share, `opentelemetry/proto/common/v1` and `resource/v1`.

pub(super) mod points;
pub(super) mod records;
pub(super) mod spans;

use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;

use super::post::Refused;
use super::source::{Source, Value};

/// What a collector says that it refused, of what it took in: the messages of the three signals are
/// alike.
pub(super) fn refused(answer: &[u8]) -> Refused {
    let answer = ExportAnswer::decode(answer).unwrap_or_default();
    let partial = answer.partial_success.unwrap_or_default();
    Refused { count: u64::try_from(partial.rejected).unwrap_or(0), why: partial.message }
}

impl Resource {
    /// Whose it is that is told.
    pub(super) fn of(source: &Source) -> Self {
        let attributes = [
            ("service.name", &source.service),
            ("service.namespace", &source.namespace),
            ("service.instance.id", &source.workload),
        ];
        let attributes = attributes.map(|(key, text)| key_value(key, Value::Text(text.clone())));
        Self { attributes: attributes.into() }
    }
}

impl Scope {
    /// Who tells it.
    pub(super) fn ours() -> Self {
        Self { name: "leno".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
    }
}

fn key_value(key: &str, value: Value) -> KeyValue {
    let value = match value {
        Value::Text(text) => any_value::Value::Text(text),
        Value::Number(number) => any_value::Value::Number(number),
        Value::Fraction(fraction) => any_value::Value::Fraction(fraction),
    };
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

fn nanoseconds(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// What one element of a repeated field takes beside itself, at most: a tag and a length.
const ELEMENT_BYTES: usize = 8;

/// How long a request of a collector gets: less than the 1 MiB that proxies in front of one take unless
/// they are told otherwise, by more than the longest element has.
const REQUEST_BYTES_MAX: usize = 512 << 10;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Scope {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
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
    #[prost(oneof = "any_value::Value", tags = "1, 3, 4")]
    pub(super) value: Option<any_value::Value>,
}

pub(super) mod any_value {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(crate) enum Value {
        #[prost(string, tag = "1")]
        Text(String),
        #[prost(int64, tag = "3")]
        Number(i64),
        #[prost(double, tag = "4")]
        Fraction(f64),
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportAnswer {
    #[prost(message, optional, tag = "1")]
    pub(super) partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub(super) rejected: i64,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}
