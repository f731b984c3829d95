//! Tests of whole lines, and of contents that must never occur in one.

use super::*;

const ENTRY: AccessLogEntry<'_> = AccessLogEntry {
    start_time: "2026-01-02T03:04:05.678Z",
    direction: "inbound",
    method: "GET",
    path: "/ratings/1",
    protocol: "HTTP/1.1",
    authority: "ratings:9080",
    status: 200,
    reason: None,
    grpc_status: "",
    service: "bookinfo/ratings",
    route: "",
    policy: "bookinfo/reviews-read",
    dry_run_reason: "",
    peer: "spiffe://cluster.local/ns/bookinfo/sa/reviews",
    downstream: None,
    upstream: None,
    bytes_in: 0,
    bytes_out: 42,
    duration: Duration::from_micros(1_234),
    time_to_first_byte: Some(Duration::from_micros(900)),
    upstream_time: None,
    retries: 0,
    hedge: "",
    forwarded_for: "",
    user_agent: "curl/8",
    request_id: "",
    server_name: "",
    trace_id: "4bf92f3577b34da6a3ce929d0e0e4736",
    span_id: "",
};

fn format_line(entry: &AccessLogEntry<'_>) -> String {
    let mut output = String::new();
    write_json(entry, &mut output);
    output
}

#[test]
fn a_request_with_a_response_is_logged_as_json() {
    let entry = AccessLogEntry {
        downstream: Some(([127, 0, 0, 1], 4711).into()),
        upstream: Some("[::1]:9080".parse().unwrap()),
        ..ENTRY
    };
    expect_test::expect![[r#"
        {"start_time":"2026-01-02T03:04:05.678Z","direction":"inbound","method":"GET","path":"/ratings/1","protocol":"HTTP/1.1","authority":"ratings:9080","response_code":200,"response_code_details":null,"grpc_status":null,"upstream_cluster":"bookinfo/ratings","route":null,"policy":"bookinfo/reviews-read","dry_run_reason":null,"peer":"spiffe://cluster.local/ns/bookinfo/sa/reviews","downstream_remote":"127.0.0.1:4711","upstream_host":"[::1]:9080","bytes_received":0,"bytes_sent":42,"duration":1.234,"time_to_first_byte":0.900,"upstream_service_time":null,"retries":0,"hedge":null,"x_forwarded_for":null,"user_agent":"curl/8","request_id":null,"requested_server_name":null,"trace_id":"4bf92f3577b34da6a3ce929d0e0e4736","span_id":null}
    "#]]
    .assert_eq(&format_line(&entry));
}

#[test]
fn a_failure_is_logged_with_its_reason() {
    let failed =
        format_line(&AccessLogEntry { status: 0, reason: Some("upstream-reset"), ..ENTRY });
    assert!(
        failed.contains(r#""response_code":0,"response_code_details":"upstream-reset""#),
        "{failed}"
    );
}

#[test]
fn possible_secrets_are_not_logged() {
    for (path, authority) in [
        ("/a?token=hunter2", "shop"),
        ("/a#hunter2", "shop"),
        ("/a", "user:hunter2@shop"),
        ("/a", "hunter2@hunter2@shop"),
    ] {
        let line = format_line(&AccessLogEntry { path, authority, ..ENTRY });
        assert!(!line.contains("hunter2"), "{line}");
        assert!(line.contains(r#""path":"/a","protocol":"HTTP/1.1","authority":"shop""#), "{line}");
    }
}

#[test]
fn texts_are_escaped_and_truncated() {
    for (text, expected) in [
        (r#"a"b\c"#, r#""a\"b\\c""#.to_owned()),
        ("a\nb\r\tc", r#""a\nb\r\tc""#.to_owned()),
        ("\u{0}\u{1b}\u{7f}\u{9b}", r#""\u0000\u001b\u007f\u009b""#.to_owned()),
        ("\u{202e}\u{2066}\u{2028}", r#""\u202e\u2066\u2028""#.to_owned()),
        ("é😀", r#""é😀""#.to_owned()),
        (&"x".repeat(2_000), format!("\"{}\"", "x".repeat(MAX_TEXT_BYTES))),
        (&"é".repeat(2_000), format!("\"{}\"", "é".repeat(MAX_TEXT_BYTES / 2))),
        (
            &format!("x{}", "é".repeat(2_000)),
            format!("\"x{}\"", "é".repeat(MAX_TEXT_BYTES / 2 - 1)),
        ),
    ] {
        let line = format_line(&AccessLogEntry { user_agent: text, ..ENTRY });
        assert!(line.contains(&format!("\"user_agent\":{expected},")), "{line}");
        assert_eq!(line.lines().count(), 1, "{line}");
    }
}

#[test]
fn a_template_writes_its_fields_and_no_client_can_start_a_line() {
    let line = |entry: &AccessLogEntry<'_>| {
        let mut output = String::new();
        let parts = ["method", "path", "response_code", "duration", "upstream_host", "user_agent"];
        let parts =
            parts.iter().flat_map(|name| [TemplatePart::Field(name), TemplatePart::Text(" ")]);
        write_fields(entry, parts, &mut output);
        output
    };
    assert_eq!(line(&ENTRY), "GET /ratings/1 200 1.234 - curl/8 \n");
    let entry =
        AccessLogEntry { path: "/a?token=hunter2", user_agent: "x\nGET /forged \u{85}", ..ENTRY };
    assert_eq!(line(&entry), "GET /a 200 1.234 - x\\nGET /forged \\u0085 \n");
}
