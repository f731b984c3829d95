//! Defines a ring buffer of traffic per time step, with a bounded size.

use std::collections::VecDeque;
use std::time::Duration;

use leno_telemetry::SparseHistogram;

/// Requests that were completed in one report, or in one time step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RequestBatch {
    /// The number of requests, including failed ones.
    pub(crate) requests: u64,
    /// The number of failed requests.
    pub(crate) failed: u64,
    pub(crate) durations: SparseHistogram,
}

/// Totals of one step, in 12 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct StepTotals {
    pub(crate) requests: u32,
    pub(crate) failed: u32,
    /// The histogram bucket of the median duration; `None` without requests.
    pub(crate) p50: Option<u8>,
    /// The histogram bucket of the 99th percentile; `None` without requests.
    pub(crate) p99: Option<u8>,
}

/// The most recent steps of equal length. The newest few keep their full histograms, so that they can be
/// updated and summed. Time is an argument, and monotonic.
#[derive(Debug, Clone)]
pub(crate) struct StepRing {
    step_length: Duration,
    /// The maximum number of steps.
    capacity: usize,
    /// The number of the newest steps that keep their histogram.
    max_histograms: usize,
    /// The number of the newest step, counted from time zero; 0 while there is none.
    newest_step: u64,
    /// The totals of the steps, the newest first.
    steps: VecDeque<StepTotals>,
    /// Histograms of the newest steps, in the same order.
    histograms: VecDeque<SparseHistogram>,
}

impl StepRing {
    /// Creates a ring of `capacity` steps, of which the newest `max_histograms` can be summed.
    pub(crate) fn new(step_length: Duration, capacity: usize, max_histograms: usize) -> Self {
        let steps = VecDeque::with_capacity(capacity);
        Self {
            step_length,
            capacity,
            max_histograms,
            newest_step: 0,
            steps,
            histograms: VecDeque::new(),
        }
    }

    /// Adds requests that were completed at `now`, or shortly before.
    pub(crate) fn add(&mut self, now: Duration, batch: &RequestBatch) {
        self.push_steps_until(self.step_number(now));
        let (Some(step), Some(histogram)) = (self.steps.front_mut(), self.histograms.front_mut())
        else {
            return;
        };
        let add =
            |sum: u32, amount: u64| sum.saturating_add(u32::try_from(amount).unwrap_or(u32::MAX));
        step.requests = add(step.requests, batch.requests);
        step.failed = add(step.failed, batch.failed);
        histogram.merge(&batch.durations);
        (step.p50, step.p99) = (histogram.quantile(0.50), histogram.quantile(0.99));
    }

    /// Returns the sum of the newest `max_histograms` steps up to `now`, including its current step.
    pub(crate) fn sum_recent(&self, now: Duration) -> RequestBatch {
        let mut total = RequestBatch::default();
        let passed_steps = self.passed_steps(now).unwrap_or(self.max_histograms);
        let summed_steps = self.max_histograms.saturating_sub(passed_steps);
        for (step, durations) in self.steps.iter().zip(&self.histograms).take(summed_steps) {
            total.requests += u64::from(step.requests);
            total.failed += u64::from(step.failed);
            total.durations.merge(durations);
        }
        total
    }

    /// Returns the start of the oldest step that [`StepRing::sum_recent`] sums.
    pub(crate) fn recent_since(&self, now: Duration) -> Duration {
        let steps_before = u64::try_from(self.max_histograms.saturating_sub(1)).unwrap_or(0);
        let first_step = self.step_number(now).saturating_sub(steps_before);
        self.step_length.saturating_mul(u32::try_from(first_step).unwrap_or(u32::MAX))
    }

    /// Returns all `capacity` steps, the oldest first and the step of `now` last.
    pub(crate) fn steps(&self, now: Duration) -> Vec<StepTotals> {
        let passed_steps = self.passed_steps(now).unwrap_or(self.capacity).min(self.capacity);
        let remaining_steps = self.steps.iter().take(self.capacity - passed_steps);
        let mut steps = vec![StepTotals::default(); passed_steps];
        steps.extend(remaining_steps);
        steps.resize(self.capacity, StepTotals::default());
        steps.reverse();
        steps
    }

    /// Returns the step length.
    pub(crate) fn step_length(&self) -> Duration {
        self.step_length
    }

    fn step_number(&self, now: Duration) -> u64 {
        u64::try_from(now.as_nanos() / self.step_length.as_nanos().max(1)).unwrap_or(u64::MAX)
    }

