//! Runs handshakes with clients: applies the timeout and the limit of pending connections, and counts the results.

use std::io;
use std::net::SocketAddr;

use leno_identity::handshake_failure_reason;
use leno_listen::{Evicted, PendingConnection};
use leno_model::{FailureSide, Reason};
use leno_telemetry::Count;
use tokio::time::timeout;

use crate::worker::Worker;

/// Runs a handshake within its timeout, and counts the result. Returns `None` after a failure, which is also
/// logged at debug level.
pub(crate) async fn finish_handshake<T>(
    worker: &Worker,
    peer: SocketAddr,
    handshake: impl Future<Output = Result<T, Reason>>,
) -> Option<T> {
    let result = timeout(worker.config.limits.handshake_timeout, handshake).await;
    match result.unwrap_or(Err(Reason::HandshakeFailed)) {
        Ok(connection) => {
            worker.metrics.add(Count::DownstreamHandshake, 1);
            Some(connection)
        }
        Err(reason) => {
            tracing::debug!(%peer, reason = reason.label(), "connection rejected");
            worker.metrics.add(Count::DownstreamHandshakeFailed, 1);
            worker.metrics.count_rejected(reason.label());
            None
        }
    }
}

/// Awaits `first_bytes`, which reads the first bytes of a client. Returns `None`, and counts the eviction, if
/// the pending connection was evicted for newer ones.
pub(crate) async fn await_first_bytes<F: Future>(
    worker: &Worker,
    pending_connection: &PendingConnection,
    first_bytes: F,
) -> Option<F::Output> {
    let result = pending_connection.await_peer(first_bytes).await;
    result.inspect_err(|_| worker.metrics.add(Count::PendingConnectionsEvicted, 1)).ok()
}

/// Returns the reason for a failed handshake. Counts the eviction if the pending connection was evicted for
/// newer ones.
pub(crate) fn failure_reason(worker: &Worker, error: &io::Error) -> Reason {
    if error.get_ref().is_some_and(|inner| inner.is::<Evicted>()) {
        worker.metrics.add(Count::PendingConnectionsEvicted, 1);
    }
    handshake_failure_reason(error, FailureSide::Downstream)
}
