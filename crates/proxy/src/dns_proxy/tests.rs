//! DNS queries over real sockets, with a scripted name server.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use leno_discovery::{ChangeId, ConfigUpdate};
use leno_model::{Access, Snapshot, TrustDomain};
use leno_telemetry::Telemetry;
use tokio::sync::mpsc;

use super::*;
use crate::config::Config;
use crate::config_store::ConfigStore;
use crate::state::StateDir;
use crate::tests::fixture::{proxy_config, run, workload_name};

const WEB: &str = "web.shop.svc.cluster.local.";

/// A sidecar without interception, and its name server on a separate port.
struct DnsFixture {
    handler: Rc<DnsQueryHandler>,
    telemetry: Arc<Telemetry>,
    scratch: tempfile::TempDir,
}

impl DnsFixture {
    fn new(servers: &str, port: u16) -> (Self, mpsc::Receiver<ResourceRequest>) {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("resolv.conf");
        std::fs::write(&file, servers).unwrap();
        let path = scratch.path().join("state");
        let config = Config::for_sidecar(
            workload_name("web-1"),
            TrustDomain::new("a").unwrap(),
            path.clone(),
        );
        let state = StateDir::open(&path).unwrap();
        let (config_store, requested_services) =
            ConfigStore::new(state.stored_virtual_addresses(), std::time::Instant::now());
        let telemetry = Telemetry::new();
        let admin = ([127, 0, 0, 1], 0).into();
        let control_client = Rc::new(ControlClient::new(
            Arc::new(config),
            telemetry.clone(),
            config_store,
            state,
            admin,
            0,
        ));
        control_client.is_connected.set(true);
        let resolvers = Resolvers::new(file, port, |_| false);
        let handler = DnsQueryHandler::new(control_client, ClusterDomain::default(), resolvers);
        (Self { handler: Rc::new(handler), telemetry, scratch }, requested_services)
    }

    /// Sets the records from the control plane.
    fn set_records(&self, names: &[(&str, &[IpAddr])]) {
        let names = names.iter().map(|(name, addresses)| {
            (name.parse().unwrap(), Arc::new(addresses.iter().copied().collect()))
        });
        let snapshot = Snapshot {
            config: Arc::new(proxy_config("web", Access::AllowAll)),
            services: BTreeMap::new(),
            addresses: BTreeMap::new(),
            names: names.collect(),
        };
        let snapshot = Arc::new(snapshot);
        let update = ConfigUpdate { snapshot, absent: BTreeSet::new(), change: ChangeId(1) };
        self.handler.control_client.config_store.apply_update(&update).unwrap();
    }

    async fn send_query(&self, name: &str, transport: DnsTransport) -> Option<Message> {
        let reply = self.handler.handle_query(&query_packet(name), transport).await?;
        Some(Message::from_vec(&reply).unwrap())
    }

    fn query_counts(&self) -> [u64; 3] {
        [Count::DnsQueriesAnswered, Count::DnsQueriesForwarded, Count::DnsQueriesFailed]
            .map(|count| self.telemetry.count(count))
    }
}

fn query_packet(name: &str) -> Vec<u8> {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    message.to_vec().unwrap()
}

/// Binds a port that is free for UDP and TCP.
async fn bind_sockets() -> (UdpSocket, TcpListener) {
    loop {
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()).await {
            return (udp, tcp);
        }
    }
}

/// A REFUSED response, to recognize the test server.
fn refused_response(query: &[u8]) -> Vec<u8> {
    let mut response = query.to_vec();
    response[2] |= 0x80;
    response[3] = 0x05;
    response
}

