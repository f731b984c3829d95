//! The listener for proxies: TLS, then a proxy's stream, a join, or another control plane's stream, within limits.

mod connection_counters;
mod pending_connections;
mod unverified_stream;

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_discovery::{
    ALPN, Budget, Budgets, ConnectionId, Event, EventQueue, JOIN_ALPN, OperatorSessions, PEER_ALPN,
    RegisteredSidecars, ServeError, serve_join, serve_peer, serve_proxy,
};
use leno_identity::{
    VerifiedPeer, VerifyError, control_id, handshake_failure_reason, session_peer,
};
use leno_listen::{
    ConnectionAdmission, Evicted, HalfOpen, HalfOpenLimits, Listener, complete_handshake,
    read_hello, reset_on_drop,
};
use leno_model::{FailureSide, Reason, TrustDomain};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_rustls::server::TlsStream;

use crate::admin_address::ConnectionAddresses;
use crate::config::Limits;

use self::unverified_stream::UnverifiedStream;

pub(crate) use connection_counters::{ConnectionCounters, CountedStream};
pub(crate) use pending_connections::PendingConnections;

/// The state that all connections of the listener share.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) limits: Limits,
    pub(crate) tls_configs: watch::Receiver<Arc<ServerConfig>>,
    /// The queue of events to the mesh owner.
    pub(crate) events: EventQueue,
    /// The budget of each member, by its verified identity.
    pub(crate) budgets: Budgets,
    pub(crate) pending_connections: Arc<PendingConnections>,
    pub(crate) connection_counters: Arc<ConnectionCounters>,
    /// Sidecars connected here, for other control planes.
    pub(crate) local_sidecars: watch::Sender<Arc<RegisteredSidecars>>,
    pub(crate) trust_domain: TrustDomain,
    /// The interval of traffic reports requested from proxies.
    pub(crate) report_interval: Option<Duration>,
    /// Taps and queries of operators.
    pub(crate) operators: OperatorSessions,
}

/// Accepts connections until shutdown; then waits until the mesh owner has ended them, for at most `drain_timeout`.
pub(crate) async fn accept_connections(
    listener: TcpListener,
    server: Arc<Server>,
    mut stop: watch::Receiver<bool>,
    drain_timeout: Duration,
) {
    let Limits {
        external_clients, external_clients_per_source, connections: max_connections, ..
    } = server.limits;
    let bounds = HalfOpenLimits::new(external_clients, max_connections);
    let waiting_per_source = external_clients_per_source.clamp(1, bounds.waiting);
    let admission = ConnectionAdmission::new(HalfOpenLimits { waiting_per_source, ..bounds });
    let mut listener = Listener::new("control plane", listener);
    let mut connections = JoinSet::new();
    let mut last_connection_number = 0;
    loop {
        let has_room = connections.len() < max_connections;
        let (tcp, remote_address) = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept(), if has_room => accepted,
        };
        last_connection_number += 1;
        let server = Arc::clone(&server);
        let (connection, half_open) =
            (ConnectionId(last_connection_number), Arc::new(admission.admit(remote_address)));
        connections.spawn(async move {
            if let Err(error) = serve_connection(tcp, half_open, connection, &server).await {
                server.connection_counters.record_failure(error.reason());
                if error.is_evicted() {
                    server.connection_counters.record_eviction();
                }
                tracing::debug!(%error, %connection, %remote_address, "a connection failed");
            }
        });
    }
    drop(listener);
    let wait_for_end = async { while connections.join_next().await.is_some() {} };
    if timeout(drain_timeout, wait_for_end).await.is_err() {
        tracing::warn!("some proxies did not disconnect in time");
    }
}

/// Serves one connection. It is half-open until its peer is authenticated: by its certificate and a `Hello`
/// that the mesh owner accepts, or by a token.
async fn serve_connection(
    tcp: TcpStream,
    half_open: Arc<HalfOpen>,
    connection: ConnectionId,
    server: &Server,
) -> Result<(), ConnectionError> {
    tcp.set_nodelay(true).map_err(ConnectionError::Socket)?;
    let source = tcp.peer_addr().map_err(ConnectionError::Socket)?.ip();
    let connection_addresses =
        ConnectionAddresses::from_stream(&tcp).map_err(ConnectionError::Socket)?;
    let handshake = timeout(server.limits.handshake, perform_handshake(tcp, &half_open, server));
    let stream = handshake.await.map_err(|_| ConnectionError::TimedOut)??;
    let purpose = connection_purpose(&stream, &server.trust_domain, SystemTime::now())?;
    let stream = CountedStream::new(stream, Arc::clone(&server.connection_counters));
    // A client without a member's identity sends at most one event, or is another control plane.
    let connect_events = || server.events.create_sender(Arc::new(Budget::new(Instant::now())));
    match purpose {
        ConnectionPurpose::Join => {
            let stream = UnverifiedStream::new(stream, half_open);
            Ok(Box::pin(serve_join(stream, source, connect_events())).await?)
        }
        ConnectionPurpose::Peer(peer) => {
            let pending_connection = server.pending_connections.add_connection(
                connection,
                peer,
                connection_addresses,
                half_open,
            );
            server.pending_connections.mark_authenticated(connection);
            let local_sidecars = server.local_sidecars.subscribe();
            // The mesh owner publishes the connected sidecars only while there is a receiver.
            connect_events().send(Event::PeerConnected).await?;
            pending_connection
                .serve_until_replaced(Box::pin(serve_peer(stream, local_sidecars)))
                .await
        }
        ConnectionPurpose::Proxy(peer) => {
            let budget = server.budgets.for_identity(&peer_identity(&peer), Instant::now());
            let events = server.events.create_sender(Arc::clone(&budget));
            let pending_connection = server.pending_connections.add_connection(
                connection,
                peer,
                connection_addresses,
                Arc::clone(&half_open),
            );
            let (stream, operators) =
                (UnverifiedStream::new(stream, half_open), server.operators.clone());
            let proxy_stream =
                serve_proxy(stream, connection, events, server.report_interval, operators);
            let result = pending_connection.serve_until_replaced(Box::pin(proxy_stream)).await;
            if matches!(result, Err(ConnectionError::Replaced)) {
                // `serve_proxy` was cancelled before it announced the disconnect.
                server
                    .events
                    .create_sender(budget)
                    .send(Event::Disconnected { connection })
                    .await?;
            }
            result
        }
    }
}

