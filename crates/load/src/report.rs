//! What came of the requests: every one a response with its status or an error with its kind.

use std::time::Duration;

use hdrhistogram::Histogram;

/// What came of all the requests that were measured.
#[derive(Debug, Clone)]
pub struct Report {
    /// One for each target, in the order of the plan.
    pub targets: Vec<TargetReport>,
    /// From the end of the warm-up to the last response.
    pub elapsed: Duration,
}

impl Report {
    /// The report on a target.
    #[must_use]
    pub fn target(&self, name: &str) -> Option<&TargetReport> {
        self.targets.iter().find(|target| target.name == name)
    }

    /// All targets together.
    #[must_use]
    pub fn total(&self) -> TargetReport {
        let mut total = TargetReport::new("total");
        for target in &self.targets {
            total.merge(target);
        }
        total
    }

    /// Responses of any status per second.
    #[must_use]
    pub fn responses_per_second(&self) -> f64 {
        if self.elapsed.is_zero() {
            return 0.0;
        }
        let responses: u64 = self.targets.iter().map(TargetReport::responses).sum();
        responses as f64 / self.elapsed.as_secs_f64()
    }

    /// Adds what another generator measured over the same time; targets are joined by name.
    pub fn merge(&mut self, other: &Self) {
        self.elapsed = self.elapsed.max(other.elapsed);
        for theirs in &other.targets {
            match self.targets.iter_mut().find(|ours| ours.name == theirs.name) {
                Some(ours) => ours.merge(theirs),
                None => self.targets.push(theirs.clone()),
            }
        }
    }
}

/// What came of the requests to one target.
#[derive(Debug, Clone)]
pub struct TargetReport {
    /// Its name in the plan.
    pub name: String,
    /// How long the successful requests took; failures are counted, not timed, because a fast
    /// refusal is no fast answer.
    pub latency: Latency,
    /// Bytes of the requests that were sent whole.
    pub bytes_sent: u64,
    /// Bytes of all responses, heads and broken ones included.
    pub bytes_received: u64,
    statuses: Vec<u64>,
    errors: [u64; ErrorKind::ALL.len()],
}

impl TargetReport {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            latency: Latency::default(),
            bytes_sent: 0,
            bytes_received: 0,
            statuses: vec![0; STATUSES],
            errors: [0; ErrorKind::ALL.len()],
        }
    }

    /// All requests that were due: responses and errors.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.responses() + self.failures()
    }

    /// Responses of any status.
    #[must_use]
    pub fn responses(&self) -> u64 {
        self.statuses.iter().sum()
    }

    /// Responses of a status from 200 to 299.
    #[must_use]
    pub fn successes(&self) -> u64 {
        self.statuses().filter(|(status, _)| is_success(*status)).map(|(_, count)| count).sum()
    }

    /// Requests without a response.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.errors.iter().sum()
    }

    /// The part of the requests that succeeded, 0 to 1; `None` without requests.
    #[must_use]
    pub fn success_rate(&self) -> Option<f64> {
        let requests = self.requests();
        (requests > 0).then(|| self.successes() as f64 / requests as f64)
    }

    /// The responses of one status.
    #[must_use]
    pub fn status(&self, status: u16) -> u64 {
        self.statuses.get(usize::from(status)).copied().unwrap_or(0)
    }

    /// The statuses that occurred, and how often.
    pub fn statuses(&self) -> impl Iterator<Item = (u16, u64)> {
        (0_u16..).zip(self.statuses.iter().copied()).filter(|(_, count)| *count > 0)
    }

    /// The errors of one kind.
    #[must_use]
    pub fn error(&self, kind: ErrorKind) -> u64 {
        self.errors.get(kind as usize).copied().unwrap_or(0)
    }

    /// The kinds of errors that occurred, and how often.
    pub fn errors(&self) -> impl Iterator<Item = (ErrorKind, u64)> {
        ErrorKind::ALL.into_iter().zip(self.errors).filter(|(_, count)| *count > 0)
    }

    pub(crate) fn record_response(&mut self, status: u16, latency: Duration) {
        if let Some(count) = self.statuses.get_mut(usize::from(status)) {
            *count += 1;
        }
        if is_success(status) {
            self.latency.record(latency);
        }
    }

    pub(crate) fn record_error(&mut self, kind: ErrorKind) {
        if let Some(count) = self.errors.get_mut(kind as usize) {
            *count += 1;
        }
    }

    fn merge(&mut self, other: &Self) {
        self.latency.merge(&other.latency);
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        for (ours, theirs) in self.statuses.iter_mut().zip(&other.statuses) {
            *ours += theirs;
        }
        for (ours, theirs) in self.errors.iter_mut().zip(&other.errors) {
            *ours += theirs;
        }
    }
}

/// Whether a status is a success.
pub(crate) fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

/// Why there was no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The connection was refused, or there was no way to the server.
    Connect,
    /// The connection was not accepted in time.
    ConnectTimeout,
    /// The response was not complete in time.
    Timeout,
    /// The connection was reset.
    Reset,
    /// The connection was closed before the response was complete.
    Closed,
    /// The response was not valid HTTP/1.1, or was followed by what nobody asked for.
    Malformed,
    /// The request was due, but no connection was free to send it before the run was over.
    Unsent,
    /// Any other failure of the operating system.
    Other,
}

