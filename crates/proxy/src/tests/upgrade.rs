//! Connections that are upgraded to another protocol, as for WebSocket.

use super::fixture::{
    Application, Client, End, GET, Mesh, OK, Setup, meshed_endpoint, run, test_credential,
    tls_accept, wait_until,
};
use crate::drain::Phase;
use crate::tls::ALPN_HTTP1;

const UPGRADE: &str = "GET /chat HTTP/1.1\r\nhost: x\r\nConnection: keep-alive, Upgrade\r\n\
                       Upgrade: websocket\r\nsec-websocket-key: a\r\n\r\n";
const SWITCHING: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\n\
                         upgrade: websocket\r\nsec-websocket-accept: b\r\n\r\n";

/// Starts an application that accepts an upgrade, sends first, and echoes until its client half-closes.
async fn start_echo() -> Application {
    Application::start(|mut client| async move {
        let request = client.read_head().await.unwrap();
        assert_eq!(request.field_value("upgrade"), Some("websocket"));
        assert_eq!(request.field_value("connection"), Some("upgrade"));
        assert_eq!(
            request.field_value("content-length").or(request.field_value("transfer-encoding")),
            None
        );
        client.send_bytes([SWITCHING, "hello"].concat()).await;
        loop {
            let byte = match client.try_read(1).await {
                Some(byte) => byte,
                None => return client.send_bytes("bye").await,
            };
            client.send_bytes(byte).await;
        }
    })
    .await
}

#[test]
fn an_upgraded_protocol_is_forwarded_unchanged() {
    run(async {
        let app = start_echo().await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        // Bytes sent before the upgrade is accepted wait for it.
        client.send_bytes([UPGRADE, "early"].concat()).await;
        let head = client.read_head().await.unwrap();
        assert_eq!((head.status, head.field_value("upgrade")), (101, Some("websocket")));
        assert_eq!(head.field_value("sec-websocket-accept"), Some("b"));
        assert_eq!(client.read_exactly(10).await, b"helloearly");
        let long_payload: Vec<u8> = (0..300_000_u32).map(|index| index as u8).collect();
        let (read_half, mut write_half) = client.stream.into_split();
        let upload = tokio::task::spawn_local(async move {
            tokio::io::AsyncWriteExt::write_all(&mut write_half, &long_payload).await.unwrap();
            // A half-close ends one direction only.
            tokio::io::AsyncWriteExt::shutdown(&mut write_half).await.unwrap();
            (write_half, long_payload)
        });
        let mut reading_client = Client::new(tokio::io::join(read_half, tokio::io::sink()));
        let (received, end) = reading_client.read_rest().await;
        let (_write_half, long_payload) = upload.await.unwrap();
        assert_eq!(end, End::Clean);
        assert!(received == [&long_payload[..], b"bye"].concat(), "{} bytes", received.len());
        wait_until(|| mesh.client.ended_count() == 1 && mesh.server.ended_count() == 1).await;
        assert!(mesh.client.failure_counts().is_empty() && mesh.server.failure_counts().is_empty());
        let [series] = &mesh.client.series_summaries()[..] else { panic!("one series") };
        assert_eq!((series.bytes_in, series.bytes_out), (300_005, 300_013));
    });
}

#[test]
fn a_rejected_upgrade_leaves_the_connection_usable() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        for _ in 0..3 {
            assert_eq!(client.send_request(UPGRADE).await.body_text(), "ok");
            assert_eq!(client.send_request(GET).await.body_text(), "ok");
        }
        assert_eq!(app.accepted.get(), 1);
        assert!(mesh.client.failure_counts().is_empty() && mesh.server.failure_counts().is_empty());
    });
}

#[test]
fn a_request_with_content_length_zero_may_upgrade() {
    run(async {
        let app = start_echo().await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes(UPGRADE.replace("sec-", "Content-Length: 0\r\nsec-")).await;
        assert_eq!(client.read_head().await.unwrap().status, 101);
        assert_eq!(client.read_exactly(5).await, b"hello");
    });
}

#[test]
fn an_upgrade_without_a_response_has_the_timeout_of_its_route() {
    run(async {
        let app = Application::start(|mut client| async move {
            client.read_head().await;
            client.read_rest().await;
        });
        let mesh = Mesh::permissive(app.await.address).await;
        let limit = Some(std::time::Duration::from_millis(300));
        let mut service_config =
            super::fixture::service_config(leno_model::Protocol::Http, &[mesh.server_endpoint()]);
        let port = service_config.ports.get_mut(&super::fixture::PORT).unwrap();
        let rule = super::routes::path_rule("/", &[("ratings", 1)]);
        port.rules = vec![leno_model::RouteRule { request_timeout: limit, ..rule }];
        port.has_attached_routes = true;
        mesh.set_client_services(vec![service_config]);
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request(UPGRADE).await.verdict(), (504, Some("request-timeout")));
    });
}

