//! Destinations by address: services, single workloads, destinations outside the mesh; and clients without
//! mutual TLS.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use leno_model::{
    Access, AddressEntry, AddressPort, Egress, Endpoint, MtlsMode, Protocol, WorkloadConfig,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixture::{
    Application, Client, End, GET, Mesh, OK, PORT, ReceivedMessage, Setup, proxy_config, run,
    service_account, service_config, test_service, wait_until,
};
use crate::session::ListenerKind;

/// The address of the service.
const SERVICE: [u8; 4] = [10, 96, 0, 7];
/// The address of a workload with port 80.
pub(super) const WORKLOAD: [u8; 4] = [10, 1, 0, 7];

impl Mesh {
    /// Sets the client's entry for an address, and the egress policy of its sidecar.
    fn set_entry(&self, address: impl Into<IpAddr>, address_entry: AddressEntry, egress: Egress) {
        self.client.addresses.borrow_mut().insert(address.into(), Arc::new(address_entry));
        let workload_config =
            WorkloadConfig { egress, ..proxy_config("productpage", Access::AllowAll) };
        self.client.apply_config(
            workload_config,
            vec![service_config(self.setup.protocol, &[self.server_endpoint()])],
        );
    }

    /// Opens a connection of the client's application to an address.
    async fn connect_to(&self, address: impl Into<SocketAddr>) -> Client<tokio::net::TcpStream> {
        Client::connect(self.client.open_listener(ListenerKind::Address(address.into())).await)
            .await
    }

    pub(super) fn accept_plaintext(&self, access: Access) {
        self.apply_inbound_access(access, MtlsMode::Permissive);
    }

    fn apply_inbound_access(&self, access: Access, mtls: MtlsMode) {
        let port = leno_model::WorkloadPort {
            name: None,
            port: self.server.port,
            protocol: self.setup.protocol,
        };
        let port_services = BTreeMap::from([(self.server.port, test_service())]);
        let workload_config =
            WorkloadConfig { ports: vec![port], port_services, ..proxy_config("ratings", access) };
        self.server.apply_config(WorkloadConfig { mtls, ..workload_config }, Vec::new());
    }
}

/// Returns the entry of one workload: its port 80 is the port of the service.
pub(super) fn workload_entry(
    endpoint: Option<Endpoint>,
    workload: &str,
    protocol: Protocol,
) -> AddressEntry {
    let endpoint = endpoint.map(Arc::new);
    let port = AddressPort { service: test_service(), port: PORT, protocol, endpoint };
    let workload = super::fixture::workload_name(workload);
    AddressEntry::Workload { workload, ports: BTreeMap::from([(80, port)]) }
}

#[test]
fn the_address_of_a_service_is_routed_to_the_service() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        mesh.set_entry(SERVICE, AddressEntry::Service(test_service()), Egress::Deny);
        let mut client = mesh.connect_to((SERVICE, PORT)).await;
        assert_eq!(client.send_request(GET).await.status, 200);
        wait_until(|| mesh.client.ended_count() == 1).await;
        let [series] = &mesh.client.series_summaries()[..] else { panic!("one series") };
        assert_eq!(series.labels.service, test_service().to_string());
        // A port that the service does not have.
        let mut client = mesh.connect_to((SERVICE, PORT + 1)).await;
        client.send_bytes(GET).await;
        assert_eq!(client.read_response().await.status, 404);
    });
}

