//! HTTP/1.1 clients that offer an upgrade to HTTP/2, and those that only appear to.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Response;
use leno_model::{Access, Protocol};
use tokio::net::TcpStream;

use super::fixture::frames::{self, DATA, END_STREAM, HEADERS, OPENING, PING, SETTINGS};
use super::fixture::{
    Application, Client, Mesh, OK, Setup, Sidecar, run, test_credential, tls_connect, wait_until,
};
use super::http2;
use crate::session::ListenerKind;
use crate::tls::ALPN_HTTP1;

const OFFER: &str = "GET /a?b=%20 HTTP/1.1\r\nHost: ratings\r\nConnection: Upgrade, HTTP2-Settings\r\n\
                     Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nX-Name: some value\r\n\r\n";
/// A field section with only the status 200 begins with its index in the static table.
const STATUS_200: u8 = 0x88;

/// Reads the HTTP/1.1 response to the offer, and begins HTTP/2.
async fn switch_protocol(client: &mut Client<TcpStream>) {
    let response = client.read_head().await.unwrap();
    assert_eq!(
        (response.status, response.field_value("upgrade")),
        (101, Some("h2c")),
        "{}",
        response.head
    );
    assert_eq!(response.field_value("connection"), Some("upgrade"));
    client.send_bytes(OPENING).await;
}

/// Reads the body of a stream with the status 200.
async fn read_body(client: &mut Client<TcpStream>, stream: u32) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let frame = client.read_frame().await.expect("a response");
        match frame.kind {
            HEADERS => assert_eq!((frame.stream, frame.payload[0]), (stream, STATUS_200)),
            DATA => {
                assert_eq!(frame.stream, stream);
                body.extend(&frame.payload);
            }
            _ => assert_eq!(frame.stream, 0, "{frame:?}"),
        }
        if matches!(frame.kind, HEADERS | DATA) && frame.flags & END_STREAM != 0 {
            return body;
        }
    }
}

/// Returns the listed protocols of a client's connections.
fn listed_protocols(mesh: &Mesh, peer: SocketAddr) -> Vec<&'static str> {
    let connections_of = |sidecar: &Sidecar| sidecar.worker.connections.snapshot(usize::MAX).1;
    let connections = [connections_of(&mesh.client), connections_of(&mesh.server)].concat();
    let client_connections = connections.iter().filter(|connection| connection.peer == peer);
    client_connections.map(|connection| connection.protocol).collect()
}

fn both_listeners(mesh: &Mesh) -> [SocketAddr; 2] {
    [mesh.listener, mesh.inbound]
}

#[test]
fn an_h2c_offer_is_accepted_for_any_protocol_of_the_application() {
    run(async {
        let http1_app = Application::with_response(OK).await;
        let http2_app = http2::start_application(|request, mut respond| async move {
            assert_eq!(request.uri().path_and_query().unwrap().as_str(), "/a?b=%20");
            assert_eq!(request.headers()["x-name"], "some value");
            let mut stream = respond.send_response(Response::new(()), false).unwrap();
            stream.send_data(Bytes::from_static(b"ok"), true).unwrap();
        })
        .await;
        for (app, protocol) in [(&http1_app, Protocol::Http), (&http2_app, Protocol::Http2)] {
            let mesh = http2::http2_mesh(app.address, protocol).await;
            mesh.accept_plaintext(Access::AllowAll);
            for listener in both_listeners(&mesh) {
                let mut client = Client::connect(listener).await;
                client.send_bytes(OFFER).await;
                switch_protocol(&mut client).await;
                assert_eq!(read_body(&mut client, 1).await, b"ok");
                let peer = client.stream.local_addr().unwrap();
                assert_eq!(listed_protocols(&mesh, peer), ["http2"]);
                let path = [
                    frames::request_block("GET", "/a?b=%20"),
                    frames::header_block(&[("x-name", "some value")]),
                ];
                let flags = END_STREAM | frames::END_HEADERS;
                client.send_bytes(frames::encode_frame(HEADERS, flags, 3, &path.concat())).await;
                assert_eq!(read_body(&mut client, 3).await, b"ok");
            }
            assert!(
                mesh.client.failure_counts().is_empty() && mesh.server.failure_counts().is_empty()
            );
        }
        for request in &http1_app.received_requests() {
            assert!(request.head.starts_with("GET /a?b=%20 HTTP/1.1"), "{}", request.head);
            assert_eq!(request.field_value("x-name"), Some("some value"));
            for gone in ["upgrade", "http2-settings", "connection"] {
                assert_eq!(request.field_value(gone).filter(|value| *value != "keep-alive"), None);
            }
        }
        assert_eq!(http1_app.received_requests().len(), 4);
    });
}

