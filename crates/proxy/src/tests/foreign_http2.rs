//! Peers with mutual TLS and HTTP/2, but without the link.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use h2::RecvStream;
use http::{HeaderMap, Response};
use leno_identity::Credential;
use leno_model::{Protocol, RouteRule};
use tokio::sync::Notify;

use super::fixture::{
    Application, Client, GET, Mesh, PORT, Setup, credential_from, meshed_endpoint, run,
    service_config, test_credential, tls_accept, wait_until,
};
use super::{filters, http2, routes};
use crate::tls::{ALPN_HTTP1, ALPN_HTTP2};

/// A mesh member that is not a Leno sidecar.
struct ForeignServer {
    server: Application,
    /// The number of HTTP/2 streams that have begun and were not completed.
    unfinished_streams: Rc<Cell<usize>>,
    /// Closes all connections when notified.
    disconnect: Rc<Notify>,
}

/// Starts a mesh member with `identity` that prefers HTTP/2 and accepts `streams` concurrent streams per
/// connection. It reports the request and echoes the body; over HTTP/1.1 it upgrades.
async fn start_foreign(identity: Credential, streams: u32) -> ForeignServer {
    let (identity, unfinished_streams) = (Rc::new(identity), Rc::new(Cell::new(0)));
    let disconnect = Rc::new(Notify::new());
    let (stream_count, disconnect_server) = (unfinished_streams.clone(), disconnect.clone());
    let server = Application::start(move |client| {
        let (identity, count, disconnected) =
            (identity.clone(), stream_count.clone(), disconnect_server.clone());
        async move {
            let offered_protocols = &[ALPN_HTTP2, ALPN_HTTP1];
            let Ok(tls) = tls_accept(client.stream, &identity, offered_protocols).await else {
                return;
            };
            if tls.get_ref().1.alpn_protocol() != Some(ALPN_HTTP2) {
                let mut client = Client::new(tls);
                assert_eq!(
                    client.read_head().await.unwrap().field_value("upgrade"),
                    Some("websocket")
                );
                client
                    .send_bytes(
                        "HTTP/1.1 101 Go On\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nhi",
                    )
                    .await;
                client.read_rest().await;
                return;
            }
            let mut builder = h2::server::Builder::new();
            builder.max_concurrent_streams(streams);
            let mut connection = builder.handshake(tls).await.unwrap();
            loop {
                let accepted = tokio::select! {
                    accepted = connection.accept() => accepted,
                    () = disconnected.notified() => return,
                };
                let Some(Ok((request, mut respond))) = accepted else { return };
                let count = count.clone();
                tokio::task::spawn_local(async move {
                    count.set(count.get() + 1);
                    let (parts, body) = request.into_parts();
                    let reported = |name: &str| parts.headers.get(name).cloned();
                    let mut head = Response::builder()
                        .header("server", "foreign")
                        .header("saw", parts.uri.to_string());
                    for name in ["x-set", "x-gone", "content-type"] {
                        head = reported(name)
                            .into_iter()
                            .fold(head, |head, value| head.header(name, value));
                    }
                    let Some(received) = read_body(body).await else { return };
                    let mut stream = respond.send_response(head.body(()).unwrap(), false).unwrap();
                    http2::send_data(&mut stream, received.into(), false).await;
                    let mut trailers = HeaderMap::new();
                    trailers.insert("grpc-status", "0".parse().unwrap());
                    stream.send_trailers(trailers).unwrap();
                    count.set(count.get() - 1);
                });
            }
        }
    })
    .await;
    ForeignServer { server, unfinished_streams, disconnect }
}

/// Reads a body; `None` if it is incomplete.
async fn read_body(mut body: RecvStream) -> Option<Vec<u8>> {
    let mut received = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece.ok()?;
        body.flow_control().release_capacity(piece.len()).ok()?;
        received.extend_from_slice(&piece);
    }
    Some(received)
}

async fn foreign_mesh() -> Mesh {
    let setup = Setup { protocol: Protocol::Grpc, ..Setup::default() };
    Mesh::new("127.0.0.1:1".parse::<SocketAddr>().unwrap(), setup).await
}

fn route_to_foreign(mesh: &Mesh, foreign: &ForeignServer) {
    mesh.route_to(&[meshed_endpoint("foreign-1", foreign.server.address, "ratings")]);
}

