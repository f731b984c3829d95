//! Builds and validates each HTTP/2 request once, so that it can be sent many times.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, TE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use crate::plan::{InvalidPlan, LoadProtocol, LoadTarget};

/// A prepared request.
#[derive(Debug)]
pub(super) struct Http2Request {
    pub(super) head: http::Request<()>,
    /// The body; for gRPC, the framed message.
    pub(super) body: Bytes,
    pub(super) response_kind: ResponseKind,
}

/// The kind of the response, which determines whether the request succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResponseKind {
    /// The HTTP status decides on success.
    Plain,
    /// The response ends with a gRPC status.
    Grpc,
}

impl Http2Request {
    /// Builds the request of a target.
    ///
    /// # Errors
    /// The part of the target that cannot be sent over HTTP/2.
    pub(super) fn new(target: &LoadTarget, protocol: LoadProtocol) -> Result<Self, InvalidPlan> {
        let invalid = |invalid_part| InvalidPlan::Http2Request {
            name: target.name.clone(),
            part: invalid_part,
        };
        let response_kind = match protocol {
            LoadProtocol::Grpc { .. } => ResponseKind::Grpc,
            LoadProtocol::Http1 | LoadProtocol::Http2 { .. } => ResponseKind::Plain,
        };
        let method = match response_kind {
            ResponseKind::Plain => target.method.parse().map_err(|_| invalid("method"))?,
            ResponseKind::Grpc => Method::POST,
        };
        if method == Method::CONNECT {
            return Err(InvalidPlan::Tunnel { name: target.name.clone() });
        }
        let uri = Uri::builder()
            .scheme("http")
            .authority(target.host.as_str())
            .path_and_query(target.path.as_str());
        let uri = uri.build().map_err(|_| invalid("host or path"))?;
        let body = match response_kind {
            ResponseKind::Plain => Bytes::from(target.body.clone()),
            ResponseKind::Grpc => {
                frame_message(&target.body).ok_or_else(|| invalid("message: it is too long"))?
            }
        };
        let mut head = http::Request::new(());
        *head.headers_mut() =
            request_headers(target, response_kind, &method).ok_or_else(|| invalid("headers"))?;
        *head.method_mut() = method;
        *head.uri_mut() = uri;
        Ok(Self { head, body, response_kind })
    }
}

/// Returns the headers of a request; `None` if one of them cannot be sent.
fn request_headers(
    target: &LoadTarget,
    response_kind: ResponseKind,
    method: &Method,
) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in &target.headers {
        let name: HeaderName = name.parse().ok()?;
        if name == HOST || name == CONTENT_LENGTH || CONNECTION_HEADERS.contains(&name.as_str()) {
            return None;
        }
        headers.append(name, HeaderValue::from_str(value).ok()?);
    }
    match response_kind {
        ResponseKind::Grpc => {
            headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/grpc"));
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
        // RFC 9110 section 8.6: methods that define a meaning for content send the length even without content.
        ResponseKind::Plain if !target.body.is_empty() || always_sends_length(method) => {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(target.body.len()));
        }
        ResponseKind::Plain => {}
    }
    Some(headers)
}

fn always_sends_length(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::PUT | Method::PATCH)
}

/// Frames a gRPC message: a flag byte 0 (uncompressed), the length, and the message. Returns `None` if the length
/// exceeds 32 bits.
fn frame_message(message: &[u8]) -> Option<Bytes> {
    let length = u32::try_from(message.len()).ok()?;
    let mut framed_message = Vec::with_capacity(GRPC_PREFIX_BYTES + message.len());
    framed_message.push(0);
    framed_message.extend_from_slice(&length.to_be_bytes());
    framed_message.extend_from_slice(message);
    Some(Bytes::from(framed_message))
}

/// The prefix of a gRPC message: a flag and a length.
pub(super) const GRPC_PREFIX_BYTES: usize = 5;

/// Connection-specific headers are not allowed in HTTP/2 (RFC 9113 section 8.2.2).
const CONNECTION_HEADERS: [&str; 5] =
    ["connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"];

#[cfg(test)]
mod tests {
    use super::*;

    const HTTP2: LoadProtocol = LoadProtocol::Http2 { streams: 1 };
    const GRPC: LoadProtocol = LoadProtocol::Grpc { streams: 1 };

    fn sample_target() -> LoadTarget {
        LoadTarget::get("t", "127.0.0.1:80".parse().unwrap(), "ratings:9080", "/ratings/1?x=2")
    }

    #[test]
    fn requests_are_prepared_as_specified() {
        let header = ("x-a".to_owned(), "b".to_owned());
        let post_target = LoadTarget {
            method: "POST".to_owned(),
            headers: vec![header],
            body: b"{}".to_vec(),
            ..sample_target()
        };
        let plain_request = Http2Request::new(&post_target, HTTP2).unwrap();
        assert_eq!(plain_request.head.uri(), "http://ratings:9080/ratings/1?x=2");
        assert_eq!(plain_request.head.method(), "POST");
        assert_eq!(plain_request.head.headers()["x-a"], "b");
        assert_eq!(plain_request.head.headers()["content-length"], "2");
        assert_eq!(&plain_request.body[..], b"{}");

        let grpc_request =
            Http2Request::new(&LoadTarget { method: "GET".to_owned(), ..post_target }, GRPC)
                .unwrap();
        assert_eq!(grpc_request.head.method(), "POST");
        assert_eq!(grpc_request.head.headers()["content-type"], "application/grpc");
        assert_eq!(grpc_request.head.headers()["te"], "trailers");
        assert!(!grpc_request.head.headers().contains_key("content-length"));
        assert_eq!(&grpc_request.body[..], b"\0\0\0\0\x02{}");
    }

    #[test]
    fn requests_that_a_strict_server_rejects_are_not_sent() {
        let with_header = |name: &str, value: &str| LoadTarget {
            headers: vec![(name.to_owned(), value.to_owned())],
            ..sample_target()
        };
        for bad in [
            LoadTarget { method: "GE T".to_owned(), ..sample_target() },
            LoadTarget { method: "CONNECT".to_owned(), ..sample_target() },
            LoadTarget { path: "/a b".to_owned(), ..sample_target() },
            LoadTarget { host: "a b".to_owned(), ..sample_target() },
            with_header("host", "other"),
            with_header("x y", "1"),
            with_header("x", "1\r\ny: 2"),
            with_header("content-length", "1"),
            with_header("Connection", "close"),
            with_header("transfer-encoding", "chunked"),
        ] {
            assert!(Http2Request::new(&bad, HTTP2).is_err(), "{bad:?}");
        }
    }
}
