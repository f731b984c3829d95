//! Defines the report of a run, which counts a status or an error kind for every request.

use std::time::Duration;

use crate::error_kind::{ErrorKind, GRPC_STATUS_COUNT, GRPC_UNKNOWN, grpc_label};
use crate::latency::LatencyHistogram;
use crate::timeline::Timeline;

/// Results of all measured requests.
///
/// A request is measured if it was *due* in the measured time, regardless of the time of its response. Rates
/// per second count events that *occurred* in the measured time.
#[derive(Debug, Clone)]
pub struct LoadReport {
    /// One report per target, in the order of the plan.
    pub targets: Vec<TargetReport>,
    /// The measured time.
    pub elapsed: Duration,
    /// Responses of any status received in the measured time.
    pub responses: u64,
    /// Requests that failed without a response in the measured time.
    pub failed: u64,
    /// The generator's own CPU time in the measured time.
    pub cpu: Duration,
    /// Bytes written in the measured time, including heads and framing.
    pub bytes_sent: u64,
    /// Bytes read in the measured time, including heads and framing.
    pub bytes_received: u64,
    /// Results by interval.
    pub timeline: Timeline,
}

impl LoadReport {
    /// Returns the report of a target; `None` if the plan has no target with this name.
    #[must_use]
    pub fn target_report(&self, name: &str) -> Option<&TargetReport> {
        self.targets.iter().find(|target| target.name == name)
    }

    /// Returns the sum of all targets.
    #[must_use]
    pub fn sum_targets(&self) -> TargetReport {
        let mut total = TargetReport::new("total");
        for target in &self.targets {
            total.merge(target);
        }
        total
    }

    /// Returns the responses of any status per second.
    #[must_use]
    pub fn responses_per_second(&self) -> f64 {
        if self.elapsed.is_zero() {
            return 0.0;
        }
        self.responses as f64 / self.elapsed.as_secs_f64()
    }

    /// Returns the generator's own CPU time per request; `None` without requests.
    #[must_use]
    pub fn cpu_per_request(&self) -> Option<Duration> {
        let requests = self.responses + self.failed;
        (requests > 0).then(|| self.cpu.div_f64(requests as f64))
    }

    /// Adds the results of another generator that ran at the same time; targets are merged by name.
    pub fn merge(&mut self, other: &Self) {
        self.elapsed = self.elapsed.max(other.elapsed);
        self.timeline.merge(&other.timeline);
        self.add_counts(other);
    }

    /// Adds the results of a later period. The timeline keeps the intervals of the first period only.
    pub fn add_later(&mut self, later: &Self) {
        self.elapsed += later.elapsed;
        self.add_counts(later);
    }

    fn add_counts(&mut self, other: &Self) {
        self.responses += other.responses;
        self.failed += other.failed;
        self.cpu += other.cpu;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        for other_target in &other.targets {
            match self.targets.iter_mut().find(|own_target| own_target.name == other_target.name) {
                Some(own_target) => own_target.merge(other_target),
                None => self.targets.push(other_target.clone()),
            }
        }
    }
}

/// Results of one target.
#[derive(Debug, Clone)]
pub struct TargetReport {
    /// The name of the target in the plan.
    pub name: String,
    /// The latency of successful requests. Failures are counted and not timed, because a fast rejection is not
    /// a fast response.
    pub latency: LatencyHistogram,
    success_count: u64,
    /// The number of responses, by HTTP status.
    status_counts: Vec<u64>,
    /// The number of unsuccessful calls, by gRPC status.
    grpc_status_counts: [u64; GRPC_STATUS_COUNT],
    /// The number of requests without a response, by the index of the kind in [`ErrorKind::ALL`].
    error_counts: [u64; ErrorKind::ALL.len()],
}

/// The status of a response, and the gRPC status of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResponseStatus {
    pub(crate) status: u16,
    /// The gRPC status; `None` for requests that are no gRPC calls, and for HTTP errors.
    pub(crate) grpc: Option<u8>,
}

impl ResponseStatus {
    /// True if the request succeeded.
    pub(crate) fn is_success(self) -> bool {
        (200..300).contains(&self.status) && matches!(self.grpc, None | Some(0))
    }
}

