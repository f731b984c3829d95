//! Times the keepalive of a stream: the next ping, and the time at which a silent peer counts as dead.

use std::time::Duration;

use tokio::time::Instant;

/// The times of the last messages of a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keepalive {
    /// The time of the last message from the peer.
    last_received: Instant,
    /// The time of the last message to the peer.
    last_sent: Instant,
}

impl Keepalive {
    pub(crate) fn new(now: Instant) -> Self {
        Self { last_received: now, last_sent: now }
    }

    pub(crate) fn record_received(&mut self, now: Instant) {
        self.last_received = now;
    }

    pub(crate) fn record_sent(&mut self, now: Instant) {
        self.last_sent = now;
    }

    /// Returns the time of the next ping, if no other message is sent before.
    pub(crate) fn ping_at(&self) -> Instant {
        self.last_sent + PING_AFTER
    }

    /// Returns the time at which the peer is considered dead, if no message arrives before.
    pub(crate) fn timeout_at(&self) -> Instant {
        self.last_received + MAX_SILENCE
    }
}

/// The time without a sent message after which a ping is sent: a third of the maximum silence, so that two
/// pings may be late.
pub(crate) const PING_AFTER: Duration = Duration::from_secs(20);

/// The maximum time without a message from the peer. A broken connection is usually detected at once; this
/// limit detects a machine that disappeared without closing the connection.
pub(crate) const MAX_SILENCE: Duration = Duration::from_secs(60);
