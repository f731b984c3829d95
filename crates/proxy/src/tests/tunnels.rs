//! Tunnels after an upgrade: each direction ends on its own, in either order.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, SendResponse};
use h2::{RecvStream, SendStream};
use http::{Request, Response};
use leno_model::{Access, Protocol};
use tokio::io::AsyncWriteExt;
use tokio::sync::Notify;

use super::connect::{mixed_meshes, open_tunnel};
use super::fixture::{
    Application, Client, End, Mesh, Setup, meshed_endpoint, run, test_credential, tls_accept,
    wait_until,
};
use super::http2::{http2_mesh, read_body, send_data, start_application_with};
use crate::config::Limits;
use crate::http2::connect::accept_key;
use crate::session::ListenerKind;
use crate::tls::ALPN_HTTP1;

/// The bytes that a client sends after the application has half-closed: more than every window on the path.
const LATE_BYTES: usize = 300_000;
const UPGRADE: &str = "GET /chat HTTP/1.1\r\nhost: ratings.bookinfo:9080\r\nconnection: Upgrade\r\n\
                       upgrade: websocket\r\nsec-websocket-key: a\r\n\r\n";

/// An application that half-closes first, and the bytes that it receives afterwards with their end.
struct HalfClosingApplication {
    application: Application,
    received: Received,
}

/// The bytes of each connection or stream, and its end.
type Received = Rc<RefCell<Vec<(Vec<u8>, End)>>>;

/// Returns the response of an application that accepts, with the proof that a client with a key requires.
fn accept_response(key: &str) -> String {
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-accept: {}\r\n\r\nhello",
        accept_key(key.as_bytes())
    )
}

impl HalfClosingApplication {
    async fn over_http1() -> Self {
        let received = Received::default();
        let received_messages = received.clone();
        let application = Application::start(move |mut client| {
            let received_messages = received_messages.clone();
            async move {
                let Some(request) = client.read_head().await else { return };
                let key = request.field_value("sec-websocket-key").unwrap_or_default();
                client.send_bytes(accept_response(key)).await;
                client.stream.shutdown().await.unwrap();
                let last = client.read_rest().await;
                received_messages.borrow_mut().push(last);
            }
        });
        Self { application: application.await, received }
    }

    async fn over_http2() -> Self {
        let received = Received::default();
        let received_messages = received.clone();
        let serve = move |request: Request<RecvStream>, mut respond: SendResponse<Bytes>| {
            let received_messages = received_messages.clone();
            async move {
                let mut stream = respond.send_response(Response::new(()), false).unwrap();
                stream.send_data(Bytes::from_static(b"hello"), true).unwrap();
                let (bytes, _) = read_body(request.into_body()).await;
                received_messages.borrow_mut().push((bytes, End::Clean));
            }
        };
        Self { application: start_http2(serve).await, received }
    }

    /// Waits for the end of the client's direction.
    async fn expect_late_bytes(&self) {
        wait_until(|| !self.received.borrow().is_empty()).await;
        let (bytes, end) = self.received.borrow_mut().remove(0);
        assert!(bytes == late_bytes(), "{} bytes", bytes.len());
        assert_eq!(end, End::Clean);
    }
}

/// Starts an HTTP/2 application that accepts extended CONNECT.
async fn start_http2<F, S>(serve: S) -> Application
where
    F: Future<Output = ()> + 'static,
    S: Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + 'static,
{
    let mut builder = Builder::new();
    builder.enable_connect_protocol();
    start_application_with(builder, serve).await
}

fn late_bytes() -> Vec<u8> {
    (0..LATE_BYTES).map(|index| index as u8).collect()
}

/// Opens a tunnel by an HTTP/1.1 upgrade, and reads the application's bytes to their end.
async fn open_half_closed(address: SocketAddr, request: &str) -> Client<tokio::net::TcpStream> {
    let mut client = Client::connect(address).await;
    client.send_bytes(request).await;
    assert_eq!(client.read_head().await.expect("a response").status, 101);
    assert_eq!(client.read_exactly(5).await, b"hello");
    assert_eq!(client.read_end().await, End::Clean);
    client
}

/// Opens a tunnel over HTTP/2, and reads the application's bytes to their end.
async fn open_half_closed_http2(listener: SocketAddr) -> SendStream<Bytes> {
    let (response, stream) = open_tunnel(listener).await;
    assert_eq!(response.status(), 200);
    assert_eq!(read_body(response.into_body()).await.0, b"hello");
    stream
}

async fn send_late_bytes(mut client: Client<tokio::net::TcpStream>) {
    client.send_bytes(late_bytes()).await;
    client.stream.shutdown().await.unwrap();
}

/// Covers each listener that accepts HTTP/1.1.
#[test]
fn an_http1_client_may_send_after_the_application_half_closes() {
    run(async {
        let app = HalfClosingApplication::over_http1().await;
        let mesh = Mesh::permissive(app.application.address).await;
        mesh.accept_plaintext(Access::AllowAll);
        let proxy = mesh.client.open_listener(ListenerKind::HttpProxy).await;
        let absolute = |authority: &str| UPGRADE.replace("/chat", &format!("http://{authority}/"));
        let outside_request = absolute(&app.application.address.to_string());
        for (address, request) in [
            (mesh.listener, UPGRADE),
            (proxy, &*absolute("ratings.bookinfo:9080")),
            (proxy, &*outside_request),
            // Without mutual TLS.
            (mesh.inbound, UPGRADE),
        ] {
            send_late_bytes(open_half_closed(address, request).await).await;
            app.expect_late_bytes().await;
        }
        wait_until(|| mesh.client.ended_count() == 3 && mesh.server.ended_count() == 3).await;
        assert!(mesh.client.failure_counts().is_empty() && mesh.server.failure_counts().is_empty());
    });
}

