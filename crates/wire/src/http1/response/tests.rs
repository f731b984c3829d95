//! Tests of response heads: accepted, rejected, and their body framing.

#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "a test may panic")]

use super::*;
use crate::http1::FieldKind;

#[test]
fn parses_a_plain_response() {
    let bytes = b"HTTP/1.1 404 Not \xc3\xa0 Found\r\nServer: a\r\nContent-Length: 2\r\n\r\nno";
    let mut head = ResponseHead::default();
    assert_eq!(head.parse(bytes, RequestKind::Other), Ok(ParseProgress::Complete(bytes.len() - 2)));
    assert_eq!((head.status, head.version), (404, Http1Version::Http11));
    assert_eq!(head.reason.slice_in(bytes), b"Not \xc3\xa0 Found");
    assert_eq!(head.body, BodyLength::ContentLength(2));
    assert_eq!(head.fields[1].kind, FieldKind::ContentLength);
    assert_eq!(head.find(bytes, "server").next(), Some(&b"a"[..]));
    assert!(head.keep_alive && !head.tunnel && !head.is_interim());
}

#[test]
fn determines_the_framing_of_every_body() {
    use BodyLength::{Chunked, ContentLength, Empty, UntilClose};
    use RequestKind::{Connect, Head, Other};
    let cases: [(RequestKind, &str, &str, BodyLength); 22] = [
        (Other, "200", "", UntilClose),
        (Other, "200", "Content-Length: 7\r\n", ContentLength(7)),
        (Other, "200", "Content-Length: 0\r\n", ContentLength(0)),
        (Other, "200", "Transfer-Encoding: chunked\r\n", Chunked),
        (Other, "500", "", UntilClose),
        (Head, "200", "", Empty),
        (Head, "200", "Content-Length: 7\r\n", Empty),
        (Head, "200", "Transfer-Encoding: chunked\r\n", Empty),
        (Head, "404", "Content-Length: 7\r\n", Empty),
        (Other, "304", "Content-Length: 7\r\n", Empty),
        (Other, "304", "Transfer-Encoding: chunked\r\n", Empty),
        (Other, "204", "", Empty),
        (Other, "204", "Content-Length: 0\r\n", Empty),
        (Other, "100", "", Empty),
        (Other, "103", "Link: a\r\n", Empty),
        (Other, "101", "", Empty),
        (Connect, "200", "", Empty),
        (Connect, "200", "Content-Length: 7\r\n", Empty),
        (Connect, "200", "Transfer-Encoding: chunked\r\n", Empty),
        (Connect, "407", "Content-Length: 7\r\n", ContentLength(7)),
        (Connect, "503", "", UntilClose),
        (Connect, "503", "Transfer-Encoding: chunked\r\n", Chunked),
    ];
    for (request_kind, status, fields, body) in cases {
        let bytes = format!("HTTP/1.1 {status} \r\n{fields}\r\n");
        let mut head = ResponseHead::default();
        let parsed = head.parse(bytes.as_bytes(), request_kind);
        assert_eq!(parsed, Ok(ParseProgress::Complete(bytes.len())), "{bytes}");
        assert_eq!(head.body, body, "{request_kind:?} {bytes}");
        assert_eq!(head.tunnel, status == "101" || (request_kind == Connect && status == "200"));
        assert_eq!(head.is_interim(), status == "100" || status == "103");
        assert_eq!(head.keep_alive, body != UntilClose && !head.tunnel, "{bytes}");
    }
}

