//! Opaque TCP through two sidecars.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use leno_discovery::condition::kind;
use leno_model::Protocol;
use leno_telemetry::ExpositionFormat;
use leno_wire::link::{LinkEvent, ResetCode, StreamKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixture::{
    Application, Client, End, Mesh, OK, Peer, Setup, closed_port, meshed_endpoint, run,
    test_authority, test_credential, tls_accept, tls_connect, wait_until,
};
use crate::tls::ALPN_HTTP1;
use crate::worker::Worker;

async fn tcp_mesh(application: std::net::SocketAddr, protocol: Protocol) -> Mesh {
    let mut setup = Setup { protocol, ..Setup::default() };
    setup.limits.detect_timeout = Duration::from_millis(50);
    Mesh::new(application, setup).await
}

#[test]
fn bytes_are_forwarded_unchanged_in_both_directions() {
    run(async {
        for protocol in [Protocol::Tcp, Protocol::Detect] {
            let app = Application::start(|mut client| async move {
                let mut piece = [0; 4096];
                while let Ok(read @ 1..) = client.stream.read(&mut piece).await {
                    client.send_bytes(&piece[..read]).await;
                }
            });
            let mesh = tcp_mesh(app.await.address, protocol).await;
            let mut client = Client::connect(mesh.listener).await;
            for index in 0..20_u8 {
                let bytes: Vec<u8> = (0..10_000).map(|at| index.wrapping_mul(at as u8)).collect();
                client.send_bytes(&bytes).await;
                assert_eq!(client.read_exactly(bytes.len()).await, bytes, "{protocol:?}");
            }
            client.stream.shutdown().await.unwrap();
            assert_eq!(client.read_end().await, End::Clean);
            wait_until(|| mesh.server.ended_count() == 1 && mesh.client.ended_count() == 1).await;
            let [series] = &mesh.client.series_summaries()[..] else { panic!("one series") };
            assert_eq!((series.labels.protocol, series.success), ("tcp", 1));
            assert_eq!((series.bytes_in, series.bytes_out), (200_000, 200_000));
        }
    });
}

/// Returns the number of opened connections over all series.
fn opened_count(worker: &Worker) -> u64 {
    let mut text = String::new();
    worker.metrics.telemetry().expose(ExpositionFormat::Prometheus, &mut text);
    let lines = text.lines().filter(|line| line.starts_with("leno_tcp_connections_opened_total{"));
    lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

#[test]
fn a_connection_counts_as_opened_while_it_is_open_and_when_it_fails() {
    run(async {
        for protocol in [Protocol::Tcp, Protocol::Detect] {
            let app = Application::start(|mut client| async move {
                client.send_bytes("220 ready\r\n").await;
                client.read_end().await;
            });
            let mesh = tcp_mesh(app.await.address, protocol).await;
            let mut client = Client::connect(mesh.listener).await;
            assert_eq!(client.read_exactly(11).await, b"220 ready\r\n", "{protocol:?}");
            assert_eq!((mesh.client.ended_count(), mesh.server.ended_count()), (0, 0));
            assert_eq!(
                (opened_count(&mesh.client.worker), opened_count(&mesh.server.worker)),
                (1, 1)
            );
            drop(client);
            wait_until(|| mesh.server.ended_count() == 1 && mesh.client.ended_count() == 1).await;
            assert_eq!(
                (opened_count(&mesh.client.worker), opened_count(&mesh.server.worker)),
                (1, 1)
            );
        }
        let mesh = tcp_mesh(closed_port(), Protocol::Tcp).await;
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.read_end().await, End::Reset);
        wait_until(|| mesh.client.ended_count() == 1 && mesh.server.ended_count() > 0).await;
        assert_eq!(opened_count(&mesh.client.worker), 1);
        // Each attempt of the client's sidecar counts as one connection.
        assert_eq!(opened_count(&mesh.server.worker), mesh.server.ended_count());
    });
}

#[test]
fn a_server_may_send_first() {
    run(async {
        for protocol in [Protocol::Tcp, Protocol::Detect] {
            let app = Application::start(|mut client| async move {
                client.send_bytes("220 ready\r\n").await;
                let bytes = client.read_exactly(4).await;
                client.send_bytes(bytes).await;
            });
            let mesh = tcp_mesh(app.await.address, protocol).await;
            let mut client = Client::connect(mesh.listener).await;
            assert_eq!(client.read_exactly(11).await, b"220 ready\r\n", "{protocol:?}");
            client.send_bytes("HELO").await;
            assert_eq!(client.read_exactly(4).await, b"HELO");
            // The server has half-closed; our direction is still open.
            assert_eq!(client.read_end().await, End::Clean);
            let delayed = detection_delays(&mesh);
            match protocol {
                Protocol::Detect => {
                    let [only] = &delayed[..] else { panic!("{delayed:?}") };
                    assert_eq!(only.0, "bookinfo/ratings:9080");
                    assert!(only.1.ends_with("each connection waits for 50ms"), "{}", only.1);
                }
                _ => assert_eq!(delayed, []),
            }
        }
    });
}

/// Returns the service ports at which detection delays connections, as the client's sidecar reports them.
fn detection_delays(mesh: &Mesh) -> Vec<(String, String)> {
    let conditions =
        mesh.client.worker.config_store.conditions.active_conditions(std::time::Instant::now());
    let conditions =
        conditions.into_iter().filter(|condition| condition.kind == kind::DETECTION_DELAYED);
    conditions.map(|condition| (condition.subject, condition.reason)).collect()
}

#[test]
fn a_silent_client_that_sends_first_is_no_detection_delay() {
    run(async {
        let connected = Rc::new(Cell::new(false));
        let is_connected = connected.clone();
        let app = Application::start(move |mut client| {
            is_connected.set(true);
            async move {
                let bytes = client.read_exactly(4).await;
                client.send_bytes(bytes).await;
            }
        });
        let mesh = tcp_mesh(app.await.address, Protocol::Detect).await;
        let mut client = Client::connect(mesh.listener).await;
        // The application gets a connection once the detection is over.
        wait_until(|| connected.get()).await;
        client.send_bytes("HELO").await;
        assert_eq!(client.read_exactly(4).await, b"HELO");
        assert_eq!(client.read_end().await, End::Clean);
        assert_eq!(detection_delays(&mesh), []);
    });
}

/// TLS between applications is forwarded for every declared protocol of the port.
#[test]
fn tls_of_the_application_is_forwarded_unchanged() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let other_authority = test_authority(directory.path(), "their.own");
        let protocols =
            [Protocol::Http, Protocol::Http2, Protocol::Grpc, Protocol::Tcp, Protocol::Detect];
        for protocol in protocols {
            let server_credential = Rc::new(test_credential(&other_authority, "ratings"));
            let app = Application::start(move |client| {
                let server_credential = server_credential.clone();
                async move {
                    let mut tls =
                        tls_accept(client.stream, &server_credential, &[b"h2"]).await.unwrap();
                    tls.write_all(b"sealed").await.unwrap();
                    tls.shutdown().await.unwrap();
                }
            });
            let mesh = tcp_mesh(app.await.address, protocol).await;
            let caller = test_credential(&other_authority, "productpage");
            let mut tls = tls_connect(mesh.listener, &caller, &[b"h2"]).await.unwrap();
            let mut received = Vec::new();
            tls.read_to_end(&mut received).await.unwrap();
            assert_eq!(received, b"sealed", "{protocol:?}");
            drop(tls);
            wait_until(|| mesh.client.ended_count() == 1).await;
            assert_eq!(mesh.client.series_summaries()[0].labels.protocol, "tcp", "{protocol:?}");
        }
    });
}

