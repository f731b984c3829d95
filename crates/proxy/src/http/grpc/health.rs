//! Encodes requests to the gRPC health service, and decodes its responses (`grpc.health.v1`,
//! grpc/doc/health-checking.md).

use bytes::Bytes;
use prost::{DecodeError, Message};

/// The path of the method `Check` of the health service.
pub(crate) const METHOD: &str = "/grpc.health.v1.Health/Check";

/// Returns the length-prefixed health check request for a service; for the whole server if empty.
pub(crate) fn encode_check(service: &str) -> Bytes {
    let request = HealthCheckRequest { service: service.to_owned() };
    super::message::add_prefix(&request.encode_to_vec())
}

/// Decodes a response without its length prefix. Returns true if the service is serving.
pub(crate) fn decode_check(response: Bytes) -> Result<bool, DecodeError> {
    HealthCheckResponse::decode(response).map(|response| response.status == SERVING)
}

#[derive(Clone, PartialEq, Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// The status of a service that serves; all others are unhealthy.
const SERVING: i32 = 1;
