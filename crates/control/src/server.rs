//! The listener: TLS, then a proxy's stream or a join, within limits.

mod gauge;
mod strangers;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use leno_discovery::{
    ALPN, ConnectionId, Event, JOIN_ALPN, PEER_ALPN, Registered, ServeError, Taps, serve,
    serve_join, serve_peer,
};
use leno_identity::{Peer, VerifyError, control_id, peer, reason_of};
use leno_model::{Reason, Side, TrustDomain};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::config::Limits;

use self::strangers::{Stranger, Strangers};

pub(crate) use gauge::{Counted, Gauges};

/// What every connection needs.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) limits: Limits,
    pub(crate) configs: watch::Receiver<Arc<ServerConfig>>,
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) visitors: Arc<Visitors>,
    pub(crate) gauges: Arc<Gauges>,
    /// Who is connected here, for other control planes.
    pub(crate) registered: watch::Sender<Arc<Registered>>,
    pub(crate) trust_domain: TrustDomain,
    /// How often proxies are asked to tell of their traffic.
    pub(crate) report_every: Option<Duration>,
    /// What operators tap.
    pub(crate) taps: Arc<Taps>,
}

/// Accepts until told to stop; then waits for the connections, which the owner of the mesh ends.
pub(crate) async fn accept(
    listener: TcpListener,
    server: Arc<Server>,
    mut stop: watch::Receiver<bool>,
    drain: Duration,
) {
    let strangers = Arc::new(Strangers::new(&server.limits));
    let mut connections = JoinSet::new();
    let mut numbered = 0;
    loop {
        let room = connections.len() < server.limits.connections;
        let accepted = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept(), if room => accepted,
        };
        match accepted {
            Ok((tcp, from)) => {
                let Some(stranger) = strangers.admit(from.ip().to_canonical()) else {
                    server.gauges.refuse(ConnectionError::Crowd.reason());
                    tracing::debug!(%from, "too many connections of there are strangers");
                    continue;
                };
                numbered += 1;
                let server = Arc::clone(&server);
                let connection = ConnectionId(numbered);
                connections.spawn(async move {
                    if let Err(error) = serve_one(tcp, stranger, connection, &server).await {
                        server.gauges.refuse(error.reason());
                        tracing::debug!(%error, %connection, "a connection ended badly");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted; waiting a moment");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    if timeout(drain, ended).await.is_err() {
        tracing::warn!("some proxies did not let go in time");
    }
}

async fn serve_one(
    tcp: TcpStream,
    mut stranger: Stranger,
    connection: ConnectionId,
    server: &Server,
) -> Result<(), ConnectionError> {
    tcp.set_nodelay(true).map_err(ConnectionError::Socket)?;
    let handshake = shake_hands(tcp, &mut stranger, server);
    let stream = timeout(server.limits.handshake, handshake).await;
    let stream = stream.map_err(|_| ConnectionError::Late)??;
    let purpose = purpose(&stream, &server.trust_domain, SystemTime::now())?;
    let stream = Counted::new(stream, Arc::clone(&server.gauges));
    let events = server.events.clone();
    match purpose {
        Purpose::Join => {
            let joined = Box::pin(serve_join(stream, events)).await;
            drop(stranger);
            Ok(joined?)
        }
        Purpose::Peer => {
            drop(stranger);
            let here = server.registered.subscribe();
            // Whoever owns the mesh tells of everybody only when somebody listens.
            events.send(Event::PeerArrived).await.map_err(|_| ServeError::Stopped)?;
            Ok(Box::pin(serve_peer(stream, here)).await?)
        }
        Purpose::Follow(peer) => {
            drop(stranger);
            let _visitor = server.visitors.admit(connection, peer);
            let taps = server.taps.clone();
            Ok(Box::pin(serve(stream, connection, events, server.report_every, taps)).await?)
        }
    }
}

/// The handshake, when it is this stranger's turn. Who says nothing at all soon makes room.
async fn shake_hands(
    tcp: TcpStream,
    stranger: &mut Stranger,
    server: &Server,
) -> Result<TlsStream<TcpStream>, ConnectionError> {
    stranger.take_place().await;
    // Readiness alone may be a false alarm.
    let spoke = timeout(server.limits.first_byte, tcp.peek(&mut [0])).await;
    spoke.map_err(|_| ConnectionError::Late)?.map_err(ConnectionError::Socket)?;
    let config = Arc::clone(&server.configs.borrow());
    TlsAcceptor::from(config).accept(tcp).await.map_err(ConnectionError::Handshake)
}

/// What a connection is for.
enum Purpose {
    Join,
    /// Another control plane of the mesh.
    Peer,
    Follow(Peer),
}

fn purpose(
    stream: &TlsStream<TcpStream>,
    trust_domain: &TrustDomain,
    now: SystemTime,
) -> Result<Purpose, ConnectionError> {
    let (_, session) = stream.get_ref();
    match session.alpn_protocol() {
        Some(JOIN_ALPN) => Ok(Purpose::Join),
        Some(ALPN) => {
            let peer = peer(session.peer_certificates(), now)?;
            peer.map(Purpose::Follow).ok_or(ConnectionError::Anonymous)
        }
        Some(PEER_ALPN) => {
            let peer = peer(session.peer_certificates(), now)?.ok_or(ConnectionError::Anonymous)?;
            match peer.id == control_id(trust_domain) {
                true => Ok(Purpose::Peer),
                false => Err(ConnectionError::NoPeer),
            }
        }
        _ => Err(ConnectionError::Protocol),
    }
}

/// Who is at the other end of each stream, as its certificate says.
#[derive(Debug, Default)]
pub(crate) struct Visitors(Mutex<BTreeMap<ConnectionId, Peer>>);

impl Visitors {
    pub(crate) fn peer(&self, connection: ConnectionId) -> Option<Peer> {
        self.lock().get(&connection).cloned()
    }

    fn admit(self: &Arc<Self>, connection: ConnectionId, peer: Peer) -> Visitor {
        self.lock().insert(connection, peer);
        Visitor { visitors: Arc::clone(self), connection }
    }

    /// A thread that died while it held the lock left nothing half done.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ConnectionId, Peer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream while it lasts.
struct Visitor {
    visitors: Arc<Visitors>,
    connection: ConnectionId,
}

impl Drop for Visitor {
    fn drop(&mut self) {
        self.visitors.lock().remove(&self.connection);
    }
}

/// Why a connection ended badly.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("the socket failed: {0}")]
    Socket(io::Error),
    #[error("too many connections of this address are not known yet")]
    Crowd,
    #[error("the handshake was not finished in time")]
    Late,
    #[error("the handshake failed: {0}")]
    Handshake(io::Error),
    #[error("the peer asked for neither protocol of the control plane")]
    Protocol,
    #[error("the peer showed no certificate")]
    Anonymous,
    #[error("the peer is not a control plane of this mesh")]
    NoPeer,
    #[error(transparent)]
    Certificate(#[from] VerifyError),
    #[error(transparent)]
    Stream(#[from] ServeError),
}

impl ConnectionError {
    fn reason(&self) -> Reason {
        match self {
            Self::Handshake(error) => reason_of(error, Side::Downstream),
            Self::Crowd | Self::Late | Self::Protocol => Reason::HandshakeFailed,
            Self::Anonymous | Self::NoPeer => Reason::UntrustedPeer,
            Self::Certificate(VerifyError::Expired) => Reason::ExpiredPeer,
            Self::Certificate(_) => Reason::UntrustedPeer,
            Self::Socket(_) | Self::Stream(ServeError::Io(_)) => Reason::DownstreamClosed,
            Self::Stream(_) => Reason::BadRequest,
        }
    }
}

/// When the system has no more descriptors, asking again at once would only burn time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
