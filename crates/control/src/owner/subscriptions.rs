//! Subscriptions of proxies: services, addresses and names.

use std::collections::BTreeSet;

use leno_discovery::{
    ADDRESSES_MAX, ConnectionId, Hello, NAMES_MAX, SubscribedResources, SubscriptionChange,
};

use super::{EventHandling, EventTime, Owner};
use crate::publish::{ConnectedProxy, SliceProgress};
use crate::server::peer_identity;

/// Returns all subscriptions in a proxy's `Hello`.
pub(super) fn initial_subscriptions(hello: &Hello) -> SubscriptionChange {
    let added = SubscribedResources {
        services: hello.services.iter().cloned().collect(),
        addresses: hello.addresses.iter().copied().collect(),
        names: hello.dns_names.iter().cloned().collect(),
    };
    SubscriptionChange { added, ..SubscriptionChange::default() }
}

impl Owner {
    /// Applies a proxy's subscription change, and responds: even without services, since the proxy
    /// configuration is a response too.
    pub(super) fn change_subscriptions(
        &mut self,
        connection: ConnectionId,
        change: SubscriptionChange,
        now: EventTime,
    ) -> EventHandling {
        let Some(proxy) = self.connected.proxy_mut(connection) else {
            return EventHandling::Handled;
        };
        let SubscriptionChange { added, removed, over_limit } = change;
        let room = self.limits.subscriptions;
        let many = added.len() > AT_ONCE_MAX;
        let ConnectedProxy { subscriptions, addresses, names, .. } = proxy;
        remove_all(subscriptions, &removed.services);
        remove_all(addresses, &removed.addresses);
        remove_all(names, &removed.names);
        let fits = [
            add_within(subscriptions, added.services, room),
            add_within(addresses, added.addresses, ADDRESSES_MAX),
            add_within(names, added.names, NAMES_MAX),
        ];
        if (over_limit > 0 || fits.contains(&false))
            && let Some(line) =
                self.logs.permit_line(peer_identity(&proxy.peer), now.clock.into_std())
        {
            let (workload, suppressed) = (&proxy.workload, line.suppressed);
            tracing::warn!(%workload, suppressed, "subscription limit reached: the rest is ignored");
        }
        match many {
            true => EventHandling::InSlices(connection),
            false => self.answer_now(connection),
        }
    }

    /// Continues the response to a proxy with many new subscriptions, by a bounded amount of work.
    pub(super) fn continue_response(&mut self, connection: ConnectionId) -> EventHandling {
        match self.connected.prepare_config(connection, &self.mesh) {
            SliceProgress::More => EventHandling::InSlices(connection),
            SliceProgress::Done => self.answer_now(connection),
        }
    }

    fn answer_now(&mut self, connection: ConnectionId) -> EventHandling {
        let settling = self.start.grace_state();
        self.connected.send_response(connection, &self.mesh, settling);
        EventHandling::Handled
    }
}

/// Removes subscriptions; the cost depends on the removed ones only, not on the size of the set.
fn remove_all<T: Ord>(known: &mut BTreeSet<T>, unwanted: &BTreeSet<T>) {
    for one in unwanted {
        known.remove(one);
    }
}

/// Adds subscriptions, within the limit.
fn add_within<T: Ord>(known: &mut BTreeSet<T>, wanted: BTreeSet<T>, room: usize) -> bool {
    for one in wanted {
        if known.len() >= room {
            return false;
        }
        known.insert(one);
    }
    true
}

/// A proxy that adds more subscriptions than this is served in slices.
const AT_ONCE_MAX: usize = 128;
