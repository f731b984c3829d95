//! Draining: requests in progress finish, idle connections close, and every wait is bounded.

use std::time::{Duration, Instant};

use leno_telemetry::Gauge;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::fixture::frames::{self, DATA, OPENING, PING};
use super::fixture::{
    Application, Client, End, GET, Mesh, OK, PORT, Setup, Sidecar, run, test_service, wait_until,
    wait_until_stable,
};
use crate::drain::Phase;
use crate::listen::{self, ListenerCommand};
use crate::redirect::ConnectionClassifier;
use crate::session::ListenerKind;

/// Starts an application that responds once it is released.
async fn start_releasable() -> (Application, watch::Sender<bool>) {
    let (release, released) = watch::channel(false);
    let app = Application::start(move |mut client| {
        let mut released = released.clone();
        async move {
            while let Some(mut request) = client.read_head().await {
                client.read_body(&mut request).await.unwrap();
                if !request.head.contains("/quick") {
                    released.wait_for(|is_released| *is_released).await.unwrap();
                }
                client.send_bytes(OK).await;
            }
        }
    });
    (app.await, release)
}

/// Returns options with timeouts that a slow machine does not reach.
fn with_long_timeouts() -> Setup {
    let mut setup = Setup::default();
    (setup.limits.drain_timeout, setup.limits.last_request_timeout) = (MAX_WAIT, MAX_WAIT / 2);
    setup
}

const MAX_WAIT: Duration = Duration::from_secs(240);
const QUICK: &str = "GET /quick HTTP/1.1\r\nhost: x\r\n\r\n";

/// Runs a data thread with one listener; it ends when it has drained.
async fn data_thread(
    sidecar: &Sidecar,
    listener_kind: ListenerKind,
) -> (std::net::SocketAddr, JoinHandle<()>, mpsc::Sender<ListenerCommand>) {
    let (commands, inbox) = mpsc::channel(1);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let thread = tokio::task::spawn_local(listen::run_data_thread(sidecar.worker.clone(), inbox));
    let classifier = ConnectionClassifier::Fixed(listener_kind);
    commands.send(ListenerCommand::Open { classifier, listener }).await.unwrap();
    (address, thread, commands)
}

#[test]
fn the_sidecar_of_the_client_finishes_requests_and_closes_idle_connections() {
    run(async {
        let (app, release) = start_releasable().await;
        let mesh = Mesh::permissive(app.address).await;
        let listener_kind = ListenerKind::Outbound { service: test_service(), port: PORT };
        let (listener, thread, _commands) = data_thread(&mesh.client, listener_kind).await;
        let (mut idle_client, mut busy) =
            (Client::connect(listener).await, Client::connect(listener).await);
        assert_eq!(idle_client.send_request(QUICK).await.field_value("connection"), None);
        busy.send_bytes(GET).await;
        wait_until(|| mesh.server.telemetry.gauge(Gauge::RequestsInFlight) == 1).await;
        mesh.client.phase.send_replace(Phase::Draining);
        assert_eq!(idle_client.read_end().await, End::Clean);
        assert!(!thread.is_finished());
        release.send_replace(true);
        let response = busy.read_response().await;
        assert_eq!(
            (response.body_text(), response.field_value("connection")),
            ("ok", Some("close"))
        );
        assert_eq!(busy.read_end().await, End::Clean);
        drop(busy);
        thread.await.unwrap();
        assert!(mesh.client.failure_counts().is_empty() && mesh.server.failure_counts().is_empty());
        wait_until(|| mesh.server.telemetry.gauge(Gauge::LinksDownstream) == 0).await;
    });
}