#[test]
fn the_first_bytes_of_the_client_may_arrive_early_or_byte_by_byte() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let settings = frames::encode_frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]);
        let upgrade_request =
            [&OPENING[..24], &settings, &frames::encode_frame(PING, 0, 0, &[7; 8])].concat();
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes([OFFER.as_bytes(), &upgrade_request].concat()).await;
        assert_eq!(client.read_head().await.unwrap().status, 101);
        assert_eq!(read_body(&mut client, 1).await, b"ok");
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes(OFFER).await;
        assert_eq!(client.read_head().await.unwrap().status, 101);
        for byte in upgrade_request {
            client.send_bytes([byte]).await;
            tokio::task::yield_now().await;
        }
        assert_eq!(read_body(&mut client, 1).await, b"ok");
    });
}

#[test]
fn a_malformed_h2c_offer_gets_a_response_in_http11() {
    run(async {
        let app = Application::respond_with(|request| {
            assert_eq!(
                request.field_value("upgrade"),
                None,
                "the fields of one hop are not forwarded"
            );
            OK.to_owned()
        })
        .await;
        let mesh = Mesh::permissive(app.address).await;
        let changed = |old_text: &str, to: &str| {
            assert!(OFFER.contains(old_text), "{old_text}");
            OFFER.replace(old_text, to)
        };
        let settings = "HTTP2-Settings: AAMAAABkAAQAAP__\r\n";
        let large_field = format!("X-Large: {}\r\n", "a".repeat(17_000));
        for offer in [
            changed("GET", "POST").replace("\r\n\r\n", "\r\ncontent-length: 2\r\n\r\nhi"),
            changed("\r\n\r\n", "\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
            changed(settings, ""),
            changed(settings, &settings.repeat(2)),
            changed("AAMAAABkAAQAAP__", "AAMAAABkAAQAAP_"),
            changed("AAMAAABkAAQAAP__", "AAMAAABkAAQAAP//"),
            changed("AAMAAABkAAQAAP__", "AAMAAABkAAQA"),
            changed("AAMAAABkAAQAAP__", ""),
            changed("Upgrade, HTTP2-Settings", "Upgrade"),
            changed("Upgrade, HTTP2-Settings", "HTTP2-Settings"),
            changed("h2c", "h2c, websocket"),
            changed("h2c", "h2"),
            changed("h2c\r\n", "h2c\r\nUpgrade: h2c\r\n"),
            changed("/a?b=%20", "http://ratings/a"),
            changed("X-Name: some value\r\n", &large_field),
        ] {
            let mut client = Client::connect(mesh.listener).await;
            assert_eq!(client.send_request(&offer).await.body_text(), "ok", "{offer}");
        }
        // HTTP/1.0 has no upgrades, and inside TLS the protocol is selected by ALPN.
        let http10_request = changed("HTTP/1.1", "HTTP/1.0");
        assert_eq!(
            Client::connect(mesh.listener).await.send_request(&http10_request).await.body_text(),
            "ok"
        );
        let identity = test_credential(&mesh.authority, "foreign");
        let tls = tls_connect(mesh.inbound, &identity, &[ALPN_HTTP1]).await.unwrap();
        assert_eq!(Client::new(tls).send_request(OFFER).await.body_text(), "ok");
        let proxy = mesh.client.open_listener(ListenerKind::HttpProxy).await;
        let request_with_port = OFFER.replace("Host: ratings", "Host: ratings.bookinfo:9080");
        assert_eq!(
            Client::connect(proxy).await.send_request(&request_with_port).await.body_text(),
            "ok"
        );
    });
}

#[test]
fn an_h2c_offer_without_a_preface_is_ignored() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::new(app.address, Setup::default()).await;
        for noise in
            [&b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"[..], &[0xff; 100], &OPENING[..24]]
        {
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(OFFER).await;
            assert_eq!(client.read_head().await.unwrap().status, 101);
            // The first frame must be SETTINGS.
            client.send_bytes([noise, &frames::encode_frame(PING, 0, 0, &[0; 8])].concat()).await;
            while let Some(frame) = client.read_frame().await {
                assert!(frame.stream == 0, "no request gets a response, but {frame:?} arrived");
            }
        }
        wait_until(|| mesh.client.telemetry.gauge(leno_telemetry::Gauge::RequestsInFlight) == 0)
            .await;
        assert!(app.received_requests().is_empty(), "{:?}", app.received_requests());
    });
}
