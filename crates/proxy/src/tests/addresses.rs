//! Destinations by address: services, single workloads, destinations outside the mesh; and clients without
//! mutual TLS.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use leno_model::{
    Access, AddressEntry, AddressPort, Egress, Endpoint, Plaintext, Protocol, WorkloadPlan,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixture::{
    Answer, Application, Client, End, GET, Mesh, OK, PORT, Setup, account, plan, run, service,
    until, view,
};
use crate::session::ListenerKind;

/// The address of a service, and the address of a workload with port 80.
const SERVICE: [u8; 4] = [10, 96, 0, 7];
pub(super) const WORKLOAD: [u8; 4] = [10, 1, 0, 7];

impl Mesh {
    /// Sets the client's entry for an address, and the egress policy of its sidecar.
    fn occupy(&self, address: impl Into<IpAddr>, address_entry: AddressEntry, egress: Egress) {
        self.client.addresses.borrow_mut().insert(address.into(), Arc::new(address_entry));
        let plan = WorkloadPlan { egress, ..plan("productpage", Access::Permissive) };
        self.client.know(plan, vec![view(self.setup.protocol, &[self.endpoint()])]);
    }

    /// Opens a connection of the client's application to an address.
    async fn connect(&self, at: impl Into<SocketAddr>) -> Client<tokio::net::TcpStream> {
        Client::connect(self.client.listen(ListenerKind::Address(at.into())).await).await
    }

    pub(super) fn accept_plaintext(&self, access: Access) {
        self.expect_plaintext(access, Plaintext::Accept);
    }

    fn expect_plaintext(&self, access: Access, plaintext: Plaintext) {
        let port = leno_model::WorkloadPort {
            name: None,
            port: self.server.port,
            protocol: self.setup.protocol,
        };
        let served = BTreeMap::from([(self.server.port, service())]);
        let plan = WorkloadPlan { ports: vec![port], served, ..plan("ratings", access) };
        self.server.know(WorkloadPlan { plaintext, ..plan }, Vec::new());
    }
}

/// Returns the entry of one workload: its port 80 is the port of the service.
pub(super) fn pinned(
    endpoint: Option<Endpoint>,
    workload: &str,
    protocol: Protocol,
) -> AddressEntry {
    let endpoint = endpoint.map(Arc::new);
    let port = AddressPort { service: service(), port: PORT, protocol, endpoint };
    let workload = super::fixture::workload(workload);
    AddressEntry::Workload { workload, ports: BTreeMap::from([(80, port)]) }
}