    /// Returns the number of steps that began after the newest one; `None` if the ring is empty.
    fn passed_steps(&self, now: Duration) -> Option<usize> {
        let passed_count = self.step_number(now).saturating_sub(self.newest_step);
        (!self.steps.is_empty()).then(|| usize::try_from(passed_count).unwrap_or(usize::MAX))
    }

    /// Makes the step with this number the newest one, if it is not older.
    fn push_steps_until(&mut self, step_number: u64) {
        let new_steps = match self.steps.is_empty() {
            true => 1,
            false => step_number.saturating_sub(self.newest_step),
        };
        self.newest_step = self.newest_step.max(step_number);
        // After a long pause, new empty steps replace all old ones.
        let new_steps = usize::try_from(new_steps).unwrap_or(usize::MAX).min(self.capacity);
        for _ in 0..new_steps {
            self.steps.truncate(self.capacity - 1);
            self.steps.push_front(StepTotals::default());
            self.histograms.truncate(self.max_histograms - 1);
            self.histograms.push_front(SparseHistogram::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make_batch(requests: u64, failed: u64, bucket: u8) -> RequestBatch {
        RequestBatch { requests, failed, durations: [(bucket, requests)].into_iter().collect() }
    }

    fn step_counts(ring: &StepRing, now: u64) -> Vec<u32> {
        ring.steps(Duration::from_secs(now)).iter().map(|step| step.requests).collect()
    }

    fn small_ring() -> StepRing {
        StepRing::new(Duration::from_secs(10), 5, 2)
    }

    #[test]
    fn the_oldest_steps_are_dropped_as_time_passes() {
        let mut ring = small_ring();
        assert_eq!(step_counts(&ring, 0), [0; 5]);
        for now in [3, 9, 12, 38] {
            ring.add(Duration::from_secs(now), &make_batch(now, 0, 1));
        }
        assert_eq!(step_counts(&ring, 38), [0, 12, 12, 0, 38]);
        assert_eq!(step_counts(&ring, 59), [12, 0, 38, 0, 0]);
        assert_eq!(step_counts(&ring, 1_000_000), [0; 5]);
        ring.add(Duration::from_secs(1_000_000), &make_batch(7, 1, 1));
        assert_eq!(step_counts(&ring, 1_000_009), [0, 0, 0, 0, 7]);
        assert_eq!((ring.steps.len(), ring.histograms.len()), (5, 2));
    }

    #[test]
    fn recent_steps_are_summed_with_their_durations() {
        let mut ring = small_ring();
        ring.add(Duration::from_secs(5), &make_batch(100, 100, 9));
        ring.add(Duration::from_secs(15), &make_batch(98, 3, 10));
        ring.add(Duration::from_secs(25), &make_batch(2, 1, 200));
        let recent_batch = ring.sum_recent(Duration::from_secs(29));
        assert_eq!((recent_batch.requests, recent_batch.failed), (100, 4));
        assert_eq!(
            (recent_batch.durations.quantile(0.5), recent_batch.durations.quantile(0.99)),
            (Some(10), Some(200))
        );
        assert_eq!(ring.recent_since(Duration::from_secs(29)), Duration::from_secs(10));
        assert_eq!(ring.sum_recent(Duration::from_secs(30)).requests, 2);
        assert_eq!(ring.sum_recent(Duration::from_secs(40)), RequestBatch::default());
    }

    #[test]
    fn each_step_has_its_own_quantiles() {
        let mut ring = small_ring();
        ring.add(Duration::from_secs(1), &make_batch(10, 0, 20));
        ring.add(Duration::from_secs(11), &make_batch(10, 0, 40));
        ring.add(Duration::from_secs(12), &make_batch(1, 0, 90));
        let steps = ring.steps(Duration::from_secs(12));
        assert_eq!((steps[3].p50, steps[3].p99), (Some(20), Some(20)));
        assert_eq!((steps[4].p50, steps[4].p99), (Some(40), Some(90)));
        assert_eq!(steps[0], StepTotals::default());
    }

    #[test]
    fn a_late_report_counts_in_the_newest_step() {
        let mut ring = small_ring();
        ring.add(Duration::from_secs(25), &make_batch(1, 0, 0));
        ring.add(Duration::from_secs(12), &make_batch(2, 0, 0));
        assert_eq!(step_counts(&ring, 25), [0, 0, 0, 0, 3]);
    }

    #[test]
    fn a_step_has_twelve_bytes() {
        assert_eq!(size_of::<StepTotals>(), 12);
    }
}
