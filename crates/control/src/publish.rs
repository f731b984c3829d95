//! Publication of changes: sends each change to the affected proxies only, after a short debounce time.

mod change_log;
mod proxy;
mod pushes;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use leno_discovery::{ChangeId, ConnectionId, UnknownEndpoints};
use leno_model::{ServiceName, WorkloadName};
use tokio::time::Instant;

use crate::compile::{
    ServiceConfigCache, address_entries, compile_config, dns_record, prepare_services,
    uncertain_endpoints, used_services,
};
use crate::config::Times;
use crate::mesh::{AffectedSet, Index, Mesh};

pub(crate) use change_log::{ChangeCause, ChangeLog, ObjectEdit, RecordedChange};
pub(crate) use proxy::{ConnectedProxy, PushOutcome};
pub(crate) use pushes::{ConfigPush, ConfigPushes, SentPush};

/// All connected proxies, their dependencies, and the pending updates.
#[derive(Debug)]
pub(crate) struct ConnectedProxies {
    times: Times,
    proxies: BTreeMap<ConnectionId, ConnectedProxy>,
    by_workload: BTreeMap<WorkloadName, ConnectionId>,
    /// Proxies by the services that they depend on: they use the service, or one with rules that name it.
    by_service: Index<ServiceName, ConnectionId>,
    /// The reverse of `by_service`.
    dependencies: BTreeMap<ConnectionId, BTreeSet<ServiceName>>,
    /// Proxies by the addresses that they queried.
    by_address: Index<IpAddr, ConnectionId>,
    queried_addresses: BTreeMap<ConnectionId, BTreeSet<IpAddr>>,
    service_configs: ServiceConfigCache,
    pending: Option<PendingChanges>,
    push_in_progress: Option<PushInProgress>,
    newest: ChangeId,
    /// The total work so far, in budget units.
    work: u64,
    pub(crate) pushes: ConfigPushes,
    pub(crate) change_log: ChangeLog,
    pub(crate) counters: PublishCounters,
}

/// Changes that have not been sent yet.
#[derive(Debug)]
struct PendingChanges {
    /// The proxies that the changes may affect.
    unsent: BTreeSet<ConnectionId>,
    /// The times of the changes.
    seen: Vec<Instant>,
    first: Instant,
    last: Instant,
}

/// A push in progress, sent in slices.
#[derive(Debug)]
struct PushInProgress {
    change: ChangeId,
    /// The proxies that it has not been sent to.
    unsent: BTreeSet<ConnectionId>,
    /// Proxies that have received an update and may not have applied it.
    reached: BTreeSet<ConnectionId>,
    seen: Vec<Instant>,
    affected_proxies: usize,
    recipients: usize,
    started: Instant,
}

/// The progress of work that is done in slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SliceProgress {
    Done,
    More,
}

/// Counters of changes, compilations, pushes and their results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PublishCounters {
    /// Changes that could affect a proxy.
    pub(crate) changes: u64,
    /// Compiled configurations.
    pub(crate) compiled: u64,
    /// Of these, those that differed from the proxy's current one, and were sent.
    pub(crate) pushes: u64,
    /// Sent updates that were applied.
    pub(crate) applied: u64,
    /// Rejected deltas (NACKs).
    pub(crate) rejected: u64,
    /// Proxies that received an update, summed over pushes.
    pub(crate) push_recipients: u64,
    /// Bytes of acknowledged deltas.
    pub(crate) delta_bytes: u64,
}

/// Indicates if sidecars that have not reported yet may still be reconnecting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GracePeriod {
    /// The startup grace period is in progress.
    Yes,
    /// The connected sidecars are complete.
    No,
}

impl ConnectedProxies {
    /// Creates an empty set of proxies; changes are numbered from `first`.
    pub(crate) fn new(times: Times, first: ChangeId) -> Self {
        Self {
            times,
            proxies: BTreeMap::new(),
            by_workload: BTreeMap::new(),
            by_service: Index::default(),
            dependencies: BTreeMap::new(),
            by_address: Index::default(),
            queried_addresses: BTreeMap::new(),
            service_configs: ServiceConfigCache::default(),
            pending: None,
            push_in_progress: None,
            newest: first,
            work: 0,
            pushes: ConfigPushes::default(),
            change_log: ChangeLog::default(),
            counters: PublishCounters::default(),
        }
    }

    pub(crate) fn proxies(&self) -> impl Iterator<Item = (ConnectionId, &ConnectedProxy)> {
        self.proxies.iter().map(|(id, proxy)| (*id, proxy))
    }

