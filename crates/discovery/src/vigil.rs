//! Signs of life: when to send one, and when their absence means that the peer is gone.

use std::time::Duration;

use tokio::time::Instant;

/// When a stream last carried something in each direction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Vigil {
    heard: Instant,
    spoke: Instant,
}

impl Vigil {
    pub(crate) fn new(now: Instant) -> Self {
        Self { heard: now, spoke: now }
    }

    pub(crate) fn heard(&mut self, now: Instant) {
        self.heard = now;
    }

    pub(crate) fn spoke(&mut self, now: Instant) {
        self.spoke = now;
    }

    /// When a ping is due, if nothing else is said before.
    pub(crate) fn ping_at(&self) -> Instant {
        self.spoke + PING_AFTER
    }

    /// When the peer is taken for dead, if nothing is heard before.
    pub(crate) fn silent_at(&self) -> Instant {
        self.heard + SILENCE_MAX
    }
}

/// A third of the silence: two pings may be late.
pub(crate) const PING_AFTER: Duration = Duration::from_secs(20);

/// How long a peer may be silent. A broken connection is usually noticed at once; this is for
/// machines that vanish.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(60);
