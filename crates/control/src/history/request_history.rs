//! Stores the traffic of one service, route or edge over the last hour: rates, latency quantiles, failure reasons and
//! plots.
//!
//! All times are durations since the start of the history.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use leno_model::Reason;
use leno_telemetry::bucket_duration;

use super::step_ring::{RequestBatch, StepRing};
use crate::status::{PlotStatus, RECENT_STEPS, RateStatus};

/// Traffic of one service, route or edge.
#[derive(Debug, Clone)]
pub(crate) struct RequestHistory {
    /// The start of the report period in which the first requests were counted.
    first_request: Duration,
    /// The time of the last report with requests.
    pub(super) last_request: Duration,
    /// Steps of ten seconds, which cover six minutes.
    fine_ring: StepRing,
    /// Steps of one minute, which cover an hour.
    coarse_ring: StepRing,
    /// The number of requests since the start of this history.
    total_requests: u64,
    /// The number of failed requests since the start of this history.
    total_failed: u64,
    /// The number of requests since the start of this history, by failure reason.
    total_reasons: ReasonCounts,
    /// The reasons of the recent fine steps, each with its step number, the oldest first.
    reasons_by_step: VecDeque<(u64, ReasonCounts)>,
}

/// The number of requests by the label of their reason.
type ReasonCounts = BTreeMap<&'static str, u64>;

impl RequestHistory {
    pub(super) fn new(first_request: Duration) -> Self {
        Self {
            first_request,
            last_request: first_request,
            fine_ring: StepRing::new(FINE_STEP, FINE_STEPS, RECENT_STEPS),
            coarse_ring: StepRing::new(COARSE_STEP, COARSE_STEPS, 1),
            total_requests: 0,
            total_failed: 0,
            total_reasons: ReasonCounts::new(),
            reasons_by_step: VecDeque::new(),
        }
    }

    /// Adds the requests of one report, which arrived at this time.
    pub(super) fn add(
        &mut self,
        now: Duration,
        batch: &RequestBatch,
        reasons: &[(Option<Reason>, u64)],
    ) {
        self.last_request = self.last_request.max(now);
        self.fine_ring.add(now, batch);
        self.coarse_ring.add(now, batch);
        self.total_requests = self.total_requests.saturating_add(batch.requests);
        self.total_failed = self.total_failed.saturating_add(batch.failed);
        count_reasons(&mut self.total_reasons, reasons);
        if reasons.is_empty() {
            return;
        }
        // Time is monotonic, so the last entry is the newest.
        let step = step_number(now);
        if self.reasons_by_step.back().is_none_or(|(newest, _)| *newest < step) {
            if self.reasons_by_step.len() == RECENT_STEPS {
                self.reasons_by_step.pop_front();
            }
            self.reasons_by_step.push_back((step, ReasonCounts::new()));
        }
        if let Some((_, newest)) = self.reasons_by_step.back_mut() {
            count_reasons(newest, reasons);
        }
    }

    /// Returns the current rates: over the last half minute, or since the first requests if that is shorter.
    pub(super) fn current_rates(&self, now: Duration) -> RateStatus {
        let recent_batch = self.fine_ring.sum_recent(now);
        let period = now.saturating_sub(self.fine_ring.recent_since(now).max(self.first_request));
        let seconds = period.as_secs_f64().max(MIN_PERIOD_SECONDS);
        let steps = self.fine_ring.steps(now);
        let request_share = |count: u64| count as f64 / recent_batch.requests as f64;
        RateStatus {
            per_second: round_rate(recent_batch.requests as f64 / seconds),
            success: (recent_batch.requests > 0)
                .then(|| request_share(recent_batch.requests.saturating_sub(recent_batch.failed))),
            p50_ms: recent_batch.durations.quantile(0.50).map(bucket_milliseconds),
            p99_ms: recent_batch.durations.quantile(0.99).map(bucket_milliseconds),
            requests: self.total_requests,
            failed: self.total_failed,
            recent: steps
                .iter()
                .skip(FINE_STEPS - REPORTED_STEPS)
                .map(|step| step.requests)
                .collect(),
        }
    }

    /// Returns the number of requests in the period of [`RequestHistory::current_rates`].
    pub(super) fn recent_requests(&self, now: Duration) -> u64 {
        self.fine_ring.sum_recent(now).requests
    }

    /// Returns the plots of the last minutes and of the last hour.
    pub(super) fn plots(&self, now: Duration) -> Vec<PlotStatus> {
        [&self.fine_ring, &self.coarse_ring].map(|ring| plot_ring(ring, now)).into()
    }

    /// Returns the number of requests since the start, by failure reason.
    pub(super) fn reason_counts(&self) -> BTreeMap<String, u64> {
        self.total_reasons.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect()
    }

    /// Returns the reasons in the period of [`RequestHistory::current_rates`].
    pub(super) fn recent_reasons(&self, now: Duration) -> BTreeMap<String, u64> {
        let mut totals = BTreeMap::new();
        let oldest_step = step_number(now).saturating_sub(RECENT_STEPS as u64 - 1);
        for (_, reasons) in self.reasons_by_step.iter().filter(|(step, _)| *step >= oldest_step) {
            for (reason, count) in reasons {
                let total: &mut u64 = totals.entry((*reason).to_owned()).or_default();
                *total = total.saturating_add(*count);
            }
        }
        totals
    }
}

fn count_reasons(totals: &mut ReasonCounts, reasons: &[(Option<Reason>, u64)]) {
    for (reason, count) in reasons {
        let label = reason.map_or(UNKNOWN_REASON, Reason::label);
        let total = totals.entry(label).or_default();
        *total = total.saturating_add(*count);
    }
}

/// Returns the number of the fine step that contains this time.
pub(super) fn step_number(now: Duration) -> u64 {
    now.as_secs() / FINE_STEP.as_secs()
}

fn plot_ring(ring: &StepRing, now: Duration) -> PlotStatus {
    let steps = ring.steps(now);
    PlotStatus {
        step_seconds: ring.step_length().as_secs(),
        requests: steps.iter().map(|step| step.requests).collect(),
        failed: steps.iter().map(|step| step.failed).collect(),
        p50_ms: steps.iter().map(|step| step.p50.map(bucket_milliseconds)).collect(),
        p99_ms: steps.iter().map(|step| step.p99.map(bucket_milliseconds)).collect(),
    }
}

/// Returns the duration of a histogram bucket in milliseconds, rounded to microseconds.
fn bucket_milliseconds(bucket: u8) -> f64 {
    (bucket_duration(bucket).as_secs_f64() * 1e6).round() / 1e3
}

/// Rounds a rate to three decimals.
fn round_rate(rate: f64) -> f64 {
    (rate * 1e3).round() / 1e3
}

/// The length of a fine step.
const FINE_STEP: Duration = Duration::from_secs(10);
/// The number of fine steps, which cover six minutes.
const FINE_STEPS: usize = 36;
/// The length of a coarse step.
const COARSE_STEP: Duration = Duration::from_secs(60);
/// The number of coarse steps, which cover an hour.
const COARSE_STEPS: usize = 60;
/// The number of fine steps reported with the rates, which cover three minutes.
const REPORTED_STEPS: usize = 18;
/// The time that the rings cover.
pub(super) const HISTORY_LENGTH: Duration = Duration::from_secs(3600);
/// The shortest period for a rate, in seconds. A shorter one would give an arbitrarily high rate.
const MIN_PERIOD_SECONDS: f64 = 1.0;

/// The label of unknown reasons, which sidecars of later releases report.
const UNKNOWN_REASON: &str = "other";
