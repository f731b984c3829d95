//! Serializes and validates each HTTP/1.1 request once, so that it can be sent many times.

use leno_wire::http1::{Malformed, ParseProgress, RequestHead, RequestKind};

use crate::plan::{ConnectionReuse, InvalidPlan, LoadTarget, TargetForm};

/// A serialized request.
#[derive(Debug)]
pub(super) struct SerializedRequest {
    /// Head and body.
    pub(super) bytes: Vec<u8>,
    /// The effect of its method on the response framing.
    pub(super) request_kind: RequestKind,
}

impl SerializedRequest {
    /// Serializes the request and parses it as a strict server would.
    pub(super) fn new(target: &LoadTarget, reuse: ConnectionReuse) -> Result<Self, InvalidPlan> {
        let mut bytes = render_head(target, reuse).into_bytes();
        let head_bytes = bytes.len();
        let malformed = |rule| InvalidPlan::Request { name: target.name.clone(), rule };
        let mut request_head = RequestHead::default();
        match request_head.parse(&bytes).map_err(malformed)? {
            ParseProgress::Complete(parsed_bytes) if parsed_bytes == head_bytes => {}
            // A line end within a name or value would split the message in two.
            ParseProgress::Complete(_) | ParseProgress::Partial => {
                return Err(malformed(Malformed::LineEnd));
            }
        }
        if target.method == "CONNECT" || request_head.upgrade {
            return Err(InvalidPlan::Tunnel { name: target.name.clone() });
        }
        bytes.extend_from_slice(&target.body);
        Ok(Self { bytes, request_kind: RequestKind::for_method(target.method.as_bytes()) })
    }
}

fn render_head(target: &LoadTarget, reuse: ConnectionReuse) -> String {
    let LoadTarget { form, method, path, host, headers, body, .. } = target;
    let scheme_and_authority = match form {
        TargetForm::Origin => String::new(),
        TargetForm::Absolute => format!("http://{host}"),
    };
    let mut request_head =
        format!("{method} {scheme_and_authority}{path} HTTP/1.1\r\nhost: {host}\r\n");
    for (name, value) in headers {
        request_head.push_str(&format!("{name}: {value}\r\n"));
    }
    // RFC 9110 section 8.6: methods that define a meaning for content send the length even without content.
    if !body.is_empty() || matches!(method.as_str(), "POST" | "PUT" | "PATCH") {
        request_head.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    if reuse == ConnectionReuse::Fresh {
        request_head.push_str("connection: close\r\n");
    }
    request_head.push_str("\r\n");
    request_head
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_target() -> LoadTarget {
        LoadTarget::get("t", "127.0.0.1:80".parse().unwrap(), "ratings:9080", "/ratings/1?x=2")
    }

    #[test]
    fn requests_are_serialized_as_specified() {
        let post_target = LoadTarget {
            method: "POST".to_owned(),
            headers: vec![("X-A".to_owned(), "b".to_owned())],
            body: b"{}".to_vec(),
            ..sample_target()
        };
        let absolute_target = LoadTarget { form: TargetForm::Absolute, ..sample_target() };
        let fresh_request =
            "GET /ratings/1?x=2 HTTP/1.1\r\nhost: ratings:9080\r\nconnection: close\r\n\r\n";
        for (target, expected) in [
            (sample_target(), "GET /ratings/1?x=2 HTTP/1.1\r\nhost: ratings:9080\r\n\r\n"),
            (
                absolute_target,
                "GET http://ratings:9080/ratings/1?x=2 HTTP/1.1\r\nhost: ratings:9080\r\n\r\n",
            ),
            (
                post_target,
                "POST /ratings/1?x=2 HTTP/1.1\r\nhost: ratings:9080\r\nX-A: b\r\n\
                 content-length: 2\r\n\r\n{}",
            ),
        ] {
            let request = SerializedRequest::new(&target, ConnectionReuse::Keep).unwrap();
            assert_eq!(String::from_utf8(request.bytes).unwrap(), expected);
        }
        let request = SerializedRequest::new(&sample_target(), ConnectionReuse::Fresh).unwrap();
        assert_eq!(String::from_utf8(request.bytes).unwrap(), fresh_request);
    }

    #[test]
    fn requests_that_a_strict_server_rejects_are_not_sent() {
        let with_header = |name: &str, value: &str| LoadTarget {
            headers: vec![(name.to_owned(), value.to_owned())],
            ..sample_target()
        };
        for bad in [
            LoadTarget { method: "GE T".to_owned(), ..sample_target() },
            LoadTarget { path: "ratings".to_owned(), ..sample_target() },
            LoadTarget { path: "/a b".to_owned(), ..sample_target() },
            LoadTarget { host: "a\r\nx: y\r\n\r\nGET / HTTP/1.1".to_owned(), ..sample_target() },
            with_header("host", "other"),
            with_header("x y", "1"),
            with_header("x", "1\r\n\r\nGET / HTTP/1.1"),
            LoadTarget { body: b"1".to_vec(), ..with_header("content-length", "1") },
            LoadTarget { body: b"1".to_vec(), ..with_header("transfer-encoding", "chunked") },
            LoadTarget { method: "CONNECT".to_owned(), ..sample_target() },
            LoadTarget {
                headers: vec![
                    ("connection".to_owned(), "upgrade".to_owned()),
                    ("upgrade".to_owned(), "websocket".to_owned()),
                ],
                ..sample_target()
            },
        ] {
            assert!(SerializedRequest::new(&bad, ConnectionReuse::Keep).is_err(), "{bad:?}");
        }
    }
}
