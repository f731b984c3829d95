//! Floods real processes with unfinished handshakes, and measures the latency of legitimate clients meanwhile. A
//! handshake is pending if its client has connected and does not complete the TLS handshake.

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
    pub(super) server_name: ServerName<'static>,
    pub(super) request: &'static [u8],
}

impl LegitimateClient {
    /// Performs a handshake and a request, and waits for the first byte or the end of the response.
    fn measure_request(&self) -> Option<Duration> {
        let started_at = Instant::now();
        let mut stream = TcpStream::connect_timeout(&self.address, MAX_WAIT).ok()?;
        stream.set_read_timeout(Some(MAX_WAIT)).ok()?;
        stream.set_nodelay(true).ok()?;
        let mut session =
            ClientConnection::new(Arc::clone(&self.config), self.server_name.clone()).ok()?;
        let mut tls_stream = Stream::new(&mut session, &mut stream);
        tls_stream.write_all(self.request).ok()?;
        tls_stream.flush().ok()?;
        let has_response = match (tls_stream.read(&mut [0; 512]), self.request == NO_JOIN) {
            (Ok(read), is_join) => read > 0 || is_join,
            (Err(error), is_join) => is_join && error.kind() == std::io::ErrorKind::UnexpectedEof,
        };
        reset_on_close(&stream);
        has_response.then(|| started_at.elapsed())
    }

    /// Returns the ClientHello of this client.
    fn client_hello(&self) -> Vec<u8> {
        let config = Arc::clone(&self.config);
        let mut session =
            ClientConnection::new(config, self.server_name.clone()).expect("a session");
        let mut bytes = Vec::new();
        session.write_tls(&mut bytes).expect("memory takes all");
        bytes
    }
}

/// Resets the connection when it is closed, without TIME_WAIT: there are only 28,000 ports.
fn reset_on_close(stream: &TcpStream) {
    SockRef::from(stream).set_linger(Some(Duration::ZERO)).ok();
}

/// Starts handshakes at this rate, without finishing them; each lasts until the server closes it, at most 10 s.
fn flood_handshakes(address: SocketAddr, payload: Vec<u8>, deadline: Instant) -> JoinHandle<usize> {
    std::thread::spawn(move || {
        let (mut open_handshakes, mut handshake_count) = (std::collections::VecDeque::new(), 0_u32);
        let started_at = Instant::now();
        while Instant::now() < deadline {
            let due_at =
                started_at + Duration::from_secs(1) / HANDSHAKES_PER_SECOND * handshake_count;
            let delay = due_at.saturating_duration_since(Instant::now());
            if delay > Duration::from_millis(1) {
                std::thread::park_timeout(delay);
                continue;
            }
            if let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_millis(100))
            {
                stream.write_all(&payload).ok();
                open_handshakes.push_back(stream);
            }
            handshake_count += 1;
            while open_handshakes.len() > HANDSHAKES_PER_SECOND as usize * 10 {
                open_handshakes.pop_front().inspect(reset_on_close);
            }
        }
        open_handshakes.iter().for_each(reset_on_close);
        usize::try_from(handshake_count).unwrap_or_default()
    })
}

/// Prints one line for each kind of flood. Floods run one at a time: two would have more connections open than
/// a process may have descriptors, and legitimate clients would fail for lack of a descriptor.
pub(super) fn measure_flood(server: &str, pid: u32, client: &LegitimateClient) {
    static FLOOD_LOCK: Mutex<()> = Mutex::new(());
    let _lock = FLOOD_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let hello = client.client_hello();
    let kinds = [("one byte", hello[..1].to_vec()), ("a complete ClientHello", hello)];
    for (kind, payload) in kinds {
        let latencies_before: Vec<_> = (0..10).map(|_| client.measure_request()).collect();
        let (started_at, ticks_before) = (Instant::now(), cpu_ticks(pid));
        let flood = flood_handshakes(client.address, payload, started_at + FLOOD_DURATION);
        let mut requests = Vec::new();
        let mut next_request_at = started_at;
        while next_request_at < started_at + FLOOD_DURATION {
            std::thread::park_timeout(next_request_at.saturating_duration_since(Instant::now()));
            if Instant::now() < next_request_at {
                continue;
            }
            let client = client.clone();
            requests.push(std::thread::spawn(move || client.measure_request()));
            next_request_at += CLIENT_INTERVAL;
        }
        let handshake_count = flood.join().expect("the flood ends");
        let cpu_percent =
            (cpu_ticks(pid) - ticks_before) as f64 / started_at.elapsed().as_secs_f64();
        let requests: Vec<_> =
            requests.into_iter().map(|request| request.join().expect("a visit")).collect();
        let format_latencies = |requests: &[Option<Duration>]| {
            let mut sorted_latencies: Vec<_> = requests.iter().flatten().copied().collect();
            sorted_latencies.sort();
            let percentile = |percent: usize| {
                sorted_latencies.get((sorted_latencies.len().max(1) - 1) * percent / 100).copied()
            };
            let failure_count = requests.len() - sorted_latencies.len();
            format!(
                "median {:?}, p99 {:?}, max {:?}, {failure_count} failed",
                percentile(50),
                percentile(99),
                percentile(100)
            )
        };
        let line = format!(
            "{server}, {handshake_count} of {kind}: {}; CPU {cpu_percent:.0} %; calm: {}\n",
            format_latencies(&requests),
            format_latencies(&latencies_before)
        );
        std::io::Write::write_all(&mut std::io::stdout(), line.as_bytes()).unwrap();
    }
}

#[test]
#[ignore = "takes two minutes; run by hand to measure: pending_connections"]
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
    let identity_of = |name| SpiffeId {
        trust_domain: domain.clone(),
        account: ServiceAccount::new("shop", name).expect("a name"),
    };
    let key = PrivateKey::generate();
    let request = CertificateRequest::from_der(&key.certificate_request()).expect("a request");
    let (identity, workload) =
        (identity_of("web"), WorkloadName::new("shop", "web-1").expect("a name"));
    let subject = CertificateSubject { id: &identity, workload: Some(&workload), instance: None };
    let one_hour = Duration::from_secs(3600);
    let certificate_bundle = authority
        .sign(&request, subject, one_hour, SystemTime::now())
        .expect("the authority signs");
    let credential = Credential::new(key, certificate_bundle).expect("a credential");
    let service = ServiceName::new("shop", "stock").expect("a name");
    let client = LegitimateClient {
        address: sidecar.inbound.expect("the sidecar has an inbound port"),
        config: client_config(&credential, &identity_of("stock"), &[b"http/1.1"])
            .expect("a configuration"),
        server_name: server_name(&service).expect("a name"),
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
        server_name: ServerName::IpAddress(address.ip().into()),
        request: NO_JOIN,
    };
    measure_flood("control plane", mesh.up.pid(), &client);
}

/// An empty join: the control plane closes the connection.
const NO_JOIN: &[u8] = &[0, 0, 0, 0];
const MAX_WAIT: Duration = Duration::from_secs(12);
/// The rate of unfinished handshakes, per second.
const HANDSHAKES_PER_SECOND: u32 = 1000;
const FLOOD_DURATION: Duration = Duration::from_secs(30);
/// The interval between legitimate clients.
const CLIENT_INTERVAL: Duration = Duration::from_millis(100);
