//! Forwards the application's connections to destinations outside the mesh, if egress is allowed. If the egress default
//! is deny, egress rules decide by address, server name or request.

use std::net::SocketAddr;

use bytes::BytesMut;
use leno_model::{Egress, Reason};
use leno_telemetry::ConnectionSide;
use leno_traffic::EgressDecision;
use leno_wire::sniff::DetectedProtocol;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::config_store::{ConfigSnapshot, ConfigStore};
use crate::connection::{ConnectionResult, serve_until};
use crate::connections::OpenCounter;
use crate::dial::{dial_address, dial_reason};
use crate::first_bytes::{read_server_name, sniff_connection};
use crate::http::message::{MessageReader, MessageWriter};
use crate::http::server::serve_requests;
use crate::io::{ByteStream, Io};
use crate::record::ExchangeRecord;
use crate::session::Session;
use crate::splice::copy_bytes;
use crate::worker::Worker;

/// Forwards the application's connection to its original destination. The first bytes are awaited only if the
/// address alone does not decide: in some protocols the server sends first. `early_bytes`: the bytes that were
/// already read.
pub(crate) async fn serve_connection(
    session: &Session,
    address: SocketAddr,
    io: Io,
    mut early_bytes: BytesMut,
) {
    let destination = match detect_destination(session, address, &io, &mut early_bytes).await {
        Ok(DestinationIdentifier::Requests) => {
            // Each request is allowed or rejected individually.
            let mut serving =
                Box::pin(async { drop(serve_requests(session, &io, early_bytes).await) });
            let config_store = &session.worker.config_store;
            let denial = Box::pin(wait_until_denied(
                config_store,
                address,
                &DestinationIdentifier::Requests,
            ));
            if serve_until(serving.as_mut(), denial, &io).await == ConnectionResult::Aborted {
                session.worker.metrics.count_rejected(Reason::EgressDenied.label());
            }
            return;
        }
        Ok(destination) => Ok(destination),
        Err(reason) => Err(reason),
    };
    let mut record = ExchangeRecord::open(session, PROTOCOL_LABEL);
    let outcome = match destination {
        Ok(destination) => {
            forward_bytes(session, address, &destination, &io, early_bytes, &record).await
        }
        Err(reason) => {
            record.count_opened();
            Err(reason)
        }
    };
    match outcome {
        Ok(()) => record.mark_completed(),
        Err(reason) => {
            record.reason = Some(reason);
            // The client receives a reset, which it can tell from an orderly close.
            io.reset_on_drop();
        }
    }
}

/// The property of a connection by which egress rules identify its destination.
enum DestinationIdentifier {
    /// The address alone: the egress rules need no bytes of the client.
    Address,
    /// The server name of a TLS client.
    ServerName(String),
    /// Each request individually.
    Requests,
}

impl DestinationIdentifier {
    /// True if egress of the connection to this address is allowed.
    fn is_allowed(&self, config: &ConfigSnapshot, address: SocketAddr) -> bool {
        let compiled = &config.compiled;
        if compiled.snapshot.config.egress == Egress::Allow {
            return true;
        }
        match self {
            Self::Address => {
                compiled.egress_rules.decide_address(address) == EgressDecision::Allowed
            }
            Self::ServerName(name) => {
                compiled.egress_rules.decide_address(address) == EgressDecision::Allowed
                    || compiled.egress_rules.policy_for_server_name(address, name).is_some()
            }
            // The connection is allowed if some requests may be: each request is checked individually.
            Self::Requests => match compiled.egress_rules.decide_address(address) {
                EgressDecision::Allowed => true,
                EgressDecision::Inspected { by_request, .. } => by_request,
                EgressDecision::Denied => false,
            },
        }
    }
}

