//! Classification of one accepted connection by peer and protocol, and its dispatch.

mod protocol;

use protocol::*;
pub(crate) use protocol::{ConnectionProtocol, detect_protocol, list_session};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use leno_listen::HalfOpen;
use leno_model::{AddressEntry, EndpointId, Protocol, Reason, ServiceName};
use leno_telemetry::{ConnectionSide, Count};
use leno_traffic::{ConnectionOrigin, SessionTransport};
use leno_wire::link::{Role, StreamKind};
use leno_wire::sniff::DetectedProtocol;
use tokio::net::TcpStream;
use tokio::time::{sleep_until, timeout};

use crate::connections::{ConnectionListing, OpenConnection, OpenCounter};
use crate::drain::{Phase, last_call};
use crate::first_bytes::{read_preface, sniff_connection};
use crate::gateway;
use crate::handshake;
use crate::http::message::{MessageReader, MessageWriter};
use crate::http::outside::NamedDestination;
use crate::http::route;
use crate::http::server::{ServeResult, reject_unreadable, serve_requests};
use crate::http2;
use crate::io::{ByteStream, Io};
use crate::link::{LinkHandle, OpenedStream};
use crate::max_wait::finished_within;
use crate::outside;
use crate::plaintext;
use crate::session::{ListenerKind, Session};
use crate::silent_client::spoken_in;
use crate::task_pool::TaskPool;
use crate::tcp;
use crate::tls::{self, ALPN_ALONE, ALPN_HTTP2, ALPN_LINK, AcceptedClients, AcceptedConnection};
use crate::worker::Worker;

/// Serves a connection from its first byte to its last.
pub(crate) async fn serve_connection(
    worker: Rc<Worker>,
    listener_kind: ListenerKind,
    tcp: TcpStream,
    peer: SocketAddr,
) {
    let _counted = OpenCounter::for_connection(&worker.shard, ConnectionSide::Downstream);
    // Boxed here and below, so that each kind of connection holds only the memory that it needs, not that of
    // the largest kind: most connections are idle most of the time.
    match listener_kind {
        ListenerKind::Inbound { port } => Box::pin(accept_inbound(&worker, port, tcp, peer)).await,
        ListenerKind::HttpProxy => {
            let session = Session::new(worker, ListenerKind::HttpProxy, None, peer);
            let _listed = list_session(&session, "http", "HTTP proxy".to_owned());
            Box::pin(from_proxy_client(session, Io::new(ByteStream::Plain(tcp)))).await;
        }
        ListenerKind::Address(at) => Box::pin(to_address(&worker, at, tcp, peer)).await,
        ListenerKind::Outbound { .. }
        | ListenerKind::Service { .. }
        | ListenerKind::Pinned { .. } => {
            let io = Io::new(ByteStream::Plain(tcp));
            Box::pin(to_service(&worker, listener_kind, io, BytesMut::new(), peer)).await;
        }
        ListenerKind::Gateway { port } => {
            Box::pin(gateway::serve_connection(&worker, port, tcp, peer)).await
        }
    }
}

/// Serves a connection from another sidecar: mutual TLS, then a link or plain HTTP/1.1 inside it.
async fn accept_inbound(worker: &Rc<Worker>, port: u16, tcp: TcpStream, peer: SocketAddr) {
    let Some(config) = worker.config_store.current_config() else {
        return;
    };
    let spoken = config.in_clear(port, peer.ip());
    let access = &config.plans.access;
    let clients = if access.skips_proof(port, peer.ip()) {
        AcceptedClients::Anyone
    } else if access.takes_external_principals(port, peer.ip()) {
        AcceptedClients::ExternalPrincipals
    } else {
        AcceptedClients::Members
    };
    drop(config);
    let half_open = worker.half_open.admit(peer.ip());
    if let Some(spoken) = spoken {
        let looked = plaintext::is_mutual_tls(worker, spoken, &tcp);
        match handshake::await_start(worker, &half_open, looked).await {
            Some(true) => {}
            Some(false) => {
                let io = Io::new(ByteStream::Plain(tcp));
                return allowed_in_clear(worker, half_open, port, spoken, io, peer).await;
            }
            None => return leno_listen::reset_on_drop(&tcp),
        }
    }
    let Some(credential) = worker.config_store.credential() else {
        return;
    };
    let accepting = async {
        let expected =
            handshake::await_start(worker, &half_open, tls::expect_handshake(&tcp)).await;
        let expected = expected.unwrap_or_else(|| Err(tls::cut_off(&tcp, Reason::HandshakeFailed)));
        expected.inspect_err(|reason| note_plaintext(worker, *reason, port, peer))?;
        tls::accept_tls(worker, &half_open, &credential, clients, tcp).await
    };
    let Some(accepted) = handshake::finish_handshake(worker, peer, accepting).await else {
        return;
    };
    drop(half_open);
    Box::pin(inside_tls(worker, port, accepted, peer)).await;
}

