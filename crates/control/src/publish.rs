//! Holds the connected proxies, and sends each change of the mesh to the affected ones after a short debounce time.

mod change_log;
mod proxy;
mod pushes;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use leno_discovery::{ChangeId, ConnectionId, UnknownEndpoints};
use leno_model::{ServiceName, WorkloadName};
use tokio::time::Instant;

use crate::compile::{
    ServiceConfigCache, address_entries, compile_config, dns_records, find_unknown_endpoints,
    prepare_services, used_services,
};
use crate::config::Times;
use crate::mesh::{AffectedSet, Index, Mesh};

pub(crate) use change_log::{ChangeCause, ChangeLog, ObjectEdit, RecordedChange};
pub(crate) use proxy::{ConnectedProxy, PushOutcome, ReplacedProcess};
pub(crate) use pushes::{ConfigPush, ConfigPushes, SentPush};

/// All connected proxies, the services and addresses that their configurations depend on, and the pending updates.
#[derive(Debug)]
pub(crate) struct ConnectedProxies {
    times: Times,
    proxies: BTreeMap<ConnectionId, ConnectedProxy>,
    connections_by_workload: BTreeMap<WorkloadName, ConnectionId>,
    /// Proxies by the services that their configurations depend on. A configuration depends on a service if the proxy
    /// uses the service, or uses another service with rules that name this one.
    connections_by_service: Index<ServiceName, ConnectionId>,
    /// The reverse of `connections_by_service`.
    dependencies: BTreeMap<ConnectionId, BTreeSet<ServiceName>>,
    /// Proxies by the addresses that they queried.
    connections_by_address: Index<IpAddr, ConnectionId>,
    queried_addresses: BTreeMap<ConnectionId, BTreeSet<IpAddr>>,
    service_configs: ServiceConfigCache,
    /// The changes since the last push was started; `None` without a change.
    pending_changes: Option<PendingChanges>,
    push_in_progress: Option<PushInProgress>,
    /// The number of the newest change or response.
    newest_change: ChangeId,
    /// The total work so far, in budget units of about a microsecond.
    total_work: u64,
    pub(crate) pushes: ConfigPushes,
    pub(crate) change_log: ChangeLog,
    pub(crate) counters: PublishCounters,
}

/// Changes that have not been sent yet.
#[derive(Debug)]
struct PendingChanges {
    /// The proxies that the changes may affect.
    unsent_proxies: BTreeSet<ConnectionId>,
    /// The times at which the changes were processed, for the convergence time.
    change_times: Vec<Instant>,
    first_change_time: Instant,
    last_change_time: Instant,
}

/// A push in progress, sent in slices.
#[derive(Debug)]
struct PushInProgress {
    change: ChangeId,
    /// The proxies that the push has not been sent to.
    unsent_proxies: BTreeSet<ConnectionId>,
    /// The proxies for which the push is done: they received an update, or had the configuration already. Either may be
    /// out of sync.
    processed_proxies: BTreeSet<ConnectionId>,
    change_times: Vec<Instant>,
    /// The number of proxies that the changes may affect.
    affected_count: usize,
    /// The number of proxies that received an update so far.
    recipient_count: usize,
    started_at: Instant,
}

/// The progress of work that is done in slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SliceProgress {
    Complete,
    Incomplete,
}

/// Counters of changes, compilations, pushes and their results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PublishCounters {
    /// Changes that could affect a proxy.
    pub(crate) changes: u64,
    /// Compiled configurations.
    pub(crate) compiled: u64,
    /// Compiled configurations that differed from the last one of the proxy, and were sent.
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

/// The state of the startup grace period, in which sidecars that have not reported may still be reconnecting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GracePeriod {
    /// Sidecars may still be reconnecting: endpoints without a report are kept.
    Active,
    /// All expected sidecars have reconnected, or are no longer awaited.
    Ended,
}

