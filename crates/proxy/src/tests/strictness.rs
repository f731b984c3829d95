//! `tests/vectors/http1/strictness.json` through a pair of sidecars: bytes from clients, and responses from
//! upstreams.

use std::cell::RefCell;
use std::rc::Rc;

use leno_wire::http1::{ParseProgress, RequestKind, ResponseHead, repair_response};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::fixture::{
    Application, Client, End, GET, Mesh, OK, ReceivedMessage, run, test_credential, tls_connect,
    wait_until_stable,
};
use crate::tls::ALPN_HTTP1;
use vector::{Accepted, ExpectedOutcome, Vector, rules};

#[path = "../../../wire/tests/strictness/vector.rs"]
#[allow(dead_code, reason = "the tests of the parsers look at more of a vector")]
mod vector;

#[test]
fn an_invalid_request_is_rejected_and_not_forwarded() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut mismatches = Vec::new();
        for vector in &matching_vectors("request", is_rejected) {
            // The client's own sidecar, and the server's for clients without one.
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(&vector.bytes).await;
            mismatches.extend(rejection_deviation(&mut client, vector).await);
            let mut client = connect_foreign(&mesh).await;
            client.send_bytes(&vector.bytes).await;
            mismatches.extend(rejection_deviation(&mut client, vector).await);
        }
        assert!(mismatches.is_empty(), "{}", mismatches.join("\n"));
        assert_eq!(app.accepted.get(), 0);
    });
}

#[test]
fn an_invalid_body_is_never_forwarded_completely() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut mismatches = Vec::new();
        for vector in &matching_vectors("body", is_rejected) {
            let bytes = [POST.as_bytes(), &vector.bytes].concat();
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(&bytes).await;
            mismatches.extend(unfinished_body_deviation(&mut client, vector).await);
            let mut client = connect_foreign(&mesh).await;
            client.send_bytes(&bytes).await;
            mismatches.extend(unfinished_body_deviation(&mut client, vector).await);
        }
        assert!(mismatches.is_empty(), "{}", mismatches.join("\n"));
        assert!(app.received_requests().is_empty(), "{:?}", app.received_requests());
    });
}

#[test]
fn a_valid_request_is_forwarded_with_its_meaning() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let is_forwarded =
            |vector: &Vector| !is_rejected(vector) || vector.sidecar_status.is_some();
        for vector in matching_vectors("request", is_forwarded)
            .iter()
            .chain(&matching_vectors("body", is_forwarded))
        {
            let count_before = app.received_requests().len();
            let mut client = Client::connect(mesh.listener).await;
            let head = if vector.message_kind == "body" { POST } else { "" };
            client.send_bytes([head.as_bytes(), &vector.bytes].concat()).await;
            let response = client.read_response().await;
            let expected = vector.sidecar_status.unwrap_or(200);
            assert_eq!(u64::from(response.status), expected, "{}", vector.name);
            let more = usize::from(
                accepted_outcome(vector).is_some_and(|outcome| outcome.unparsed_bytes > 0),
            );
            for _ in 0..more {
                assert_eq!(client.read_response().await.body_text(), "ok", "{}", vector.name);
            }
            let received = app.received_requests().split_off(count_before);
            let arrived = if expected == 200 { 1 + more } else { 0 };
            assert_eq!(received.len(), arrived, "{}", vector.name);
            if let (Some(received), Some(content)) = (received.first(), accepted_content(vector)) {
                assert_eq!(&received.body, content, "{}", vector.name);
            }
        }
    });
}

#[test]
fn an_invalid_response_head_is_rejected() {
    run(async {
        let of = |vector: &Vector| is_rejected(vector) || vector.sidecar_status.is_some();
        for vector in &matching_vectors("response", of) {
            let (mesh, app) = start_sending(vector).await;
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(request_for(vector)).await;
            let response = client.read_head().await.unwrap();
            // The own application may break a rule in a way that recipients may accept.
            let mut head = ResponseHead::default();
            let is_mended = repair_response(&vector.bytes).is_some_and(|mended| {
                head.parse(&mended.head, RequestKind::Other)
                    .is_ok_and(|parsed| parsed != ParseProgress::Partial)
            });
            match is_mended {
                true => assert_eq!(response.verdict(), (head.status, None), "{}", vector.name),
                false => {
                    let verdict = response.verdict();
                    assert_eq!(verdict, (502, Some("upstream-malformed")), "{}", vector.name);
                }
            }
            let mut next_client = Client::connect(mesh.listener).await;
            assert_eq!(next_client.send_request(GET).await.body_text(), "ok", "{}", vector.name);
            assert_eq!(app.accepted.get(), 2, "{}: its connection was used again", vector.name);
        }
    });
}

#[test]
fn an_invalid_response_body_truncates_the_response() {
    run(async {
        for vector in &matching_vectors("body", is_rejected) {
            let (mesh, app) = start_sending(vector).await;
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes([GET, GET].concat()).await;
            // If the body breaks while the head is in flight, the response is truncated, or even its head is missing.
            let Some(response) = client.read_head().await else {
                continue;
            };
            if response.status == 502 {
                let reason =
                    if vector.closes_connection { "upstream-reset" } else { "upstream-malformed" };
                assert_eq!(response.reason_code(), Some(reason), "{}", vector.name);
                continue;
            }
            let (received, end) = client.read_rest().await;
            let received = String::from_utf8_lossy(&received);
            assert_eq!(end, End::Reset, "{}: {received}", vector.name);
            assert!(!received.contains("EVIL") && !received.ends_with("0\r\n\r\n"), "{received}");
            assert_eq!(wait_until_stable(|| app.accepted.get()).await, 1, "{}", vector.name);
        }
    });
}

