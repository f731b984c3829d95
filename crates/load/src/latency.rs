//! How long requests took: histograms that can be added up.

use std::time::Duration;

use hdrhistogram::Histogram;

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

    /// None took less.
    #[must_use]
    pub fn min(&self) -> Option<Duration> {
        (self.count() > 0).then(|| Duration::from_nanos(self.nanoseconds.min()))
    }

    /// None took longer.
    #[must_use]
    pub fn max(&self) -> Option<Duration> {
        (self.count() > 0).then(|| Duration::from_nanos(self.nanoseconds.max()))
    }

    /// The mean; it says little about latencies, but other tools print it.
    #[must_use]
    pub fn mean(&self) -> Option<Duration> {
        (self.count() > 0).then(|| Duration::from_nanos(self.nanoseconds.mean() as u64))
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
        self.nanoseconds.count_between(nanoseconds(least), u64::MAX)
    }

    /// Longer than an hour counts as an hour.
    pub(crate) fn record(&mut self, latency: Duration) {
        self.nanoseconds.saturating_record(nanoseconds(latency));
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.nanoseconds.add(&other.nanoseconds).expect("all histograms have the same bounds");
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Finer than any answer over a socket.
const LATENCY_NS_MIN: u64 = 100;

/// An hour.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;
