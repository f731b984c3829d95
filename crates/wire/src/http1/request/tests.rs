//! Tests of request heads: accepted, rejected, split at any position.

#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "a test may panic")]

use proptest::prelude::*;

use super::*;
use crate::http1::{FieldKind, MAX_FIELDS, MAX_HEAD_BYTES};

#[test]
fn parses_a_plain_request() {
    let bytes = b"POST /a/b?c=d HTTP/1.1\r\nHost: ratings:9080\r\nContent-Length: 5\r\n\
                  X-Many: one \t\r\nx-many:\t two\r\nX-Empty:\r\n\r\nhello";
    let mut head = RequestHead::default();
    assert_eq!(head.parse(bytes), Ok(ParseProgress::Complete(bytes.len() - 5)));
    assert_eq!(head.method.slice_in(bytes), b"POST");
    assert_eq!(head.target.slice_in(bytes), b"/a/b?c=d");
    assert_eq!(head.version, Http1Version::Http11);
    assert_eq!(head.host.unwrap().slice_in(bytes), b"ratings:9080");
    assert_eq!(head.body, BodyLength::ContentLength(5));
    assert!(head.keep_alive && !head.upgrade && !head.expect_continue);
    assert_eq!(head.fields.len(), 5);
    let many: Vec<&[u8]> = head.find(bytes, "X-MANY").collect();
    assert_eq!(many, [b"one", b"two"]);
    assert_eq!(head.find(bytes, "x-empty").next(), Some(&b""[..]));
    assert_eq!(head.find(bytes, "x-absent").next(), None);
}

#[test]
fn find_skips_fields_listed_in_connection() {
    let bytes = b"GET / HTTP/1.1\r\nHost: a\r\nX-Lane: b\r\nConnection: x-lane\r\n\
                  Upgrade: websocket\r\n\r\n";
    let mut head = RequestHead::default();
    assert_eq!(head.parse(bytes), Ok(ParseProgress::Complete(bytes.len())));
    assert_eq!(head.find(bytes, "x-lane").next(), None);
    assert_eq!(head.find(bytes, "upgrade").next(), Some(&b"websocket"[..]));
}

#[test]
fn accepts_valid_requests() {
    let valid_requests: [&[u8]; 22] = [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nhOsT:a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost:\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
        b"GET http://a/b HTTP/1.1\r\nHost: a\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
        b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nContent-Length: 0\r\n\r\n",
        b"M-SEARCH!#$%&'*+.^_`|~ / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: caf\xc3\xa9 \xff\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\tb\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551615\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: ,close,, x-gone\r\n\r\n",
        b"GET /?a={b:[1]}^`~ HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /%00%zz;a=b|c?\\ HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET //evil.example/%2e%2e HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\n\r\n",
    ];
    for bytes in valid_requests {
        let parsed = RequestHead::default().parse(bytes);
        let expected = Ok(ParseProgress::Complete(bytes.len()));
        assert_eq!(parsed, expected, "{}", bytes.escape_ascii());
    }
}

#[test]
fn rejects_a_bad_request_line() {
    let invalid_lines: [(&[u8], Malformed); 29] = [
        (b" GET / HTTP/1.1", Malformed::Method),
        (b"\r\n\r\nGET / HTTP/1.1", Malformed::Method),
        (b"G(T / HTTP/1.1", Malformed::Method),
        (b"G\0T / HTTP/1.1", Malformed::Method),
        (b"GET\t/ HTTP/1.1", Malformed::Method),
        (b"GET", Malformed::Method),
        (b"GET  / HTTP/1.1", Malformed::RequestLine),
        (b"GET /  HTTP/1.1", Malformed::RequestLine),
        (b"GET / HTTP/1.1 ", Malformed::RequestLine),
        (b"GET /", Malformed::RequestLine),
        (b"GET /a b HTTP/1.1", Malformed::RequestLine),
        (b"GET /#top HTTP/1.1", Malformed::TargetCharacter),
        (b"GET /\x7f HTTP/1.1", Malformed::TargetCharacter),
        (b"GET /\xc3\xa9 HTTP/1.1", Malformed::TargetCharacter),
        (b"GET /a\tb HTTP/1.1", Malformed::TargetCharacter),
        (b"GET /<a> HTTP/1.1", Malformed::TargetCharacter),
        (b"GET /..\\admin HTTP/1.1", Malformed::TargetCharacter),
        (b"GET a/b HTTP/1.1", Malformed::TargetForm),
        (b"GET * HTTP/1.1", Malformed::TargetForm),
        (b"GET http:// HTTP/1.1", Malformed::Authority),
        (b"GET http://u@a/ HTTP/1.1", Malformed::Authority),
        (b"CONNECT a HTTP/1.1", Malformed::TargetForm),
        (b"CONNECT /a HTTP/1.1", Malformed::Authority),
        (b"GET / HTTP/2.0", Malformed::Version),
        (b"GET / HTTP/1.2", Malformed::Version),
        (b"GET / HTTP/01.1", Malformed::Version),
        (b"GET / http/1.1", Malformed::RequestLine),
        (b"GET / HTTP/1.10", Malformed::RequestLine),
        (b"GET / HTTP/1.1\r", Malformed::LineEnd),
    ];
    for (line, fault) in invalid_lines {
        let bytes = [line, b"\r\nHost: a\r\n\r\n"].concat();
        expect_malformed(&bytes, fault);
    }
}

