//! Collects the control plane's own metrics for Prometheus exposition and for OTLP export.

use std::time::Duration;

use leno_telemetry::names::MetricFamily;
use leno_telemetry::names::control::{
    ALIASES, CERTIFICATE_REQUESTS_REJECTED, CERTIFICATES, CHANGES, CONDITIONS,
    CONNECTIONS_REJECTED, CONVERGENCE, DELTA_BYTES, JWKS_FETCHES, JWKS_SOURCES, LOG_LINES_DROPPED,
    METRIC_POINTS, PENDING_CONNECTIONS_EVICTED, PROXIES, PROXIES_OUT_OF_SYNC, PUSH_RECIPIENTS,
    PUSHES, QUEUES, RECEIVED, REJECTED_OBJECTS, REPORTS, SENT, SERIES_DROPPED, SERVICES,
    SNAPSHOTS_COMPILED, UPDATES_APPLIED, UPDATES_REJECTED, WORKLOADS,
};
use leno_telemetry::{
    AliasNames, DurationBuckets, ExpositionFormat, ExpositionWriter, MetricValue, MetricVisitor,
    lines_dropped,
};

use crate::report::Report;
use crate::server::ConnectionCounters;

/// Writes all metrics of the control plane. If `alias_names` selects another product, also writes the metrics under
/// that product's names, so that its dashboards work.
pub(crate) fn render_metrics(
    report: &Report<'_>,
    connection_counters: &ConnectionCounters,
    format: ExpositionFormat,
    alias_names: Option<AliasNames>,
) -> String {
    let mut text = String::new();
    let mut writer = ExpositionWriter::new(format, &mut text);
    visit_metrics(report, connection_counters, &mut writer);
    if let Some(alias_names) = alias_names {
        write_aliases(&mut writer, alias_names, report, connection_counters);
    }
    writer.finish();
    text
}

/// Passes all metrics of the control plane to `visitor`.
pub(crate) fn visit_metrics(
    report: &Report<'_>,
    connection_counters: &ConnectionCounters,
    visitor: &mut impl MetricVisitor,
) {
    let status = report.status();
    let counters = report.connected_proxies.counters;
    let certifier = report.certifier;
    visit_metric(visitor, &WORKLOADS, status.workloads as u64);
    visit_metric(visitor, &SERVICES, status.services as u64);
    visit_metric(visitor, &PROXIES, status.proxies as u64);
    visit_metric(visitor, &PROXIES_OUT_OF_SYNC, status.out_of_sync as u64);
    visit_metric(visitor, &REJECTED_OBJECTS, status.rejected as u64);
    visit_labeled(visitor, &CONDITIONS, "kind", report.condition_counts());
    visit_metric(visitor, &CHANGES, counters.changes);
    visit_metric(visitor, &SNAPSHOTS_COMPILED, counters.compiled);
    visit_metric(visitor, &PUSHES, counters.pushes);
    visit_metric(visitor, &UPDATES_APPLIED, counters.applied);
    visit_metric(visitor, &UPDATES_REJECTED, counters.rejected);
    visit_metric(visitor, &SENT, connection_counters.sent_bytes());
    visit_metric(visitor, &RECEIVED, connection_counters.received_bytes());
    visit_metric(visitor, &CERTIFICATES, certifier.issued_count);
    visit_metric(visitor, &CERTIFICATE_REQUESTS_REJECTED, certifier.rejected_count);
    visit_labeled(
        visitor,
        &CONNECTIONS_REJECTED,
        "reason",
        connection_counters.failed_connections(),
    );
    visit_metric(visitor, &PENDING_CONNECTIONS_EVICTED, connection_counters.evicted_count());
    visitor.begin_metric(&CONVERGENCE);
    visitor.record_durations(&[], &convergence_durations(report));
    visit_metric(visitor, &PUSH_RECIPIENTS, counters.push_recipients);
    visit_metric(visitor, &DELTA_BYTES, counters.delta_bytes);
    visit_metric(visitor, &REPORTS, report.report_counters.reports);
    visit_metric(visitor, &SERIES_DROPPED, report.report_counters.dropped);
    visit_metric(visitor, &LOG_LINES_DROPPED, lines_dropped());
    visit_key_metrics(visitor, report);
    visit_queue_metrics(visitor, report);
    let (exported, rejected) = connection_counters.point_counts();
    visit_labeled(
        visitor,
        &METRIC_POINTS,
        "result",
        [("exported", exported), ("rejected", rejected)],
    );
}

