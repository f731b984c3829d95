//! The control plane's own metrics, for exposition and for export.

use std::time::Duration;

use leno_telemetry::names::Metric;
use leno_telemetry::names::control::{
    ALIASES, APPLIED, CERTIFICATES, CERTIFICATES_REFUSED, CHANGES, COMPILED, CONDITIONS,
    CONNECTIONS_REFUSED, CONVERGENCE, DELTA_BYTES, HALF_OPEN_EVICTED, KEY_READINGS, KEY_SOURCES,
    LOG_LINES_DROPPED, METRIC_POINTS, OFFERED, PROXIES, PROXIES_BEHIND, QUEUES, RECEIVED, REFUSED,
    REJECTED, REPORTS, SENT, SERIES_FOLDED, SERVICES, TOUCHED, WORKLOADS,
};
use leno_telemetry::{Durations, Form, Names, Number, Page, Reader, lines_dropped};

use crate::report::Report;
use crate::server::Gauges;

/// Writes all metrics of the control plane, and aliases for dashboards of another product.
pub(crate) fn expose(
    report: &Report<'_>,
    gauges: &Gauges,
    (form, names): (Form, Option<Names>),
) -> String {
    let mut out = String::new();
    let mut page = Page::new(form, &mut out);
    read(report, gauges, &mut page);
    if let Some(names) = names {
        aliases(&mut page, names, (report, gauges));
    }
    page.finish();
    out
}

/// Passes all metrics of the control plane to `reader`.
pub(crate) fn read(report: &Report<'_>, gauges: &Gauges, reader: &mut impl Reader) {
    let status = report.status();
    let tally = report.connected.tally;
    let certifier = report.certifier;
    one(reader, &WORKLOADS, status.workloads as u64);
    one(reader, &SERVICES, status.services as u64);
    one(reader, &PROXIES, status.proxies as u64);
    one(reader, &PROXIES_BEHIND, status.behind as u64);
    one(reader, &REJECTED, status.rejected as u64);
    each(reader, &CONDITIONS, "kind", report.conditions());
    one(reader, &CHANGES, tally.changes);
    one(reader, &COMPILED, tally.compiled);
    one(reader, &OFFERED, tally.offered);
    one(reader, &APPLIED, tally.applied);
    one(reader, &REFUSED, tally.refused);
    one(reader, &SENT, gauges.sent());
    one(reader, &RECEIVED, gauges.received());
    one(reader, &CERTIFICATES, certifier.issued);
    one(reader, &CERTIFICATES_REFUSED, certifier.refused);
    each(reader, &CONNECTIONS_REFUSED, "reason", gauges.refused());
    one(reader, &HALF_OPEN_EVICTED, gauges.evicted());
    reader.metric(&CONVERGENCE);
    reader.durations(&[], &convergence(report));
    one(reader, &TOUCHED, tally.touched);
    one(reader, &DELTA_BYTES, tally.delta_bytes);
    one(reader, &REPORTS, report.history.reports);
    one(reader, &SERIES_FOLDED, report.history.folded);
    one(reader, &LOG_LINES_DROPPED, lines_dropped());
    keys(reader, report);
    queues(reader, report);
    let (exported, refused) = gauges.points();
    each(reader, &METRIC_POINTS, "result", [("exported", exported), ("refused", refused)]);
}

fn one(reader: &mut impl Reader, metric: &'static Metric, number: u64) {
    reader.metric(metric);
    reader.number(&[], Number::Whole(number));
}

/// Reads a metric with one label, with a number for each label value.
fn each(
    reader: &mut impl Reader,
    metric: &'static Metric,
    label: &'static str,
    numbers: impl IntoIterator<Item = (&'static str, u64)>,
) {
    reader.metric(metric);
    for (value, number) in numbers {
        reader.number(&[(label, value)], Number::Whole(number));
    }
}

fn convergence<'a>(report: &Report<'a>) -> Durations<'a> {
    Durations::new(report.connected.rounds.convergence(), &LIMITS)
}

/// Writes the metrics with an equivalent in the other product, by its name there.
fn aliases(page: &mut Page<'_>, names: Names, (report, gauges): (&Report<'_>, &Gauges)) {
    let tally = report.connected.tally;
    for alias in ALIASES {
        page.alias(format!("{}_{}", names.mesh(), alias.name), alias.kind);
        let number = match alias.name {
            "proxy_connect_count" => report.status().proxies as u64,
            "cert_issued_count" => report.certifier.issued,
            "events_queued" => report.queues.updates as u64,
            "resource_namespace_count" => report.namespaces() as u64,
            "proxy_broadcast_event_count" => tally.changes,
            "proxy_response_send_success_count" => tally.offered,
            "proxy_response_send_error_count" => tally.refused,
            "proxy_config_update_time" => {
                page.durations(&[], &convergence(report));
                continue;
            }
            "error_err_code_count" => {
                for (reason, count) in gauges.refused() {
                    page.number(&[("err_code", reason)], Number::Whole(count));
                }
                continue;
            }
            "version_info" => {
                page.number(&[("version", env!("CARGO_PKG_VERSION"))], Number::Whole(1));
                continue;
            }
            unknown => {
                debug_assert!(false, "`{unknown}` has no description");
                continue;
            }
        };
        page.number(&[], Number::Whole(number));
    }
}

fn keys(reader: &mut impl Reader, report: &Report<'_>) {
    let (sources, without) = report.key_sources();
    let failing = report.keys.failing();
    let states = [("all", sources), ("failing", failing), ("without", without)];
    each(reader, &KEY_SOURCES, "state", states.map(|(state, count)| (state, count as u64)));
    let readings = report.keys;
    let results =
        [("changed", readings.changed), ("same", readings.same), ("failed", readings.failed)];
    each(reader, &KEY_READINGS, "result", results);
}

fn queues(reader: &mut impl Reader, report: &Report<'_>) {
    let queues = [
        ("updates", report.queues.updates),
        ("events", report.queues.events),
        ("questions", report.queues.questions),
        ("signatures", report.certifier.under_way()),
        ("due", report.connected.due()),
        ("rounds", report.connected.rounds.open()),
    ];
    each(reader, &QUEUES, "queue", queues.map(|(queue, depth)| (queue, depth as u64)));
}

/// Bucket bounds of convergence times: the debounce time is 20 ms, and a stream is ended after half a minute.
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

#[cfg(test)]
mod tests;