#[test]
fn the_address_of_a_workload_is_routed_to_that_workload_alone() {
    run(async {
        let first_app = Application::with_response(OK).await;
        let second_app =
            Application::with_response("HTTP/1.1 201 OK\r\ncontent-length: 0\r\n\r\n").await;
        let mesh = Mesh::permissive(first_app.address).await;
        let (_second_server, endpoint) = mesh.start_server("ratings-2", second_app.address).await;
        // The workload is not ready, so it is not an endpoint of its service.
        mesh.set_entry(
            WORKLOAD,
            workload_entry(Some(endpoint.clone()), "ratings-2", Protocol::Http),
            Egress::Deny,
        );
        let mut client = mesh.connect_to((WORKLOAD, 80)).await;
        for _ in 0..3 {
            assert_eq!(client.send_request(GET).await.status, 201);
        }
        assert_eq!((second_app.accepted.get(), first_app.accepted.get()), (1, 0));
        // The links to the workload stay open over configuration changes, although it is an endpoint of no
        // service.
        let upstream = || mesh.client.worker.upstream_for(&Arc::new(endpoint.clone()));
        let upstream_before = upstream();
        mesh.set_entry(SERVICE, AddressEntry::External, Egress::Deny);
        assert_eq!(client.send_request(GET).await.status, 201);
        assert!(Rc::ptr_eq(&upstream_before, &upstream()));
        // The address now belongs to another pod: the open connection is not forwarded to it.
        mesh.set_entry(
            WORKLOAD,
            workload_entry(Some(mesh.server_endpoint()), "ratings-1", Protocol::Http),
            Egress::Deny,
        );
        assert_eq!(client.send_request(GET).await.verdict(), (503, Some("no-endpoint")));
        assert_eq!(mesh.connect_to((WORKLOAD, 80)).await.send_request(GET).await.status, 200);
        // A mesh member without a running sidecar is not called in plaintext.
        mesh.set_entry(WORKLOAD, workload_entry(None, "ratings-1", Protocol::Http), Egress::Allow);
        let response = mesh.connect_to((WORKLOAD, 80)).await.send_request(GET).await;
        assert_eq!(response.verdict(), (503, Some("no-endpoint")));
    });
}

#[test]
fn bytes_are_forwarded_to_the_addressed_workload() {
    run(async {
        let app = Application::start(|mut client| async move {
            client.send_bytes("220 ready\r\n").await;
            let bytes = client.read_exactly(4).await;
            client.send_bytes(bytes).await;
        });
        let mesh =
            Mesh::new(app.await.address, Setup { protocol: Protocol::Tcp, ..Setup::default() })
                .await;
        mesh.set_entry(
            WORKLOAD,
            workload_entry(Some(mesh.server_endpoint()), "ratings-1", Protocol::Tcp),
            Egress::Deny,
        );
        let mut client = mesh.connect_to((WORKLOAD, 80)).await;
        assert_eq!(client.read_exactly(11).await, b"220 ready\r\n");
        client.send_bytes("HELO").await;
        assert_eq!(client.read_exactly(4).await, b"HELO");
        assert_eq!(client.read_end().await, End::Clean);
        client.stream.shutdown().await.unwrap();
        wait_until(|| mesh.client.ended_count() == 1 && mesh.server.ended_count() == 1).await;
        let [series] = &mesh.client.series_summaries()[..] else { panic!("one series") };
        assert_eq!((series.labels.protocol, series.success), ("tcp", 1));
    });
}

#[test]
fn external_destinations_are_reached_without_changes() {
    run(async {
        // The server sends first, and reads until the client has half-closed.
        let outside_server = Application::start(|mut client| async move {
            client.send_bytes("220 ready\r\n").await;
            let mut received = Vec::new();
            client.stream.read_to_end(&mut received).await.unwrap();
            client.send_bytes(received).await;
        });
        let address = outside_server.await.address;
        let mesh = Mesh::permissive(address).await;
        mesh.set_entry(address.ip(), AddressEntry::External, Egress::Allow);
        let mut client = mesh.connect_to(address).await;
        assert_eq!(client.read_exactly(11).await, b"220 ready\r\n");
        client.send_bytes(vec![7; 100_000]).await;
        client.stream.shutdown().await.unwrap();
        assert_eq!(client.read_exactly(100_000).await, vec![7; 100_000]);
        assert_eq!(client.read_end().await, End::Clean);
        wait_until(|| mesh.client.ended_count() == 1).await;
        let [series] = &mesh.client.series_summaries()[..] else { panic!("one series") };
        let labels = &series.labels;
        assert_eq!((labels.direction, labels.protocol), ("outbound", "outside"));
        assert_eq!((labels.service.as_str(), labels.port, series.success), ("", 0, 1));
        assert_eq!((series.bytes_in, series.bytes_out), (100_000, 100_011));
        // If egress is denied, open connections are closed as well.
        let mut client = mesh.connect_to(address).await;
        assert_eq!(client.read_exactly(11).await, b"220 ready\r\n");
        mesh.set_entry(address.ip(), AddressEntry::External, Egress::Deny);
        assert_eq!(client.read_end().await, End::Reset);
        assert_eq!(mesh.connect_to(address).await.read_end().await, End::Reset);
        wait_until(|| mesh.client.failure_counts().get("egress-denied") == Some(&2)).await;
    });
}