    pub(crate) fn proxy_mut(&mut self, connection: ConnectionId) -> Option<&mut ConnectedProxy> {
        self.proxies.get_mut(&connection)
    }

    /// Returns the workloads of all connected proxies.
    pub(crate) fn connected_workloads(&self) -> Vec<WorkloadName> {
        self.proxies.values().map(|proxy| proxy.workload.clone()).collect()
    }

    pub(crate) fn of_workload(&self, workload: &WorkloadName) -> Option<ConnectionId> {
        self.by_workload.get(workload).copied()
    }

    /// Returns the connected proxy of a workload.
    pub(crate) fn workload_proxy(&self, workload: &WorkloadName) -> Option<&ConnectedProxy> {
        self.proxies.get(self.by_workload.get(workload)?)
    }

    /// Returns the number of the newest change or response.
    pub(crate) fn newest_change(&self) -> ChangeId {
        self.newest
    }

    pub(crate) fn len(&self) -> usize {
        self.proxies.len()
    }

    /// Adds a proxy. The newest one of a workload replaces the previous one, which is returned.
    pub(crate) fn add_proxy(
        &mut self,
        connection: ConnectionId,
        proxy: ConnectedProxy,
        now: Instant,
    ) -> Option<ConnectedProxy> {
        let former = self.by_workload.insert(proxy.workload.clone(), connection);
        self.proxies.insert(connection, proxy);
        former.and_then(|former| self.remove_proxy(former, now))
    }

    /// Removes a disconnected or dismissed proxy.
    pub(crate) fn remove_proxy(
        &mut self,
        connection: ConnectionId,
        now: Instant,
    ) -> Option<ConnectedProxy> {
        let proxy = self.proxies.remove(&connection)?;
        self.index_services(connection, BTreeSet::new());
        self.dependencies.remove(&connection);
        self.index_addresses(connection, BTreeSet::new());
        self.queried_addresses.remove(&connection);
        if self.by_workload.get(&proxy.workload) == Some(&connection) {
            self.by_workload.remove(&proxy.workload);
        }
        if let Some(pending) = &mut self.pending {
            pending.unsent.remove(&connection);
        }
        if let Some(push_in_progress) = &mut self.push_in_progress {
            push_in_progress.unsent.remove(&connection);
            push_in_progress.reached.remove(&connection);
        }
        self.pushes.settle_connection(connection, proxy.unsettled_bytes, now);
        Some(proxy)
    }

    /// Handles an acknowledgment: the proxy has applied all updates up to `change`, except the rejected
    /// resources.
    pub(crate) fn record_applied(
        &mut self,
        connection: ConnectionId,
        change: ChangeId,
        rejected: usize,
        bytes: u64,
        now: Instant,
    ) {
        self.counters.applied += 1;
        self.counters.delta_bytes += bytes;
        let Some(proxy) = self.proxies.get_mut(&connection) else {
            return;
        };
        proxy.record_applied(change, rejected, now);
        proxy.unsettled_bytes += bytes;
        if !proxy.is_behind() {
            let bytes = std::mem::take(&mut proxy.unsettled_bytes);
            self.pushes.settle_connection(connection, bytes, now);
        }
    }

    /// Records a change, its source and the time at which the source noticed it: affected proxies are updated
    /// after the debounce time.
    pub(crate) fn record_change(
        &mut self,
        affected_set: &AffectedSet,
        mesh: &Mesh,
        cause: ChangeCause,
        noticed: Instant,
        now: Instant,
    ) {
        self.newest.0 += 1;
        self.counters.changes += 1;
        self.change_log.record_change(RecordedChange {
            id: self.newest,
            cause,
            noticed,
            seen: now,
        });
        self.service_configs.mark_outdated(affected_set);
        let affected = self.affected_proxies(affected_set, mesh);
        let pending = self.pending.get_or_insert_with(|| PendingChanges {
            unsent: BTreeSet::new(),
            seen: Vec::new(),
            first: now,
            last: now,
        });
        for connection in affected {
            if pending.unsent.insert(connection) {
                let proxy = self.proxies.get(&connection);
                let units = proxy.map_or(0, |proxy| proxy.config_units);
                self.work = self.work.saturating_add(UPDATE_UNITS.saturating_add(units));
            }
        }
        pending.last = now;
        if pending.seen.len() < MAX_SEEN {
            pending.seen.push(now);
        }
    }

