//! Handshakes of whoever comes in: how long they may take, how many there are at once, what is counted.

use std::net::SocketAddr;
use std::time::Duration;

use leno_model::Reason;
use leno_telemetry::Count;
use tokio::time::timeout;

use crate::worker::Worker;

/// What came of a handshake, within its time; a refusal is counted and told here.
pub(crate) async fn finished<T>(
    worker: &Worker,
    peer: SocketAddr,
    accepting: impl Future<Output = Result<T, Reason>>,
) -> Option<T> {
    let accepted = timeout(worker.config.limits.handshake_timeout, accepting).await;
    match accepted.unwrap_or(Err(Reason::HandshakeFailed)) {
        Ok(accepted) => {
            worker.shard.add(Count::DownstreamHandshake, 1);
            Some(accepted)
        }
        Err(reason) => {
            tracing::debug!(%peer, reason = reason.label(), "a connection was refused");
            worker.shard.add(Count::DownstreamHandshakeFailed, 1);
            worker.shard.refuse(reason.label());
            None
        }
    }
}

/// The part of a handshake that is work, when there is room for it. Who is silent before takes none,
/// and who stops in between not for long.
pub(crate) async fn in_room<T>(
    worker: &Worker,
    accepting: impl Future<Output = Result<T, Reason>>,
) -> Result<T, Reason> {
    // Closed never: the semaphore lives as long as the worker.
    let _room = worker.handshakes.acquire().await;
    timeout(ROOM_TIMEOUT, accepting).await.unwrap_or(Err(Reason::HandshakeFailed))
}

/// How long a handshake that has begun may keep others waiting.
const ROOM_TIMEOUT: Duration = Duration::from_secs(2);
