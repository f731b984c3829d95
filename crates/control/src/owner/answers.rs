//! Responses of the mesh owner: watched values and operator queries.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use leno_discovery::{ChangeId, ConnectionId};
use leno_model::{Object, WorkloadName};
use leno_outside::Pages;
use leno_telemetry::{Form, Names};
use serde_json::Value;

use super::{Now, Owner};
use crate::history::Subject;
use crate::publish::Settling;
use crate::report::Report;
use crate::scrape_targets::{self, Scraper};
use crate::status::Status;

/// An operator query.
#[derive(Debug)]
pub(crate) enum Question {
    Certificates,
    /// Joins that were rejected.
    RejectedJoins,
    /// The progress of this change.
    Change(ChangeId),
    /// The newest changes.
    Changes,
    /// The history of one service, route or edge.
    History(Subject),
    /// All metrics as text, optionally with alias names.
    Metrics(Form, Option<Names>),
    /// All metrics, collected into these pages.
    Points(Box<Pages>),
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
pub(crate) enum Answer {
    Json(Value),
    Objects(Vec<Object>),
    /// Metrics as text, in a format.
    Metrics(Form, String),
    Points(Box<Pages>),
    Sidecar(SidecarPlace),
}

/// The control plane that has the stream of a sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SidecarPlace {
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
    pub(super) fn publish_state(&mut self, now: Now) {
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
    fn publish_replaced(&self, now: Now) {
        let has_settled = self.start.grace_state() == Settling::No;
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
        let wanted = &self.mesh.config().sight.metrics;
        self.sent.metrics.send_if_modified(|known| {
            let differs = known != wanted;
            known.clone_from(wanted);
            differs
        });
    }

    fn report(&self, now: Now) -> Report<'_> {
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

    fn sidecar_place(&self, workload: &WorkloadName) -> SidecarPlace {
        if let Some(connection) = self.connected.of_workload(workload) {
            return SidecarPlace::Here(connection);
        }
        match self.peers.newest_registration(workload) {
            Some((peer, _)) => SidecarPlace::OtherReplica(self.peers.peer_address(peer)),
            None if self.mesh.workload(workload).is_some() => SidecarPlace::Disconnected,
            None => SidecarPlace::Unknown,
        }
    }

    pub(super) fn handle_query(&self, question: Question, now: Now) -> Answer {
        let report = self.report(now);
        let at = now.clock.duration_since(self.began);
        let json = match question {
            Question::Metrics(form, names) => {
                let page = crate::metrics::render_metrics(&report, &self.gauges, form, names);
                return Answer::Metrics(form, page);
            }
            Question::Points(mut pages) => {
                crate::metrics::read(&report, &self.gauges, &mut *pages);
                return Answer::Points(pages);
            }
            Question::Sidecar(workload) => return Answer::Sidecar(self.sidecar_place(&workload)),
            Question::Objects => return Answer::Objects(self.mesh.explained_objects()),
            Question::RejectedJoins => serde_json::to_value(report.rejected_joins()),
            Question::Certificates => serde_json::to_value(report.certificate_statuses()),
            Question::Change(id) => serde_json::to_value(report.change_report(id)),
            Question::Changes => serde_json::to_value(report.newest_changes()),
            Question::History(subject) => {
                serde_json::to_value(self.history.subject_plots(&subject, at))
            }
            Question::Policies => serde_json::to_value(report.policy_statuses()),
            Question::Proxies => serde_json::to_value(report.proxy_statuses()),
            Question::ScrapeTargets(scraper) => {
                Ok(scrape_targets::target_groups(&report.proxy_statuses(), scraper))
            }
            Question::Rejected => Ok(report.diagnostics_json()),
            Question::Routes => serde_json::to_value(report.route_statuses()),
            Question::Services => serde_json::to_value(report.service_statuses()),
            Question::Status => serde_json::to_value(report.status()),
            Question::Traffic => serde_json::to_value(self.history.traffic_status(
                &self.mesh,
                at,
                self.report_interval,
            )),
            Question::Workloads => serde_json::to_value(report.workload_statuses()),
        };
        Answer::Json(json.unwrap_or_default())
    }
}

fn same_but_for_age(one: &Status, other: &Status) -> bool {
    let mut aged = one.clone();
    if let (Some(aged), Some(other)) = (&mut aged.change, &other.change) {
        aged.age_ms = other.age_ms;
    }
    aged == *other
}
