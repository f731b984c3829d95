//! Responses of the mesh owner: watched values and operator queries.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use leno_discovery::{ChangeId, ConnectionId};
use leno_model::{Object, WorkloadName};
use leno_outside::MetricRequests;
use leno_telemetry::{AliasNames, ExpositionFormat};
use serde_json::Value;

use super::{EventTime, Owner};
use crate::history::PlotSubject;
use crate::publish::GracePeriod;
use crate::report::Report;
use crate::scrape_targets::{self, Scraper};
use crate::status::Status;

/// An operator query.
#[derive(Debug)]
pub(crate) enum AdminQuery {
    Certificates,
    /// Joins that were rejected.
    RejectedJoins,
    /// The progress of this change.
    Change(ChangeId),
    /// The newest changes.
    Changes,
    /// The history of one service, route or edge.
    History(PlotSubject),
    /// All metrics as text, optionally with alias names.
    Metrics(ExpositionFormat, Option<AliasNames>),
    /// All metrics, collected into these pages.
    Points(Box<MetricRequests>),
    /// All objects in force.
    Objects,
    Policies,
    Proxies,
    /// The metrics addresses of all sidecars that this Prometheus can reach.
    ScrapeTargets(Scraper),
    Rejected,
    Routes,
    Services,
    /// The location of the stream of a workload's sidecar.
    Sidecar(WorkloadName),
    Status,
    /// Current rates.
    Traffic,
    Workloads,
}

/// The response to an operator query.
#[derive(Debug)]
pub(crate) enum AdminResponse {
    Json(Value),
    Objects(Vec<Object>),
    /// Metrics as text, in a format.
    Metrics(ExpositionFormat, String),
    Points(Box<MetricRequests>),
    Sidecar(SidecarLocation),
}

/// The control plane that has the stream of a sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SidecarLocation {
    /// This control plane.
    Here(ConnectionId),
    /// Another control plane, with its address if known.
    OtherReplica(Option<SocketAddr>),
    /// No known control plane.
    Disconnected,
    /// The workload does not exist.
    Unknown,
}

impl Owner {
    pub(super) fn publish_state(&mut self, now: EventTime) {
        let status = Arc::new(self.report(now).status());
        self.sent.status.send_if_modified(|last| {
            let has_changed = !same_but_for_age(last, &status);
            if has_changed {
                *last = status;
            }
            has_changed
        });
        self.tell_peers();
        self.publish_sidecar_facts();
        let registered = self.mesh.workloads().filter(|w| self.mesh.is_registered(w));
        let registered: BTreeSet<WorkloadName> = registered.map(|w| w.name.clone()).collect();
        self.sent.registered.send_if_modified(|last| {
            let has_changed = **last != registered;
            if has_changed {
                *last = Arc::new(registered);
            }
            has_changed
        });
        self.publish_replaced(now);
    }

    /// Publishes the workloads with a replaced sidecar that may join again.
    fn publish_replaced(&self, now: EventTime) {
        let has_settled = self.start.grace_state() == GracePeriod::No;
        let is_absent = |name: &WorkloadName| {
            has_settled
                && self.connected.of_workload(name).is_none()
                && !self.presence.is_missing(name)
                && self.mesh.workload(name).is_some_and(|found| !self.mesh.is_registered(found))
        };
        self.replaced.publish_absent(is_absent, self.times.grace, now.clock);
    }

    /// Publishes the current metrics destination.
    pub(super) fn want_metrics(&self) {
        let wanted = &self.mesh.config().observability.metrics;
        self.sent.metrics.send_if_modified(|known| {
            let differs = known != wanted;
            known.clone_from(wanted);
            differs
        });
    }

    fn report(&self, now: EventTime) -> Report<'_> {
        Report {
            mesh: &self.mesh,
            connected: &self.connected,
            presence: &self.presence,
            start: &self.start,
            certifier: &self.certifier,
            diagnostics: &self.diagnostics,
            keys: &self.keys,
            peers: &self.peers,
            queues: self.queues,
            history: self.history.tally,
            page: self.page.as_deref(),
            live: self.live.as_deref(),
            applications: &self.applications,
            supervised: self.supervised,
            kubernetes: self.kubernetes,
            now: now.clock,
            wall: now.wall,
        }
    }

    fn sidecar_place(&self, workload: &WorkloadName) -> SidecarLocation {
        if let Some(connection) = self.connected.of_workload(workload) {
            return SidecarLocation::Here(connection);
        }
        match self.peers.newest_registration(workload) {
            Some((peer, _)) => SidecarLocation::OtherReplica(self.peers.peer_address(peer)),
            None if self.mesh.workload(workload).is_some() => SidecarLocation::Disconnected,
            None => SidecarLocation::Unknown,
        }
    }

    pub(super) fn handle_query(&self, query: AdminQuery, now: EventTime) -> AdminResponse {
        let report = self.report(now);
        let at = now.clock.duration_since(self.began);
        let json = match query {
            AdminQuery::Metrics(form, names) => {
                let page = crate::metrics::render_metrics(&report, &self.gauges, form, names);
                return AdminResponse::Metrics(form, page);
            }
            AdminQuery::Points(mut pages) => {
                crate::metrics::read(&report, &self.gauges, &mut *pages);
                return AdminResponse::Points(pages);
            }
            AdminQuery::Sidecar(workload) => {
                return AdminResponse::Sidecar(self.sidecar_place(&workload));
            }
            AdminQuery::Objects => return AdminResponse::Objects(self.mesh.explained_objects()),
            AdminQuery::RejectedJoins => serde_json::to_value(report.rejected_joins()),
            AdminQuery::Certificates => serde_json::to_value(report.certificate_statuses()),
            AdminQuery::Change(id) => serde_json::to_value(report.change_report(id)),
            AdminQuery::Changes => serde_json::to_value(report.newest_changes()),
            AdminQuery::History(subject) => {
                serde_json::to_value(self.history.subject_plots(&subject, at))
            }
            AdminQuery::Policies => serde_json::to_value(report.policy_statuses()),
            AdminQuery::Proxies => serde_json::to_value(report.proxy_statuses()),
            AdminQuery::ScrapeTargets(scraper) => {
                Ok(scrape_targets::target_groups(&report.proxy_statuses(), scraper))
            }
            AdminQuery::Rejected => Ok(report.diagnostics_json()),
            AdminQuery::Routes => serde_json::to_value(report.route_statuses()),
            AdminQuery::Services => serde_json::to_value(report.service_statuses()),
            AdminQuery::Status => serde_json::to_value(report.status()),
            AdminQuery::Traffic => serde_json::to_value(self.history.traffic_status(
                &self.mesh,
                at,
                self.report_interval,
            )),
            AdminQuery::Workloads => serde_json::to_value(report.workload_statuses()),
        };
        AdminResponse::Json(json.unwrap_or_default())
    }
}

fn same_but_for_age(one: &Status, other: &Status) -> bool {
    let mut aged = one.clone();
    if let (Some(aged), Some(other)) = (&mut aged.change, &other.change) {
        aged.age_ms = other.age_ms;
    }
    aged == *other
}
