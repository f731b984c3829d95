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
struct Bench {
    answerer: Rc<DnsQueryHandler>,
    telemetry: Arc<Telemetry>,
    scratch: tempfile::TempDir,
}

impl Bench {
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
        let (config_store, wanted) =
            ConfigStore::new(state.stored_names(), std::time::Instant::now());
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
        control_client.connected.set(true);
        let resolvers = Resolvers::new(file, port, |_| false);
        let answerer = DnsQueryHandler::new(control_client, ClusterDomain::default(), resolvers);
        (Self { answerer: Rc::new(answerer), telemetry, scratch }, wanted)
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
        self.answerer.control_client.config_store.apply_update(&update).unwrap();
    }

    async fn send_query(&self, name: &str, over: DnsTransport) -> Option<Message> {
        let reply = self.answerer.reply_to(&query_packet(name), over).await?;
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
    let mut answer = query.to_vec();
    answer[2] |= 0x80;
    answer[3] = 0x05;
    answer
}

/// A name server that refuses all queries, over UDP and TCP, after a response to another query.
async fn name_server() -> u16 {
    let (udp, tcp) = bind_sockets().await;
    let port = udp.local_addr().unwrap().port();
    tokio::task::spawn_local(async move {
        let mut packet = [0; 512];
        loop {
            let (length, from) = udp.recv_from(&mut packet).await.unwrap();
            let mut other = refused_response(&packet[..length]);
            other[0] ^= 1;
            udp.send_to(&other, from).await.unwrap();
            udp.send_to(&refused_response(&packet[..length]), from).await.unwrap();
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
fn what_the_mesh_knows_is_answered_and_all_else_passed_on() {
    run(async {
        let (bench, mut wanted) = Bench::new("nameserver 127.0.0.1\n", name_server().await);
        bench.set_records(&[("shop/web", &[[10, 96, 0, 9].into()]), ("shop/elsewhere", &[])]);
        for over in [DnsTransport::Udp, DnsTransport::Tcp] {
            let reply = bench.send_query(WEB, over).await.unwrap();
            assert_eq!(reply.answers[0].data.ip_addr(), Some([10, 96, 0, 9].into()));
            for name in ["elsewhere.shop.svc.cluster.local.", "example.com."] {
                let reply = bench.send_query(name, over).await.unwrap();
                assert_eq!(reply.metadata.response_code, ResponseCode::Refused, "{name}");
            }
        }
        assert_eq!(bench.query_counts(), [2, 4, 0]);
        // The application is about to connect.
        assert_eq!(wanted.try_recv(), Ok(ResourceRequest::Address([10, 96, 0, 9].into())));
    });
}

#[test]
fn a_name_is_asked_for_once_and_its_answer_waited_for() {
    run(async {
        let (bench, mut wanted) = Bench::new("nameserver 127.0.0.1\n", name_server().await);
        bench.set_records(&[]);
        let answered = async {
            let want = wanted.recv().await;
            assert_eq!(want, Some(ResourceRequest::Name("shop/web".parse().unwrap())));
            bench.set_records(&[("shop/web", &[[10, 96, 0, 9].into()])]);
        };
        let (reply, ()) = tokio::join!(bench.send_query(WEB, DnsTransport::Udp), answered);
        assert_eq!(reply.unwrap().answers.len(), 1);
        assert_eq!(bench.query_counts(), [1, 0, 0]);
    });
}

#[test]
fn nobody_waits_for_a_control_plane_that_says_nothing() {
    run(async {
        let (bench, mut wanted) = Bench::new("nameserver 127.0.0.1\n", name_server().await);
        bench.set_records(&[]);
        let began = Instant::now();
        assert!(bench.send_query(WEB, DnsTransport::Udp).await.is_some());
        assert!(began.elapsed() >= MAX_WAIT);
        // After a timeout, queries do not wait for the control plane, but are still sent to it.
        assert!(bench.answerer.silent_until.get().is_some());
        assert!(bench.send_query("api.shop.svc.cluster.local.", DnsTransport::Udp).await.is_some());
        assert_eq!(wanted.try_recv(), Ok(ResourceRequest::Name("shop/web".parse().unwrap())));
        assert_eq!(wanted.try_recv(), Ok(ResourceRequest::Name("shop/api".parse().unwrap())));
        // Without a control plane, known records may be outdated.
        bench.set_records(&[("shop/web", &[[10, 96, 0, 9].into()])]);
        bench.answerer.control_client.connected.set(false);
        let reply = bench.send_query(WEB, DnsTransport::Udp).await.unwrap();
        assert_eq!(reply.metadata.response_code, ResponseCode::Refused);
        assert_eq!(bench.query_counts(), [0, 3, 0]);
    });
}

#[test]
fn the_next_name_server_is_asked_when_one_fails() {
    run(async {
        let port = name_server().await;
        // The first address has no server.
        let (bench, _wanted) = Bench::new("nameserver 127.0.0.3\nnameserver 127.0.0.1\n", port);
        let reply = bench.send_query("example.com.", DnsTransport::Udp).await.unwrap();
        assert_eq!(reply.metadata.response_code, ResponseCode::Refused);
        let nobody = "nameserver 127.0.0.3\n";
        std::fs::write(bench.scratch.path().join("resolv.conf"), nobody).unwrap();
        let (bench, _wanted) = Bench::new(nobody, port);
        for over in [DnsTransport::Udp, DnsTransport::Tcp] {
            let reply = bench.send_query("example.com.", over).await.unwrap();
            assert_eq!(
                (reply.metadata.response_code, reply.queries.len()),
                (ResponseCode::ServFail, 1)
            );
        }
        assert_eq!(bench.query_counts(), [0, 0, 2]);
    });
}

/// A name server that denies every name.
async fn start_denier(address: &str, port: u16) {
    let udp = UdpSocket::bind((address, port)).await.unwrap();
    tokio::task::spawn_local(async move {
        let mut packet = [0; 512];
        loop {
            let (length, from) = udp.recv_from(&mut packet).await.unwrap();
            let mut answer = refused_response(&packet[..length]);
            answer[3] = 0x03;
            udp.send_to(&answer, from).await.unwrap();
        }
    });
}

#[test]
fn who_gives_up_is_believed_when_nobody_has_more_to_say() {
    run(async {
        let port = name_server().await;
        let both = "nameserver 127.0.0.1\nnameserver 127.0.0.4\n";
        let (bench, _wanted) = Bench::new(both, port);
        let ask = async || {
            bench
                .send_query("example.com.", DnsTransport::Udp)
                .await
                .unwrap()
                .metadata
                .response_code
        };
        assert_eq!(ask().await, ResponseCode::Refused);
        start_denier("127.0.0.4", port).await;
        assert_eq!(ask().await, ResponseCode::NXDomain);
        assert_eq!(bench.query_counts(), [0, 2, 0]);
    });
}

#[test]
fn who_answered_last_is_asked_first() {
    run(async {
        let (silent, _tcp) = bind_sockets().await;
        let port = silent.local_addr().unwrap().port();
        start_denier("127.0.0.4", port).await;
        let both = "nameserver 127.0.0.1\nnameserver 127.0.0.4\n";
        let (bench, _wanted) = Bench::new(both, port);
        for waits in [true, false] {
            let began = Instant::now();
            let reply = bench.send_query("example.com.", DnsTransport::Udp).await.unwrap();
            assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain);
            assert_eq!(began.elapsed() > Duration::from_secs(1), waits);
        }
    });
}

#[test]
fn what_is_known_is_answered_while_all_others_wait() {
    run(async {
        let (bench, mut wanted) = Bench::new("nameserver 127.0.0.1\n", name_server().await);
        bench.set_records(&[("shop/web", &[[10, 96, 0, 9].into(), "fd00::9".parse().unwrap()])]);
        let all = u32::try_from(UNDER_WAY_MAX).unwrap();
        let _slots = bench.answerer.under_way.clone().try_acquire_many_owned(all).unwrap();
        let reply = bench.send_query(WEB, DnsTransport::Udp).await.unwrap();
        assert_eq!(reply.answers.len(), 1);
        let reply = bench.send_query("example.com.", DnsTransport::Udp).await.unwrap();
        assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
        assert_eq!(bench.query_counts(), [1, 0, 1]);
        // No connection to an address of the other IP version is expected.
        assert_eq!(wanted.try_recv(), Ok(ResourceRequest::Address([10, 96, 0, 9].into())));
        assert!(wanted.try_recv().is_err());
    });
}

#[test]
fn nobody_asks_without_end_about_names_that_are_new() {
    run(async {
        let (bench, mut wanted) = Bench::new("nameserver 127.0.0.1\n", name_server().await);
        bench.set_records(&[]);
        // Queries do not wait for the control plane, but are sent to it.
        bench.answerer.silent_until.set(Some(Instant::now() + SILENCE));
        let count = query_budget::BURST * 4;
        let began = Instant::now();
        for index in 0..count {
            let name = format!("example.s{index}.svc.cluster.local.");
            assert!(bench.send_query(&name, DnsTransport::Udp).await.is_some());
        }
        let earned = began.elapsed().as_millis() / 100 + 1;
        let mut asked = 0;
        while wanted.try_recv().is_ok() {
            asked += 1;
        }
        assert!(asked <= u128::from(query_budget::BURST) + earned, "{asked}");
        assert_eq!(bench.query_counts(), [0, count.into(), 0]);
    });
}

#[test]
fn a_port_that_somebody_has_is_tried_again() {
    run(async {
        let (bench, _wanted) = Bench::new("nameserver 127.0.0.1\n", name_server().await);
        bench.set_records(&[("shop/web", &[[10, 96, 0, 9].into()])]);
        let (udp, tcp) = bind_sockets().await;
        let address = udp.local_addr().unwrap();
        tokio::task::spawn_local(bench.answerer.clone().serve_udp(address));
        tokio::task::spawn_local(bench.answerer.clone().serve_tcp(address, connection_slots()));
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
fn it_listens_over_udp_and_tcp_and_takes_no_nonsense() {
    run(async {
        let (bench, _wanted) = Bench::new("nameserver 127.0.0.1\n", name_server().await);
        bench.set_records(&[("shop/web", &[[10, 96, 0, 9].into()])]);
        let free = bind_sockets().await.0.local_addr().unwrap();
        tokio::task::spawn_local(bench.answerer.clone().serve_udp(free));
        tokio::task::spawn_local(bench.answerer.clone().serve_tcp(free, connection_slots()));
        tokio::task::yield_now().await;
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        client.connect(free).await.unwrap();
        let mut packet_back = [0; 512];
        let too_long = [query_packet(WEB), vec![0; QUERY_BYTES_MAX]].concat();
        for nonsense in [&b""[..], b"hello", &refused_response(&query_packet(WEB)), &too_long] {
            client.send(nonsense).await.unwrap();
        }
        client.send(&query_packet(WEB)).await.unwrap();
        let length = client.recv(&mut packet_back).await.unwrap();
        assert_eq!(Message::from_vec(&packet_back[..length]).unwrap().answers.len(), 1);
        let mut tcp = TcpStream::connect(free).await.unwrap();
        for _ in 0..2 {
            tcp.write_all(&resolvers::frame_message(&query_packet(WEB))).await.unwrap();
            let length = tcp.read_u16().await.unwrap();
            let mut reply = vec![0; usize::from(length)];
            tcp.read_exact(&mut reply).await.unwrap();
            assert_eq!(Message::from_vec(&reply).unwrap().answers.len(), 1);
        }
        // Too long for a query: the connection ends.
        tcp.write_all(&[0xff, 0xff]).await.unwrap();
        assert!(tcp.read_u8().await.is_err());
        assert_eq!(bench.query_counts(), [3, 0, 4]);
    });
}
