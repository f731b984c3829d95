//! Defines operators' queries to the state task and responds to them. Also publishes the values that other tasks watch.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use leno_discovery::{ChangeId, ConnectionId};
use leno_model::{Object, WorkloadName};
use leno_outside::MetricRequests;
use leno_telemetry::{AliasNames, ExpositionFormat};
use serde_json::Value;

use super::{ControlState, EventTime};
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
    /// The progress of the change with this number.
    Change(ChangeId),
    /// The progress of the newest changes.
    Changes,
    /// The traffic history of one service or route.
    History(PlotSubject),
    /// All metrics as text, optionally with alias names in addition.
    Metrics(ExpositionFormat, Option<AliasNames>),
    /// All metrics, added to these export requests.
    Points(Box<MetricRequests>),
    /// All objects of the mesh, for explanations.
    Objects,
    Policies,
    Proxies,
    /// The metrics addresses of all sidecars that this Prometheus can reach.
    ScrapeTargets(Scraper),
    Rejected,
    Routes,
    Services,
    /// The control plane that has the stream of a workload's sidecar.
    Sidecar(WorkloadName),
    Status,
    /// Current traffic rates.
    Traffic,
    Workloads,
}

/// The response to an operator query.
#[derive(Debug)]
pub(crate) enum AdminResponse {
    Json(Value),
    Objects(Vec<Object>),
    /// Metrics as text, and their format.
    Metrics(ExpositionFormat, String),
    Points(Box<MetricRequests>),
    Sidecar(SidecarLocation),
}

/// The location of a sidecar's stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SidecarLocation {
    /// This control plane.
    Here(ConnectionId),
    /// Another control plane, with its address if known.
    OtherReplica(Option<SocketAddr>),
    /// The sidecar is not connected to a known control plane.
    Disconnected,
    /// The workload does not exist.
    Unknown,
}

impl ControlState {
    /// Updates the values that other tasks watch.
    pub(super) fn update_outputs(&mut self, now: EventTime) {
        let status = Arc::new(self.report(now).status());
        self.outputs.status.send_if_modified(|published| {
            let has_changed = !is_same_except_age(published, &status);
            if has_changed {
                *published = status;
            }
            has_changed
        });
        self.publish_to_peers();
        self.publish_sidecar_facts();
        let registered_workloads: BTreeSet<WorkloadName> = self
            .mesh
            .workloads()
            .filter(|workload| self.mesh.is_registered(workload))
            .map(|workload| workload.name.clone())
            .collect();
        self.outputs.registered_workloads.send_if_modified(|published| {
            let has_changed = **published != registered_workloads;
            if has_changed {
                *published = Arc::new(registered_workloads);
            }
            has_changed
        });
        self.publish_replaced(now);
    }

    /// Publishes the workloads with a replaced sidecar that may join again.
    fn publish_replaced(&self, now: EventTime) {
        let grace_period_ended = self.startup_grace.grace_state() == GracePeriod::Ended;
        let is_absent = |name: &WorkloadName| {
            grace_period_ended
                && self.connected_proxies.connection_of_workload(name).is_none()
                && !self.presence.is_missing(name)
                && self
                    .mesh
                    .workload(name)
                    .is_some_and(|workload| !self.mesh.is_registered(workload))
        };
        self.replaced_rejections.publish_absent(is_absent, self.times.disconnect_grace, now.clock);
    }

    /// Publishes the current metrics destination.
    pub(super) fn publish_metrics_destination(&self) {
        let destination = &self.mesh.config().observability.metrics;
        self.outputs.metrics_destination.send_if_modified(|published| {
            let differs = published != destination;
            published.clone_from(destination);
            differs
        });
    }

    /// Returns the state from which reports are made.
    fn report(&self, now: EventTime) -> Report<'_> {
        Report {
            mesh: &self.mesh,
            connected_proxies: &self.connected_proxies,
            presence: &self.presence,
            startup_grace: &self.startup_grace,
            certifier: &self.certifier,
            diagnostics: &self.diagnostics,
            jwks_fetches: &self.jwks_fetches,
            peers: &self.peers,
            queues: self.queues,
            report_counters: self.history.counters,
            page_url: self.page_url.as_deref(),
            live_url: self.live_url.as_deref(),
            applications: &self.applications,
            supervised: self.supervised,
            kubernetes: self.kubernetes,
            now: now.clock,
            wall_time: now.wall_time,
        }
    }

    fn sidecar_location(&self, workload: &WorkloadName) -> SidecarLocation {
        if let Some(connection) = self.connected_proxies.connection_of_workload(workload) {
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
        let history_time = now.clock.duration_since(self.history_start);
        let json = match query {
            AdminQuery::Metrics(format, alias_names) => {
                let text = crate::metrics::render_metrics(
                    &report,
                    &self.connection_counters,
                    format,
                    alias_names,
                );
                return AdminResponse::Metrics(format, text);
            }
            AdminQuery::Points(mut requests) => {
                crate::metrics::visit_metrics(&report, &self.connection_counters, &mut *requests);
                return AdminResponse::Points(requests);
            }
            AdminQuery::Sidecar(workload) => {
                return AdminResponse::Sidecar(self.sidecar_location(&workload));
            }
            AdminQuery::Objects => return AdminResponse::Objects(self.mesh.explained_objects()),
            AdminQuery::RejectedJoins => serde_json::to_value(report.rejected_joins()),
            AdminQuery::Certificates => serde_json::to_value(report.certificate_statuses()),
            AdminQuery::Change(id) => serde_json::to_value(report.change_report(id)),
            AdminQuery::Changes => serde_json::to_value(report.newest_changes()),
            AdminQuery::History(subject) => {
                serde_json::to_value(self.history.subject_history(&subject, history_time))
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
                history_time,
                self.report_interval,
            )),
            AdminQuery::Workloads => serde_json::to_value(report.workload_statuses()),
        };
        // The status types can always be serialized.
        AdminResponse::Json(json.unwrap_or_default())
    }
}

/// True if two statuses differ at most in the age of the newest change.
fn is_same_except_age(previous_status: &Status, new_status: &Status) -> bool {
    let mut expected = previous_status.clone();
    if let (Some(expected_change), Some(new_change)) = (&mut expected.change, &new_status.change) {
        expected_change.age_ms = new_change.age_ms;
    }
    expected == *new_status
}