#[test]
fn http2_streams_may_send_after_the_application_half_closes() {
    run(async {
        let app = HalfClosingApplication::over_http1().await;
        let (client_mesh, server_mesh) = mixed_meshes(app.application.address).await;
        let mut stream = open_half_closed_http2(client_mesh.listener).await;
        send_data(&mut stream, late_bytes().into(), true).await;
        app.expect_late_bytes().await;
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
fn an_http2_application_may_half_close_first() {
    run(async {
        let app = HalfClosingApplication::over_http2().await;
        let mesh = http2_mesh(app.application.address, Protocol::Http2).await;
        let mut stream = open_half_closed_http2(mesh.listener).await;
        send_data(&mut stream, late_bytes().into(), true).await;
        app.expect_late_bytes().await;
        send_late_bytes(open_half_closed(mesh.listener, UPGRADE).await).await;
        app.expect_late_bytes().await;
        wait_until(|| mesh.client.ended_count() == 2 && mesh.server.ended_count() == 2).await;
        assert!(mesh.client.failure_counts().is_empty() && mesh.server.failure_counts().is_empty());
    });
}

#[test]
fn a_peer_without_links_may_half_close_first() {
    run(async {
        let mesh = Mesh::permissive("127.0.0.1:1".parse().unwrap()).await;
        let identity = Rc::new(test_credential(&mesh.authority, "ratings"));
        let received = Received::default();
        let received_messages = received.clone();
        let foreign_app = Application::start(move |client| {
            let (identity, received_messages) = (identity.clone(), received_messages.clone());
            async move {
                let tls = tls_accept(client.stream, &identity, &[ALPN_HTTP1]).await.unwrap();
                let mut client = Client::new(tls);
                client.read_head().await.unwrap();
                client.send_bytes(accept_response("a")).await;
                client.stream.shutdown().await.unwrap();
                let last = client.read_rest().await;
                received_messages.borrow_mut().push(last);
            }
        });
        let application = foreign_app.await;
        mesh.route_to(&[meshed_endpoint("foreign-1", application.address, "ratings")]);
        let app = HalfClosingApplication { application, received };
        send_late_bytes(open_half_closed(mesh.listener, UPGRADE).await).await;
        app.expect_late_bytes().await;
    });
}

#[test]
fn a_half_closed_tunnel_ends_after_the_idle_timeout() {
    run(async {
        for over_http2 in [false, true] {
            let app = match over_http2 {
                false => HalfClosingApplication::over_http1().await,
                true => HalfClosingApplication::over_http2().await,
            };
            let idle_connection = Duration::from_millis(200);
            let limits = Limits { idle_connection, ..Setup::default().limits };
            let protocol = if over_http2 { Protocol::Http2 } else { Protocol::Http };
            let setup = Setup { limits, protocol, ..Setup::default() };
            let mesh = Mesh::new(app.application.address, setup).await;
            let mut client = open_half_closed(mesh.listener, UPGRADE).await;
            // The client does not close its direction.
            wait_until(|| mesh.client.ended_count() == 1 && mesh.server.ended_count() == 1).await;
            wait_until(|| !app.received.borrow().is_empty() || over_http2).await;
            client.stream.shutdown().await.unwrap();
        }
    });
}

#[test]
fn a_half_closed_tunnel_ends_with_its_application() {
    run(async {
        let app_end_signal = Rc::new(Notify::new());
        let end_signal = app_end_signal.clone();
        let first_app = Application::start(move |mut client| {
            let app_end_signal = app_end_signal.clone();
            async move {
                client.read_head().await.unwrap();
                client.send_bytes(accept_response("a")).await;
                client.stream.shutdown().await.unwrap();
                app_end_signal.notified().await;
                client.abandon();
            }
        });
        let first_mesh = Mesh::permissive(first_app.await.address).await;
        let _client = open_half_closed(first_mesh.listener, UPGRADE).await;
        end_signal.notify_one();
        wait_until(|| first_mesh.client.ended_count() == 1 && first_mesh.server.ended_count() == 1)
            .await;

        let end_signal = Rc::new(Notify::new());
        let app_end_signal = end_signal.clone();
        let second_app = start_http2(move |request, mut respond| {
            let app_end_signal = app_end_signal.clone();
            async move {
                let mut stream = respond.send_response(Response::new(()), false).unwrap();
                stream.send_data(Bytes::from_static(b"hello"), true).unwrap();
                app_end_signal.notified().await;
                // The codec resets a stream when its unread body is dropped.
                drop(request);
            }
        });
        let second_mesh = http2_mesh(second_app.await.address, Protocol::Http2).await;
        let _client = open_half_closed(second_mesh.listener, UPGRADE).await;
        end_signal.notify_one();
        wait_until(|| {
            second_mesh.client.ended_count() == 1 && second_mesh.server.ended_count() == 1
        })
        .await;
    });
}
