//! Serves accepted connections: the entry point of the data path. A connection is classified by its listener
//! kind, its peer and its protocol, and is then served until it closes.
//!
//! A connection from outside the workload is pending until its handshake or the head of its first request is
//! complete (unlike in TCP, where the term means an incomplete three-way handshake).

mod protocol;

pub(crate) use protocol::{ConnectionProtocol, detect_protocol, list_session};
use protocol::{current_protocol, declared_protocol, is_detected_http2, protocol_at};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Instant;

use bytes::BytesMut;
use leno_listen::PendingConnection;
use leno_model::{AddressEntry, EndpointId, Protocol, Reason};
use leno_telemetry::{ConnectionSide, Count};
use leno_traffic::{ConnectionOrigin, SessionTransport};
use leno_wire::link::{Role, StreamKind};
use tokio::net::TcpStream;
use tokio::time::{sleep_until, timeout};

use crate::connections::{ConnectionListing, OpenCounter};
use crate::drain::Phase;
use crate::first_bytes::read_preface;
use crate::gateway;
use crate::handshake;
use crate::http::message::{MessageReader, MessageWriter};
use crate::http::outside::NamedDestination;
use crate::http::route;
use crate::http::server::{ServeResult, reject_unreadable, serve_requests};
use crate::http2;
use crate::io::{ByteStream, Io};
use crate::link::{LinkHandle, OpenedStream};
use crate::max_wait::wait_within;
use crate::outside;
use crate::plaintext;
use crate::session::{ListenerKind, Session};
use crate::silent_client::detect_client_protocol;
use crate::task_pool::TaskPool;
use crate::tcp;
use crate::tls::{
    self, ALPN_EXCLUSIVE, ALPN_HTTP2, ALPN_LINK, AcceptedClients, AcceptedConnection,
};
use crate::worker::Worker;

/// Serves an accepted connection until it closes.
pub(crate) async fn serve_connection(
    worker: Rc<Worker>,
    listener_kind: ListenerKind,
    tcp_stream: TcpStream,
    peer: SocketAddr,
) {
    let _open_counter = OpenCounter::for_connection(&worker.metrics, ConnectionSide::Downstream);
    // Boxed here and below, so that each kind of connection holds only the memory that it needs, not that of
    // the largest kind: most connections are idle most of the time.
    match listener_kind {
        ListenerKind::Inbound { port } => {
            Box::pin(accept_inbound(&worker, port, tcp_stream, peer)).await
        }
        ListenerKind::HttpProxy => {
            let session = Session::new(worker, ListenerKind::HttpProxy, None, peer);
            let _listing = list_session(&session, "http", "HTTP proxy".to_owned());
            Box::pin(serve_proxy_client(session, Io::new(ByteStream::Plain(tcp_stream)))).await;
        }
        ListenerKind::Address(address) => {
            Box::pin(serve_address_connection(&worker, address, tcp_stream, peer)).await
        }
        ListenerKind::Outbound { .. }
        | ListenerKind::Service { .. }
        | ListenerKind::Pinned { .. } => {
            let io = Io::new(ByteStream::Plain(tcp_stream));
            Box::pin(serve_service_connection(&worker, listener_kind, io, BytesMut::new(), peer))
                .await;
        }
        ListenerKind::Gateway { port } => {
            Box::pin(gateway::serve_connection(&worker, port, tcp_stream, peer)).await
        }
    }
}

