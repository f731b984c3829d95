//! Trailer sections obey the rules of heads: limits, control bytes, and permitted names.

use leno_model::Protocol;
use leno_telemetry::Gauge;
use leno_wire::http1::{MAX_FIELDS, MAX_HEAD_BYTES};

use super::fixture::frames::{self, DATA, END_HEADERS, END_STREAM, HEADERS, OPENING, RST_STREAM};
use super::fixture::{Application, Client, End, Mesh, OK, Sidecar, run, wait_until};
use super::http2;

/// Returns field lines that break a rule of fields, and the response to a request with them in its head or its
/// trailer section.
fn broken_fields() -> Vec<(String, (u16, &'static str))> {
    let bad_request = (400, "bad-request");
    let too_large_response = (431, "head-too-large");
    let long_value = "y".repeat(MAX_HEAD_BYTES);
    vec![
        ("x: a\u{1}b\r\n".to_owned(), bad_request),
        ("x: a\0b\r\n".to_owned(), bad_request),
        ("x: a\u{7f}b\r\n".to_owned(), bad_request),
        ("x\u{1}: y\r\n".to_owned(), bad_request),
        ("x : y\r\n".to_owned(), bad_request),
        ("x: y\r\n folded\r\n".to_owned(), bad_request),
        ("x: y\nz: w\r\n".to_owned(), bad_request),
        (": y\r\n".to_owned(), bad_request),
        ("x: y\r\n".repeat(MAX_FIELDS + 1), too_large_response),
        (format!("x: {long_value}\r\n"), too_large_response),
    ]
}

/// Names not permitted in trailers (RFC 9110 §6.5.1).
const FORBIDDEN_TRAILERS: [&str; 8] = [
    "content-length: 3",
    "transfer-encoding: chunked",
    "host: y",
    "connection: close",
    "te: trailers",
    "authorization: x",
    "expect: 100-continue",
    "upgrade: x",
];

#[test]
fn an_http1_request_is_rejected_for_invalid_trailers() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let late_trailers =
            FORBIDDEN_TRAILERS.map(|line| (format!("{line}\r\n"), (400, "bad-request")));
        let (heads, late_trailers) = (broken_fields(), late_trailers.to_vec());
        let mut expected = std::collections::BTreeMap::new();
        for (lines, (status, reason)) in heads.iter().chain(&late_trailers) {
            let is_invalid_in_head = !late_trailers.iter().any(|(line, _)| line == lines);
            let start = "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n";
            let in_head = format!("{start}{lines}\r\n0\r\n\r\n");
            let in_trailers = format!("{start}\r\n3\r\nabc\r\n0\r\n{lines}\r\n");
            for request in [Some(in_head).filter(|_| is_invalid_in_head), Some(in_trailers)] {
                let Some(request) = request else { continue };
                let mut client = Client::connect(mesh.listener).await;
                client.send_bytes(request).await;
                let excerpt = lines.get(..lines.len().min(40));
                assert_eq!(
                    client.read_response().await.verdict(),
                    (*status, Some(*reason)),
                    "{excerpt:?}"
                );
                *expected.entry(*reason).or_insert(0) += 1;
            }
        }
        wait_until(|| mesh.client.failure_counts() == expected).await;
        assert!(app.received_requests().is_empty(), "{:?}", app.received_requests());
    });
}

#[test]
fn an_http1_response_is_truncated_for_invalid_trailers() {
    run(async {
        let late_trailers = FORBIDDEN_TRAILERS.map(|line| format!("{line}\r\n"));
        let invalid_names: Vec<String> =
            broken_fields().into_iter().map(|name| name.0).chain(late_trailers).collect();
        let lines = invalid_names.clone();
        let app = Application::respond_with(move |request| {
            let number = request.head.split(['/', ' ']).nth(2).unwrap();
            let lines = &lines[number.parse::<usize>().unwrap()];
            let start = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            format!("{start}3\r\nabc\r\n0\r\n{lines}\r\n")
        });
        let app = app.await;
        let mesh = Mesh::permissive(app.address).await;
        for (number, lines) in invalid_names.iter().enumerate() {
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(format!("POST /{number} HTTP/1.1\r\nhost: x\r\n\r\n")).await;
            let (received, end) = client.read_rest().await;
            let received = String::from_utf8_lossy(&received);
            let excerpt = lines.get(..lines.len().min(40));
            assert!(
                !received.contains("0\r\n\r\n") && end == End::Reset,
                "{excerpt:?}: {received}"
            );
        }
        let expected = [("upstream-malformed", invalid_names.len() as u64)].into();
        wait_until(|| mesh.server.failure_counts() == expected).await;
    });
}

/// Returns fields with short names and values, in HPACK blocks.
fn many_fields(count: usize, value: &str) -> Vec<u8> {
    frames::header_block(&vec![("x", value); count])
}

/// Returns HTTP/2 trailer sections, and the reason of their rejection; `None` if they are accepted.
fn section_cases() -> Vec<(&'static str, Vec<u8>, Option<&'static str>)> {
    vec![
        ("usual", frames::header_block(&[("x", "y")]), None),
        ("full", many_fields(MAX_FIELDS, "y"), None),
        ("too many fields", many_fields(MAX_FIELDS + 1, "y"), Some("head-too-large")),
        ("too large", many_fields(600, &"y".repeat(120)), Some("head-too-large")),
        ("a name that may not come late", frames::header_block(&[("host", "y"), ("x", "y")]), None),
        ("a length", frames::header_block(&[("content-length", "3"), ("x", "y")]), None),
        // The codec removes pseudo-header fields that come first.
        ("a pseudo-header", frames::header_block(&[(":path", "/"), ("x", "y")]), None),
        ("a late one", frames::header_block(&[("x", "y"), (":path", "/")]), Some("bad-request")),
        (
            "a hop's",
            frames::header_block(&[("connection", "close"), ("x", "y")]),
            Some("bad-request"),
        ),
    ]
}

