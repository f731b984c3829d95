//! Counts durations in histograms with logarithmic buckets, eight per power of two.

mod sparse;

use std::fmt;
use std::time::Duration;

use crate::cell::{SingleWriterCell, cell_array};

pub use sparse::{SparseHistogram, bucket_duration};

/// A histogram of durations from a microsecond to 71 minutes. Quantiles have an error of at most 6 %, or one
/// microsecond. Histograms of several threads, series or processes can be merged without further loss.
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    /// The sum of the durations, in microseconds.
    sum_us: u64,
}

impl Histogram {
    /// Creates an empty histogram.
    #[must_use]
    pub fn new() -> Self {
        Self { counts: Box::new([0; BUCKETS]), sum_us: 0 }
    }

    /// Counts a duration.
    pub fn record(&mut self, duration: Duration) {
        let us = to_micros(duration);
        self.counts[bucket_index(us)] += 1;
        self.sum_us = self.sum_us.saturating_add(us);
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (count, added) in self.counts.iter_mut().zip(other.counts.iter()) {
            *count += added;
        }
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
    }

    /// Returns the number of recorded durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of the recorded durations.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.sum_us)
    }

    /// Returns the duration that the given share of all durations does not exceed. `quantile` is from 0 to 1.
    /// Returns zero if the histogram is empty.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Duration {
        let count = self.count();
        // Conversion from float to integer saturates, and NaN becomes the lowest rank.
        let rank = ((quantile * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut cumulative_count = 0;
        for (index, count_in_bucket) in self.counts.iter().enumerate() {
            cumulative_count += count_in_bucket;
            if cumulative_count >= rank {
                return bucket_middle(index);
            }
        }
        Duration::ZERO
    }

    /// Returns the number and count of each non-empty bucket, in order of the numbers.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (u8, u64)> + '_ {
        let numbered_counts = (0..).zip(self.counts.iter());
        numbered_counts.filter(|(_, count)| **count > 0).map(|(bucket, count)| (bucket, *count))
    }

    /// Returns the number of durations up to each of these limits. The limits must be in ascending order.
    pub fn cumulative_counts<'a>(
        &'a self,
        upper_limits: &'a [Duration],
    ) -> impl Iterator<Item = (Duration, u64)> + 'a {
        let mut buckets = self.counts.iter().enumerate().peekable();
        let mut cumulative_count = 0;
        upper_limits.iter().map(move |limit| {
            while let Some((_, count)) =
                buckets.next_if(|(index, _)| bucket_middle(*index) <= *limit)
            {
                cumulative_count += count;
            }
            (*limit, cumulative_count)
        })
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count())
            .field("sum", &self.sum())
            .field("p50", &self.quantile(0.50))
            .field("p99", &self.quantile(0.99))
            .finish()
    }
}

/// A histogram that one thread writes and other threads may read concurrently.
#[derive(Debug)]
pub(crate) struct HistogramCells {
    counts: [SingleWriterCell; BUCKETS],
    sum_us: SingleWriterCell,
}

impl HistogramCells {
    pub(crate) fn new() -> Self {
        Self { counts: cell_array(), sum_us: SingleWriterCell::default() }
    }

    pub(crate) fn record(&self, duration: Duration) {
        let us = to_micros(duration);
        self.counts[bucket_index(us)].add(1);
        self.sum_us.add(us);
    }

    /// Adds the counts of these cells to `total`.
    pub(crate) fn add_to(&self, total: &mut Histogram) {
        for (count, cell) in total.counts.iter_mut().zip(&self.counts) {
            *count += cell.read();
        }
        total.sum_us = total.sum_us.saturating_add(self.sum_us.read());
    }
}

/// Converts a duration to microseconds; saturates.
fn to_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the bucket of a number of microseconds. Below 16 it is the number itself; otherwise it is determined
/// by the position of the first bit and the three bits after it.
fn bucket_index(us: u64) -> usize {
    let us = us.min(MAX_MICROS);
    let shift = us.max(STEPS_PER_DOUBLING).ilog2() - STEP_BITS;
    let step = us >> shift;
    // Below 16 the shift is 0; every further power of two adds eight buckets.
    usize::try_from(u64::from(shift) * STEPS_PER_DOUBLING + step).unwrap_or(BUCKETS - 1)
}

/// Returns the first number of microseconds in a bucket, and the first number after the bucket.
fn bucket_bounds(bucket: usize) -> (u64, u64) {
    let bucket = bucket as u64;
    let shift = (bucket / STEPS_PER_DOUBLING).saturating_sub(1);
    let step = bucket - shift * STEPS_PER_DOUBLING;
    (step << shift, (step + 1) << shift)
}

