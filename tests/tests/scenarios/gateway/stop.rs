//! Gateway shutdown under load: each request on an established connection gets its response.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use leno_model::GatewayPortRules;
use leno_tests::{TestConnection, eventually, free_port};
use rustix::process::Signal;

use super::edge::TestGateway;
use super::{MAX_WAIT, http_listeners, send_request};

/// Requests of clients with persistent connections, and of clients with one connection per request.
#[derive(Default)]
struct GatewayLoad {
    is_stopping: AtomicBool,
    response_count: AtomicUsize,
    close_count: AtomicUsize,
    lost_count: AtomicUsize,
}

impl GatewayLoad {
    /// Sends requests until the gateway accepts no more connections. A connection that was not established is
    /// not a lost request.
    fn send_requests(&self, address: SocketAddr, keep_alive: bool) {
        let mut idle_connection: Option<TestConnection> = None;
        while !self.is_stopping.load(Ordering::SeqCst) {
            let Some(mut connection) =
                idle_connection.take().or_else(|| TestConnection::open(address).ok())
            else {
                return;
            };
            let Some(closes_connection) = exchange_once(&mut connection, keep_alive) else {
                self.lost_count.fetch_add(1, Ordering::SeqCst);
                return;
            };
            self.response_count.fetch_add(1, Ordering::SeqCst);
            match closes_connection {
                true => drop(self.close_count.fetch_add(1, Ordering::SeqCst)),
                false => idle_connection = Some(connection).filter(|_| keep_alive),
            }
        }
    }
}

/// Sends one request; `None` if it is lost, otherwise true if the response ends the connection.
fn exchange_once(connection: &mut TestConnection, keep_alive: bool) -> Option<bool> {
    let connection_field = if keep_alive { "" } else { "connection: close\r\n" };
    let request =
        format!("GET /plain HTTP/1.1\r\nhost: shop.example.com\r\n{connection_field}\r\n");
    connection.send(request).ok()?;
    let response = connection.receive_response().ok().filter(|response| response.status == 200)?;
    Some(keep_alive && response.first_header("connection") == Some("close"))
}

fn start_serving(arguments: &[&str]) -> (TestGateway, SocketAddr) {
    let gateway = TestGateway::start_with(arguments);
    let port = free_port();
    gateway.set_ports(vec![(port, GatewayPortRules::Http(http_listeners("*.example.com")))]);
    gateway.wait_until_ready();
    let address = gateway.address_of_port(port);
    eventually("the backend responds", MAX_WAIT, || {
        (send_request(address, "/plain", "").status == 200).then_some(())
    });
    (gateway, address)
}

/// The local counterpart of the cluster scenario
/// `a_gateway_and_what_is_behind_it_are_replaced_without_a_failed_request`.
#[test]
fn a_gateway_that_stops_under_load_loses_no_request() {
    for drain_delay in ["0s", "2s"] {
        let (mut gateway, address) =
            start_serving(&["--drain-delay", drain_delay, "--drain-timeout", "120s"]);
        let load = GatewayLoad::default();
        thread::scope(|scope| {
            for number in 0..8 {
                let load = &load;
                scope.spawn(move || load.send_requests(address, number % 2 == 0));
            }
            eventually("requests get responses", MAX_WAIT, || {
                (load.response_count.load(Ordering::SeqCst) > 200).then_some(())
            });
            gateway.gateway_program().send_signal(Signal::TERM);
            assert!(gateway.gateway_program().wait_for_exit(2 * MAX_WAIT).success());
            load.is_stopping.store(true, Ordering::SeqCst);
        });
        assert_eq!(load.lost_count.load(Ordering::SeqCst), 0, "drain delay {drain_delay}");
        assert!(load.close_count.load(Ordering::SeqCst) > 0, "drain delay {drain_delay}");
    }
}

/// Connections in the kernel's accept queue, and requests on idle connections, that arrive while the gateway is
/// paused.
#[test]
fn connections_queued_at_a_paused_gateway_are_served_before_it_exits() {
    let (mut gateway, address) = start_serving(&["--drain-timeout", "120s"]);
    let mut idle_connections: Vec<TestConnection> =
        (0..20).map(|_| TestConnection::open(address).unwrap()).collect();
    for connection in &mut idle_connections {
        assert_eq!(exchange_once(connection, true), Some(false));
    }
    gateway.gateway_program().send_signal(Signal::STOP);
    let request = "GET /plain HTTP/1.1\r\nhost: shop.example.com\r\n\r\n";
    let mut waiting_connections: Vec<TestConnection> =
        (0..50).map(|_| TestConnection::open(address).unwrap()).collect();
    waiting_connections.append(&mut idle_connections);
    for connection in &mut waiting_connections {
        connection.send(request).unwrap();
    }
    gateway.gateway_program().send_signal(Signal::TERM);
    gateway.gateway_program().send_signal(Signal::CONT);
    for (number, mut connection) in waiting_connections.into_iter().enumerate() {
        let response = connection.receive_response();
        assert_eq!(response.map(|response| response.status).ok(), Some(200), "{number}");
    }
    assert!(gateway.gateway_program().wait_for_exit(2 * MAX_WAIT).success());
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn a_draining_gateway_is_not_ready_and_closes_client_connections() {
    let (mut gateway, address) = start_serving(&["--drain-delay", "120s"]);
    let mut idle_connection = TestConnection::open(address).unwrap();
    assert_eq!(exchange_once(&mut idle_connection, true), Some(false));
    gateway.gateway_program().send_signal(Signal::TERM);
    let ((_, reason), _) = eventually("the gateway is not ready", MAX_WAIT, || {
        Some(gateway.get_readiness()).filter(|(status, _)| *status == 503)
    });
    assert!(reason.contains("is stopping"), "{reason}");
    assert_eq!(exchange_once(&mut idle_connection, true), Some(true));
    assert_eq!(exchange_once(&mut TestConnection::open(address).unwrap(), true), Some(true));
    // The second signal skips the drain delay.
    assert!(gateway.gateway_program().stop(2 * MAX_WAIT).success());
}