/// The kernel resets connections that are in the queue of a socket when it is closed.
#[test]
fn connections_in_the_queue_of_the_listener_are_served_when_the_drain_begins() {
    run(async {
        let (app, _go) = start_releasable().await;
        let mesh = Mesh::new(app.address, with_long_timeouts()).await;
        let listener_kind = ListenerKind::Outbound { service: test_service(), port: PORT };
        let (listener, thread, _commands) = data_thread(&mesh.client, listener_kind).await;
        // The accept loop runs, and accepts none of the next connections before the drain begins.
        assert_eq!(
            Client::connect(listener).await.send_request(QUICK).await.verdict(),
            (200, None)
        );
        let mut queued: Vec<_> =
            (0..20).map(|_| std::net::TcpStream::connect(listener).unwrap()).collect();
        for client in &mut queued[..10] {
            std::io::Write::write_all(client, QUICK.as_bytes()).unwrap();
        }
        mesh.client.phase.send_replace(Phase::Draining);
        // The accept loop accepts them now; the requests of the second half come later.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        for client in &mut queued[10..] {
            std::io::Write::write_all(client, QUICK.as_bytes()).unwrap();
        }
        for client in queued {
            client.set_nonblocking(true).unwrap();
            let mut client = Client::new(tokio::net::TcpStream::from_std(client).unwrap());
            let response = client.read_response().await;
            assert_eq!(
                (response.verdict(), response.field_value("connection")),
                ((200, None), Some("close"))
            );
        }
        thread.await.unwrap();
        assert!(mesh.client.failure_counts().is_empty());
    });
}

#[test]
fn a_request_that_crosses_the_drain_on_an_idle_connection_gets_a_response() {
    run(async {
        for rest_after in [Duration::from_secs(3600), Duration::ZERO] {
            let (app, _go) = start_releasable().await;
            let mut setup = with_long_timeouts();
            setup.limits.rest_after = rest_after;
            let mesh = Mesh::new(app.address, setup).await;
            let listener_kind = ListenerKind::Outbound { service: test_service(), port: PORT };
            let (listener, thread, _commands) = data_thread(&mesh.client, listener_kind).await;
            let mut idle_client = Client::connect(listener).await;
            assert_eq!(idle_client.send_request(QUICK).await.field_value("connection"), None);
            mesh.client.phase.send_replace(Phase::Draining);
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            let response = idle_client.send_request(QUICK).await;
            assert_eq!(
                (response.verdict(), response.field_value("connection")),
                ((200, None), Some("close"))
            );
            thread.await.unwrap();
            assert!(mesh.client.failure_counts().is_empty());
        }
    });
}

#[test]
fn a_leaving_proxy_serves_requests_with_connection_close() {
    run(async {
        let (app, _go) = start_releasable().await;
        let mesh = Mesh::permissive(app.address).await;
        let listener_kind = ListenerKind::Outbound { service: test_service(), port: PORT };
        let (listener, _thread, _commands) = data_thread(&mesh.client, listener_kind).await;
        let mut idle_client = Client::connect(listener).await;
        assert_eq!(idle_client.send_request(QUICK).await.field_value("connection"), None);
        mesh.client.phase.send_replace(Phase::Leaving);
        let response = idle_client.send_request(QUICK).await;
        assert_eq!(
            (response.verdict(), response.field_value("connection")),
            ((200, None), Some("close"))
        );
        assert_eq!(idle_client.read_end().await, End::Clean);
        let mut next_client = Client::connect(listener).await;
        assert_eq!(next_client.send_request(QUICK).await.verdict(), (200, None));
    });
}

/// The kernel drops unsent bytes when a segment arrives for a connection that its process has closed.
#[test]
fn an_http2_client_reads_its_last_response_completely_after_the_drain() {
    run(async {
        let body = "x".repeat(60_000);
        let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let app = Application::start(move |mut client| {
            let response = response.clone();
            async move {
                while client.read_head().await.is_some() {
                    client.send_bytes(&response).await;
                }
            }
        });
        let mesh = Mesh::new(app.await.address, with_long_timeouts()).await;
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        // Most of the response waits in the kernel of the sidecar.
        socket.set_recv_buffer_size(4096).unwrap();
        let mut client = Client::new(socket.connect(mesh.listener).await.unwrap());
        client.send_bytes([OPENING, &frames::get(1)].concat()).await;
        let gauge = |gauge| mesh.client.telemetry.gauge(gauge);
        wait_until(|| gauge(Gauge::RequestsInFlight) == 1).await;
        wait_until(|| gauge(Gauge::RequestsInFlight) == 0).await;
        mesh.client.phase.send_replace(Phase::Draining);
        // The acknowledgment of the codec's PING, after which the codec sends the last stream ID.
        client.send_bytes(frames::encode_frame(PING, ACK, 0, &h2_shutdown_ping())).await;
        wait_until_stable(|| gauge(Gauge::ConnectionsDownstream) as usize).await;
        client.send_bytes(frames::encode_frame(PING, 0, 0, &[1; 8])).await;
        let mut received = 0;
        while received < body.len() {
            let data = client.read_frame_of_kind(DATA).await.expect("the complete response");
            received += data.payload.len();
        }
    });
}

