//! Connections to destinations outside the mesh, forwarded unchanged if egress is allowed. If the default is
//! deny, egress rules decide by address, server name or request.

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
use crate::first_bytes::{server_name, sniff_connection};
use crate::http::message::{MessageReader, MessageWriter};
use crate::http::server::serve_requests;
use crate::io::{ByteStream, Io};
use crate::record::ExchangeRecord;
use crate::session::Session;
use crate::splice::copy_bytes;
use crate::worker::Worker;

/// Carries the application's connection to its original destination. The first bytes are awaited only if the
/// address alone does not decide: in some protocols the server speaks first. `early`: bytes that were read
/// already.
pub(crate) async fn serve_connection(
    session: &Session,
    at: SocketAddr,
    io: Io,
    mut early: BytesMut,
) {
    let reported = match detect_destination(session, at, &io, &mut early).await {
        Ok(DestinationIdentifier::Requests) => {
            // Each request is allowed or rejected individually.
            let mut served = Box::pin(async { drop(serve_requests(session, &io, early).await) });
            let config_store = &session.worker.config_store;
            let forbidden =
                Box::pin(wait_until_forbidden(config_store, at, &DestinationIdentifier::Requests));
            if serve_until(served.as_mut(), forbidden, &io).await == ConnectionResult::Aborted {
                session.worker.shard.count_rejected(Reason::EgressDenied.label());
            }
            return;
        }
        Ok(reported) => Ok(reported),
        Err(reason) => Err(reason),
    };
    let mut record = ExchangeRecord::open(session, PROTOCOL);
    let passed = match reported {
        Ok(reported) => forward_bytes(session, at, &reported, &io, early, &record).await,
        Err(reason) => {
            record.count_opened();
            Err(reason)
        }
    };
    match passed {
        Ok(()) => record.mark_succeeded(),
        Err(reason) => {
            record.reason = Some(reason);
            // An orderly end is preserved; any error reaches the client as a reset.
            io.reset_on_drop();
        }
    }
}

/// The part of a connection that identifies its destination.
enum DestinationIdentifier {
    /// The address alone.
    Address,
    /// The server name of a TLS client.
    ServerName(String),
    /// Each request.
    Requests,
}

impl DestinationIdentifier {
    /// True if egress to this address is allowed.
    fn is_let_out(&self, config: &ConfigSnapshot, at: SocketAddr) -> bool {
        let plans = &config.plans;
        if plans.snapshot.config.egress == Egress::Allow {
            return true;
        }
        match self {
            Self::Address => plans.egress_rules.permission_for(at) == EgressDecision::Allowed,
            Self::ServerName(name) => {
                plans.egress_rules.permission_for(at) == EgressDecision::Allowed
                    || plans.egress_rules.by_server_name(at, name).is_some()
            }
            // Allowed if some requests may be; each is checked individually.
            Self::Requests => match plans.egress_rules.permission_for(at) {
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
    at: SocketAddr,
    io: &Io,
    early: &mut BytesMut,
) -> Result<DestinationIdentifier, Reason> {
    let worker = &session.worker;
    let config = worker.config_store.current_config().ok_or(Reason::DiscoveryTimeout)?;
    let plans = &config.plans;
    if plans.snapshot.config.egress == Egress::Allow {
        return Ok(DestinationIdentifier::Address);
    }
    let (by_request, by_server_name) = match plans.egress_rules.permission_for(at) {
        EgressDecision::Denied => return Err(Reason::EgressDenied),
        EgressDecision::Allowed => return Ok(DestinationIdentifier::Address),
        EgressDecision::Inspected { by_request, by_server_name } => (by_request, by_server_name),
    };
    drop(config);
    let max_wait = worker.config.limits.head_timeout;
    let sniffed =
        timeout(max_wait, sniff_connection(io, early)).await.map_err(|_| Reason::HeadTimeout)?;
    match sniffed {
        DetectedProtocol::Http1 if by_request => Ok(DestinationIdentifier::Requests),
        DetectedProtocol::Tls if by_server_name => {
            let name = timeout(max_wait, server_name(io, early)).await;
            let name = name.map_err(|_| Reason::HeadTimeout)?.ok_or(Reason::EgressDenied)?;
            Ok(DestinationIdentifier::ServerName(name))
        }
        DetectedProtocol::Http1
        | DetectedProtocol::Http2
        | DetectedProtocol::Tls
        | DetectedProtocol::Opaque
        | DetectedProtocol::Incomplete => Err(Reason::EgressDenied),
    }
}

async fn forward_bytes(
    session: &Session,
    at: SocketAddr,
    reported: &DestinationIdentifier,
    io: &Io,
    early: BytesMut,
    record: &ExchangeRecord<'_>,
) -> Result<(), Reason> {
    let worker = &session.worker;
    let connected = connect_outside(worker, at, reported).await;
    record.count_opened();
    let tcp = connected?;
    let _counted = OpenCounter::for_connection(&worker.shard, ConnectionSide::Upstream);
    let max_wait = worker.config.limits.idle_connection;
    let ends = |io: &Io| (MessageReader::new(io.clone()), MessageWriter::new(io.clone(), max_wait));
    let server = Io::new(ByteStream::Plain(tcp));
    let mut client = ends(io);
    client.0.buffer = early;
    tokio::select! {
        spliced = copy_bytes(client, ends(&server), max_wait, record, None) => spliced,
        () = wait_until_forbidden(&worker.config_store, at, reported) => {
            server.reset_on_drop();
            Err(Reason::EgressDenied)
        }
    }
}

/// Connects to an address outside the mesh, if egress to it is allowed.
async fn connect_outside(
    worker: &Worker,
    at: SocketAddr,
    reported: &DestinationIdentifier,
) -> Result<TcpStream, Reason> {
    let config = worker.config_store.current_config().ok_or(Reason::DiscoveryTimeout)?;
    if !reported.is_let_out(&config, at) {
        return Err(Reason::EgressDenied);
    }
    drop(config);
    let dialled = dial_address(at, &worker.config.interception);
    let dialled = timeout(worker.config.limits.connect_timeout, dialled).await;
    dialled.map_err(|_| Reason::ConnectTimeout)?.map_err(|error| dial_reason(&error))
}

/// Resolves when egress of a connection is no longer allowed.
async fn wait_until_forbidden(
    config_store: &ConfigStore,
    at: SocketAddr,
    reported: &DestinationIdentifier,
) {
    let mut changes = config_store.egress_changes();
    loop {
        if config_store.current_config().is_some_and(|config| !reported.is_let_out(&config, at)) {
            return;
        }
        if changes.changed().await.is_err() {
            // The configuration store outlives its subscribers.
            std::future::pending::<()>().await;
        }
    }
}

/// The protocol label. The service and port are not recorded: the application chooses them freely.
const PROTOCOL: &str = "outside";
