//! Reads all metrics of a sidecar in the order of the exposition, and passes them to a [`MetricVisitor`]. Each
//! exposition and export format implements that trait.

use std::fmt;
use std::time::Duration;

use crate::exemplar::Exemplar;
use crate::histogram::Histogram;
use crate::line_queue::lines_dropped;
use crate::names::{
    BUILD, CONNECTIONS_REJECTED, Count, DRY_RUN_DENIALS, Gauge, LOG_LINES_DROPPED, Level,
    MetricFamily, PROCESS_CPU, PROCESS_MEMORY, REQUEST_BYTES, REQUEST_DURATION, REQUESTS,
    RESPONSE_BYTES, RULE_MATCHES, STREAMS, STREAMS_OPENED, TCP_OPENED,
};
use crate::outcome_table::OutcomeKey;
use crate::series::{RequestLabels, SeriesTotals};
use crate::telemetry::Telemetry;
use crate::usage::{ProcessUsage, read_usage};

/// A consumer of metrics: receives each metric, followed by its values with their labels.
pub trait MetricVisitor {
    /// Begins a metric; any number of values follows.
    fn begin_metric(&mut self, metric: &'static MetricFamily);
    /// Receives a value of the current metric.
    fn record_number(&mut self, labels: &[(&'static str, &str)], number: MetricValue);
    /// Receives a histogram of the current metric.
    fn record_durations(
        &mut self,
        labels: &[(&'static str, &str)],
        durations: &DurationBuckets<'_>,
    );
}

/// A value of a counter or a gauge.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MetricValue {
    /// A number of items or bytes.
    Whole(u64),
    /// A time in seconds.
    Seconds(f64),
}

impl fmt::Display for MetricValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => number.fmt(f),
            Self::Seconds(seconds) => seconds.fmt(f),
        }
    }
}

/// A histogram of durations, converted to the buckets that are exposed.
#[derive(Debug, Clone, Copy)]
pub struct DurationBuckets<'a> {
    histogram: &'a Histogram,
    upper_limits: &'a [Duration],
    /// The exemplar of each bucket; empty without exemplars.
    exemplars: &'a [Option<Exemplar>],
}

impl<'a> DurationBuckets<'a> {
    /// Converts a histogram to buckets with these upper limits, and one bucket without a limit.
    #[must_use]
    pub fn new(histogram: &'a Histogram, upper_limits: &'a [Duration]) -> Self {
        Self { histogram, upper_limits, exemplars: &[] }
    }

    /// Returns the sum of all recorded durations.
    #[must_use]
    pub fn sum(&self) -> Duration {
        self.histogram.sum()
    }

    /// Returns the count of each bucket, with its limit and its exemplar. The last bucket has no limit.
    pub fn buckets(
        &self,
    ) -> impl Iterator<Item = (Option<Duration>, u64, Option<&'a Exemplar>)> + 'a {
        let unlimited = std::iter::once((None, self.histogram.count()));
        let cumulative_counts = self.histogram.cumulative_counts(self.upper_limits);
        let limited =
            cumulative_counts.map(|(limit, cumulative_count)| (Some(limit), cumulative_count));
        let exemplars = self.exemplars.iter().map(Option::as_ref).chain(std::iter::repeat(None));
        let mut previous_count = 0;
        limited.chain(unlimited).zip(exemplars).map(move |((limit, cumulative_count), exemplar)| {
            let count = cumulative_count
                .saturating_sub(std::mem::replace(&mut previous_count, cumulative_count));
            (limit, count, exemplar)
        })
    }
}

impl Telemetry {
    /// Reads all metrics, and the resource usage of this process if the system reports it.
    pub fn visit_metrics(&self, visitor: &mut impl MetricVisitor) {
        self.visit_metrics_with_usage(read_usage(std::process::id()).ok().as_ref(), visitor);
    }

    /// Reads all metrics, with this resource usage of the process.
    pub(crate) fn visit_metrics_with_usage(
        &self,
        usage: Option<&ProcessUsage>,
        visitor: &mut impl MetricVisitor,
    ) {
        self.visit_series(visitor);
        visitor.begin_metric(&RULE_MATCHES);
        for (rule, matches) in self.matched_rules() {
            let values = [rule.kind, &rule.namespace, &rule.name, &rule.rule];
            record_labelled(visitor, &RULE_MATCHES, &values, matches);
        }
        visitor.begin_metric(&CONNECTIONS_REJECTED);
        for (reason, count) in self.rejected_connections() {
            record_labelled(visitor, &CONNECTIONS_REJECTED, &[reason], count);
        }
        for metric in Count::METRICS {
            visitor.begin_metric(metric);
            for count in Count::ALL.iter().filter(|count| count.metric() == metric.name) {
                record_labelled(visitor, metric, count.label_values(), self.count(*count));
            }
        }
        for metric in Gauge::METRICS {
            visitor.begin_metric(metric);
            for gauge in Gauge::ALL.iter().filter(|gauge| gauge.metric() == metric.name) {
                record_labelled(visitor, metric, gauge.label_values(), self.gauge(*gauge));
            }
        }
        for metric in Level::METRICS {
            visitor.begin_metric(metric);
            for level in Level::ALL.iter().filter(|level| level.metric() == metric.name) {
                if let Some(value) = self.level(*level) {
                    record_labelled(visitor, metric, level.label_values(), value);
                }
            }
        }
        visitor.begin_metric(&BUILD);
        record_labelled(visitor, &BUILD, &[env!("CARGO_PKG_VERSION")], 1);
        visitor.begin_metric(&LOG_LINES_DROPPED);
        visitor.record_number(&[], MetricValue::Whole(lines_dropped()));
        if let Some(usage) = usage {
            visitor.begin_metric(&PROCESS_CPU);
            visitor.record_number(&[], MetricValue::Seconds(usage.cpu.as_secs_f64()));
            visitor.begin_metric(&PROCESS_MEMORY);
            visitor.record_number(&[], MetricValue::Whole(usage.rss_kib * 1024));
        }
    }