/// Serves a connection inside TLS for as long as its client is allowed.
async fn inside_tls(
    worker: &Rc<Worker>,
    port: u16,
    accepted: AcceptedConnection,
    peer: SocketAddr,
) {
    let proved = accepted.client.member().cloned();
    if proved.as_ref().is_some_and(|proved| worker.config_store.revokes_workload(proved)) {
        let reason = Reason::RevokedPeer.label();
        if let Some(line) = worker.log_line(peer) {
            let suppressed = line.suppressed;
            tracing::info!(%peer, reason, suppressed, "connection rejected");
        }
        worker.shard.count_rejected(reason);
        return;
    }
    let (member, external_principal, expires) = accepted.client.into_parts();
    let identity = member.map(Rc::new);
    let state = accepted.tls.get_ref().1;
    let alpn = state.alpn_protocol().map(<[u8]>::to_vec);
    let carrier = SessionTransport::Tls {
        server_name: state.server_name().map(Into::into),
        external_principal,
    };
    let io = Io::new(ByteStream::Server(Box::new(accepted.tls)));
    let mut session = Session::new(worker.clone(), ListenerKind::Inbound { port }, identity, peer);
    (session.expires, session.carrier) = (expires, carrier);
    let origin = session.origin();
    let served = pin!(serve_inbound(session, port, expires, io.clone(), alpn));
    let forbidden = pin!(async {
        match &proved {
            Some(proved) => worker.config_store.wait_until_revoked(proved).await,
            // Only an ingress rule allows clients that are not mesh members.
            None => worker.config_store.kept_out(port, origin).await,
        }
    });
    if serve_until(served, forbidden, &io).await == ConnectionResult::Aborted {
        let reason = match proved {
            Some(_) => Reason::RevokedPeer,
            None => Reason::PlaintextRejected,
        };
        if let Some(line) = worker.log_line(peer) {
            let (reason, suppressed) = (reason.label(), line.suppressed);
            tracing::info!(%peer, reason, suppressed, "connection closed: it is no longer permitted");
        }
        worker.shard.count_rejected(reason.label());
        note_plaintext(worker, reason, port, peer);
    }
}

/// Reports a client that is rejected because it has no mutual TLS.
fn note_plaintext(worker: &Worker, reason: Reason, port: u16, peer: SocketAddr) {
    if reason == Reason::PlaintextRejected {
        worker.config_store.conditions.note_rejected_client(port, peer.ip());
    }
}

/// Serves a client without mutual TLS for as long as such clients are allowed.
async fn allowed_in_clear(
    worker: &Rc<Worker>,
    half_open: HalfOpen,
    port: u16,
    spoken: Protocol,
    io: Io,
    peer: SocketAddr,
) {
    let mut served = Box::pin(plain_inbound(worker, half_open, port, spoken, io.clone(), peer));
    let origin = ConnectionOrigin { address: peer.ip(), transport: SessionTransport::Plaintext };
    let refused = Box::pin(worker.config_store.kept_out(port, origin));
    if serve_until(served.as_mut(), refused, &io).await == ConnectionResult::Aborted {
        if let Some(line) = worker.log_line(peer) {
            let suppressed = line.suppressed;
            tracing::info!(%peer, suppressed, "connection without mutual TLS closed: plaintext is no longer permitted");
        }
        worker.shard.count_rejected(Reason::PlaintextRejected.label());
        note_plaintext(worker, Reason::PlaintextRejected, port, peer);
    }
}

