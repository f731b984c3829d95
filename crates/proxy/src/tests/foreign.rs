//! Peers with mutual TLS but without the link: HTTP/1.1 by ALPN, in both roles.

use std::cell::Cell;
use std::rc::Rc;

use super::fixture::{
    Application, Client, End, GET, Mesh, OK, meshed_endpoint, run, test_credential, tls_accept,
    tls_connect, wait_until,
};
use crate::tls::ALPN_HTTP1;

#[test]
fn a_server_without_links_receives_http11() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let identity = Rc::new(test_credential(&mesh.authority, "ratings"));
        let open_connections = Rc::new(Cell::new(0));
        let connection_count = open_connections.clone();
        let foreign_app = Application::start(move |client| {
            let (identity, connection_count) = (identity.clone(), connection_count.clone());
            async move {
                let tls = tls_accept(client.stream, &identity, &[ALPN_HTTP1]).await.unwrap();
                connection_count.set(connection_count.get() + 1);
                let mut client = Client::new(tls);
                while let Some(mut request) = client.read_head().await {
                    client.read_body(&mut request).await.unwrap();
                    let length = request.body.len();
                    client
                        .send_bytes(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n"))
                        .await;
                    client.send_bytes(&request.body).await;
                }
                connection_count.set(connection_count.get() - 1);
            }
        })
        .await;
        mesh.route_to(&[meshed_endpoint("foreign-1", foreign_app.address, "ratings")]);
        let mut client = Client::connect(mesh.listener).await;
        for body in ["", "some bytes", ""] {
            let response = client
                .send_request(&format!(
                    "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                ))
                .await;
            assert_eq!(response.body_text(), body);
        }
        assert_eq!(foreign_app.accepted.get(), 1, "its connection is kept");
        // Each request in progress has its own connection.
        let mut other_clients = Vec::new();
        for _ in 0..10 {
            let mut other_client = Client::connect(mesh.listener).await;
            other_client
                .send_bytes("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nab")
                .await;
            other_clients.push(other_client);
        }
        wait_until(|| open_connections.get() == 10).await;
        for other_client in &mut other_clients {
            other_client.send_bytes("c").await;
            assert_eq!(other_client.read_response().await.body_text(), "abc");
        }
        assert_eq!(app.accepted.get(), 0);
    });
}

#[test]
fn a_client_without_links_receives_http11() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let identity = test_credential(&mesh.authority, "foreign");
        for alpn in [&[ALPN_HTTP1][..], &[]] {
            let tls = tls_connect(mesh.inbound, &identity, alpn).await.unwrap();
            let mut client = Client::new(tls);
            client.send_bytes([GET, GET].concat()).await;
            for _ in 0..2 {
                assert_eq!(client.read_response().await.body_text(), "ok");
            }
            let connect = "CONNECT ratings:9080 HTTP/1.1\r\nhost: a\r\n\r\n";
            assert_eq!(client.send_request(connect).await.verdict(), (501, Some("unsupported")));
            let close = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            assert_eq!(client.send_request(close).await.body_text(), "ok");
            assert_eq!(client.read_end().await, End::Clean);
        }
        let series = mesh.server.series_summaries();
        assert!(series.iter().any(|series| series.labels.peer == "bookinfo/foreign"));
    });
}