/// Serves a connection to a port of the application: a link or HTTP inside mutual TLS, or plaintext if the
/// configuration permits it for this client.
async fn accept_inbound(worker: &Rc<Worker>, port: u16, tcp_stream: TcpStream, peer: SocketAddr) {
    let Some(config) = worker.config_store.current_config() else {
        // No access rules have arrived yet, so no client is accepted.
        return;
    };
    let declared = config.plaintext_protocol(port, peer.ip());
    let access = &config.compiled.access;
    let accepted_clients = if access.skips_client_certificate(port, peer.ip()) {
        AcceptedClients::Anyone
    } else if access.accepts_external_principals(port, peer.ip()) {
        AcceptedClients::ExternalPrincipals
    } else {
        AcceptedClients::Members
    };
    // Not held during the handshake, in which a newer snapshot may arrive.
    drop(config);
    let pending_connection = worker.admission.admit(peer.ip());
    if let Some(declared) = declared {
        let detection = plaintext::is_mutual_tls(worker, declared, &tcp_stream);
        match handshake::await_first_bytes(worker, &pending_connection, detection).await {
            // The client begins mutual TLS, or the connection failed, which the handshake reports.
            Some(true) => {}
            Some(false) => {
                let io = Io::new(ByteStream::Plain(tcp_stream));
                return serve_plaintext(worker, pending_connection, port, declared, io, peer).await;
            }
            // The connection was evicted for newer ones.
            None => return leno_listen::reset_on_drop(&tcp_stream),
        }
    }
    let Some(credential) = worker.config_store.credential() else {
        return;
    };
    let handshake_steps = async {
        let first_bytes = handshake::await_first_bytes(
            worker,
            &pending_connection,
            tls::expect_handshake(&tcp_stream),
        )
        .await;
        let client_hello = first_bytes
            .unwrap_or_else(|| Err(tls::reject_with_reset(&tcp_stream, Reason::HandshakeFailed)));
        client_hello
            .inspect_err(|reason| record_rejected_plaintext(worker, *reason, port, peer))?;
        tls::accept_tls(worker, &pending_connection, &credential, accepted_clients, tcp_stream)
            .await
    };
    let Some(accepted_connection) =
        handshake::finish_handshake(worker, peer, handshake_steps).await
    else {
        return;
    };
    drop(pending_connection);
    Box::pin(serve_inside_tls(worker, port, accepted_connection, peer)).await;
}

/// Serves a connection inside TLS for as long as its client is allowed.
async fn serve_inside_tls(
    worker: &Rc<Worker>,
    port: u16,
    accepted_connection: AcceptedConnection,
    peer: SocketAddr,
) {
    let member = accepted_connection.client.member().cloned();
    if member.as_ref().is_some_and(|member| worker.config_store.revokes_workload(member)) {
        let reason = Reason::RevokedPeer.label();
        if let Some(line) = worker.permit_log_line(peer) {
            let suppressed = line.suppressed;
            tracing::info!(%peer, reason, suppressed, "connection rejected");
        }
        worker.metrics.count_rejected(reason);
        return;
    }
    let (identity, principal_names, expires) = accepted_connection.client.into_parts();
    let identity = identity.map(Rc::new);
    let tls_state = accepted_connection.tls.get_ref().1;
    let alpn = tls_state.alpn_protocol().map(<[u8]>::to_vec);
    let transport = SessionTransport::Tls {
        server_name: tls_state.server_name().map(Into::into),
        principal_names,
    };
    let io = Io::new(ByteStream::Server(Box::new(accepted_connection.tls)));
    let mut session = Session::new(worker.clone(), ListenerKind::Inbound { port }, identity, peer);
    (session.expires, session.transport) = (expires, transport);
    let origin = session.origin();
    let serving = pin!(serve_tls_protocol(session, port, expires, io.clone(), alpn));
    let revocation = pin!(async {
        match &member {
            Some(member) => worker.config_store.wait_until_revoked(member).await,
            // Only an ingress rule allows clients that are not mesh members.
            None => worker.config_store.wait_until_plaintext_denied(port, origin).await,
        }
    });
    if serve_until(serving, revocation, &io).await == ConnectionResult::Aborted {
        let reason = match member {
            Some(_) => Reason::RevokedPeer,
            None => Reason::PlaintextRejected,
        };
        if let Some(line) = worker.permit_log_line(peer) {
            let (reason, suppressed) = (reason.label(), line.suppressed);
            tracing::info!(%peer, reason, suppressed, "connection closed: it is no longer permitted");
        }
        worker.metrics.count_rejected(reason.label());
        record_rejected_plaintext(worker, reason, port, peer);
    }
}

