//! Summarizes the results of a load run as numbers. The JSON report is this summary, a stable interface for other
//! programs.

use std::collections::BTreeMap;
use std::time::Duration;

use leno_load::{LatencyHistogram, LoadReport};
use serde::Serialize;

use super::results::{LoadResults, RateResult};

/// The results as numbers. The suffix `_us` means microseconds, `_s` seconds.
#[derive(Debug, Clone, Serialize)]
pub(super) struct LoadSummary {
    /// All requests scheduled within the measured time.
    pub(super) requests: u64,
    /// Requests that failed.
    pub(super) errors: u64,
    pub(super) errors_by_kind: BTreeMap<String, u64>,
    /// Responses by status, including successes.
    pub(super) statuses: BTreeMap<String, u64>,
    /// The measured time, without the warm-up.
    pub(super) duration_s: f64,
    /// Responses of any status per second.
    pub(super) rps: f64,
    /// Latency of successful requests.
    pub(super) latency_us: LatencyUs,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    /// The number of connections at each rate.
    pub(super) connections: usize,
    /// The requested rate, in requests per second; `None` in a closed loop and in the summary of several rates.
    pub(super) rate: Option<f64>,
    /// One summary per rate; empty for a closed loop or a single rate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) steps: Vec<LoadSummary>,
    pub(super) timeline: Vec<IntervalSummary>,
    pub(super) targets: Vec<TargetSummary>,
    /// CPU time of the load generator itself, in microseconds; `None` if it is unknown.
    pub(super) own_cpu_us_per_request: Option<f64>,
}

/// The latency distribution in microseconds; all values are `None` if no request succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct LatencyUs {
    pub(super) min: Option<f64>,
    pub(super) mean: Option<f64>,
    pub(super) p50: Option<f64>,
    pub(super) p90: Option<f64>,
    pub(super) p95: Option<f64>,
    pub(super) p99: Option<f64>,
    pub(super) p999: Option<f64>,
    pub(super) max: Option<f64>,
}

/// The results of one interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct IntervalSummary {
    /// The start of the interval, in seconds after the warm-up. The intervals of several rates follow each
    /// other.
    pub(super) at_s: f64,
    pub(super) requests: u64,
    pub(super) errors: u64,
    /// The median latency of successful requests, in microseconds; `None` without successful requests.
    pub(super) p50: Option<f64>,
    /// The 99th percentile of the same latency, in microseconds.
    pub(super) p99: Option<f64>,
    /// The measured length of the interval, in seconds.
    #[serde(skip)]
    pub(super) length_s: f64,
}

/// The results for one URL.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct TargetSummary {
    pub(super) url: String,
    pub(super) requests: u64,
    pub(super) errors: u64,
}

impl LoadSummary {
    /// Summarizes the results over all rates, and in `steps` at each rate.
    pub(super) fn from_results(results: &LoadResults) -> Self {
        let connections = results.plan.load_model.connection_count();
        let summarize = |step: &RateResult| Self::from_report(&step.report, step.rate, connections);
        let mut steps: Vec<Self> = results.steps.iter().map(summarize).collect();
        if steps.len() == 1 {
            return steps.remove(0);
        }
        let mut reports = results.steps.iter().map(|step| &step.report);
        let mut total = reports.next().expect("something was measured").clone();
        reports.for_each(|report| total.add_later(report));
        let timeline = concatenate_timelines(&steps);
        Self { timeline, steps, ..Self::from_report(&total, None, connections) }
    }

    fn from_report(report: &LoadReport, rate: Option<u32>, connections: usize) -> Self {
        let total = report.sum_targets();
        let targets = report.targets.iter().map(|target| TargetSummary {
            url: target.name.clone(),
            requests: target.request_count(),
            errors: target.request_count() - target.success_count(),
        });
        let statuses = total.status_counts().map(|(status, count)| (status.to_string(), count));
        Self {
            requests: total.request_count(),
            errors: total.request_count() - total.success_count(),
            errors_by_kind: total.errors_by_kind().collect(),
            statuses: statuses.collect(),
            duration_s: report.elapsed.as_secs_f64(),
            rps: report.responses_per_second(),
            latency_us: LatencyUs::from_latency(&total.latency),
            bytes_in: report.bytes_received,
            bytes_out: report.bytes_sent,
            connections,
            rate: rate.map(f64::from),
            steps: Vec::new(),
            timeline: summarize_timeline(report),
            targets: targets.collect(),
            own_cpu_us_per_request: report.cpu_per_request().map(to_microseconds),
        }
    }
}

impl LatencyUs {
    fn from_latency(latency: &LatencyHistogram) -> Self {
        let quantile_us = |quantile| latency.quantile(quantile).map(to_microseconds);
        Self {
            min: latency.min().map(to_microseconds),
            mean: latency.mean().map(to_microseconds),
            p50: quantile_us(0.5),
            p90: quantile_us(0.9),
            p95: quantile_us(0.95),
            p99: quantile_us(0.99),
            p999: quantile_us(0.999),
            max: latency.max().map(to_microseconds),
        }
    }
}

fn summarize_timeline(report: &LoadReport) -> Vec<IntervalSummary> {
    let interval_length = report.timeline.interval();
    let intervals = report.timeline.intervals().map(|interval| IntervalSummary {
        at_s: interval.at.as_secs_f64(),
        requests: interval.requests,
        errors: interval.errors,
        p50: interval.p50.map(to_microseconds),
        p99: interval.p99.map(to_microseconds),
        length_s: report.elapsed.saturating_sub(interval.at).min(interval_length).as_secs_f64(),
    });
    intervals.collect()
}

/// Concatenates the timelines of several rates.
fn concatenate_timelines(steps: &[LoadSummary]) -> Vec<IntervalSummary> {
    let mut timeline = Vec::new();
    let mut step_start_s = 0.0;
    for step in steps {
        // Responses after the end of a step are not counted in the next.
        let counted_intervals =
            step.timeline.iter().filter(|interval| interval.at_s < step.duration_s);
        timeline.extend(
            counted_intervals.map(|interval| IntervalSummary {
                at_s: step_start_s + interval.at_s,
                ..*interval
            }),
        );
        step_start_s += step.duration_s;
    }
    timeline
}

fn to_microseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e3
}