/// Serves a connection until it ends, or until it is forbidden. Both futures are pinned by the caller: moving
/// them in here would reserve the memory of a connection twice.
pub(crate) async fn serve_until(
    mut served: Pin<&mut impl Future<Output = ()>>,
    forbidden: impl Future<Output = ()> + Unpin,
    io: &Io,
) -> ConnectionResult {
    tokio::select! {
        () = &mut served => return ConnectionResult::Complete,
        () = forbidden => {}
    }
    io.cut();
    served.await;
    ConnectionResult::Aborted
}

/// The result of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionResult {
    Complete,
    Aborted,
}

/// Serves a client without mutual TLS in the protocol of the application. An HTTP client is half-open until it
/// has sent the head of a request, or the HTTP/2 preface.
async fn plain_inbound(
    worker: &Rc<Worker>,
    half_open: HalfOpen,
    port: u16,
    declared: Protocol,
    io: Io,
    peer: SocketAddr,
) {
    worker.shard.add(Count::DownstreamPlaintext, 1);
    let mut early = BytesMut::new();
    let max_wait = worker.config.limits.idle_connection;
    let mut session = Session::new(worker.clone(), ListenerKind::Inbound { port }, None, peer);
    let needs_requests = || tcp::needs_requests(&session, port);
    let spoken = spoken_in(worker, declared, max_wait, &io, &mut early, needs_requests);
    let Some(spoken) = handshake::await_start(worker, &half_open, spoken).await else {
        return io.reset_on_drop();
    };
    let Some(spoken) = spoken else {
        return;
    };
    session.found_http2 = found_http2(declared, spoken);
    let list = |protocol| list_session(&session, protocol, format!("application port {port}"));
    match spoken {
        ConnectionProtocol::Http1 => {
            let listed = list("http");
            Box::pin(half_open_http1(session, half_open, listed, &io, early)).await;
        }
        ConnectionProtocol::Http2 => {
            let _listed = list("http2");
            Box::pin(half_open_http2(session, half_open, &io, early)).await;
        }
        ConnectionProtocol::Opaque => {
            drop(half_open);
            let _listed = list("tcp");
            Box::pin(tcp::forward_plaintext(&session, port, io, early)).await;
        }
    }
}

/// Serves plaintext HTTP/1.1. The connection is half-open until the head of its first request is complete.
pub(crate) async fn half_open_http1(
    session: Session,
    half_open: HalfOpen,
    listed: ConnectionListing,
    io: &Io,
    early: BytesMut,
) {
    let first = Box::pin(first_request(&session, half_open, io, early)).await;
    if let Some(early) = first {
        from_http1(session, listed, io, early).await;
    }
}

/// Reads the head of the first request and returns all bytes read. `None`: the connection is over.
async fn first_request(
    session: &Session,
    half_open: HalfOpen,
    io: &Io,
    early: BytesMut,
) -> Option<BytesMut> {
    let worker = &session.worker;
    let mut reader = MessageReader::new(io.clone());
    reader.buffer = early;
    let mut head = worker.request_heads.lend();
    let read = finished_within(worker.config.limits.head_timeout, reader.whole_request(&mut head));
    let read = handshake::await_start(worker, &half_open, read).await;
    drop(half_open);
    match read {
        Some(Some(())) => return Some(reader.buffer),
        // Empty lines do not begin a request: the connection is idle.
        Some(None) if matches!(&reader.buffer[..], b"" | b"\r") => return Some(reader.buffer),
        Some(None) => drop(reject_unreadable(session, io, Reason::HeadTimeout).await),
        None => io.reset_on_drop(),
    }
    None
}

/// Serves plaintext HTTP/2. The connection is half-open until its preface is complete; then it is idle while it
/// has no request, and may be evicted as such.
pub(crate) async fn half_open_http2(
    session: Session,
    half_open: HalfOpen,
    io: &Io,
    mut early: BytesMut,
) {
    let worker = &session.worker;
    let read = timeout(worker.config.limits.handshake_timeout, read_preface(io, &mut early));
    let read = handshake::await_start(worker, &half_open, read).await;
    drop(half_open);
    match read {
        // The HTTP/2 handshake reports the error to a client that is late or sends other bytes.
        Some(Ok(()) | Err(_)) => {
            Box::pin(http2::server::serve_connection(Rc::new(session), io, early)).await;
        }
        None => io.reset_on_drop(),
    }
}

