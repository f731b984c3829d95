//! Tests of written heads: kept and removed fields, and equal results when parsed again.

#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "a test may panic")]

use proptest::prelude::*;

use super::*;
use crate::http1::{Malformed, ParseProgress, RequestKind};

#[test]
fn forwards_requests() {
    let plain = RequestEdits::default();
    let check = |received: &str, edits: &RequestEdits<'_>, expected: &str| {
        assert_eq!(rewrite_request(received, edits), expected, "{received}");
    };
    check(
        "GET /a HTTP/1.1\r\nHost: a\r\nX-Odd:  b \t\r\naccept:c\r\n\r\n",
        &plain,
        "GET /a HTTP/1.1\r\nHost: a\r\nX-Odd:  b \t\r\naccept:c\r\n\r\n",
    );
    check("\r\nGET / HTTP/1.0\r\n\r\n", &plain, "GET / HTTP/1.1\r\nhost: \r\n\r\n");
    check(
        "GET / HTTP/1.1\r\nA: 1\r\nConnection: x-gone, keep-alive\r\nHost: a\r\nX-Gone: 2\r\n\
         Keep-Alive: 3\r\nProxy-Connection: 4\r\nTE: trailers\r\nUpgrade: 5\r\nB: 6\r\n\
         Proxy-Authorization: 7\r\n\r\n",
        &plain,
        "GET / HTTP/1.1\r\nA: 1\r\nHost: a\r\nB: 6\r\n\r\n",
    );
    check(
        "GET http://a/b HTTP/1.1\r\nA: 1\r\nhOST: evil\r\nB: 2\r\n\r\n",
        &RequestEdits { target: Some(b"/b"), host: Some(b"a"), ..plain },
        "GET /b HTTP/1.1\r\nA: 1\r\nhOST: a\r\nB: 2\r\n\r\n",
    );
    check(
        "GET / HTTP/1.1\r\nHost: a\r\nX-Claim: forged\r\nx-claim: again\r\nB: 2\r\n\r\n",
        &RequestEdits { add: &[("x-claim", b"true")], remove: &["X-CLAIM".into()], ..plain },
        "GET / HTTP/1.1\r\nHost: a\r\nB: 2\r\nx-claim: true\r\n\r\n",
    );
    check(
        "GET / HTTP/1.1\r\nX-Set: old\r\nHost: a\r\n\r\n",
        &RequestEdits { lines: "x-set: new\r\nb: c: d\r\n", remove: &["x-set".into()], ..plain },
        "GET / HTTP/1.1\r\nHost: a\r\nx-set: new\r\nb: c: d\r\n\r\n",
    );
    check(
        "GET / HTTP/1.1\r\nX_Set: old\r\nx.set: old\r\nxxset: 1\r\nx-setx: 2\r\nHost: a\r\n\r\n",
        &RequestEdits { lines: "x-set: new\r\n", remove: &["x-set".into()], ..plain },
        "GET / HTTP/1.1\r\nxxset: 1\r\nx-setx: 2\r\nHost: a\r\nx-set: new\r\n\r\n",
    );
    check(
        "GET / HTTP/1.1\r\nTraceParent: 1\r\nHost: a\r\nb3: 2\r\nB: 3\r\n\r\n",
        &RequestEdits { add: &[("b3", b"4")], replace: &["traceparent", "b3"], ..plain },
        "GET / HTTP/1.1\r\nHost: a\r\nB: 3\r\nb3: 4\r\n\r\n",
    );
    check(
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n",
        &RequestEdits { connection: ConnectionHeader::Upgrade, ..plain },
        "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    );
    check(
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        &RequestEdits { connection: ConnectionHeader::Close, ..plain },
        "GET / HTTP/1.1\r\nHost: a\r\nconnection: close\r\n\r\n",
    );
}

