//! Limits on the memory and time that clients can occupy.

use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::Request;
use leno_model::Protocol;
use leno_wire::link::StreamKind;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use super::fixture::{
    Application, Client, End, GET, Mesh, OK, Peer, Setup, run, test_credential, tls_connect,
    wait_until,
};
use super::http2;
use crate::listen::{self, ListenerCommand};
use crate::redirect::ConnectionClassifier;
use crate::session::ListenerKind;
use crate::tls::{ALPN_HTTP1, ALPN_HTTP2};

#[test]
fn a_head_over_the_limits_is_rejected_with_431() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let oversized_request =
            format!("GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "y".repeat(65_536));
        // The head exceeds the bytes that are read before the rejection; the response must still arrive.
        let larger_request =
            format!("GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "y".repeat(1 << 20));
        let fields: String = (0..1000).map(|index| format!("x-{index}: y\r\n")).collect();
        let request_with_many_fields = format!("GET / HTTP/1.1\r\nhost: x\r\n{fields}\r\n");
        for request in [&oversized_request, &larger_request, &request_with_many_fields] {
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(request).await;
            assert_eq!(client.read_response().await.verdict(), (431, Some("head-too-large")));
            assert_eq!(client.read_end().await, End::Clean);
        }
        let identity = test_credential(&mesh.authority, "foreign");
        for request in [&oversized_request, &request_with_many_fields] {
            let tls = tls_connect(mesh.inbound, &identity, &[ALPN_HTTP1]).await.unwrap();
            let mut client = Client::new(tls);
            client.send_bytes(request).await;
            assert_eq!(client.read_response().await.verdict(), (431, Some("head-too-large")));
        }
        assert_eq!(mesh.client.failure_counts(), [("head-too-large", 3)].into());
        assert_eq!(mesh.server.failure_counts(), [("head-too-large", 2)].into());
        assert_eq!(app.accepted.get(), 0);
    });
}

async fn http2_over(stream: impl AsyncRead + AsyncWrite + Unpin + 'static) -> SendRequest<Bytes> {
    let (send, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::task::spawn_local(async move { drop(connection.await) });
    send.ready().await.unwrap()
}

/// Returns the HTTP status, gRPC status and reason of a request with a field of this many bytes.
async fn send_field(
    client: &mut SendRequest<Bytes>,
    content_type: &str,
    bytes: usize,
) -> (u16, Option<String>, Option<String>) {
    let request = Request::post("http://ratings.bookinfo:9080/")
        .header("content-type", content_type)
        .header("te", "trailers")
        .header("x-long", "y".repeat(bytes))
        .body(());
    let (response, _) = client.send_request(request.unwrap(), true).unwrap();
    let response = response.await.expect("a response");
    let text = |name| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let reason = text("leno-reason").map(|value| value.split(';').next().unwrap().to_owned());
    (response.status().as_u16(), text("grpc-status"), reason)
}

#[test]
fn a_long_head_over_http2_gets_a_response_with_the_reason() {
    run(async {
        let app = http2::start_application(|_, mut respond| async move {
            drop(respond.send_response(http::Response::new(()), true));
        });
        let app = app.await;
        let mesh = http2::http2_mesh(app.address, Protocol::Http2).await;
        let identity = test_credential(&mesh.authority, "foreign");
        let tls = tls_connect(mesh.inbound, &identity, &[ALPN_HTTP2]).await.unwrap();
        let mut clients = [http2::connect_client(mesh.listener).await, http2_over(tls).await];
        let reason = || Some("head-too-large".to_owned());
        for client in &mut clients {
            for bytes in [66_000, 70_000, 100_000, 200_000] {
                let result = send_field(client, "text/plain", bytes).await;
                assert_eq!(result, (431, None, reason()), "{bytes}");
                let result = send_field(client, "application/grpc", bytes).await;
                assert_eq!(result, (200, Some("13".to_owned()), reason()), "{bytes}");
            }
            // The connection serves other requests.
            assert_eq!(send_field(client, "text/plain", 60_000).await, (200, None, None));
        }
        for sidecar in [&mesh.client, &mesh.server] {
            wait_until(|| sidecar.failure_counts() == [("head-too-large", 8)].into()).await;
        }

        // A head far beyond the limit ends the connection, and is counted.
        let request = Request::get("http://ratings.bookinfo:9080/");
        let request = request.header("x-long", "y".repeat(2_000_000)).body(()).unwrap();
        let (response, _) = clients[0].send_request(request, true).unwrap();
        assert!(response.await.is_err());
        wait_until(|| mesh.client.telemetry.rejected_connections() == [("bad-request", 1)].into())
            .await;
    });
}

#[test]
fn a_field_section_over_the_codec_limit_ends_only_its_stream() {
    run(async {
        let app = http2::start_application(|request, mut respond| async move {
            http2::read_body(request.into_body()).await;
            drop(respond.send_response(http::Response::new(()), true));
        });
        let app = app.await;
        let mesh = http2::http2_mesh(app.address, Protocol::Http2).await;
        let mut client = http2::connect_client(mesh.listener).await;
        let request = Request::post("http://ratings.bookinfo:9080/").body(()).unwrap();
        let (other_response, mut body) = client.send_request(request, false).unwrap();
        // The codec responds, so there is no reason and no count.
        assert_eq!(send_field(&mut client, "text/plain", 300_000).await, (431, None, None));
        body.send_data(Bytes::new(), true).unwrap();
        assert_eq!(
            other_response.await.unwrap().status(),
            200,
            "another stream of the connection continues"
        );
        assert!(mesh.client.failure_counts().is_empty());
    });
}

#[test]
fn a_head_just_below_the_limit_is_forwarded_by_both_sidecars() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        // The outbound listener writes a longer `Host`, and the server's sidecar has the same limit.
        let value = "y".repeat(65_400);
        let response =
            client.send_request(&format!("GET / HTTP/1.1\r\nhost: x\r\nx: {value}\r\n\r\n")).await;
        assert_eq!(response.status, 200);
        assert_eq!(app.received_requests()[0].field_value("x"), Some(&*value));
    });
}