#[test]
fn a_peer_without_links_upgrades_too() {
    run(async {
        let mesh = Mesh::permissive("127.0.0.1:1".parse().unwrap()).await;
        let identity = std::rc::Rc::new(test_credential(&mesh.authority, "ratings"));
        let foreign_app = Application::start(move |client| {
            let identity = identity.clone();
            async move {
                let tls = tls_accept(client.stream, &identity, &[ALPN_HTTP1]).await.unwrap();
                let mut client = Client::new(tls);
                client.read_head().await.unwrap();
                client.send_bytes(SWITCHING).await;
                let bytes = client.read_exactly(4).await;
                client.send_bytes(bytes).await;
                tokio::io::AsyncWriteExt::shutdown(&mut client.stream).await.unwrap();
            }
        })
        .await;
        mesh.route_to(&[meshed_endpoint("foreign-1", foreign_app.address, "ratings")]);
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes([UPGRADE, "ping"].concat()).await;
        assert_eq!(client.read_head().await.unwrap().status, 101);
        assert_eq!(client.read_exactly(4).await, b"ping");
        client.read_rest().await;
    });
}

#[test]
fn only_requests_for_an_upgrade_without_a_body_are_upgraded() {
    run(async {
        let app = Application::respond_with(|request| match request.field_value("upgrade") {
            Some(_) => "HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n".to_owned(),
            None => SWITCHING.to_owned(),
        })
        .await;
        let mesh = Mesh::permissive(app.address).await;
        let body = "POST / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                    content-length: 2\r\n\r\nhi";
        let http2 = "GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n";
        for request in [GET, body, http2] {
            let mut client = Client::connect(mesh.listener).await;
            let verdict = client.send_request(request).await;
            assert_eq!(verdict.verdict(), (502, Some("upstream-malformed")), "{request}");
        }
    });
}

#[test]
fn an_unlisted_protocol_is_not_requested() {
    run(async {
        // An application that accepts any upgrade.
        let app = Application::start(|mut client| async move {
            while let Some(request) = client.read_head().await {
                match request.field_value("upgrade") {
                    None => client.send_bytes(OK).await,
                    Some(protocol) => {
                        let head = SWITCHING.replace(": websocket", &format!(": {protocol}"));
                        client.send_bytes([&*head, "hello"].concat()).await;
                        client.read_rest().await;
                    }
                }
            }
        })
        .await;
        for (upgrades, protocol, status) in [
            ("websocket", "websocket", 101),
            ("websocket", "WebSocket", 101),
            ("websocket", "tcp", 200),
            ("websocket", "spdy/3.1", 200),
            ("websocket", "tls/1.0", 200),
            ("websocket", "websocket, tcp", 200),
            ("websocket", "tcp, websocket", 200),
            ("websocket", "websocket\r\nUpgrade: tcp", 200),
            ("tcp", "tcp", 101),
            ("tcp", "websocket", 101),
            ("tcp", "spdy/3.1", 200),
            ("any", "spdy/3.1", 101),
            ("any", "tcp, h2c", 200),
        ] {
            let upgrades = upgrades.parse().unwrap();
            let mesh = Mesh::new(app.address, Setup { upgrades, ..Setup::default() }).await;
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(UPGRADE.replace(": websocket", &format!(": {protocol}"))).await;
            assert_eq!(client.read_head().await.unwrap().status, status, "{protocol}");
            if status == 200 {
                // The connection continues in HTTP.
                assert_eq!(client.read_exactly(2).await, b"ok");
                assert_eq!(client.send_request(GET).await.body_text(), "ok", "{protocol}");
            }
        }
    });
}

#[test]
fn an_upgraded_connection_survives_the_start_of_a_drain() {
    run(async {
        let app = start_echo().await;
        let mesh = Mesh::new(app.address, Setup::default()).await;
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes(UPGRADE).await;
        assert_eq!(client.read_head().await.unwrap().status, 101);
        mesh.client.phase.send_replace(Phase::Draining);
        mesh.server.phase.send_replace(Phase::Draining);
        client.send_bytes("still").await;
        assert_eq!(client.read_exactly(10).await, b"hellostill");
    });
}
