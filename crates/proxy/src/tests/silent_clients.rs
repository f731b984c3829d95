//! Silent clients at ports without a declared protocol and with policies that decide by request.

use std::time::Duration;

use leno_model::{Access, InboundPolicy, MtlsMode, PolicyRule, Protocol, WorkloadConfig};
use leno_telemetry::Count;

use super::fixture::{Application, Client, End, GET, Mesh, OK, Setup, run, wait_until};
use super::http2;
use super::opaque::{call_status_on, denying_policy, inject_faults, start_http2_application};
use crate::drain::Phase;

const GET_ADMIN: &str = "GET /admin HTTP/1.1\r\nhost: x\r\n\r\n";

/// Creates a mesh with a protocol detection that times out at once.
async fn mesh_with_short_detection(application: std::net::SocketAddr) -> Mesh {
    let mut setup = Setup { protocol: Protocol::Detect, ..Setup::default() };
    setup.limits.detect_timeout = Duration::ZERO;
    Mesh::new(application, setup).await
}

/// Opens a connection to the service that both sidecars treat as silent.
async fn connect_silent(mesh: &Mesh) -> Client<tokio::net::TcpStream> {
    let count_before = opaque_count(mesh);
    let client = Client::connect(mesh.listener).await;
    wait_until(|| opaque_count(mesh) > count_before).await;
    client
}

/// Returns the number of connections that the client's sidecar lists as opaque.
fn opaque_count(mesh: &Mesh) -> usize {
    let (_, connections) = mesh.client.worker.connections.snapshot(100);
    connections.iter().filter(|connection| connection.protocol == "tcp").count()
}

fn denial_counts(mesh: &Mesh) -> [Option<u64>; 2] {
    [&mesh.client, &mesh.server]
        .map(|sidecar| sidecar.failure_counts().get("denied-by-policy").copied())
}

#[test]
fn requests_of_a_silent_client_are_served_and_authorized() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = mesh_with_short_detection(app.address).await;
        mesh.change_server_config(&|workload_config| WorkloadConfig {
            inbound: denying_policy(),
            ..workload_config
        });
        let mut client = connect_silent(&mesh).await;
        assert_eq!(client.send_request(GET).await.status, 200);
        assert_eq!(client.send_request(GET_ADMIN).await.status, 403);
        assert_eq!(client.send_request(GET).await.status, 200);
        assert_eq!(app.requests.borrow().len(), 2);
        let app = start_http2_application().await;
        let mesh = mesh_with_short_detection(app.address).await;
        mesh.change_server_config(&|workload_config| WorkloadConfig {
            inbound: denying_policy(),
            ..workload_config
        });
        let mut client = http2::connect_over(connect_silent(&mesh).await.stream).await;
        for (path, status) in [("/ratings", 200), ("/admin", 403)] {
            assert_eq!(call_status_on(&mut client, path).await, Some(status), "{path}");
        }
    });
}

#[test]
fn a_connection_without_bytes_is_not_counted_as_rejected() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = mesh_with_short_detection(app.address).await;
        mesh.change_server_config(&|workload_config| WorkloadConfig {
            inbound: denying_policy(),
            ..workload_config
        });
        for _ in 0..3 {
            drop(connect_silent(&mesh).await);
        }
        wait_until(|| opaque_count(&mesh) == 0).await;
        // The server's sidecar drains and stops waiting.
        let mut client = connect_silent(&mesh).await;
        mesh.server.phase.send_replace(Phase::Draining);
        assert_eq!(client.read_end().await, End::Clean);
        drop(client);
        wait_until(|| opaque_count(&mesh) == 0).await;
        assert_eq!((denial_counts(&mesh), app.accepted.get()), ([None, None], 0));
    });
}

#[test]
fn opaque_bytes_of_a_silent_client_are_reset() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = mesh_with_short_detection(app.address).await;
        mesh.change_server_config(&|workload_config| WorkloadConfig {
            inbound: denying_policy(),
            ..workload_config
        });
        let mut client = connect_silent(&mesh).await;
        client.send_bytes("\0").await;
        assert_eq!(client.read_end().await, End::Reset);
        wait_until(|| denial_counts(&mesh) == [Some(1), Some(1)]).await;
        assert_eq!(app.accepted.get(), 0);
    });
}

/// No request of such a client would be allowed, so the sidecar does not wait for one.
#[test]
fn a_silent_client_without_any_permission_is_rejected_at_once() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = mesh_with_short_detection(app.address).await;
        let mut inbound = denying_policy();
        let unconditional_rule = PolicyRule { requests: Vec::new(), ..inbound.rules[0].clone() };
        inbound.rules.push(unconditional_rule);
        for (access, inbound) in [
            (Access::AllowAll, inbound),
            (Access::AllowListed(Vec::new()), InboundPolicy::default()),
        ] {
            mesh.set_access_and_policy(access, inbound);
            let mut client = Client::connect(mesh.listener).await;
            assert_eq!(client.read_end().await, End::Reset);
        }
        assert_eq!(app.accepted.get(), 0);
    });
}

#[test]
fn silent_clients_without_mutual_tls_are_awaited() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = mesh_with_short_detection(app.address).await;
        let mtls = MtlsMode::Permissive;
        mesh.change_server_config(&|workload_config| WorkloadConfig {
            inbound: denying_policy(),
            mtls,
            ..workload_config
        });
        let connect_silent_client = async |number| {
            let client = Client::connect(mesh.inbound).await;
            wait_until(|| mesh.server.telemetry.count(Count::DownstreamPlaintext) == number).await;
            client
        };
        drop(connect_silent_client(1).await);
        let mut client = connect_silent_client(2).await;
        assert_eq!(client.send_request(GET).await.status, 200);
        assert_eq!(client.send_request(GET_ADMIN).await.status, 403);
        assert_eq!(denial_counts(&mesh), [None, Some(1)]);
        let mut client = connect_silent_client(3).await;
        client.send_bytes("\0").await;
        assert_eq!(client.read_end().await, End::Reset);
        wait_until(|| denial_counts(&mesh) == [None, Some(2)]).await;
    });
}

#[test]
fn faults_apply_to_requests_of_a_silent_client() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = mesh_with_short_detection(app.address).await;
        inject_faults(&mesh, Protocol::Detect);
        let mut client = Client::connect(mesh.listener).await;
        wait_until(|| mesh.client.telemetry.count(Count::DownstreamOpened) == 1).await;
        assert_eq!(client.send_request(GET).await.verdict(), (503, Some("fault-injected")));
        assert_eq!(mesh.client.failure_counts().get("denied-by-policy"), None);
    });
}