impl ConnectedProxies {
    /// Creates an empty set of proxies; changes are numbered from `first_change`.
    pub(crate) fn new(times: Times, first_change: ChangeId) -> Self {
        Self {
            times,
            proxies: BTreeMap::new(),
            connections_by_workload: BTreeMap::new(),
            connections_by_service: Index::default(),
            dependencies: BTreeMap::new(),
            connections_by_address: Index::default(),
            queried_addresses: BTreeMap::new(),
            service_configs: ServiceConfigCache::default(),
            pending_changes: None,
            push_in_progress: None,
            newest_change: first_change,
            total_work: 0,
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

    pub(crate) fn connection_of_workload(&self, workload: &WorkloadName) -> Option<ConnectionId> {
        self.connections_by_workload.get(workload).copied()
    }

    /// Returns the connected proxy of a workload.
    pub(crate) fn workload_proxy(&self, workload: &WorkloadName) -> Option<&ConnectedProxy> {
        self.proxies.get(self.connections_by_workload.get(workload)?)
    }

    /// Returns the number of the newest change or response.
    pub(crate) fn newest_change(&self) -> ChangeId {
        self.newest_change
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
        let previous_connection =
            self.connections_by_workload.insert(proxy.workload.clone(), connection);
        self.proxies.insert(connection, proxy);
        previous_connection
            .and_then(|previous_connection| self.remove_proxy(previous_connection, now))
    }

    /// Removes a disconnected or dismissed proxy and returns it; `None` if it was removed before.
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
        if self.connections_by_workload.get(&proxy.workload) == Some(&connection) {
            self.connections_by_workload.remove(&proxy.workload);
        }
        if let Some(pending) = &mut self.pending_changes {
            pending.unsent_proxies.remove(&connection);
        }
        if let Some(push_in_progress) = &mut self.push_in_progress {
            push_in_progress.unsent_proxies.remove(&connection);
            push_in_progress.processed_proxies.remove(&connection);
        }
        self.pushes.remove_waiting_proxy(connection, proxy.acknowledged_bytes, now);
        Some(proxy)
    }

    /// Records an acknowledgment of `bytes` bytes: the proxy has applied all updates up to `change`, except
    /// `rejected_count` resources.
    pub(crate) fn record_applied(
        &mut self,
        connection: ConnectionId,
        change: ChangeId,
        rejected_count: usize,
        bytes: u64,
        now: Instant,
    ) {
        self.counters.applied += 1;
        self.counters.delta_bytes += bytes;
        let Some(proxy) = self.proxies.get_mut(&connection) else {
            return;
        };
        proxy.record_applied(change, rejected_count, now);
        proxy.acknowledged_bytes += bytes;
        if !proxy.is_out_of_sync() {
            let acknowledged_bytes = std::mem::take(&mut proxy.acknowledged_bytes);
            self.pushes.remove_waiting_proxy(connection, acknowledged_bytes, now);
        }
    }

    /// Records a change, its cause, and the time at which the source of the change noticed it. The affected proxies
    /// are updated after the debounce time.
    pub(crate) fn record_change(
        &mut self,
        affected_set: &AffectedSet,
        mesh: &Mesh,
        cause: ChangeCause,
        noticed_at: Instant,
        now: Instant,
    ) {
        self.newest_change.0 += 1;
        self.counters.changes += 1;
        self.change_log.record_change(RecordedChange {
            id: self.newest_change,
            cause,
            noticed_at,
            processed_at: now,
        });
        self.service_configs.mark_stale(affected_set);
        let affected_proxies = self.affected_proxies(affected_set, mesh);
        let pending = self.pending_changes.get_or_insert_with(|| PendingChanges {
            unsent_proxies: BTreeSet::new(),
            change_times: Vec::new(),
            first_change_time: now,
            last_change_time: now,
        });
        // The work of the later push counts now, so that it is charged to the connection that caused the change.
        for connection in affected_proxies {
            if pending.unsent_proxies.insert(connection) {
                let proxy = self.proxies.get(&connection);
                let units = proxy.map_or(0, |proxy| proxy.config_units);
                self.total_work =
                    self.total_work.saturating_add(UPDATE_UNITS.saturating_add(units));
            }
        }
        pending.last_change_time = now;
        if pending.change_times.len() < MAX_TIMED_CHANGES {
            pending.change_times.push(now);
        }
    }

    /// Returns the time at which recorded changes are sent; in the past while a push is in progress.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        if let Some(push_in_progress) = &self.push_in_progress {
            return Some(push_in_progress.started_at);
        }
        let Times { debounce, max_debounce, .. } = self.times;
        let pending = self.pending_changes.as_ref()?;
        Some((pending.last_change_time + debounce).min(pending.first_change_time + max_debounce))
    }

    /// Sends recorded changes to the affected proxies, one slice at a time, so that other work continues in
    /// between.
    pub(crate) fn publish(
        &mut self,
        mesh: &Mesh,
        grace_period: GracePeriod,
        now: Instant,
    ) -> SliceProgress {
        // Start a push of all pending changes, unless a push is in progress.
        if self.push_in_progress.is_none() {
            let Some(PendingChanges { unsent_proxies, change_times, .. }) =
                self.pending_changes.take()
            else {
                return SliceProgress::Complete;
            };
            let (change, affected_count) = (self.newest_change, unsent_proxies.len());
            let processed_proxies = BTreeSet::new();
            self.push_in_progress = Some(PushInProgress {
                change,
                unsent_proxies,
                processed_proxies,
                change_times,
                affected_count,
                recipient_count: 0,
                started_at: now,
            });
        }
        let work_limit = self.total_work.saturating_add(SLICE_UNITS);
        while self.total_work < work_limit {
            let next_connection = self
                .push_in_progress
                .as_mut()
                .and_then(|push_in_progress| push_in_progress.unsent_proxies.pop_first());
            let Some(connection) = next_connection else { break };
            let is_sent =
                self.send_config(connection, mesh, grace_period) == Some(PushOutcome::Sent);
            if let Some(push_in_progress) = &mut self.push_in_progress {
                push_in_progress.recipient_count += usize::from(is_sent);
                push_in_progress.processed_proxies.insert(connection);
            }
        }
        match self
            .push_in_progress
            .take_if(|push_in_progress| push_in_progress.unsent_proxies.is_empty())
        {
            Some(sent_push) => self.finish_push(sent_push),
            None => return SliceProgress::Incomplete,
        }
        SliceProgress::Complete
    }

    /// Records a push that has been sent to all affected proxies, to wait for its acknowledgments.
    fn finish_push(&mut self, push_in_progress: PushInProgress) {
        let PushInProgress {
            change,
            mut processed_proxies,
            change_times,
            affected_count,
            recipient_count,
            started_at,
            ..
        } = push_in_progress;
        let is_out_of_sync = |connection: &ConnectionId| {
            self.proxies.get(connection).is_some_and(ConnectedProxy::is_out_of_sync)
        };
        processed_proxies.retain(is_out_of_sync);
        self.service_configs.evict_unused();
        self.counters.push_recipients += recipient_count as u64;
        self.pushes.begin_push(
            change,
            change_times,
            SentPush {
                sent_at: started_at,
                affected_count,
                recipient_count,
                waiting_proxies: processed_proxies,
            },
        );
    }

    /// Sends a configuration to each proxy for which it differs from the last one sent, without a change of the mesh:
    /// at the end of the startup grace period.
    pub(crate) fn update_all(&mut self, mesh: &Mesh, grace_period: GracePeriod) {
        self.newest_change.0 += 1;
        let connections: Vec<ConnectionId> = self.proxies.keys().copied().collect();
        for connection in connections {
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
        // The response gets its own number, so that its acknowledgment is unambiguous.
        self.newest_change.0 += 1;
        self.send_config(connection, mesh, grace_period);
    }

    /// Compiles a slice of a proxy's configuration. For proxies with many new subscriptions, it is called
    /// repeatedly before the response.
    pub(crate) fn prepare_config(
        &mut self,
        connection: ConnectionId,
        mesh: &Mesh,
    ) -> SliceProgress {
        let Some(proxy) = self.proxies.get(&connection) else { return SliceProgress::Complete };
        let Some(workload) = mesh.workload(&proxy.workload) else { return SliceProgress::Complete };
        let compiled_before = self.service_configs.compiled_count();
        let is_complete = prepare_services(
            mesh,
            workload,
            &proxy.subscriptions,
            &proxy.queried_addresses,
            &mut self.service_configs,
        );
        self.charge_compilation(compiled_before);
        match is_complete {
            true => SliceProgress::Complete,
            false => SliceProgress::Incomplete,
        }
    }

    /// Returns the total work so far, in budget units. The difference of two results is the cost of the work in between.
    pub(crate) fn total_work(&self) -> u64 {
        self.total_work
    }

    fn charge_compilation(&mut self, compiled_before: u64) {
        let compiled = self.service_configs.compiled_count().saturating_sub(compiled_before);
        self.total_work =
            self.total_work.saturating_add(compiled.saturating_mul(SERVICE_CONFIG_UNITS));
    }

    /// Sends one proxy its configuration, if it differs from the last one sent. Returns `None` if the proxy is not
    /// connected or its workload does not exist.
    fn send_config(
        &mut self,
        connection: ConnectionId,
        mesh: &Mesh,
        grace_period: GracePeriod,
    ) -> Option<PushOutcome> {
        let proxy = self.proxies.get(&connection)?;
        let workload = mesh.workload(&proxy.workload)?;
        let compiled_before = self.service_configs.compiled_count();
        let mut services = used_services(workload, &proxy.subscriptions);
        let queried_addresses = proxy.queried_addresses.clone();
        let entries = address_entries(mesh, &queried_addresses, &mut self.service_configs);
        let queried_names = proxy.queried_names.clone();
        let queried_records = dns_records(mesh, &queried_names);
        services.extend(entries.services);
        let compiled_config = compile_config(mesh, workload, &services, &mut self.service_configs)
            .with_addresses(entries.by_address)
            .with_dns_records(queried_records);
        let unknown_endpoints = match grace_period {
            GracePeriod::Active => find_unknown_endpoints(mesh, workload, &compiled_config)
                .with_addresses(entries.unreported),
            GracePeriod::Ended => UnknownEndpoints::default(),
        };
        self.counters.compiled += 1;
        // A later change of any of these services affects the proxy.
        let dependencies = compiled_config
            .snapshot
            .services
            .keys()
            .chain(&compiled_config.absent)
            .chain(&entries.dependencies)
            .chain(&queried_names);
        self.index_services(connection, dependencies.cloned().collect());
        self.index_addresses(connection, queried_addresses);
        let change = self.newest_change;
        let snapshot = &compiled_config.snapshot;
        let resource_count =
            snapshot.services.len() + snapshot.addresses.len() + snapshot.names.len();
        let config_units =
            SNAPSHOT_UNITS.saturating_add((resource_count + compiled_config.absent.len()) as u64);
        self.total_work = self.total_work.saturating_add(config_units);
        self.charge_compilation(compiled_before);
        let proxy = self.proxies.get_mut(&connection);
        let outcome = proxy.map(|proxy| {
            proxy.config_units = config_units;
            proxy.send_if_changed(compiled_config, unknown_endpoints, change)
        });
        self.counters.pushes += u64::from(outcome == Some(PushOutcome::Sent));
        outcome
    }

    /// Returns the number of proxies with pending changes.
    pub(crate) fn pending_count(&self) -> usize {
        let pending =
            self.pending_changes.as_ref().map_or(0, |pending| pending.unsent_proxies.len());
        pending
            + self
                .push_in_progress
                .as_ref()
                .map_or(0, |push_in_progress| push_in_progress.unsent_proxies.len())
    }

    fn affected_proxies(&self, affected_set: &AffectedSet, mesh: &Mesh) -> BTreeSet<ConnectionId> {
        if affected_set.all_proxies {
            return self.proxies.keys().copied().collect();
        }
        let accounts = affected_set.accounts.iter();
        let clients = accounts.flat_map(|account| mesh.account_workloads(account));
        let workloads = affected_set.workloads.iter().chain(clients);
        let own_proxies = workloads.filter_map(|name| self.connections_by_workload.get(name));
        let services = affected_set.services.iter();
        let dependent_proxies =
            services.flat_map(|name| self.connections_by_service.values_for(name));
        let addresses = affected_set.addresses.iter();
        let querying_proxies =
            addresses.flat_map(|address| self.connections_by_address.values_for(address));
        own_proxies.chain(dependent_proxies).chain(querying_proxies).copied().collect()
    }

    fn index_addresses(&mut self, connection: ConnectionId, addresses: BTreeSet<IpAddr>) {
        let previous_addresses = self.queried_addresses.entry(connection).or_default();
        for removed in previous_addresses.difference(&addresses) {
            self.connections_by_address.remove(removed, &connection);
        }
        for new in addresses.difference(previous_addresses) {
            self.connections_by_address.insert(new, &connection);
        }
        *previous_addresses = addresses;
    }

    fn index_services(&mut self, connection: ConnectionId, services: BTreeSet<ServiceName>) {
        let previous_services = self.dependencies.entry(connection).or_default();
        for removed in previous_services.difference(&services) {
            self.connections_by_service.remove(removed, &connection);
        }
        for new in services.difference(previous_services) {
            self.connections_by_service.insert(new, &connection);
        }
        *previous_services = services;
    }
}

/// The cost of compiling a service configuration, in budget units. A unit is about a microsecond.
const SERVICE_CONFIG_UNITS: u64 = 16;
/// The cost of compiling a snapshot without resources, in budget units.
const SNAPSHOT_UNITS: u64 = 32;
/// The cost of sending an update to a proxy, including its connection, in budget units.
const UPDATE_UNITS: u64 = 128;

/// The work of one slice of a push, in budget units. It takes a few milliseconds.
const SLICE_UNITS: u64 = 4096;

/// The maximum number of changes per push with a measured convergence time; further changes of a burst are not measured.
const MAX_TIMED_CHANGES: usize = 1024;

#[cfg(test)]
mod tests;