/// The payload of the PING that the codec sends with its first GOAWAY.
fn h2_shutdown_ping() -> [u8; 8] {
    [0x0b, 0x7b, 0xa2, 0xf0, 0x8b, 0x9b, 0xfe, 0x54]
}

const ACK: u8 = 1;

#[test]
fn the_sidecar_of_the_server_sends_goaway_and_serves_open_streams() {
    run(async {
        let (app, release) = start_releasable().await;
        let mesh = Mesh::permissive(app.address).await;
        let listener_kind = ListenerKind::Inbound { port: app.address.port() };
        let (inbound, thread, _commands) = data_thread(&mesh.server, listener_kind).await;
        mesh.route_to(&[super::fixture::meshed_endpoint("ratings-1", inbound, "ratings")]);
        let mut clients = Vec::new();
        for _ in 0..20 {
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc").await;
            clients.push(client);
        }
        wait_until(|| app.accepted.get() == 20).await;
        mesh.server.phase.send_replace(Phase::Draining);
        // The other server takes new requests from now on; none is rejected in between.
        let second_app = Application::with_response(OK).await;
        let (_server, endpoint) = mesh.start_server("ratings-2", second_app.address).await;
        mesh.route_to(&[
            super::fixture::meshed_endpoint("ratings-1", inbound, "ratings"),
            endpoint,
        ]);
        for _ in 0..20 {
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(QUICK).await;
            clients.push(client);
        }
        for client in &mut clients[20..] {
            assert_eq!(client.read_response().await.verdict(), (200, None));
        }
        release.send_replace(true);
        for client in &mut clients[..20] {
            assert_eq!(client.read_response().await.verdict(), (200, None));
        }
        thread.await.unwrap();
        assert!(mesh.server.failure_counts().is_empty());
        assert_eq!(mesh.server.telemetry.gauge(Gauge::LinksDownstream), 0);
    });
}

#[test]
fn a_drain_of_the_client_does_not_end_streams_that_the_server_serves() {
    run(async {
        let (app, release) = start_releasable().await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes(GET).await;
        wait_until(|| app.accepted.get() == 1).await;
        // The opener's GOAWAY has stream ID 0, but its own streams continue.
        mesh.client.worker.retire_upstreams();
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        release.send_replace(true);
        assert_eq!(client.read_response().await.verdict(), (200, None));
        wait_until(|| mesh.server.telemetry.gauge(Gauge::LinksDownstream) == 0).await;
        assert!(mesh.server.failure_counts().is_empty());
    });
}

#[test]
fn a_drain_ends_after_its_timeout() {
    run(async {
        let (app, _go) = start_releasable().await;
        let mut setup = Setup::default();
        setup.limits.drain_timeout = Duration::from_millis(100);
        let mesh = Mesh::new(app.address, setup).await;
        let listener_kind = ListenerKind::Outbound { service: test_service(), port: PORT };
        let (listener, thread, _commands) = data_thread(&mesh.client, listener_kind).await;
        let mut stuck_client = Client::connect(listener).await;
        stuck_client.send_bytes(GET).await;
        wait_until(|| app.accepted.get() == 1).await;
        let start_time = Instant::now();
        mesh.client.phase.send_replace(Phase::Draining);
        thread.await.unwrap();
        assert!(start_time.elapsed() >= Duration::from_millis(100));
        stuck_client.read_rest().await;
        assert_eq!(mesh.client.failure_counts(), [("downstream-closed", 1)].into());
    });
}
