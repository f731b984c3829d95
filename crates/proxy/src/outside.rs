//! Connections to destinations outside the mesh, forwarded unchanged if egress is allowed. If the default is
//! deny, egress rules decide by address, server name or request.

use std::net::SocketAddr;

use bytes::BytesMut;
use leno_model::{Egress, Reason};
use leno_telemetry::ConnectionSide;
use leno_traffic::Way;
use leno_wire::sniff::Sniffed;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::connection::{Ended, serve_until};
use crate::connections::Counted;
use crate::dial::{dial_address, dial_reason};
use crate::first_bytes::{server_name, sniff_connection};
use crate::http::message::{Reader, Writer};
use crate::http::server::serve_requests;
use crate::io::{Io, Stream};
use crate::record::Record;
use crate::session::Session;
use crate::splice::copy_bytes;
use crate::worker::Worker;
use crate::world::{ConfigSnapshot, World};

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
        Ok(Reported::Requests) => {
            // Each request is allowed or rejected individually.
            let mut served = Box::pin(async { drop(serve_requests(session, &io, early).await) });
            let world = &session.worker.world;
            let forbidden = Box::pin(wait_until_forbidden(world, at, &Reported::Requests));
            if serve_until(served.as_mut(), forbidden, &io).await == Ended::Cut {
                session.worker.shard.count_rejected(Reason::EgressDenied.label());
            }
            return;
        }
        Ok(reported) => Ok(reported),
        Err(reason) => Err(reason),
    };
    let mut record = Record::open(session, PROTOCOL);
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
enum Reported {
    /// The address alone.
    Address,
    /// The server name of a TLS client.
    ServerName(String),
    /// Each request.
    Requests,
}

impl Reported {
    /// True if egress to this address is allowed.
    fn is_let_out(&self, config: &ConfigSnapshot, at: SocketAddr) -> bool {
        let plans = &config.plans;
        if plans.snapshot.plan.egress == Egress::Allow {
            return true;
        }
        match self {
            Self::Address => plans.egress_rules.permission_for(at) == Way::Open,
            Self::ServerName(name) => {
                plans.egress_rules.permission_for(at) == Way::Open
                    || plans.egress_rules.by_server_name(at, name).is_some()
            }
            // Allowed if some requests may be; each is checked individually.
            Self::Requests => match plans.egress_rules.permission_for(at) {
                Way::Open => true,
                Way::Inspected { by_request, .. } => by_request,
                Way::Closed => false,
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
) -> Result<Reported, Reason> {
    let worker = &session.worker;
    let config = worker.world.current_config().ok_or(Reason::DiscoveryTimeout)?;
    let plans = &config.plans;
    if plans.snapshot.plan.egress == Egress::Allow {
        return Ok(Reported::Address);
    }
    let (by_request, by_server_name) = match plans.egress_rules.permission_for(at) {
        Way::Closed => return Err(Reason::EgressDenied),
        Way::Open => return Ok(Reported::Address),
        Way::Inspected { by_request, by_server_name } => (by_request, by_server_name),
    };
    drop(config);
    let max_wait = worker.config.limits.head_timeout;
    let sniffed =
        timeout(max_wait, sniff_connection(io, early)).await.map_err(|_| Reason::HeadTimeout)?;
    match sniffed {
        Sniffed::Http1 if by_request => Ok(Reported::Requests),
        Sniffed::Tls if by_server_name => {
            let name = timeout(max_wait, server_name(io, early)).await;
            let name = name.map_err(|_| Reason::HeadTimeout)?.ok_or(Reason::EgressDenied)?;
            Ok(Reported::ServerName(name))
        }
        Sniffed::Http1 | Sniffed::Http2 | Sniffed::Tls | Sniffed::Opaque | Sniffed::More => {
            Err(Reason::EgressDenied)
        }
    }
}

async fn forward_bytes(
    session: &Session,
    at: SocketAddr,
    reported: &Reported,
    io: &Io,
    early: BytesMut,
    record: &Record<'_>,
) -> Result<(), Reason> {
    let worker = &session.worker;
    let connected = connect_outside(worker, at, reported).await;
    record.count_opened();
    let tcp = connected?;
    let _counted = Counted::for_connection(&worker.shard, ConnectionSide::Upstream);
    let max_wait = worker.config.limits.idle_connection;
    let ends = |io: &Io| (Reader::new(io.clone()), Writer::new(io.clone(), max_wait));
    let server = Io::new(Stream::Plain(tcp));
    let mut client = ends(io);
    client.0.buffer = early;
    tokio::select! {
        spliced = copy_bytes(client, ends(&server), max_wait, record, None) => spliced,
        () = wait_until_forbidden(&worker.world, at, reported) => {
            server.reset_on_drop();
            Err(Reason::EgressDenied)
        }
    }
}

/// Connects to an address outside the mesh, if egress to it is allowed.
async fn connect_outside(
    worker: &Worker,
    at: SocketAddr,
    reported: &Reported,
) -> Result<TcpStream, Reason> {
    let config = worker.world.current_config().ok_or(Reason::DiscoveryTimeout)?;
    if !reported.is_let_out(&config, at) {
        return Err(Reason::EgressDenied);
    }
    drop(config);
    let dialled = dial_address(at, &worker.config.interception);
    let dialled = timeout(worker.config.limits.connect_timeout, dialled).await;
    dialled.map_err(|_| Reason::ConnectTimeout)?.map_err(|error| dial_reason(&error))
}

/// Resolves when egress of a connection is no longer allowed.
async fn wait_until_forbidden(world: &World, at: SocketAddr, reported: &Reported) {
    let mut changes = world.egress_changes();
    loop {
        if world.current_config().is_some_and(|config| !reported.is_let_out(&config, at)) {
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