    /// Returns the time at which recorded changes are sent; in the past while a push is in progress.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        if let Some(push_in_progress) = &self.push_in_progress {
            return Some(push_in_progress.started);
        }
        let Times { quiet, quiet_max, .. } = self.times;
        let pending = self.pending.as_ref()?;
        Some((pending.last + quiet).min(pending.first + quiet_max))
    }

    /// Sends recorded changes to the affected proxies, one slice at a time, so that other work continues in
    /// between.
    pub(crate) fn publish(
        &mut self,
        mesh: &Mesh,
        grace_period: GracePeriod,
        now: Instant,
    ) -> SliceProgress {
        if self.push_in_progress.is_none() {
            let Some(PendingChanges { unsent, seen, .. }) = self.pending.take() else {
                return SliceProgress::Done;
            };
            let (change, affected_proxies) = (self.newest, unsent.len());
            let reached = BTreeSet::new();
            self.push_in_progress = Some(PushInProgress {
                change,
                unsent,
                reached,
                seen,
                affected_proxies,
                recipients: 0,
                started: now,
            });
        }
        let end = self.work.saturating_add(SLICE_UNITS);
        while self.work < end {
            let next = self
                .push_in_progress
                .as_mut()
                .and_then(|push_in_progress| push_in_progress.unsent.pop_first());
            let Some(connection) = next else { break };
            let is_new = self.send_config(connection, mesh, grace_period) == Some(PushOutcome::New);
            if let Some(push_in_progress) = &mut self.push_in_progress {
                push_in_progress.recipients += usize::from(is_new);
                push_in_progress.reached.insert(connection);
            }
        }
        match self.push_in_progress.take_if(|push_in_progress| push_in_progress.unsent.is_empty()) {
            Some(finished) => self.finish_push(finished),
            None => return SliceProgress::More,
        }
        SliceProgress::Done
    }

    /// Starts to wait for the acknowledgments of a push that has been sent completely.
    fn finish_push(&mut self, push_in_progress: PushInProgress) {
        let PushInProgress {
            change, mut reached, seen, affected_proxies, recipients, started, ..
        } = push_in_progress;
        let is_behind = |connection: &ConnectionId| {
            self.proxies.get(connection).is_some_and(ConnectedProxy::is_behind)
        };
        reached.retain(is_behind);
        self.service_configs.evict_unused();
        self.counters.push_recipients += recipients as u64;
        self.pushes.begin_push(
            change,
            seen,
            SentPush { at: started, affected_proxies, recipients, waiting: reached },
        );
    }

    /// Sends all proxies their configuration if it differs, without a change of the mesh.
    pub(crate) fn update_all(&mut self, mesh: &Mesh, grace_period: GracePeriod) {
        self.newest.0 += 1;
        let all: Vec<ConnectionId> = self.proxies.keys().copied().collect();
        for connection in all {
            self.send_config(connection, mesh, grace_period);
        }
    }

    /// Responds to a proxy's query without debouncing: a request may be waiting for it.
    pub(crate) fn send_response(
        &mut self,
        connection: ConnectionId,
        mesh: &Mesh,
        grace_period: GracePeriod,
    ) {
        // A distinct number, so that its acknowledgment is unambiguous.
        self.newest.0 += 1;
        self.send_config(connection, mesh, grace_period);
    }

    /// Compiles a slice of a proxy's configuration. For proxies with many new subscriptions, it is called until
    /// done before the response.
    pub(crate) fn prepare_config(
        &mut self,
        connection: ConnectionId,
        mesh: &Mesh,
    ) -> SliceProgress {
        let Some(proxy) = self.proxies.get(&connection) else { return SliceProgress::Done };
        let Some(workload) = mesh.workload(&proxy.workload) else { return SliceProgress::Done };
        let before = self.service_configs.compiled_count();
        let done = prepare_services(
            mesh,
            workload,
            &proxy.subscriptions,
            &proxy.addresses,
            &mut self.service_configs,
        );
        self.charge_compilation(before);
        match done {
            true => SliceProgress::Done,
            false => SliceProgress::More,
        }
    }

    /// Returns the total work so far, in budget units: a difference is the cost of the work in between.
    pub(crate) fn total_work(&self) -> u64 {
        self.work
    }

    fn charge_compilation(&mut self, before: u64) {
        let compiled = self.service_configs.compiled_count().saturating_sub(before);
        self.work = self.work.saturating_add(compiled.saturating_mul(SERVICE_CONFIG_UNITS));
    }

    /// Sends one proxy its configuration, if it differs from the last one sent.
    fn send_config(
        &mut self,
        connection: ConnectionId,
        mesh: &Mesh,
        grace_period: GracePeriod,
    ) -> Option<PushOutcome> {
        let proxy = self.proxies.get(&connection)?;
        let workload = mesh.workload(&proxy.workload)?;
        let before = self.service_configs.compiled_count();
        let mut services = used_services(workload, &proxy.subscriptions);
        let queried_addresses = proxy.addresses.clone();
        let entries = address_entries(mesh, &queried_addresses, &mut self.service_configs);
        let queried_names = proxy.names.clone();
        let names = dns_record(mesh, &queried_names);
        services.extend(entries.services);
        let compiled_config = compile_config(mesh, workload, &services, &mut self.service_configs);
        let compiled_config = compiled_config.with_addresses(entries.by_address).with_names(names);
        let unknown_endpoints = match grace_period {
            GracePeriod::Yes => uncertain_endpoints(mesh, workload, &compiled_config)
                .with_addresses(entries.unreported),
            GracePeriod::No => UnknownEndpoints::default(),
        };
        self.counters.compiled += 1;
        let dependencies = compiled_config.snapshot.services.keys().chain(&compiled_config.absent);
        let dependencies = dependencies.chain(&entries.dependencies).chain(&queried_names);
        self.index_services(connection, dependencies.cloned().collect());
        self.index_addresses(connection, queried_addresses);
        let change = self.newest;
        let snapshot = &compiled_config.snapshot;
        let resources = snapshot.services.len() + snapshot.addresses.len() + snapshot.names.len();
        let units =
            SNAPSHOT_UNITS.saturating_add((resources + compiled_config.absent.len()) as u64);
        self.work = self.work.saturating_add(units);
        self.charge_compilation(before);
        let proxy = self.proxies.get_mut(&connection);
        let outcome = proxy.map(|proxy| {
            proxy.config_units = units;
            proxy.send_if_changed(compiled_config, unknown_endpoints, change)
        });
        self.counters.pushes += u64::from(outcome == Some(PushOutcome::New));
        outcome
    }

    /// Returns the number of proxies with pending changes.
    pub(crate) fn pending_count(&self) -> usize {
        let pending = self.pending.as_ref().map_or(0, |pending| pending.unsent.len());
        pending
            + self
                .push_in_progress
                .as_ref()
                .map_or(0, |push_in_progress| push_in_progress.unsent.len())
    }

    fn affected_proxies(&self, affected_set: &AffectedSet, mesh: &Mesh) -> BTreeSet<ConnectionId> {
        if affected_set.all_proxies {
            return self.proxies.keys().copied().collect();
        }
        let accounts = affected_set.accounts.iter();
        let clients = accounts.flat_map(|account| mesh.account_workloads(account));
        let workloads = affected_set.workloads.iter().chain(clients);
        let own_proxies = workloads.filter_map(|name| self.by_workload.get(name));
        let services = affected_set.services.iter();
        let users = services.flat_map(|name| self.by_service.values_for(name));
        let addresses = affected_set.addresses.iter();
        let queriers = addresses.flat_map(|address| self.by_address.values_for(address));
        own_proxies.chain(users).chain(queriers).copied().collect()
    }

    fn index_addresses(&mut self, connection: ConnectionId, addresses: BTreeSet<IpAddr>) {
        let before = self.queried_addresses.entry(connection).or_default();
        for removed in before.difference(&addresses) {
            self.by_address.remove(removed, &connection);
        }
        for new in addresses.difference(before) {
            self.by_address.insert(new, &connection);
        }
        *before = addresses;
    }

    fn index_services(&mut self, connection: ConnectionId, services: BTreeSet<ServiceName>) {
        let before = self.dependencies.entry(connection).or_default();
        for removed in before.difference(&services) {
            self.by_service.remove(removed, &connection);
        }
        for new in services.difference(before) {
            self.by_service.insert(new, &connection);
        }
        *before = services;
    }
}

/// The costs of compiling a service configuration, of compiling an empty snapshot, and of sending an update to
/// a proxy, including its connection. Rough measurements; a unit is about a microsecond.
const SERVICE_CONFIG_UNITS: u64 = 16;
const SNAPSHOT_UNITS: u64 = 32;
const UPDATE_UNITS: u64 = 128;

/// The work of one slice of a push: a few milliseconds.
const SLICE_UNITS: u64 = 4096;

/// Maximum changes per push whose convergence is timed; further changes of a burst are not.
const MAX_SEEN: usize = 1024;

#[cfg(test)]
mod tests;
