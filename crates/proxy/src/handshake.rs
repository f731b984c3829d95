//! Handshakes with clients: the timeout, the limit of half-open connections, and the counters of the results.

use std::io;
use std::net::SocketAddr;

use leno_identity::handshake_failure_reason;
use leno_listen::{Evicted, HalfOpen};
use leno_model::{FailureSide, Reason};
use leno_telemetry::Count;
use tokio::time::timeout;

use crate::worker::Worker;

/// Runs a handshake within its timeout. Returns `None` for a failure, which is counted and logged here.
pub(crate) async fn finish_handshake<T>(
    worker: &Worker,
    peer: SocketAddr,
    accept: impl Future<Output = Result<T, Reason>>,
) -> Option<T> {
    let result = timeout(worker.config.limits.handshake_timeout, accept).await;
    match result.unwrap_or(Err(Reason::HandshakeFailed)) {
        Ok(connection) => {
            worker.shard.add(Count::DownstreamHandshake, 1);
            Some(connection)
        }
        Err(reason) => {
            tracing::debug!(%peer, reason = reason.label(), "connection rejected");
            worker.shard.add(Count::DownstreamHandshakeFailed, 1);
            worker.shard.count_rejected(reason.label());
            None
        }
    }
}

/// Awaits the first bytes of a client with `first_bytes`. Returns `None` if the connection was evicted in favor
/// of others, which is counted here.
pub(crate) async fn await_first_bytes<F: Future>(
    worker: &Worker,
    half_open: &HalfOpen,
    first_bytes: F,
) -> Option<F::Output> {
    let result = half_open.await_peer(first_bytes).await;
    result.inspect_err(|_| worker.shard.add(Count::HalfOpenConnectionsEvicted, 1)).ok()
}

/// Returns the reason for a failed handshake, and counts it if the connection was evicted in favor of others.
pub(crate) fn failure_reason(worker: &Worker, error: &io::Error) -> Reason {
    if error.get_ref().is_some_and(|inner| inner.is::<Evicted>()) {
        worker.shard.add(Count::HalfOpenConnectionsEvicted, 1);
    }
    handshake_failure_reason(error, FailureSide::Downstream)
}
