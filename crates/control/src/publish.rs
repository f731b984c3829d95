//! Who must hear of a change, and when: only those who use what changed, after a short quiet time.

mod contact;
mod rounds;

use std::collections::{BTreeMap, BTreeSet};

use leno_discovery::{ChangeId, ConnectionId, Doubt};
use leno_model::{ServiceName, WorkloadName};
use tokio::time::Instant;

use crate::compile::{Views, doubt, wanted, world};
use crate::config::Times;
use crate::mesh::{Index, Mesh, Touched};

pub(crate) use contact::{Contact, Offered};
pub(crate) use rounds::Rounds;

/// Every connected proxy, what it depends on, and who has still to hear of what changed.
#[derive(Debug)]
pub(crate) struct Audience {
    times: Times,
    contacts: BTreeMap<ConnectionId, Contact>,
    by_workload: BTreeMap<WorkloadName, ConnectionId>,
    /// Who depends on a service: uses it, or a service whose rules name it.
    by_service: Index<ServiceName, ConnectionId>,
    depends: BTreeMap<ConnectionId, BTreeSet<ServiceName>>,
    views: Views,
    pending: Option<Pending>,
    newest: ChangeId,
    pub(crate) rounds: Rounds,
    pub(crate) tally: Tally,
}

/// Changes that have not been sent yet.
#[derive(Debug)]
struct Pending {
    due: BTreeSet<ConnectionId>,
    seen: Vec<Instant>,
    first: Instant,
    last: Instant,
}

/// What was done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tally {
    /// Changes that could concern somebody.
    pub(crate) changes: u64,
    /// Worlds compiled.
    pub(crate) compiled: u64,
    /// Of these, those that differed from what the proxy knew, and were sent.
    pub(crate) offered: u64,
    /// Offers that were applied.
    pub(crate) applied: u64,
    /// Deltas that were refused.
    pub(crate) refused: u64,
}

/// Whether sidecars that were not heard of yet may only be on their way back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settling {
    /// The control plane has just started.
    Yes,
    /// What is there is there.
    No,
}

impl Audience {
    /// Nobody yet; changes are numbered from `first` on.
    pub(crate) fn new(times: Times, first: ChangeId) -> Self {
        Self {
            times,
            contacts: BTreeMap::new(),
            by_workload: BTreeMap::new(),
            by_service: Index::default(),
            depends: BTreeMap::new(),
            views: Views::default(),
            pending: None,
            newest: first,
            rounds: Rounds::default(),
            tally: Tally::default(),
        }
    }

    pub(crate) fn contacts(&self) -> impl Iterator<Item = (ConnectionId, &Contact)> {
        self.contacts.iter().map(|(id, contact)| (*id, contact))
    }

    pub(crate) fn contact(&mut self, connection: ConnectionId) -> Option<&mut Contact> {
        self.contacts.get_mut(&connection)
    }

    pub(crate) fn of_workload(&self, workload: &WorkloadName) -> Option<ConnectionId> {
        self.by_workload.get(workload).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.contacts.len()
    }

    /// A proxy arrived. The newest of a workload counts; the one before is returned.
    pub(crate) fn welcome(
        &mut self,
        connection: ConnectionId,
        contact: Contact,
        now: Instant,
    ) -> Option<Contact> {
        let former = self.by_workload.insert(contact.workload.clone(), connection);
        self.contacts.insert(connection, contact);
        former.and_then(|former| self.part(former, now))
    }

    /// A proxy is gone, or has to go.
    pub(crate) fn part(&mut self, connection: ConnectionId, now: Instant) -> Option<Contact> {
        let contact = self.contacts.remove(&connection)?;
        self.depend(connection, BTreeSet::new());
        self.depends.remove(&connection);
        if self.by_workload.get(&contact.workload) == Some(&connection) {
            self.by_workload.remove(&contact.workload);
        }
        if let Some(pending) = &mut self.pending {
            pending.due.remove(&connection);
        }
        self.rounds.settle(connection, now);
        Some(contact)
    }

