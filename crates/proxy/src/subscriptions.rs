//! Tracks the subscriptions of a proxy to resources of the control plane, and the order in which a full table evicts
//! them.

use std::collections::BTreeMap;

use leno_telemetry::Count;

/// The subscribed keys of one resource type, and the order of their subscription.
#[derive(Debug)]
pub(crate) struct Subscriptions<K> {
    /// The insertion number of each key: the lowest number is the oldest subscription.
    insertion_numbers: BTreeMap<K, u64>,
    /// The number of the last insertion.
    last_number: u64,
}

/// The eviction priority of an entry: entries with a smaller priority are evicted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EvictionPriority {
    /// The service does not exist. It was last requested at this time, in seconds since the start of the proxy.
    Absent(u64),
    /// The entry was last used at this time, in seconds since the start of the proxy.
    Used(u64),
    /// The control plane has not sent the entry yet: a request may wait for it.
    Pending,
}

/// A bounded table of the control thread. Metrics and conditions report its evictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SubscriptionTable {
    /// Services that do not exist.
    UnknownServices,
    /// All services, including those that do not exist.
    Services,
    /// Destination addresses of redirected connections.
    Addresses,
    /// Names that the application resolves by DNS.
    Names,
    /// Virtual addresses of services.
    ServiceAddresses,
}

impl SubscriptionTable {
    /// Returns the subject of the condition that reports a full table.
    pub(crate) const fn subject(self) -> &'static str {
        match self {
            Self::UnknownServices => "unknown-services",
            Self::Services => "services",
            Self::Addresses => "addresses",
            Self::Names => "names",
            Self::ServiceAddresses => "service-addresses",
        }
    }

    /// Returns the reason of the condition that reports a full table.
    pub(crate) fn condition_reason(self) -> String {
        let cause = match self {
            Self::UnknownServices => {
                "the application requests very many services that do not exist"
            }
            Self::Services => "the application uses more services than one sidecar subscribes to",
            Self::Addresses => {
                "the application connects to more addresses than one sidecar subscribes to"
            }
            Self::Names => "the application resolves more names than one sidecar subscribes to",
            Self::ServiceAddresses => {
                "the application resolves more services than there are addresses for"
            }
        };
        format!("{cause}; the entry that was not used for the longest time is evicted")
    }

    /// Returns the counter of the table's evictions.
    pub(crate) const fn eviction_counter(self) -> Count {
        match self {
            Self::UnknownServices => Count::EvictedUnknownService,
            Self::Services => Count::EvictedService,
            Self::Addresses => Count::EvictedAddress,
            Self::Names => Count::EvictedName,
            Self::ServiceAddresses => Count::EvictedServiceAddress,
        }
    }
}

impl<K> Default for Subscriptions<K> {
    fn default() -> Self {
        Self { insertion_numbers: BTreeMap::new(), last_number: 0 }
    }
}

impl<K: Ord + Clone> Subscriptions<K> {
    /// Adds a key; returns false if the key is already present.
    pub(crate) fn insert(&mut self, key: K) -> bool {
        let is_new = !self.insertion_numbers.contains_key(&key);
        if is_new {
            self.last_number += 1;
            self.insertion_numbers.insert(key, self.last_number);
        }
        is_new
    }

    /// Removes a key; returns false if the key is not present.
    pub(crate) fn remove(&mut self, key: &K) -> bool {
        self.insertion_numbers.remove(key).is_some()
    }

    pub(crate) fn remove_all(&mut self, keys: &[K]) {
        for key in keys {
            self.remove(key);
        }
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.insertion_numbers.contains_key(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.insertion_numbers.len()
    }

    /// Returns all keys in key order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.insertion_numbers.keys()
    }

    pub(crate) fn extend(&mut self, keys: impl IntoIterator<Item = K>) {
        for key in keys {
            self.insert(key);
        }
    }

    /// Evicts up to `count` entries, and returns their keys. Entries with the smallest priority are evicted
    /// first, and the oldest of equal priority. Entries with the priority `None` are retained.
    pub(crate) fn evict_smallest(
        &mut self,
        count: usize,
        priority: impl Fn(&K) -> Option<EvictionPriority>,
    ) -> Vec<K> {
        let candidate = |(key, number): (&K, &u64)| Some((priority(key)?, *number, key.clone()));
        let mut candidates: Vec<_> = self.insertion_numbers.iter().filter_map(candidate).collect();
        candidates.sort_unstable_by_key(|(priority, number, _)| (*priority, *number));
        candidates.truncate(count);
        let evicted: Vec<K> = candidates.into_iter().map(|(_, _, key)| key).collect();
        self.remove_all(&evicted);
        evicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_entry_is_evicted() {
        let mut subscriptions = Subscriptions::default();
        assert!((0..6).all(|key| subscriptions.insert(key)));
        assert!(!subscriptions.insert(3));
        let priority = |key: &i32| match key {
            0 => Some(EvictionPriority::Used(1)),
            1 => Some(EvictionPriority::Absent(9)),
            2 => Some(EvictionPriority::Pending),
            3 => Some(EvictionPriority::Used(0)),
            4 => Some(EvictionPriority::Absent(9)),
            _ => None,
        };
        assert_eq!(subscriptions.evict_smallest(0, priority), Vec::<i32>::new());
        assert_eq!(subscriptions.evict_smallest(3, priority), [1, 4, 3]);
        assert_eq!(
            subscriptions.evict_smallest(9, priority),
            [0, 2],
            "an entry without a priority stays"
        );
        assert_eq!(subscriptions.keys().collect::<Vec<_>>(), [&5]);
        assert!(subscriptions.insert(1) && subscriptions.insert(0));
        assert_eq!(
            subscriptions.evict_smallest(1, |_| Some(EvictionPriority::Pending)),
            [5],
            "the oldest of equal ones"
        );
    }
}