impl ErrorKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Connect,
        Self::ConnectTimeout,
        Self::Timeout,
        Self::Reset,
        Self::Closed,
        Self::Malformed,
        Self::Unsent,
        Self::Other,
    ];

    /// Its word in reports.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::ConnectTimeout => "connect-timeout",
            Self::Timeout => "timeout",
            Self::Reset => "reset",
            Self::Closed => "closed",
            Self::Malformed => "malformed",
            Self::Unsent => "unsent",
            Self::Other => "other",
        }
    }
}

/// How long requests took: a histogram that is right to one part in a thousand.
#[derive(Debug, Clone)]
pub struct Latency {
    nanoseconds: Histogram<u64>,
}

impl Default for Latency {
    fn default() -> Self {
        let bounds = Histogram::new_with_bounds(LATENCY_NS_MIN, LATENCY_NS_MAX, 3);
        Self { nanoseconds: bounds.expect("the bounds are constant and valid") }
    }
}

impl Latency {
    /// How many requests were timed.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.nanoseconds.len()
    }

    /// Half of the requests took no longer.
    #[must_use]
    pub fn p50(&self) -> Option<Duration> {
        self.quantile(0.5)
    }

    /// Nine tenths of the requests took no longer.
    #[must_use]
    pub fn p90(&self) -> Option<Duration> {
        self.quantile(0.9)
    }

    /// All but one in a hundred took no longer.
    #[must_use]
    pub fn p99(&self) -> Option<Duration> {
        self.quantile(0.99)
    }

    /// All but one in a thousand took no longer.
    #[must_use]
    pub fn p999(&self) -> Option<Duration> {
        self.quantile(0.999)
    }

    /// None took longer.
    #[must_use]
    pub fn max(&self) -> Option<Duration> {
        (self.count() > 0).then(|| Duration::from_nanos(self.nanoseconds.max()))
    }

    /// What this part of the requests, 0 to 1, did not exceed; `None` without requests.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let max = self.nanoseconds.max();
        let nanoseconds = self.nanoseconds.value_at_quantile(part).min(max);
        (self.count() > 0).then(|| Duration::from_nanos(nanoseconds))
    }

    /// How many requests took this long or longer, to the resolution of the histogram.
    #[must_use]
    pub fn count_from(&self, least: Duration) -> u64 {
        let least = u64::try_from(least.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.count_between(least, u64::MAX)
    }

    /// Longer than an hour counts as an hour.
    fn record(&mut self, latency: Duration) {
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.saturating_record(nanoseconds);
    }

    fn merge(&mut self, other: &Self) {
        self.nanoseconds.add(&other.nanoseconds).expect("all histograms have the same bounds");
    }
}

/// A status has three digits; the first hundred stay empty.
const STATUSES: usize = 1000;

/// Finer than any answer over a socket.
const LATENCY_NS_MIN: u64 = 100;

/// An hour.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn report(name: &str, latencies_ms: &[u64], failed: ErrorKind) -> Report {
        let mut target = TargetReport::new(name);
        for latency in latencies_ms {
            target.record_response(200, Duration::from_millis(*latency));
        }
        target.record_response(403, Duration::from_micros(1));
        target.record_error(failed);
        target.bytes_received = 10;
        Report { targets: vec![target], elapsed: Duration::from_secs(2) }
    }

    #[test]
    fn kinds_of_errors_stand_at_their_own_place() {
        for (index, kind) in ErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
    }

    #[test]
    fn nothing_is_averaged_away() {
        let report = report("a", &[1, 2, 3, 4, 100], ErrorKind::Reset);
        let target = report.target("a").unwrap();
        assert_eq!((target.requests(), target.responses(), target.successes()), (7, 6, 5));
        assert_eq!(target.statuses().collect::<Vec<_>>(), [(200, 5), (403, 1)]);
        assert_eq!(target.errors().collect::<Vec<_>>(), [(ErrorKind::Reset, 1)]);
        assert_eq!(target.success_rate(), Some(5.0 / 7.0));
        // The fast refusal is not among the latencies.
        assert_eq!(target.latency.count(), 5);
        let about = |latency: Option<Duration>, ms: u64| {
            let expected = Duration::from_millis(ms);
            latency.unwrap().abs_diff(expected) <= expected / 1000
        };
        assert!(about(target.latency.p50(), 3), "{:?}", target.latency.p50());
        assert!(about(target.latency.p99(), 100));
        assert!(about(target.latency.max(), 100));
        assert_eq!(target.latency.count_from(Duration::from_millis(50)), 1);
        assert_eq!(report.responses_per_second(), 3.0);
    }

    #[test]
    fn an_empty_report_claims_nothing() {
        let target = TargetReport::new("a");
        assert_eq!(target.success_rate(), None);
        assert_eq!((target.latency.p50(), target.latency.max()), (None, None));
        let empty = Report { targets: vec![target], elapsed: Duration::ZERO };
        assert_eq!(empty.responses_per_second(), 0.0);
    }

    #[test]
    fn merged_reports_count_everything_once() {
        let mut merged = report("a", &[1, 2], ErrorKind::Reset);
        merged.merge(&report("a", &[3], ErrorKind::Timeout));
        merged.merge(&report("b", &[4], ErrorKind::Reset));
        assert_eq!(merged.targets.len(), 2);
        let a = merged.target("a").unwrap();
        assert_eq!((a.requests(), a.successes(), a.status(403), a.bytes_received), (7, 3, 2, 20));
        assert_eq!((a.error(ErrorKind::Reset), a.error(ErrorKind::Timeout)), (1, 1));
        let total = merged.total();
        assert_eq!((total.requests(), total.latency.count()), (10, 4));
        assert_eq!(total.error(ErrorKind::Reset), 2);
    }
}
