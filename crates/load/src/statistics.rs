//! Records the results of requests during a run, for the final report and live progress.

use std::time::Duration;

use crate::error_kind::ErrorKind;
use crate::report::{LoadReport, ResponseStatus, TargetReport};
use crate::timeline::Timeline;
use crate::window::MeasuredWindow;

/// The progress of a run. Counts restart when the warm-up ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProgressCounters {
    /// The time since the start, including the warm-up.
    pub elapsed: Duration,
    /// True once the warm-up is over.
    pub measuring: bool,
    /// Responses and failures.
    pub requests: u64,
    /// Requests that succeeded.
    pub successes: u64,
    /// Requests without a response.
    pub failures: u64,
}

impl ProgressCounters {
    /// Returns the sum of two threads' counters.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            elapsed: self.elapsed.max(other.elapsed),
            measuring: self.measuring || other.measuring,
            requests: self.requests + other.requests,
            successes: self.successes + other.successes,
            failures: self.failures + other.failures,
        }
    }
}

/// The result of one request.
#[derive(Debug)]
pub(crate) struct RequestMeasurement {
    pub(crate) target_index: usize,
    /// The time at which the request was due, since the start of the run.
    pub(crate) due_time: Duration,
    /// The time at which the request completed or failed, since the start of the run.
    pub(crate) completed_at: Duration,
    pub(crate) result: Result<ResponseStatus, ErrorKind>,
    /// True if the request was due after the warm-up.
    pub(crate) is_measured: bool,
}

/// The recorded results of a run.
#[derive(Debug)]
pub(crate) struct RunStatistics {
    warm_up: Duration,
    targets: Vec<TargetReport>,
    timeline: Timeline,
    progress_counters: ProgressCounters,
    /// Responses since the start, including the warm-up.
    pub(crate) responses: u64,
    /// Failures since the start, including the warm-up.
    pub(crate) failed: u64,
}

impl RunStatistics {
    pub(crate) fn new<'a>(names: impl Iterator<Item = &'a str>, warm_up: Duration) -> Self {
        Self {
            warm_up,
            targets: names.map(TargetReport::new).collect(),
            timeline: Timeline::default(),
            progress_counters: ProgressCounters::default(),
            responses: 0,
            failed: 0,
        }
    }

    /// Records a request that has a response, or failed.
    pub(crate) fn record_completed(&mut self, measurement: &RequestMeasurement) {
        match measurement.result {
            Ok(_) => self.responses += 1,
            Err(_) => self.failed += 1,
        }
        if let Some(since_warm_up) = measurement.completed_at.checked_sub(self.warm_up) {
            self.timeline.record(since_warm_up, success_latency(measurement));
        }
        self.record_measurement(measurement);
    }

    /// Records a request that was due and never sent.
    pub(crate) fn record_unsent(&mut self, target_index: usize, due_time: Duration) {
        // Requests of the warm-up are not reported.
        let Some(since_warm_up) = due_time.checked_sub(self.warm_up) else {
            return;
        };
        self.timeline.record(since_warm_up, None);
        let result = Err(ErrorKind::Unsent);
        self.record_measurement(&RequestMeasurement {
            target_index,
            due_time,
            completed_at: due_time,
            result,
            is_measured: true,
        });
    }

    /// Returns the progress at the time `elapsed` after the start.
    pub(crate) fn counters_at(&self, elapsed: Duration) -> ProgressCounters {
        ProgressCounters { elapsed, ..self.progress_counters }
    }

    /// Completes the report.
    pub(crate) fn into_report(self, measured_window: &MeasuredWindow) -> LoadReport {
        LoadReport {
            targets: self.targets,
            elapsed: measured_window.elapsed,
            responses: measured_window.responses,
            failed: measured_window.failed,
            cpu: measured_window.cpu,
            bytes_sent: measured_window.bytes_sent,
            bytes_received: measured_window.bytes_received,
            timeline: self.timeline,
        }
    }

    fn record_measurement(&mut self, measurement: &RequestMeasurement) {
        // The first measured request restarts the progress, and then requests of the warm-up no longer count.
        if measurement.is_measured && !self.progress_counters.measuring {
            self.progress_counters =
                ProgressCounters { measuring: true, ..ProgressCounters::default() };
        }
        if measurement.is_measured == self.progress_counters.measuring {
            self.count_result(measurement);
        }
        if !measurement.is_measured {
            return;
        }
        let target = &mut self.targets[measurement.target_index];
        match measurement.result {
            Ok(response) => target.record_response(response, measured_latency(measurement)),
            Err(kind) => target.record_error(kind),
        }
    }

    fn count_result(&mut self, measurement: &RequestMeasurement) {
        self.progress_counters.requests += 1;
        match measurement.result {
            Ok(response) => self.progress_counters.successes += u64::from(response.is_success()),
            Err(_) => self.progress_counters.failures += 1,
        }
    }
}

/// Returns the time from the due time to the completion.
fn measured_latency(measurement: &RequestMeasurement) -> Duration {
    measurement.completed_at.saturating_sub(measurement.due_time)
}

/// Returns the latency of a successful request; `None` if the request failed or has an unsuccessful status.
fn success_latency(measurement: &RequestMeasurement) -> Option<Duration> {
    let is_success = measurement.result.is_ok_and(ResponseStatus::is_success);
    is_success.then(|| measured_latency(measurement))
}
