//! Upgrades over HTTP/2 (extended CONNECT), to applications of either version.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::ext::Protocol as Asked;
use h2::server::{Builder, SendResponse};
use h2::{RecvStream, SendStream};
use http::{Method, Request, Response};
use leno_model::Protocol;

use super::fixture::{Answer, Application, Client, End, Mesh, credential, run, until};
use super::http2::{connect, mesh, send, whole};
use crate::http2::connect::accept;

/// The key and its answer in RFC 6455 §1.3.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// Starts an HTTP/1.1 application that accepts an upgrade with `answer`, computed from the key, and then
/// echoes.
async fn application1(answer: impl Fn(&str) -> String + Clone + 'static) -> Application {
    Application::start(move |mut client| {
        let answer = answer.clone();
        async move {
            let Some(request) = client.head().await else { return };
            let key = request.field("sec-websocket-key").unwrap_or_default();
            client.send(answer(&accept(key.as_bytes()))).await;
            while let Some(byte) = client.maybe(1).await {
                client.send(byte).await;
            }
            client.send("bye").await;
        }
    })
    .await
}

fn agrees(proof: &str) -> String {
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-accept: {proof}\r\nsec-websocket-protocol: chat\r\n\r\n"
    )
}

/// Starts an HTTP/2 application that accepts extended CONNECT and echoes.
async fn application2(asked: impl Fn(&Request<RecvStream>) + Clone + 'static) -> Application {
    Application::start(move |client| {
        let asked = asked.clone();
        async move {
            let mut builder = Builder::new();
            let shaken = builder.enable_connect_protocol().handshake(client.stream);
            let mut connection = shaken.await.unwrap();
            while let Some(Ok((request, respond))) = connection.accept().await {
                asked(&request);
                tokio::task::spawn_local(echo(request, respond));
            }
        }
    })
    .await
}

async fn echo(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let head = Response::builder().header("sec-websocket-protocol", "chat").body(()).unwrap();
    let mut stream = respond.send_response(head, false).unwrap();
    let mut body = request.into_body();
    while let Some(Ok(piece)) = body.data().await {
        body.flow_control().release_capacity(piece.len()).unwrap();
        send(&mut stream, piece, false).await;
    }
    send(&mut stream, Bytes::from_static(b"bye"), true).await;
}

/// Creates a mesh with an HTTP/2 client and an HTTP/1.1 application.
pub(super) async fn mixed(application: SocketAddr) -> (Mesh, Mesh) {
    let (front, back) =
        (mesh(application, Protocol::Http2).await, mesh(application, Protocol::Http).await);
    front.route_to(&[back.endpoint()]);
    front.client.trust(credential(&back.authority, "productpage"));
    (front, back)
}

async fn willing(listener: SocketAddr) -> SendRequest<Bytes> {
    let send = connect(listener).await;
    until(|| send.is_extended_connect_protocol_enabled()).await;
    send
}

fn ask(protocol: &str) -> Request<()> {
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

pub(super) async fn open(listener: SocketAddr) -> (Response<RecvStream>, SendStream<Bytes>) {
    let (response, stream) = willing(listener).await.send_request(ask("websocket"), false).unwrap();
    (response.await.unwrap(), stream)
}

/// Sends many bytes in both directions at once, then half-closes.
async fn converses(response: Response<RecvStream>, mut stream: SendStream<Bytes>) {
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["sec-websocket-protocol"], "chat");
    for absent in ["sec-websocket-accept", "connection", "upgrade"] {
        assert!(!response.headers().contains_key(absent), "{absent}");
    }
    let long: Bytes = (0..300_000_u32).map(|at| at as u8).collect::<Vec<_>>().into();
    let said = long.clone();
    tokio::task::spawn_local(async move { send(&mut stream, said, true).await });
    let (heard, _) = whole(response.into_body()).await;
    assert!(heard == [&long[..], b"bye"].concat(), "{} bytes", heard.len());
}

#[test]
fn a_client_of_http2_reaches_an_application_that_upgrades() {
    run(async {
        let app = application1(agrees).await;
        let (front, back) = mixed(app.address).await;
        let (response, stream) = open(front.listener).await;
        converses(response, stream).await;
        until(|| front.client.ended() == 1 && back.server.ended() == 1).await;
        assert!(front.client.failures().is_empty() && back.server.failures().is_empty());
    });
}

