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

/// Checks that any first bytes cause no panic, do not authenticate a client, and cause only a small response, and that
/// the result does not depend on packet boundaries. If the server responds as to a TLS client, protocol detection must
/// detect TLS, unless the bytes begin with an alert: TLS ignores it, and no client sends it.
///
/// A TLS passthrough listener must find the same server name in the same bytes, and must find it or its absence within
/// [`MAX_UNDECIDED_BYTES`].
pub(crate) fn check_input(bytes: &[u8]) {
    let whole = HandshakeStart::from_bytes(bytes, bytes.len().max(1));
    assert!(whole.response_bytes <= MAX_RESPONSE_BYTES, "{} bytes", whole.response_bytes);
    if whole.has_response && bytes.first() != Some(&ALERT_RECORD) {
        assert_eq!(sniff_protocol(bytes), DetectedProtocol::Tls);
    }
    for size in [1, 5, 64] {
        let split = HandshakeStart::from_bytes(bytes, size);
        assert_eq!(
            (split.has_response, &split.error),
            (whole.has_response, &whole.error),
            "cut by {size}"
        );
    }
    let passthrough_name = read_server_name(bytes, bytes.len().max(1));
    for size in [1, 5, 64] {
        assert_eq!(read_server_name(bytes, size), passthrough_name, "cut by {size}");
    }
    if let Some(name) = whole.name.filter(|_| bytes.first() != Some(&ALERT_RECORD)) {
        assert_eq!(
            passthrough_name,
            name.map_or(ClientHello::NoServerName, ClientHello::ServerName)
        );
    }
    let endless = [bytes, &[0; MAX_UNDECIDED_BYTES]].concat();
    assert_ne!(read_server_name(&endless, 4096), ClientHello::Incomplete);
}

/// Returns the server name as a TLS passthrough listener reads it.
pub(crate) fn read_server_name(bytes: &[u8], packet_bytes: usize) -> ClientHello {
    let mut reader = ClientHelloReader::default();
    let mut received_bytes = 0;
    while received_bytes < bytes.len() {
        received_bytes = bytes.len().min(received_bytes.saturating_add(packet_bytes));
        match reader.read(&bytes[..received_bytes]) {
            ClientHello::Incomplete => {}
            result => return result,
        }
    }
    ClientHello::Incomplete
}

/// True if a sidecar continues the handshake that these bytes begin.
pub(crate) fn starts_handshake(bytes: &[u8]) -> bool {
    HandshakeStart::from_bytes(bytes, bytes.len()).has_response
}

/// The server's result for the first bytes.
struct HandshakeStart {
    has_response: bool,
    response_bytes: usize,
    error: Option<String>,
    /// The server name requested by a client that gets a response.
    name: Option<Option<String>>,
}

impl HandshakeStart {
    fn from_bytes(bytes: &[u8], packet_bytes: usize) -> Self {
        let mut server =
            ServerConnection::new(inbound_config()).expect("a connection needs no peer");
        let mut start = Self { has_response: false, response_bytes: 0, error: None, name: None };
        for mut packet in bytes.chunks(packet_bytes) {
            while !packet.is_empty() && start.error.is_none() {
                server.read_tls(&mut packet).expect("memory can be read");
                let state = server.process_new_packets();
                start.error = state.err().map(|error| format!("{error:?}"));
                let mut response = Vec::new();
                while server.wants_write() {
                    server.write_tls(&mut response).expect("memory can be written");
                }
                start.has_response |= response.starts_with(&[HANDSHAKE_RECORD]);
                start.response_bytes += response.len();
                if start.has_response && start.name.is_none() {
                    start.name = Some(server.server_name().map(str::to_owned));
                }
            }
        }
        assert!(server.is_handshaking(), "no peer has presented a certificate");
        assert!(server.peer_certificates().is_none());
        start
    }
}

/// Returns the configuration of a sidecar's inbound listener, recreated in every run.
fn inbound_config() -> Arc<ServerConfig> {
    static CONFIG: OnceLock<Arc<ServerConfig>> = OnceLock::new();
    CONFIG.get_or_init(create_config).clone()
}

fn create_config() -> Arc<ServerConfig> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let now = SystemTime::now();
    let trust_domain = TrustDomain::new("cluster.local").expect("a name");
    let authority =
        Authority::open_or_create(directory.path(), &trust_domain, now).expect("an authority");
    let id = "spiffe://cluster.local/ns/bookinfo/sa/ratings".parse().expect("an identity");
    let key = PrivateKey::generate();
    let request = CertificateRequest::from_der(&key.certificate_request()).expect("a request");
    let subject = CertificateSubject { id: &id, workload: None, instance: None };
    let bundle = authority.sign(&request, subject, LEAF_LIFETIME, now).expect("a certificate");
    let credential = Credential::new(key, bundle).expect("a credential");
    server_config(&credential, &[b"leno-link/1", b"h2", b"http/1.1"]).expect("a configuration")
}

/// The TLS record type of an alert (RFC 8446 §5.1).
const ALERT_RECORD: u8 = 21;
/// The TLS record type of a handshake message (RFC 8446 §5.1).
const HANDSHAKE_RECORD: u8 = 22;
/// Maximum size of a response to an unauthenticated client: a ServerHello and the server's certificate chain.
const MAX_RESPONSE_BYTES: usize = 4 * 1024;
/// Maximum number of bytes after which the server name is known or known to be absent.
const MAX_UNDECIDED_BYTES: usize = 32 * 1024;
