//! Interim (1xx) heads: as many as applications need, within a limit.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use http::Response;
use leno_identity::Credential;
use leno_model::Protocol;
use tokio::io::AsyncWriteExt;

use super::fixture::frames::{self, OPENING};
use super::fixture::{
    Application, Client, GET, Mesh, OK, meshed_endpoint, run, test_credential, tls_accept,
};
use super::{fixture, http2};
use crate::tls::{ALPN_HTTP1, ALPN_HTTP2};

/// A mesh server without a sidecar, and the number of interim heads that it was able to send.
struct InterimServer {
    server: Application,
    sent: Rc<Cell<usize>>,
}

/// Starts a server that sends `heads` interim heads, each with a field of `bytes` bytes, and then responds.
async fn start_interim_server(
    identity: Credential,
    alpn: &'static [u8],
    heads: usize,
    bytes: usize,
) -> InterimServer {
    let (identity, sent) = (Rc::new(identity), Rc::new(Cell::new(0)));
    let count = sent.clone();
    let server = Application::start(move |client| {
        let (identity, count) = (identity.clone(), count.clone());
        async move {
            let tls = tls_accept(client.stream, &identity, &[alpn]).await.unwrap();
            let link = format!("<{}>", "a".repeat(bytes));
            if alpn == ALPN_HTTP1 {
                let mut client = Client::new(tls);
                let head = format!("HTTP/1.1 103 Early Hints\r\nlink: {link}\r\n\r\n");
                while client.read_head().await.is_some() {
                    for _ in 0..heads {
                        if client.stream.write_all(head.as_bytes()).await.is_err() {
                            return;
                        }
                        count.set(count.get() + 1);
                    }
                    client.stream.write_all(OK.as_bytes()).await.unwrap();
                }
                return;
            }
            let mut connection = h2::server::handshake(tls).await.unwrap();
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                let (link, count) = (link.clone(), count.clone());
                tokio::task::spawn_local(async move {
                    for _ in 0..heads {
                        let head = Response::builder().status(103).header("link", &link);
                        if respond.send_informational(head.body(()).unwrap()).is_err() {
                            return;
                        }
                        count.set(count.get() + 1);
                        tokio::task::yield_now().await;
                    }
                    drop(respond.send_response(Response::new(()), true));
                });
            }
        }
    })
    .await;
    InterimServer { server, sent }
}

async fn mesh_with_interim_server(
    alpn: &'static [u8],
    heads: usize,
    bytes: usize,
) -> (Mesh, InterimServer) {
    let unused_address: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let mesh = http2::http2_mesh(unused_address, Protocol::Http2).await;
    let interim_server =
        start_interim_server(test_credential(&mesh.authority, "ratings"), alpn, heads, bytes).await;
    mesh.route_to(&[meshed_endpoint("herald-1", interim_server.server.address, "ratings")]);
    (mesh, interim_server)
}

#[test]
fn a_server_with_endless_interim_responses_is_rejected() {
    run(async {
        for alpn in [ALPN_HTTP1, ALPN_HTTP2] {
            let (mesh, interim_server) =
                mesh_with_interim_server(alpn, FLOOD_HEADS, LARGE_HEAD_BYTES).await;
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(GET).await;
            let mut reply = client.read_head().await.unwrap();
            while reply.status == 103 {
                reply = client.read_head().await.unwrap();
            }
            assert_eq!(reply.verdict(), (502, Some("upstream-malformed")));
            let mut client = http2::connect_client(mesh.listener).await;
            let response = client.send_request(http2::grpc_request("/"), true).unwrap().0;
            // A gRPC call gets the status `UNAVAILABLE`.
            let response = response.await.unwrap();
            let reason = response.headers()["leno-reason"].to_str().unwrap();
            assert!(reason.starts_with("upstream-malformed;"), "{reason}");
            // This client does not read its responses.
            let mut stalled_client = Client::connect(mesh.listener).await;
            stalled_client.send_bytes([OPENING, &frames::get(1)].concat()).await;
            fixture::wait_until(|| mesh.client.ended_count() == 3).await;
            assert_eq!(mesh.client.failure_counts(), [("upstream-malformed", 3)].into());
            if alpn == ALPN_HTTP1 {
                let sent = interim_server.sent.get();
                assert!(sent < 3 * FLOOD_HEADS, "{sent} heads were read");
            }
        }
    });
}

#[test]
fn an_application_with_endless_interim_responses_is_rejected_by_its_sidecar() {
    run(async {
        let app = Application::start(|mut client| async move {
            let head = format!(
                "HTTP/1.1 103 Early Hints\r\nlink: {}\r\n\r\n",
                "a".repeat(LARGE_HEAD_BYTES)
            );
            client.read_head().await;
            for _ in 0..FLOOD_HEADS {
                if client.stream.write_all(head.as_bytes()).await.is_err() {
                    return;
                }
            }
            client.send_bytes(OK).await;
        })
        .await;
        let mesh = http2::http2_mesh(app.address, Protocol::Http).await;
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes(GET).await;
        let first = client.read_head().await.unwrap();
        assert_eq!(first.status, 103);
        let last = client.read_head().await.unwrap();
        assert_eq!(last.verdict(), (502, Some("upstream-malformed")));
        assert_eq!(mesh.server.failure_counts(), [("upstream-malformed", 1)].into());
    });
}

#[test]
fn many_small_interim_responses_are_forwarded() {
    run(async {
        for alpn in [ALPN_HTTP1, ALPN_HTTP2] {
            let (mesh, _herald) = mesh_with_interim_server(alpn, 100, 50).await;
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(GET).await;
            for _ in 0..100 {
                assert_eq!(client.read_head().await.unwrap().status, 103);
            }
            assert_eq!(client.read_head().await.unwrap().status, 200);
            let mut client = http2::connect_client(mesh.listener).await;
            let mut response = client.send_request(http2::grpc_request("/"), true).unwrap().0;
            for _ in 0..100 {
                let interim = std::future::poll_fn(|cx| response.poll_informational(cx)).await;
                assert_eq!(interim.unwrap().unwrap().status(), 103);
            }
            assert_eq!(response.await.unwrap().status(), 200);
            assert!(mesh.client.failure_counts().is_empty());
        }
    });
}

/// A number of interim heads that a sidecar must not buffer.
const FLOOD_HEADS: usize = 300;
/// The bytes of one field of such a head.
const LARGE_HEAD_BYTES: usize = 60_000;
