//! Stores the traffic of the last hour, as sidecars reported it, by service, route and edge. An edge is a pair of a
//! source and the service that it calls.
//!
//! All tables are bounded, and entries expire. A restarted control plane begins with empty tables, and each of
//! several control planes has only the reports of its own sidecars. Times are durations since the start of the
//! history; the caller passes the current time as `now`.

mod match_counts;
mod rejections;
mod request_history;
mod step_ring;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leno_discovery::{Direction, TrafficReport, TrafficSeries};
use leno_model::{RouteKind, RouteName, ServiceAccount, ServiceName, WorkloadName};
use leno_telemetry::RecentTable;

use self::match_counts::MatchCounts;
use self::rejections::Rejections;
use self::request_history::{HISTORY_LENGTH, RequestHistory};
use self::step_ring::RequestBatch;
use crate::mesh::{AttachedRoute, Mesh, RouteAttachments};
use crate::status::{EdgeStatus, HistoryStatus, NamedRateStatus, SidecarTraffic, TrafficStatus};

/// Traffic reported by sidecars.
#[derive(Debug, Default)]
pub(crate) struct History {
    services: RecentTable<ServiceName, RequestHistory, MAX_SERVICES>,
    routes: RecentTable<RouteName, RequestHistory, MAX_ROUTES>,
    edges: RecentTable<(TrafficSource, ServiceName), RequestHistory, MAX_EDGES>,
    sidecars: BTreeMap<WorkloadName, LastReport>,
    /// The clients with a verified certificate of each workload.
    verified_clients: BTreeMap<WorkloadName, ClientTable>,
    match_counts: MatchCounts,
    rejections: Rejections,
    pub(crate) counters: ReportCounters,
}

/// The client accounts of a workload, each with the time of its last request.
type ClientTable = RecentTable<ServiceAccount, Duration, MAX_CLIENTS>;

/// Counters of traffic reports since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReportCounters {
    /// Reports received from sidecars.
    pub(crate) reports: u64,
    /// Series that were dropped: the sidecar had no room, they refer to missing objects, or this control plane
    /// evicted them for newer ones. Each counts once.
    pub(crate) dropped: u64,
}

/// The service or route of a plot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PlotSubject {
    Service(ServiceName),
    Route(RouteName),
}

/// The source of requests.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TrafficSource {
    /// A workload of this service.
    Service(ServiceName),
    /// A workload that belongs to no service.
    Workload(WorkloadName),
    /// A route of this service, which forwarded the requests.
    Route(ServiceName),
}

/// The last report of one sidecar.
#[derive(Debug)]
struct LastReport {
    /// The time at which the report arrived.
    received_at: Duration,
    /// The period that the report covers.
    period: Duration,
    /// The CPU time that the sidecar used in the period.
    cpu_time: Duration,
    /// The resident memory of the sidecar without file-backed pages, in KiB.
    memory_kib: u64,
    /// The number of requests that the workload received in the period.
    inbound_requests: u64,
    /// The number of requests that the workload sent in the period.
    outbound_requests: u64,
}

impl History {
    /// Processes a report of a workload's sidecar, which arrived at the time `now`. Reports of unknown workloads are
    /// ignored.
    pub(crate) fn record_report(
        &mut self,
        mesh: &Mesh,
        name: &WorkloadName,
        report: &TrafficReport,
        now: Duration,
    ) {
        if mesh.workload(name).is_none() {
            return;
        }
        self.counters.reports += 1;
        self.counters.dropped = self.counters.dropped.saturating_add(report.overflowed.into());
        let period_start = now.saturating_sub(report.span);
        let source = find_source(mesh, name);
        let (mut inbound_requests, mut outbound_requests) = (0_u64, 0_u64);
        for series in &report.series {
            let is_stored = match series.direction {
                Direction::Inbound => {
                    inbound_requests = inbound_requests.saturating_add(series.request_count());
                    self.record_verified_client(series, name, now);
                    true
                }
                Direction::Outbound => {
                    outbound_requests = outbound_requests.saturating_add(series.request_count());
                    self.record_outbound(mesh, &source, series, period_start, now)
                }
            };
            // A series without a service is the sidecar's overflow series, which `overflowed` already counts.
            let is_already_counted = series.service.is_none() && report.overflowed > 0;
            self.counters.dropped += u64::from(!is_stored && !is_already_counted);
        }
        self.counters.dropped += self.match_counts.record_report(mesh, &report.rules, now);
        self.counters.dropped += self.rejections.record_report(mesh, name, report, now);
        let last_report = LastReport {
            received_at: now,
            period: report.span,
            cpu_time: report.cpu,
            memory_kib: report.memory_kib,
            inbound_requests,
            outbound_requests,
        };
        self.sidecars.insert(name.clone(), last_report);
    }

