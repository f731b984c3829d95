//! Parsers of bytes from outside, as pure functions: the entry of fuzz targets and of the tests that replay their corpora.

use bytes::Bytes;
use http::{Request, Response, request, response};
use leno_model::{Reason, Whereabouts};
use leno_wire::http1::{RequestHead, ResponseHead};

use crate::http2::{connect, head};
use crate::look_ups::{self, ClusterDomain};

pub use crate::look_ups::DnsReplies;

/// A request head of HTTP/2 in the form of HTTP/1.1, and whether it asks for another protocol.
///
/// # Errors
/// The reason of the response that the client receives.
pub fn http2_request(mut parts: request::Parts) -> Result<(Bytes, bool), Reason> {
    let is_upgrade = connect::to_upgrade(&mut parts, || [0; 16]);
    head::request(&parts).map(|bytes| (bytes.freeze(), is_upgrade))
}

/// A response head of HTTP/2 in the form of HTTP/1.1.
#[must_use]
pub fn http2_response(parts: &response::Parts) -> Bytes {
    head::response(parts)
}

/// The request of HTTP/2 for the head parsed from `bytes`; `place` is scheme, authority and target.
///
/// # Errors
/// The reason when HTTP/2 cannot express the head.
pub fn to_http2_request(
    bytes: &[u8],
    head: &RequestHead,
    place: (&str, &str, &str),
) -> Result<Request<()>, Reason> {
    head::request_to(bytes, head, place)
}

/// The response of HTTP/2 for the head parsed from `bytes`, if HTTP/2 can express it.
#[must_use]
pub fn to_http2_response(bytes: &[u8], head: &ResponseHead) -> Option<Response<()>> {
    head::response_to(bytes, head)
}

/// The replies of the sidecar's DNS server to one packet, when each service has the addresses `found`.
#[must_use]
pub fn dns_replies(packet: &[u8], domain: &ClusterDomain, found: &Whereabouts) -> DnsReplies {
    look_ups::replies(packet, domain, found)
}

/// True if the sidecar accepts `reply` of a resolver as the reply to `query`.
#[must_use]
pub fn is_dns_reply(query: &[u8], reply: &[u8]) -> bool {
    look_ups::is_answer(query, reply)
}