/// Reports a client that is rejected because it has no mutual TLS.
fn record_rejected_plaintext(worker: &Worker, reason: Reason, port: u16, peer: SocketAddr) {
    if reason == Reason::PlaintextRejected {
        worker.config_store.conditions.record_rejected_client(port, peer.ip());
    }
}

/// Serves a client without mutual TLS for as long as such clients are allowed.
async fn serve_plaintext(
    worker: &Rc<Worker>,
    pending_connection: PendingConnection,
    port: u16,
    declared: Protocol,
    io: Io,
    peer: SocketAddr,
) {
    let mut serving = Box::pin(serve_plaintext_protocol(
        worker,
        pending_connection,
        port,
        declared,
        io.clone(),
        peer,
    ));
    let origin = ConnectionOrigin { address: peer.ip(), transport: SessionTransport::Plaintext };
    let revocation = Box::pin(worker.config_store.wait_until_plaintext_denied(port, origin));
    if serve_until(serving.as_mut(), revocation, &io).await == ConnectionResult::Aborted {
        if let Some(line) = worker.permit_log_line(peer) {
            let suppressed = line.suppressed;
            tracing::info!(%peer, suppressed, "connection without mutual TLS closed: plaintext is no longer permitted");
        }
        worker.metrics.count_rejected(Reason::PlaintextRejected.label());
        record_rejected_plaintext(worker, Reason::PlaintextRejected, port, peer);
    }
}

/// Serves a connection until it ends, or until `revocation` resolves because the connection is no longer
/// permitted. The caller pins both futures: moving them into this function would reserve the memory of a
/// connection twice.
pub(crate) async fn serve_until(
    mut serving: Pin<&mut impl Future<Output = ()>>,
    revocation: impl Future<Output = ()> + Unpin,
    io: &Io,
) -> ConnectionResult {
    tokio::select! {
        () = &mut serving => return ConnectionResult::Complete,
        () = revocation => {}
    }
    // Reads and writes of `serving` fail now, so it ends by itself.
    io.reset_now();
    serving.await;
    ConnectionResult::Aborted
}

/// The reason why serving a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionResult {
    /// The connection ended normally.
    Complete,
    /// The connection was closed because it is no longer permitted.
    Aborted,
}

/// Serves a client without mutual TLS, in the application's protocol. An HTTP client is pending until it
/// has sent the head of a request, or the HTTP/2 preface.
async fn serve_plaintext_protocol(
    worker: &Rc<Worker>,
    pending_connection: PendingConnection,
    port: u16,
    declared: Protocol,
    io: Io,
    peer: SocketAddr,
) {
    worker.metrics.add(Count::DownstreamPlaintext, 1);
    let mut early_bytes = BytesMut::new();
    let idle_timeout = worker.config.limits.idle_connection;
    let mut session = Session::new(worker.clone(), ListenerKind::Inbound { port }, None, peer);
    let needs_requests = || tcp::needs_requests(&session, port);
    let detection = detect_client_protocol(
        worker,
        declared,
        idle_timeout,
        &io,
        &mut early_bytes,
        needs_requests,
    );
    let Some(detected) = handshake::await_first_bytes(worker, &pending_connection, detection).await
    else {
        return io.reset_on_drop();
    };
    let Some(protocol) = detected else {
        // The client closed the connection, or sent no bytes in time.
        return;
    };
    session.detected_http2 = is_detected_http2(declared, protocol);
    let list_connection = |name| list_session(&session, name, format!("application port {port}"));
    match protocol {
        ConnectionProtocol::Http1 => {
            let listing = list_connection("http");
            Box::pin(serve_pending_http1(session, pending_connection, listing, &io, early_bytes))
                .await;
        }
        ConnectionProtocol::Http2 => {
            let _listing = list_connection("http2");
            Box::pin(serve_pending_http2(session, pending_connection, &io, early_bytes)).await;
        }
        ConnectionProtocol::Opaque => {
            drop(pending_connection);
            let _listing = list_connection("tcp");
            Box::pin(tcp::forward_plaintext(&session, port, io, early_bytes)).await;
        }
    }
}