    /// Records the client of received requests with a verified certificate: client and server used mutual TLS.
    fn record_verified_client(
        &mut self,
        series: &TrafficSeries,
        server: &WorkloadName,
        now: Duration,
    ) {
        let Some(client) = &series.peer else { return };
        let clients = self.verified_clients.entry(server.clone()).or_default();
        let evicted = clients.insert(client.clone(), now);
        self.counters.dropped += u64::from(evicted.is_some());
    }

    /// Counts requests that a client's sidecar sent, including those that did not reach the server. Returns false if they
    /// were not counted for the service or the route of the series, because it does not exist.
    fn record_outbound(
        &mut self,
        mesh: &Mesh,
        source: &TrafficSource,
        series: &TrafficSeries,
        period_start: Duration,
        now: Duration,
    ) -> bool {
        let service = series.service.as_ref().filter(|name| mesh.service(name).is_some());
        let Some(service) = service else { return false };
        let batch = RequestBatch {
            requests: series.request_count(),
            failed: series.failed,
            durations: series.durations.iter().copied().collect(),
        };
        let add_batch = |history: &mut RequestHistory| history.add(now, &batch, &series.reasons);
        let new_history = || RequestHistory::new(period_start);
        let mut evicted_count = 0;
        let mut requested_services = vec![service];
        let mut edges = Vec::new();
        match series.route.as_ref().and_then(|route| route_parent(mesh, route, service)) {
            // The client requested the parent, and the route forwarded to the service.
            Some(parent) => {
                requested_services.push(parent);
                edges.push((source.clone(), parent.clone()));
                edges.push((TrafficSource::Route(parent.clone()), service.clone()));
            }
            None => edges.push((source.clone(), service.clone())),
        }
        for service in requested_services {
            let (history, evicted_entry) = self.services.entry(service.clone(), new_history);
            add_batch(history);
            evicted_count += u64::from(evicted_entry.is_some());
        }
        for edge in edges {
            let (history, evicted_entry) = self.edges.entry(edge, new_history);
            add_batch(history);
            evicted_count += u64::from(evicted_entry.is_some());
        }
        // A sidecar may report any name: only names of the mesh are stored.
        let route = series.route.as_ref().filter(|route| has_route(mesh, route));
        if let Some(route) = route {
            let (history, evicted_entry) = self.routes.entry(route.clone(), new_history);
            add_batch(history);
            evicted_count += u64::from(evicted_entry.is_some());
        }
        self.counters.dropped += evicted_count;
        route.is_some() || series.route.is_none()
    }

    /// Evicts entries without a report for an hour, and those of objects that left the mesh.
    pub(crate) fn evict_expired(&mut self, mesh: &Mesh, now: Duration) {
        let exists = |service: &ServiceName| mesh.service(service).is_some();
        let is_fresh = |history: &RequestHistory| history.last_request + HISTORY_LENGTH > now;
        self.services.retain(|service, history| exists(service) && is_fresh(history));
        self.routes.retain(|route, history| has_route(mesh, route) && is_fresh(history));
        self.edges.retain(|(from, to), history| {
            let source_exists = match from {
                TrafficSource::Service(from) | TrafficSource::Route(from) => exists(from),
                TrafficSource::Workload(from) => mesh.workload(from).is_some(),
            };
            source_exists && exists(to) && is_fresh(history)
        });
        self.match_counts.evict_expired(mesh, now);
        self.rejections.evict_expired(mesh, now);
        self.sidecars.retain(|workload, _| mesh.workload(workload).is_some());
        self.verified_clients.retain(|server, clients| {
            clients.retain(|_, last_request| *last_request + VERIFICATION_VALIDITY > now);
            mesh.workload(server).is_some() && !clients.is_empty()
        });
    }