#[test]
fn an_incomplete_head_gets_408_in_time() {
    run(async {
        let mut setup = Setup::default();
        setup.limits.head_timeout = Duration::from_millis(50);
        let app = Application::with_response(OK).await;
        let mesh = Mesh::new(app.address, setup).await;
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request(GET).await.status, 200);
        client.send_bytes("GET / HTTP/1.1\r\nho").await;
        assert_eq!(client.read_response().await.verdict(), (408, Some("head-timeout")));
        assert_eq!(client.read_end().await, End::Clean);
        assert_eq!(mesh.client.failure_counts(), [("head-timeout", 1)].into());
    });
}

#[test]
fn an_idle_connection_is_closed_cleanly_in_time() {
    run(async {
        let mut setup = Setup::default();
        setup.limits.idle_connection = Duration::from_millis(50);
        let app = Application::with_response(OK).await;
        let mesh = Mesh::new(app.address, setup).await;
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request(GET).await.status, 200);
        assert_eq!(client.read_end().await, End::Clean);
        assert!(mesh.client.failure_counts().is_empty());
    });
}

#[test]
fn ambiguous_requests_are_rejected_and_smuggle_nothing() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        for head in [
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked, identity\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: +3\r\n\r\n",
            "POST / HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
            "GET / HTTP/1.1\nhost: x\n\n",
            "GET  / HTTP/1.1\r\nhost: x\r\n\r\n",
        ] {
            let mut client = Client::connect(mesh.listener).await;
            client
                .send_bytes([head, "3\r\nGET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"].concat())
                .await;
            assert_eq!(
                client.read_response().await.verdict(),
                (400, Some("bad-request")),
                "{head}"
            );
            assert_eq!(client.read_end().await, End::Clean);
        }
        assert_eq!(app.accepted.get(), 0);
    });
}

#[test]
fn bytes_after_the_declared_length_are_the_next_request() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes("POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabcdef").await;
        assert_eq!(client.read_response().await.status, 200);
        client.send_bytes("\r\n\r\n").await;
        assert_eq!(client.read_response().await.status, 400, "`def` is no request");
        let [request] = &app.received_requests()[..] else { panic!("one request") };
        assert_eq!(request.body_text(), "abc");
    });
}

#[test]
fn a_malformed_chunked_body_is_rejected_and_not_forwarded() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        for body in ["x\r\n", "3\r\nabcd\r\n", "3;e\nxt\r\nabc\r\n", "0\r\nhost: y\r\n\r\n"] {
            let mut client = Client::connect(mesh.listener).await;
            client
                .send_bytes("POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
                .await;
            client.send_bytes(body).await;
            assert_eq!(
                client.read_response().await.verdict(),
                (400, Some("bad-request")),
                "{body}"
            );
            assert_eq!(client.read_end().await, End::Clean);
        }
        wait_until(|| mesh.server.ended_count() == 4).await;
        assert_eq!(mesh.server.failure_counts(), [("downstream-closed", 4)].into());
        assert!(app.received_requests().is_empty(), "{:?}", app.received_requests());
    });
}