#[test]
fn rejects_bad_fields() {
    let invalid_fields: [(&[u8], Malformed); 28] = [
        (b"X : a", Malformed::SpaceBeforeColon),
        (b"X\t: a", Malformed::SpaceBeforeColon),
        (b"Transfer-Encoding : chunked", Malformed::SpaceBeforeColon),
        (b": a", Malformed::FieldName),
        (b"X", Malformed::FieldName),
        (b"X(y): a", Malformed::FieldName),
        (b"X\0: a", Malformed::FieldName),
        (b"\xef\xbb\xbfX: a", Malformed::FieldName),
        (b"X: a\r\n folded", Malformed::FoldedField),
        (b"X: a\r\n\tfolded", Malformed::FoldedField),
        (b"X: a\0b", Malformed::FieldValue),
        (b"X: a\x0bb", Malformed::FieldValue),
        (b"X: a\x7f", Malformed::FieldValue),
        (b"X: a\rb", Malformed::LineEnd),
        (b"X: a\nY: b", Malformed::LineEnd),
        (b"X: a\r\r\nY: b", Malformed::LineEnd),
        (b"\nX: a", Malformed::LineEnd),
        (b"\rX: a", Malformed::LineEnd),
        (b"Host: b", Malformed::HostRepeated),
        (b"Host: a", Malformed::HostRepeated),
        (b"Connection: host", Malformed::ConnectionOption),
        (b"Connection: close, Content-Length", Malformed::ConnectionOption),
        (b"Connection: transfer-encoding", Malformed::ConnectionOption),
        (b"Connection: a b", Malformed::ConnectionOption),
        (b"Connection: \"close\"", Malformed::ConnectionOption),
        (b"Connection: 1,2,3,4,5,6,7,8,9,a,b,c,d,e,f,g,h", Malformed::TooManyConnectionOptions),
        (b"Connection: 1,2,3,4,5,6,7,8,9,a,b,c\r\nConnection: d,e,f,g,h", {
            Malformed::TooManyConnectionOptions
        }),
        (b"X: \x80\x01", Malformed::FieldValue),
    ];
    for (field, fault) in invalid_fields {
        expect_malformed(&[b"GET / HTTP/1.1\r\nHost: a\r\n", field, b"\r\n\r\n"].concat(), fault);
        if !field.starts_with(b"Host") {
            expect_malformed(
                &[b"GET / HTTP/1.1\r\n", field, b"\r\nHost: a\r\n\r\n"].concat(),
                fault,
            );
        }
    }
}

#[test]
fn rejects_ambiguous_lengths() {
    let ambiguous_fields: [(&[u8], Malformed); 21] = [
        (b"Content-Length: 5\r\nContent-Length: 5", Malformed::ContentLengthRepeated),
        (b"Content-Length: 5\r\nContent-Length: 6", Malformed::ContentLengthRepeated),
        (b"Content-Length: 0\r\ncontent-length: 0", Malformed::ContentLengthRepeated),
        (b"Content-Length: 5, 5", Malformed::ContentLength),
        (b"Content-Length: +5", Malformed::ContentLength),
        (b"Content-Length: -5", Malformed::ContentLength),
        (b"Content-Length:", Malformed::ContentLength),
        (b"Content-Length: 0x5", Malformed::ContentLength),
        (b"Content-Length: 05", Malformed::ContentLength),
        (b"Content-Length: 5 5", Malformed::ContentLength),
        (b"Content-Length: 18446744073709551616", Malformed::ContentLength),
        (b"Content-Length: \xd9\xa5", Malformed::ContentLength),
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked", Malformed::TwoLengths),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 0", Malformed::TwoLengths),
        (b"Transfer-Encoding: gzip, chunked", Malformed::TransferEncoding),
        (b"Transfer-Encoding: chunked, chunked", Malformed::TransferEncoding),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", Malformed::TransferEncoding),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", Malformed::TransferEncoding),
        (b"Transfer-Encoding: identity", Malformed::TransferEncoding),
        (b"Transfer-Encoding: xchunked", Malformed::TransferEncoding),
        (b"Transfer-Encoding:", Malformed::TransferEncoding),
    ];
    for (fields, fault) in ambiguous_fields {
        expect_malformed(&[b"POST / HTTP/1.1\r\nHost: a\r\n", fields, b"\r\n\r\n"].concat(), fault);
    }
    expect_malformed(
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        Malformed::TransferEncodingInHttp10,
    );
    for length in ["Content-Length: 1", "Transfer-Encoding: chunked"] {
        let bytes = format!("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n{length}\r\n\r\n");
        expect_malformed(bytes.as_bytes(), Malformed::BodyForbidden);
    }
}

