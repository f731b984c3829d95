//! Floods of half-open handshakes on real processes, and the latency of legitimate clients meanwhile.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use leno_identity::{
    Authority, CertificateRequest, CertificateSubject, Credential, JoinBundle, PrivateKey,
    client_config, control_id, join_client_config, server_name,
};
use leno_model::{ServiceAccount, ServiceName, SpiffeId, TrustDomain, WorkloadName};
use leno_tests::manifests::{client_manifest, mesh_config, server_manifest};
use leno_tests::{TestApplication, TestMesh, free_port};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Stream};
use socket2::SockRef;

use super::descriptors::cpu_ticks;

/// A client of a server under attack, and its request after the handshake.
#[derive(Clone)]
pub(super) struct LegitimateClient {
    pub(super) address: SocketAddr,
    pub(super) config: Arc<ClientConfig>,
    pub(super) name: ServerName<'static>,
    pub(super) request: &'static [u8],
}

impl LegitimateClient {
    /// Performs a handshake and a request, and waits for the first byte or the end.
    fn measure_request(&self) -> Option<Duration> {
        let start = Instant::now();
        let mut tcp = TcpStream::connect_timeout(&self.address, MAX_WAIT).ok()?;
        tcp.set_read_timeout(Some(MAX_WAIT)).ok()?;
        tcp.set_nodelay(true).ok()?;
        let mut session =
            ClientConnection::new(Arc::clone(&self.config), self.name.clone()).ok()?;
        let mut stream = Stream::new(&mut session, &mut tcp);
        stream.write_all(self.request).ok()?;
        stream.flush().ok()?;
        let has_response = match (stream.read(&mut [0; 512]), self.request == NO_JOIN) {
            (Ok(read), is_join) => read > 0 || is_join,
            (Err(error), is_join) => is_join && error.kind() == std::io::ErrorKind::UnexpectedEof,
        };
        reset_on_close(&tcp);
        has_response.then(|| start.elapsed())
    }

    /// Returns the ClientHello of such a client.
    fn client_hello(&self) -> Vec<u8> {
        let config = Arc::clone(&self.config);
        let mut session = ClientConnection::new(config, self.name.clone()).expect("a session");
        let mut bytes = Vec::new();
        session.write_tls(&mut bytes).expect("memory takes all");
        bytes
    }
}

/// Closes without TIME_WAIT: there are only 28,000 ports.
fn reset_on_close(tcp: &TcpStream) {
    SockRef::from(tcp).set_linger(Some(Duration::ZERO)).ok();
}

/// Opens half-open handshakes at this rate; each lasts until the server closes it, at most 10 s.
fn flood_handshakes(address: SocketAddr, payload: Vec<u8>, deadline: Instant) -> JoinHandle<usize> {
    std::thread::spawn(move || {
        let (mut open, mut number) = (std::collections::VecDeque::new(), 0_u32);
        let start = Instant::now();
        while Instant::now() < deadline {
            let due = start + Duration::from_secs(1) / RATE * number;
            let wait = due.saturating_duration_since(Instant::now());
            if wait > Duration::from_millis(1) {
                std::thread::park_timeout(wait);
                continue;
            }
            if let Ok(mut tcp) = TcpStream::connect_timeout(&address, Duration::from_millis(100)) {
                tcp.write_all(&payload).ok();
                open.push_back(tcp);
            }
            number += 1;
            while open.len() > RATE as usize * 10 {
                open.pop_front().inspect(reset_on_close);
            }
        }
        open.iter().for_each(reset_on_close);
        usize::try_from(number).unwrap_or_default()
    })
}

