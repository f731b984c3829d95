//! The desired state of one proxy: its subscribed services, addresses and names, and the changes that the mesh
//! owner has not taken yet.

use std::collections::BTreeSet;
use std::net::IpAddr;

use leno_model::ServiceName;

use crate::message::Hello;
use crate::{ADDRESSES_MAX, NAMES_MAX, SUBSCRIPTIONS_MAX};

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
    /// The total number of entries.
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

/// A change of the desired state of a proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubscriptionChange {
    /// Added entries.
    pub added: SubscribedResources,
    /// Removed entries.
    pub removed: SubscribedResources,
    /// The number of ignored entries: the proxy has reached a limit.
    pub over_limit: u64,
}

/// Three sets and their changes. Memory is bounded by the limits of the sets.
#[derive(Debug)]
pub(crate) struct TrackedSubscriptions {
    services: TrackedSet<ServiceName>,
    addresses: TrackedSet<IpAddr>,
    names: TrackedSet<ServiceName>,
    over_limit: u64,
}

impl TrackedSubscriptions {
    /// The desired state of a Hello; the owner takes it with the Hello itself.
    pub(crate) fn from_hello(hello: &Hello) -> Self {
        Self {
            services: TrackedSet::new(hello.services.iter().cloned(), SUBSCRIPTIONS_MAX),
            addresses: TrackedSet::new(hello.addresses.iter().copied(), ADDRESSES_MAX),
            names: TrackedSet::new(hello.dns_names.iter().cloned(), NAMES_MAX),
            over_limit: 0,
        }
    }

    pub(crate) fn add(&mut self, lists: SubscriptionLists) {
        let services = lists.services.into_iter().map(|one| self.services.add(one));
        let over = services.filter(|added| !added).count();
        let addresses = lists.addresses.into_iter().map(|one| self.addresses.add(one));
        let over = over + addresses.filter(|added| !added).count();
        let names = lists.names.into_iter().map(|one| self.names.add(one));
        let over = over + names.filter(|added| !added).count();
        self.over_limit = self.over_limit.saturating_add(over as u64);
    }

    pub(crate) fn remove(&mut self, lists: &SubscriptionLists) {
        lists.services.iter().for_each(|one| self.services.remove(one));
        lists.addresses.iter().for_each(|one| self.addresses.remove(one));
        lists.names.iter().for_each(|one| self.names.remove(one));
    }

    /// True if there are changes that the owner has not taken.
    pub(crate) fn has_changed(&self) -> bool {
        self.over_limit > 0
            || self.services.has_changed()
            || self.addresses.has_changed()
            || self.names.has_changed()
    }

    /// Takes all changes since the last call.
    pub(crate) fn take_changes(&mut self) -> SubscriptionChange {
        let (services, no_services) = self.services.take_changes();
        let (addresses, no_addresses) = self.addresses.take_changes();
        let (names, no_names) = self.names.take_changes();
        SubscriptionChange {
            added: SubscribedResources { services, addresses, names },
            removed: SubscribedResources {
                services: no_services,
                addresses: no_addresses,
                names: no_names,
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
    wanted: BTreeSet<T>,
    added: BTreeSet<T>,
    removed: BTreeSet<T>,
    max: usize,
}

impl<T: Ord + Clone> TrackedSet<T> {
    fn new(all: impl Iterator<Item = T>, max: usize) -> Self {
        let mut wanted = BTreeSet::new();
        for one in all {
            if wanted.len() >= max {
                break;
            }
            wanted.insert(one);
        }
        Self { wanted, added: BTreeSet::new(), removed: BTreeSet::new(), max }
    }

    /// Adds an entry; returns true if the set contains it afterwards.
    fn add(&mut self, one: T) -> bool {
        if self.wanted.contains(&one) {
            return true;
        }
        if self.wanted.len() >= self.max {
            return false;
        }
        if !self.removed.remove(&one) {
            self.added.insert(one.clone());
        }
        self.wanted.insert(one)
    }

    fn remove(&mut self, one: &T) {
        let Some(one) = self.wanted.take(one) else { return };
        if !self.added.remove(&one) {
            self.removed.insert(one);
        }
    }

    fn has_changed(&self) -> bool {
        !self.added.is_empty() || !self.removed.is_empty()
    }

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
    fn pairs_leave_nothing_to_do() {
        let mut set = tracked_set(9);
        for _ in 0..1000 {
            assert!(set.add(3));
            set.remove(&3);
            set.remove(&1);
            assert!(set.add(1) && set.add(2));
        }
        assert!(!set.has_changed());
        set.remove(&7);
        assert!(!set.has_changed(), "what was never wanted cannot be let go of");
    }

    #[test]
    fn a_set_is_bounded_and_so_is_what_changed() {
        let mut set = tracked_set(4);
        for one in 0..=255 {
            set.add(one);
            if one % 3 == 0 {
                set.remove(&one);
            }
        }
        assert!(set.wanted.len() <= 4 && set.added.len() + set.removed.len() <= 8);
    }

    proptest! {
        #[test]
        fn the_owner_ends_with_what_is_wanted(
            steps in proptest::collection::vec((any::<bool>(), 0_u8..8, any::<bool>()), 0..80)
        ) {
            let mut set = tracked_set(5);
            let mut owner = set.wanted.clone();
            for (adds, one, takes) in steps {
                if adds { set.add(one); } else { set.remove(&one); }
                if takes {
                    let (added, removed) = set.take_changes();
                    prop_assert!(added.is_disjoint(&removed));
                    prop_assert!(removed.is_subset(&owner) && added.is_disjoint(&owner));
                    owner.retain(|one| !removed.contains(one));
                    owner.extend(added);
                    prop_assert_eq!(&owner, &set.wanted);
                }
            }
        }
    }
}
