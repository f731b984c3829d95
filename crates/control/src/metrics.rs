//! What the control plane counts, in the Prometheus text format 0.0.4 or in OpenMetrics.

use std::fmt::{Display, Write};
use std::time::Duration;

use leno_telemetry::names::Metric;
use leno_telemetry::names::control::{
    ALIASES, APPLIED, CERTIFICATES, CERTIFICATES_REFUSED, CHANGES, COMPILED, CONNECTIONS_REFUSED,
    CONVERGENCE, DELTA_BYTES, KEY_READINGS, KEY_SOURCES, OFFERED, PROXIES, PROXIES_BEHIND, QUEUES,
    RECEIVED, REFUSED, REJECTED, REPORTS, SENT, SERIES_FOLDED, SERVICES, TOUCHED, WORKLOADS,
};
use leno_telemetry::{Form, Histogram, Names};

use crate::report::Report;
use crate::server::Gauges;

/// Writes all metrics of the control plane, and what dashboards of another product ask for.
pub(crate) fn expose(
    report: &Report<'_>,
    gauges: &Gauges,
    (form, names): (Form, Option<Names>),
) -> String {
    let status = report.status();
    let tally = report.audience.tally;
    let certifier = report.certifier;
    let mut page = Page { form, out: String::new() };
    let one = |page: &mut Page, metric: Metric, value: &dyn Display| {
        page.header(metric);
        page.line(metric.name, value);
    };
    one(&mut page, WORKLOADS, &status.workloads);
    one(&mut page, SERVICES, &status.services);
    one(&mut page, PROXIES, &status.proxies);
    one(&mut page, PROXIES_BEHIND, &status.behind);
    one(&mut page, REJECTED, &status.rejected);
    one(&mut page, CHANGES, &tally.changes);
    one(&mut page, COMPILED, &tally.compiled);
    one(&mut page, OFFERED, &tally.offered);
    one(&mut page, APPLIED, &tally.applied);
    one(&mut page, REFUSED, &tally.refused);
    one(&mut page, SENT, &gauges.sent());
    one(&mut page, RECEIVED, &gauges.received());
    one(&mut page, CERTIFICATES, &certifier.issued);
    one(&mut page, CERTIFICATES_REFUSED, &certifier.refused);
    page.header(CONNECTIONS_REFUSED);
    let name = CONNECTIONS_REFUSED.name;
    for (reason, count) in gauges.refused() {
        page.line(&format!("{name}{{reason=\"{reason}\"}}"), &count);
    }
    let convergence = report.audience.rounds.convergence();
    page.header(CONVERGENCE);
    page.histogram(CONVERGENCE.name, convergence);
    one(&mut page, TOUCHED, &tally.touched);
    one(&mut page, DELTA_BYTES, &tally.delta_bytes);
    one(&mut page, REPORTS, &report.history.reports);
    one(&mut page, SERIES_FOLDED, &report.history.folded);
    keys(&mut page, report);
    queues(&mut page, report);
    if let Some(names) = names {
        aliases(&mut page, names, (report, gauges));
    }
    page.out.push_str(form.end());
    page.out
}

/// What is the same there and here, by its name there.
fn aliases(page: &mut Page, names: Names, (report, gauges): (&Report<'_>, &Gauges)) {
    let tally = report.audience.tally;
    for alias in ALIASES {
        let name = format!("{}_{}", names.mesh(), alias.name);
        let kind = alias.kind.as_str();
        let header =
            format!("# HELP {name} An alias: see docs/metrics.md.\n# TYPE {name} {kind}\n");
        page.out.push_str(&header);
        let one: u64 = match alias.name {
            "proxy_connect_count" => report.status().proxies as u64,
            "cert_issued_count" => report.certifier.issued,
            "events_queued" => report.queues.updates as u64,
            "resource_namespace_count" => report.namespaces() as u64,
            "proxy_broadcast_event_count" => tally.changes,
            "proxy_response_send_success_count" => tally.offered,
            "proxy_response_send_error_count" => tally.refused,
            "proxy_config_update_time" => {
                page.histogram(&name, report.audience.rounds.convergence());
                continue;
            }
            "error_err_code_count" => {
                for (reason, count) in gauges.refused() {
                    page.line(&format!("{name}{{err_code=\"{reason}\"}}"), &count);
                }
                continue;
            }
            _ => {
                page.line(&format!("{name}{{version=\"{}\"}}", env!("CARGO_PKG_VERSION")), &1);
                continue;
            }
        };
        page.line(&name, &one);
    }
}

fn keys(page: &mut Page, report: &Report<'_>) {
    page.header(KEY_SOURCES);
    let (sources, without) = report.key_sources();
    for (state, count) in
        [("all", sources), ("failing", report.keys.failing()), ("without", without)]
    {
        page.line(&format!("{}{{state=\"{state}\"}}", KEY_SOURCES.name), &count);
    }
    page.header(KEY_READINGS);
    let readings = report.keys;
    for (result, count) in
        [("changed", readings.changed), ("same", readings.same), ("failed", readings.failed)]
    {
        page.line(&format!("{}{{result=\"{result}\"}}", KEY_READINGS.name), &count);
    }
}

fn queues(page: &mut Page, report: &Report<'_>) {
    page.header(QUEUES);
    let name = QUEUES.name;
    for (queue, depth) in [
        ("updates", report.queues.updates),
        ("events", report.queues.events),
        ("questions", report.queues.questions),
        ("signatures", report.certifier.under_way()),
        ("due", report.audience.due()),
        ("rounds", report.audience.rounds.open()),
    ] {
        page.line(&format!("{name}{{queue=\"{queue}\"}}"), &depth);
    }
}

/// Where convergence is cut into buckets: a quiet time is 20 ms, and half a minute ends a stream.
const LIMITS: [Duration; 12] = [
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2500),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
];

struct Page {
    form: Form,
    out: String,
}

impl Page {
    fn header(&mut self, metric: Metric) {
        self.out.push_str(&self.form.header(&metric));
    }

    fn histogram(&mut self, name: &str, histogram: &Histogram) {
        for (limit, below) in histogram.cumulative(&LIMITS) {
            self.line(&format!("{name}_bucket{{le=\"{}\"}}", limit.as_secs_f64()), &below);
        }
        self.line(&format!("{name}_bucket{{le=\"+Inf\"}}"), &histogram.count());
        self.line(&format!("{name}_sum"), &histogram.sum().as_secs_f64());
        self.line(&format!("{name}_count"), &histogram.count());
    }

    fn line(&mut self, name: &str, value: &dyn Display) {
        // Writing to a `String` cannot fail.
        writeln!(self.out, "{name} {value}").unwrap_or_default();
    }
}

#[cfg(test)]
mod tests;