/// A name server that refuses all queries, over UDP and TCP, after a response to another query.
async fn name_server() -> u16 {
    let (udp, tcp) = bind_sockets().await;
    let port = udp.local_addr().unwrap().port();
    tokio::task::spawn_local(async move {
        let mut packet = [0; 512];
        loop {
            let (length, client) = udp.recv_from(&mut packet).await.unwrap();
            let mut other_response = refused_response(&packet[..length]);
            other_response[0] ^= 1;
            udp.send_to(&other_response, client).await.unwrap();
            udp.send_to(&refused_response(&packet[..length]), client).await.unwrap();
        }
    });
    tokio::task::spawn_local(async move {
        loop {
            let (mut stream, _) = tcp.accept().await.unwrap();
            let length = stream.read_u16().await.unwrap();
            let mut query = vec![0; usize::from(length)];
            stream.read_exact(&mut query).await.unwrap();
            stream.write_all(&resolvers::frame_message(&refused_response(&query))).await.unwrap();
        }
    });
    port
}

#[test]
fn names_of_the_mesh_are_resolved_and_other_queries_forwarded() {
    run(async {
        let (fixture, mut requested_services) =
            DnsFixture::new("nameserver 127.0.0.1\n", name_server().await);
        fixture.set_records(&[("shop/web", &[[10, 96, 0, 9].into()]), ("shop/elsewhere", &[])]);
        for transport in [DnsTransport::Udp, DnsTransport::Tcp] {
            let reply = fixture.send_query(WEB, transport).await.unwrap();
            assert_eq!(reply.answers[0].data.ip_addr(), Some([10, 96, 0, 9].into()));
            for name in ["elsewhere.shop.svc.cluster.local.", "example.com."] {
                let reply = fixture.send_query(name, transport).await.unwrap();
                assert_eq!(reply.metadata.response_code, ResponseCode::Refused, "{name}");
            }
        }
        assert_eq!(fixture.query_counts(), [2, 4, 0]);
        // The application is about to connect.
        assert_eq!(
            requested_services.try_recv(),
            Ok(ResourceRequest::Address([10, 96, 0, 9].into()))
        );
    });
}

#[test]
fn a_name_is_requested_once_and_its_record_awaited() {
    run(async {
        let (fixture, mut requested_services) =
            DnsFixture::new("nameserver 127.0.0.1\n", name_server().await);
        fixture.set_records(&[]);
        let responses = async {
            let resource_request = requested_services.recv().await;
            assert_eq!(resource_request, Some(ResourceRequest::Name("shop/web".parse().unwrap())));
            fixture.set_records(&[("shop/web", &[[10, 96, 0, 9].into()])]);
        };
        let (reply, ()) = tokio::join!(fixture.send_query(WEB, DnsTransport::Udp), responses);
        assert_eq!(reply.unwrap().answers.len(), 1);
        assert_eq!(fixture.query_counts(), [1, 0, 0]);
    });
}

#[test]
fn queries_do_not_wait_for_an_unresponsive_control_plane() {
    run(async {
        let (fixture, mut requested_services) =
            DnsFixture::new("nameserver 127.0.0.1\n", name_server().await);
        fixture.set_records(&[]);
        let start_time = Instant::now();
        assert!(fixture.send_query(WEB, DnsTransport::Udp).await.is_some());
        assert!(start_time.elapsed() >= MAX_CONTROL_WAIT);
        // After a timeout, queries do not wait for the control plane, but are still sent to it.
        assert!(fixture.handler.control_silent_until.get().is_some());
        assert!(
            fixture.send_query("api.shop.svc.cluster.local.", DnsTransport::Udp).await.is_some()
        );
        assert_eq!(
            requested_services.try_recv(),
            Ok(ResourceRequest::Name("shop/web".parse().unwrap()))
        );
        assert_eq!(
            requested_services.try_recv(),
            Ok(ResourceRequest::Name("shop/api".parse().unwrap()))
        );
        // Without a control plane, known records may be outdated.
        fixture.set_records(&[("shop/web", &[[10, 96, 0, 9].into()])]);
        fixture.handler.control_client.is_connected.set(false);
        let reply = fixture.send_query(WEB, DnsTransport::Udp).await.unwrap();
        assert_eq!(reply.metadata.response_code, ResponseCode::Refused);
        assert_eq!(fixture.query_counts(), [0, 3, 0]);
    });
}

