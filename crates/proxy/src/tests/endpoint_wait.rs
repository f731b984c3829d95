//! Requests without an endpoint wait for a workload that changed, and requests to outdated endpoints are routed
//! again.

use http::Request;
use leno_model::{Endpoint, Protocol, ServiceConfig, WorkloadConfig};
use tokio::net::TcpListener;

use super::fixture::{
    Application, Client, End, GET, Mesh, OK, Setup, meshed_endpoint, run, service_config,
    wait_until, wait_until_stable,
};
use super::http2;
use crate::drain::Phase;

const POST: &str = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello";

/// Configures the client with these endpoints, and with a workload that expects a sidecar.
fn expect_sidecar(mesh: &Mesh, endpoints: &[Endpoint]) {
    let service = service_config(mesh.setup.protocol, endpoints);
    mesh.set_client_services(vec![ServiceConfig { waits_for_endpoint: true, ..service }]);
}

async fn start_mesh(protocol: Protocol) -> (Application, Mesh) {
    let app = Application::with_response(OK).await;
    let mesh = Mesh::new(app.address, Setup { protocol, ..Setup::default() }).await;
    (app, mesh)
}

#[test]
fn a_request_waits_for_the_endpoint_of_a_workload_that_changed() {
    run(async {
        for protocol in [Protocol::Http, Protocol::Tcp, Protocol::Detect] {
            let (app, mesh) = start_mesh(protocol).await;
            expect_sidecar(&mesh, &[]);
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(POST).await;
            wait_until_stable(|| app.accepted.get()).await;
            // A configuration that still has no endpoint.
            expect_sidecar(&mesh, &[]);
            wait_until_stable(|| app.accepted.get()).await;
            assert_eq!((mesh.client.ended_count(), app.accepted.get()), (0, 0), "{protocol:?}");
            mesh.route_to(&[mesh.server_endpoint()]);
            assert_eq!(client.read_response().await.body_text(), "ok", "{protocol:?}");
            assert!(mesh.client.failure_counts().is_empty());
        }
        let (_app, mesh) = start_mesh(Protocol::Http).await;
        expect_sidecar(&mesh, &[]);
        let mut send = http2::connect_client(mesh.listener).await;
        let request = Request::get("http://ratings/").body(()).unwrap();
        let response = send.send_request(request, true).unwrap().0;
        wait_until_stable(|| 0).await;
        mesh.route_to(&[mesh.server_endpoint()]);
        assert_eq!(response.await.unwrap().status(), 200);
    });
}

#[test]
fn the_wait_ends_without_an_expected_endpoint_without_the_client_and_with_the_drain() {
    run(async {
        let (_app, mesh) = start_mesh(Protocol::Http).await;
        let wait_for_endpoint = async || {
            expect_sidecar(&mesh, &[]);
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(GET).await;
            wait_until_stable(|| 0).await;
            client
        };
        let mut client = wait_for_endpoint().await;
        mesh.route_to(&[]);
        assert_eq!(client.read_response().await.verdict(), (503, Some("no-endpoint")));
        wait_for_endpoint().await.abandon();
        wait_until(|| mesh.client.ended_count() == 2).await;
        let mut client = wait_for_endpoint().await;
        mesh.client.phase.send_replace(Phase::Draining);
        assert_eq!(client.read_response().await.verdict(), (503, Some("no-endpoint")));
        let expected = [("no-endpoint", 2), ("downstream-closed", 1)];
        assert_eq!(mesh.client.failure_counts(), expected.into());

        let (_app, mesh) = start_mesh(Protocol::Tcp).await;
        expect_sidecar(&mesh, &[]);
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes(GET).await;
        wait_until_stable(|| 0).await;
        mesh.route_to(&[]);
        assert_eq!(client.read_end().await, End::Reset);
        assert_eq!(mesh.client.failure_counts(), [("no-endpoint", 1)].into());
    });
}

/// The connection to the former endpoint fails after the client's sidecar has received the next one.
#[test]
fn a_request_to_a_removed_endpoint_is_routed_again() {
    run(async {
        for (protocol, waits) in [Protocol::Http, Protocol::Tcp]
            .into_iter()
            .flat_map(|protocol| [(protocol, false), (protocol, true)])
        {
            let (app, mesh) = start_mesh(protocol).await;
            let former_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let former_address = former_listener.local_addr().unwrap();
            mesh.route_to(&[meshed_endpoint("ratings-1", former_address, "ratings")]);
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(POST).await;
            let (connection, _) = former_listener.accept().await.unwrap();
            match waits {
                true => expect_sidecar(&mesh, &[]),
                false => mesh.route_to(&[mesh.server_endpoint()]),
            }
            drop((connection, former_listener));
            if waits {
                wait_until_stable(|| app.accepted.get()).await;
                assert_eq!(mesh.client.ended_count(), 0, "{protocol:?}");
                mesh.route_to(&[mesh.server_endpoint()]);
            }
            assert_eq!(client.read_response().await.body_text(), "ok", "{protocol:?} {waits}");
            assert!(mesh.client.failure_counts().is_empty());
        }
    });
}

/// The server's sidecar applies a change of the port before the client's.
#[test]
fn a_request_to_a_port_that_the_workload_lacks_is_routed_again() {
    run(async {
        for protocol in [Protocol::Http, Protocol::Tcp] {
            let (_former, mesh) = start_mesh(protocol).await;
            assert_eq!(
                Client::connect(mesh.listener).await.send_request(POST).await.body_text(),
                "ok"
            );
            let next_endpoint =
                Application::with_response("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnext")
                    .await;
            let (_server, endpoint) = mesh.start_server("ratings-1", next_endpoint.address).await;
            mesh.change_server_config(&|workload_config| WorkloadConfig {
                ports: Vec::new(),
                ..workload_config
            });
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(GET).await;
            wait_until(|| mesh.server.failure_counts().contains_key("unknown-service")).await;
            expect_sidecar(&mesh, &[]);
            wait_until_stable(|| next_endpoint.accepted.get()).await;
            mesh.route_to(&[endpoint]);
            assert_eq!(client.read_response().await.body_text(), "next", "{protocol:?}");
            assert!(mesh.client.failure_counts().is_empty());
        }
    });
}

/// Another instance takes the requests meanwhile.
#[test]
fn a_request_does_not_wait_if_another_endpoint_exists() {
    run(async {
        let (_app, mesh) = start_mesh(Protocol::Http).await;
        expect_sidecar(&mesh, &[mesh.server_endpoint()]);
        assert_eq!(Client::connect(mesh.listener).await.send_request(GET).await.body_text(), "ok");
    });
}
