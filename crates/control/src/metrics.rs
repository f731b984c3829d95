//! The control plane's own metrics, for exposition and for export.

use std::time::Duration;

use leno_telemetry::names::MetricFamily;
use leno_telemetry::names::control::{
    ALIASES, CERTIFICATE_REQUESTS_REJECTED, CERTIFICATES, CHANGES, CONDITIONS,
    CONNECTIONS_REJECTED, CONVERGENCE, DELTA_BYTES, HALF_OPEN_CONNECTIONS_EVICTED, JWKS_FETCHES,
    JWKS_SOURCES, LOG_LINES_DROPPED, METRIC_POINTS, PROXIES, PROXIES_OUT_OF_SYNC, PUSH_RECIPIENTS,
    PUSHES, QUEUES, RECEIVED, REJECTED_OBJECTS, REPORTS, SENT, SERIES_DROPPED, SERVICES,
    SNAPSHOTS_COMPILED, UPDATES_APPLIED, UPDATES_REJECTED, WORKLOADS,
};
use leno_telemetry::{
    AliasNames, DurationBuckets, ExpositionFormat, ExpositionWriter, MetricValue, MetricVisitor,
    lines_dropped,
};

use crate::report::Report;
use crate::server::Gauges;

/// Writes all metrics of the control plane, and aliases for dashboards of another product.
pub(crate) fn render_metrics(
    report: &Report<'_>,
    gauges: &Gauges,
    form: ExpositionFormat,
    names: Option<AliasNames>,
) -> String {
    let mut out = String::new();
    let mut page = ExpositionWriter::new(form, &mut out);
    read(report, gauges, &mut page);
    if let Some(names) = names {
        write_aliases(&mut page, names, report, gauges);
    }
    page.finish();
    out
}

/// Passes all metrics of the control plane to `reader`.
pub(crate) fn read(report: &Report<'_>, gauges: &Gauges, reader: &mut impl MetricVisitor) {
    let status = report.status();
    let tally = report.connected.tally;
    let certifier = report.certifier;
    read_metric(reader, &WORKLOADS, status.workloads as u64);
    read_metric(reader, &SERVICES, status.services as u64);
    read_metric(reader, &PROXIES, status.proxies as u64);
    read_metric(reader, &PROXIES_OUT_OF_SYNC, status.out_of_sync as u64);
    read_metric(reader, &REJECTED_OBJECTS, status.rejected as u64);
    read_labeled(reader, &CONDITIONS, "kind", report.condition_counts());
    read_metric(reader, &CHANGES, tally.changes);
    read_metric(reader, &SNAPSHOTS_COMPILED, tally.compiled);
    read_metric(reader, &PUSHES, tally.pushes);
    read_metric(reader, &UPDATES_APPLIED, tally.applied);
    read_metric(reader, &UPDATES_REJECTED, tally.rejected);
    read_metric(reader, &SENT, gauges.sent_bytes());
    read_metric(reader, &RECEIVED, gauges.received_bytes());
    read_metric(reader, &CERTIFICATES, certifier.issued);
    read_metric(reader, &CERTIFICATE_REQUESTS_REJECTED, certifier.rejected);
    read_labeled(reader, &CONNECTIONS_REJECTED, "reason", gauges.failed_connections());
    read_metric(reader, &HALF_OPEN_CONNECTIONS_EVICTED, gauges.evicted_count());
    reader.begin_metric(&CONVERGENCE);
    reader.record_durations(&[], &convergence_durations(report));
    read_metric(reader, &PUSH_RECIPIENTS, tally.push_recipients);
    read_metric(reader, &DELTA_BYTES, tally.delta_bytes);
    read_metric(reader, &REPORTS, report.history.reports);
    read_metric(reader, &SERIES_DROPPED, report.history.dropped);
    read_metric(reader, &LOG_LINES_DROPPED, lines_dropped());
    read_key_metrics(reader, report);
    read_queue_metrics(reader, report);
    let (exported, rejected) = gauges.point_counts();
    read_labeled(
        reader,
        &METRIC_POINTS,
        "result",
        [("exported", exported), ("rejected", rejected)],
    );
}

fn read_metric(reader: &mut impl MetricVisitor, metric: &'static MetricFamily, number: u64) {
    reader.begin_metric(metric);
    reader.record_number(&[], MetricValue::Whole(number));
}

/// Reads a metric with one label, with a number for each label value.
fn read_labeled(
    reader: &mut impl MetricVisitor,
    metric: &'static MetricFamily,
    label: &'static str,
    numbers: impl IntoIterator<Item = (&'static str, u64)>,
) {
    reader.begin_metric(metric);
    for (value, number) in numbers {
        reader.record_number(&[(label, value)], MetricValue::Whole(number));
    }
}

fn convergence_durations<'a>(report: &Report<'a>) -> DurationBuckets<'a> {
    DurationBuckets::new(report.connected.pushes.convergence_times(), &LIMITS)
}

/// Writes the metrics with an equivalent in the other product, by its name there.
fn write_aliases(
    page: &mut ExpositionWriter<'_>,
    names: AliasNames,
    report: &Report<'_>,
    gauges: &Gauges,
) {
    let tally = report.connected.tally;
    for alias in ALIASES {
        page.start_alias(format!("{}_{}", names.mesh_prefix(), alias.name), alias.kind);
        let number = match alias.name {
            "proxy_connect_count" => report.status().proxies as u64,
            "cert_issued_count" => report.certifier.issued,
            "events_queued" => report.queues.updates as u64,
            "resource_namespace_count" => report.namespace_count() as u64,
            "proxy_broadcast_event_count" => tally.changes,
            "proxy_response_send_success_count" => tally.pushes,
            "proxy_response_send_error_count" => tally.rejected,
            "proxy_config_update_time" => {
                page.record_durations(&[], &convergence_durations(report));
                continue;
            }
            "error_err_code_count" => {
                for (reason, count) in gauges.failed_connections() {
                    page.record_number(&[("err_code", reason)], MetricValue::Whole(count));
                }
                continue;
            }
            "version_info" => {
                page.record_number(
                    &[("version", env!("CARGO_PKG_VERSION"))],
                    MetricValue::Whole(1),
                );
                continue;
            }
            unknown => {
                debug_assert!(false, "`{unknown}` has no description");
                continue;
            }
        };
        page.record_number(&[], MetricValue::Whole(number));
    }
}

fn read_key_metrics(reader: &mut impl MetricVisitor, report: &Report<'_>) {
    let (sources, without) = report.key_sources();
    let failing = report.keys.failing_count();
    let states = [("all", sources), ("failing", failing), ("without-keys", without)];
    read_labeled(
        reader,
        &JWKS_SOURCES,
        "state",
        states.map(|(state, count)| (state, count as u64)),
    );
    let fetches = report.keys;
    let results = [
        ("changed", fetches.changed),
        ("unchanged", fetches.unchanged),
        ("failed", fetches.failed),
    ];
    read_labeled(reader, &JWKS_FETCHES, "result", results);
}

fn read_queue_metrics(reader: &mut impl MetricVisitor, report: &Report<'_>) {
    let queues = [
        ("updates", report.queues.updates),
        ("events", report.queues.events),
        ("queries", report.queues.queries),
        ("signatures", report.certifier.under_way()),
        ("pending", report.connected.pending_count()),
        ("pushes", report.connected.pushes.open_count()),
    ];
    read_labeled(reader, &QUEUES, "queue", queues.map(|(queue, depth)| (queue, depth as u64)));
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
