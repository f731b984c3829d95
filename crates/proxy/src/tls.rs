//! Accepts TLS sessions of clients, and caches the TLS configurations of each thread for clients and endpoints: they
//! are built once per certificate and expected peer.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use leno_identity::{
    Credential, ExternalPrincipal, Roots, VerifiedPeer, VerifyError, client_config,
    external_principal, external_principal_server_config, is_member_chain,
    permissive_server_config, server_config, session_peer,
};
use leno_listen::{PendingConnection, complete_handshake, read_hello, reset_on_drop};
use leno_model::{Name, Reason, SpiffeId};
use rustls::{ClientConfig, ServerConfig};
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::handshake;
use crate::worker::Worker;

/// The link protocol of this version.
pub(crate) const ALPN_LINK: &[u8] = b"leno/1";
/// HTTP/1.1 between two sidecars, for the requests of one client alone.
pub(crate) const ALPN_EXCLUSIVE: &[u8] = b"leno-http/1";
/// HTTP/2, for peers that are not Leno.
pub(crate) const ALPN_HTTP2: &[u8] = b"h2";
/// HTTP/1.1, the fallback for peers that are not Leno.
pub(crate) const ALPN_HTTP1: &[u8] = b"http/1.1";

/// The TLS configurations of one thread, dropped when the certificate is renewed.
#[derive(Default)]
pub(crate) struct TlsConfigs(RefCell<CachedTlsConfigs>);

/// The configurations built for one certificate.
#[derive(Default)]
struct CachedTlsConfigs {
    /// The certificate of all configurations; `None` before the first.
    credential: Option<Arc<Credential>>,
    /// The server configuration for ports that accept mesh members only.
    members: Option<Arc<ServerConfig>>,
    /// The server configuration for ports that also accept external principals.
    external_principals: Option<Arc<ServerConfig>>,
    /// The server configuration for ports that also accept clients without a certificate.
    permissive: Option<Arc<ServerConfig>>,
    /// The client configurations, by expected peer and offered protocols.
    client_configs: HashMap<(SpiffeId, AlpnOffer), Arc<ClientConfig>>,
}

/// The TLS clients that a port accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AcceptedClients {
    /// Mesh members.
    Members,
    /// Mesh members and external principals.
    ExternalPrincipals,
    /// All clients, also those without a certificate.
    Anyone,
}

/// The protocols offered to an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum AlpnOffer {
    /// The link, HTTP/2 and HTTP/1.1.
    All,
    /// HTTP/1.1 for one client; a sidecar of an older release selects the link instead.
    Exclusive,
    /// HTTP/1.1 only.
    Http1,
}

impl AlpnOffer {
    fn alpn_protocols(self) -> &'static [&'static [u8]] {
        match self {
            Self::All => &[ALPN_LINK, ALPN_HTTP2, ALPN_HTTP1],
            Self::Exclusive => &[ALPN_EXCLUSIVE, ALPN_LINK, ALPN_HTTP1],
            Self::Http1 => &[ALPN_HTTP1],
        }
    }
}

impl TlsConfigs {
    /// Returns the client configuration that accepts only `expected_peer`.
    pub(crate) fn client_config(
        &self,
        credential: &Arc<Credential>,
        expected_peer: SpiffeId,
        offer: AlpnOffer,
    ) -> Result<Arc<ClientConfig>, Reason> {
        let mut cached = self.0.borrow_mut();
        cached.refresh(credential);
        let key = (expected_peer, offer);
        if let Some(config) = cached.client_configs.get(&key) {
            return Ok(config.clone());
        }
        let config = client_config(credential, &key.0, offer.alpn_protocols())
            .map_err(|_| Reason::UpstreamHandshakeFailed)?;
        if cached.client_configs.len() >= MAX_CLIENT_CONFIGS {
            cached.client_configs.clear();
        }
        cached.client_configs.insert(key, config.clone());
        Ok(config)
    }