    /// Returns the current traffic status.
    pub(crate) fn traffic_status(
        &self,
        mesh: &Mesh,
        now: Duration,
        report_interval: Option<Duration>,
    ) -> TrafficStatus {
        let named_rates = |name: String, history: &RequestHistory| NamedRateStatus {
            name,
            rates: history.current_rates(now),
        };
        let mut account_index = AccountIndex {
            mesh,
            history: self,
            now,
            accounts_by_service: BTreeMap::new(),
            recent_clients_by_service: BTreeMap::new(),
        };
        let mut edge_status = |(from, to), history: &RequestHistory| {
            // A server reports the account of a client, not the workload, so accounts are compared.
            let clients = account_index.source_accounts(from);
            let mtls = !clients.is_disjoint(account_index.recent_client_accounts(to));
            let (kind, from) = from.kind_and_name();
            let (kind, to) = (kind.to_owned(), ServiceName::to_string(to));
            EdgeStatus { kind, from, to, mtls, rates: history.current_rates(now) }
        };
        let fresh_for = report_interval.unwrap_or_default().saturating_mul(FRESH_REPORT_INTERVALS);
        let sidecars = self.sidecars.iter();
        TrafficStatus {
            report_interval_ms: report_interval.map(|report_interval| {
                u64::try_from(report_interval.as_millis()).unwrap_or(u64::MAX)
            }),
            reports: self.counters.reports,
            series_dropped: self.counters.dropped,
            services: self
                .services
                .iter()
                .map(|(name, history)| named_rates(name.to_string(), history))
                .collect(),
            routes: self
                .routes
                .iter()
                .map(|(name, history)| named_rates(name.to_string(), history))
                .collect(),
            edges: self
                .edges
                .iter()
                .map(|((from, to), history)| edge_status((from, to), history))
                .collect(),
            rules: self.match_counts.rule_statuses(now),
            rejections: self.rejections.rejection_statuses(&self.services, now),
            sidecars: sidecars
                .map(|(name, last_report)| last_report.sidecar_traffic(name, now, fresh_for))
                .collect(),
        }
    }

    /// Returns the rates, plots and failure reasons of one service or route; `None` if it has no traffic.
    pub(crate) fn subject_history(
        &self,
        subject: &PlotSubject,
        now: Duration,
    ) -> Option<HistoryStatus> {
        let history = match subject {
            PlotSubject::Service(name) => self.services.get(name)?,
            PlotSubject::Route(name) => self.routes.get(name)?,
        };
        Some(HistoryStatus {
            rates: history.current_rates(now),
            plots: history.plots(now),
            reasons: history.reason_counts(),
            recent_reasons: history.recent_reasons(now),
        })
    }
}

/// The accounts of some workloads.
type Accounts<'a> = BTreeSet<&'a ServiceAccount>;

/// The accounts of services, and the accounts that called them, each computed at most once.
struct AccountIndex<'a> {
    mesh: &'a Mesh,
    history: &'a History,
    now: Duration,
    accounts_by_service: BTreeMap<&'a ServiceName, Accounts<'a>>,
    recent_clients_by_service: BTreeMap<&'a ServiceName, Accounts<'a>>,
}

