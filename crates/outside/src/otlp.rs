//! OTLP 1: what the requests of all signals share, `opentelemetry/proto/common/v1` and `resource/v1`.

pub(crate) mod points;

use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;

use crate::parcel::Refused;
use crate::source::{Source, Value};

/// What a collector says that it refused, of what it took in: the messages of the three signals are
/// alike.
pub(crate) fn refused(answer: &[u8]) -> Refused {
    let answer = ExportAnswer::decode(answer).unwrap_or_default();
    let partial = answer.partial_success.unwrap_or_default();
    Refused { count: u64::try_from(partial.rejected).unwrap_or(0), why: partial.message }
}

impl Resource {
    /// Whose it is that is told.
    #[must_use]
    pub fn of(source: &Source) -> Self {
        let attributes = [
            ("service.name", &source.service),
            ("service.namespace", &source.namespace),
            ("service.instance.id", &source.instance),
        ];
        let attributes = attributes.map(|(key, text)| key_value(key, Value::Text(text.clone())));
        Self { attributes: attributes.into() }
    }
}

impl Scope {
    /// Who tells it.
    #[must_use]
    pub fn ours() -> Self {
        Self { name: "leno".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
    }
}

/// An attribute.
#[must_use]
pub fn key_value(key: &str, value: Value) -> KeyValue {
    let value = match value {
        Value::Text(text) => any_value::Value::Text(text),
        Value::Number(number) => any_value::Value::Number(number),
        Value::Fraction(fraction) => any_value::Value::Fraction(fraction),
    };
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

/// A time as OTLP has it, since 1970.
#[must_use]
pub fn nanoseconds(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// What one element of a repeated field takes beside itself, at most: a tag and a length.
pub const ELEMENT_BYTES: usize = 8;

/// How long a request of a collector gets: less than the 1 MiB that proxies in front of one take unless
/// they are told otherwise, by more than the longest element has.
pub const REQUEST_BYTES_MAX: usize = 512 << 10;

/// Whose something is.
#[derive(Clone, PartialEq, Message)]
pub struct Resource {
    /// Its names.
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

/// Who tells something.
#[derive(Clone, PartialEq, Message)]
pub struct Scope {
    /// By name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// In this version.
    #[prost(string, tag = "2")]
    pub version: String,
}

/// An attribute.
#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// What it is.
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

/// A value of one of several kinds.
#[derive(Clone, PartialEq, Message)]
pub struct AnyValue {
    /// It.
    #[prost(oneof = "any_value::Value", tags = "1, 3, 4")]
    pub value: Option<any_value::Value>,
}

/// The kinds of values.
pub mod any_value {
    /// A value.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Value {
        /// A text.
        #[prost(string, tag = "1")]
        Text(String),
        /// A whole number.
        #[prost(int64, tag = "3")]
        Number(i64),
        /// Another number.
        #[prost(double, tag = "4")]
        Fraction(f64),
    }
}

/// What a collector answers.
#[derive(Clone, PartialEq, Message)]
pub struct ExportAnswer {
    /// That it did not take everything.
    #[prost(message, optional, tag = "1")]
    pub partial_success: Option<PartialSuccess>,
}

/// What a collector did not take of what it took in.
#[derive(Clone, PartialEq, Message)]
pub struct PartialSuccess {
    /// How many spans, points or records.
    #[prost(int64, tag = "1")]
    pub rejected: i64,
    /// Why.
    #[prost(string, tag = "2")]
    pub message: String,
}
