//! Detects the protocol of clients that may send no first bytes, at ports without a declared protocol.
//!
//! Usually such a client waits for a server that sends first, so its connection is opaque. At ports with
//! policies that depend on requests, opaque bytes are rejected: there a silent client is a health check, or a
//! client that connects before its first request.

use std::time::Duration;

use bytes::BytesMut;
use leno_model::Protocol;
use tokio::time::timeout;

use crate::connection::{ConnectionProtocol, detect_protocol};
use crate::drain::{Phase, last_request_timeout};
use crate::first_bytes::read_first_bytes;
use crate::io::Io;
use crate::worker::Worker;

/// Determines the protocol of a client. The connection of a silent client counts as opaque, unless
/// `needs_requests` returns true: then the first bytes are awaited for at most `max_wait`. Returns `None` if
/// the connection ends without any bytes.
pub(crate) async fn detect_client_protocol(
    worker: &Worker,
    declared: Protocol,
    max_wait: Duration,
    io: &Io,
    early_bytes: &mut BytesMut,
    needs_requests: impl Fn() -> bool,
) -> Option<ConnectionProtocol> {
    loop {
        let protocol = detect_protocol(worker, declared, max_wait, io, early_bytes).await?;
        let is_silent = protocol == ConnectionProtocol::Opaque && early_bytes.is_empty();
        if !is_silent || declared != Protocol::Detect || !needs_requests() {
            return Some(protocol);
        }
        // Boxed, so that other connections need no memory for it.
        if !Box::pin(wait_for_bytes(worker, max_wait, io, early_bytes)).await {
            return None;
        }
    }
}

/// Waits for the first bytes of a client. Returns false if no bytes arrive within `max_wait`, if the connection
/// ends, or if the proxy drains.
pub(crate) async fn wait_for_bytes(
    worker: &Worker,
    max_wait: Duration,
    io: &Io,
    early_bytes: &mut BytesMut,
) -> bool {
    let mut phase = worker.phase.clone();
    tokio::select! {
        biased;
        has_bytes = timeout(max_wait, read_first_bytes(io, early_bytes)) => return has_bytes.unwrap_or(false),
        _ = phase.wait_for(|phase| *phase == Phase::Draining) => {}
    }
    // The first request may be in flight.
    let last_request_timeout = last_request_timeout(&worker.config.limits).min(max_wait);
    timeout(last_request_timeout, read_first_bytes(io, early_bytes)).await.unwrap_or(false)
}
