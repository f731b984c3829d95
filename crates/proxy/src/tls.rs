//! TLS on both sides: configurations built once per certificate and expected peer, then shared.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use leno_identity::{
    Credential, Guest, Peer, Roots, VerifyError, client_config, guest, guest_server_config,
    is_member_chain, open_server_config, peer, server_config,
};
use leno_listen::{HalfOpen, read_hello, reset, shake_hands};
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
pub(crate) const ALPN_ALONE: &[u8] = b"leno-http/1";
/// For peers that are not Leno and speak HTTP/2.
pub(crate) const ALPN_HTTP2: &[u8] = b"h2";
/// The fallback for peers that are not Leno.
pub(crate) const ALPN_HTTP1: &[u8] = b"http/1.1";

/// One thread's TLS configurations. They are dropped when the certificate is renewed.
#[derive(Default)]
pub(crate) struct TlsConfigs(RefCell<Cached>);

#[derive(Default)]
struct Cached {
    credential: Option<Arc<Credential>>,
    server: Option<Arc<ServerConfig>>,
    /// For clients that may be guests.
    guests: Option<Arc<ServerConfig>>,
    /// For clients that need no certificate.
    open: Option<Arc<ServerConfig>>,
    clients: HashMap<(SpiffeId, Offer), Arc<ClientConfig>>,
}

/// Who may come in with TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clients {
    /// Members of the mesh.
    Members,
    /// Its guests too.
    Guests,
    /// Also whoever shows no certificate.
    Anyone,
}

/// What an endpoint is offered to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Offer {
    /// The link, or what a peer that is not Leno would rather speak.
    All,
    /// HTTP/1.1 for one client; a sidecar of an older release takes the link instead.
    Alone,
    /// HTTP/1.1 alone.
    Http1,
}

impl Offer {
    fn alpn(self) -> &'static [&'static [u8]] {
        match self {
            Self::All => &[ALPN_LINK, ALPN_HTTP2, ALPN_HTTP1],
            Self::Alone => &[ALPN_ALONE, ALPN_LINK, ALPN_HTTP1],
            Self::Http1 => &[ALPN_HTTP1],
        }
    }
}

impl TlsConfigs {
    /// For reaching the one peer that may prove to be `expected`.
    pub(crate) fn client(
        &self,
        credential: &Arc<Credential>,
        (expected, offer): (SpiffeId, Offer),
    ) -> Result<Arc<ClientConfig>, Reason> {
        let mut cached = self.0.borrow_mut();
        cached.refresh(credential);
        let key = (expected, offer);
        if let Some(config) = cached.clients.get(&key) {
            return Ok(config.clone());
        }
        let config = client_config(credential, &key.0, offer.alpn())
            .map_err(|_| Reason::UpstreamHandshakeFailed)?;
        if cached.clients.len() >= CLIENT_CONFIGS_MAX {
            cached.clients.clear();
        }
        cached.clients.insert(key, config.clone());
        Ok(config)
    }

    /// For accepting members of the mesh, and others where they are let in.
    fn server(
        &self,
        credential: &Arc<Credential>,
        clients: Clients,
    ) -> Result<Arc<ServerConfig>, Reason> {
        let mut cached = self.0.borrow_mut();
        cached.refresh(credential);
        let held = match clients {
            Clients::Members => &mut cached.server,
            Clients::Guests => &mut cached.guests,
            Clients::Anyone => &mut cached.open,
        };
        if let Some(config) = held {
            return Ok(config.clone());
        }
        let alpn = [ALPN_ALONE, ALPN_LINK, ALPN_HTTP2, ALPN_HTTP1];
        let config = match clients {
            Clients::Members => server_config(credential, &alpn),
            Clients::Guests => guest_server_config(credential, &alpn),
            Clients::Anyone => open_server_config(credential, &alpn),
        };
        let config = config.map_err(|_| Reason::HandshakeFailed)?;
        *held = Some(config.clone());
        Ok(config)
    }
}

impl Cached {
    fn refresh(&mut self, credential: &Arc<Credential>) {
        let current = self.credential.as_ref().is_some_and(|held| Arc::ptr_eq(held, credential));
        if !current {
            *self = Self { credential: Some(credential.clone()), ..Self::default() };
        }
    }
}

/// A connection whose client has proved who it is, where it has to.
pub(crate) struct Accepted {
    pub(crate) tls: TlsStream<TcpStream>,
    pub(crate) client: Client,
}

/// Who is at the other end of a session.
pub(crate) enum Client {
    Member(Peer),
    /// Of the mesh's company, with a certificate that the mesh has not made: by its name it may come in where a guest
    /// of that name may, and it is no member.
    External(Peer),
    /// A guest: it has names, and no identity.
    Guest(Guest),
    Anonymous,
}

impl Client {
    /// The member, if it is one.
    pub(crate) fn member(&self) -> Option<&Peer> {
        match self {
            Self::Member(peer) => Some(peer),
            Self::External(_) | Self::Guest(_) | Self::Anonymous => None,
        }
    }