#[test]
fn the_application_sees_an_upgrade_with_a_key_of_its_sidecar() {
    run(async {
        let app = Application::answering(|_: &Answer| {
            "HTTP/1.1 403 No\r\ncontent-length: 2\r\n\r\nno".to_owned()
        })
        .await;
        let (front, _back) = mixed(app.address).await;
        for _ in 0..2 {
            let (response, _stream) = open(front.listener).await;
            assert_eq!(response.status(), 403);
            assert_eq!(whole(response.into_body()).await.0, b"no");
        }
        let [first, second] = &app.requests()[..] else { panic!("two requests") };
        assert!(first.head.starts_with("GET /chat?room=1 HTTP/1.1\r\nhost: ratings.bookinfo:9080"));
        for (name, value) in [
            ("upgrade", "websocket"),
            ("connection", "upgrade"),
            ("sec-websocket-version", "13"),
            ("origin", "http://shop.example"),
        ] {
            assert_eq!(first.field(name), Some(value), "{}", first.head);
        }
        let key = |request: &Answer| request.field("sec-websocket-key").unwrap().to_owned();
        assert_eq!((key(first).len(), &key(first)[22..]), (24, "=="));
        assert_ne!(key(first), key(second));
    });
}

#[test]
fn a_client_that_upgrades_reaches_an_application_of_http2() {
    run(async {
        let app = application2(|request| {
            assert_eq!(request.method(), Method::CONNECT);
            assert_eq!(request.extensions().get::<Asked>().unwrap().as_str(), "websocket");
            assert_eq!(request.uri(), "http://ratings.bookinfo:9080/chat");
            for absent in ["sec-websocket-key", "connection", "upgrade"] {
                assert!(!request.headers().contains_key(absent), "{absent}");
            }
        })
        .await;
        let mesh = mesh(app.address, Protocol::Http2).await;
        let mut client = Client::connect(mesh.listener).await;
        client
            .send(format!(
                "GET /chat HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: WebSocket\r\n\
                 sec-websocket-key: {KEY}\r\nsec-websocket-version: 13\r\n\r\nearly"
            ))
            .await;
        let head = client.head().await.unwrap();
        assert_eq!((head.status, head.field("upgrade")), (101, Some("websocket")));
        assert_eq!(head.field("sec-websocket-accept"), Some(ACCEPT));
        assert_eq!(head.field("sec-websocket-protocol"), Some("chat"));
        assert_eq!(client.bytes(5).await, b"early");
        tokio::io::AsyncWriteExt::shutdown(&mut client.stream).await.unwrap();
        assert_eq!(client.last().await, (b"bye".to_vec(), End::Clean));
    });
}

#[test]
fn both_may_speak_http2() {
    run(async {
        let app = application2(|_| {}).await;
        let mesh = mesh(app.address, Protocol::Http2).await;
        let (response, stream) = open(mesh.listener).await;
        converses(response, stream).await;
        until(|| mesh.client.ended() == 1 && mesh.server.ended() == 1).await;
        assert!(mesh.client.failures().is_empty() && mesh.server.failures().is_empty());
    });
}

#[test]
fn who_does_not_agree_is_not_taken_for_one_who_does() {
    run(async {
        type Made = fn(&str) -> String;
        let page: Made = |_| "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok".to_owned();
        let forged: Made = |_| agrees("AAAAAAAAAAAAAAAAAAAAAAAAAAA=");
        for (answer, status, reason) in
            [(page, 501, "unsupported;"), (forged, 502, "upstream-malformed;")]
        {
            let app = application1(answer).await;
            let (front, _back) = mixed(app.address).await;
            let (response, _stream) = open(front.listener).await;
            assert_eq!(response.status(), status);
            assert!(response.headers()["leno-reason"].to_str().unwrap().starts_with(reason));
        }
        // An HTTP/2 application that does not announce extended CONNECT.
        let app = super::http2::application(|_, _| async {}).await;
        let mesh = mesh(app.address, Protocol::Http2).await;
        assert_eq!(open(mesh.listener).await.0.status(), 501);
        // Protocols without a possible upgrade, and plain CONNECT.
        let mut client = willing(mesh.listener).await;
        let again = client.send_request(ask("h2c"), false).unwrap().0.await.unwrap();
        assert_eq!(again.status(), 400);
        // A protocol that is not configured.
        for protocol in ["tcp", "websocket2", "connect-udp"] {
            let other = client.send_request(ask(protocol), false).unwrap().0.await.unwrap();
            assert_eq!(other.status(), 501, "{protocol}");
        }
        let tunnel = Request::connect("ratings.bookinfo:9080").body(()).unwrap();
        let tunnel = client.send_request(tunnel, false).unwrap().0.await.unwrap();
        assert_eq!(tunnel.status(), 501);
    });
}