#[test]
fn each_direction_ends_separately() {
    run(async {
        // The client half-closes first and still gets the response.
        let app = Application::start(|mut client| async move {
            let (request, end) = client.read_rest().await;
            assert_eq!(end, End::Clean);
            client.send_bytes(format!("{} bytes", request.len())).await;
        });
        let first_mesh = tcp_mesh(app.await.address, Protocol::Tcp).await;
        let mut client = Client::connect(first_mesh.listener).await;
        client.send_bytes(vec![0; 300_000]).await;
        client.stream.shutdown().await.unwrap();
        assert_eq!(client.read_rest().await, (b"300000 bytes".to_vec(), End::Clean));

        // The application half-closes first and still reads.
        let (report_sender, reported) = tokio::sync::watch::channel(0);
        let app = Application::start(move |mut client| {
            let report_sender = report_sender.clone();
            async move {
                client.stream.shutdown().await.unwrap();
                let (request, end) = client.read_rest().await;
                assert_eq!(end, End::Clean);
                report_sender.send_replace(request.len());
            }
        });
        let second_mesh = tcp_mesh(app.await.address, Protocol::Tcp).await;
        let mut client = Client::connect(second_mesh.listener).await;
        assert_eq!(client.read_end().await, End::Clean);
        client.send_bytes(vec![0; 300_000]).await;
        client.stream.shutdown().await.unwrap();
        wait_until(|| *reported.borrow() == 300_000).await;
        wait_until(|| second_mesh.client.ended_count() == 1).await;
        assert!(
            second_mesh.client.failure_counts().is_empty()
                && second_mesh.server.failure_counts().is_empty()
        );
    });
}