impl TargetReport {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            latency: LatencyHistogram::default(),
            success_count: 0,
            status_counts: vec![0; STATUS_COUNT],
            grpc_status_counts: [0; GRPC_STATUS_COUNT],
            error_counts: [0; ErrorKind::ALL.len()],
        }
    }

    /// Returns the number of due requests: responses, and failures without a response.
    #[must_use]
    pub fn request_count(&self) -> u64 {
        self.response_count() + self.failure_count()
    }

    /// Returns the number of responses of any status.
    #[must_use]
    pub fn response_count(&self) -> u64 {
        self.status_counts.iter().sum()
    }

    /// Returns the number of responses with a status from 200 to 299; for gRPC, with status OK as well.
    #[must_use]
    pub fn success_count(&self) -> u64 {
        self.success_count
    }

    /// Returns the number of requests without a response.
    #[must_use]
    pub fn failure_count(&self) -> u64 {
        self.error_counts.iter().sum()
    }

    /// Returns the success rate, 0 to 1; `None` without requests.
    #[must_use]
    pub fn success_rate(&self) -> Option<f64> {
        let requests = self.request_count();
        (requests > 0).then(|| self.success_count() as f64 / requests as f64)
    }

    /// Returns the number of responses with one status.
    #[must_use]
    pub fn status_count(&self, status: u16) -> u64 {
        self.status_counts.get(usize::from(status)).copied().unwrap_or(0)
    }

    /// Returns the statuses that occurred, with their counts.
    pub fn status_counts(&self) -> impl Iterator<Item = (u16, u64)> {
        (0_u16..).zip(self.status_counts.iter().copied()).filter(|(_, count)| *count > 0)
    }

    /// Returns the number of failures of one kind.
    #[must_use]
    pub fn error_count(&self, kind: ErrorKind) -> u64 {
        self.error_counts.get(kind as usize).copied().unwrap_or(0)
    }

    /// Returns the kinds of failures that occurred, with their counts.
    pub fn error_counts(&self) -> impl Iterator<Item = (ErrorKind, u64)> {
        ErrorKind::ALL.into_iter().zip(self.error_counts).filter(|(_, count)| *count > 0)
    }

    /// Returns all unsuccessful requests by kind: failures such as `reset`, statuses such as `status-503`, and
    /// gRPC statuses such as `grpc-unavailable`. The sum equals all requests minus the successes.
    pub fn errors_by_kind(&self) -> impl Iterator<Item = (String, u64)> {
        let failures = self.error_counts().map(|(kind, count)| (kind.label().to_owned(), count));
        let unsuccessful_statuses = self
            .status_counts()
            .filter(|(status, _)| !(200..300).contains(status))
            .map(|(status, count)| (format!("status-{status}"), count));
        let grpc_errors = (0..)
            .zip(self.grpc_status_counts)
            .filter(|(code, count)| *code > 0 && *count > 0)
            .map(|(code, count)| (grpc_label(code).to_owned(), count));
        failures.chain(unsuccessful_statuses).chain(grpc_errors)
    }

    pub(crate) fn record_response(&mut self, response: ResponseStatus, latency: Duration) {
        if let Some(count) = self.status_counts.get_mut(usize::from(response.status)) {
            *count += 1;
        }
        if response.is_success() {
            self.success_count += 1;
            self.latency.record(latency);
        } else if let (Some(code), 200..300) = (response.grpc, response.status) {
            let is_known_code = usize::from(code) < GRPC_STATUS_COUNT;
            let code = if is_known_code { code } else { GRPC_UNKNOWN };
            self.grpc_status_counts[usize::from(code)] += 1;
        }
    }

    pub(crate) fn record_error(&mut self, kind: ErrorKind) {
        self.error_counts[kind as usize] += 1;
    }

    fn merge(&mut self, other: &Self) {
        self.latency.merge(&other.latency);
        self.success_count += other.success_count;
        add_elementwise(&mut self.status_counts, &other.status_counts);
        add_elementwise(&mut self.grpc_status_counts, &other.grpc_status_counts);
        add_elementwise(&mut self.error_counts, &other.error_counts);
    }
}

fn add_elementwise(sums: &mut [u64], addends: &[u64]) {
    for (sum, addend) in sums.iter_mut().zip(addends) {
        *sum += addend;
    }
}