/// Determines the destination of a connection as far as egress rules need it.
async fn detect_destination(
    session: &Session,
    address: SocketAddr,
    io: &Io,
    early_bytes: &mut BytesMut,
) -> Result<DestinationIdentifier, Reason> {
    let worker = &session.worker;
    let config = worker.config_store.current_config().ok_or(Reason::DiscoveryTimeout)?;
    let compiled = &config.compiled;
    if compiled.snapshot.config.egress == Egress::Allow {
        return Ok(DestinationIdentifier::Address);
    }
    let (by_request, by_server_name) = match compiled.egress_rules.decide_address(address) {
        EgressDecision::Denied => return Err(Reason::EgressDenied),
        EgressDecision::Allowed => return Ok(DestinationIdentifier::Address),
        EgressDecision::Inspected { by_request, by_server_name } => (by_request, by_server_name),
    };
    // A slow client must not keep an old snapshot in memory.
    drop(config);
    let max_wait = worker.config.limits.head_timeout;
    let protocol = timeout(max_wait, sniff_connection(io, early_bytes))
        .await
        .map_err(|_| Reason::HeadTimeout)?;
    match protocol {
        DetectedProtocol::Http1 if by_request => Ok(DestinationIdentifier::Requests),
        DetectedProtocol::Tls if by_server_name => {
            let read_result = timeout(max_wait, read_server_name(io, early_bytes)).await;
            let server_name =
                read_result.map_err(|_| Reason::HeadTimeout)?.ok_or(Reason::EgressDenied)?;
            Ok(DestinationIdentifier::ServerName(server_name))
        }
        DetectedProtocol::Http1
        | DetectedProtocol::Http2
        | DetectedProtocol::Tls
        | DetectedProtocol::Opaque
        | DetectedProtocol::Incomplete => Err(Reason::EgressDenied),
    }
}

/// Connects to the destination, and forwards bytes in both directions while egress to it is allowed.
async fn forward_bytes(
    session: &Session,
    address: SocketAddr,
    destination: &DestinationIdentifier,
    io: &Io,
    early_bytes: BytesMut,
    record: &ExchangeRecord<'_>,
) -> Result<(), Reason> {
    let worker = &session.worker;
    let connection = connect_outside(worker, address, destination).await;
    record.count_opened();
    let tcp = connection?;
    let _open_counter = OpenCounter::for_connection(&worker.metrics, ConnectionSide::Upstream);
    let idle_timeout = worker.config.limits.idle_connection;
    let server_io = Io::new(ByteStream::Plain(tcp));
    let server = (
        MessageReader::new(server_io.clone()),
        MessageWriter::new(server_io.clone(), idle_timeout),
    );
    let mut client_reader = MessageReader::new(io.clone());
    client_reader.buffer = early_bytes;
    let client = (client_reader, MessageWriter::new(io.clone(), idle_timeout));
    tokio::select! {
        result = copy_bytes(client, server, idle_timeout, record, None) => result,
        () = wait_until_denied(&worker.config_store, address, destination) => {
            server_io.reset_on_drop();
            Err(Reason::EgressDenied)
        }
    }
}

/// Connects to an address outside the mesh, if egress to it is allowed.
async fn connect_outside(
    worker: &Worker,
    address: SocketAddr,
    destination: &DestinationIdentifier,
) -> Result<TcpStream, Reason> {
    let config = worker.config_store.current_config().ok_or(Reason::DiscoveryTimeout)?;
    if !destination.is_allowed(&config, address) {
        return Err(Reason::EgressDenied);
    }
    drop(config);
    let dialing = dial_address(address, &worker.config.interception);
    let connection = timeout(worker.config.limits.connect_timeout, dialing).await;
    connection.map_err(|_| Reason::ConnectTimeout)?.map_err(|error| dial_reason(&error))
}

/// Resolves when the egress rules no longer allow the connection.
async fn wait_until_denied(
    config_store: &ConfigStore,
    address: SocketAddr,
    destination: &DestinationIdentifier,
) {
    let mut changes = config_store.egress_changes();
    loop {
        if config_store
            .current_config()
            .is_some_and(|config| !destination.is_allowed(&config, address))
        {
            return;
        }
        if changes.changed().await.is_err() {
            // The configuration store outlives its subscribers.
            std::future::pending::<()>().await;
        }
    }
}

/// The protocol label in metrics. The service and port are not recorded, because the application chooses them
/// freely.
const PROTOCOL_LABEL: &str = "outside";
