//! Records latencies in histograms that can be merged.

use std::time::Duration;

use hdrhistogram::Histogram;

/// A latency histogram with a precision of one part in a thousand.
#[derive(Debug, Clone)]
pub struct LatencyHistogram {
    nanoseconds: Histogram<u64>,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(MIN_LATENCY_NS, MAX_LATENCY_NS, 3);
        Self { nanoseconds: histogram.expect("the bounds are constant and valid") }
    }
}

impl LatencyHistogram {
    /// Returns the number of recorded latencies.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.nanoseconds.len()
    }

    /// Returns the median; `None` without requests.
    #[must_use]
    pub fn p50(&self) -> Option<Duration> {
        self.quantile(0.5)
    }

    /// Returns the 90th percentile; `None` without requests.
    #[must_use]
    pub fn p90(&self) -> Option<Duration> {
        self.quantile(0.9)
    }

    /// Returns the 99th percentile; `None` without requests.
    #[must_use]
    pub fn p99(&self) -> Option<Duration> {
        self.quantile(0.99)
    }

    /// Returns the 99.9th percentile; `None` without requests.
    #[must_use]
    pub fn p999(&self) -> Option<Duration> {
        self.quantile(0.999)
    }

    /// Returns the minimum; `None` without requests.
    #[must_use]
    pub fn min(&self) -> Option<Duration> {
        (self.count() > 0).then(|| Duration::from_nanos(self.nanoseconds.min()))
    }

    /// Returns the maximum; `None` without requests.
    #[must_use]
    pub fn max(&self) -> Option<Duration> {
        (self.count() > 0).then(|| Duration::from_nanos(self.nanoseconds.max()))
    }

    /// Returns the mean; `None` without requests. Quantiles describe latency better, but other tools print the mean.
    #[must_use]
    pub fn mean(&self) -> Option<Duration> {
        (self.count() > 0).then(|| Duration::from_nanos(self.nanoseconds.mean() as u64))
    }

    /// Returns the quantile for a fraction of 0 to 1; `None` without requests.
    #[must_use]
    pub fn quantile(&self, fraction: f64) -> Option<Duration> {
        // The upper end of a histogram bucket may exceed the largest latency.
        let max = self.nanoseconds.max();
        let nanoseconds = self.nanoseconds.value_at_quantile(fraction).min(max);
        (self.count() > 0).then(|| Duration::from_nanos(nanoseconds))
    }

    /// Returns the number of requests with at least this latency, to the resolution of the histogram.
    #[must_use]
    pub fn count_from(&self, min_latency: Duration) -> u64 {
        self.nanoseconds.count_between(to_nanoseconds(min_latency), u64::MAX)
    }

    /// Records a latency; values above an hour count as an hour.
    pub(crate) fn record(&mut self, latency: Duration) {
        self.nanoseconds.saturating_record(to_nanoseconds(latency));
    }

    /// Adds all latencies of another histogram.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.nanoseconds.add(&other.nanoseconds).expect("all histograms have the same bounds");
    }
}

fn to_nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The minimum latency of the histogram, below that of any socket.
const MIN_LATENCY_NS: u64 = 100;

/// The maximum latency of the histogram: one hour.
const MAX_LATENCY_NS: u64 = 3_600_000_000_000;
