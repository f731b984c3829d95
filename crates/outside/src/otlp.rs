//! Defines the OTLP 1 messages that the requests of all signals share: `opentelemetry/proto/common/v1` and
//! `resource/v1`. Also parses the responses of collectors.

pub(crate) mod points;

use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;

use crate::export_request::RejectedItems;
use crate::resource_identity::{AttributeValue, ResourceIdentity};

/// Parses the partial success of a response. The responses of the three signals have the same form.
pub(crate) fn parse_rejected(bytes: &[u8]) -> RejectedItems {
    // The collector accepted the request, even if the response cannot be decoded.
    let response = ExportResponse::decode(bytes).unwrap_or_default();
    let partial_success = response.partial_success.unwrap_or_default();
    RejectedItems {
        // A negative count is invalid, and counts as 0.
        count: u64::try_from(partial_success.rejected).unwrap_or(0),
        reason: partial_success.message,
    }
}

impl OtlpResource {
    /// Returns the resource of a telemetry source.
    #[must_use]
    pub fn from_source(identity: &ResourceIdentity) -> Self {
        let attributes = [
            ("service.name", &identity.service),
            ("service.namespace", &identity.namespace),
            ("service.instance.id", &identity.instance),
        ]
        .map(|(key, text)| key_value(key, AttributeValue::Text(text.clone())));
        Self { attributes: attributes.into() }
    }
}

impl InstrumentationScope {
    /// Returns the instrumentation scope of Leno.
    #[must_use]
    pub fn own_scope() -> Self {
        Self { name: "leno".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
    }
}

/// Creates an attribute.
#[must_use]
pub fn key_value(key: &str, value: AttributeValue) -> KeyValue {
    let value = match value {
        AttributeValue::Text(text) => any_value::AnyValueKind::Text(text),
        AttributeValue::Int(number) => any_value::AnyValueKind::Int(number),
        AttributeValue::Double(fraction) => any_value::AnyValueKind::Double(fraction),
    };
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

/// Converts a time to the form of OTLP: nanoseconds since 1970, and 0 for an earlier time.
#[must_use]
pub fn unix_nanoseconds(time: SystemTime) -> u64 {
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
}

/// The maximum overhead of an element in a repeated field, in bytes: a tag and a length.
pub const ELEMENT_BYTES: usize = 8;

/// The size at which an export request is complete, in bytes; its last element may exceed the size. HTTP proxies
/// accept 1 MiB by default, more than this size and the longest element together.
pub const MAX_REQUEST_BYTES: usize = 512 << 10;

/// The entity that produces telemetry.
#[derive(Clone, PartialEq, Message)]
pub struct OtlpResource {
    /// The attributes that identify the entity.
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

/// The instrumentation scope: the library that records telemetry.
#[derive(Clone, PartialEq, Message)]
pub struct InstrumentationScope {
    /// The name of the library.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The version of the library.
    #[prost(string, tag = "2")]
    pub version: String,
}

/// An attribute: a key and its value.
#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    /// The name of the attribute.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value of the attribute.
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

/// The value of an attribute, of one of several types.
#[derive(Clone, PartialEq, Message)]
pub struct AnyValue {
    /// The value; `None` if it is empty.
    #[prost(oneof = "any_value::AnyValueKind", tags = "1, 3, 4")]
    pub value: Option<any_value::AnyValueKind>,
}

/// The types of values.
pub mod any_value {
    /// The value of an `AnyValue`, by its type.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum AnyValueKind {
        /// A string.
        #[prost(string, tag = "1")]
        Text(String),
        /// An integer.
        #[prost(int64, tag = "3")]
        Int(i64),
        /// A floating-point number.
        #[prost(double, tag = "4")]
        Double(f64),
    }
}

/// The response to an export request.
#[derive(Clone, PartialEq, Message)]
pub struct ExportResponse {
    /// Set if the collector rejected a part of the request.
    #[prost(message, optional, tag = "1")]
    pub partial_success: Option<PartialSuccess>,
}

/// The rejected part of a request.
#[derive(Clone, PartialEq, Message)]
pub struct PartialSuccess {
    /// The number of rejected spans, points or records.
    #[prost(int64, tag = "1")]
    pub rejected: i64,
    /// The collector's reason for the rejection.
    #[prost(string, tag = "2")]
    pub message: String,
}
