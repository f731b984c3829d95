//! Records the last use of each resource that the control plane has sent. The records survive configuration updates, so
//! that idle resources can be unsubscribed and the least recently used resources can be evicted first.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::KnownResource;
use crate::subscriptions::EvictionPriority;

/// The last use of a service, address or name; carried over from snapshot to snapshot.
pub(super) struct ResourceUsage {
    /// True if a request used the resource since the last call of [`Self::observe_last_use`].
    is_used: AtomicBool,
    /// The time of the last observed use, in seconds since the start of the proxy.
    last_used: AtomicU64,
}

impl ResourceUsage {
    /// Creates the usage of a resource that is first used `now`, in seconds since the start.
    pub(super) fn new(now: u64) -> Arc<Self> {
        Arc::new(Self { is_used: AtomicBool::new(false), last_used: AtomicU64::new(now) })
    }

    /// Records a use by a request.
    pub(super) fn record_use(&self) {
        // All threads read this flag: an unneeded write would invalidate its cache line on the other cores.
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
    }

    /// Observes whether the resource was used since the previous call, and returns the time of the last
    /// observed use.
    pub(super) fn observe_last_use(&self, now: u64) -> u64 {
        if self.is_used.swap(false, Ordering::Relaxed) {
            self.last_used.store(now, Ordering::Relaxed);
        }
        self.last_used.load(Ordering::Relaxed)
    }
}

/// Returns the resources of a new snapshot. Keys that `previous` contains keep their usage; other keys count as
/// used `now`, in seconds since the start.
pub(super) fn resources_with_usage<K: Clone + Eq + std::hash::Hash, R>(
    resources: &BTreeMap<K, Arc<R>>,
    previous: Option<&FxHashMap<K, KnownResource<R>>>,
    now: u64,
) -> FxHashMap<K, KnownResource<R>> {
    let with_usage = |(key, resource): (&K, &Arc<R>)| {
        let previous_entry = previous.and_then(|previous| previous.get(key));
        let previous_usage = previous_entry.map(|known| known.usage.clone());
        let usage = previous_usage.unwrap_or_else(|| ResourceUsage::new(now));
        (key.clone(), KnownResource { resource: Arc::clone(resource), usage })
    };
    resources.iter().map(with_usage).collect()
}

/// Returns the eviction priority of an address or a name; pending before the first response of the
/// control plane.
pub(super) fn eviction_priority<R>(known: Option<&KnownResource<R>>, now: u64) -> EvictionPriority {
    known.map_or(EvictionPriority::Pending, |known| {
        EvictionPriority::Used(known.usage.observe_last_use(now))
    })
}

/// Returns the keys of the resources that were not used for `max_idle`.
pub(super) fn idle_keys<K: Clone, R>(
    resources: &FxHashMap<K, KnownResource<R>>,
    max_idle: Duration,
    now: u64,
) -> Vec<K> {
    let oldest_use = now.saturating_sub(max_idle.as_secs());
    let idle_resources =
        resources.iter().filter(|(_, known)| known.usage.observe_last_use(now) < oldest_use);
    idle_resources.map(|(key, _)| key.clone()).collect()
}