impl<'a> AccountIndex<'a> {
    fn service_accounts(&mut self, service: &'a ServiceName) -> &Accounts<'a> {
        let mesh = self.mesh;
        let accounts =
            || mesh.service_workloads(service).map(|workload| &workload.account).collect();
        self.accounts_by_service.entry(service).or_insert_with(accounts)
    }

    /// Returns the accounts with recent requests at the workloads of a service, with a verified certificate.
    fn recent_client_accounts(&mut self, service: &'a ServiceName) -> &Accounts<'a> {
        let (mesh, history, now) = (self.mesh, self.history, self.now);
        let recent_clients = || {
            let servers = mesh.service_workloads(service);
            let clients = servers
                .filter_map(|server| history.verified_clients.get(&server.name))
                .flat_map(RecentTable::iter);
            let recent =
                clients.filter(|(_, last_request)| **last_request + VERIFICATION_VALIDITY > now);
            recent.map(|(client, _)| client).collect()
        };
        self.recent_clients_by_service.entry(service).or_insert_with(recent_clients)
    }

    /// Returns the accounts that may be the source of an edge. Empty for a route: it forwards within the
    /// client's sidecar.
    fn source_accounts(&mut self, source: &'a TrafficSource) -> Accounts<'a> {
        match source {
            TrafficSource::Service(service) => self.service_accounts(service).clone(),
            TrafficSource::Workload(name) => {
                self.mesh.workload(name).map(|workload| &workload.account).into_iter().collect()
            }
            TrafficSource::Route(_) => Accounts::new(),
        }
    }
}

impl TrafficSource {
    fn kind_and_name(&self) -> (&'static str, String) {
        match self {
            Self::Service(name) => ("service", name.to_string()),
            Self::Workload(name) => ("workload", name.to_string()),
            Self::Route(name) => ("route", name.to_string()),
        }
    }
}

impl LastReport {
    /// Returns the rates of a sidecar. Idle sidecars do not report: the rates of an old report are 0.
    fn sidecar_traffic(
        &self,
        workload: &WorkloadName,
        now: Duration,
        fresh_for: Duration,
    ) -> SidecarTraffic {
        // A period near zero would give an arbitrarily high rate.
        let seconds = self.period.as_secs_f64().max(1.0);
        let is_fresh = now.saturating_sub(self.received_at) <= fresh_for;
        let rate = |amount: f64| if is_fresh { amount / seconds } else { 0.0 };
        SidecarTraffic {
            workload: workload.to_string(),
            cpu_cores: rate(self.cpu_time.as_secs_f64()),
            memory_kib: self.memory_kib,
            inbound_per_second: rate(self.inbound_requests as f64),
            outbound_per_second: rate(self.outbound_requests as f64),
        }
    }
}

/// Returns the source under which a workload's requests are counted: the service of the workload that has the fewest
/// workloads, or the workload itself if it belongs to no service.
fn find_source(mesh: &Mesh, workload: &WorkloadName) -> TrafficSource {
    let services = mesh.services_of(workload).map(|service| &service.name);
    match services.min_by_key(|service| mesh.service_workloads(service).count()) {
        Some(service) => TrafficSource::Service(service.clone()),
        None => TrafficSource::Workload(workload.clone()),
    }
}

/// True if a route or split of the mesh has this name.
fn has_route(mesh: &Mesh, route: &RouteName) -> bool {
    let request_kinds = [RouteKind::Http, RouteKind::Grpc];
    request_kinds.into_iter().any(|kind| mesh.http_routes().has_route(&(kind, route.clone())))
        || mesh.traffic_splits().has_route(route)
        || mesh.tls_routes().has_route(route)
        || mesh.gateway_tcp_routes().has_route(route)
}

/// Returns the service that a client requested when `route` forwarded the request to `service`. Returns `None` if the
/// route has several parent services, because sidecars do not report which of them was requested.
fn route_parent<'a>(
    mesh: &'a Mesh,
    route: &RouteName,
    service: &ServiceName,
) -> Option<&'a ServiceName> {
    fn attached_parents<'a, K: Ord + Clone, R: AttachedRoute>(
        routes: &'a RouteAttachments<K, R>,
        service: &ServiceName,
        is_same_route: impl Fn(&R) -> bool,
    ) -> impl Iterator<Item = &'a ServiceName> {
        let parents = routes.routes_to(service).filter(move |route| is_same_route(route));
        parents.flat_map(|route| route.parents()).map(|parent| &parent.service)
    }
    let mut parents =
        attached_parents(mesh.http_routes(), service, |candidate| candidate.name == *route)
            .chain(attached_parents(mesh.traffic_splits(), service, |candidate| {
                candidate.name == *route
            }))
            .chain(attached_parents(mesh.tls_routes(), service, |candidate| {
                candidate.rule.route == *route
            }))
            .chain(attached_parents(mesh.gateway_tcp_routes(), service, |candidate| {
                candidate.rule.route == *route
            }));
    let parent = parents.next()?;
    (parent != service && parents.all(|candidate| candidate == parent)).then_some(parent)
}

/// Maximum services with a history, of about 2.6 KiB each while busy. An evicted history counts as a dropped series.
const MAX_SERVICES: usize = 1024;
/// Maximum routes with a history.
const MAX_ROUTES: usize = 512;
/// Maximum edges with a history.
const MAX_EDGES: usize = 2048;

/// Maximum client accounts kept per workload.
const MAX_CLIENTS: usize = 64;
/// The time after its last verified request for which a client counts as verified.
const VERIFICATION_VALIDITY: Duration = Duration::from_secs(300);

/// The number of report intervals after which a sidecar without a report counts as idle.
const FRESH_REPORT_INTERVALS: u32 = 3;

#[cfg(test)]
mod tests;