/// Serves a connection that begins with HTTP/1.1 and may be upgraded to HTTP/2.
pub(crate) async fn from_http1(
    session: Session,
    listed: ConnectionListing,
    io: &Io,
    early: BytesMut,
) {
    if let ServeResult::Http2 { first, early } = serve_requests(&session, io, early).await {
        listed.goes_on_in("http2");
        session.is_exclusive.set(false);
        Box::pin(http2::server::go_on(Rc::new(session), io, first, early)).await;
    }
}

/// Serves the protocol inside mutual TLS: a link, HTTP/2 or HTTP/1.1.
async fn serve_inbound(
    mut session: Session,
    port: u16,
    expires: Option<Instant>,
    io: Io,
    alpn: Option<Vec<u8>>,
) {
    session.is_private = alpn.as_deref() == Some(ALPN_ALONE) && session.identity.is_some();
    let list = |protocol| list_session(&session, protocol, format!("application port {port}"));
    match (alpn.as_deref(), expires.filter(|_| session.identity.is_some())) {
        (Some(ALPN_LINK), Some(expires)) => {
            let _listed = list("link");
            Box::pin(inbound_link(Rc::new(session), port, expires, io)).await;
        }
        // Links are for mesh members only.
        (Some(ALPN_LINK), None) => io.reset_on_drop(),
        (Some(ALPN_HTTP2), _) => {
            let _listed = list("http2");
            Box::pin(http2::server::serve_connection(Rc::new(session), &io, BytesMut::new())).await;
        }
        (Some(_) | None, _) => {
            let _listed = list("http");
            serve_requests(&session, &io, BytesMut::new()).await;
        }
    }
}

/// Drives a link that another sidecar opened; each stream is a task of its own. No new streams are accepted
/// once the certificate of the peer has expired.
async fn inbound_link(session: Rc<Session>, port: u16, expires: Instant, io: Io) {
    let worker = session.worker.clone();
    let _counted = OpenCounter::for_link(&worker.shard, ConnectionSide::Downstream);
    let (link, peer) = (LinkHandle::new(Role::Acceptor), session.peer);
    let mut phase = worker.phase.clone();
    let on_open = move |opened: OpenedStream| {
        let session = session.clone();
        match opened.kind {
            StreamKind::Http => TaskPool::serve_stream(session, opened),
            StreamKind::Tcp => {
                let carry = async move { tcp::to_application(&session, port, opened).await };
                tokio::task::spawn_local(carry);
            }
        }
    };
    let idle = worker.config.limits.idle_connection;
    let mut driven = pin!(link.clone().drive(io, idle, on_open));
    let ended = tokio::select! {
        ended = &mut driven => Some(ended),
        _ = phase.wait_for(|phase| *phase == Phase::Draining) => None,
        () = sleep_until(expires.into()) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            link.retire();
            driven.await
        }
    };
    if let Err(error) = ended {
        worker.log_misuse(peer, error);
    }
}

/// Serves the application as its HTTP proxy; a tunnel then becomes a connection to the service that it names.
async fn from_proxy_client(session: Session, io: Io) {
    let (authority, early) = match serve_requests(&session, &io, BytesMut::new()).await {
        ServeResult::Tunnel { authority, early } => (authority, early),
        ServeResult::PriorKnowledge { early } => {
            return Box::pin(http2::server::serve_connection(Rc::new(session), &io, early)).await;
        }
        ServeResult::Done | ServeResult::Http2 { .. } => return,
    };
    let named = match route::tunnel_destination(&session, &authority).await {
        Ok(named) => named,
        Err(reason) => {
            reject_unreadable(&session, &io, reason).await;
            return;
        }
    };
    let mut writer =
        MessageWriter::new(io.clone(), session.worker.config.limits.body_stall_timeout);
    writer.output_buffer().extend_from_slice(b"HTTP/1.1 200 Connection established\r\n\r\n");
    if writer.flush().await.is_err() {
        return;
    }
    match named {
        NamedDestination::Service(service, port) => {
            let listener_kind = ListenerKind::Service { service, port };
            Box::pin(to_service(&session.worker, listener_kind, io, early, session.peer)).await;
        }
        NamedDestination::Outside(at) => {
            let inner =
                Session::new(session.worker.clone(), ListenerKind::Address(at), None, session.peer);
            let _listed = list_session(&inner, "tcp", format!("{at}, outside"));
            Box::pin(outside::serve_connection(&inner, at, io, early)).await;
        }
    }
}

