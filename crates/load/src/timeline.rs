//! Records counts and latencies of a run over time, in a limited number of intervals.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Results per interval of the measured time. When the number of intervals would exceed its limit, pairs of neighbors
/// are merged: the longer the run, the longer its intervals.
#[derive(Debug, Clone)]
pub struct Timeline {
    interval: Duration,
    interval_statistics: Vec<IntervalStatistics>,
}

/// Results of one interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntervalResult {
    /// The start of the interval, after the warm-up.
    pub at: Duration,
    /// Requests with a response or a failure.
    pub requests: u64,
    /// The number of unsuccessful requests.
    pub errors: u64,
    /// The median latency of successful requests; `None` if there are none.
    pub p50: Option<Duration>,
    /// The 99th percentile of the latency of successful requests; `None` if there are none.
    pub p99: Option<Duration>,
}

/// The counts and latencies of one interval, which can be merged.
#[derive(Debug, Clone)]
struct IntervalStatistics {
    requests: u64,
    errors: u64,
    latencies_us: Histogram<u32>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { interval: MIN_INTERVAL, interval_statistics: Vec::new() }
    }
}

impl Timeline {
    /// Returns the interval length.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Returns the intervals in order, including those without requests.
    pub fn intervals(&self) -> impl Iterator<Item = IntervalResult> {
        (0..).zip(&self.interval_statistics).map(|(index, statistics)| {
            let quantile = |fraction| {
                let latencies_us = &statistics.latencies_us;
                let microseconds = latencies_us.value_at_quantile(fraction).min(latencies_us.max());
                (!latencies_us.is_empty()).then(|| Duration::from_micros(microseconds))
            };
            IntervalResult {
                at: self.interval * index,
                requests: statistics.requests,
                errors: statistics.errors,
                p50: quantile(0.5),
                p99: quantile(0.99),
            }
        })
    }

    /// Records a request that ended at `since_warm_up`, the time since the end of the warm-up. `latency` is `None` for
    /// an unsuccessful request.
    pub(crate) fn record(&mut self, since_warm_up: Duration, latency: Option<Duration>) {
        let statistics = self.statistics_at(since_warm_up);
        statistics.requests += 1;
        match latency {
            Some(latency) => {
                let microseconds = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
                statistics.latencies_us.saturating_record(microseconds);
            }
            None => statistics.errors += 1,
        }
    }

    /// Adds the results of another thread that ran at the same time.
    pub(crate) fn merge(&mut self, other: &Self) {
        let mut other = other.clone();
        while self.interval < other.interval {
            self.merge_neighbors();
        }
        while other.interval < self.interval {
            other.merge_neighbors();
        }
        let shared_count = self.interval_statistics.len().min(other.interval_statistics.len());
        let additional_statistics = other.interval_statistics.split_off(shared_count);
        for (own_statistics, other_statistics) in
            self.interval_statistics.iter_mut().zip(&other.interval_statistics)
        {
            own_statistics.merge(other_statistics);
        }
        if self.interval_statistics.len() == shared_count {
            self.interval_statistics.extend(additional_statistics);
        }
    }

    fn statistics_at(&mut self, since_warm_up: Duration) -> &mut IntervalStatistics {
        let mut index = self.interval_index(since_warm_up);
        while index >= MAX_INTERVALS {
            self.merge_neighbors();
            index = self.interval_index(since_warm_up);
        }
        if index >= self.interval_statistics.len() {
            self.interval_statistics.resize_with(index + 1, IntervalStatistics::default);
        }
        &mut self.interval_statistics[index]
    }

    /// Returns the index of the interval that contains a time, at the current interval length.
    fn interval_index(&self, since_warm_up: Duration) -> usize {
        usize::try_from(since_warm_up.as_nanos() / self.interval.as_nanos()).unwrap_or(usize::MAX)
    }

    /// Doubles the interval and merges neighbors. This happens ten times in a run of a day.
    fn merge_neighbors(&mut self) {
        self.interval *= 2;
        let mut old_statistics = std::mem::take(&mut self.interval_statistics).into_iter();
        while let Some(mut first) = old_statistics.next() {
            // The last interval has no neighbor if their number is odd.
            if let Some(second) = old_statistics.next() {
                first.merge(&second);
            }
            self.interval_statistics.push(first);
        }
    }
}

impl Default for IntervalStatistics {
    fn default() -> Self {
        // Two significant digits: a precision of one percent.
        let histogram = Histogram::new_with_bounds(1, MAX_LATENCY_US, 2);
        let latencies_us = histogram.expect("the bounds are constant and valid");
        Self { requests: 0, errors: 0, latencies_us }
    }
}

impl IntervalStatistics {
    fn merge(&mut self, other: &Self) {
        self.requests += other.requests;
        self.errors += other.errors;
        self.latencies_us.add(&other.latencies_us).expect("all histograms have the same bounds");
    }
}

/// The initial length of an interval: short enough to show a stall, long enough for a few requests.
const MIN_INTERVAL: Duration = Duration::from_millis(250);

/// The maximum number of intervals, enough for a plot: each has a histogram of about 13 KiB.
const MAX_INTERVALS: usize = 120;

/// The maximum latency of the histograms: one hour.
const MAX_LATENCY_US: u64 = 3_600_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn requests_count_in_the_interval_of_their_end_and_empty_intervals_are_kept() {
        let mut timeline = Timeline::default();
        timeline.record(ms(0), Some(ms(2)));
        timeline.record(ms(249), None);
        timeline.record(ms(600), Some(ms(5)));
        let intervals: Vec<IntervalResult> = timeline.intervals().collect();
        assert_eq!(intervals.len(), 3);
        assert_eq!((intervals[0].requests, intervals[0].errors), (2, 1));
        let p50 = intervals[0].p50.unwrap();
        assert!(p50.abs_diff(ms(2)) <= ms(2) / 50, "{p50:?}");
        assert_eq!((intervals[1].requests, intervals[1].p99), (0, None));
        assert_eq!((intervals[2].at, intervals[2].requests), (ms(500), 1));
    }

    #[test]
    fn a_long_run_keeps_every_request_in_longer_intervals() {
        let mut timeline = Timeline::default();
        for second in 0..86_400 {
            timeline.record(Duration::from_secs(second), Some(ms(1)));
        }
        let intervals: Vec<IntervalResult> = timeline.intervals().collect();
        assert!(intervals.len() <= MAX_INTERVALS && intervals.len() > MAX_INTERVALS / 3);
        assert_eq!(intervals.iter().map(|interval| interval.requests).sum::<u64>(), 86_400);
    }

    #[test]
    fn timelines_of_different_resolution_add_up() {
        let mut long = Timeline::default();
        let mut short = Timeline::default();
        for tick in 0..400 {
            long.record(ms(tick * 100), Some(ms(1)));
        }
        for tick in 0..10 {
            short.record(ms(tick * 100), None);
        }
        let mut first = long.clone();
        first.merge(&short);
        let mut second = short;
        second.merge(&long);
        let reported: Vec<IntervalResult> = first.intervals().collect();
        assert_eq!(reported, second.intervals().collect::<Vec<_>>());
        assert_eq!(reported.iter().map(|interval| interval.requests).sum::<u64>(), 410);
        assert_eq!(reported.iter().map(|interval| interval.errors).sum::<u64>(), 10);
    }
}