/// Performs the handshake. A silent client is evicted early.
async fn perform_handshake(
    tcp: TcpStream,
    half_open: &HalfOpen,
    server: &Server,
) -> Result<TlsStream<TcpStream>, ConnectionError> {
    // Readiness alone may be spurious: the first byte is awaited.
    let mut buffer = [0];
    let first_byte = half_open.await_peer(timeout(server.limits.first_byte, tcp.peek(&mut buffer)));
    match first_byte.await {
        Ok(Ok(result)) => drop(result.map_err(ConnectionError::Socket)?),
        Ok(Err(_)) => return Err(ConnectionError::TimedOut),
        Err(evicted) => {
            reset_on_drop(&tcp);
            return Err(ConnectionError::Handshake(evicted.into()));
        }
    }
    let hello = read_hello(half_open, tcp).await;
    let hello = hello.map_err(|(error, _)| ConnectionError::Handshake(error))?;
    let config = Arc::clone(&server.tls_configs.borrow());
    complete_handshake(half_open, hello, config).await.map_err(ConnectionError::Handshake)
}

/// The purpose of a connection, by its ALPN protocol and certificate.
enum ConnectionPurpose {
    /// A client requests its first certificate.
    Join,
    /// Another control plane follows the sidecars that are connected here.
    Peer(VerifiedPeer),
    /// A proxy follows its configuration.
    Proxy(VerifiedPeer),
}

fn connection_purpose(
    stream: &TlsStream<TcpStream>,
    trust_domain: &TrustDomain,
    now: SystemTime,
) -> Result<ConnectionPurpose, ConnectionError> {
    let (_, session) = stream.get_ref();
    match session.alpn_protocol() {
        Some(JOIN_ALPN) => Ok(ConnectionPurpose::Join),
        Some(ALPN) => {
            let peer = session_peer(session.peer_certificates(), now)?;
            peer.map(ConnectionPurpose::Proxy).ok_or(ConnectionError::NoCertificate)
        }
        Some(PEER_ALPN) => {
            let peer = session_peer(session.peer_certificates(), now)?
                .ok_or(ConnectionError::NoCertificate)?;
            match peer.id == control_id(trust_domain) {
                true => Ok(ConnectionPurpose::Peer(peer)),
                false => Err(ConnectionError::NotAControlPlane),
            }
        }
        _ => Err(ConnectionError::NoKnownProtocol),
    }
}

/// Returns a member's identity by its certificate, the key of budgets and log limits.
pub(crate) fn peer_identity(peer: &VerifiedPeer) -> String {
    match &peer.workload {
        Some(workload) => format!("{} {workload}", peer.id),
        None => peer.id.to_string(),
    }
}

/// The error of a connection.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("the socket failed: {0}")]
    Socket(io::Error),
    #[error("too many connections of this identity: a newer one replaces it")]
    Replaced,
    #[error("the handshake was not finished in time")]
    TimedOut,
    #[error("the handshake failed: {0}")]
    Handshake(io::Error),
    #[error("the peer offered no ALPN protocol of the control plane")]
    NoKnownProtocol,
    #[error("the peer presented no certificate")]
    NoCertificate,
    #[error("the peer is not a control plane of this mesh")]
    NotAControlPlane,
    #[error(transparent)]
    Certificate(#[from] VerifyError),
    #[error(transparent)]
    Stream(#[from] ServeError),
}

impl ConnectionError {
    /// True if the connection was evicted.
    fn is_evicted(&self) -> bool {
        match self {
            Self::Handshake(error) | Self::Stream(ServeError::Io(error)) => {
                error.get_ref().is_some_and(|source| source.is::<Evicted>())
            }
            _ => false,
        }
    }

    fn reason(&self) -> Reason {
        match self {
            Self::Handshake(error) => handshake_failure_reason(error, FailureSide::Downstream),
            Self::Replaced | Self::TimedOut | Self::NoKnownProtocol => Reason::HandshakeFailed,
            Self::NoCertificate | Self::NotAControlPlane => Reason::UntrustedPeer,
            Self::Certificate(VerifyError::Expired) => Reason::ExpiredPeer,
            Self::Certificate(_) => Reason::UntrustedPeer,
            Self::Socket(_) | Self::Stream(ServeError::Io(_)) => Reason::DownstreamClosed,
            Self::Stream(_) => Reason::BadRequest,
        }
    }
}
