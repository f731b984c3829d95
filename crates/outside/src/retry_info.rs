//! Parses the retry delay of a failed gRPC call: `google.rpc.RetryInfo`, in the `google.rpc.Status` of the trailer
//! `grpc-status-details-bin`.

use std::time::Duration;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use prost::Message;

/// Returns the retry delay in a trailer's value; `None` if it is absent or invalid.
pub(crate) fn parse_delay(value: &[u8]) -> Option<Duration> {
    let status = RpcStatus::decode(BINARY_HEADER.decode(value).ok()?.as_slice()).ok()?;
    let retry_detail =
        status.details.iter().find(|detail| detail.type_url.ends_with(RETRY_INFO_TYPE))?;
    // An absent delay is a delay of zero.
    let delay =
        RetryInfo::decode(retry_detail.value.as_slice()).ok()?.retry_delay.unwrap_or_default();
    let (seconds, nanos) = (u64::try_from(delay.seconds).ok()?, u32::try_from(delay.nanos).ok()?);
    (nanos < 1_000_000_000).then(|| Duration::new(seconds, nanos))
}

/// The Base64 encoding of binary header values, with or without padding (gRPC over HTTP/2, `PROTOCOL-HTTP2.md`).
const BINARY_HEADER: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
/// The end of the type URL; the host before it varies (`google/protobuf/any.proto`).
const RETRY_INFO_TYPE: &str = "/google.rpc.RetryInfo";

/// `google/rpc/status.proto`, reduced to the relevant fields.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google/rpc/error_details.proto`.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<RetryDelay>,
}

/// `google/protobuf/duration.proto`.
#[derive(Clone, Copy, PartialEq, Message)]
struct RetryDelay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode_status(type_url: &str, delay: RetryDelay) -> String {
        let value = RetryInfo { retry_delay: Some(delay) }.encode_to_vec();
        let other =
            Any { type_url: "type.googleapis.com/google.rpc.Help".to_owned(), value: vec![] };
        let details = vec![other, Any { type_url: type_url.to_owned(), value }];
        BINARY_HEADER.encode(RpcStatus { details }.encode_to_vec())
    }

    #[test]
    fn the_retry_delay_is_found_among_the_details() {
        const URL: &str = "type.googleapis.com/google.rpc.RetryInfo";
        let encoded = encode_status(URL, RetryDelay { seconds: 2, nanos: 500_000_000 });
        let expected = Some(Duration::from_millis(2500));
        assert_eq!(parse_delay(encoded.as_bytes()), expected);
        assert_eq!(parse_delay(encoded.trim_end_matches('=').as_bytes()), expected);

        let without_delay = encode_status(URL, RetryDelay::default());
        assert_eq!(parse_delay(without_delay.as_bytes()), Some(Duration::ZERO));
        for invalid in [
            encode_status(URL, RetryDelay { seconds: -1, nanos: 0 }),
            encode_status(URL, RetryDelay { seconds: 0, nanos: 1_000_000_000 }),
            encode_status(
                "type.googleapis.com/google.rpc.ErrorInfo",
                RetryDelay { seconds: 2, nanos: 0 },
            ),
            "%".to_owned(),
            String::new(),
        ] {
            assert_eq!(parse_delay(invalid.as_bytes()), None, "{invalid}");
        }
    }
}
