//! Limits the requests in progress at a server, in total and per source.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::source::ConnectionSource;

/// A limit on requests in progress. Further requests are rejected, not queued. A connection with a request in progress
/// is never evicted, so queued requests could fill the table of connections.
#[derive(Debug)]
pub struct ConcurrencyLimit {
    max_total: usize,
    max_per_source: usize,
    in_progress: Mutex<InProgress>,
}

#[derive(Debug, Default)]
struct InProgress {
    total: usize,
    /// The number of requests in progress by source; sources without a request are absent.
    by_source: BTreeMap<ConnectionSource, usize>,
}

impl ConcurrencyLimit {
    /// Creates a limit of `max_total` requests at once, and `max_per_source` of one source.
    #[must_use]
    pub fn new(max_total: usize, max_per_source: usize) -> Self {
        Self { max_total, max_per_source, in_progress: Mutex::default() }
    }

    /// Permits a request of this source until the permit is dropped. Returns `None` if the source or the total
    /// is at its limit.
    pub fn acquire(&self, source: ConnectionSource) -> Option<ConcurrencyPermit<'_>> {
        let mut in_progress = self.lock();
        let source_count = in_progress.by_source.get(&source).copied().unwrap_or_default();
        if in_progress.total >= self.max_total || source_count >= self.max_per_source {
            return None;
        }
        in_progress.total += 1;
        in_progress.by_source.insert(source, source_count + 1);
        Some(ConcurrencyPermit { limit: self, source })
    }

    /// Locks the counters. A thread that panicked with the lock left no inconsistent state.
    fn lock(&self) -> MutexGuard<'_, InProgress> {
        self.in_progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The permit for a request in progress; dropping it ends the request.
#[derive(Debug)]
pub struct ConcurrencyPermit<'a> {
    limit: &'a ConcurrencyLimit,
    source: ConnectionSource,
}

impl Drop for ConcurrencyPermit<'_> {
    fn drop(&mut self) {
        let mut in_progress = self.limit.lock();
        in_progress.total -= 1;
        if let Some(source_count) = in_progress.by_source.get_mut(&self.source) {
            *source_count -= 1;
            if *source_count == 0 {
                in_progress.by_source.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn source(last: u8) -> ConnectionSource {
        IpAddr::from([10, 0, 0, last]).into()
    }

    #[test]
    fn requests_are_limited_per_source_and_in_total() {
        let limit = ConcurrencyLimit::new(5, 2);
        let first_permits: Vec<_> = (0..4).filter_map(|_| limit.acquire(source(1))).collect();
        assert_eq!(first_permits.len(), 2);
        let other_permits: Vec<_> = (2..8).filter_map(|last| limit.acquire(source(last))).collect();
        assert_eq!(other_permits.len(), 3);
        drop(first_permits);
        let second_permits: Vec<_> = (0..4).filter_map(|_| limit.acquire(source(1))).collect();
        assert_eq!(second_permits.len(), 2);
        drop((other_permits, second_permits));
        let in_progress = limit.lock();
        assert!(in_progress.total == 0 && in_progress.by_source.is_empty(), "{in_progress:?}");
    }
}