/// Waits for the end of the only exchange of a sidecar. A stream is counted before its end.
async fn wait_for_end(sidecar: &Sidecar) {
    let in_flight = || sidecar.telemetry.gauge(Gauge::RequestsInFlight);
    wait_until(|| sidecar.ended_count() == 1 && in_flight() == 0).await;
}

/// Returns HEADERS and CONTINUATION frames that end a stream.
fn trailer_frames(stream: u32, block: &[u8]) -> Vec<u8> {
    let mut header_fragments = block.chunks(16_000).peekable();
    let (mut kind, mut end) = (HEADERS, END_STREAM);
    let mut frames = Vec::new();
    while let Some(piece) = header_fragments.next() {
        let flags = end | if header_fragments.peek().is_none() { END_HEADERS } else { 0 };
        frames.extend(frames::encode_frame(kind, flags, stream, piece));
        (kind, end) = (frames::CONTINUATION, 0);
    }
    frames
}

#[test]
fn an_http2_request_is_rejected_for_invalid_trailers() {
    run(async {
        for (name, section, rejected) in section_cases() {
            let app = Application::with_response(OK).await;
            let mesh = Mesh::permissive(app.address).await;
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(OPENING).await;
            client
                .send_bytes(frames::encode_frame(
                    HEADERS,
                    END_HEADERS,
                    1,
                    &frames::request_block("POST", "/"),
                ))
                .await;
            client.send_bytes(frames::encode_frame(DATA, 0, 1, b"abc")).await;
            client.send_bytes(trailer_frames(1, &section)).await;
            loop {
                let frame = client.read_frame().await.expect("a response");
                if frame.stream == 1 && matches!(frame.kind, HEADERS | RST_STREAM) {
                    break;
                }
            }
            wait_for_end(&mesh.client).await;
            let expected = rejected.into_iter().map(|reason| (reason, 1)).collect();
            assert_eq!(mesh.client.failure_counts(), expected, "{name}");
            // The client's sidecar rejects them, not the one behind it.
            let server_failures = mesh.server.failure_counts();
            assert!(
                server_failures.keys().all(|reason| *reason == "downstream-closed"),
                "{name}: {server_failures:?}"
            );
            let received_trailers = app
                .received_requests()
                .into_iter()
                .map(|request| request.trailers)
                .collect::<Vec<_>>();
            match rejected {
                None if name == "full" => {
                    assert_eq!(received_trailers, ["x: y".repeat(MAX_FIELDS)], "{name}")
                }
                None => assert_eq!(received_trailers, ["x: y"], "{name}"),
                Some(_) => assert!(received_trailers.is_empty(), "{name}: {received_trailers:?}"),
            }
        }
    });
}

/// The codec treats such a section as an invalid field block, which ends the connection.
#[test]
fn a_control_byte_in_http2_trailers_is_not_forwarded() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes(OPENING).await;
        client
            .send_bytes(frames::encode_frame(
                HEADERS,
                END_HEADERS,
                1,
                &frames::request_block("POST", "/"),
            ))
            .await;
        client.send_bytes(frames::encode_frame(DATA, 0, 1, b"abc")).await;
        client.send_bytes(trailer_frames(1, &frames::header_block(&[("x", "a\u{1}b")]))).await;
        assert!(client.read_frame_of_kind(frames::GOAWAY).await.is_some());
        wait_until(|| mesh.client.telemetry.rejected_connections() == [("bad-request", 1)].into())
            .await;
        assert!(app.received_requests().is_empty(), "{:?}", app.received_requests());
    });
}

#[test]
fn an_http2_response_is_reset_for_invalid_trailers() {
    run(async {
        for (name, section, rejected) in section_cases() {
            let app = Application::start(move |mut client| {
                let section = section.clone();
                async move {
                    client.read_exactly(24).await;
                    client.send_bytes(&OPENING[24..]).await;
                    while let Some(frame) = client.read_frame().await {
                        if frame.kind == frames::PING && frame.flags == 0 {
                            client
                                .send_bytes(frames::encode_frame(
                                    frames::PING,
                                    1,
                                    0,
                                    &frame.payload,
                                ))
                                .await;
                        }
                        if frame.kind == HEADERS {
                            let stream = frame.stream;
                            client
                                .send_bytes(frames::encode_frame(
                                    HEADERS,
                                    END_HEADERS,
                                    stream,
                                    &[0x88],
                                ))
                                .await;
                            client.send_bytes(frames::encode_frame(DATA, 0, stream, b"abc")).await;
                            client.send_bytes(trailer_frames(stream, &section)).await;
                        }
                    }
                }
            })
            .await;
            let mesh = http2::http2_mesh(app.address, Protocol::Http2).await;
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes("POST / HTTP/1.1\r\nhost: x\r\n\r\n").await;
            let mut response = client.read_head().await;
            let is_whole = match &mut response {
                Some(response) => {
                    response.status == 200 && client.read_body(response).await.is_some()
                }
                None => false,
            };
            assert_eq!(is_whole, rejected.is_none(), "{name}: {response:?}");
            wait_for_end(&mesh.server).await;
            let expected = rejected.into_iter().map(|_| ("upstream-malformed", 1)).collect();
            assert_eq!(mesh.server.failure_counts(), expected, "{name}");
            if let Some(response) = response.filter(|_| is_whole && name != "full") {
                assert_eq!(response.trailers, "x: y", "{name}");
            }
        }
    });
}
