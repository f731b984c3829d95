//! Serves connections of external clients to the ports of a gateway: HTTP, HTTPS, TLS passthrough and TCP.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use bytes::BytesMut;
use leno_listen::PendingConnection;
use leno_model::{Protocol, Reason, Scheme};
use leno_traffic::CompiledGatewayPort;
use tokio::net::TcpStream;

use crate::connection::{
    ConnectionProtocol, detect_protocol, list_session, serve_pending_http1, serve_pending_http2,
};
use crate::handshake;
use crate::http::server::{reject_unreadable, serve_requests};
use crate::http2;
use crate::io::{ByteStream, Io};
use crate::session::{GatewayConnection, Session};
use crate::tcp;
use crate::tls::{self, ALPN_HTTP2};
use crate::worker::Worker;

/// Serves a connection of an external client to a gateway port, according to the current configuration of the
/// port.
pub(crate) async fn serve_connection(
    worker: &Rc<Worker>,
    port: u16,
    tcp: TcpStream,
    peer: SocketAddr,
) {
    // A dual-stack listener reports IPv4 addresses as IPv4-mapped IPv6 addresses.
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    let Some(gateway_port) = port_config(worker, port) else {
        return worker.metrics.count_rejected(Reason::NoRoute.label());
    };
    let gateway_connection = GatewayConnection { port, scheme: Scheme::Http, server_name: None };
    let pending_connection = worker.admission.admit(peer.ip());
    match &*gateway_port {
        CompiledGatewayPort::Http(_) => {
            let session = Session::for_gateway(worker.clone(), gateway_connection, peer);
            Box::pin(serve_http(session, pending_connection, Io::new(ByteStream::Plain(tcp))))
                .await;
        }
        CompiledGatewayPort::Https(_) => {
            Box::pin(serve_https(worker, pending_connection, gateway_connection, tcp, peer)).await;
        }
        CompiledGatewayPort::Passthrough(_) | CompiledGatewayPort::Tcp(_) => {
            let session = Session::for_gateway(worker.clone(), gateway_connection, peer);
            let _list_entry = list_session(&session, "tcp", describe_port(port));
            let io = Io::new(ByteStream::Plain(tcp));
            Box::pin(tcp::forward_through_gateway(
                &session,
                pending_connection,
                port,
                &gateway_port,
                io,
            ))
            .await;
        }
    }
}

/// Returns the current configuration of a gateway port; `None` if the gateway has no such port.
pub(crate) fn port_config(worker: &Worker, port: u16) -> Option<Arc<CompiledGatewayPort>> {
    let config = worker.config_store.current_config()?;
    config.compiled.gateway.as_ref()?.ports.get(&port).cloned()
}

/// Serves HTTP/1.1, or HTTP/2 with prior knowledge, on a connection without TLS.
async fn serve_http(session: Session, pending_connection: PendingConnection, io: Io) {
    let mut early_bytes = BytesMut::new();
    // External clients send first, so a protocol in which clients send requests is assumed.
    let detection = detect_protocol(
        &session.worker,
        Protocol::Http2,
        session.worker.config.limits.head_timeout,
        &io,
        &mut early_bytes,
    );
    let Some(protocol) =
        handshake::await_first_bytes(&session.worker, &pending_connection, detection).await
    else {
        return io.reset_on_drop();
    };
    match protocol {
        // The client has sent no bytes.
        None => {}
        Some(ConnectionProtocol::Http1) => {
            let list_entry = list_session(&session, "http", describe_session_port(&session));
            Box::pin(serve_pending_http1(
                session,
                pending_connection,
                list_entry,
                &io,
                early_bytes,
            ))
            .await;
        }
        Some(ConnectionProtocol::Http2) => {
            let _list_entry = list_session(&session, "http2", describe_session_port(&session));
            Box::pin(serve_pending_http2(session, pending_connection, &io, early_bytes)).await;
        }
        // Neither HTTP/1.1 nor HTTP/2, for example TLS.
        Some(ConnectionProtocol::Opaque) => {
            drop(pending_connection);
            reject_unreadable(&session, &io, Reason::BadRequest).await;
        }
    }
}

/// Terminates TLS, and serves the HTTP version that the client has negotiated. Rejects the connection if the
/// port has no usable certificate.
async fn serve_https(
    worker: &Rc<Worker>,
    pending_connection: PendingConnection,
    gateway_connection: GatewayConnection,
    tcp: TcpStream,
    peer: SocketAddr,
) {
    let tls_config = worker
        .config_store
        .current_config()
        .and_then(|config| config.gateway_tls.get(&gateway_connection.port)?.clone());
    let Some(tls_config) = tls_config else {
        return worker.metrics.count_rejected(Reason::HandshakeFailed.label());
    };
    let handshake_future = async {
        let first_bytes =
            handshake::await_first_bytes(worker, &pending_connection, tls::expect_handshake(&tcp))
                .await;
        // Without first bytes the connection was evicted for newer ones.
        first_bytes
            .unwrap_or_else(|| Err(tls::reject_with_reset(&tcp, Reason::HandshakeFailed)))?;
        tls::accept_external_client(worker, &pending_connection, tls_config, tcp).await
    };
    let Some(tls) = handshake::finish_handshake(worker, peer, handshake_future).await else {
        return;
    };
    drop(pending_connection);
    let (_, tls_session) = tls.get_ref();
    let server_name = tls_session.server_name().map(str::to_owned);
    let is_http2 = tls_session.alpn_protocol() == Some(ALPN_HTTP2);
    let gateway_connection =
        GatewayConnection { scheme: Scheme::Https, server_name, ..gateway_connection };
    let session = Session::for_gateway(worker.clone(), gateway_connection, peer);
    let io = Io::new(ByteStream::Server(Box::new(tls)));
    match is_http2 {
        true => {
            let _list_entry = list_session(&session, "http2", describe_session_port(&session));
            Box::pin(http2::server::serve_connection(Rc::new(session), &io, BytesMut::new())).await;
        }
        false => {
            let _list_entry = list_session(&session, "http", describe_session_port(&session));
            serve_requests(&session, &io, BytesMut::new()).await;
        }
    }
}

/// Describes the gateway port of a session for the list of open connections.
fn describe_session_port(session: &Session) -> String {
    describe_port(
        session.gateway_connection.as_ref().map_or(0, |gateway_connection| gateway_connection.port),
    )
}

/// Describes a gateway port for the list of open connections.
fn describe_port(port: u16) -> String {
    format!("gateway port {port}")
}