#[test]
fn writes_the_framing_of_a_request() {
    let with_length = "Content-Length: 5\r\n";
    let chunked_field = "transfer-encoding: chunked\r\n";
    let cases = [
        (with_length, FramingPolicy::Keep, with_length),
        (with_length, FramingPolicy::OutOfBand, with_length),
        (with_length, FramingPolicy::Chunked, chunked_field),
        ("Transfer-Encoding: Chunked\r\n", FramingPolicy::Keep, chunked_field),
        ("Transfer-Encoding: chunked\r\n", FramingPolicy::OutOfBand, ""),
        ("Transfer-Encoding: chunked\r\n", FramingPolicy::Chunked, chunked_field),
        ("", FramingPolicy::Keep, ""),
        ("", FramingPolicy::OutOfBand, ""),
        ("Content-Length: 0\r\n", FramingPolicy::Keep, "Content-Length: 0\r\n"),
    ];
    for (received, framing, written) in cases {
        let remove = &["content-length".into(), "host".into()];
        let edits = RequestEdits { framing, remove, ..<_>::default() };
        let head = |fields| format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        assert_eq!(
            rewrite_request(&head(received), &edits),
            head(written),
            "{received} {framing:?}"
        );
    }
}

#[test]
fn the_body_of_the_head_overrides_its_framing_fields() {
    let cases = [
        ("", BodyLength::Chunked, "transfer-encoding: chunked\r\n"),
        ("", BodyLength::ContentLength(12), "content-length: 12\r\n"),
        ("Content-Length: 5\r\n", BodyLength::Chunked, "transfer-encoding: chunked\r\n"),
        ("Content-Length: 5\r\n", BodyLength::Empty, ""),
    ];
    for (fields, body, written) in cases {
        let bytes = format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let mut head = RequestHead::default();
        head.parse(bytes.as_bytes()).unwrap();
        head.body = body;
        let mut output = BytesMut::new();
        write_request(bytes.as_bytes(), &head, &RequestEdits::default(), &mut output);
        assert_eq!(output_text(&output), format!("POST / HTTP/1.1\r\nHost: a\r\n{written}\r\n"));
    }
}

#[test]
fn forwards_responses() {
    // The received fields, and the written ones.
    let same = |fields: &'static str| (fields, fields);
    let with_length = same("Content-Length: 5\r\n");
    let chunks = ("Transfer-Encoding: Chunked\r\n", "transfer-encoding: chunked\r\n");
    let check = |request_kind, status: u16, framing, (received, written): (&str, &str)| {
        let edits = ResponseEdits { framing, ..<_>::default() };
        let head = |fields| format!("HTTP/1.1 {status} Some Reason\r\n{fields}\r\n");
        assert_eq!(rewrite_response(&head(received), request_kind, &edits), head(written));
    };
    check(RequestKind::Other, 200, FramingPolicy::Keep, with_length);
    check(RequestKind::Other, 200, FramingPolicy::OutOfBand, with_length);
    check(RequestKind::Other, 200, FramingPolicy::Chunked, (with_length.0, chunks.1));
    check(RequestKind::Other, 200, FramingPolicy::Keep, chunks);
    check(RequestKind::Other, 200, FramingPolicy::OutOfBand, (chunks.0, ""));
    check(RequestKind::Other, 200, FramingPolicy::Keep, same(""));
    check(RequestKind::Other, 200, FramingPolicy::Chunked, ("", chunks.1));
    check(RequestKind::Head, 200, FramingPolicy::Keep, with_length);
    check(RequestKind::Head, 200, FramingPolicy::OutOfBand, with_length);
    check(RequestKind::Head, 200, FramingPolicy::Keep, (chunks.0, ""));
    check(RequestKind::Other, 304, FramingPolicy::Keep, with_length);
    check(RequestKind::Other, 204, FramingPolicy::Keep, ("Content-Length: 0\r\n", ""));
    check(RequestKind::Other, 204, FramingPolicy::Chunked, same(""));
    check(RequestKind::Connect, 200, FramingPolicy::Keep, (with_length.0, ""));
    check(RequestKind::Other, 103, FramingPolicy::Chunked, same("Link: a\r\n"));
    check(
        RequestKind::Other,
        200,
        FramingPolicy::Keep,
        ("Connection: a\r\nA: 1\r\nB: 2\r\n", "B: 2\r\n"),
    );
}