/// Serves a connection from the application to an address, by the address entry.
async fn to_address(worker: &Rc<Worker>, at: SocketAddr, tcp: TcpStream, peer: SocketAddr) {
    let io = Io::new(ByteStream::Plain(tcp));
    let max_wait = worker.config.limits.discovery_timeout;
    let address_entry = match worker.config_store.address_entry(at.ip(), max_wait).await {
        Ok(address_entry) => address_entry,
        Err(reason) => {
            tracing::debug!(address = %at, reason = reason.label(), "no configuration for this address");
            worker.shard.count_rejected(reason.label());
            return io.reset_on_drop();
        }
    };
    let listener_kind = match &*address_entry {
        AddressEntry::External => None,
        AddressEntry::Service(service) => {
            Some(ListenerKind::Service { service: service.clone(), port: at.port() })
        }
        AddressEntry::Workload { workload, ports } => ports.get(&at.port()).map(|port| {
            let (service, workload) = (port.service.clone(), workload.clone());
            ListenerKind::Pinned { at, id: EndpointId { service, port: port.port, workload } }
        }),
    };
    drop(address_entry);
    if let Some(listener_kind) = listener_kind {
        return to_service(worker, listener_kind, io, BytesMut::new(), peer).await;
    }
    let session = Session::new(worker.clone(), ListenerKind::Address(at), None, peer);
    let _listed = list_session(&session, "tcp", format!("{at}, outside"));
    outside::serve_connection(&session, at, io, BytesMut::new()).await;
}

/// Serves a connection from the application to one service or workload, in the protocol of the service.
async fn to_service(
    worker: &Rc<Worker>,
    listener_kind: ListenerKind,
    io: Io,
    mut early: BytesMut,
    peer: SocketAddr,
) {
    let (service, port, mut declared) = match &listener_kind {
        ListenerKind::Outbound { service, port } | ListenerKind::Service { service, port } => {
            (service.clone(), *port, declared_protocol(worker, service, *port).await)
        }
        ListenerKind::Pinned { at, id } => {
            (id.service.clone(), id.port, protocol_at(worker, *at).await)
        }
        ListenerKind::Inbound { .. }
        | ListenerKind::HttpProxy
        | ListenerKind::Address(_)
        | ListenerKind::Gateway { .. } => return,
    };
    let max_wait = worker.config.limits.idle_connection;
    let spoken = loop {
        let needs_requests = || tcp::injects_faults(worker, &service, port);
        let spoken = spoken_in(worker, declared, max_wait, &io, &mut early, needs_requests);
        let Some(spoken) = spoken.await else { return };
        // The configuration at the time of the first bytes decides: it may be newer than the connection.
        match protocol_now(worker, &listener_kind) {
            Some(now) if now != declared => declared = now,
            Some(_) | None => break spoken,
        }
    };
    let mut session = Session::new(worker.clone(), listener_kind, None, peer);
    session.found_http2 = found_http2(declared, spoken);
    let list = |protocol| list_session(&session, protocol, format!("{service}:{port}"));
    match spoken {
        ConnectionProtocol::Http1 => {
            let listed = list("http");
            Box::pin(from_http1(session, listed, &io, early)).await;
        }
        ConnectionProtocol::Http2 => {
            let _listed = list("http2");
            Box::pin(http2::server::serve_connection(Rc::new(session), &io, early)).await;
        }
        ConnectionProtocol::Opaque => {
            let _listed = list("tcp");
            Box::pin(tcp::to_service(&session, &service, port, io, early)).await;
        }
    }
}
