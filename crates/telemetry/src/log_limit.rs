//! Rate limits of log lines that peers can cause: a burst for each peer, then one line per interval.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The limits of all peers of one kind, by a key that identifies a peer.
#[derive(Debug)]
pub struct LogLimits<K>(Mutex<PeerLimits<K>>);

#[derive(Debug)]
struct PeerLimits<K> {
    known: BTreeMap<K, LogLimit>,
    /// The shared limit of all peers without room in the table.
    overflow: LogLimit,
}

/// The limit of one peer.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogLimit {
    /// The time from which the next line is permitted.
    from: Option<Instant>,
    suppressed: u64,
}

/// Permission to write a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PermittedLine {
    /// The number of the peer's lines suppressed since the last one, if any: a field of the line.
    pub suppressed: Option<u64>,
}

impl LogLimit {
    /// Creates the limit of a peer without lines.
    #[must_use]
    pub const fn new() -> Self {
        Self { from: None, suppressed: 0 }
    }

    /// Permits a line, or counts it as suppressed.
    pub fn permit_line(&mut self, now: Instant) -> Option<PermittedLine> {
        let saved_up = now.checked_sub(LINE_EVERY * (LINES_AT_ONCE - 1)).unwrap_or(now);
        let from = self.from.unwrap_or(saved_up);
        if from > now {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        self.from = Some(from.max(saved_up) + LINE_EVERY);
        let suppressed = std::mem::take(&mut self.suppressed);
        Some(PermittedLine { suppressed: (suppressed > 0).then_some(suppressed) })
    }

    /// True if it permits as much as a new one.
    fn is_idle(&self, now: Instant) -> bool {
        self.from
            .is_none_or(|from| now.saturating_duration_since(from) >= LINE_EVERY * LINES_AT_ONCE)
    }
}

impl<K> Default for LogLimits<K> {
    fn default() -> Self {
        Self(Mutex::new(PeerLimits { known: BTreeMap::new(), overflow: LogLimit::default() }))
    }
}

impl<K: Ord> LogLimits<K> {
    /// Permits a line that this peer caused, or counts it as suppressed.
    pub fn permit_line(&self, peer: K, now: Instant) -> Option<PermittedLine> {
        // A thread that panicked while it held the lock left no half-written state.
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let PeerLimits { known, overflow } = &mut *peers;
        if !known.contains_key(&peer) && known.len() >= PEERS_MAX {
            let mut forgotten = 0_u64;
            known.retain(|_, limit| {
                let is_idle = limit.is_idle(now);
                forgotten = forgotten.saturating_add(if is_idle { limit.suppressed } else { 0 });
                !is_idle
            });
            overflow.suppressed = overflow.suppressed.saturating_add(forgotten);
            if known.len() >= PEERS_MAX {
                return overflow.permit_line(now);
            }
        }
        known.entry(peer).or_default().permit_line(now)
    }
}

/// The burst of a peer: enough lines to identify the fault.
const LINES_AT_ONCE: u32 = 16;

/// The average interval between lines of one peer.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// The maximum number of peers with their own limit.
const PEERS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_writes_some_lines_at_once_and_then_few_that_say_how_many_are_missing() {
        let start = Instant::now();
        let limits = LogLimits::default();
        let mut lines = Vec::new();
        // Ten lines a second for a minute.
        for tenth in 0..600 {
            let now = start + Duration::from_millis(100 * tenth);
            lines.extend(limits.permit_line("flood", now));
        }
        assert!((27..=29).contains(&lines.len()), "{}", lines.len());
        let suppressed: u64 = lines.iter().filter_map(|line| line.suppressed).sum();
        assert!(suppressed > 500, "{suppressed}");
        // Another peer is not affected.
        assert_eq!(limits.permit_line("honest", start), Some(PermittedLine { suppressed: None }));
    }

    #[test]
    fn peers_without_number_share_one_limit_and_no_more_memory() {
        let start = Instant::now();
        let limits = LogLimits::default();
        let permitted =
            (0..100_000).filter(|peer| limits.permit_line(*peer, start).is_some()).count();
        assert_eq!(permitted, PEERS_MAX + 16);
        assert_eq!(limits.0.lock().unwrap().known.len(), PEERS_MAX);
        // Idle peers are evicted.
        let later = start + Duration::from_secs(600);
        assert!((100_000..100_016).all(|peer| limits.permit_line(peer, later).is_some()));
        assert!(limits.0.lock().unwrap().known.len() <= 16);
    }
}