#[test]
fn the_address_of_a_service_leads_there() {
    run(async {
        let app = Application::canned(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        mesh.occupy(SERVICE, AddressEntry::Service(service()), Egress::Deny);
        let mut client = mesh.connect((SERVICE, PORT)).await;
        assert_eq!(client.ask(GET).await.status, 200);
        until(|| mesh.client.ended() == 1).await;
        let [series] = &mesh.client.series()[..] else { panic!("one series") };
        assert_eq!(series.labels.service, service().to_string());
        // A port that the service does not have.
        let mut client = mesh.connect((SERVICE, PORT + 1)).await;
        client.send(GET).await;
        assert_eq!(client.answer().await.status, 404);
    });
}

#[test]
fn the_address_of_a_workload_leads_to_that_one_alone() {
    run(async {
        let first = Application::canned(OK).await;
        let second = Application::canned("HTTP/1.1 201 OK\r\ncontent-length: 0\r\n\r\n").await;
        let mesh = Mesh::permissive(first.address).await;
        let (_other, endpoint) = mesh.server("ratings-2", second.address).await;
        // It is not ready, so it is not an endpoint of its service.
        mesh.occupy(
            WORKLOAD,
            pinned(Some(endpoint.clone()), "ratings-2", Protocol::Http),
            Egress::Deny,
        );
        let mut client = mesh.connect((WORKLOAD, 80)).await;
        for _ in 0..3 {
            assert_eq!(client.ask(GET).await.status, 201);
        }
        assert_eq!((second.accepted.get(), first.accepted.get()), (1, 0));
        // Its links stay open over configuration changes, although it is an endpoint of no service.
        let known = || mesh.client.worker.upstream(&Arc::new(endpoint.clone()));
        let before = known();
        mesh.occupy(SERVICE, AddressEntry::Outside, Egress::Deny);
        assert_eq!(client.ask(GET).await.status, 201);
        assert!(Rc::ptr_eq(&before, &known()));
        // The address now belongs to another pod: the open connection is not forwarded to it.
        mesh.occupy(
            WORKLOAD,
            pinned(Some(mesh.endpoint()), "ratings-1", Protocol::Http),
            Egress::Deny,
        );
        assert_eq!(client.ask(GET).await.verdict(), (503, Some("no-endpoint")));
        assert_eq!(mesh.connect((WORKLOAD, 80)).await.ask(GET).await.status, 200);
        // A mesh member without a running sidecar is not called in plaintext.
        mesh.occupy(WORKLOAD, pinned(None, "ratings-1", Protocol::Http), Egress::Allow);
        let answer = mesh.connect((WORKLOAD, 80)).await.ask(GET).await;
        assert_eq!(answer.verdict(), (503, Some("no-endpoint")));
    });
}

#[test]
fn bytes_go_to_the_workload_that_is_meant() {
    run(async {
        let app = Application::start(|mut client| async move {
            client.send("220 ready\r\n").await;
            let word = client.bytes(4).await;
            client.send(word).await;
        });
        let mesh =
            Mesh::new(app.await.address, Setup { protocol: Protocol::Tcp, ..Setup::default() })
                .await;
        mesh.occupy(
            WORKLOAD,
            pinned(Some(mesh.endpoint()), "ratings-1", Protocol::Tcp),
            Egress::Deny,
        );
        let mut client = mesh.connect((WORKLOAD, 80)).await;
        assert_eq!(client.bytes(11).await, b"220 ready\r\n");
        client.send("HELO").await;
        assert_eq!(client.bytes(4).await, b"HELO");
        assert_eq!(client.end().await, End::Clean);
        client.stream.shutdown().await.unwrap();
        until(|| mesh.client.ended() == 1 && mesh.server.ended() == 1).await;
        let [series] = &mesh.client.series()[..] else { panic!("one series") };
        assert_eq!((series.labels.protocol, series.success), ("tcp", 1));
    });
}

#[test]
fn what_is_outside_is_reached_as_it_is() {
    run(async {
        // The server speaks first, and reads until the client has half-closed.
        let outside = Application::start(|mut client| async move {
            client.send("220 ready\r\n").await;
            let mut all = Vec::new();
            client.stream.read_to_end(&mut all).await.unwrap();
            client.send(all).await;
        });
        let at = outside.await.address;
        let mesh = Mesh::permissive(at).await;
        mesh.occupy(at.ip(), AddressEntry::Outside, Egress::Allow);
        let mut client = mesh.connect(at).await;
        assert_eq!(client.bytes(11).await, b"220 ready\r\n");
        client.send(vec![7; 100_000]).await;
        client.stream.shutdown().await.unwrap();
        assert_eq!(client.bytes(100_000).await, vec![7; 100_000]);
        assert_eq!(client.end().await, End::Clean);
        until(|| mesh.client.ended() == 1).await;
        let [series] = &mesh.client.series()[..] else { panic!("one series") };
        let labels = &series.labels;
        assert_eq!((labels.direction, labels.protocol), ("outbound", "outside"));
        assert_eq!((labels.service.as_str(), labels.port, series.success), ("", 0, 1));
        assert_eq!((series.bytes_in, series.bytes_out), (100_000, 100_011));
        // If egress is denied, open connections are closed as well.
        let mut client = mesh.connect(at).await;
        assert_eq!(client.bytes(11).await, b"220 ready\r\n");
        mesh.occupy(at.ip(), AddressEntry::Outside, Egress::Deny);
        assert_eq!(client.end().await, End::Reset);
        assert_eq!(mesh.connect(at).await.end().await, End::Reset);
        until(|| mesh.client.failures().get("egress-denied") == Some(&2)).await;
    });
}

#[test]
fn a_port_of_a_workload_that_no_service_has_is_outside() {
    run(async {
        let app = Application::canned(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let here = app.address.ip();
        mesh.occupy(here, pinned(None, "ratings-1", Protocol::Http), Egress::Allow);
        assert_eq!(mesh.connect(app.address).await.ask(GET).await.status, 200);
        mesh.occupy(here, pinned(None, "ratings-1", Protocol::Http), Egress::Deny);
        assert_eq!(mesh.connect(app.address).await.end().await, End::Reset);
    });
}

/// A missing answer must not cause a plaintext call to a mesh member.
#[test]
fn what_nobody_answers_about_is_not_reached() {
    run(async {
        let app = Application::canned(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        assert_eq!(mesh.connect(app.address).await.end().await, End::Reset);
        assert_eq!(app.accepted.get(), 0);
    });
}

#[test]
fn clients_in_the_clear_are_let_in_where_the_mesh_says_so() {
    run(async {
        for protocol in [Protocol::Http, Protocol::Detect] {
            let app = Application::answering(|_: &Answer| OK.to_owned()).await;
            let mesh = Mesh::new(app.address, Setup { protocol, ..Setup::default() }).await;
            let mut client = Client::connect(mesh.inbound).await;
            client.send(GET).await;
            assert_eq!(client.end().await, End::Reset, "{protocol:?}");
            mesh.accept_plaintext(Access::Permissive);
            let mut client = Client::connect(mesh.inbound).await;
            assert_eq!(client.ask(GET).await.status, 200, "{protocol:?}");
            // Mesh members still use mutual TLS.
            let mut member = Client::connect(mesh.listener).await;
            assert_eq!(member.ask(GET).await.status, 200, "{protocol:?}");
            until(|| mesh.server.ended() == 2).await;
            let mut peers: Vec<_> =
                mesh.server.series().into_iter().map(|series| series.labels.peer).collect();
            peers.sort();
            assert_eq!(peers, [String::new(), account("productpage").to_string()]);
            // No policy names unauthenticated clients; the denial also closes open connections.
            mesh.accept_plaintext(Access::Strict(Vec::new()));
            assert_eq!(client.ask(GET).await.verdict(), (403, Some("denied")), "{protocol:?}");
            mesh.expect_plaintext(Access::Permissive, Plaintext::Refuse);
            client.end().await;
            assert_eq!(member.ask(GET).await.status, 200, "{protocol:?}");
        }
    });
}

#[test]
fn bytes_in_the_clear_are_let_in_where_the_mesh_says_so() {
    run(async {
        let app = Application::start(|mut client| async move {
            client.send("220 ready\r\n").await;
            let word = client.bytes(4).await;
            client.send(word).await;
            client.end().await;
        });
        let mut setup = Setup { protocol: Protocol::Tcp, ..Setup::default() };
        setup.limits.detect_timeout = std::time::Duration::from_millis(50);
        let mesh = Mesh::new(app.await.address, setup).await;
        mesh.accept_plaintext(Access::Permissive);
        let mut client = Client::connect(mesh.inbound).await;
        assert_eq!(client.bytes(11).await, b"220 ready\r\n");
        client.send("HELO").await;
        assert_eq!(client.bytes(4).await, b"HELO");
        // Mesh members are not treated as plaintext clients, although the port accepts opaque bytes.
        let mut member = Client::connect(mesh.listener).await;
        assert_eq!(member.bytes(11).await, b"220 ready\r\n");
        // Strict mode requires an allow policy from now on.
        mesh.accept_plaintext(Access::Strict(Vec::new()));
        assert_eq!(client.end().await, End::Reset);
    });
}
