//! Accepts the connections of proxies and other control planes. After the TLS handshake, a connection carries a
//! proxy's stream, a join (the request for a first certificate), or another control plane's stream. All are limited.

mod connection_counters;
mod unverified_stream;
mod verified_connections;

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
    ConnectionAdmission, Evicted, Listener, PendingConnection, PendingLimits, complete_handshake,
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
pub(crate) use verified_connections::VerifiedConnections;

/// The state of the server for proxies and other control planes, which all its connections share.
#[derive(Debug)]
pub(crate) struct ProxyServer {
    pub(crate) limits: Limits,
    pub(crate) tls_configs: watch::Receiver<Arc<ServerConfig>>,
    /// The queue of events to the state task.
    pub(crate) events: EventQueue,
    /// The budget of each member, by its verified identity.
    pub(crate) budgets: Budgets,
    pub(crate) verified_connections: Arc<VerifiedConnections>,
    pub(crate) connection_counters: Arc<ConnectionCounters>,
    /// The sidecars connected to this control plane, for the streams to other control planes.
    pub(crate) local_sidecars: watch::Sender<Arc<RegisteredSidecars>>,
    pub(crate) trust_domain: TrustDomain,
    /// The interval of traffic reports requested from proxies.
    pub(crate) report_interval: Option<Duration>,
    /// Taps and queries of operators.
    pub(crate) operators: OperatorSessions,
}

/// Accepts connections until shutdown; then waits until the state task has ended them, for at most `drain_timeout`.
pub(crate) async fn accept_connections(
    listener: TcpListener,
    server: Arc<ProxyServer>,
    mut stop: watch::Receiver<bool>,
    drain_timeout: Duration,
) {
    let Limits {
        waiting_connections,
        waiting_connections_per_source,
        connections: max_connections,
        ..
    } = server.limits;
    let bounds = PendingLimits::new(waiting_connections, max_connections);
    let waiting_per_source = waiting_connections_per_source.clamp(1, bounds.waiting);
    let admission = ConnectionAdmission::new(PendingLimits { waiting_per_source, ..bounds });
    let mut listener = Listener::new("control plane", listener);
    let mut connections = JoinSet::new();
    let mut last_connection_number = 0;
    loop {
        let has_room = connections.len() < max_connections;
        let (tcp, remote_address) = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            // A connection has ended, so there may be room again.
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept(), if has_room => accepted,
        };
        last_connection_number += 1;
        let server = Arc::clone(&server);
        let (connection, pending_connection) =
            (ConnectionId(last_connection_number), Arc::new(admission.admit(remote_address)));
        connections.spawn(async move {
            if let Err(error) = serve_connection(tcp, pending_connection, connection, &server).await
            {
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

/// Serves one connection. The connection is pending until its peer is authenticated. Proxies authenticate by a
/// certificate and a `Hello` that the state task accepts, and joining clients by a token.
async fn serve_connection(
    tcp: TcpStream,
    pending_connection: Arc<PendingConnection>,
    connection: ConnectionId,
    server: &ProxyServer,
) -> Result<(), ConnectionError> {
    tcp.set_nodelay(true).map_err(ConnectionError::Socket)?;
    let source = tcp.peer_addr().map_err(ConnectionError::Socket)?.ip();
    let connection_addresses =
        ConnectionAddresses::from_stream(&tcp).map_err(ConnectionError::Socket)?;
    let handshake = timeout(
        server.limits.handshake_timeout,
        perform_handshake(tcp, &pending_connection, server),
    );
    let stream = handshake.await.map_err(|_| ConnectionError::TimedOut)??;
    let purpose = connection_purpose(&stream, &server.trust_domain, SystemTime::now())?;
    let stream = CountedStream::new(stream, Arc::clone(&server.connection_counters));
    // A connection that is not a proxy's gets a budget of its own, without a limit per identity. A joining client sends
    // at most one event, and other control planes are trusted.
    let create_event_sender = || server.events.create_sender(Arc::new(Budget::new(Instant::now())));
    match purpose {
        ConnectionPurpose::Join => {
            let stream = UnverifiedStream::new(stream, pending_connection);
            Ok(Box::pin(serve_join(stream, source, create_event_sender())).await?)
        }
        ConnectionPurpose::ControlPlane(peer) => {
            let connection_entry = server.verified_connections.add_connection(
                connection,
                peer,
                connection_addresses,
                pending_connection,
            );
            server.verified_connections.mark_authenticated(connection);
            let local_sidecars = server.local_sidecars.subscribe();
            // The state task publishes the connected sidecars only while there is a receiver.
            create_event_sender().send(Event::PeerConnected).await?;
            connection_entry
                .serve_until_replaced(Box::pin(serve_peer(stream, local_sidecars)))
                .await
        }
        ConnectionPurpose::Proxy(peer) => {
            let budget = server.budgets.for_identity(&peer_identity(&peer), Instant::now());
            let events = server.events.create_sender(Arc::clone(&budget));
            let connection_entry = server.verified_connections.add_connection(
                connection,
                peer,
                connection_addresses,
                Arc::clone(&pending_connection),
            );
            let (stream, operators) =
                (UnverifiedStream::new(stream, pending_connection), server.operators.clone());
            let proxy_stream =
                serve_proxy(stream, connection, events, server.report_interval, operators);
            let result = connection_entry.serve_until_replaced(Box::pin(proxy_stream)).await;
            if matches!(result, Err(ConnectionError::Replaced)) {
                // `serve_proxy` was cancelled before it sent this event.
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

/// Performs the TLS handshake. A client that sends no byte within `limits.first_byte_timeout` is disconnected,
/// without the longer timeout for a whole handshake.
async fn perform_handshake(
    tcp: TcpStream,
    pending_connection: &PendingConnection,
    server: &ProxyServer,
) -> Result<TlsStream<TcpStream>, ConnectionError> {
    // `peek` waits for a byte: readiness of the socket alone may be spurious.
    let mut buffer = [0];
    let first_byte = pending_connection
        .await_peer(timeout(server.limits.first_byte_timeout, tcp.peek(&mut buffer)));
    match first_byte.await {
        Ok(Ok(result)) => drop(result.map_err(ConnectionError::Socket)?),
        Ok(Err(_)) => return Err(ConnectionError::TimedOut),
        Err(evicted) => {
            reset_on_drop(&tcp);
            return Err(ConnectionError::Handshake(evicted.into()));
        }
    }
    let client_hello = read_hello(pending_connection, tcp)
        .await
        .map_err(|(error, _)| ConnectionError::Handshake(error))?;
    let tls_config = Arc::clone(&server.tls_configs.borrow());
    complete_handshake(pending_connection, client_hello, tls_config)
        .await
        .map_err(ConnectionError::Handshake)
}

/// The purpose of a connection, by its ALPN protocol and certificate.
enum ConnectionPurpose {
    /// A client requests its first certificate.
    Join,
    /// Another control plane follows the sidecars that are connected here.
    ControlPlane(VerifiedPeer),
    /// A proxy follows its configuration.
    Proxy(VerifiedPeer),
}

/// Returns the purpose of a connection, with the verified certificate of its peer unless it is a join.
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
                true => Ok(ConnectionPurpose::ControlPlane(peer)),
                false => Err(ConnectionError::NotAControlPlane),
            }
        }
        _ => Err(ConnectionError::NoKnownProtocol),
    }
}

/// Returns the identity in a peer's certificate as text, the key of budgets and log limits.
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
