//! Clients that send nothing at first, at ports where policies decide by request.
//!
//! The protocol of a silent client is unknown: the server may speak first. Where a policy has to see requests, opaque bytes are
//! rejected, so that such a client waits for nothing; it may be a health check, or a connection that was opened ahead.

use std::time::Duration;

use bytes::BytesMut;
use leno_model::Protocol;
use tokio::time::timeout;

use crate::connection::{Spoken, spoken};
use crate::drain::{Phase, last_call};
use crate::first_bytes::begins;
use crate::io::Io;
use crate::worker::Worker;

/// The protocol of a client. A silent one is opaque, unless a policy needs to see requests: then its first bytes are awaited,
/// as those of a request are. `None`: the connection ends without any.
pub(crate) async fn spoken_in(
    worker: &Worker,
    (declared, patience): (Protocol, Duration),
    (io, early): (&Io, &mut BytesMut),
    needs_requests: impl Fn() -> bool,
) -> Option<Spoken> {
    loop {
        let spoken = spoken(worker, (declared, patience), io, early).await?;
        let is_silent = spoken == Spoken::Opaque && early.is_empty();
        if !is_silent || declared != Protocol::Detect || !needs_requests() {
            return Some(spoken);
        }
        // Boxed, so that other connections need no room for it.
        if !Box::pin(sends(worker, patience, io, early)).await {
            return None;
        }
    }
}

/// Waits for the first bytes of a client. False when none come in time or the connection ends, and when this proxy drains.
pub(crate) async fn sends(
    worker: &Worker,
    patience: Duration,
    io: &Io,
    early: &mut BytesMut,
) -> bool {
    let mut phase = worker.phase.clone();
    tokio::select! {
        biased;
        begins = timeout(patience, begins(io, early)) => return begins.unwrap_or(false),
        _ = phase.wait_for(|phase| *phase == Phase::Draining) => {}
    }
    // Its first request may be on the way.
    let last_call = last_call(&worker.config.limits).min(patience);
    timeout(last_call, begins(io, early)).await.unwrap_or(false)
}