#[test]
fn a_response_longer_than_declared_does_not_affect_others() {
    run(async {
        let app = Application::respond_with(|request| {
            let path = request.head.split(' ').nth(1).unwrap();
            format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{path}HTTP/1.1 200 EVIL\r\n\r\n")
        })
        .await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        for path in ["/a", "/b", "/c"] {
            let response =
                client.send_request(&format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")).await;
            assert_eq!((response.body_text(), &response.head[..15]), (path, "HTTP/1.1 200 OK"));
        }
        assert_eq!(app.accepted.get(), 3, "such a connection is not used again");
    });
}

#[test]
fn a_response_that_is_not_http_becomes_502() {
    run(async {
        for response in [
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nab",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nab",
            "SSH-2.0-OpenSSH_9.2\r\n\r\n",
            // The application waits for its client, and sends no more bytes.
            "SSH-2.0-OpenSSH_9.2\n",
            "HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\nabcde",
        ] {
            let app = Application::with_response(response).await;
            let mesh = Mesh::permissive(app.address).await;
            let mut client = Client::connect(mesh.listener).await;
            let reply = client.send_request(GET).await;
            assert_eq!(reply.verdict(), (502, Some("upstream-malformed")), "{response}");
        }
    });
}

#[test]
fn connections_beyond_the_limit_are_closed_at_once_and_counted() {
    run(async {
        let mut setup = Setup::default();
        setup.limits.max_connections = 2;
        let app = Application::with_response(OK).await;
        let mesh = Mesh::new(app.address, setup).await;
        let (commands, inbox) = mpsc::channel(1);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        tokio::task::spawn_local(listen::run_data_thread(mesh.client.worker.clone(), inbox));
        let service = super::fixture::test_service();
        let listener_kind = ListenerKind::Outbound { service, port: super::fixture::PORT };
        let classifier = ConnectionClassifier::Fixed(listener_kind);
        commands.send(ListenerCommand::Open { classifier, listener }).await.unwrap();
        let mut first = Client::connect(address).await;
        let mut second = Client::connect(address).await;
        assert_eq!(first.send_request(GET).await.status, 200);
        assert_eq!(second.send_request(GET).await.status, 200);
        let mut third_client = Client::connect(address).await;
        third_client.read_rest().await;
        assert_eq!(
            mesh.client.telemetry.rejected_connections(),
            [("too-many-connections", 1)].into()
        );
        drop(first);
        wait_until(|| mesh.client.worker.connections.snapshot(0).0 == 1).await;
        let mut fourth = Client::connect(address).await;
        assert_eq!(fourth.send_request(GET).await.status, 200);
        assert_eq!(second.send_request(GET).await.status, 200);
    });
}

#[test]
fn empty_lines_before_a_request_are_not_part_of_it() {
    run(async {
        let mut setup = Setup::default();
        setup.limits.head_timeout = Duration::from_millis(50);
        let app = Application::with_response(OK).await;
        let mesh = Mesh::new(app.address, setup).await;
        let mut client = Client::connect(mesh.listener).await;
        let mut send_interval = tokio::time::interval(Duration::from_millis(100));
        for blank in ["\r\n", "\r", "\n\r\n"] {
            send_interval.tick().await;
            client.send_bytes(blank).await;
        }
        send_interval.tick().await;
        assert_eq!(client.send_request(GET).await.status, 200);
        assert!(mesh.client.failure_counts().is_empty());
    });
}

#[test]
fn connections_to_the_application_are_limited_for_any_number_of_streams() {
    run(async {
        let mut setup = Setup::default();
        setup.limits.max_connections = 2;
        let (release, release_receiver) = tokio::sync::watch::channel(false);
        let app = Application::start(move |mut client| {
            let mut release_receiver = release_receiver.clone();
            async move {
                client.read_head().await;
                drop(release_receiver.wait_for(|released| *released).await);
                client.send_bytes(OK).await;
            }
        });
        let mesh = Mesh::new(app.await.address, setup).await;
        let identity = test_credential(&mesh.authority, "productpage");
        let mut peer = Peer::connect_link(mesh.inbound, &identity).await;
        let waiting_stream = peer.open_stream(StreamKind::Http, GET, true);
        peer.open_stream(StreamKind::Http, GET, true);
        let third_stream = peer.open_stream(StreamKind::Http, GET, true);
        let (response, ..) = peer.read_response(third_stream).await;
        assert!(response.contains("too-many-connections"), "{response}");
        release.send_replace(true);
        assert!(peer.read_response(waiting_stream).await.0.starts_with("HTTP/1.1 200"));
    });
}