#[test]
fn requests_of_both_http_versions_share_one_connection() {
    run(async {
        let mesh = foreign_mesh().await;
        let foreign = start_foreign(test_credential(&mesh.authority, "ratings"), 100).await;
        route_to_foreign(&mesh, &foreign);
        let mut other_clients = Vec::new();
        for _ in 0..20 {
            let mut other_client = Client::connect(mesh.listener).await;
            other_client
                .send_bytes("POST /a?b HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nab")
                .await;
            other_clients.push(other_client);
        }
        wait_until(|| foreign.unfinished_streams.get() == 20).await;
        for other_client in &mut other_clients {
            other_client.send_bytes("c").await;
            let reply = other_client.read_response().await;
            assert_eq!((reply.status, reply.body_text()), (200, "abc"));
            assert_eq!(reply.field_value("saw"), Some("https://ratings.bookinfo:9080/a?b"));
        }
        let mut client = http2::connect_client(mesh.listener).await;
        let (response, mut stream) =
            client.send_request(http2::grpc_request("/Rate"), false).unwrap();
        http2::send_data(&mut stream, Bytes::from_static(b"message"), true).await;
        let response = response.await.unwrap();
        assert_eq!(response.headers()["content-type"], "application/grpc");
        let (received, trailers) = http2::read_body(response.into_body()).await;
        assert_eq!(received, b"message");
        assert_eq!(trailers.unwrap()["grpc-status"], "0");
        assert_eq!(foreign.server.accepted.get(), 1);
        assert!(mesh.client.failure_counts().is_empty(), "{:?}", mesh.client.failure_counts());
    });
}

#[test]
fn with_few_streams_per_connection_more_are_opened_and_then_requests_wait() {
    run(async {
        let mesh = foreign_mesh().await;
        let foreign = start_foreign(test_credential(&mesh.authority, "ratings"), 2).await;
        route_to_foreign(&mesh, &foreign);
        let mut clients = Vec::new();
        for _ in 0..30 {
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nab").await;
            clients.push(client);
        }
        // One thread opens at most eight connections to one server.
        wait_until(|| foreign.unfinished_streams.get() == 16).await;
        for client in &mut clients {
            client.send_bytes("c").await;
        }
        for client in &mut clients {
            assert_eq!(client.read_response().await.body_text(), "abc");
        }
        assert_eq!(foreign.server.accepted.get(), 8);
    });
}

#[test]
fn rules_of_http2_are_enforced_in_both_directions() {
    run(async {
        let mesh = foreign_mesh().await;
        let foreign = start_foreign(test_credential(&mesh.authority, "ratings"), 100).await;
        let own_backends = routes::path_rule("/", &[("ratings", 1)]).backends;
        let rule = RouteRule { backends: own_backends, ..filters::editing_rule() };
        let server = meshed_endpoint("foreign-1", foreign.server.address, "ratings");
        let mut service = service_config(Protocol::Grpc, &[server]);
        let port = service.ports.get_mut(&PORT).unwrap();
        (port.rules, port.has_attached_routes) = (vec![rule], true);
        mesh.set_client_services(vec![service]);
        let mut client = Client::connect(mesh.listener).await;
        let request = "GET /ratings/1?q=1 HTTP/1.1\r\nHost: ratings\r\nX-Set: old\r\n\
                       X-Gone: 1\r\n\r\n";
        let response = client.send_request(request).await;
        assert_eq!(response.field_value("saw"), Some("https://inner.example/v2/1?q=1"));
        assert_eq!(
            (response.field_value("x-set"), response.field_value("x-gone")),
            (Some("new"), None)
        );
        assert_eq!(response.field_value("server"), Some("leno"));
    });
}

#[test]
fn requests_that_http2_cannot_express_use_http11() {
    run(async {
        let mesh = foreign_mesh().await;
        let foreign = start_foreign(test_credential(&mesh.authority, "ratings"), 100).await;
        route_to_foreign(&mesh, &foreign);
        for connections in [2, 3] {
            let mut client = Client::connect(mesh.listener).await;
            let upgrade = "GET /chat HTTP/1.1\r\nhost: x\r\nConnection: Upgrade\r\n\
                           Upgrade: websocket\r\n\r\n";
            client.send_bytes(upgrade).await;
            assert_eq!(client.read_head().await.unwrap().status, 101);
            assert_eq!(client.read_exactly(2).await, b"hi");
            assert_eq!(foreign.server.accepted.get(), connections);
        }
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request(GET).await.status, 200);
        assert_eq!(foreign.server.accepted.get(), 3, "HTTP/2 is still used");
    });
}

