//! Connections to what is not of the mesh: passed on as they are, if the mesh lets them out.

use std::net::SocketAddr;

use leno_model::{Egress, Reason};
use leno_telemetry::ConnectionSide;

use crate::connections::Counted;
use crate::dial::dial;
use crate::http::message::{Reader, Writer};
use crate::io::{Io, Stream};
use crate::record::Record;
use crate::session::Session;
use crate::splice::splice;

/// Carries the application's connection to where it wanted to go. Nothing of it is waited for: there
/// are protocols in which the server speaks first.
pub(crate) async fn carry(session: &Session, at: SocketAddr, io: Io) {
    let mut record = Record::open(session, PROTOCOL);
    match pass(session, at, &io, &record).await {
        Ok(()) => record.succeed(),
        Err(reason) => {
            record.reason = Some(reason);
            // An orderly end stays one; anything else reaches the client as a reset.
            io.reset();
        }
    }
}

async fn pass(
    session: &Session,
    at: SocketAddr,
    io: &Io,
    record: &Record<'_>,
) -> Result<(), Reason> {
    let worker = &session.worker;
    let scene = worker.world.scene().ok_or(Reason::DiscoveryTimeout)?;
    if scene.plans.snapshot.plan.egress == Egress::Deny {
        return Err(Reason::EgressDenied);
    }
    drop(scene);
    let limits = &worker.config.limits;
    let dialled = dial(at, &worker.config.interception);
    let dialled = tokio::time::timeout(limits.connect_timeout, dialled).await;
    let tcp = dialled.map_err(|_| Reason::ConnectTimeout)?.map_err(|_| Reason::ConnectFailed)?;
    let _counted = Counted::connection(&worker.shard, ConnectionSide::Upstream);
    let patience = limits.idle_connection;
    let ends = |io: &Io| (Reader::new(io.clone()), Writer::new(io.clone(), patience));
    let server = Io::new(Stream::Plain(tcp));
    tokio::select! {
        spliced = splice((ends(io), ends(&server)), patience, record) => spliced,
        () = worker.world.egress_denied() => {
            server.reset();
            Err(Reason::EgressDenied)
        }
    }
}

/// What it is counted as: neither the service nor the port, which the application makes up.
const PROTOCOL: &str = "outside";
