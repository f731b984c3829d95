//! Stalled bodies: timeouts, and the cases without one.

use std::net::SocketAddr;
use std::time::Duration;

use leno_model::Protocol;
use tokio::io::AsyncReadExt;

use super::fixture::{Application, Client, End, Mesh, OK, Setup, run, wait_until};

async fn stall_mesh(application: SocketAddr) -> Mesh {
    Mesh::new(application, stall_setup(STALL)).await
}

/// Returns options with this body stall timeout.
fn stall_setup(time: Duration) -> Setup {
    let mut setup = Setup::default();
    setup.limits.body_stall_timeout = time;
    setup
}

#[test]
fn a_client_that_stops_in_its_body_gets_408() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = stall_mesh(app.address).await;
        for head in ["content-length: 10\r\n\r\n12345", "transfer-encoding: chunked\r\n\r\n5\r\n12"]
        {
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(format!("POST / HTTP/1.1\r\nhost: x\r\n{head}")).await;
            assert_eq!(
                client.read_response().await.verdict(),
                (408, Some("body-stalled")),
                "{head}"
            );
            assert_eq!(client.read_end().await, End::Clean);
        }
        assert_eq!(mesh.client.failure_counts(), [("body-stalled", 2)].into());
        assert!(app.received_requests().is_empty());
    });
}

#[test]
fn a_slow_client_that_makes_progress_is_served() {
    run(async {
        let app = Application::with_response(OK).await;
        // The whole transfer takes longer than the stall timeout, and a busy machine must not look like a
        // stalled client.
        let stall = STALL * 12;
        let mesh = Mesh::new(app.address, stall_setup(stall)).await;
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 6\r\n\r\n").await;
        let mut send_interval = tokio::time::interval(stall / 4);
        for byte in ["1", "2", "3", "4", "5", "6"] {
            send_interval.tick().await;
            client.send_bytes(byte).await;
        }
        assert_eq!(client.read_response().await.status, 200);
        assert_eq!(app.received_requests()[0].body, b"123456");
    });
}

#[test]
fn a_client_that_does_not_read_its_response_is_disconnected() {
    run(async {
        let app = Application::start(|mut client| async move {
            client.read_head().await;
            client.send_bytes("HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n").await;
            // The write ends when the sidecar closes the connection.
            while tokio::io::AsyncWriteExt::write_all(&mut client.stream, &[0; 65_536])
                .await
                .is_ok()
            {}
        });
        let mesh = stall_mesh(app.await.address).await;
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        wait_until(|| mesh.client.ended_count() == 1 && mesh.server.ended_count() == 1).await;
        assert_eq!(mesh.client.failure_counts(), [("body-stalled", 1)].into());
        let (read, end) = client.read_rest().await;
        assert_eq!(end, End::Reset);
        assert!(read.len() < 100_000_000, "the response is incomplete");
    });
}

#[test]
fn an_upstream_that_does_not_read_a_request_leads_to_504() {
    run(async {
        let app = Application::start(|client| async move {
            let _held = client;
            std::future::pending::<()>().await;
        });
        let app = app.await.address;
        // The client's sidecar has a long timeout: the server's, which is nearer, gives up first.
        let mesh = Mesh::permissive(app).await;
        let (server, endpoint) =
            mesh.start_server_with("ratings-2", app, &stall_setup(STALL)).await;
        mesh.route_to(&[endpoint]);
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100000000\r\n\r\n").await;
        let (mut reading, mut writing) = client.stream.split();
        let mut response = Vec::new();
        let upload = async {
            let piece = vec![0; 65_536];
            while tokio::io::AsyncWriteExt::write_all(&mut writing, &piece).await.is_ok() {}
        };
        tokio::select! {
            read = reading.read_to_end(&mut response) => drop(read),
            () = upload => {}
        }
        wait_until(|| mesh.client.ended_count() == 1 && server.ended_count() == 1).await;
        assert_eq!(server.failure_counts(), [("upstream-stalled", 1)].into());
        assert!(String::from_utf8_lossy(&response).starts_with("HTTP/1.1 504"), "{response:?}");
    });
}

#[test]
fn a_response_and_its_request_may_pause() {
    run(async {
        let stall = STALL * 8;
        let app = Application::start(move |mut client| async move {
            while client.read_head().await.is_some() {
                let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
                client.send_bytes(format!("{head}5\r\nfirst\r\n")).await;
                let mut send_interval = tokio::time::interval(stall * 3 / 2);
                send_interval.tick().await;
                send_interval.tick().await;
                client.send_bytes("4\r\nlast\r\n0\r\n\r\n").await;
            }
        });
        let mesh = Mesh::new(app.await.address, stall_setup(stall)).await;
        for request in [
            "GET / HTTP/1.1\r\nhost: x\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n12",
        ] {
            let mut client = Client::connect(mesh.listener).await;
            assert_eq!(client.send_request(request).await.body, b"firstlast", "{request}");
        }
    });
}

#[test]
fn an_idle_tcp_connection_is_closed() {
    run(async {
        let app = Application::start(|mut client| async move {
            client.send_bytes("hello").await;
            client.read_rest().await;
        });
        let mut setup = Setup { protocol: Protocol::Tcp, ..Setup::default() };
        setup.limits.idle_connection = STALL * 8;
        let mesh = Mesh::new(app.await.address, setup).await;
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.read_exactly(5).await, b"hello");
        assert_eq!(client.read_end().await, End::Reset);
        wait_until(|| mesh.client.ended_count() == 1 && mesh.server.ended_count() == 1).await;
        let reasons = mesh.client.failure_counts();
        assert!(
            reasons.contains_key("idle-timeout")
                || mesh.server.failure_counts().contains_key("idle-timeout")
        );
    });
}

/// The body stall timeout in these tests.
const STALL: Duration = Duration::from_millis(400);

#[test]
fn a_stalled_response_of_known_length_is_reset_but_a_stream_is_not() {
    run(async {
        let release = std::rc::Rc::new(tokio::sync::Notify::new());
        let released = release.clone();
        let app = Application::start(move |mut client| {
            let released = released.clone();
            async move {
                let Some(request) = client.read_head().await else { return };
                if request.head.contains("/stream") {
                    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n";
                    client.send_bytes(head).await;
                    released.notified().await;
                    client.send_bytes("1\r\nb\r\n0\r\n\r\n").await;
                } else {
                    client.send_bytes("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc").await;
                }
                client.read_rest().await;
            }
        })
        .await;
        let mesh = stall_mesh(app.address).await;
        let mut stream = Client::connect(mesh.listener).await;
        stream.send_bytes("GET /stream HTTP/1.1\r\nhost: x\r\n\r\n").await;
        let mut streamed = stream.read_head().await.unwrap();
        let mut file = Client::connect(mesh.listener).await;
        file.send_bytes("GET /file HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert_eq!(file.read_head().await.unwrap().status, 200);
        assert_eq!(file.read_rest().await, (b"abc".to_vec(), End::Reset));
        wait_until(|| mesh.server.ended_count() == 1).await;
        assert_eq!(mesh.server.failure_counts(), [("upstream-stalled", 1)].into());
        // The event stream has been silent for longer than the stall timeout.
        release.notify_one();
        stream.read_body(&mut streamed).await.expect("the complete stream");
        assert_eq!(streamed.body_text(), "ab");
    });
}