    /// Returns the server configuration for these clients; builds it once per certificate.
    fn server_config(
        &self,
        credential: &Arc<Credential>,
        accepted_clients: AcceptedClients,
    ) -> Result<Arc<ServerConfig>, Reason> {
        let mut cached = self.0.borrow_mut();
        cached.refresh(credential);
        let cached_config = match accepted_clients {
            AcceptedClients::Members => &mut cached.members,
            AcceptedClients::ExternalPrincipals => &mut cached.external_principals,
            AcceptedClients::Anyone => &mut cached.permissive,
        };
        if let Some(config) = cached_config {
            return Ok(config.clone());
        }
        let alpn = [ALPN_EXCLUSIVE, ALPN_LINK, ALPN_HTTP2, ALPN_HTTP1];
        let build_result = match accepted_clients {
            AcceptedClients::Members => server_config(credential, &alpn),
            AcceptedClients::ExternalPrincipals => {
                external_principal_server_config(credential, &alpn)
            }
            AcceptedClients::Anyone => permissive_server_config(credential, &alpn),
        };
        let config = build_result.map_err(|_| Reason::HandshakeFailed)?;
        *cached_config = Some(config.clone());
        Ok(config)
    }
}

impl CachedTlsConfigs {
    /// Drops all configurations if the certificate has changed.
    fn refresh(&mut self, credential: &Arc<Credential>) {
        let is_current =
            self.credential.as_ref().is_some_and(|cached| Arc::ptr_eq(cached, credential));
        if !is_current {
            *self = Self { credential: Some(credential.clone()), ..Self::default() };
        }
    }
}

/// A connection with an authenticated client, or with an anonymous client if the port accepts it.
pub(crate) struct AcceptedConnection {
    pub(crate) tls: TlsStream<TcpStream>,
    pub(crate) client: TlsClient,
}

/// The client of a TLS session, as its certificate identifies it.
pub(crate) enum TlsClient {
    /// A mesh member with a certificate of the mesh.
    Member(VerifiedPeer),
    /// A client with an identity of the mesh, but a certificate that the mesh has not issued. It counts as an
    /// external principal with that name, not as a member.
    ForeignCertificate(VerifiedPeer),
    /// An external principal: it has names, but no identity.
    ExternalPrincipal(ExternalPrincipal),
    /// A client without a certificate.
    Anonymous,
}

impl TlsClient {
    /// Returns the verified peer of a mesh member; `None` for other clients.
    pub(crate) fn member(&self) -> Option<&VerifiedPeer> {
        match self {
            Self::Member(peer) => Some(peer),
            Self::ForeignCertificate(_) | Self::ExternalPrincipal(_) | Self::Anonymous => None,
        }
    }

    /// Returns the identity of a mesh member, the names of an external principal, and the expiry of the
    /// certificate. Values that do not apply to the client are `None` or empty.
    pub(crate) fn into_parts(self) -> (Option<SpiffeId>, Arc<[Name]>, Option<Instant>) {
        match self {
            Self::Member(peer) => {
                (Some(peer.id), Arc::default(), Some(expiry_instant(peer.not_after)))
            }
            Self::ForeignCertificate(peer) => {
                let SpiffeId { account, trust_domain } = &peer.id;
                let name = format!("{}.{}.{trust_domain}", account.name, account.namespace);
                let names = Name::new(&name).into_iter().collect();
                (None, names, Some(expiry_instant(peer.not_after)))
            }
            Self::ExternalPrincipal(external_principal) => (
                None,
                external_principal.names.into(),
                Some(expiry_instant(external_principal.not_after)),
            ),
            Self::Anonymous => (None, Arc::default(), None),
        }
    }
}

/// Converts the expiry of a certificate to the monotonic clock.
pub(crate) fn expiry_instant(not_after: SystemTime) -> Instant {
    Instant::now() + not_after.duration_since(SystemTime::now()).unwrap_or_default()
}

/// Waits for the first byte of a handshake. A plaintext client receives a reset without any bytes: it could
/// mistake a TLS alert for a response.
pub(crate) async fn expect_handshake(tcp: &TcpStream) -> Result<(), Reason> {
    let mut first_byte = [0_u8; 1];
    let reason = match tcp.peek(&mut first_byte).await {
        Ok(1) if first_byte == [TLS_HANDSHAKE] => return Ok(()),
        Ok(1) => Reason::PlaintextRejected,
        Ok(_) | Err(_) => Reason::HandshakeFailed,
    };
    Err(reject_with_reset(tcp, reason))
}