#[test]
fn a_workload_port_without_a_service_is_external() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let local_address = app.address.ip();
        mesh.set_entry(
            local_address,
            workload_entry(None, "ratings-1", Protocol::Http),
            Egress::Allow,
        );
        assert_eq!(mesh.connect_to(app.address).await.send_request(GET).await.status, 200);
        mesh.set_entry(
            local_address,
            workload_entry(None, "ratings-1", Protocol::Http),
            Egress::Deny,
        );
        assert_eq!(mesh.connect_to(app.address).await.read_end().await, End::Reset);
    });
}

/// A missing response of the control plane must not cause a plaintext call to a mesh member.
#[test]
fn an_address_without_a_response_of_the_control_plane_is_not_reached() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        assert_eq!(mesh.connect_to(app.address).await.read_end().await, End::Reset);
        assert_eq!(app.accepted.get(), 0);
    });
}

#[test]
fn plaintext_clients_are_allowed_in_permissive_mode() {
    run(async {
        for protocol in [Protocol::Http, Protocol::Detect] {
            let app = Application::respond_with(|_: &ReceivedMessage| OK.to_owned()).await;
            let mesh = Mesh::new(app.address, Setup { protocol, ..Setup::default() }).await;
            let mut client = Client::connect(mesh.inbound).await;
            client.send_bytes(GET).await;
            assert_eq!(client.read_end().await, End::Reset, "{protocol:?}");
            mesh.accept_plaintext(Access::AllowAll);
            let mut client = Client::connect(mesh.inbound).await;
            assert_eq!(client.send_request(GET).await.status, 200, "{protocol:?}");
            // Mesh members still use mutual TLS.
            let mut member_client = Client::connect(mesh.listener).await;
            assert_eq!(member_client.send_request(GET).await.status, 200, "{protocol:?}");
            wait_until(|| mesh.server.ended_count() == 2).await;
            let mut peers: Vec<_> = mesh
                .server
                .series_summaries()
                .into_iter()
                .map(|series| series.labels.peer)
                .collect();
            peers.sort();
            assert_eq!(peers, [String::new(), service_account("productpage").to_string()]);
            // No policy names unauthenticated clients; the denial also closes open connections.
            mesh.accept_plaintext(Access::AllowListed(Vec::new()));
            assert_eq!(
                client.send_request(GET).await.verdict(),
                (403, Some("denied")),
                "{protocol:?}"
            );
            mesh.apply_inbound_access(Access::AllowAll, MtlsMode::Strict);
            client.read_end().await;
            assert_eq!(member_client.send_request(GET).await.status, 200, "{protocol:?}");
        }
    });
}

#[test]
fn plaintext_bytes_are_allowed_in_permissive_mode() {
    run(async {
        let app = Application::start(|mut client| async move {
            client.send_bytes("220 ready\r\n").await;
            let bytes = client.read_exactly(4).await;
            client.send_bytes(bytes).await;
            client.read_end().await;
        });
        let mut setup = Setup { protocol: Protocol::Tcp, ..Setup::default() };
        setup.limits.detect_timeout = std::time::Duration::from_millis(50);
        let mesh = Mesh::new(app.await.address, setup).await;
        mesh.accept_plaintext(Access::AllowAll);
        let mut client = Client::connect(mesh.inbound).await;
        assert_eq!(client.read_exactly(11).await, b"220 ready\r\n");
        client.send_bytes("HELO").await;
        assert_eq!(client.read_exactly(4).await, b"HELO");
        // Mesh members are not treated as plaintext clients, although the port accepts opaque bytes.
        let mut member_client = Client::connect(mesh.listener).await;
        assert_eq!(member_client.read_exactly(11).await, b"220 ready\r\n");
        // `defaultPolicy: deny` requires an allow policy from now on.
        mesh.accept_plaintext(Access::AllowListed(Vec::new()));
        assert_eq!(client.read_end().await, End::Reset);
    });
}
