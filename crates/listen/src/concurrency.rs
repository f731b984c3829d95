//! A limit of the requests in progress, in total and for each source.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::source::ConnectionSource;

/// A limit of the requests that are in progress at once. Requests beyond it are rejected, not queued: a
/// connection with a request in progress is not evicted.
#[derive(Debug)]
pub struct ConcurrencyLimit {
    total_max: usize,
    of_source_max: usize,
    in_progress: Mutex<InProgress>,
}

#[derive(Debug, Default)]
struct InProgress {
    total: usize,
    /// Sources with at least one.
    of_source: BTreeMap<ConnectionSource, usize>,
}

impl ConcurrencyLimit {
    /// At most `total_max` requests at once, and at most `of_source_max` of one source.
    #[must_use]
    pub fn new(total_max: usize, of_source_max: usize) -> Self {
        Self { total_max, of_source_max, in_progress: Mutex::default() }
    }

    /// Permits one more request of this source, which lasts until the permit is dropped; `None` at the
    /// limit.
    pub fn acquire(&self, source: ConnectionSource) -> Option<ConcurrencyPermit<'_>> {
        let mut in_progress = self.lock();
        let of_source = in_progress.of_source.get(&source).copied().unwrap_or_default();
        if in_progress.total >= self.total_max || of_source >= self.of_source_max {
            return None;
        }
        in_progress.total += 1;
        in_progress.of_source.insert(source, of_source + 1);
        Some(ConcurrencyPermit { limit: self, source })
    }

    /// A thread that died while it held the lock left nothing half done.
    fn lock(&self) -> MutexGuard<'_, InProgress> {
        self.in_progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in progress.
#[derive(Debug)]
pub struct ConcurrencyPermit<'a> {
    limit: &'a ConcurrencyLimit,
    source: ConnectionSource,
}

impl Drop for ConcurrencyPermit<'_> {
    fn drop(&mut self) {
        let mut in_progress = self.limit.lock();
        in_progress.total -= 1;
        if let Some(of_source) = in_progress.of_source.get_mut(&self.source) {
            *of_source -= 1;
            if *of_source == 0 {
                in_progress.of_source.remove(&self.source);
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
    fn one_source_has_its_share_and_all_together_the_total() {
        let limit = ConcurrencyLimit::new(5, 2);
        let first: Vec<_> = (0..4).filter_map(|_| limit.acquire(source(1))).collect();
        assert_eq!(first.len(), 2);
        let others: Vec<_> = (2..8).filter_map(|last| limit.acquire(source(last))).collect();
        assert_eq!(others.len(), 3);
        drop(first);
        let again: Vec<_> = (0..4).filter_map(|_| limit.acquire(source(1))).collect();
        assert_eq!(again.len(), 2);
        drop((others, again));
        let left = limit.lock();
        assert!(left.total == 0 && left.of_source.is_empty(), "{left:?}");
    }
}
