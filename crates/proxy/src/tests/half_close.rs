//! Clients that half-close after a complete request still get their response.

use std::rc::Rc;

use leno_model::Protocol;
use tokio::io::AsyncWriteExt;
use tokio::sync::Notify;

use super::fixture::frames::{self, DATA, END_STREAM, HEADERS, OPENING, RST_STREAM};
use super::fixture::{Application, Client, End, GET, Mesh, OK, ReceivedMessage, run, wait_until};
use super::http2;

const GET_LATE: &str = "GET /late HTTP/1.1\r\nhost: x\r\n\r\n";

/// Starts an application that responds to requests for `/late` when released, and to others at once.
async fn start_releasable() -> (Application, Rc<Notify>) {
    let released = Rc::new(Notify::new());
    let release = released.clone();
    let app = Application::start(move |mut client| {
        let released = released.clone();
        async move {
            while let Some(mut request) = client.read_head().await {
                if client.read_body(&mut request).await.is_none() {
                    return;
                }
                if request.head.contains("/late") {
                    released.notified().await;
                }
                client.send_bytes(OK).await;
            }
        }
    })
    .await;
    (app, release)
}

/// Ensures that the sidecars have polled their sockets: another request has passed both.
async fn poll_sidecars(mesh: &Mesh) {
    let mut other_client = Client::connect(mesh.listener).await;
    for _ in 0..3 {
        assert_eq!(other_client.send_request(GET).await.status, 200);
    }
}

async fn read_response(client: &mut Client<tokio::net::TcpStream>) -> ReceivedMessage {
    let mut response = client.read_head().await.expect("an answer");
    client.read_body(&mut response).await.expect("its body");
    response
}

#[test]
fn an_http11_client_gets_its_response_after_half_closing() {
    run(async {
        let (app, release) = start_releasable().await;
        let mesh = Mesh::permissive(app.address).await;
        for request in [
            GET_LATE,
            "GET /late HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
            "GET /late HTTP/1.0\r\n\r\n",
            "POST /late HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc",
            "POST /late HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        ] {
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(request).await;
            client.stream.shutdown().await.unwrap();
            poll_sidecars(&mesh).await;
            release.notify_one();
            assert_eq!(read_response(&mut client).await.body_text(), "ok", "{request}");
            assert_eq!(client.read_end().await, End::Clean, "{request}");
        }
        assert!(mesh.client.failure_counts().is_empty() && mesh.server.failure_counts().is_empty());
    });
}

#[test]
fn pipelined_requests_get_responses_after_half_closing() {
    run(async {
        let (app, release) = start_releasable().await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes(GET_LATE.repeat(3)).await;
        client.stream.shutdown().await.unwrap();
        for _ in 0..3 {
            poll_sidecars(&mesh).await;
            release.notify_one();
            assert_eq!(read_response(&mut client).await.body_text(), "ok");
        }
        assert_eq!(client.read_end().await, End::Clean);
    });
}

#[test]
fn a_client_that_resets_after_half_closing_is_disconnected() {
    run(async {
        let app =
            Application::start(
                |mut client| async move { while client.read_head().await.is_some() {} },
            )
            .await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes(GET).await;
        client.stream.shutdown().await.unwrap();
        wait_until(|| app.accepted.get() == 1).await;
        client.abandon();
        wait_until(|| mesh.client.ended_count() == 1 && mesh.server.ended_count() == 1).await;
        assert_eq!(mesh.client.failure_counts(), [("downstream-closed", 1)].into());
    });
}

async fn http2_mesh(app: &Application) -> Mesh {
    http2::http2_mesh(app.address, Protocol::Http2).await
}

/// Starts an HTTP/2 application that responds on each stream when released.
async fn start_releasable_http2() -> (Application, Rc<Notify>) {
    let released = Rc::new(Notify::new());
    let release = released.clone();
    let app = http2::start_application(move |request, mut respond| {
        let released = released.clone();
        async move {
            if request.uri().path() == "/late" {
                released.notified().await;
            }
            let (body, _) = http2::read_body(request.into_body()).await;
            assert!(body.is_empty() || body == b"abc");
            let response = http::Response::new(());
            let mut stream = respond.send_response(response, false).unwrap();
            http2::send_data(&mut stream, bytes::Bytes::from_static(b"ok"), true).await;
        }
    })
    .await;
    (app, release)
}

#[test]
fn complete_http2_streams_survive_half_closing() {
    run(async {
        let (app, release) = start_releasable_http2().await;
        let mesh = http2_mesh(&app).await;
        let mut client = Client::connect(mesh.listener).await;
        let head = frames::request_block("GET", "/late");
        let flags = END_STREAM | frames::END_HEADERS;
        let complete_requests =
            [1, 3].map(|id| frames::encode_frame(HEADERS, flags, id, &head)).concat();
        let posted_request = frames::request_block("POST", "/late");
        let posted_request = [
            frames::encode_frame(HEADERS, frames::END_HEADERS, 5, &posted_request),
            frames::encode_frame(DATA, END_STREAM, 5, b"abc"),
        ]
        .concat();
        // The fourth request is never complete.
        let partial_request = frames::request_block("POST", "/part");
        let partial_request =
            frames::encode_frame(HEADERS, frames::END_HEADERS, 7, &partial_request);
        client
            .send_bytes([OPENING, &complete_requests, &posted_request, &partial_request].concat())
            .await;
        client.stream.shutdown().await.unwrap();
        wait_until(|| mesh.client.failure_counts().contains_key("downstream-closed")).await;
        poll_sidecars(&mesh).await;
        release.notify_one();
        release.notify_one();
        release.notify_one();
        let mut ended = Vec::new();
        while let Some(frame) = client.read_frame().await {
            if frame.kind == DATA && frame.flags & END_STREAM != 0 {
                assert_eq!(frame.payload, b"ok");
                ended.push(frame.stream);
            }
            assert!(frame.kind != RST_STREAM || frame.stream == 7, "{frame:?}");
        }
        ended.sort_unstable();
        assert_eq!(ended, [1, 3, 5]);
        assert_eq!(mesh.client.failure_counts(), [("downstream-closed", 1)].into());
    });
}