/// Serves plaintext HTTP/1.1. The connection is pending until the head of its first request is complete.
pub(crate) async fn serve_pending_http1(
    session: Session,
    pending_connection: PendingConnection,
    listing: ConnectionListing,
    io: &Io,
    early_bytes: BytesMut,
) {
    let received_bytes =
        Box::pin(read_first_head(&session, pending_connection, io, early_bytes)).await;
    if let Some(early_bytes) = received_bytes {
        serve_http1(session, listing, io, early_bytes).await;
    }
}

/// Reads the head of the first request and returns all bytes read; `None` if the connection closes instead.
async fn read_first_head(
    session: &Session,
    pending_connection: PendingConnection,
    io: &Io,
    early_bytes: BytesMut,
) -> Option<BytesMut> {
    let worker = &session.worker;
    let mut reader = MessageReader::new(io.clone());
    reader.buffer = early_bytes;
    let mut head = worker.request_heads.take_object();
    let read_request =
        wait_within(worker.config.limits.head_timeout, reader.buffer_request(&mut head));
    let read_result = handshake::await_first_bytes(worker, &pending_connection, read_request).await;
    drop(pending_connection);
    match read_result {
        Some(Some(())) => return Some(reader.buffer),
        // Empty lines do not begin a request: the connection is idle.
        Some(None) if matches!(&reader.buffer[..], b"" | b"\r") => return Some(reader.buffer),
        Some(None) => drop(reject_unreadable(session, io, Reason::HeadTimeout).await),
        None => io.reset_on_drop(),
    }
    None
}

/// Serves plaintext HTTP/2. The connection is pending until its preface is complete. Afterwards it is idle
/// while it has no request, and an idle connection may be evicted.
pub(crate) async fn serve_pending_http2(
    session: Session,
    pending_connection: PendingConnection,
    io: &Io,
    mut early_bytes: BytesMut,
) {
    let worker = &session.worker;
    let read_preface_bytes =
        timeout(worker.config.limits.handshake_timeout, read_preface(io, &mut early_bytes));
    let preface_result =
        handshake::await_first_bytes(worker, &pending_connection, read_preface_bytes).await;
    drop(pending_connection);
    match preface_result {
        // The HTTP/2 handshake reports the error to a client that is late or sends other bytes.
        Some(Ok(()) | Err(_)) => {
            Box::pin(http2::server::serve_connection(Rc::new(session), io, early_bytes)).await;
        }
        None => io.reset_on_drop(),
    }
}

/// Serves a connection that begins with HTTP/1.1 and may be upgraded to HTTP/2.
pub(crate) async fn serve_http1(
    session: Session,
    listing: ConnectionListing,
    io: &Io,
    early_bytes: BytesMut,
) {
    if let ServeResult::Http2 { first_frame, early_bytes } =
        serve_requests(&session, io, early_bytes).await
    {
        listing.set_protocol("http2");
        // A proxy may send requests of several users over one HTTP/2 connection.
        session.is_exclusive.set(false);
        Box::pin(http2::server::continue_upgraded(Rc::new(session), io, first_frame, early_bytes))
            .await;
    }
}

