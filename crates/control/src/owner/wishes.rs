//! What proxies want to know: services that they use, addresses and names that they ask for.

use std::collections::BTreeSet;
use std::net::IpAddr;

use leno_discovery::{ADDRESSES_MAX, ConnectionId, Hello, NAMES_MAX};
use leno_model::ServiceName;

use super::Owner;
use crate::publish::Contact;

/// What a proxy wants to know, or no longer.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    pub(super) services: Vec<ServiceName>,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) names: Vec<ServiceName>,
}

impl Wishes {
    /// All that a proxy wants as it connects.
    pub(super) fn of(hello: &Hello) -> Self {
        Self {
            services: hello.services.clone(),
            addresses: hello.addresses.clone(),
            names: hello.looked_up.clone(),
        }
    }

    pub(super) fn services(services: Vec<ServiceName>) -> Self {
        Self { services, ..Self::default() }
    }

    pub(super) fn addresses(addresses: Vec<IpAddr>) -> Self {
        Self { addresses, ..Self::default() }
    }

    pub(super) fn names(names: Vec<ServiceName>) -> Self {
        Self { names, ..Self::default() }
    }
}

impl Owner {
    /// Subscribes, and answers: even without services, since the plan is an answer too.
    pub(super) fn subscribe(&mut self, connection: ConnectionId, wishes: Wishes) {
        let Some(contact) = self.audience.contact(connection) else {
            return;
        };
        let room = self.limits.subscriptions;
        let fits = [
            take(&mut contact.subscriptions, wishes.services, room),
            take(&mut contact.addresses, wishes.addresses, ADDRESSES_MAX),
            take(&mut contact.names, wishes.names, NAMES_MAX),
        ];
        if fits.contains(&false) {
            tracing::warn!(workload = %contact.workload, "it wants to know of too much");
        }
        self.satisfy(connection);
    }

    pub(super) fn unsubscribe(&mut self, connection: ConnectionId, wishes: &Wishes) {
        let Some(contact) = self.audience.contact(connection) else {
            return;
        };
        let Contact { subscriptions, addresses, names, .. } = contact;
        leave(subscriptions, &wishes.services);
        leave(addresses, &wishes.addresses);
        leave(names, &wishes.names);
        self.satisfy(connection);
    }

    fn satisfy(&mut self, connection: ConnectionId) {
        let settling = self.start.settling();
        self.audience.answer(connection, &self.mesh, settling);
    }
}

/// Forgets what is not wanted any more: as much work as there is to forget, whatever is known.
fn leave<T: Ord>(known: &mut BTreeSet<T>, unwanted: &[T]) {
    for one in unwanted {
        known.remove(one);
    }
}

/// Takes note of what is wanted, as far as there is room.
fn take<T: Ord>(known: &mut BTreeSet<T>, wanted: Vec<T>, room: usize) -> bool {
    for one in wanted {
        if known.len() >= room {
            return false;
        }
        known.insert(one);
    }
    true
}