#[test]
fn requires_one_valid_host() {
    expect_malformed(b"GET / HTTP/1.1\r\n\r\n", Malformed::HostMissing);
    expect_malformed(b"GET / HTTP/1.1\r\nX-Host: a\r\n\r\n", Malformed::HostMissing);
    expect_malformed(b"GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", Malformed::HostRepeated);
    for host in ["a b", "a/b", "u@a", "a:b", "a:65536", "a:1:2", "[::1", "::1", ":80", "a?b"] {
        let bytes = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        expect_malformed(bytes.as_bytes(), Malformed::Authority);
    }
}

#[test]
fn parses_keep_alive_upgrade_and_expect() {
    // Version and fields; expected: keep_alive, upgrade, expect_continue.
    let cases: [(&str, &str, [bool; 3]); 14] = [
        ("1.1", "X: y", [true, false, false]),
        ("1.1", "Connection: close", [false, false, false]),
        ("1.1", "Connection: keep-alive, CLOSE", [false, false, false]),
        ("1.1", "Connection: x\r\nConnection: close", [false, false, false]),
        ("1.0", "X: y", [false, false, false]),
        ("1.0", "Connection: Keep-Alive", [true, false, false]),
        ("1.1", "Connection: Upgrade\r\nUpgrade: websocket", [true, true, false]),
        ("1.1", "Upgrade: websocket\r\nConnection: keep-alive, upgrade", [true, true, false]),
        ("1.1", "Upgrade: websocket", [true, false, false]),
        ("1.1", "Connection: upgrade", [true, false, false]),
        ("1.1", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c", [true, false, false]),
        ("1.0", "Connection: Upgrade\r\nUpgrade: websocket", [false, false, false]),
        ("1.1", "Expect: 100-continue", [true, false, true]),
        ("1.0", "Expect: 100-continue", [false, false, false]),
    ];
    for (version, fields, expected) in cases {
        let bytes = format!("GET / HTTP/{version}\r\nHost: a\r\n{fields}\r\n\r\n");
        let mut head = RequestHead::default();
        assert_eq!(head.parse(bytes.as_bytes()), Ok(ParseProgress::Complete(bytes.len())));
        assert_eq!([head.keep_alive, head.upgrade, head.expect_continue], expected, "{bytes}");
    }
}

#[test]
fn websocket_is_set_only_if_upgrade_lists_nothing_else() {
    for (fields, upgrade, websocket) in [
        ("Upgrade: websocket", true, true),
        ("Upgrade: WebSocket", true, true),
        ("Upgrade: websocket, WEBSOCKET", true, true),
        ("Upgrade: websocket\r\nUpgrade: websocket", true, true),
        ("Upgrade: websocket, tcp", true, false),
        ("Upgrade: tcp, websocket", true, false),
        ("Upgrade: websocket\r\nUpgrade: tcp", true, false),
        ("Upgrade: websocket,", true, false),
        ("Upgrade: websocket/13", true, false),
        ("Upgrade: websocket\r\nUpgrade:", true, false),
        ("Upgrade: tcp", true, false),
        ("Upgrade: websocket, h2c", false, false),
        ("Upgrade:", false, false),
        ("X: y", false, false),
    ] {
        let bytes = format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\n{fields}\r\n\r\n");
        let mut head = RequestHead::default();
        assert_eq!(head.parse(bytes.as_bytes()), Ok(ParseProgress::Complete(bytes.len())));
        assert_eq!((head.upgrade, head.websocket), (upgrade, websocket), "{fields}");
    }
}

#[test]
fn marks_hop_by_hop_fields() {
    let bytes = b"GET / HTTP/1.1\r\nX-Named: 1\r\nHost: a\r\nConnection: x-NAMED , keep-alive\r\n\
                  Keep-Alive: 5\r\nProxy-Connection: a\r\nTE: trailers\r\nUpgrade: a\r\n\
                  Proxy-Authorization: b\r\nX-Kept: 2\r\nx-named: 3\r\nTrailer: c\r\n\r\n";
    let mut head = RequestHead::default();
    assert_eq!(head.parse(bytes), Ok(ParseProgress::Complete(bytes.len())));
    let forwarded_names: Vec<&[u8]> = head
        .fields
        .iter()
        .filter(|field| !field.hop_by_hop)
        .map(|field| field.name.slice_in(bytes))
        .collect();
    assert_eq!(forwarded_names, [&b"Host"[..], b"X-Kept", b"Trailer"]);
    assert!(head.fields.iter().any(|field| field.kind == FieldKind::ProxyConnection));
}

#[test]
fn every_prefix_is_partial() {
    let bytes = b"\r\nPOST /a?b HTTP/1.1\r\nHost: a:1\r\nTransfer-Encoding: chunked\r\n\
                  Connection: x, close\r\nX: y z \r\n\r\n";
    let mut head = RequestHead::default();
    for end in 0..bytes.len() {
        assert_eq!(head.parse(&bytes[..end]), Ok(ParseProgress::Partial), "{end}");
        assert!(head.fields.is_empty() && head.method.is_empty());
    }
    let complete = Ok(ParseProgress::Complete(bytes.len()));
    assert_eq!(head.parse(bytes), complete);
    let mut other_head = RequestHead::default();
    assert_eq!(other_head.parse(&[&bytes[..], b"0\r\n\r\nGET"].concat()), complete);
    assert_eq!(format!("{head:?}"), format!("{other_head:?}"));
}

#[test]
fn rejects_wrong_line_ends_before_the_head_is_complete() {
    for bytes in [&b"GET / HTTP/1.1\n"[..], b"GET / HTTP/1.1\r\nHost: a\n\n", b"\n"] {
        expect_malformed(bytes, Malformed::LineEnd);
    }
}

#[test]
fn bounds_the_head() {
    let line = b"GET / HTTP/1.1\r\nHost: a\r\nX: ";
    let fill_head = |total: usize| {
        let mut bytes = line.to_vec();
        bytes.resize(total - 4, b'x');
        bytes.extend_from_slice(b"\r\n\r\n");
        bytes
    };
    let mut head = RequestHead::default();
    let largest = fill_head(MAX_HEAD_BYTES);
    assert_eq!(head.parse(&largest), Ok(ParseProgress::Complete(MAX_HEAD_BYTES)));
    assert_eq!(head.parse(&largest[..MAX_HEAD_BYTES - 1]), Ok(ParseProgress::Partial));
    let larger = fill_head(MAX_HEAD_BYTES + 1);
    expect_malformed(&larger, Malformed::HeadTooLarge);
    expect_malformed(&larger[..MAX_HEAD_BYTES], Malformed::HeadTooLarge);
    assert_eq!(Malformed::HeadTooLarge.status(), 431);

    let head_with_fields = |count: usize| {
        let fields = "X: y\r\n".repeat(count - 1);
        format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n").into_bytes()
    };
    assert!(matches!(head.parse(&head_with_fields(MAX_FIELDS)), Ok(ParseProgress::Complete(_))));
    assert_eq!(head.fields.len(), MAX_FIELDS);
    expect_malformed(&head_with_fields(MAX_FIELDS + 1), Malformed::TooManyFields);
    expect_malformed(&head_with_fields(1000), Malformed::TooManyFields);
}

#[test]
fn a_reused_head_keeps_nothing_of_the_previous_request() {
    let mut head = RequestHead::default();
    let first_request =
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 3\r\n\r\n";
    assert!(head.parse(first_request).is_ok());
    let capacity = head.fields.capacity();
    let second_request = b"GET / HTTP/1.0\r\n\r\n";
    assert_eq!(head.parse(second_request), Ok(ParseProgress::Complete(second_request.len())));
    let mut fresh_head = RequestHead::default();
    assert!(fresh_head.parse(second_request).is_ok());
    assert_eq!(format!("{head:?}"), format!("{fresh_head:?}"));
    assert_eq!(head.fields.capacity(), capacity);
}

proptest! {
    #[test]
    fn never_panics_on_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut head = RequestHead::default();
        if let Ok(ParseProgress::Complete(length)) = head.parse(&bytes) {
            prop_assert!(length <= bytes.len());
        }
        let framed = [b"GET / HTTP/1.1\r\nHost: a\r\n", &bytes[..], b"\r\n\r\n"].concat();
        if let Ok(ParseProgress::Complete(length)) = head.parse(&framed) {
            prop_assert!(length <= framed.len());
        }
    }
}

fn expect_malformed(bytes: &[u8], fault: Malformed) {
    let mut head = RequestHead::default();
    assert_eq!(head.parse(bytes), Err(fault), "{}", bytes.escape_ascii());
    assert!(head.fields.is_empty() && head.host.is_none());
}