/// Serves the protocol inside mutual TLS: a link, HTTP/2 or HTTP/1.1. `expires`: the expiration of the client's
/// certificate. `alpn`: the protocol selected in the handshake; `None` means HTTP/1.1.
async fn serve_tls_protocol(
    mut session: Session,
    port: u16,
    expires: Option<Instant>,
    io: Io,
    alpn: Option<Vec<u8>>,
) {
    session.is_dedicated = alpn.as_deref() == Some(ALPN_EXCLUSIVE) && session.identity.is_some();
    let list_connection =
        |protocol| list_session(&session, protocol, format!("application port {port}"));
    match (alpn.as_deref(), expires.filter(|_| session.identity.is_some())) {
        (Some(ALPN_LINK), Some(expires)) => {
            let _listing = list_connection("link");
            Box::pin(serve_inbound_link(Rc::new(session), port, expires, io)).await;
        }
        // Links are for mesh members only.
        (Some(ALPN_LINK), None) => io.reset_on_drop(),
        (Some(ALPN_HTTP2), _) => {
            let _listing = list_connection("http2");
            Box::pin(http2::server::serve_connection(Rc::new(session), &io, BytesMut::new())).await;
        }
        (Some(_) | None, _) => {
            let _listing = list_connection("http");
            serve_requests(&session, &io, BytesMut::new()).await;
        }
    }
}

/// Drives a link that another sidecar opened. Each stream has its own task. No new streams are accepted
/// once the certificate of the peer has expired or the proxy drains.
async fn serve_inbound_link(session: Rc<Session>, port: u16, expires: Instant, io: Io) {
    let worker = session.worker.clone();
    let _open_counter = OpenCounter::for_link(&worker.metrics, ConnectionSide::Downstream);
    let (link, peer) = (LinkHandle::new(Role::Acceptor), session.peer);
    let mut phase = worker.phase.clone();
    let on_open = move |opened_stream: OpenedStream| {
        let session = session.clone();
        match opened_stream.kind {
            StreamKind::Http => TaskPool::serve_stream(session, opened_stream),
            StreamKind::Tcp => {
                let forward_stream =
                    async move { tcp::forward_to_application(&session, port, opened_stream).await };
                tokio::task::spawn_local(forward_stream);
            }
        }
    };
    let idle_timeout = worker.config.limits.idle_connection;
    let mut driver = pin!(link.clone().drive(io, idle_timeout, on_open));
    let early_end = tokio::select! {
        link_end = &mut driver => Some(link_end),
        _ = phase.wait_for(|phase| *phase == Phase::Draining) => None,
        () = sleep_until(expires.into()) => None,
    };
    let link_end = match early_end {
        Some(link_end) => link_end,
        None => {
            link.retire();
            driver.await
        }
    };
    if let Err(error) = link_end {
        worker.log_protocol_violation(peer, error);
    }
}