    /// The member, if it is one, what it is called if it is a guest, and when its certificate ends, if it
    /// has shown one.
    pub(crate) fn into_parts(self) -> (Option<SpiffeId>, Arc<[Name]>, Option<Instant>) {
        match self {
            Self::Member(peer) => (Some(peer.id), Arc::default(), Some(until(peer.not_after))),
            Self::External(peer) => {
                let SpiffeId { account, trust_domain } = &peer.id;
                let name = format!("{}.{}.{trust_domain}", account.name, account.namespace);
                let names = Name::new(&name).into_iter().collect();
                (None, names, Some(until(peer.not_after)))
            }
            Self::Guest(guest) => (None, guest.names.into(), Some(until(guest.not_after))),
            Self::Anonymous => (None, Arc::default(), None),
        }
    }
}

/// When a certificate's end is, on the clock that timers go by.
pub(crate) fn until(not_after: SystemTime) -> Instant {
    Instant::now() + not_after.duration_since(SystemTime::now()).unwrap_or_default()
}

/// Waits for the first byte of a handshake. Plaintext gets no answer, not even a TLS alert that
/// its sender could take for one.
pub(crate) async fn expect(tcp: &TcpStream) -> Result<(), Reason> {
    let mut first = [0_u8; 1];
    let reason = match tcp.peek(&mut first).await {
        Ok(1) if first == [TLS_HANDSHAKE] => return Ok(()),
        Ok(1) => Reason::PlaintextRefused,
        Ok(_) | Err(_) => Reason::HandshakeFailed,
    };
    Err(cut_off(tcp, reason))
}

/// Terminates mutual TLS. On failure the connection is reset, so that nobody takes it for an
/// orderly end.
pub(crate) async fn accept(
    worker: &Worker,
    half_open: &HalfOpen,
    (credential, clients): (&Arc<Credential>, Clients),
    tcp: TcpStream,
) -> Result<Accepted, Reason> {
    let config = worker.tls.server(credential, clients)?;
    let hello = match read_hello(half_open, tcp).await {
        Ok(hello) => hello,
        Err((error, tcp)) => {
            tcp.as_ref().inspect(|tcp| reset(tcp));
            return Err(handshake::reason(worker, &error));
        }
    };
    // The socket is not given back when a handshake fails.
    reset(&hello.io);
    let tls = shake_hands(half_open, hello, config).await;
    let tls = tls.map_err(|error| handshake::reason(worker, &error))?;
    match client(&tls, (credential.roots(), clients), SystemTime::now()) {
        Ok(client) => {
            // Failing means that the socket is gone already, as its first read will find.
            drop(SockRef::from(tls.get_ref().0).set_linger(None));
            Ok(Accepted { tls, client })
        }
        Err(reason) => Err(reason),
    }
}

/// Who it is, by what the session reports: it may be an older one that goes on.
fn client(
    tls: &TlsStream<TcpStream>,
    (roots, clients): (&Roots, Clients),
    now: SystemTime,
) -> Result<Client, Reason> {
    let shown = tls.get_ref().1.peer_certificates();
    let of = |error: &VerifyError| match error {
        VerifyError::Expired => Reason::ExpiredPeer,
        _ => Reason::UntrustedPeer,
    };
    match (peer(shown, now), shown.and_then(<[_]>::first)) {
        (Ok(Some(peer)), _)
            if clients != Clients::Members
                && !shown.is_some_and(|chain| is_member_chain(roots, chain, now)) =>
        {
            Ok(Client::External(peer))
        }
        (Ok(Some(peer)), _) => Ok(Client::Member(peer)),
        (Ok(None), _) if clients == Clients::Anyone => Ok(Client::Anonymous),
        // That configuration demands a certificate, so this is a handshake gone wrong.
        (Ok(None), _) => Err(Reason::UntrustedPeer),
        // Its certificate was verified in this session, or in the one that goes on, by a configuration for guests.
        (Err(VerifyError::Uri(_)), Some(certificate)) if clients != Clients::Members => {
            guest(certificate, now).map(Client::Guest).map_err(|error| of(&error))
        }
        (Err(error), _) => Err(of(&error)),
    }
}

/// Terminates TLS of a client without an identity in the mesh. On failure the connection is closed.
pub(crate) async fn accept_stranger(
    worker: &Worker,
    half_open: &HalfOpen,
    config: Arc<ServerConfig>,
    tcp: TcpStream,
) -> Result<TlsStream<TcpStream>, Reason> {
    let failed = |error: &io::Error| {
        tracing::debug!(%error, "a session with a stranger failed");
        handshake::reason(worker, error)
    };
    let hello = read_hello(half_open, tcp).await.map_err(|(error, _)| failed(&error))?;
    shake_hands(half_open, hello, config).await.map_err(|error| failed(&error))
}

pub(crate) fn cut_off(tcp: &TcpStream, reason: Reason) -> Reason {
    reset(tcp);
    reason
}

/// RFC 8446 §5.1: the type of the first record of a TLS connection.
const TLS_HANDSHAKE: u8 = 22;
/// Identities that one thread reaches; beyond it the cache starts anew.
const CLIENT_CONFIGS_MAX: usize = 4096;
