//! Exposes parsers and converters of untrusted bytes as pure functions: the entry points of fuzz targets and corpus
//! tests.

use bytes::Bytes;
use http::{Request, Response, request, response};
use leno_model::{DnsRecord, Reason};
use leno_wire::http1::{RequestHead, ResponseHead};

use crate::dns_proxy::{self, ClusterDomain};
use crate::http2::{connect, head};

pub use crate::dns_proxy::DnsResponses;

/// Converts an HTTP/2 request head to HTTP/1.1. Also returns true if the request asks for an upgrade.
///
/// # Errors
/// The reason of the response that the client receives.
pub fn http2_request(mut parts: request::Parts) -> Result<(Bytes, bool), Reason> {
    // The WebSocket key is fixed, so that the result depends only on the input.
    let is_upgrade = connect::rewrite_as_upgrade(&mut parts, || [0; 16]);
    head::request_to_http1(&parts).map(|bytes| (bytes.freeze(), is_upgrade))
}

/// Converts an HTTP/2 response head to HTTP/1.1.
#[must_use]
pub fn http2_response(parts: &response::Parts) -> Bytes {
    head::response_to_http1(parts)
}

/// Converts the head parsed from `bytes` to an HTTP/2 request, to `target` at `authority` by `scheme`.
///
/// # Errors
/// The reason if HTTP/2 cannot express the head.
pub fn to_http2_request(
    bytes: &[u8],
    head: &RequestHead,
    scheme: &str,
    authority: &str,
    target: &str,
) -> Result<Request<()>, Reason> {
    head::request_to_http2(bytes, head, scheme, authority, target)
}

/// Converts the head parsed from `bytes` to an HTTP/2 response; `None` if HTTP/2 cannot express it.
#[must_use]
pub fn to_http2_response(bytes: &[u8], head: &ResponseHead) -> Option<Response<()>> {
    head::response_to_http2(bytes, head)
}

/// Returns the responses of the sidecar's DNS server to one packet, as if each service had this record.
#[must_use]
pub fn dns_responses(packet: &[u8], domain: &ClusterDomain, record: &DnsRecord) -> DnsResponses {
    dns_proxy::build_responses(packet, domain, record)
}

/// True if the sidecar accepts a resolver's `response` to `query`.
#[must_use]
pub fn is_dns_response(query: &[u8], response: &[u8]) -> bool {
    dns_proxy::is_response_to(query, response)
}