/// Serves the application as its HTTP proxy. After a CONNECT request, the connection is served as a connection
/// to the service or external address that the request names.
async fn serve_proxy_client(session: Session, io: Io) {
    let (authority, early_bytes) = match serve_requests(&session, &io, BytesMut::new()).await {
        ServeResult::Tunnel { authority, early_bytes } => (authority, early_bytes),
        ServeResult::PriorKnowledge { early_bytes } => {
            return Box::pin(http2::server::serve_connection(Rc::new(session), &io, early_bytes))
                .await;
        }
        // This port accepts no upgrade to HTTP/2, so only `Done` occurs.
        ServeResult::Done | ServeResult::Http2 { .. } => return,
    };
    let destination = match route::tunnel_destination(&session, &authority).await {
        Ok(destination) => destination,
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
    match destination {
        NamedDestination::Service(service, port) => {
            let listener_kind = ListenerKind::Service { service, port };
            Box::pin(serve_service_connection(
                &session.worker,
                listener_kind,
                io,
                early_bytes,
                session.peer,
            ))
            .await;
        }
        NamedDestination::External(address) => {
            let tunnel_session = Session::new(
                session.worker.clone(),
                ListenerKind::Address(address),
                None,
                session.peer,
            );
            let _listing = list_session(&tunnel_session, "tcp", format!("{address}, outside"));
            Box::pin(outside::serve_connection(&tunnel_session, address, io, early_bytes)).await;
        }
    }
}

/// Serves a connection from the application to an IP address: to the service or workload in the address entry,
/// or directly to the external address.
async fn serve_address_connection(
    worker: &Rc<Worker>,
    address: SocketAddr,
    tcp_stream: TcpStream,
    peer: SocketAddr,
) {
    let io = Io::new(ByteStream::Plain(tcp_stream));
    let max_wait = worker.config.limits.discovery_timeout;
    let address_entry = match worker.config_store.address_entry(address.ip(), max_wait).await {
        Ok(address_entry) => address_entry,
        Err(reason) => {
            tracing::debug!(address = %address, reason = reason.label(), "no configuration for this address");
            worker.metrics.count_rejected(reason.label());
            return io.reset_on_drop();
        }
    };
    let listener_kind = match &*address_entry {
        AddressEntry::External => None,
        AddressEntry::Service(service) => {
            Some(ListenerKind::Service { service: service.clone(), port: address.port() })
        }
        AddressEntry::Workload { workload, ports } => ports.get(&address.port()).map(|port| {
            let (service, workload) = (port.service.clone(), workload.clone());
            ListenerKind::Pinned { address, id: EndpointId { service, port: port.port, workload } }
        }),
    };
    drop(address_entry);
    if let Some(listener_kind) = listener_kind {
        return serve_service_connection(worker, listener_kind, io, BytesMut::new(), peer).await;
    }
    let session = Session::new(worker.clone(), ListenerKind::Address(address), None, peer);
    let _listing = list_session(&session, "tcp", format!("{address}, outside"));
    outside::serve_connection(&session, address, io, BytesMut::new()).await;
}

/// Serves a connection from the application to one service or workload, in the protocol of the service.
async fn serve_service_connection(
    worker: &Rc<Worker>,
    listener_kind: ListenerKind,
    io: Io,
    mut early_bytes: BytesMut,
    peer: SocketAddr,
) {
    let (service, port, mut declared) = match &listener_kind {
        ListenerKind::Outbound { service, port } | ListenerKind::Service { service, port } => {
            (service.clone(), *port, declared_protocol(worker, service, *port).await)
        }
        ListenerKind::Pinned { address, id } => {
            (id.service.clone(), id.port, protocol_at(worker, *address).await)
        }
        // The callers serve connections of these kinds themselves.
        ListenerKind::Inbound { .. }
        | ListenerKind::HttpProxy
        | ListenerKind::Address(_)
        | ListenerKind::Gateway { .. } => return,
    };
    let idle_timeout = worker.config.limits.idle_connection;
    let protocol = loop {
        let needs_requests = || tcp::injects_faults(worker, &service, port);
        let detection = detect_client_protocol(
            worker,
            declared,
            idle_timeout,
            &io,
            &mut early_bytes,
            needs_requests,
        );
        let Some(protocol) = detection.await else { return };
        // The configuration at the time of the first bytes decides: it may be newer than the connection.
        match current_protocol(worker, &listener_kind) {
            Some(current) if current != declared => declared = current,
            Some(_) | None => break protocol,
        }
    };
    let mut session = Session::new(worker.clone(), listener_kind, None, peer);
    session.detected_http2 = is_detected_http2(declared, protocol);
    let list_connection = |name| list_session(&session, name, format!("{service}:{port}"));
    match protocol {
        ConnectionProtocol::Http1 => {
            let listing = list_connection("http");
            Box::pin(serve_http1(session, listing, &io, early_bytes)).await;
        }
        ConnectionProtocol::Http2 => {
            let _listing = list_connection("http2");
            Box::pin(http2::server::serve_connection(Rc::new(session), &io, early_bytes)).await;
        }
        ConnectionProtocol::Opaque => {
            let _listing = list_connection("tcp");
            Box::pin(tcp::forward_to_service(&session, &service, port, io, early_bytes)).await;
        }
    }
}