fn visit_metric(visitor: &mut impl MetricVisitor, metric: &'static MetricFamily, count: u64) {
    visitor.begin_metric(metric);
    visitor.record_number(&[], MetricValue::Whole(count));
}

/// Passes a metric with one label to `visitor`, with a number for each label value.
fn visit_labeled(
    visitor: &mut impl MetricVisitor,
    metric: &'static MetricFamily,
    label: &'static str,
    numbers: impl IntoIterator<Item = (&'static str, u64)>,
) {
    visitor.begin_metric(metric);
    for (value, number) in numbers {
        visitor.record_number(&[(label, value)], MetricValue::Whole(number));
    }
}

fn convergence_durations<'a>(report: &Report<'a>) -> DurationBuckets<'a> {
    DurationBuckets::new(report.connected_proxies.pushes.convergence_times(), &CONVERGENCE_BOUNDS)
}

/// Writes the metrics that the other product has as well, under its names.
fn write_aliases(
    writer: &mut ExpositionWriter<'_>,
    alias_names: AliasNames,
    report: &Report<'_>,
    connection_counters: &ConnectionCounters,
) {
    let counters = report.connected_proxies.counters;
    for alias in ALIASES {
        writer.start_alias(format!("{}_{}", alias_names.mesh_prefix(), alias.name), alias.kind);
        let number = match alias.name {
            "proxy_connect_count" => report.status().proxies as u64,
            "cert_issued_count" => report.certifier.issued_count,
            "events_queued" => report.queues.updates as u64,
            "resource_namespace_count" => report.namespace_count() as u64,
            "proxy_broadcast_event_count" => counters.changes,
            "proxy_response_send_success_count" => counters.pushes,
            "proxy_response_send_error_count" => counters.rejected,
            "proxy_config_update_time" => {
                writer.record_durations(&[], &convergence_durations(report));
                continue;
            }
            "error_err_code_count" => {
                for (reason, count) in connection_counters.failed_connections() {
                    writer.record_number(&[("err_code", reason)], MetricValue::Whole(count));
                }
                continue;
            }
            "version_info" => {
                writer.record_number(
                    &[("version", env!("CARGO_PKG_VERSION"))],
                    MetricValue::Whole(1),
                );
                continue;
            }
            name => {
                debug_assert!(false, "`{name}` has no description");
                continue;
            }
        };
        writer.record_number(&[], MetricValue::Whole(number));
    }
}

fn visit_key_metrics(visitor: &mut impl MetricVisitor, report: &Report<'_>) {
    let (sources, without_keys) = report.key_sources();
    let failing = report.jwks_fetches.failing_count();
    let states = [("all", sources), ("failing", failing), ("without-keys", without_keys)];
    visit_labeled(
        visitor,
        &JWKS_SOURCES,
        "state",
        states.map(|(state, count)| (state, count as u64)),
    );
    let fetches = report.jwks_fetches;
    let results = [
        ("changed", fetches.changed_count),
        ("unchanged", fetches.unchanged_count),
        ("failed", fetches.failed_count),
    ];
    visit_labeled(visitor, &JWKS_FETCHES, "result", results);
}

fn visit_queue_metrics(visitor: &mut impl MetricVisitor, report: &Report<'_>) {
    let queues = [
        ("updates", report.queues.updates),
        ("events", report.queues.events),
        ("queries", report.queues.queries),
        ("signatures", report.certifier.in_progress_count()),
        ("pending", report.connected_proxies.pending_count()),
        ("pushes", report.connected_proxies.pushes.unacknowledged_count()),
    ];
    visit_labeled(visitor, &QUEUES, "queue", queues.map(|(queue, depth)| (queue, depth as u64)));
}

/// Bucket bounds of convergence times. The debounce time is 20 ms, and a stream that does not acknowledge a delta within
/// 30 s is ended.
const CONVERGENCE_BOUNDS: [Duration; 12] = [
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
