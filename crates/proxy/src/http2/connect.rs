//! Converts extended CONNECT requests (RFC 8441) to HTTP/1.1 upgrades and back.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use h2::ext::Protocol;
use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE,
};
use http::{Method, StatusCode, request, response};
use leno_model::Reason;
use leno_wire::http1::ResponseHead;

use super::head;
use crate::http::request::Request;

/// Rewrites an extended CONNECT request as an HTTP/1.1 upgrade, with `nonce` as the key of a WebSocket (RFC
/// 6455 §4.1). Returns false for any other request.
pub(crate) fn rewrite_as_upgrade(
    request_parts: &mut request::Parts,
    nonce: impl FnOnce() -> [u8; 16],
) -> bool {
    let Some(protocol) = request_parts.extensions.get::<Protocol>() else {
        return false;
    };
    let Ok(protocol) = HeaderValue::from_str(protocol.as_str()) else {
        return false;
    };
    // HTTP/2 requests have no key. The application responds to the generated key, never to a key of the client.
    request_parts.headers.remove(SEC_WEBSOCKET_KEY);
    if protocol == WEBSOCKET
        && let Ok(key) = HeaderValue::from_str(&STANDARD.encode(nonce()))
    {
        request_parts.headers.insert(SEC_WEBSOCKET_KEY, key);
    }
    request_parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    request_parts.headers.insert(UPGRADE, protocol);
    request_parts.method = Method::GET;
    true
}

/// Returns the extended CONNECT request for an upgrade, with this scheme, authority and target.
///
/// # Errors
/// `unsupported` if it offers a choice of protocols; otherwise the errors of [`head::request_to_http2`].
pub(crate) fn build_connect_request(
    request: &Request<'_>,
    scheme: &str,
    authority: &str,
    target: &str,
) -> Result<http::Request<()>, Reason> {
    let mut connect_request =
        head::request_to_http2(&request.bytes, request.head, scheme, authority, target)?;
    let protocol = upgrade_protocol(request).ok_or(Reason::Unsupported)?;
    *connect_request.method_mut() = Method::CONNECT;
    connect_request.headers_mut().remove(SEC_WEBSOCKET_KEY);
    // The data of the new protocol is not a body (RFC 9113 §8.1.1 would count it).
    connect_request.headers_mut().remove(CONTENT_LENGTH);
    connect_request.extensions_mut().insert(Protocol::from(protocol.as_str()));
    Ok(connect_request)
}

/// Returns the successful response of an HTTP/2 server as an HTTP/1.1 response to an upgrade.
pub(crate) fn build_switching_response(
    response_parts: &mut response::Parts,
    request: &Request<'_>,
) -> Bytes {
    response_parts.status = StatusCode::SWITCHING_PROTOCOLS;
    response_parts.headers.remove(CONTENT_LENGTH);
    response_parts.headers.remove(SEC_WEBSOCKET_ACCEPT);
    response_parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    let protocol = upgrade_protocol(request).unwrap_or_default();
    if let Ok(protocol) = HeaderValue::from_str(&protocol) {
        response_parts.headers.insert(UPGRADE, protocol);
    }
    if let Some(key) = websocket_key(request)
        && let Ok(accept) = HeaderValue::from_str(&accept_key(key))
    {
        response_parts.headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    head::response_to_http1(response_parts)
}

/// Checks an HTTP/1.1 response for an HTTP/2 client that sent an extended CONNECT, where any 2xx accepts the
/// protocol.
///
/// # Errors
/// `unsupported` if the application ignored the upgrade, `upstream-malformed` if its WebSocket accept key is
/// wrong.
pub(crate) fn check_connect_response(
    request: &Request<'_>,
    bytes: &[u8],
    head: &ResponseHead,
) -> Result<(), Reason> {
    if !head.tunnel {
        return match head.status {
            200..=299 => Err(Reason::Unsupported),
            _ => Ok(()),
        };
    }
    let Some(key) = websocket_key(request) else { return Ok(()) };
    let received_key = head.find(bytes, SEC_WEBSOCKET_ACCEPT.as_str()).next();
    match received_key.is_some_and(|received_key| received_key == accept_key(key).as_bytes()) {
        true => Ok(()),
        false => Err(Reason::UpstreamMalformed),
    }
}

/// Returns the protocol that an upgrade requests, in lower case as in HTTP/2; `None` if it offers a choice.
fn upgrade_protocol(request: &Request<'_>) -> Option<String> {
    let mut protocols = request.head.find(&request.bytes, UPGRADE.as_str());
    let protocol = protocols.next().filter(|value| !value.contains(&b','))?;
    let is_single = protocols.next().is_none();
    std::str::from_utf8(protocol).ok().filter(|_| is_single).map(str::to_ascii_lowercase)
}

/// Returns the key of a WebSocket request; `None` for other upgrades.
fn websocket_key<'a>(request: &'a Request<'_>) -> Option<&'a [u8]> {
    request.head.find(&request.bytes, SEC_WEBSOCKET_KEY.as_str()).next()
}

/// Returns the accept key for a WebSocket key (RFC 6455 §4.2.2).
pub(crate) fn accept_key(key: &[u8]) -> String {
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, WEBSOCKET_GUID].concat()))
}

/// The protocol name of WebSocket upgrades.
const WEBSOCKET: &str = "websocket";
/// The suffix of a key before it is hashed (RFC 6455 §1.3).
const WEBSOCKET_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

#[cfg(test)]
mod tests {
    #[test]
    fn the_accept_key_matches_the_example_of_the_rfc() {
        assert_eq!(super::accept_key(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
