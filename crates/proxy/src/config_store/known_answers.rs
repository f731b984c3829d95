//! The control plane's answers for addresses and names. Each keeps its last use over configuration updates:
//! idle ones are unsubscribed, and the least recently used ones are evicted first.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::KnownAnswer;
use crate::subscriptions::EvictionPriority;

/// The last use of a service, address or name; carried over from snapshot to snapshot.
pub(super) struct ResourceUsage {
    /// True if a request used it since the last check.
    is_used: AtomicBool,
    /// The time of the last observed use, in seconds since the start.
    last_seen: AtomicU64,
}

impl ResourceUsage {
    /// Creates the usage of a resource that is first used `now`, in seconds since the start.
    pub(super) fn new(now: u64) -> Arc<Self> {
        Arc::new(Self { is_used: AtomicBool::new(false), last_seen: AtomicU64::new(now) })
    }

    /// Records a use by a request.
    pub(super) fn record_use(&self) {
        // Shared by threads: an unneeded write would invalidate the cache line.
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
    }

    /// Observes whether the resource was used since the previous call, and returns the time of the last
    /// observed use.
    pub(super) fn observe_last_use(&self, now: u64) -> u64 {
        if self.is_used.swap(false, Ordering::Relaxed) {
            self.last_seen.store(now, Ordering::Relaxed);
        }
        self.last_seen.load(Ordering::Relaxed)
    }
}

/// Returns the answers of a new snapshot, with the usage of the entries that `previous` has for the same keys.
/// `now`: the time in seconds since the start, as the first use of new entries.
pub(super) fn answers_with_usage<K: Clone + Eq + std::hash::Hash, A>(
    answers: &BTreeMap<K, Arc<A>>,
    previous: Option<&FxHashMap<K, KnownAnswer<A>>>,
    now: u64,
) -> FxHashMap<K, KnownAnswer<A>> {
    let with_usage = |(key, answer): (&K, &Arc<A>)| {
        let previous_entry = previous.and_then(|previous| previous.get(key));
        let usage = previous_entry.map(|known| known.usage.clone());
        let usage = usage.unwrap_or_else(|| ResourceUsage::new(now));
        (key.clone(), KnownAnswer { answer: Arc::clone(answer), usage })
    };
    answers.iter().map(with_usage).collect()
}

/// Returns the eviction priority of an address or a name.
pub(super) fn eviction_priority<A>(known: Option<&KnownAnswer<A>>, now: u64) -> EvictionPriority {
    known.map_or(EvictionPriority::Pending, |known| {
        EvictionPriority::Used(known.usage.observe_last_use(now))
    })
}

/// Returns the keys of the answers that were not used for `max_idle`.
pub(super) fn idle_keys<K: Clone, A>(
    answers: &FxHashMap<K, KnownAnswer<A>>,
    max_idle: Duration,
    now: u64,
) -> Vec<K> {
    let oldest_use = now.saturating_sub(max_idle.as_secs());
    let idle_answers =
        answers.iter().filter(|(_, known)| known.usage.observe_last_use(now) < oldest_use);
    idle_answers.map(|(key, _)| key.clone()).collect()
}