#[test]
fn the_next_name_server_is_queried_after_a_failure() {
    run(async {
        let port = name_server().await;
        // The first address has no server.
        let (fixture, _requested_services) =
            DnsFixture::new("nameserver 127.0.0.3\nnameserver 127.0.0.1\n", port);
        let reply = fixture.send_query("example.com.", DnsTransport::Udp).await.unwrap();
        assert_eq!(reply.metadata.response_code, ResponseCode::Refused);
        let silent_name_server = "nameserver 127.0.0.3\n";
        std::fs::write(fixture.scratch.path().join("resolv.conf"), silent_name_server).unwrap();
        let (fixture, _requested_services) = DnsFixture::new(silent_name_server, port);
        for transport in [DnsTransport::Udp, DnsTransport::Tcp] {
            let reply = fixture.send_query("example.com.", transport).await.unwrap();
            assert_eq!(
                (reply.metadata.response_code, reply.queries.len()),
                (ResponseCode::ServFail, 1)
            );
        }
        assert_eq!(fixture.query_counts(), [0, 0, 2]);
    });
}

/// A name server that denies every name.
async fn start_denying_server(address: &str, port: u16) {
    let udp = UdpSocket::bind((address, port)).await.unwrap();
    tokio::task::spawn_local(async move {
        let mut packet = [0; 512];
        loop {
            let (length, client) = udp.recv_from(&mut packet).await.unwrap();
            let mut response = refused_response(&packet[..length]);
            response[3] = 0x03;
            udp.send_to(&response, client).await.unwrap();
        }
    });
}

#[test]
fn an_error_response_is_returned_if_no_server_has_a_better_one() {
    run(async {
        let port = name_server().await;
        let two_name_servers = "nameserver 127.0.0.1\nnameserver 127.0.0.4\n";
        let (fixture, _requested_services) = DnsFixture::new(two_name_servers, port);
        let send = async || {
            fixture
                .send_query("example.com.", DnsTransport::Udp)
                .await
                .unwrap()
                .metadata
                .response_code
        };
        assert_eq!(send().await, ResponseCode::Refused);
        start_denying_server("127.0.0.4", port).await;
        assert_eq!(send().await, ResponseCode::NXDomain);
        assert_eq!(fixture.query_counts(), [0, 2, 0]);
    });
}

#[test]
fn the_last_responsive_server_is_queried_first() {
    run(async {
        let (silent, _tcp) = bind_sockets().await;
        let port = silent.local_addr().unwrap().port();
        start_denying_server("127.0.0.4", port).await;
        let two_name_servers = "nameserver 127.0.0.1\nnameserver 127.0.0.4\n";
        let (fixture, _requested_services) = DnsFixture::new(two_name_servers, port);
        for waits in [true, false] {
            let start_time = Instant::now();
            let reply = fixture.send_query("example.com.", DnsTransport::Udp).await.unwrap();
            assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain);
            assert_eq!(start_time.elapsed() > Duration::from_secs(1), waits);
        }
    });
}

#[test]
fn known_names_are_resolved_while_other_queries_wait() {
    run(async {
        let (fixture, mut requested_services) =
            DnsFixture::new("nameserver 127.0.0.1\n", name_server().await);
        fixture.set_records(&[("shop/web", &[[10, 96, 0, 9].into(), "fd00::9".parse().unwrap()])]);
        let query_count = u32::try_from(MAX_PENDING_QUERIES).unwrap();
        let _slots = fixture
            .handler
            .pending_query_permits
            .clone()
            .try_acquire_many_owned(query_count)
            .unwrap();
        let reply = fixture.send_query(WEB, DnsTransport::Udp).await.unwrap();
        assert_eq!(reply.answers.len(), 1);
        let reply = fixture.send_query("example.com.", DnsTransport::Udp).await.unwrap();
        assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
        assert_eq!(fixture.query_counts(), [1, 0, 1]);
        // No connection to an address of the other IP version is expected.
        assert_eq!(
            requested_services.try_recv(),
            Ok(ResourceRequest::Address([10, 96, 0, 9].into()))
        );
        assert!(requested_services.try_recv().is_err());
    });
}