#[test]
fn edits_responses() {
    let edits = ResponseEdits {
        add: &[("x-new", b"1")],
        lines: "x-more: 2\r\n",
        remove: &["server".into()],
        connection: ConnectionHeader::Close,
        ..<_>::default()
    };
    let written = rewrite_response(
        "HTTP/1.0 999 \r\nA: b\r\nServer: c\r\nD: e\r\n\r\n",
        RequestKind::Other,
        &edits,
    );
    assert_eq!(
        written,
        "HTTP/1.1 999 \r\nA: b\r\nD: e\r\nconnection: close\r\nx-new: 1\r\nx-more: 2\r\n\r\n"
    );
    let edits = ResponseEdits { connection: ConnectionHeader::Upgrade, ..<_>::default() };
    let switching_response = "HTTP/1.1 101 Go\r\nUpgrade: websocket\r\nconnection: upgrade\r\n\r\n";
    assert_eq!(
        rewrite_response(switching_response, RequestKind::Other, &edits),
        switching_response
    );
}

#[test]
fn no_edit_can_split_a_message() {
    let edits = RequestEdits {
        target: Some(b"/a HTTP/1.1\r\nX: y\xff"),
        host: Some(b"a\r\nX: y"),
        add: &[("x-id", b"a\r\n\r\nGET / HTTP/1.1\0")],
        ..<_>::default()
    };
    let written = rewrite_request("GET / HTTP/1.1\r\nHost: b\r\n\r\n", &edits);
    assert_eq!(
        written,
        "GET /a%20HTTP/1.1%0D%0AX:%20y%FF HTTP/1.1\r\nHost: a  X: y\r\n\
         x-id: a    GET / HTTP/1.1 \r\n\r\n"
    );
}

#[test]
fn smuggling_attempts_are_rejected() {
    // Some server would read each of these differently; all must be rejected by the parser.
    let attacks = [
        ("Content-Length: 6\r\nTransfer-Encoding: chunked", Malformed::TwoLengths),
        ("Transfer-Encoding: chunked\r\nContent-Length: 4", Malformed::TwoLengths),
        ("Transfer-Encoding: xchunked\r\nContent-Length: 4", Malformed::TransferEncoding),
        ("Transfer-Encoding : chunked\r\nContent-Length: 4", Malformed::SpaceBeforeColon),
        ("X: y\r\n Transfer-Encoding: chunked", Malformed::FoldedField),
        ("X: y\nTransfer-Encoding: chunked", Malformed::LineEnd),
        ("X: y\rTransfer-Encoding: chunked", Malformed::LineEnd),
        ("Transfer-Encoding: \x0bchunked", Malformed::FieldValue),
        ("Transfer-Encoding\0: chunked", Malformed::FieldName),
        ("Content-Length: 4\r\nContent-Length: 44", Malformed::ContentLengthRepeated),
        ("Content-Length: 4\r\nConnection: Content-Length", Malformed::ConnectionOption),
    ];
    for (fields, fault) in attacks {
        let bytes = format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n0\r\n\r\nG");
        assert_eq!(RequestHead::default().parse(bytes.as_bytes()), Err(fault), "{fields}");
        let bytes = format!("HTTP/1.1 200 OK\r\nA: b\r\n{fields}\r\n\r\n0\r\n\r\nH");
        let parsed = ResponseHead::default().parse(bytes.as_bytes(), RequestKind::Other);
        assert_eq!(parsed, Err(fault), "{fields}");
    }
}

