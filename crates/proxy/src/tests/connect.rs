//! Upgrades over HTTP/2 (extended CONNECT), to applications of either version.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::ext::Protocol as Asked;
use h2::server::{Builder, SendResponse};
use h2::{RecvStream, SendStream};
use http::{Method, Request, Response};
use leno_model::Protocol;

use super::fixture::{
    Application, Client, End, Mesh, ReceivedMessage, run, test_credential, wait_until,
};
use super::http2::{connect_client, http2_mesh, read_body, send_data};
use crate::http2::connect::accept_key;

/// The key of the client and its acceptance value in RFC 6455 §1.3.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// Starts an HTTP/1.1 application that accepts an upgrade with `response`, computed from the key, and then
/// echoes.
async fn start_http1(response: impl Fn(&str) -> String + Clone + 'static) -> Application {
    Application::start(move |mut client| {
        let response = response.clone();
        async move {
            let Some(request) = client.read_head().await else { return };
            let key = request.field_value("sec-websocket-key").unwrap_or_default();
            client.send_bytes(response(&accept_key(key.as_bytes()))).await;
            while let Some(byte) = client.try_read(1).await {
                client.send_bytes(byte).await;
            }
            client.send_bytes("bye").await;
        }
    })
    .await
}

fn accept_response(proof: &str) -> String {
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-accept: {proof}\r\nsec-websocket-protocol: chat\r\n\r\n"
    )
}

/// Starts an HTTP/2 application that accepts extended CONNECT and echoes.
async fn start_http2(
    check_request: impl Fn(&Request<RecvStream>) + Clone + 'static,
) -> Application {
    Application::start(move |client| {
        let check_request = check_request.clone();
        async move {
            let mut builder = Builder::new();
            let handshake = builder.enable_connect_protocol().handshake(client.stream);
            let mut connection = handshake.await.unwrap();
            while let Some(Ok((request, respond))) = connection.accept().await {
                check_request(&request);
                tokio::task::spawn_local(echo_stream(request, respond));
            }
        }
    })
    .await
}

async fn echo_stream(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let head = Response::builder().header("sec-websocket-protocol", "chat").body(()).unwrap();
    let mut stream = respond.send_response(head, false).unwrap();
    let mut body = request.into_body();
    while let Some(Ok(piece)) = body.data().await {
        body.flow_control().release_capacity(piece.len()).unwrap();
        send_data(&mut stream, piece, false).await;
    }
    send_data(&mut stream, Bytes::from_static(b"bye"), true).await;
}

/// Creates a mesh with an HTTP/2 client and an HTTP/1.1 application.
pub(super) async fn mixed_meshes(application: SocketAddr) -> (Mesh, Mesh) {
    let (client_mesh, server_mesh) = (
        http2_mesh(application, Protocol::Http2).await,
        http2_mesh(application, Protocol::Http).await,
    );
    client_mesh.route_to(&[server_mesh.server_endpoint()]);
    client_mesh.client.set_credential(test_credential(&server_mesh.authority, "productpage"));
    (client_mesh, server_mesh)
}

async fn connect_extended(listener: SocketAddr) -> SendRequest<Bytes> {
    let send = connect_client(listener).await;
    wait_until(|| send.is_extended_connect_protocol_enabled()).await;
    send
}

fn connect_request(protocol: &str) -> Request<()> {
    Request::builder()
        .method(Method::CONNECT)
        .uri("http://ratings.bookinfo:9080/chat?room=1")
        .extension(Asked::from(protocol))
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "not-used")
        .header("origin", "http://shop.example")
        .body(())
        .unwrap()
}

pub(super) async fn open_tunnel(listener: SocketAddr) -> (Response<RecvStream>, SendStream<Bytes>) {
    let (response, stream) =
        connect_extended(listener).await.send_request(connect_request("websocket"), false).unwrap();
    (response.await.unwrap(), stream)
}

/// Sends many bytes in both directions at once, then half-closes.
async fn exchange_bytes(response: Response<RecvStream>, mut stream: SendStream<Bytes>) {
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["sec-websocket-protocol"], "chat");
    for absent in ["sec-websocket-accept", "connection", "upgrade"] {
        assert!(!response.headers().contains_key(absent), "{absent}");
    }
    let long_payload: Bytes = (0..300_000_u32).map(|index| index as u8).collect::<Vec<_>>().into();
    let expected = long_payload.clone();
    tokio::task::spawn_local(async move { send_data(&mut stream, expected, true).await });
    let (body, _) = read_body(response.into_body()).await;
    assert!(body == [&long_payload[..], b"bye"].concat(), "{} bytes", body.len());
}

#[test]
fn an_http2_client_reaches_an_application_that_upgrades() {
    run(async {
        let app = start_http1(accept_response).await;
        let (client_mesh, server_mesh) = mixed_meshes(app.address).await;
        let (response, stream) = open_tunnel(client_mesh.listener).await;
        exchange_bytes(response, stream).await;
        wait_until(|| {
            client_mesh.client.ended_count() == 1 && server_mesh.server.ended_count() == 1
        })
        .await;
        assert!(
            client_mesh.client.failure_counts().is_empty()
                && server_mesh.server.failure_counts().is_empty()
        );
    });
}

