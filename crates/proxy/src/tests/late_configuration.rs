//! Configurations that arrive after a connection was detected as HTTP: the protocol that they declare applies.

use std::collections::BTreeMap;
use std::time::Duration;

use http::Request;
use leno_model::{Access, ClientAuthorization, Protocol, ServiceConfig};

use super::fixture::{
    Application, Client, End, GET, Mesh, OK, Setup, proxy_config, run, service_config,
    test_service, wait_until, wait_until_stable,
};
use super::{addresses, http2};
use crate::session::ListenerKind;

/// Creates a mesh in which the client does not have any port of the service yet, as with `defaultPolicy: deny`
/// without a policy for it.
async fn mesh_without_port(application: std::net::SocketAddr) -> Mesh {
    let mut setup = Setup { protocol: Protocol::Tcp, ..Setup::default() };
    setup.limits.detect_timeout = Duration::from_secs(30);
    let mesh = Mesh::new(application, setup).await;
    mesh.set_client_services(vec![ServiceConfig {
        name: test_service(),
        client_authorization: ClientAuthorization::Denied,
        ports: BTreeMap::new(),
        waits_for_endpoint: false,
    }]);
    mesh
}

/// Returns the number of connections that the client's sidecar lists with this protocol.
fn connection_count(mesh: &Mesh, protocol: &str) -> usize {
    let (_, connections) = mesh.client.worker.connections.snapshot(usize::MAX);
    connections
        .iter()
        .filter(|connection| connection.direction == "outbound" && connection.protocol == protocol)
        .count()
}

#[test]
fn requests_are_rejected_at_a_tcp_port_that_was_configured_late() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = mesh_without_port(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes("GET /ratings/1 HTTP/1.1\r\n").await;
        wait_until(|| connection_count(&mesh, "http") == 1).await;
        mesh.route_to(&[mesh.server_endpoint()]);
        client.send_bytes("host: x\r\n\r\n").await;
        assert_eq!(client.read_end().await, End::Reset);
        wait_until(|| mesh.client.ended_count() == 1).await;
        assert_eq!(mesh.client.failure_counts(), [("protocol-changed", 1)].into());
        assert_eq!(app.accepted.get(), 0);
        // The next connection is TCP, and authorized as such.
        let response = Client::connect(mesh.listener).await.send_request(GET).await;
        assert_eq!(response.body_text(), "ok");
        assert!(
            mesh.server.series_summaries().iter().all(|series| series.labels.protocol == "tcp")
        );
    });
}

#[test]
fn a_configuration_before_the_first_bytes_determines_their_protocol() {
    run(async {
        let app = Application::with_response(OK).await;
        for (first, rest) in [("", GET), ("G", &GET[1..])] {
            let mesh = mesh_without_port(app.address).await;
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(first).await;
            wait_until_stable(|| 0).await;
            mesh.route_to(&[mesh.server_endpoint()]);
            assert_eq!(client.send_request(rest).await.body_text(), "ok");
            wait_until(|| mesh.server.series_summaries().len() == 1).await;
            assert_eq!(mesh.server.series_summaries()[0].labels.protocol, "tcp");
        }
    });
}

#[test]
fn a_connection_with_requests_is_reset_once_its_port_is_tcp() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request(GET).await.status, 200);
        mesh.set_client_services(vec![service_config(Protocol::Tcp, &[mesh.server_endpoint()])]);
        client.send_bytes(GET).await;
        assert_eq!(client.read_end().await, End::Reset);
        wait_until(|| mesh.client.ended_count() == 2).await;
        assert_eq!(mesh.client.failure_counts(), [("protocol-changed", 1)].into());
    });
}

#[test]
fn an_http2_connection_ends_once_its_port_is_tcp() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut send = http2::connect_client(mesh.listener).await;
        let request = || Request::get("http://ratings/").body(()).unwrap();
        let response = send.send_request(request(), true).unwrap().0;
        assert_eq!(response.await.unwrap().status(), 200);
        mesh.set_client_services(vec![service_config(Protocol::Tcp, &[mesh.server_endpoint()])]);
        let response = send.send_request(request(), true).unwrap().0;
        assert!(response.await.unwrap_err().is_reset());
        // The connection accepts no further request.
        let mut request_count = 0;
        while let Ok(mut ready) = send.clone().ready().await {
            let Ok((response, _)) = ready.send_request(request(), true) else { break };
            assert!(response.await.is_err());
            request_count += 1;
            assert!(request_count < 3, "the connection continues");
        }
        assert_eq!(mesh.client.failure_counts(), [("protocol-changed", 1)].into());
    });
}

#[test]
fn a_connection_to_the_address_of_a_workload_follows_the_configuration() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let occupy = |protocol| {
            let address_entry =
                addresses::workload_entry(Some(mesh.server_endpoint()), "ratings-1", protocol);
            let address = addresses::WORKLOAD.into();
            mesh.client.addresses.borrow_mut().insert(address, address_entry.into());
            mesh.client.apply_config(proxy_config("productpage", Access::AllowAll), Vec::new());
        };
        occupy(Protocol::Http);
        let workload_address = (addresses::WORKLOAD, 80).into();
        let listener = mesh.client.open_listener(ListenerKind::Address(workload_address)).await;
        let mut client = Client::connect(listener).await;
        assert_eq!(client.send_request(GET).await.status, 200);
        occupy(Protocol::Tcp);
        client.send_bytes(GET).await;
        assert_eq!(client.read_end().await, End::Reset);
        assert_eq!(Client::connect(listener).await.send_request(GET).await.body_text(), "ok");
        assert_eq!(mesh.client.failure_counts(), [("protocol-changed", 1)].into());
    });
}

#[test]
fn requests_to_the_http_proxy_remain_valid() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh =
            Mesh::new(app.address, Setup { protocol: Protocol::Tcp, ..Setup::default() }).await;
        let proxy = mesh.client.open_listener(ListenerKind::HttpProxy).await;
        let get = "GET http://ratings.bookinfo:9080/ HTTP/1.1\r\nhost: a\r\n\r\n";
        assert_eq!(Client::connect(proxy).await.send_request(get).await.body_text(), "ok");
    });
}