proptest! {
    #[test]
    fn a_written_request_parses_to_the_same(
        (method, target) in request_line(),
        fields in any_fields(),
        body in any_body(),
        framing in prop_oneof![Just(FramingPolicy::Keep), Just(FramingPolicy::OutOfBand)],
    ) {
        let received =
            format!("{method} {target} HTTP/1.1\r\nHost: a.b:1\r\n{fields}{body}\r\n");
        let edits = RequestEdits { framing, ..<_>::default() };
        prop_assume!(method != "CONNECT" || matches!(body, "" | "Content-Length: 0\r\n"));
        let (mut received_head, mut written_head) = (RequestHead::default(), RequestHead::default());
        received_head.parse(received.as_bytes()).unwrap();
        let written = rewrite_request(&received, &edits);
        prop_assert_eq!(written_head.parse(written.as_bytes()), Ok(ParseProgress::Complete(written.len())));
        prop_assert_eq!(received_head.method.slice_in(received.as_bytes()), written_head.method.slice_in(written.as_bytes()));
        prop_assert_eq!(received_head.target.slice_in(received.as_bytes()), written_head.target.slice_in(written.as_bytes()));
        prop_assert_eq!(end_to_end(&received, &received_head.fields), end_to_end(&written, &written_head.fields));
        if framing == FramingPolicy::Keep || received_head.body != BodyLength::Chunked {
            prop_assert_eq!(received_head.body, written_head.body);
        }
        prop_assert_eq!(rewrite_request(&written, &edits), written);
    }

    #[test]
    fn a_written_response_parses_to_the_same(
        status in 200_u16..=999,
        reason in "[ -~]{0,20}",
        fields in any_fields(),
        body in any_body(),
        request_kind in prop_oneof![Just(RequestKind::Other), Just(RequestKind::Head)],
    ) {
        let received = format!("HTTP/1.1 {status} {reason}\r\n{fields}{body}\r\n");
        let mut received_head = ResponseHead::default();
        prop_assume!(received_head.parse(received.as_bytes(), request_kind).is_ok());
        let written = rewrite_response(&received, request_kind, &ResponseEdits::default());
        let mut written_head = ResponseHead::default();
        let parsed = written_head.parse(written.as_bytes(), request_kind);
        prop_assert_eq!(parsed, Ok(ParseProgress::Complete(written.len())));
        prop_assert_eq!(received_head.status, written_head.status);
        prop_assert_eq!(received_head.body, written_head.body);
        prop_assert_eq!(received_head.reason.slice_in(received.as_bytes()), written_head.reason.slice_in(written.as_bytes()));
        prop_assert_eq!(end_to_end(&received, &received_head.fields), end_to_end(&written, &written_head.fields));
    }
}

fn request_line() -> impl Strategy<Value = (String, String)> {
    prop_oneof![
        ("[A-Z!#$%&'*+.^_`|~-]{1,8}", "/[!$-;=?-\\[\\]-~]{0,30}"),
        ("GET|OPTIONS", "https?://[a-z0-9.-]{1,9}(:[0-9]{1,4})?(/[a-z%?]{0,9})?"),
        (Just("CONNECT".to_owned()), "[a-z]{1,9}:[0-9]{1,4}"),
    ]
    .prop_filter("CONNECT has a form of its own", |(method, target)| {
        (method != "CONNECT") == (target.starts_with('/') || target.contains("://"))
    })
}

fn any_fields() -> impl Strategy<Value = String> {
    let field = ("(x|y|z)-[A-Za-z0-9!#$%&'*+.^_`|~-]{0,9}", "[ \t]{0,2}[ -~\u{80}-\u{ff}]{0,40}")
        .prop_map(|(name, value)| format!("{name}:{value}\r\n"));
    let hop_by_hop = prop_oneof![
        Just("Connection: keep-alive, x-\r\n".to_owned()),
        Just("TE: trailers\r\n".to_owned()),
        Just("Keep-Alive: 5\r\n".to_owned()),
    ];
    proptest::collection::vec(prop_oneof![4 => field, 1 => hop_by_hop], 0..20)
        .prop_map(|fields| fields.concat())
}

fn any_body() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        Just(""),
        Just("Content-Length: 0\r\n"),
        Just("content-length: 12\t\r\n"),
        Just("Transfer-Encoding: chunked\r\n"),
    ]
}

fn end_to_end(head: &str, fields: &[HeaderField]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let bytes = head.as_bytes();
    fields
        .iter()
        .filter(|field| !field.hop_by_hop && field.kind != FieldKind::ContentLength)
        .map(|field| (field.name.slice_in(bytes).to_vec(), field.value.slice_in(bytes).to_vec()))
        .collect()
}

fn rewrite_request(received: &str, edits: &RequestEdits<'_>) -> String {
    let mut head = RequestHead::default();
    let parsed = head.parse(received.as_bytes());
    assert_eq!(parsed, Ok(ParseProgress::Complete(received.len())), "{received}");
    let mut output = BytesMut::new();
    write_request(received.as_bytes(), &head, edits, &mut output);
    output_text(&output)
}

fn rewrite_response(
    received: &str,
    request_kind: RequestKind,
    edits: &ResponseEdits<'_>,
) -> String {
    let mut head = ResponseHead::default();
    let parsed = head.parse(received.as_bytes(), request_kind);
    assert_eq!(parsed, Ok(ParseProgress::Complete(received.len())), "{received}");
    let mut output = BytesMut::new();
    write_response(received.as_bytes(), &head, edits, &mut output);
    output_text(&output)
}

fn output_text(output: &BytesMut) -> String {
    String::from_utf8(output.to_vec()).unwrap()
}
