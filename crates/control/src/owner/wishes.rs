//! What proxies want to know: services that they use, addresses and names that they ask for.

use std::collections::BTreeSet;

use leno_discovery::{ADDRESSES_MAX, ConnectionId, Hello, NAMES_MAX, Wanted, WantedChange};

use super::{Answered, Now, Owner};
use crate::publish::{Contact, Progress};
use crate::server::identity;

/// All that a proxy wants as it connects.
pub(super) fn of(hello: &Hello) -> WantedChange {
    let added = Wanted {
        services: hello.services.iter().cloned().collect(),
        addresses: hello.addresses.iter().copied().collect(),
        names: hello.looked_up.iter().cloned().collect(),
    };
    WantedChange { added, ..WantedChange::default() }
}

impl Owner {
    /// Takes the desired state of a proxy, and answers: even without services, since the plan is an
    /// answer too.
    pub(super) fn want(
        &mut self,
        connection: ConnectionId,
        change: WantedChange,
        now: Now,
    ) -> Answered {
        let Some(contact) = self.audience.contact(connection) else {
            return Answered::AtOnce;
        };
        let WantedChange { added, removed, over_limit } = change;
        let room = self.limits.subscriptions;
        let many = added.len() > AT_ONCE_MAX;
        let Contact { subscriptions, addresses, names, .. } = contact;
        leave(subscriptions, &removed.services);
        leave(addresses, &removed.addresses);
        leave(names, &removed.names);
        let fits = [
            take(subscriptions, added.services, room),
            take(addresses, added.addresses, ADDRESSES_MAX),
            take(names, added.names, NAMES_MAX),
        ];
        if (over_limit > 0 || fits.contains(&false))
            && let Some(line) = self.logs.permit(identity(&contact.peer), now.clock.into_std())
        {
            let (workload, suppressed) = (&contact.workload, line.suppressed);
            tracing::warn!(%workload, suppressed, "subscription limit reached: the rest is ignored");
        }
        match many {
            true => Answered::InSlices(connection),
            false => self.answer_now(connection),
        }
    }

    /// Goes on with an answer to a proxy that wants much at once, by a bounded amount of work.
    pub(super) fn satisfy(&mut self, connection: ConnectionId) -> Answered {
        match self.audience.prepare(connection, &self.mesh) {
            Progress::More => Answered::InSlices(connection),
            Progress::Done => self.answer_now(connection),
        }
    }

    fn answer_now(&mut self, connection: ConnectionId) -> Answered {
        let settling = self.start.settling();
        self.audience.answer(connection, &self.mesh, settling);
        Answered::AtOnce
    }
}

/// Forgets what is not wanted any more: as much work as there is to forget, whatever is known.
fn leave<T: Ord>(known: &mut BTreeSet<T>, unwanted: &BTreeSet<T>) {
    for one in unwanted {
        known.remove(one);
    }
}

/// Takes note of what is wanted, as far as there is room.
fn take<T: Ord>(known: &mut BTreeSet<T>, wanted: BTreeSet<T>, room: usize) -> bool {
    for one in wanted {
        if known.len() >= room {
            return false;
        }
        known.insert(one);
    }
    true
}

/// A proxy that wants more than this in addition is answered in slices.
const AT_ONCE_MAX: usize = 128;
