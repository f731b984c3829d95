//! Determines the protocol of a connection, declared by the configuration or detected from the first bytes, and
//! adds the connection to the list on the admin endpoint.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use leno_model::{AddressEntry, Protocol, ServiceName};
use leno_wire::sniff::DetectedProtocol;
use tokio::time::timeout;

use crate::connections::{ConnectionListing, OpenConnection};
use crate::drain::{Phase, last_request_timeout};
use crate::first_bytes::sniff_connection;
use crate::io::Io;
use crate::session::{ListenerKind, Session};
use crate::worker::Worker;

/// Determines the protocol of a connection to a service that declares the protocol `declared`. `early_bytes`: the
/// bytes that were already read, to which this function appends. Returns `None` if the client sends no byte within
/// `idle_timeout`, or before a draining proxy stops waiting for requests.
pub(crate) async fn detect_protocol(
    worker: &Worker,
    declared: Protocol,
    idle_timeout: Duration,
    io: &Io,
    early_bytes: &mut BytesMut,
) -> Option<ConnectionProtocol> {
    let limits = &worker.config.limits;
    match declared {
        Protocol::Tcp => Some(ConnectionProtocol::Opaque),
        // A silent client implies a protocol in which the server speaks first.
        Protocol::Detect => {
            match timeout(limits.detect_timeout, sniff_connection(io, early_bytes)).await {
                Ok(DetectedProtocol::Http1) => Some(ConnectionProtocol::Http1),
                Ok(DetectedProtocol::Http2) => Some(ConnectionProtocol::Http2),
                // The protocol of the application is unknown: bytes are forwarded unchanged.
                Ok(_) | Err(_) => Some(ConnectionProtocol::Opaque),
            }
        }
        Protocol::Http | Protocol::Http2 | Protocol::Grpc => {
            let sniffed_protocol = loop {
                if early_bytes.is_empty() {
                    let mut phase = worker.phase.clone();
                    let readable_within =
                        |time_limit| timeout(time_limit, poll_fn(|cx| io.poll_readable(cx)));
                    tokio::select! {
                        biased;
                        readable = readable_within(idle_timeout) => readable.ok()?.ok()?,
                        // The first request of a new connection may be in transit when the drain begins.
                        _ = phase.wait_for(|phase| *phase == Phase::Draining) => {
                            let last_request_wait = last_request_timeout(limits).min(idle_timeout);
                            Box::pin(readable_within(last_request_wait)).await.ok()?.ok()?;
                        }
                    }
                }
                match timeout(limits.head_timeout, sniff_connection(io, early_bytes)).await {
                    Ok(sniffed_protocol) => break sniffed_protocol,
                    // A spurious wakeup: no byte has arrived.
                    Err(_) if early_bytes.is_empty() => {}
                    // The head reader reports a client that sends only a part of the head.
                    Err(_) => break DetectedProtocol::Incomplete,
                }
            };
            Some(match (declared, sniffed_protocol) {
                // The application's own TLS, opaque to both sidecars.
                (_, DetectedProtocol::Tls) => ConnectionProtocol::Opaque,
                // HTTP/1.1 and HTTP/2 are accepted, independent of the declaration: the sidecar of the
                // application translates. The reader of the head rejects bytes of any other protocol.
                (_, DetectedProtocol::Http2) => ConnectionProtocol::Http2,
                (Protocol::Http, _) | (_, DetectedProtocol::Http1) => ConnectionProtocol::Http1,
                _ => ConnectionProtocol::Http2,
            })
        }
    }
}

/// True if the client speaks HTTP/2 to a port without a declared protocol: the application gets HTTP/2 too.
pub(super) fn is_detected_http2(declared: Protocol, detected: ConnectionProtocol) -> bool {
    declared == Protocol::Detect && detected == ConnectionProtocol::Http2
}

/// The protocol in which a connection to a service is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionProtocol {
    Http1,
    Http2,
    Opaque,
}

/// Returns the declared protocol of a service port; `Detect` if it is not known.
pub(super) async fn declared_protocol(
    worker: &Worker,
    service: &ServiceName,
    port: u16,
) -> Protocol {
    let max_wait = worker.config.limits.discovery_timeout;
    let Ok((_, compiled_service)) = worker.config_store.with_service(service, max_wait).await
    else {
        return Protocol::Detect;
    };
    compiled_service.ports.get(&port).map_or(Protocol::Detect, |port| port.protocol)
}

/// Returns the declared protocol of a workload port that is addressed directly; `Detect` if it is not known.
pub(super) async fn protocol_at(worker: &Worker, address: SocketAddr) -> Protocol {
    let max_wait = worker.config.limits.discovery_timeout;
    match worker.config_store.address_entry(address.ip(), max_wait).await.as_deref() {
        Ok(AddressEntry::Workload { ports, .. }) => {
            ports.get(&address.port()).map_or(Protocol::Detect, |port| port.protocol)
        }
        Ok(AddressEntry::Service(_) | AddressEntry::External) | Err(_) => Protocol::Detect,
    }
}

/// Returns the declared protocol of the target in the current configuration; `None` for a listener without a
/// single target, and for an unknown target.
pub(super) fn current_protocol(worker: &Worker, listener_kind: &ListenerKind) -> Option<Protocol> {
    match listener_kind {
        ListenerKind::Outbound { service, port } | ListenerKind::Service { service, port } => {
            worker.config_store.declared_protocol(service, *port)
        }
        ListenerKind::Pinned { address, .. } => worker.config_store.protocol_at(*address),
        ListenerKind::Inbound { .. }
        | ListenerKind::HttpProxy
        | ListenerKind::Address(_)
        | ListenerKind::Gateway { .. } => None,
    }
}

/// Lists the connection of a session on the admin endpoint until the guard is dropped.
pub(crate) fn list_session(
    session: &Session,
    protocol: &'static str,
    target: String,
) -> ConnectionListing {
    session.worker.connections.list(OpenConnection {
        direction: if session.is_inbound() { "inbound" } else { "outbound" },
        protocol,
        peer: session.peer,
        identity: session.identity.as_ref().map(ToString::to_string).unwrap_or_default(),
        target,
        opened_at: Instant::now(),
    })
}