/// Returns the duration with the same relative distance to both ends of a bucket.
fn bucket_middle(bucket: usize) -> Duration {
    let (lower, upper) = bucket_bounds(bucket);
    // The product of the last bounds has 64 bits, so the factor needs 128.
    let ns = 2_000 * u128::from(lower) * u128::from(upper) / u128::from(lower + upper);
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// The number of bits that distinguish the steps of a power of two. With eight steps, the middle of a step is
/// at most 1/17 away from its ends.
const STEP_BITS: u32 = 3;
/// The number of steps (buckets) per power of two.
const STEPS_PER_DOUBLING: u64 = 1 << STEP_BITS;

/// The longest distinguishable duration: 71 minutes.
const MAX_MICROS: u64 = (1 << MICROS_BITS) - 1;
/// The number of bits of [`MAX_MICROS`].
const MICROS_BITS: u32 = 32;

/// The number of buckets; their numbers fit in a byte.
pub const BUCKETS: usize = (MICROS_BITS - STEP_BITS + 1) as usize * STEPS_PER_DOUBLING as usize;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buckets_follow_each_other_without_gap() {
        let mut expected_start = 0;
        for index in 0..BUCKETS {
            let (lower, upper) = bucket_bounds(index);
            assert_eq!(lower, expected_start, "{index}");
            assert_eq!(bucket_index(lower), index);
            assert_eq!(bucket_index(upper - 1), index);
            let middle = bucket_middle(index);
            assert!(
                middle >= Duration::from_micros(lower) && middle < Duration::from_micros(upper)
            );
            expected_start = upper;
        }
        assert_eq!(expected_start, MAX_MICROS + 1);
        assert_eq!(bucket_index(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn an_empty_histogram_has_no_quantile_and_shares_are_clamped() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.quantile(0.5), Duration::ZERO);
        histogram.record(Duration::from_millis(1));
        for share in [-1.0, 0.0, 1.0, 7.0, f64::NAN, f64::INFINITY] {
            let quantile = histogram.quantile(share).as_secs_f64();
            assert!((quantile - 0.001).abs() < 0.000_06, "{share} {quantile}");
        }
    }

    #[test]
    fn cumulative_counts_include_all_smaller_durations() {
        let mut histogram = Histogram::new();
        for ms in [1_u64, 2, 3, 50, 5_000] {
            histogram.record(Duration::from_millis(ms));
        }
        let upper_limits: Vec<_> = [4, 60, 6_000].map(Duration::from_millis).into();
        let counts: Vec<_> =
            histogram.cumulative_counts(&upper_limits).map(|(_, count)| count).collect();
        assert_eq!(counts, [3, 4, 5]);
    }

    /// Returns the element of a sorted list that the given share of its elements does not exceed.
    fn exact_quantile(sorted: &[u64], share: f64) -> u64 {
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted[rank.clamp(1, sorted.len()) - 1]
    }

    proptest! {
        #[test]
        fn quantiles_are_within_six_percent_or_a_microsecond(
            // Evenly over all orders of magnitude, up to the longest distinguishable duration.
            mut ns in prop::collection::vec((0_u32..=42, any::<u64>())
                .prop_map(|(bits, n)| (n & ((1 << bits) - 1)).min(MAX_MICROS * 1_000)), 1..200),
            share in 0.0..=1.0,
        ) {
            let mut histogram = Histogram::new();
            ns.iter().for_each(|n| histogram.record(Duration::from_nanos(*n)));
            ns.sort_unstable();
            let exact = exact_quantile(&ns, share) as f64;
            let computed = histogram.quantile(share).as_nanos() as f64;
            let error = (computed - exact).abs();
            prop_assert!(error <= exact * 0.06 || error < 1_000.0, "{computed} for {exact}");
        }

        #[test]
        fn a_merged_histogram_equals_a_recording_of_both(
            left in prop::collection::vec(0..u64::from(u32::MAX), 0..50),
            right in prop::collection::vec(0..u64::from(u32::MAX), 0..50),
        ) {
            let record_all = |us: &mut dyn Iterator<Item = &u64>| {
                let mut histogram = Histogram::new();
                us.for_each(|us| histogram.record(Duration::from_micros(*us)));
                histogram
            };
            let mut merged = record_all(&mut left.iter());
            merged.merge(&record_all(&mut right.iter()));
            prop_assert_eq!(merged, record_all(&mut left.iter().chain(&right)));
        }
    }
}