/// Prints one line for each kind of flood. Floods run one at a time: two would have more connections open than
/// a process may have descriptors, and legitimate clients would fail for lack of one.
pub(super) fn measure_flood(server: &str, pid: u32, client: &LegitimateClient) {
    static FLOOD_LOCK: Mutex<()> = Mutex::new(());
    let _lock = FLOOD_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let hello = client.client_hello();
    let kinds = [("one byte", hello[..1].to_vec()), ("a complete ClientHello", hello)];
    for (kind, payload) in kinds {
        let latencies_before: Vec<_> = (0..10).map(|_| client.measure_request()).collect();
        let (start, before) = (Instant::now(), cpu_ticks(pid));
        let flood = flood_handshakes(client.address, payload, start + FLOOD_DURATION);
        let mut requests = Vec::new();
        let mut next = start;
        while next < start + FLOOD_DURATION {
            std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
            if Instant::now() < next {
                continue;
            }
            let client = client.clone();
            requests.push(std::thread::spawn(move || client.measure_request()));
            next += CLIENT_INTERVAL;
        }
        let number = flood.join().expect("the flood ends");
        let cpu = (cpu_ticks(pid) - before) as f64 / start.elapsed().as_secs_f64();
        let requests: Vec<_> =
            requests.into_iter().map(|request| request.join().expect("a visit")).collect();
        let format_latencies = |requests: &[Option<Duration>]| {
            let mut sorted: Vec<_> = requests.iter().flatten().copied().collect();
            sorted.sort();
            let percentile =
                |percent: usize| sorted.get((sorted.len().max(1) - 1) * percent / 100).copied();
            let failed = requests.len() - sorted.len();
            format!(
                "median {:?}, p99 {:?}, max {:?}, {failed} failed",
                percentile(50),
                percentile(99),
                percentile(100)
            )
        };
        let line = format!(
            "{server}, {number} of {kind}: {}; CPU {cpu:.0} %; calm: {}\n",
            format_latencies(&requests),
            format_latencies(&latencies_before)
        );
        std::io::Write::write_all(&mut std::io::stdout(), line.as_bytes()).unwrap();
    }
}

#[test]
#[ignore = "takes two minutes; run by hand to measure: half_open"]
fn latency_of_legitimate_clients_of_sidecar_and_control_plane_during_a_flood() {
    let stock = TestApplication::start_echo();
    let manifests = [
        mesh_config("allow"),
        server_manifest("stock", stock.port(), &[]),
        client_manifest("web", &[], &[("stock", free_port())]),
    ];
    let mesh = TestMesh::up(&manifests.concat());
    let sidecar = mesh.sidecar("shop/stock-1");
    let domain = TrustDomain::new("cluster.local").expect("a name");
    let directory = mesh.data_directory().join("authority");
    let authority = Authority::open_or_create(&directory, &domain, SystemTime::now());
    let authority = authority.expect("the authority of the mesh");
    let id = |name| SpiffeId {
        trust_domain: domain.clone(),
        account: ServiceAccount::new("shop", name).expect("a name"),
    };
    let key = PrivateKey::generate();
    let request = CertificateRequest::from_der(&key.certificate_request()).expect("a request");
    let (identity, workload) = (id("web"), WorkloadName::new("shop", "web-1").expect("a name"));
    let subject = CertificateSubject { id: &identity, workload: Some(&workload), instance: None };
    let hour = Duration::from_secs(3600);
    let issued =
        authority.sign(&request, subject, hour, SystemTime::now()).expect("the authority signs");
    let credential = Credential::new(key, issued).expect("a credential");
    let service = ServiceName::new("shop", "stock").expect("a name");
    let client = LegitimateClient {
        address: sidecar.inbound.expect("the sidecar has an inbound port"),
        config: client_config(&credential, &id("stock"), &[b"http/1.1"]).expect("a configuration"),
        name: server_name(&service).expect("a name"),
        request: b"GET / HTTP/1.1\r\nhost: stock\r\n\r\n",
    };
    measure_flood("sidecar", sidecar.pid, &client);
    let token = mesh.run_leno(&["token", "shop/web-1"]);
    let bundle = JoinBundle::parse(&String::from_utf8_lossy(&token.stdout)).expect("a bundle");
    let config = join_client_config(&bundle.roots, &control_id(&domain), &[b"leno-join/1"]);
    let address = bundle.control_addresses[0];
    let client = LegitimateClient {
        address,
        config: config.expect("a configuration"),
        name: ServerName::IpAddress(address.ip().into()),
        request: NO_JOIN,
    };
    measure_flood("control plane", mesh.up.pid(), &client);
}

/// An empty join: the control plane closes the connection.
const NO_JOIN: &[u8] = &[0, 0, 0, 0];
const MAX_WAIT: Duration = Duration::from_secs(12);
/// The rate of half-open handshakes, per second.
const RATE: u32 = 1000;
const FLOOD_DURATION: Duration = Duration::from_secs(30);
/// The interval between legitimate clients.
const CLIENT_INTERVAL: Duration = Duration::from_millis(100);
