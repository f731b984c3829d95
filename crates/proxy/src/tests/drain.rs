//! Draining: what is under way finishes, what is idle ends, and nothing waits for ever.

use std::time::{Duration, Instant};

use leno_telemetry::Gauge;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::fixture::{
    Application, Client, End, GET, Mesh, OK, PORT, Setup, Sidecar, run, service, until,
};
use crate::drain::Phase;
use crate::listen::{self, Command};
use crate::redirect::Gate;
use crate::session::Entrance;

/// An application that answers when it is told to.
async fn patient() -> (Application, watch::Sender<bool>) {
    let (go, gone) = watch::channel(false);
    let app = Application::start(move |mut client| {
        let mut gone = gone.clone();
        async move {
            while let Some(mut request) = client.head().await {
                client.body(&mut request).await.unwrap();
                if !request.head.contains("/quick") {
                    gone.wait_for(|go| *go).await.unwrap();
                }
                client.send(OK).await;
            }
        }
    });
    (app.await, go)
}

const QUICK: &str = "GET /quick HTTP/1.1\r\nhost: x\r\n\r\n";

/// A data thread's loop with one listener; it ends when it has drained.
async fn data_thread(
    sidecar: &Sidecar,
    entrance: Entrance,
) -> (std::net::SocketAddr, JoinHandle<()>, mpsc::Sender<Command>) {
    let (commands, inbox) = mpsc::channel(1);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let thread = tokio::task::spawn_local(listen::run(sidecar.worker.clone(), inbox));
    let gate = Gate::Fixed(entrance);
    commands.send(Command::Open { gate, listener }).await.unwrap();
    (address, thread, commands)
}

#[test]
fn the_clients_sidecar_finishes_what_is_under_way_and_ends_what_is_idle() {
    run(async {
        let (app, go) = patient().await;
        let mesh = Mesh::permissive(app.address).await;
        let entrance = Entrance::Door { service: service(), port: PORT };
        let (door, thread, _commands) = data_thread(&mesh.client, entrance).await;
        let (mut idle, mut busy) = (Client::connect(door).await, Client::connect(door).await);
        assert_eq!(idle.ask(QUICK).await.field("connection"), None);
        busy.send(GET).await;
        until(|| mesh.server.telemetry.gauge(Gauge::RequestsInFlight) == 1).await;
        mesh.client.phase.send_replace(Phase::Draining);
        assert_eq!(idle.end().await, End::Clean);
        assert!(!thread.is_finished());
        go.send_replace(true);
        let answer = busy.answer().await;
        assert_eq!((answer.text(), answer.field("connection")), ("ok", Some("close")));
        assert_eq!(busy.end().await, End::Clean);
        drop(busy);
        thread.await.unwrap();
        assert!(mesh.client.failures().is_empty() && mesh.server.failures().is_empty());
        until(|| mesh.server.telemetry.gauge(Gauge::LinksDownstream) == 0).await;
    });
}

#[test]
fn the_servers_sidecar_says_goodbye_on_its_links_and_serves_what_they_carry() {
    run(async {
        let (app, go) = patient().await;
        let mesh = Mesh::permissive(app.address).await;
        let entrance = Entrance::Inbound { port: app.address.port() };
        let (inbound, thread, _commands) = data_thread(&mesh.server, entrance).await;
        mesh.route_to(&[super::fixture::endpoint("ratings-1", inbound, "ratings")]);
        let mut clients = Vec::new();
        for _ in 0..20 {
            let mut client = Client::connect(mesh.door).await;
            client.send("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc").await;
            clients.push(client);
        }
        until(|| app.accepted.get() == 20).await;
        mesh.server.phase.send_replace(Phase::Draining);
        // The other server takes what comes from now on; nobody is refused in between.
        let other = Application::canned(OK).await;
        let (_server, endpoint) = mesh.server("ratings-2", other.address).await;
        mesh.route_to(&[super::fixture::endpoint("ratings-1", inbound, "ratings"), endpoint]);
        for _ in 0..20 {
            let mut client = Client::connect(mesh.door).await;
            client.send(QUICK).await;
            clients.push(client);
        }
        for client in &mut clients[20..] {
            assert_eq!(client.answer().await.verdict(), (200, None));
        }
        go.send_replace(true);
        for client in &mut clients[..20] {
            assert_eq!(client.answer().await.verdict(), (200, None));
        }
        thread.await.unwrap();
        assert!(mesh.server.failures().is_empty());
        assert_eq!(mesh.server.telemetry.gauge(Gauge::LinksDownstream), 0);
    });
}

#[test]
fn draining_the_client_leaves_streams_alone_that_the_server_is_serving() {
    run(async {
        let (app, go) = patient().await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.door).await;
        client.send(GET).await;
        until(|| app.accepted.get() == 1).await;
        // GOAWAY of an opener names stream 0, which is not to say that its streams are over.
        mesh.client.worker.retire_upstreams();
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        go.send_replace(true);
        assert_eq!(client.answer().await.verdict(), (200, None));
        until(|| mesh.server.telemetry.gauge(Gauge::LinksDownstream) == 0).await;
        assert!(mesh.server.failures().is_empty());
    });
}

#[test]
fn draining_is_bounded() {
    run(async {
        let (app, _go) = patient().await;
        let mut setup = Setup::default();
        setup.limits.drain_timeout = Duration::from_millis(100);
        let mesh = Mesh::new(app.address, setup).await;
        let entrance = Entrance::Door { service: service(), port: PORT };
        let (door, thread, _commands) = data_thread(&mesh.client, entrance).await;
        let mut stuck = Client::connect(door).await;
        stuck.send(GET).await;
        until(|| app.accepted.get() == 1).await;
        let began = Instant::now();
        mesh.client.phase.send_replace(Phase::Draining);
        thread.await.unwrap();
        assert!(began.elapsed() >= Duration::from_millis(100));
        stuck.last().await;
        assert_eq!(mesh.client.failures(), [("downstream-closed", 1)].into());
    });
}