#[test]
fn rejects_a_bad_status_line() {
    let invalid_lines: [(&[u8], Malformed); 19] = [
        (b"HTTP/1.1 200", Malformed::StatusLine),
        (b"HTTP/1.1 20 OK", Malformed::StatusLine),
        (b"HTTP/1.1 2000 OK", Malformed::StatusLine),
        (b"HTTP/1.1 099 OK", Malformed::StatusLine),
        (b"HTTP/1.1 +20 OK", Malformed::StatusLine),
        (b"HTTP/1.1 2 0 OK", Malformed::StatusLine),
        (b"HTTP/1.1  200 OK", Malformed::StatusLine),
        (b"HTTP/1.1\t200 OK", Malformed::StatusLine),
        (b"HTTP/1.1 OK", Malformed::StatusLine),
        (b"HTTP/1.1", Malformed::StatusLine),
        (b"HTTP/2 200 OK", Malformed::Version),
        (b"ICY 200 OK", Malformed::Version),
        (b" HTTP/1.1 200 OK", Malformed::Version),
        (b"\r\nHTTP/1.1 200 OK", Malformed::Version),
        (b"", Malformed::Version),
        (b"HTTP/1.1 200 O\0K", Malformed::FieldValue),
        (b"HTTP/1.1 200 O\rK", Malformed::LineEnd),
        (b"HTTP/1.1 200 O\nK", Malformed::LineEnd),
        (b"HTTP/1.1 200 OK\r", Malformed::LineEnd),
    ];
    for (line, fault) in invalid_lines {
        expect_malformed(&[line, b"\r\nContent-Length: 0\r\n\r\n"].concat(), fault);
    }
}

#[test]
fn rejects_ambiguous_heads() {
    let ambiguous_heads: [(&str, &str, Malformed); 12] = [
        ("200", "Content-Length: 5\r\nTransfer-Encoding: chunked", Malformed::TwoLengths),
        ("304", "Content-Length: 5\r\nTransfer-Encoding: chunked", Malformed::TwoLengths),
        ("200", "Content-Length: 5\r\nContent-Length: 6", Malformed::ContentLengthRepeated),
        ("200", "Content-Length: 5,5", Malformed::ContentLength),
        ("200", "Transfer-Encoding: gzip", Malformed::TransferEncoding),
        ("204", "Content-Length: 5", Malformed::BodyForbidden),
        ("204", "Transfer-Encoding: chunked", Malformed::BodyForbidden),
        ("100", "Content-Length: 5", Malformed::BodyForbidden),
        ("101", "Transfer-Encoding: chunked", Malformed::BodyForbidden),
        ("200", "Connection: content-length\r\nContent-Length: 5", Malformed::ConnectionOption),
        ("200", "X: a\r\n b", Malformed::FoldedField),
        ("200", "Host: a\r\nHost: b", Malformed::HostRepeated),
    ];
    for (status, fields, fault) in ambiguous_heads {
        expect_malformed(format!("HTTP/1.1 {status} A\r\n{fields}\r\n\r\n").as_bytes(), fault);
    }
    expect_malformed(
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        Malformed::TransferEncodingInHttp10,
    );
    expect_malformed(b"HTTP/1.1 200 OK\n", Malformed::LineEnd);
    expect_malformed(&[b'x'; crate::http1::MAX_HEAD_BYTES], Malformed::HeadTooLarge);
}

#[test]
fn every_prefix_is_partial() {
    let bytes =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: a, close\r\nA: b\r\n\r\n";
    let mut head = ResponseHead::default();
    for end in 0..bytes.len() {
        assert_eq!(
            head.parse(&bytes[..end], RequestKind::Other),
            Ok(ParseProgress::Partial),
            "{end}"
        );
        assert_eq!(head.status, 0);
    }
    assert_eq!(head.parse(bytes, RequestKind::Other), Ok(ParseProgress::Complete(bytes.len())));
    assert!(!head.keep_alive);
}

#[test]
fn finds_connection_options() {
    for (fields, expected) in [
        ("Connection: a", true),
        ("connection: close , A", true),
        ("Connection: b\r\nX: y\r\nConnection: c,a", true),
        ("Connection: ab, ba", false),
        ("Connection: b\r\nA: a", false),
        ("X: a", false),
    ] {
        let bytes = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n");
        let mut head = ResponseHead::default();
        head.parse(bytes.as_bytes(), RequestKind::Other).unwrap();
        assert_eq!(head.has_connection_option(bytes.as_bytes(), "a"), expected, "{fields}");
    }
}

#[test]
fn request_kind_follows_the_method() {
    assert_eq!(RequestKind::for_method(b"HEAD"), RequestKind::Head);
    assert_eq!(RequestKind::for_method(b"CONNECT"), RequestKind::Connect);
    assert_eq!(RequestKind::for_method(b"head"), RequestKind::Other);
}

fn expect_malformed(bytes: &[u8], fault: Malformed) {
    let mut head = ResponseHead::default();
    assert_eq!(head.parse(bytes, RequestKind::Other), Err(fault), "{}", bytes.escape_ascii());
}