    /// Takes note of a change: who may be concerned hears of it after the quiet time.
    pub(crate) fn notice(&mut self, touched: &Touched, mesh: &Mesh, now: Instant) {
        self.newest.0 += 1;
        self.tally.changes += 1;
        self.views.doubt(touched);
        let due = self.concerned(touched, mesh);
        let pending = self.pending.get_or_insert_with(|| Pending {
            due: BTreeSet::new(),
            seen: Vec::new(),
            first: now,
            last: now,
        });
        pending.due.extend(due);
        pending.last = now;
        if pending.seen.len() < SEEN_MAX {
            pending.seen.push(now);
        }
    }

    /// When the noticed changes are to be sent.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        let Times { quiet, quiet_max, .. } = self.times;
        let pending = self.pending.as_ref()?;
        Some((pending.last + quiet).min(pending.first + quiet_max))
    }

    /// Sends the noticed changes to all whom they concern.
    pub(crate) fn publish(&mut self, mesh: &Mesh, settling: Settling) {
        let Some(pending) = self.pending.take() else {
            return;
        };
        let mut waiting = BTreeSet::new();
        for connection in pending.due {
            self.tell(connection, mesh, settling);
            if self.contacts.get(&connection).is_some_and(Contact::is_behind) {
                waiting.insert(connection);
            }
        }
        self.views.sweep();
        self.rounds.begin(self.newest, pending.seen, waiting);
    }

    /// Everybody may have to hear something else, although nothing changed.
    pub(crate) fn reconsider(&mut self, mesh: &Mesh, settling: Settling) {
        self.newest.0 += 1;
        let all: Vec<ConnectionId> = self.contacts.keys().copied().collect();
        for connection in all {
            self.tell(connection, mesh, settling);
        }
    }

    /// Answers a proxy that asked for something, without a quiet time: a request may wait for it.
    pub(crate) fn answer(&mut self, connection: ConnectionId, mesh: &Mesh, settling: Settling) {
        // A number of its own, so that what it applied can be told from what it had before.
        self.newest.0 += 1;
        self.tell(connection, mesh, settling);
    }

    /// Tells one proxy what it should know, if that is not what it was told last.
    fn tell(&mut self, connection: ConnectionId, mesh: &Mesh, settling: Settling) {
        let Some(contact) = self.contacts.get(&connection) else {
            return;
        };
        let Some(workload) = mesh.workload(&contact.workload) else {
            return;
        };
        let wanted = wanted(workload, &contact.subscriptions);
        let world = world(mesh, workload, &wanted, &mut self.views);
        let doubt = match settling {
            Settling::Yes => doubt(mesh, workload, &world),
            Settling::No => Doubt::default(),
        };
        self.tally.compiled += 1;
        let depends = world.snapshot.services.keys().chain(&world.absent);
        self.depend(connection, depends.cloned().collect());
        let change = self.newest;
        let contact = self.contacts.get_mut(&connection);
        if contact.map(|contact| contact.offer((world, doubt), change)) == Some(Offered::New) {
            self.tally.offered += 1;
        }
    }

    fn concerned(&self, touched: &Touched, mesh: &Mesh) -> BTreeSet<ConnectionId> {
        if touched.everybody {
            return self.contacts.keys().copied().collect();
        }
        let accounts = touched.accounts.iter();
        let clients = accounts.flat_map(|account| mesh.under(account));
        let workloads = touched.workloads.iter().chain(clients);
        let owners = workloads.filter_map(|name| self.by_workload.get(name));
        let services = touched.services.iter();
        let users = services.flat_map(|name| self.by_service.of(name));
        owners.chain(users).copied().collect()
    }

    fn depend(&mut self, connection: ConnectionId, services: BTreeSet<ServiceName>) {
        let before = self.depends.entry(connection).or_default();
        for gone in before.difference(&services) {
            self.by_service.remove(gone, &connection);
        }
        for new in services.difference(before) {
            self.by_service.insert(new, &connection);
        }
        *before = services;
    }
}

/// How many changes of one round are timed; the others of a storm count with them.
const SEEN_MAX: usize = 1024;

#[cfg(test)]
mod tests;