#[test]
fn a_valid_response_is_forwarded_once() {
    run(async {
        let is_forwarded =
            |vector: &Vector| !is_rejected(vector) && vector.sidecar_status.is_none();
        let bodies = matching_vectors("body", is_forwarded);
        for vector in matching_vectors("response", is_forwarded).iter().chain(&bodies) {
            // Vectors with a tunnel do not apply to a service.
            if vector.request_method == "CONNECT" {
                continue;
            }
            let (mesh, _app) = start_sending(vector).await;
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(request_for(vector)).await;
            let response = match vector.request_method.as_str() {
                "HEAD" => client.read_head().await.unwrap(),
                _ => client.read_response().await,
            };
            let text = String::from_utf8_lossy(&vector.bytes);
            let status = text.split(' ').nth(1).and_then(|part| part.parse().ok());
            let status = if vector.message_kind == "body" { 200 } else { status.unwrap() };
            assert_eq!(response.status, status, "{}", vector.name);
            if let Some(content) =
                accepted_content(vector).filter(|_| vector.request_method != "HEAD")
            {
                assert_eq!(&response.body, content, "{}", vector.name);
            }
            if status < 200 {
                assert_eq!(client.read_response().await.body_text(), "ok", "{}", vector.name);
            }
            let second: ReceivedMessage = client.send_request(GET).await;
            assert_eq!((second.status, second.body_text()), (200, "ok"), "{}", vector.name);
        }
    });
}

/// Connects a client without a sidecar to the server's sidecar, with mutual TLS.
async fn connect_foreign(mesh: &Mesh) -> Client<TlsStream<TcpStream>> {
    let identity = test_credential(&mesh.authority, "foreign");
    Client::new(tls_connect(mesh.inbound, &identity, &[ALPN_HTTP1]).await.unwrap())
}

/// Like [`rejection_deviation`], for a client that closes inside a body and therefore gets no response.
async fn unfinished_body_deviation<S: AsyncRead + AsyncWrite + Unpin>(
    client: &mut Client<S>,
    vector: &Vector,
) -> Option<String> {
    if !vector.closes_connection {
        return rejection_deviation(client, vector).await;
    }
    client.stream.shutdown().await.unwrap();
    let (received, _) = client.read_rest().await;
    (!received.is_empty()).then(|| format!("{}: {}", vector.name, received.escape_ascii()))
}

/// Returns the deviation from the vector, if any: status and reason, the announced close, the close.
async fn rejection_deviation<S: AsyncRead + AsyncWrite + Unpin>(
    client: &mut Client<S>,
    vector: &Vector,
) -> Option<String> {
    let ExpectedOutcome::Rejected { status, .. } = &vector.outcome else {
        return Some(format!("{} is accepted", vector.name));
    };
    if vector.sidecar_status.is_some() {
        return None;
    }
    let Some(mut response) = client.read_head().await else {
        return Some(format!("{}: no response", vector.name));
    };
    client.read_body(&mut response).await;
    let reason = if *status == Some(431) { "head-too-large" } else { "bad-request" };
    let actual = (
        Some(u64::from(response.status)),
        response.reason_code(),
        response.field_value("connection"),
    );
    let (_, end) = client.read_rest().await;
    let expected = (*status, Some(reason), Some("close"));
    (actual != expected || end != End::Clean)
        .then(|| format!("{}: {actual:?} and {end:?}", vector.name))
}

/// Creates a mesh with an application that sends these bytes once, and "ok" afterwards.
async fn start_sending(vector: &Vector) -> (Mesh, Application) {
    let mut bytes = vector.bytes.clone();
    if vector.message_kind == "body" {
        let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        bytes.splice(..0, head.iter().copied());
        if is_rejected(vector) && !vector.closes_connection {
            bytes.extend_from_slice(b"HTTP/1.1 200 EVIL\r\ncontent-length: 0\r\n\r\n");
        }
    }
    if bytes.starts_with(b"HTTP/1.1 103") {
        bytes.extend_from_slice(OK.as_bytes());
    }
    let until_close =
        accepted_outcome(vector).and_then(|outcome| outcome.body.as_deref()) == Some("until-close");
    let server_closes = vector.closes_connection || until_close;
    let pending = Rc::new(RefCell::new(Some(bytes)));
    let app = Application::start(move |mut client| {
        let pending = pending.clone();
        async move {
            while client.read_head().await.is_some() {
                let first = pending.borrow_mut().take();
                let closes = server_closes && first.is_some();
                let bytes = first.unwrap_or_else(|| OK.into());
                // The sidecar may reset the connection of an invalid request before it has read all bytes.
                if client.stream.write_all(&bytes).await.is_err() || closes {
                    return;
                }
            }
        }
    })
    .await;
    (Mesh::permissive(app.address).await, app)
}

fn request_for(vector: &Vector) -> String {
    format!("{} /ratings/1 HTTP/1.1\r\nhost: x\r\n\r\n", vector.request_method)
}

fn matching_vectors(kind: &str, is_selected: impl Fn(&Vector) -> bool) -> Vec<Vector> {
    let vectors = rules().into_iter().flat_map(|rule| rule.vectors);
    let matching: Vec<Vector> =
        vectors.filter(|vector| vector.message_kind == kind && is_selected(vector)).collect();
    assert!(!matching.is_empty());
    matching
}

fn is_rejected(vector: &Vector) -> bool {
    accepted_outcome(vector).is_none()
}

fn accepted_outcome(vector: &Vector) -> Option<&Accepted> {
    match &vector.outcome {
        ExpectedOutcome::Accepted(accepted) => Some(accepted),
        ExpectedOutcome::Rejected { .. } => None,
    }
}

fn accepted_content(vector: &Vector) -> Option<&Vec<u8>> {
    accepted_outcome(vector)?.content.as_ref()
}

const POST: &str = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