/// Terminates mutual TLS. On failure the connection is reset, so that no peer mistakes the failure for an
/// orderly close.
pub(crate) async fn accept_tls(
    worker: &Worker,
    pending_connection: &PendingConnection,
    credential: &Arc<Credential>,
    accepted_clients: AcceptedClients,
    tcp: TcpStream,
) -> Result<AcceptedConnection, Reason> {
    let config = worker.tls.server_config(credential, accepted_clients)?;
    let hello = match read_hello(pending_connection, tcp).await {
        Ok(hello) => hello,
        Err((error, tcp)) => {
            tcp.as_ref().inspect(|tcp| reset_on_drop(tcp));
            return Err(handshake::failure_reason(worker, &error));
        }
    };
    // Set before the handshake, since a failed one does not return the socket.
    reset_on_drop(&hello.io);
    let handshake_result = complete_handshake(pending_connection, hello, config).await;
    let tls = handshake_result.map_err(|error| handshake::failure_reason(worker, &error))?;
    match identify_client(&tls, credential.roots(), accepted_clients, SystemTime::now()) {
        Ok(client) => {
            // The handshake has succeeded, so the connection closes in order again. An error means that the socket is
            // already closed, which its first read reports.
            drop(SockRef::from(tls.get_ref().0).set_linger(None));
            Ok(AcceptedConnection { tls, client })
        }
        Err(reason) => Err(reason),
    }
}

/// Returns the client that the TLS session identifies, which may be a resumed session.
fn identify_client(
    tls: &TlsStream<TcpStream>,
    roots: &Roots,
    accepted_clients: AcceptedClients,
    now: SystemTime,
) -> Result<TlsClient, Reason> {
    let certificates = tls.get_ref().1.peer_certificates();
    let reason_for = |error: &VerifyError| match error {
        VerifyError::Expired => Reason::ExpiredPeer,
        _ => Reason::UntrustedPeer,
    };
    match (session_peer(certificates, now), certificates.and_then(<[_]>::first)) {
        (Ok(Some(peer)), _)
            if accepted_clients != AcceptedClients::Members
                && !certificates.is_some_and(|chain| is_member_chain(roots, chain, now)) =>
        {
            Ok(TlsClient::ForeignCertificate(peer))
        }
        (Ok(Some(peer)), _) => Ok(TlsClient::Member(peer)),
        (Ok(None), _) if accepted_clients == AcceptedClients::Anyone => Ok(TlsClient::Anonymous),
        // This configuration requires a certificate, so the handshake is invalid.
        (Ok(None), _) => Err(Reason::UntrustedPeer),
        // The certificate was verified in this session, or in the one that it resumes, by a configuration for
        // external principals.
        (Err(VerifyError::InvalidUri(_)), Some(certificate))
            if accepted_clients != AcceptedClients::Members =>
        {
            external_principal(certificate, now)
                .map(TlsClient::ExternalPrincipal)
                .map_err(|error| reason_for(&error))
        }
        (Err(error), _) => Err(reason_for(&error)),
    }
}

/// Terminates TLS of an external client. On failure the connection is closed.
pub(crate) async fn accept_external_client(
    worker: &Worker,
    pending_connection: &PendingConnection,
    config: Arc<ServerConfig>,
    tcp: TcpStream,
) -> Result<TlsStream<TcpStream>, Reason> {
    let log_failure = |error: &io::Error| {
        tracing::debug!(%error, "TLS session with an external client failed");
        handshake::failure_reason(worker, error)
    };
    let hello =
        read_hello(pending_connection, tcp).await.map_err(|(error, _)| log_failure(&error))?;
    complete_handshake(pending_connection, hello, config).await.map_err(|error| log_failure(&error))
}

/// Makes the connection reset when it is dropped, and returns `reason`.
pub(crate) fn reject_with_reset(tcp: &TcpStream, reason: Reason) -> Reason {
    reset_on_drop(tcp);
    reason
}

/// The type of the first record of a TLS connection: handshake (RFC 8446 §5.1).
const TLS_HANDSHAKE: u8 = 22;
/// The maximum number of cached client configurations per thread; beyond it the cache is cleared.
const MAX_CLIENT_CONFIGS: usize = 4096;