#[test]
fn an_application_that_accepts_no_connection_leads_to_a_reset() {
    run(async {
        let mesh = tcp_mesh(closed_port(), Protocol::Tcp).await;
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.read_end().await, End::Reset);
        wait_until(|| mesh.client.ended_count() == 1).await;
        assert_eq!(mesh.client.failure_counts(), [("connect-failed", 1)].into());
        assert_eq!(
            mesh.server.failure_counts().into_keys().collect::<Vec<_>>(),
            ["connect-failed"]
        );
    });
}

#[test]
fn a_reset_is_forwarded_as_a_reset() {
    run(async {
        let app = Application::start(|mut client| async move {
            client.read_exactly(1).await;
            client.stream.set_zero_linger().unwrap();
        });
        let first_mesh = tcp_mesh(app.await.address, Protocol::Tcp).await;
        let mut client = Client::connect(first_mesh.listener).await;
        client.send_bytes("x").await;
        assert_eq!(client.read_end().await, End::Reset);
        wait_until(|| first_mesh.client.ended_count() == 1).await;
        assert_eq!(first_mesh.server.failure_counts(), [("upstream-reset", 1)].into());

        let (report_sender, reported) = tokio::sync::watch::channel(None);
        let (start, started) = tokio::sync::watch::channel(false);
        let app = Application::start(move |mut client| {
            let (report_sender, start) = (report_sender.clone(), start.clone());
            async move {
                // The peer reads no more than this, but still receives the reset.
                client.read_exactly(1).await;
                start.send_replace(true);
                report_sender.send_replace(Some(client.read_rest().await.1));
            }
        });
        let second_mesh = tcp_mesh(app.await.address, Protocol::Tcp).await;
        let mut client = Client::connect(second_mesh.listener).await;
        client.send_bytes("x").await;
        wait_until(|| *started.borrow()).await;
        client.stream.set_zero_linger().unwrap();
        drop(client);
        wait_until(|| reported.borrow().is_some()).await;
        assert_eq!(*reported.borrow(), Some(End::Reset));
        wait_until(|| second_mesh.server.ended_count() == 1).await;
        assert_eq!(second_mesh.client.failure_counts(), [("downstream-closed", 1)].into());
        assert_eq!(second_mesh.server.failure_counts(), [("downstream-closed", 1)].into());
    });
}

/// Bytes for an application that does not read are held back, and dropped when their sender disconnects.
#[test]
fn a_stalled_application_does_not_hold_a_disconnected_client() {
    run(async {
        let (release, released) = tokio::sync::watch::channel(());
        let app = Application::start(move |client| {
            let mut released = released.clone();
            async move {
                drop(released.changed().await);
                drop(client);
            }
        });
        let mesh = tcp_mesh(app.await.address, Protocol::Tcp).await;
        let identity = test_credential(&mesh.authority, "productpage");
        let mut peer = Peer::connect_link(mesh.inbound, &identity).await;
        let stream = peer.open_stream(StreamKind::Tcp, "", false);
        let full_buffer = vec![0; 64 * 1024];
        // The application has accepted the connection.
        assert!(matches!(peer.next().await, Some(LinkEvent::Head { .. })));
        loop {
            peer.link.send_data(stream, &full_buffer, false).unwrap();
            // No credit for many turns of the event loop: all buffers on the path are full.
            tokio::select! {
                event = peer.next() => assert_eq!(event, Some(LinkEvent::Credit { stream })),
                () = async { for _ in 0..3000 { tokio::task::yield_now().await; } } => break,
            }
        }
        peer.link.reset_stream(stream, ResetCode::Cancelled);
        peer.flush().await;
        wait_until(|| mesh.server.ended_count() == 1).await;
        assert_eq!(mesh.server.failure_counts(), [("downstream-closed", 1)].into());
        drop(release);
    });
}

#[test]
fn connections_to_servers_without_links_need_http() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = tcp_mesh(app.address, Protocol::Tcp).await;
        let identity = Rc::new(test_credential(&mesh.authority, "ratings"));
        let foreign_app = Application::start(move |client| {
            let identity = identity.clone();
            async move {
                let alpn = &[ALPN_HTTP1];
                let tls = tls_accept(client.stream, &identity, alpn).await;
                Client::new(tls.unwrap()).read_rest().await;
            }
        })
        .await;
        mesh.route_to(&[meshed_endpoint("foreign-1", foreign_app.address, "ratings")]);
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.read_end().await, End::Reset);
        wait_until(|| mesh.client.ended_count() == 1).await;
        assert_eq!(mesh.client.failure_counts(), [("unsupported", 1)].into());
    });
}
