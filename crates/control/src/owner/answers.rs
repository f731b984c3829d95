//! What the owner of the mesh tells: those who watch, and operators who ask.

use std::collections::BTreeSet;
use std::sync::Arc;

use leno_model::WorkloadName;

use super::{Answer, Now, Owner, Question};
use crate::report::Report;
use crate::status::Status;

impl Owner {
    pub(super) fn tell(&mut self, now: Now) {
        let status = Arc::new(self.report(now).status());
        self.told.status.send_if_modified(|last| {
            let news = !same_but_for_age(last, &status);
            if news {
                *last = status;
            }
            news
        });
        self.tell_peers();
        let registered = self.mesh.workloads().filter(|w| self.mesh.is_registered(w));
        let registered: BTreeSet<WorkloadName> = registered.map(|w| w.name.clone()).collect();
        self.told.registered.send_if_modified(|last| {
            let news = **last != registered;
            if news {
                *last = Arc::new(registered);
            }
            news
        });
    }

    fn report(&self, now: Now) -> Report<'_> {
        Report {
            mesh: &self.mesh,
            audience: &self.audience,
            presence: &self.presence,
            start: &self.start,
            certifier: &self.certifier,
            remarks: &self.remarks,
            keys: &self.keys,
            peers: &self.peers,
            queues: self.queues,
            history: self.history.tally,
            page: self.page.as_deref(),
            live: self.live.as_deref(),
            now: now.clock,
            wall: now.wall,
        }
    }

    pub(super) fn answer(&self, question: Question, now: Now) -> Answer {
        let report = self.report(now);
        let at = now.clock.duration_since(self.began);
        let json = match question {
            Question::Metrics(form, names) => {
                let page = crate::metrics::expose(&report, &self.gauges, (form, names));
                return Answer::Metrics(form, page);
            }
            Question::Objects => return Answer::Objects(self.mesh.explained()),
            Question::Certificates => serde_json::to_value(report.certificates()),
            Question::Change(id) => serde_json::to_value(report.change(id)),
            Question::Changes => serde_json::to_value(report.changes()),
            Question::History(subject) => serde_json::to_value(self.history.plots(&subject, at)),
            Question::Policies => serde_json::to_value(report.policies()),
            Question::Proxies => serde_json::to_value(report.proxies()),
            Question::Rejected => Ok(report.rejected()),
            Question::Routes => serde_json::to_value(report.routes()),
            Question::Services => serde_json::to_value(report.services()),
            Question::Status => serde_json::to_value(report.status()),
            Question::Traffic => {
                serde_json::to_value(self.history.status(&self.mesh, at, self.report_every))
            }
            Question::Workloads => serde_json::to_value(report.workloads()),
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
