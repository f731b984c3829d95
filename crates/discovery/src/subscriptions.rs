//! Tracks the subscriptions of one proxy: its services, addresses and names, and the changes that the mesh
//! state task, the task that owns the control plane's state, has not taken yet.

use std::collections::BTreeSet;
use std::net::IpAddr;

use leno_model::ServiceName;

use crate::message::Hello;
use crate::{MAX_ADDRESSES, MAX_NAMES, MAX_SUBSCRIPTIONS};

/// The services, addresses and names that a proxy subscribes to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubscribedResources {
    /// The services that it uses.
    pub services: BTreeSet<ServiceName>,
    /// The addresses that it queries.
    pub addresses: BTreeSet<IpAddr>,
    /// The DNS names that it queries.
    pub names: BTreeSet<ServiceName>,
}

impl SubscribedResources {
    /// Returns the total number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.services.len() + self.addresses.len() + self.names.len()
    }

    /// True if there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A change of the subscriptions of a proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubscriptionChange {
    /// Added entries.
    pub added: SubscribedResources,
    /// Removed entries.
    pub removed: SubscribedResources,
    /// The number of entries that were ignored because a set had reached its maximum size.
    pub over_limit: u64,
}

/// The subscriptions of a proxy, and the changes that the state task has not taken. The maximum sizes of the
/// sets bound the memory.
#[derive(Debug)]
pub(crate) struct TrackedSubscriptions {
    services: TrackedSet<ServiceName>,
    addresses: TrackedSet<IpAddr>,
    names: TrackedSet<ServiceName>,
    /// The number of entries ignored since the last call of [`Self::take_changes`].
    over_limit: u64,
}

impl TrackedSubscriptions {
    /// Creates the subscriptions of a Hello. They are no changes, because the state task receives the Hello
    /// itself.
    pub(crate) fn from_hello(hello: &Hello) -> Self {
        Self {
            services: TrackedSet::new(hello.services.iter().cloned(), MAX_SUBSCRIPTIONS),
            addresses: TrackedSet::new(hello.addresses.iter().copied(), MAX_ADDRESSES),
            names: TrackedSet::new(hello.dns_names.iter().cloned(), MAX_NAMES),
            over_limit: 0,
        }
    }

    /// Adds the entries of a message, up to the limits.
    pub(crate) fn add(&mut self, lists: SubscriptionLists) {
        let services = lists.services.into_iter().map(|entry| self.services.add(entry));
        let excess_count = services.filter(|is_added| !is_added).count();
        let addresses = lists.addresses.into_iter().map(|entry| self.addresses.add(entry));
        let excess_count = excess_count + addresses.filter(|is_added| !is_added).count();
        let names = lists.names.into_iter().map(|entry| self.names.add(entry));
        let excess_count = excess_count + names.filter(|is_added| !is_added).count();
        self.over_limit = self.over_limit.saturating_add(excess_count as u64);
    }

    /// Removes the entries of a message.
    pub(crate) fn remove(&mut self, lists: &SubscriptionLists) {
        lists.services.iter().for_each(|entry| self.services.remove(entry));
        lists.addresses.iter().for_each(|entry| self.addresses.remove(entry));
        lists.names.iter().for_each(|entry| self.names.remove(entry));
    }

    /// True if there are changes that the state task has not taken.
    pub(crate) fn has_changed(&self) -> bool {
        self.over_limit > 0
            || self.services.has_changed()
            || self.addresses.has_changed()
            || self.names.has_changed()
    }

    /// Takes all changes since the last call.
    pub(crate) fn take_changes(&mut self) -> SubscriptionChange {
        let (services, removed_services) = self.services.take_changes();
        let (addresses, removed_addresses) = self.addresses.take_changes();
        let (names, removed_names) = self.names.take_changes();
        SubscriptionChange {
            added: SubscribedResources { services, addresses, names },
            removed: SubscribedResources {
                services: removed_services,
                addresses: removed_addresses,
                names: removed_names,
            },
            over_limit: std::mem::take(&mut self.over_limit),
        }
    }
}

/// The services, addresses and names of one message.
#[derive(Debug, Default)]
pub(crate) struct SubscriptionLists {
    pub(crate) services: Vec<ServiceName>,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) names: Vec<ServiceName>,
}

/// A set, and its changes since they were last taken.
#[derive(Debug)]
struct TrackedSet<T> {
    /// The current entries.
    entries: BTreeSet<T>,
    /// The added entries that were not taken yet.
    added: BTreeSet<T>,
    /// The removed entries that were not taken yet.
    removed: BTreeSet<T>,
    /// The maximum number of entries.
    max_entries: usize,
}

impl<T: Ord + Clone> TrackedSet<T> {
    fn new(initial_entries: impl Iterator<Item = T>, max_entries: usize) -> Self {
        let mut entries = BTreeSet::new();
        for entry in initial_entries {
            if entries.len() >= max_entries {
                break;
            }
            entries.insert(entry);
        }
        Self { entries, added: BTreeSet::new(), removed: BTreeSet::new(), max_entries }
    }

    /// Adds an entry; returns true if the set contains it afterwards.
    fn add(&mut self, entry: T) -> bool {
        if self.entries.contains(&entry) {
            return true;
        }
        if self.entries.len() >= self.max_entries {
            return false;
        }
        if !self.removed.remove(&entry) {
            self.added.insert(entry.clone());
        }
        self.entries.insert(entry)
    }

    fn remove(&mut self, entry: &T) {
        let Some(entry) = self.entries.take(entry) else { return };
        if !self.added.remove(&entry) {
            self.removed.insert(entry);
        }
    }

    fn has_changed(&self) -> bool {
        !self.added.is_empty() || !self.removed.is_empty()
    }

    /// Takes the added and the removed entries since the last call.
    fn take_changes(&mut self) -> (BTreeSet<T>, BTreeSet<T>) {
        (std::mem::take(&mut self.added), std::mem::take(&mut self.removed))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tracked_set(max: usize) -> TrackedSet<u8> {
        TrackedSet::new([1, 2].into_iter(), max)
    }

    #[test]
    fn changes_that_cancel_out_leave_no_change() {
        let mut set = tracked_set(9);
        for _ in 0..1000 {
            assert!(set.add(3));
            set.remove(&3);
            set.remove(&1);
            assert!(set.add(1) && set.add(2));
        }
        assert!(!set.has_changed());
        set.remove(&7);
        assert!(!set.has_changed(), "an absent entry cannot be removed");
    }

    #[test]
    fn a_set_and_its_changes_are_bounded() {
        let mut set = tracked_set(4);
        for entry in 0..=255 {
            set.add(entry);
            if entry % 3 == 0 {
                set.remove(&entry);
            }
        }
        assert!(set.entries.len() <= 4 && set.added.len() + set.removed.len() <= 8);
    }

    proptest! {
        #[test]
        fn the_state_task_follows_the_set_by_its_changes(
            steps in proptest::collection::vec((any::<bool>(), 0_u8..8, any::<bool>()), 0..80)
        ) {
            let mut set = tracked_set(5);
            let mut taken_entries = set.entries.clone();
            for (is_added, entry, is_taken) in steps {
                if is_added { set.add(entry); } else { set.remove(&entry); }
                if is_taken {
                    let (added, removed) = set.take_changes();
                    prop_assert!(added.is_disjoint(&removed));
                    prop_assert!(removed.is_subset(&taken_entries) && added.is_disjoint(&taken_entries));
                    taken_entries.retain(|entry| !removed.contains(entry));
                    taken_entries.extend(added);
                    prop_assert_eq!(&taken_entries, &set.entries);
                }
            }
        }
    }
}
