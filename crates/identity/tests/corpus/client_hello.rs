//! Properties of the TLS inbound listener for any first bytes of a client.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use leno_identity::{
    Authority, CertificateRequest, CertificateSubject, ClientHello, ClientHelloReader, Credential,
    LEAF_LIFETIME, PrivateKey, server_config,
};
use leno_model::TrustDomain;
use leno_wire::sniff::{DetectedProtocol, sniff_protocol};
use rustls::{ServerConfig, ServerConnection};

/// For any bytes: no panic, no accepted client by first bytes alone, a small response, and a result independent
/// of packet boundaries. A client that is answered as a TLS client is also classified as one by protocol
/// detection, unless a warning precedes the hello: TLS ignores it, and no client sends it.
///
/// A listener that passes TLS through finds the same server name in the same bytes, and must decide by then.
pub(crate) fn check_input(bytes: &[u8]) {
    let whole = Reported::from_bytes(bytes, bytes.len().max(1));
    assert!(whole.answer_bytes <= ANSWER_BYTES_MAX, "{} bytes", whole.answer_bytes);
    if whole.answered && bytes.first() != Some(&ALERT_RECORD) {
        assert_eq!(sniff_protocol(bytes), DetectedProtocol::Tls);
    }
    for size in [1, 5, 64] {
        let cut = Reported::from_bytes(bytes, size);
        assert_eq!((cut.answered, &cut.error), (whole.answered, &whole.error), "cut by {size}");
    }
    let passed = read_server_name(bytes, bytes.len().max(1));
    for size in [1, 5, 64] {
        assert_eq!(read_server_name(bytes, size), passed, "cut by {size}");
    }
    if let Some(name) = whole.name.filter(|_| bytes.first() != Some(&ALERT_RECORD)) {
        assert_eq!(passed, name.map_or(ClientHello::Unnamed, ClientHello::Named));
    }
    let endless = [bytes, &[0; UNDECIDED_BYTES_MAX]].concat();
    assert_ne!(read_server_name(&endless, 4096), ClientHello::More);
}

/// Returns the server name as a TLS passthrough listener reads it.
pub(crate) fn read_server_name(bytes: &[u8], packet: usize) -> ClientHello {
    let mut reader = ClientHelloReader::default();
    let mut end = 0;
    while end < bytes.len() {
        end = bytes.len().min(end.saturating_add(packet));
        match reader.read(&bytes[..end]) {
            ClientHello::More => {}
            decided => return decided,
        }
    }
    ClientHello::More
}

/// True if a sidecar continues the handshake that these bytes begin.
pub(crate) fn is_answered(bytes: &[u8]) -> bool {
    Reported::from_bytes(bytes, bytes.len()).answered
}

/// The server's result for the first bytes.
struct Reported {
    answered: bool,
    answer_bytes: usize,
    error: Option<String>,
    /// The server name requested by an answered client.
    name: Option<Option<String>>,
}

impl Reported {
    fn from_bytes(bytes: &[u8], packet: usize) -> Self {
        let mut server =
            ServerConnection::new(inbound_config()).expect("a connection needs no peer");
        let mut reported = Self { answered: false, answer_bytes: 0, error: None, name: None };
        for mut rest in bytes.chunks(packet) {
            while !rest.is_empty() && reported.error.is_none() {
                server.read_tls(&mut rest).expect("memory can be read");
                let state = server.process_new_packets();
                reported.error = state.err().map(|error| format!("{error:?}"));
                let mut response = Vec::new();
                while server.wants_write() {
                    server.write_tls(&mut response).expect("memory can be written");
                }
                reported.answered |= response.starts_with(&[HANDSHAKE_RECORD]);
                reported.answer_bytes += response.len();
                if reported.answered && reported.name.is_none() {
                    reported.name = Some(server.server_name().map(str::to_owned));
                }
            }
        }
        assert!(server.is_handshaking(), "nobody has shown a certificate");
        assert!(server.peer_certificates().is_none());
        reported
    }
}

/// Returns the configuration of a sidecar's inbound listener, recreated in every run.
fn inbound_config() -> Arc<ServerConfig> {
    static CONFIG: OnceLock<Arc<ServerConfig>> = OnceLock::new();
    CONFIG.get_or_init(create_config).clone()
}

fn create_config() -> Arc<ServerConfig> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let now = SystemTime::now();
    let trust_domain = TrustDomain::new("cluster.local").expect("a name");
    let authority =
        Authority::open_or_create(dir.path(), &trust_domain, now).expect("an authority");
    let id = "spiffe://cluster.local/ns/bookinfo/sa/ratings".parse().expect("an identity");
    let key = PrivateKey::generate();
    let request = CertificateRequest::from_der(&key.certificate_request()).expect("a request");
    let subject = CertificateSubject { id: &id, workload: None, instance: None };
    let issued = authority.sign(&request, subject, LEAF_LIFETIME, now).expect("a certificate");
    let credential = Credential::new(key, issued).expect("a credential");
    server_config(&credential, &[b"leno-link/1", b"h2", b"http/1.1"]).expect("a configuration")
}

const ALERT_RECORD: u8 = 21;
const HANDSHAKE_RECORD: u8 = 22;
/// A ServerHello and our certificate chain; an unauthenticated client receives no more.
const ANSWER_BYTES_MAX: usize = 4 * 1024;
/// The server name is known, or definitely absent, after this number of bytes.
const UNDECIDED_BYTES_MAX: usize = 32 * 1024;