#[test]
fn the_application_receives_an_upgrade_with_a_key_of_its_sidecar() {
    run(async {
        let app = Application::respond_with(|_: &ReceivedMessage| {
            "HTTP/1.1 403 No\r\ncontent-length: 2\r\n\r\nno".to_owned()
        })
        .await;
        let (client_mesh, _server_mesh) = mixed_meshes(app.address).await;
        for _ in 0..2 {
            let (response, _stream) = open_tunnel(client_mesh.listener).await;
            assert_eq!(response.status(), 403);
            assert_eq!(read_body(response.into_body()).await.0, b"no");
        }
        let [first, second] = &app.received_requests()[..] else { panic!("two requests") };
        assert!(first.head.starts_with("GET /chat?room=1 HTTP/1.1\r\nhost: ratings.bookinfo:9080"));
        for (name, value) in [
            ("upgrade", "websocket"),
            ("connection", "upgrade"),
            ("sec-websocket-version", "13"),
            ("origin", "http://shop.example"),
        ] {
            assert_eq!(first.field_value(name), Some(value), "{}", first.head);
        }
        let key = |request: &ReceivedMessage| {
            request.field_value("sec-websocket-key").unwrap().to_owned()
        };
        assert_eq!((key(first).len(), &key(first)[22..]), (24, "=="));
        assert_ne!(key(first), key(second));
    });
}

#[test]
fn a_client_that_upgrades_reaches_an_http2_application() {
    run(async {
        let app = start_http2(|request| {
            assert_eq!(request.method(), Method::CONNECT);
            assert_eq!(request.extensions().get::<Asked>().unwrap().as_str(), "websocket");
            assert_eq!(request.uri(), "http://ratings.bookinfo:9080/chat");
            for absent in ["sec-websocket-key", "connection", "upgrade"] {
                assert!(!request.headers().contains_key(absent), "{absent}");
            }
        })
        .await;
        let mesh = http2_mesh(app.address, Protocol::Http2).await;
        let mut client = Client::connect(mesh.listener).await;
        client
            .send_bytes(format!(
                "GET /chat HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: WebSocket\r\n\
                 sec-websocket-key: {KEY}\r\nsec-websocket-version: 13\r\n\r\nearly"
            ))
            .await;
        let head = client.read_head().await.unwrap();
        assert_eq!((head.status, head.field_value("upgrade")), (101, Some("websocket")));
        assert_eq!(head.field_value("sec-websocket-accept"), Some(ACCEPT));
        assert_eq!(head.field_value("sec-websocket-protocol"), Some("chat"));
        assert_eq!(client.read_exactly(5).await, b"early");
        tokio::io::AsyncWriteExt::shutdown(&mut client.stream).await.unwrap();
        assert_eq!(client.read_rest().await, (b"bye".to_vec(), End::Clean));
    });
}

#[test]
fn an_http2_client_reaches_an_http2_application() {
    run(async {
        let app = start_http2(|_| {}).await;
        let mesh = http2_mesh(app.address, Protocol::Http2).await;
        let (response, stream) = open_tunnel(mesh.listener).await;
        exchange_bytes(response, stream).await;
        wait_until(|| mesh.client.ended_count() == 1 && mesh.server.ended_count() == 1).await;
        assert!(mesh.client.failure_counts().is_empty() && mesh.server.failure_counts().is_empty());
    });
}

#[test]
fn a_rejected_upgrade_opens_no_tunnel() {
    run(async {
        type UpgradeResponse = fn(&str) -> String;
        let page: UpgradeResponse = |_| "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok".to_owned();
        let forged_response: UpgradeResponse = |_| accept_response("AAAAAAAAAAAAAAAAAAAAAAAAAAA=");
        for (reply, status, reason) in
            [(page, 501, "unsupported;"), (forged_response, 502, "upstream-malformed;")]
        {
            let app = start_http1(reply).await;
            let (client_mesh, _server_mesh) = mixed_meshes(app.address).await;
            let (response, _stream) = open_tunnel(client_mesh.listener).await;
            assert_eq!(response.status(), status);
            assert!(response.headers()["leno-reason"].to_str().unwrap().starts_with(reason));
        }
        // An HTTP/2 application that does not announce extended CONNECT.
        let app = super::http2::start_application(|_, _| async {}).await;
        let mesh = http2_mesh(app.address, Protocol::Http2).await;
        assert_eq!(open_tunnel(mesh.listener).await.0.status(), 501);
        // Protocols without a possible upgrade, and plain CONNECT.
        let mut client = connect_extended(mesh.listener).await;
        let response = client.send_request(connect_request("h2c"), false).unwrap().0.await.unwrap();
        assert_eq!(response.status(), 400);
        // A protocol that is not configured.
        for protocol in ["tcp", "websocket2", "connect-udp"] {
            let response =
                client.send_request(connect_request(protocol), false).unwrap().0.await.unwrap();
            assert_eq!(response.status(), 501, "{protocol}");
        }
        let tunnel = Request::connect("ratings.bookinfo:9080").body(()).unwrap();
        let tunnel = client.send_request(tunnel, false).unwrap().0.await.unwrap();
        assert_eq!(tunnel.status(), 501);
    });
}
