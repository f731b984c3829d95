//! Trailer sections obey the rules of heads: limits, control bytes, and permitted names.

use leno_model::Protocol;
use leno_telemetry::Gauge;
use leno_wire::http1::{FIELDS_MAX, HEAD_BYTES_MAX};

use super::fixture::frames::{self, DATA, END_HEADERS, END_STREAM, HEADERS, OPENING, RST_STREAM};
use super::fixture::{Application, Client, End, Mesh, OK, Sidecar, run, until};
use super::http2;

/// Returns field lines that break a rule of fields, and the response to a request with them in its head or its
/// trailer section.
fn broken() -> Vec<(String, (u16, &'static str))> {
    let bad = (400, "bad-request");
    let large = (431, "head-too-large");
    let long = "y".repeat(HEAD_BYTES_MAX);
    vec![
        ("x: a\u{1}b\r\n".to_owned(), bad),
        ("x: a\0b\r\n".to_owned(), bad),
        ("x: a\u{7f}b\r\n".to_owned(), bad),
        ("x\u{1}: y\r\n".to_owned(), bad),
        ("x : y\r\n".to_owned(), bad),
        ("x: y\r\n folded\r\n".to_owned(), bad),
        ("x: y\nz: w\r\n".to_owned(), bad),
        (": y\r\n".to_owned(), bad),
        ("x: y\r\n".repeat(FIELDS_MAX + 1), large),
        (format!("x: {long}\r\n"), large),
    ]
}

/// Names not permitted in trailers (RFC 9110 §6.5.1).
const NEVER_LATE: [&str; 8] = [
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
fn a_request_over_http1_is_rejected_for_its_trailers_as_for_its_head() {
    run(async {
        let app = Application::canned(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let late = NEVER_LATE.map(|line| (format!("{line}\r\n"), (400, "bad-request")));
        let (heads, late) = (broken(), late.to_vec());
        let mut expected = std::collections::BTreeMap::new();
        for (lines, (status, reason)) in heads.iter().chain(&late) {
            let is_of_heads = !late.iter().any(|(late, _)| late == lines);
            let start = "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n";
            let in_head = format!("{start}{lines}\r\n0\r\n\r\n");
            let in_trailers = format!("{start}\r\n3\r\nabc\r\n0\r\n{lines}\r\n");
            for request in [Some(in_head).filter(|_| is_of_heads), Some(in_trailers)] {
                let Some(request) = request else { continue };
                let mut client = Client::connect(mesh.listener).await;
                client.send(request).await;
                let shown = lines.get(..lines.len().min(40));
                assert_eq!(client.answer().await.verdict(), (*status, Some(*reason)), "{shown:?}");
                *expected.entry(*reason).or_insert(0) += 1;
            }
        }
        until(|| mesh.client.failures() == expected).await;
        assert!(app.requests().is_empty(), "{:?}", app.requests());
    });
}

#[test]
fn a_response_over_http1_is_cut_off_for_its_trailers() {
    run(async {
        let late = NEVER_LATE.map(|line| format!("{line}\r\n"));
        let all: Vec<String> = broken().into_iter().map(|it| it.0).chain(late).collect();
        let lines = all.clone();
        let app = Application::answering(move |request| {
            let number = request.head.split(['/', ' ']).nth(2).unwrap();
            let lines = &lines[number.parse::<usize>().unwrap()];
            let start = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            format!("{start}3\r\nabc\r\n0\r\n{lines}\r\n")
        });
        let app = app.await;
        let mesh = Mesh::permissive(app.address).await;
        for (number, lines) in all.iter().enumerate() {
            let mut client = Client::connect(mesh.listener).await;
            client.send(format!("POST /{number} HTTP/1.1\r\nhost: x\r\n\r\n")).await;
            let (heard, end) = client.last().await;
            let heard = String::from_utf8_lossy(&heard);
            let shown = lines.get(..lines.len().min(40));
            assert!(!heard.contains("0\r\n\r\n") && end == End::Reset, "{shown:?}: {heard}");
        }
        let expected = [("upstream-malformed", all.len() as u64)].into();
        until(|| mesh.server.failures() == expected).await;
    });
}

/// Returns fields with short names and values, in HPACK blocks.
fn many(count: usize, value: &str) -> Vec<u8> {
    frames::block(&vec![("x", value); count])
}

/// Returns HTTP/2 trailer sections, and the reason of their rejection; `None` if they are accepted.
fn sections() -> Vec<(&'static str, Vec<u8>, Option<&'static str>)> {
    vec![
        ("usual", frames::block(&[("x", "y")]), None),
        ("full", many(FIELDS_MAX, "y"), None),
        ("too many fields", many(FIELDS_MAX + 1, "y"), Some("head-too-large")),
        ("too large", many(600, &"y".repeat(120)), Some("head-too-large")),
        ("a name that may not come late", frames::block(&[("host", "y"), ("x", "y")]), None),
        ("a length", frames::block(&[("content-length", "3"), ("x", "y")]), None),
        // The codec removes pseudo-header fields that come first.
        ("a pseudo-header", frames::block(&[(":path", "/"), ("x", "y")]), None),
        ("a late one", frames::block(&[("x", "y"), (":path", "/")]), Some("bad-request")),
        ("a hop's", frames::block(&[("connection", "close"), ("x", "y")]), Some("bad-request")),
    ]
}

/// Waits for the end of the only exchange of a sidecar. A stream is counted before its end.
async fn over(sidecar: &Sidecar) {
    let in_flight = || sidecar.telemetry.gauge(Gauge::RequestsInFlight);
    until(|| sidecar.ended() == 1 && in_flight() == 0).await;
}

/// Returns HEADERS and CONTINUATION frames that end a stream.
fn trailers(stream: u32, block: &[u8]) -> Vec<u8> {
    let mut pieces = block.chunks(16_000).peekable();
    let (mut kind, mut end) = (HEADERS, END_STREAM);
    let mut frames = Vec::new();
    while let Some(piece) = pieces.next() {
        let flags = end | if pieces.peek().is_none() { END_HEADERS } else { 0 };
        frames.extend(frames::frame(kind, flags, stream, piece));
        (kind, end) = (frames::CONTINUATION, 0);
    }
    frames
}

#[test]
fn a_request_over_http2_is_rejected_for_its_trailers() {
    run(async {
        for (name, section, rejected) in sections() {
            let app = Application::canned(OK).await;
            let mesh = Mesh::permissive(app.address).await;
            let mut client = Client::connect(mesh.listener).await;
            client.send(OPENING).await;
            client.send(frames::frame(HEADERS, END_HEADERS, 1, &frames::asking("POST", "/"))).await;
            client.send(frames::frame(DATA, 0, 1, b"abc")).await;
            client.send(trailers(1, &section)).await;
            loop {
                let frame = client.frame().await.expect("an answer");
                if frame.stream == 1 && matches!(frame.kind, HEADERS | RST_STREAM) {
                    break;
                }
            }
            over(&mesh.client).await;
            let expected = rejected.into_iter().map(|reason| (reason, 1)).collect();
            assert_eq!(mesh.client.failures(), expected, "{name}");
            // The client's sidecar rejects them, not the one behind it.
            let behind = mesh.server.failures();
            assert!(behind.keys().all(|it| *it == "downstream-closed"), "{name}: {behind:?}");
            let seen = app.requests().into_iter().map(|it| it.trailers).collect::<Vec<_>>();
            match rejected {
                None if name == "full" => assert_eq!(seen, ["x: y".repeat(FIELDS_MAX)], "{name}"),
                None => assert_eq!(seen, ["x: y"], "{name}"),
                Some(_) => assert!(seen.is_empty(), "{name}: {seen:?}"),
            }
        }
    });
}

/// The codec treats it as an invalid field block, which ends the connection.
#[test]
fn a_control_byte_in_trailers_over_http2_goes_no_further() {
    run(async {
        let app = Application::canned(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        client.send(OPENING).await;
        client.send(frames::frame(HEADERS, END_HEADERS, 1, &frames::asking("POST", "/"))).await;
        client.send(frames::frame(DATA, 0, 1, b"abc")).await;
        client.send(trailers(1, &frames::block(&[("x", "a\u{1}b")]))).await;
        assert!(client.frame_of(frames::GOAWAY).await.is_some());
        until(|| mesh.client.telemetry.refusals() == [("bad-request", 1)].into()).await;
        assert!(app.requests().is_empty(), "{:?}", app.requests());
    });
}

#[test]
fn a_response_over_http2_is_cut_off_for_its_trailers() {
    run(async {
        for (name, section, rejected) in sections() {
            let app = Application::start(move |mut client| {
                let section = section.clone();
                async move {
                    client.bytes(24).await;
                    client.send(&OPENING[24..]).await;
                    while let Some(frame) = client.frame().await {
                        if frame.kind == frames::PING && frame.flags == 0 {
                            client.send(frames::frame(frames::PING, 1, 0, &frame.payload)).await;
                        }
                        if frame.kind == HEADERS {
                            let stream = frame.stream;
                            client.send(frames::frame(HEADERS, END_HEADERS, stream, &[0x88])).await;
                            client.send(frames::frame(DATA, 0, stream, b"abc")).await;
                            client.send(trailers(stream, &section)).await;
                        }
                    }
                }
            })
            .await;
            let mesh = http2::mesh(app.address, Protocol::Http2).await;
            let mut client = Client::connect(mesh.listener).await;
            client.send("POST / HTTP/1.1\r\nhost: x\r\n\r\n").await;
            let mut answer = client.head().await;
            let is_whole = match &mut answer {
                Some(answer) => answer.status == 200 && client.body(answer).await.is_some(),
                None => false,
            };
            assert_eq!(is_whole, rejected.is_none(), "{name}: {answer:?}");
            over(&mesh.server).await;
            let expected = rejected.into_iter().map(|_| ("upstream-malformed", 1)).collect();
            assert_eq!(mesh.server.failures(), expected, "{name}");
            if let Some(answer) = answer.filter(|_| is_whole && name != "full") {
                assert_eq!(answer.trailers, "x: y", "{name}");
            }
        }
    });
}
