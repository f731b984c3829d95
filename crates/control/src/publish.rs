//! Who must hear of a change, and when: only those who use what changed, after a short quiet time.

mod contact;
mod journal;
mod rounds;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use leno_discovery::{ChangeId, ConnectionId, Doubt};
use leno_model::{ServiceName, WorkloadName};
use tokio::time::Instant;

use crate::compile::{Views, doubt, occupants, prepare, wanted, whereabouts, world};
use crate::config::Times;
use crate::mesh::{Index, Mesh, Touched};

pub(crate) use contact::{Contact, Offered};
pub(crate) use journal::{Cause, Edit, Journal, Noted};
pub(crate) use rounds::{Round, Rounds, Sent};

/// Every connected proxy, what it depends on, and who has still to hear of what changed.
#[derive(Debug)]
pub(crate) struct Audience {
    times: Times,
    contacts: BTreeMap<ConnectionId, Contact>,
    by_workload: BTreeMap<WorkloadName, ConnectionId>,
    /// Who depends on a service: uses it, or a service whose rules name it.
    by_service: Index<ServiceName, ConnectionId>,
    depends: BTreeMap<ConnectionId, BTreeSet<ServiceName>>,
    /// Who asked for an address.
    by_address: Index<IpAddr, ConnectionId>,
    asked: BTreeMap<ConnectionId, BTreeSet<IpAddr>>,
    views: Views,
    pending: Option<Pending>,
    sending: Option<Sending>,
    newest: ChangeId,
    /// All work so far, in the units of budgets.
    work: u64,
    pub(crate) rounds: Rounds,
    pub(crate) journal: Journal,
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

/// A round that is being sent, a slice at a time.
#[derive(Debug)]
struct Sending {
    change: ChangeId,
    /// The proxies that it has not been sent to.
    due: BTreeSet<ConnectionId>,
    /// Those that were sent something they may not have applied.
    reached: BTreeSet<ConnectionId>,
    seen: Vec<Instant>,
    concerned: usize,
    told: usize,
    at: Instant,
}

/// The state of work in slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Done,
    More,
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
    /// Proxies that changes told something new, summed over rounds.
    pub(crate) touched: u64,
    /// Bytes of deltas that were answered.
    pub(crate) delta_bytes: u64,
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
            by_address: Index::default(),
            asked: BTreeMap::new(),
            views: Views::default(),
            pending: None,
            sending: None,
            newest: first,
            work: 0,
            rounds: Rounds::default(),
            journal: Journal::default(),
            tally: Tally::default(),
        }
    }

    pub(crate) fn contacts(&self) -> impl Iterator<Item = (ConnectionId, &Contact)> {
        self.contacts.iter().map(|(id, contact)| (*id, contact))
    }

    pub(crate) fn contact(&mut self, connection: ConnectionId) -> Option<&mut Contact> {
        self.contacts.get_mut(&connection)
    }

    /// The workloads of all connected proxies.
    pub(crate) fn workloads(&self) -> Vec<WorkloadName> {
        self.contacts.values().map(|contact| contact.workload.clone()).collect()
    }

    pub(crate) fn of_workload(&self, workload: &WorkloadName) -> Option<ConnectionId> {
        self.by_workload.get(workload).copied()
    }

    /// The connected proxy of a workload.
    pub(crate) fn known(&self, workload: &WorkloadName) -> Option<&Contact> {
        self.contacts.get(self.by_workload.get(workload)?)
    }

    /// The number of the newest change or answer.
    pub(crate) fn newest(&self) -> ChangeId {
        self.newest
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
        self.ask(connection, BTreeSet::new());
        self.asked.remove(&connection);
        if self.by_workload.get(&contact.workload) == Some(&connection) {
            self.by_workload.remove(&contact.workload);
        }
        if let Some(pending) = &mut self.pending {
            pending.due.remove(&connection);
        }
        if let Some(sending) = &mut self.sending {
            sending.due.remove(&connection);
            sending.reached.remove(&connection);
        }
        self.rounds.settle(connection, contact.unsettled_bytes, now);
        Some(contact)
    }

    /// A proxy has applied what it was told up to `change`, but for what it refuses.
    pub(crate) fn applied(
        &mut self,
        connection: ConnectionId,
        (change, refused): (ChangeId, usize),
        bytes: u64,
        now: Instant,
    ) {
        self.tally.applied += 1;
        self.tally.delta_bytes += bytes;
        let Some(contact) = self.contacts.get_mut(&connection) else {
            return;
        };
        contact.applied(change, refused, now);
        contact.unsettled_bytes += bytes;
        if !contact.is_behind() {
            let bytes = std::mem::take(&mut contact.unsettled_bytes);
            self.rounds.settle(connection, bytes, now);
        }
    }

    /// Takes note of a change, where it came from and when that noticed it: who may be concerned
    /// hears of it after the quiet time.
    pub(crate) fn notice(
        &mut self,
        touched: &Touched,
        mesh: &Mesh,
        (cause, noticed): (Cause, Instant),
        now: Instant,
    ) {
        self.newest.0 += 1;
        self.tally.changes += 1;
        self.journal.note(Noted { id: self.newest, cause, noticed, seen: now });
        self.views.doubt(touched);
        let due = self.concerned(touched, mesh);
        let pending = self.pending.get_or_insert_with(|| Pending {
            due: BTreeSet::new(),
            seen: Vec::new(),
            first: now,
            last: now,
        });
        for connection in due {
            if pending.due.insert(connection) {
                let contact = self.contacts.get(&connection);
                let units = contact.map_or(0, |contact| contact.world_units);
                self.work = self.work.saturating_add(NOTICE_UNITS.saturating_add(units));
            }
        }
        pending.last = now;
        if pending.seen.len() < SEEN_MAX {
            pending.seen.push(now);
        }
    }

    /// When the noticed changes are to be sent; in the past while a round is being sent.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        if let Some(sending) = &self.sending {
            return Some(sending.at);
        }
        let Times { quiet, quiet_max, .. } = self.times;
        let pending = self.pending.as_ref()?;
        Some((pending.last + quiet).min(pending.first + quiet_max))
    }

    /// Sends the noticed changes to the proxies that they concern: a slice of them at a time, so that
    /// others are served in between.
    pub(crate) fn publish(&mut self, mesh: &Mesh, settling: Settling, now: Instant) -> Progress {
        if self.sending.is_none() {
            let Some(Pending { due, seen, .. }) = self.pending.take() else {
                return Progress::Done;
            };
            let (change, concerned) = (self.newest, due.len());
            let reached = BTreeSet::new();
            self.sending =
                Some(Sending { change, due, reached, seen, concerned, told: 0, at: now });
        }
        let end = self.work.saturating_add(SLICE_UNITS);
        while self.work < end {
            let next = self.sending.as_mut().and_then(|sending| sending.due.pop_first());
            let Some(connection) = next else { break };
            let is_new = self.tell(connection, mesh, settling) == Some(Offered::New);
            if let Some(sending) = &mut self.sending {
                sending.told += usize::from(is_new);
                sending.reached.insert(connection);
            }
        }
        match self.sending.take_if(|sending| sending.due.is_empty()) {
            Some(sent) => self.begin_round(sent),
            None => return Progress::More,
        }
        Progress::Done
    }

    /// Everything is sent: from now on the round waits for those that have not applied it.
    fn begin_round(&mut self, sending: Sending) {
        let Sending { change, mut reached, seen, concerned, told, at, .. } = sending;
        let is_behind = |one: &ConnectionId| self.contacts.get(one).is_some_and(Contact::is_behind);
        reached.retain(is_behind);
        self.views.sweep();
        self.tally.touched += told as u64;
        self.rounds.begin(change, seen, Sent { at, concerned, told, waiting: reached });
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

    /// Compiles a slice of what a proxy's world needs. To be called until it is done before a proxy is
    /// answered that wants much at once.
    pub(crate) fn prepare(&mut self, connection: ConnectionId, mesh: &Mesh) -> Progress {
        let Some(contact) = self.contacts.get(&connection) else { return Progress::Done };
        let Some(workload) = mesh.workload(&contact.workload) else { return Progress::Done };
        let before = self.views.compiled();
        let done =
            prepare(mesh, (workload, &contact.subscriptions, &contact.addresses), &mut self.views);
        self.charge_views(before);
        match done {
            true => Progress::Done,
            false => Progress::More,
        }
    }

    /// All work so far, in the units of budgets: a difference is the cost of the work in between.
    pub(crate) fn work(&self) -> u64 {
        self.work
    }

    fn charge_views(&mut self, before: u64) {
        let compiled = self.views.compiled().saturating_sub(before);
        self.work = self.work.saturating_add(compiled.saturating_mul(VIEW_UNITS));
    }

    /// Tells one proxy what it should know, if that is not what it was told last.
    fn tell(
        &mut self,
        connection: ConnectionId,
        mesh: &Mesh,
        settling: Settling,
    ) -> Option<Offered> {
        let contact = self.contacts.get(&connection)?;
        let workload = mesh.workload(&contact.workload)?;
        let before = self.views.compiled();
        let mut wanted = wanted(workload, &contact.subscriptions);
        let asked = contact.addresses.clone();
        let found = occupants(mesh, &asked, &mut self.views);
        let looked_up = contact.names.clone();
        let names = whereabouts(mesh, &looked_up);
        wanted.extend(found.services);
        let world = world(mesh, workload, &wanted, &mut self.views);
        let world = world.with_addresses(found.at).with_names(names);
        let doubt = match settling {
            Settling::Yes => doubt(mesh, workload, &world).with_addresses(found.unheard),
            Settling::No => Doubt::default(),
        };
        self.tally.compiled += 1;
        let depends = world.snapshot.services.keys().chain(&world.absent);
        let depends = depends.chain(&found.decided_by).chain(&looked_up);
        self.depend(connection, depends.cloned().collect());
        self.ask(connection, asked);
        let change = self.newest;
        let snapshot = &world.snapshot;
        let known = snapshot.services.len() + snapshot.addresses.len() + snapshot.names.len();
        let units = WORLD_UNITS.saturating_add((known + world.absent.len()) as u64);
        self.work = self.work.saturating_add(units);
        self.charge_views(before);
        let contact = self.contacts.get_mut(&connection);
        let offered = contact.map(|contact| {
            contact.world_units = units;
            contact.offer((world, doubt), change)
        });
        self.tally.offered += u64::from(offered == Some(Offered::New));
        offered
    }

    /// How many proxies are due to be told of changes that have not been sent yet.
    pub(crate) fn due(&self) -> usize {
        let pending = self.pending.as_ref().map_or(0, |pending| pending.due.len());
        pending + self.sending.as_ref().map_or(0, |sending| sending.due.len())
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
        let addresses = touched.addresses.iter();
        let askers = addresses.flat_map(|address| self.by_address.of(address));
        owners.chain(users).chain(askers).copied().collect()
    }

    fn ask(&mut self, connection: ConnectionId, addresses: BTreeSet<IpAddr>) {
        let before = self.asked.entry(connection).or_default();
        for gone in before.difference(&addresses) {
            self.by_address.remove(gone, &connection);
        }
        for new in addresses.difference(before) {
            self.by_address.insert(new, &connection);
        }
        *before = addresses;
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

/// The costs of compiling a view of a service, of compiling an empty world, and of sending a change to a
/// proxy, its connection included. Measured roughly; a unit is about a microsecond.
const VIEW_UNITS: u64 = 16;
const WORLD_UNITS: u64 = 32;
const NOTICE_UNITS: u64 = 128;

/// The work of one slice of a round: a few milliseconds.
const SLICE_UNITS: u64 = 4096;

/// How many changes of one round are timed; the others of a storm count with them.
const SEEN_MAX: usize = 1024;

#[cfg(test)]
mod tests;
