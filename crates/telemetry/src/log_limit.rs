//! Limits the rate of log lines that peers can cause: a burst for each peer, then one line per interval.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The log limits of many peers, by a key that identifies a peer.
#[derive(Debug)]
pub struct LogLimits<K>(Mutex<PeerLimits<K>>);

/// The limits of the peers in the table, and the shared limit of all other peers.
#[derive(Debug)]
struct PeerLimits<K> {
    /// The limits of at most [`MAX_PEERS`] peers.
    limits_by_peer: BTreeMap<K, LogLimit>,
    /// The shared limit of all peers without room in the table.
    overflow: LogLimit,
}

/// The limit of one peer.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogLimit {
    /// The time from which the next line is permitted; `None` before the first line. A time in the past permits a burst
    /// of up to [`BURST_LINES`].
    permitted_from: Option<Instant>,
    /// The number of lines that were suppressed since the last permitted line.
    suppressed_count: u64,
}

/// Permission to write a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PermittedLine {
    /// The number of lines of this peer that were suppressed since the last permitted line; `None` if none was.
    /// The permitted line includes it as a field.
    pub suppressed: Option<u64>,
}

impl LogLimit {
    /// Creates the limit of a peer without lines.
    #[must_use]
    pub const fn new() -> Self {
        Self { permitted_from: None, suppressed_count: 0 }
    }

    /// Permits a line; otherwise counts the line as suppressed and returns `None`.
    pub fn permit_line(&mut self, now: Instant) -> Option<PermittedLine> {
        let burst_start = now.checked_sub(LINE_INTERVAL * (BURST_LINES - 1)).unwrap_or(now);
        let permitted_from = self.permitted_from.unwrap_or(burst_start);
        if permitted_from > now {
            self.suppressed_count = self.suppressed_count.saturating_add(1);
            return None;
        }
        self.permitted_from = Some(permitted_from.max(burst_start) + LINE_INTERVAL);
        let suppressed = std::mem::take(&mut self.suppressed_count);
        Some(PermittedLine { suppressed: (suppressed > 0).then_some(suppressed) })
    }

    /// True if this limit permits a full burst, like a new limit.
    fn is_idle(&self, now: Instant) -> bool {
        self.permitted_from.is_none_or(|permitted_from| {
            now.saturating_duration_since(permitted_from) >= LINE_INTERVAL * BURST_LINES
        })
    }
}

impl<K> Default for LogLimits<K> {
    fn default() -> Self {
        Self(Mutex::new(PeerLimits {
            limits_by_peer: BTreeMap::new(),
            overflow: LogLimit::default(),
        }))
    }
}

impl<K: Ord> LogLimits<K> {
    /// Permits a line that this peer caused; otherwise counts the line as suppressed and returns `None`.
    pub fn permit_line(&self, peer: K, now: Instant) -> Option<PermittedLine> {
        // A thread that panicked while it held the lock left no partial state.
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let PeerLimits { limits_by_peer, overflow } = &mut *peers;
        if !limits_by_peer.contains_key(&peer) && limits_by_peer.len() >= MAX_PEERS {
            let mut suppressed = 0_u64;
            limits_by_peer.retain(|_, limit| {
                let is_idle = limit.is_idle(now);
                suppressed =
                    suppressed.saturating_add(if is_idle { limit.suppressed_count } else { 0 });
                !is_idle
            });
            overflow.suppressed_count = overflow.suppressed_count.saturating_add(suppressed);
            if limits_by_peer.len() >= MAX_PEERS {
                return overflow.permit_line(now);
            }
        }
        limits_by_peer.entry(peer).or_default().permit_line(now)
    }
}

/// The number of lines that a peer may cause at once: enough to identify a fault.
const BURST_LINES: u32 = 16;

/// The average interval between lines of one peer.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// The maximum number of peers with their own limit; the other peers share a limit.
const MAX_PEERS: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_limited_to_a_burst_and_then_few_lines_with_the_suppressed_count() {
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
        assert_eq!(limits.permit_line("other", start), Some(PermittedLine { suppressed: None }));
    }

    #[test]
    fn peers_beyond_the_table_share_one_limit() {
        let start = Instant::now();
        let limits = LogLimits::default();
        let permitted =
            (0..100_000).filter(|peer| limits.permit_line(*peer, start).is_some()).count();
        assert_eq!(permitted, MAX_PEERS + 16);
        assert_eq!(limits.0.lock().unwrap().limits_by_peer.len(), MAX_PEERS);
        // Idle peers are evicted.
        let after_idle_time = start + Duration::from_secs(600);
        assert!((100_000..100_016).all(|peer| limits.permit_line(peer, after_idle_time).is_some()));
        assert!(limits.0.lock().unwrap().limits_by_peer.len() <= 16);
    }
}