#[test]
fn requests_for_new_names_are_limited() {
    run(async {
        let (fixture, mut requested_services) =
            DnsFixture::new("nameserver 127.0.0.1\n", name_server().await);
        fixture.set_records(&[]);
        // Queries do not wait for the control plane, but are sent to it.
        fixture.handler.control_silent_until.set(Some(Instant::now() + CONTROL_SILENCE));
        let count = query_budget::MAX_TOKENS * 4;
        let start_time = Instant::now();
        for index in 0..count {
            let name = format!("example.s{index}.svc.cluster.local.");
            assert!(fixture.send_query(&name, DnsTransport::Udp).await.is_some());
        }
        let refilled_tokens = start_time.elapsed().as_millis() / 100 + 1;
        let mut query_count = 0;
        while requested_services.try_recv().is_ok() {
            query_count += 1;
        }
        assert!(
            query_count <= u128::from(query_budget::MAX_TOKENS) + refilled_tokens,
            "{query_count}"
        );
        assert_eq!(fixture.query_counts(), [0, count.into(), 0]);
    });
}

#[test]
fn a_port_in_use_is_retried() {
    run(async {
        let (fixture, _requested_services) =
            DnsFixture::new("nameserver 127.0.0.1\n", name_server().await);
        fixture.set_records(&[("shop/web", &[[10, 96, 0, 9].into()])]);
        let (udp, tcp) = bind_sockets().await;
        let address = udp.local_addr().unwrap();
        tokio::task::spawn_local(fixture.handler.clone().serve_udp(address));
        tokio::task::spawn_local(fixture.handler.clone().serve_tcp(address, connection_slots()));
        // Both tasks get a turn, and find the address in use.
        tokio::task::yield_now().await;
        assert!(UdpSocket::bind(address).await.is_err());
        drop((udp, tcp));
        while TcpStream::connect(address).await.is_err() {
            tokio::task::yield_now().await;
        }
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut reply = [0; 512];
        let length = loop {
            client.send_to(&query_packet(WEB), address).await.unwrap();
            tokio::task::yield_now().await;
            if let Ok(length) = client.try_recv(&mut reply) {
                break length;
            }
        };
        assert!(length > 12);
    });
}

fn connection_slots() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(4))
}

#[test]
fn the_server_accepts_udp_and_tcp_and_ignores_malformed_queries() {
    run(async {
        let (fixture, _requested_services) =
            DnsFixture::new("nameserver 127.0.0.1\n", name_server().await);
        fixture.set_records(&[("shop/web", &[[10, 96, 0, 9].into()])]);
        let free_address = bind_sockets().await.0.local_addr().unwrap();
        tokio::task::spawn_local(fixture.handler.clone().serve_udp(free_address));
        tokio::task::spawn_local(
            fixture.handler.clone().serve_tcp(free_address, connection_slots()),
        );
        tokio::task::yield_now().await;
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        client.connect(free_address).await.unwrap();
        let mut packet_back = [0; 512];
        let too_long = [query_packet(WEB), vec![0; MAX_QUERY_BYTES]].concat();
        for nonsense in [&b""[..], b"hello", &refused_response(&query_packet(WEB)), &too_long] {
            client.send(nonsense).await.unwrap();
        }
        client.send(&query_packet(WEB)).await.unwrap();
        let length = client.recv(&mut packet_back).await.unwrap();
        assert_eq!(Message::from_vec(&packet_back[..length]).unwrap().answers.len(), 1);
        let mut tcp = TcpStream::connect(free_address).await.unwrap();
        for _ in 0..2 {
            tcp.write_all(&resolvers::frame_message(&query_packet(WEB))).await.unwrap();
            let length = tcp.read_u16().await.unwrap();
            let mut reply = vec![0; usize::from(length)];
            tcp.read_exact(&mut reply).await.unwrap();
            assert_eq!(Message::from_vec(&reply).unwrap().answers.len(), 1);
        }
        // A query over the length limit ends the connection.
        tcp.write_all(&[0xff, 0xff]).await.unwrap();
        assert!(tcp.read_u8().await.is_err());
        assert_eq!(fixture.query_counts(), [3, 0, 4]);
    });
}
