//! Applies changes of proxies' subscriptions to services, addresses and DNS names, and sends the responses.

use std::collections::BTreeSet;

use leno_discovery::{
    ConnectionId, Hello, MAX_ADDRESSES, MAX_NAMES, SubscribedResources, SubscriptionChange,
};

use super::{ControlState, EventHandling, EventTime};
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

impl ControlState {
    /// Applies a proxy's subscription change, and responds. A change without services gets a response too: it
    /// contains the proxy configuration.
    pub(super) fn change_subscriptions(
        &mut self,
        connection: ConnectionId,
        change: SubscriptionChange,
        now: EventTime,
    ) -> EventHandling {
        let Some(proxy) = self.connected_proxies.proxy_mut(connection) else {
            return EventHandling::Handled;
        };
        let SubscriptionChange { added, removed, over_limit } = change;
        let limit = self.limits.subscriptions;
        let is_large = added.len() > MAX_UNSLICED_SUBSCRIPTIONS;
        let ConnectedProxy { subscriptions, queried_addresses, queried_names, .. } = proxy;
        remove_all(subscriptions, &removed.services);
        remove_all(queried_addresses, &removed.addresses);
        remove_all(queried_names, &removed.names);
        let within_limits = [
            add_within_limit(subscriptions, added.services, limit),
            add_within_limit(queried_addresses, added.addresses, MAX_ADDRESSES),
            add_within_limit(queried_names, added.names, MAX_NAMES),
        ];
        if (over_limit > 0 || within_limits.contains(&false))
            && let Some(line) =
                self.log_limits.permit_line(peer_identity(&proxy.peer), now.clock.into_std())
        {
            let (workload, suppressed) = (&proxy.workload, line.suppressed);
            tracing::warn!(%workload, suppressed, "subscription limit reached: the rest is ignored");
        }
        match is_large {
            true => EventHandling::InSlices(connection),
            false => self.respond(connection),
        }
    }

    /// Continues the response to a proxy with many new subscriptions, by a bounded amount of work.
    pub(super) fn continue_response(&mut self, connection: ConnectionId) -> EventHandling {
        match self.connected_proxies.prepare_config(connection, &self.mesh) {
            SliceProgress::Incomplete => EventHandling::InSlices(connection),
            SliceProgress::Complete => self.respond(connection),
        }
    }

    fn respond(&mut self, connection: ConnectionId) -> EventHandling {
        let grace_period = self.startup_grace.grace_state();
        self.connected_proxies.send_response(connection, &self.mesh, grace_period);
        EventHandling::Handled
    }
}

/// Removes subscriptions. The cost depends on the number of removed subscriptions, not on the size of the set.
fn remove_all<T: Ord>(subscribed: &mut BTreeSet<T>, removed: &BTreeSet<T>) {
    for item in removed {
        subscribed.remove(item);
    }
}

/// Adds subscriptions up to the limit. Returns false if some were not added.
fn add_within_limit<T: Ord>(
    subscribed: &mut BTreeSet<T>,
    added: BTreeSet<T>,
    limit: usize,
) -> bool {
    for item in added {
        if subscribed.len() >= limit {
            return false;
        }
        subscribed.insert(item);
    }
    true
}

/// Maximum added subscriptions for which the response is compiled at once; for more it is compiled in slices.
const MAX_UNSLICED_SUBSCRIPTIONS: usize = 128;