    /// Reads the request metrics. The formats require all values of a metric in one block, so the series are visited
    /// once for each metric.
    fn visit_series(&self, visitor: &mut impl MetricVisitor) {
        let totals: Vec<SeriesTotals> = self
            .series_cells()
            .into_iter()
            .map(|(labels, cells)| SeriesTotals::sum_shards(labels, &cells))
            .collect();
        visitor.begin_metric(&REQUESTS);
        for series in &totals {
            for (OutcomeKey { class, reason, grpc }, count) in &series.requests {
                let outcome_labels = [("code", class.label()), ("reason", reason)];
                let grpc_label = grpc.map(|status| ("grpc_status", status.label()));
                let additional_labels: Vec<_> =
                    outcome_labels.into_iter().chain(grpc_label).collect();
                with_labels(&series.labels, &additional_labels, |labels| {
                    visitor.record_number(labels, MetricValue::Whole(*count));
                });
            }
        }
        visitor.begin_metric(&REQUEST_DURATION);
        for SeriesTotals { labels, durations, exemplars, .. } in &totals {
            let buckets =
                DurationBuckets { histogram: durations, upper_limits: &BUCKET_LIMITS, exemplars };
            with_labels(labels, &[], |labels| visitor.record_durations(labels, &buckets));
        }
        for (metric, read_bytes) in [
            (&REQUEST_BYTES, (|series| series.bytes_in) as fn(&SeriesTotals) -> u64),
            (&RESPONSE_BYTES, |series| series.bytes_out),
        ] {
            visitor.begin_metric(metric);
            for series in &totals {
                let bytes = MetricValue::Whole(read_bytes(series));
                with_labels(&series.labels, &[], |labels| visitor.record_number(labels, bytes));
            }
        }
        visitor.begin_metric(&TCP_OPENED);
        for series in totals.iter().filter(|series| series.opened > 0) {
            let opened = MetricValue::Whole(series.opened);
            with_labels(&series.labels, &[], |labels| visitor.record_number(labels, opened));
        }
        for (metric, read_number) in [
            (&STREAMS_OPENED, (|series| series.streams_opened) as fn(&SeriesTotals) -> u64),
            (&STREAMS, |series| series.streams_opened.saturating_sub(series.streams_ended)),
        ] {
            visitor.begin_metric(metric);
            for series in totals.iter().filter(|series| series.streams_opened > 0) {
                let number = MetricValue::Whole(read_number(series));
                with_labels(&series.labels, &[], |labels| visitor.record_number(labels, number));
            }
        }
        visitor.begin_metric(&DRY_RUN_DENIALS);
        for series in &totals {
            for (reason, count) in &series.dry_run_denials {
                with_labels(&series.labels, &[("reason", reason)], |labels| {
                    visitor.record_number(labels, MetricValue::Whole(*count));
                });
            }
        }
    }
}

/// Calls `use_labels` with the labels of a series, and the additional labels of one of its values.
fn with_labels(
    labels: &RequestLabels,
    additional_labels: &[(&'static str, &str)],
    use_labels: impl FnOnce(&[(&'static str, &str)]),
) {
    let RequestLabels { direction, service, port, route, peer, protocol } = labels;
    let port = port.to_string();
    let values = [*direction, service, &port, route, peer, *protocol];
    // The labels of all request metrics begin with those of this metric, which has no others.
    let series_labels = REQUEST_BYTES.labels.iter().copied().zip(values);
    use_labels(&series_labels.chain(additional_labels.iter().copied()).collect::<Vec<_>>());
}

/// Records a number with the labels of its metric.
fn record_labelled(
    visitor: &mut impl MetricVisitor,
    metric: &MetricFamily,
    values: &[&str],
    number: u64,
) {
    let labels: Vec<_> = metric.labels.iter().copied().zip(values.iter().copied()).collect();
    visitor.record_number(&labels, MetricValue::Whole(number));
}

/// Returns the index of the exposed bucket of a duration; the last bucket has no limit.
pub(crate) fn exposed_bucket(duration: Duration) -> usize {
    BUCKET_LIMITS.iter().position(|limit| duration <= *limit).unwrap_or(BUCKET_LIMITS.len())
}

/// The number of exposed buckets, with the last bucket, which has no limit.
pub(crate) const EXPOSED_BUCKETS: usize = BUCKET_LIMITS.len() + 1;

/// The upper limits of the exposed buckets: most are in the typical range of requests through sidecars.
const BUCKET_LIMITS: [Duration; 20] = [
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(3),
    Duration::from_millis(5),
    Duration::from_micros(7_500),
    Duration::from_millis(10),
    Duration::from_millis(15),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(75),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2_500),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
];
