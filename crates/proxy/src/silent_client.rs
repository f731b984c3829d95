//! Silent clients at ports with policies that decide by request.
//!
//! The protocol of a silent client is unknown: the server may send first. If a policy has to see requests,
//! opaque bytes are rejected, so no such client waits for its server; it may be a health check or a
//! preconnected client.

use std::time::Duration;

use bytes::BytesMut;
use leno_model::Protocol;
use tokio::time::timeout;

use crate::connection::{ConnectionProtocol, detect_protocol};
use crate::drain::{Phase, last_call};
use crate::first_bytes::await_first;
use crate::io::Io;
use crate::worker::Worker;

/// Determines the protocol of a client. A silent client is opaque, unless a policy needs to see requests: then
/// its first bytes are awaited like those of a request. `None`: the connection ends without any.
pub(crate) async fn detect_client_protocol(
    worker: &Worker,
    declared: Protocol,
    max_wait: Duration,
    io: &Io,
    early: &mut BytesMut,
    needs_requests: impl Fn() -> bool,
) -> Option<ConnectionProtocol> {
    loop {
        let protocol = detect_protocol(worker, declared, max_wait, io, early).await?;
        let is_silent = protocol == ConnectionProtocol::Opaque && early.is_empty();
        if !is_silent || declared != Protocol::Detect || !needs_requests() {
            return Some(protocol);
        }
        // Boxed, so that other connections need no memory for it.
        if !Box::pin(wait_for_bytes(worker, max_wait, io, early)).await {
            return None;
        }
    }
}

/// Waits for the first bytes of a client. Returns false if none arrive in time, if the connection ends, or if
/// the proxy drains.
pub(crate) async fn wait_for_bytes(
    worker: &Worker,
    max_wait: Duration,
    io: &Io,
    early: &mut BytesMut,
) -> bool {
    let mut phase = worker.phase.clone();
    tokio::select! {
        biased;
        has_bytes = timeout(max_wait, await_first(io, early)) => return has_bytes.unwrap_or(false),
        _ = phase.wait_for(|phase| *phase == Phase::Draining) => {}
    }
    // The first request may be in flight.
    let last_call = last_call(&worker.config.limits).min(max_wait);
    timeout(last_call, await_first(io, early)).await.unwrap_or(false)
}