/// The number of counters for three-digit statuses; the first hundred are unused.
const STATUS_COUNT: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    const fn plain_response(status: u16) -> ResponseStatus {
        ResponseStatus { status, grpc: None }
    }

    fn empty_report(targets: Vec<TargetReport>) -> LoadReport {
        LoadReport {
            targets,
            elapsed: Duration::ZERO,
            responses: 0,
            failed: 0,
            cpu: Duration::ZERO,
            bytes_sent: 0,
            bytes_received: 0,
            timeline: Timeline::default(),
        }
    }

    /// A report with a successful response per latency, one response with status 403, and one failure.
    fn sample_report(name: &str, latencies_ms: &[u64], failure_kind: ErrorKind) -> LoadReport {
        let mut target = TargetReport::new(name);
        for latency in latencies_ms {
            target.record_response(plain_response(200), Duration::from_millis(*latency));
        }
        target.record_response(plain_response(403), Duration::from_micros(1));
        target.record_error(failure_kind);
        let responses = target.response_count();
        LoadReport {
            elapsed: Duration::from_secs(2),
            responses,
            failed: 1,
            cpu: Duration::from_micros(14),
            bytes_received: 10,
            ..empty_report(vec![target])
        }
    }

    #[test]
    fn a_report_keeps_every_status_error_and_latency() {
        let report = sample_report("a", &[1, 2, 3, 4, 100], ErrorKind::Reset);
        let target = report.target_report("a").unwrap();
        assert_eq!(
            (target.request_count(), target.response_count(), target.success_count()),
            (7, 6, 5)
        );
        assert_eq!(target.status_counts().collect::<Vec<_>>(), [(200, 5), (403, 1)]);
        assert_eq!(target.error_counts().collect::<Vec<_>>(), [(ErrorKind::Reset, 1)]);
        assert_eq!(target.success_rate(), Some(5.0 / 7.0));
        // The fast rejection is not among the latencies.
        assert_eq!(target.latency.count(), 5);
        let is_about = |latency: Option<Duration>, ms: u64| {
            let expected = Duration::from_millis(ms);
            latency.unwrap().abs_diff(expected) <= expected / 1000
        };
        assert!(is_about(target.latency.p50(), 3), "{:?}", target.latency.p50());
        assert!(is_about(target.latency.p99(), 100));
        assert!(is_about(target.latency.min(), 1) && is_about(target.latency.max(), 100));
        assert!(is_about(target.latency.mean(), 22));
        assert_eq!(target.latency.count_from(Duration::from_millis(50)), 1);
        assert_eq!(report.responses_per_second(), 3.0);
        assert_eq!(report.cpu_per_request(), Some(Duration::from_micros(2)));
    }

    #[test]
    fn errors_by_kind_add_up_to_all_unsuccessful_requests() {
        let mut target = sample_report("a", &[1], ErrorKind::Reset).targets.remove(0);
        for (code, count) in [(0, 2), (14, 3), (200, 1)] {
            for _ in 0..count {
                let response = ResponseStatus { status: 200, grpc: Some(code) };
                target.record_response(response, Duration::from_millis(1));
            }
        }
        let kinds: Vec<(String, u64)> = target.errors_by_kind().collect();
        let expected =
            [("reset", 1), ("status-403", 1), ("grpc-unknown", 1), ("grpc-unavailable", 3)];
        assert_eq!(kinds, expected.map(|(kind, count)| (kind.to_owned(), count)));
        let errors: u64 = kinds.iter().map(|(_, count)| count).sum();
        assert_eq!(errors, target.request_count() - target.success_count());
        assert_eq!(target.latency.count(), target.success_count());
    }

    #[test]
    fn an_empty_report_has_no_rates_or_latencies() {
        let target = TargetReport::new("a");
        assert_eq!(target.success_rate(), None);
        assert_eq!((target.latency.p50(), target.latency.max()), (None, None));
        let empty = empty_report(vec![target]);
        assert_eq!((empty.responses_per_second(), empty.cpu_per_request()), (0.0, None));
    }

    #[test]
    fn merged_reports_count_each_request_once() {
        let mut merged = sample_report("a", &[1, 2], ErrorKind::Reset);
        merged.merge(&sample_report("a", &[3], ErrorKind::Timeout));
        merged.merge(&sample_report("b", &[4], ErrorKind::Reset));
        assert_eq!(merged.targets.len(), 2);
        let first_target = merged.target_report("a").unwrap();
        assert_eq!(
            (
                first_target.request_count(),
                first_target.success_count(),
                first_target.status_count(403)
            ),
            (7, 3, 2)
        );
        assert_eq!(
            (
                first_target.error_count(ErrorKind::Reset),
                first_target.error_count(ErrorKind::Timeout)
            ),
            (1, 1)
        );
        let total = merged.sum_targets();
        assert_eq!((total.request_count(), total.latency.count()), (10, 4));
        assert_eq!(total.error_count(ErrorKind::Reset), 2);
        assert_eq!((merged.bytes_received, merged.elapsed), (30, Duration::from_secs(2)));
        merged.add_later(&sample_report("b", &[4], ErrorKind::Reset));
        assert_eq!((merged.bytes_received, merged.elapsed), (40, Duration::from_secs(4)));
    }
}