#[test]
fn other_requests_use_http2() {
    run(async {
        let mesh = foreign_mesh().await;
        let identity = Rc::new(test_credential(&mesh.authority, "ratings"));
        let server = Application::start(move |client| {
            let identity = identity.clone();
            async move {
                let tls = tls_accept(client.stream, &identity, &[ALPN_HTTP2]).await.unwrap();
                let mut builder = h2::server::Builder::new();
                let mut connection =
                    builder.enable_connect_protocol().handshake::<_, Bytes>(tls).await.unwrap();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    tokio::task::spawn_local(async move {
                        assert_eq!(request.method(), "CONNECT");
                        assert_eq!(request.uri().to_string(), "https://ratings.bookinfo:9080/chat");
                        let head = Response::builder().body(()).unwrap();
                        let mut stream = respond.send_response(head, false).unwrap();
                        let mut body = request.into_body();
                        while let Some(Ok(piece)) = body.data().await {
                            stream.send_data(piece, false).unwrap();
                        }
                    });
                }
            }
        })
        .await;
        mesh.route_to(&[meshed_endpoint("foreign-1", server.address, "ratings")]);
        let mut client = Client::connect(mesh.listener).await;
        let upgrade = "GET /chat HTTP/1.1\r\nhost: x\r\nConnection: Upgrade\r\n\
                       Upgrade: websocket\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        client.send_bytes([upgrade, "word"].concat()).await;
        let head = client.read_head().await.unwrap();
        assert_eq!((head.status, head.field_value("upgrade")), (101, Some("websocket")));
        assert_eq!(head.field_value("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        assert_eq!(client.read_exactly(4).await, b"word");
        assert_eq!(server.accepted.get(), 1);
    });
}

#[test]
fn a_request_that_waits_for_a_stream_uses_the_next_connection() {
    run(async {
        let mesh = foreign_mesh().await;
        let foreign = start_foreign(test_credential(&mesh.authority, "ratings"), 1).await;
        route_to_foreign(&mesh, &foreign);
        let mut clients = Vec::new();
        for _ in 0..24 {
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nab").await;
            clients.push(client);
        }
        wait_until(|| foreign.unfinished_streams.get() == 8).await;
        foreign.disconnect.notify_waiters();
        wait_until(|| foreign.unfinished_streams.get() == 16).await;
        for client in &mut clients {
            client.send_bytes("c").await;
        }
        let mut served = 0;
        for client in &mut clients {
            served += usize::from(client.read_response().await.status == 200);
        }
        assert_eq!(served, 16, "all requests except those in flight");
    });
}

#[test]
fn no_request_starts_on_a_connection_with_an_expired_peer_certificate() {
    run(async {
        let mesh = foreign_mesh().await;
        let old_issue_time = SystemTime::now() - Duration::from_secs(3600 - 6);
        let foreign =
            start_foreign(credential_from(&mesh.authority, "ratings", old_issue_time), 100).await;
        route_to_foreign(&mesh, &foreign);
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request(GET).await.status, 200);
        let mut response = client.send_request(GET).await;
        while response.status == 200 {
            response = client.send_request(GET).await;
        }
        assert_eq!(response.verdict(), (502, Some("wrong-identity")));
    });
}

/// Starts a member that prefers HTTP/2, accepts one stream at a time, and closes the connections for which
/// `ends` is true, by their number.
async fn start_closing_server(mesh: &Mesh, ends: fn(usize) -> bool) -> Application {
    let (identity, connections) =
        (Rc::new(test_credential(&mesh.authority, "ratings")), Cell::new(0_usize));
    Application::start(move |client| {
        let (identity, number) = (identity.clone(), connections.replace(connections.get() + 1));
        async move {
            let tls = tls_accept(client.stream, &identity, &[ALPN_HTTP2]).await.unwrap();
            if ends(number) {
                return;
            }
            let mut builder = h2::server::Builder::new();
            builder.max_concurrent_streams(1);
            let mut connection = builder.handshake::<_, Bytes>(tls).await.unwrap();
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                drop(respond.send_response(Response::new(()), true));
            }
        }
    })
    .await
}

#[test]
fn a_connection_that_the_server_ends_before_any_stream_loses_no_request() {
    run(async {
        let mesh = foreign_mesh().await;
        let server = start_closing_server(&mesh, |number| number < 3).await;
        mesh.route_to(&[meshed_endpoint("foreign-1", server.address, "ratings")]);
        assert_eq!(Client::connect(mesh.listener).await.send_request(GET).await.status, 200);
        assert_eq!(server.accepted.get(), 4);
        assert!(mesh.client.failure_counts().is_empty(), "{:?}", mesh.client.failure_counts());
    });
}

#[test]
fn requests_wait_for_a_stream_if_the_server_accepts_one_connection() {
    run(async {
        let mesh = foreign_mesh().await;
        let server = start_closing_server(&mesh, |number| number > 0).await;
        mesh.route_to(&[meshed_endpoint("foreign-1", server.address, "ratings")]);
        let listener = mesh.listener;
        let request_tasks = (0..20).map(|_| {
            let request =
                async move { Client::connect(listener).await.send_request(GET).await.status };
            tokio::task::spawn_local(request)
        });
        for status in request_tasks.collect::<Vec<_>>() {
            assert_eq!(status.await.unwrap(), 200);
        }
        assert!(server.accepted.get() > 1, "nothing was full");
        assert!(mesh.client.failure_counts().is_empty(), "{:?}", mesh.client.failure_counts());
    });
}

#[test]
fn a_server_that_negotiates_h2_and_violates_it_is_avoided() {
    run(async {
        let mesh = foreign_mesh().await;
        let identity = Rc::new(test_credential(&mesh.authority, "ratings"));
        let claiming_app = Application::start(move |client| {
            let identity = identity.clone();
            async move {
                let tls = tls_accept(client.stream, &identity, &[ALPN_HTTP2]).await.unwrap();
                let mut client = Client::new(tls);
                client.send_bytes("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
                client.read_rest().await;
            }
        })
        .await;
        mesh.route_to(&[meshed_endpoint("foreign-1", claiming_app.address, "ratings")]);
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(
            client.send_request(GET).await.verdict(),
            (502, Some("upstream-handshake-failed"))
        );
    });
}
