//! Stores only the non-empty buckets of a histogram, for traffic reports and for the history in the control plane.

use std::time::Duration;

use super::{BUCKETS, bucket_middle};

/// The non-empty buckets of a [`Histogram`](super::Histogram) with their counts: usually a few dozen entries,
/// while all buckets take about 2 KiB.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SparseHistogram {
    /// The number and count of each non-empty bucket, in ascending order.
    buckets: Vec<(u8, u32)>,
}

impl SparseHistogram {
    /// Adds `count` to a bucket. A bucket number beyond the last bucket counts as the last bucket; counts
    /// saturate.
    pub fn add(&mut self, bucket: u8, count: u64) {
        let bucket = bucket.min(LAST_BUCKET);
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if count == 0 {
            return;
        }
        match self.buckets.binary_search_by_key(&bucket, |(number, _)| *number) {
            Ok(index) => {
                if let Some((_, sum)) = self.buckets.get_mut(index) {
                    *sum = sum.saturating_add(count);
                }
            }
            Err(index) => self.buckets.insert(index, (bucket, count)),
        }
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, count) in &other.buckets {
            self.add(*bucket, u64::from(*count));
        }
    }

    /// Returns the non-empty buckets with their counts, in ascending order.
    pub fn buckets(&self) -> impl Iterator<Item = (u8, u32)> + '_ {
        self.buckets.iter().copied()
    }

    /// Returns the number of recorded durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| u64::from(*count)).sum()
    }

    /// Returns the bucket of the duration that the given share of all durations does not exceed. `quantile` is
    /// from 0 to 1. Returns `None` if the histogram is empty.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Option<u8> {
        let count = self.count();
        // The rank of `Histogram::quantile`.
        let rank = ((quantile * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut cumulative_count = 0;
        let bucket = self.buckets.iter().find(|(_, count)| {
            cumulative_count += u64::from(*count);
            cumulative_count >= rank
        });
        bucket.map(|(bucket, _)| *bucket)
    }
}

impl FromIterator<(u8, u64)> for SparseHistogram {
    fn from_iter<I: IntoIterator<Item = (u8, u64)>>(buckets: I) -> Self {
        let mut histogram = Self::default();
        for (bucket, count) in buckets {
            histogram.add(bucket, count);
        }
        histogram
    }
}

/// Returns the duration that represents a bucket: the one with the same relative distance to both ends.
#[must_use]
pub fn bucket_duration(bucket: u8) -> Duration {
    bucket_middle(usize::from(bucket.min(LAST_BUCKET)))
}

/// The number of the last bucket; it fits in a byte.
const LAST_BUCKET: u8 = (BUCKETS - 1) as u8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::histogram::Histogram;

    fn record_micros(us: &[u64]) -> Histogram {
        let mut histogram = Histogram::new();
        us.iter().for_each(|us| histogram.record(Duration::from_micros(*us)));
        histogram
    }

    proptest! {
        #[test]
        fn a_merged_histogram_has_the_quantiles_of_all_values(
            first in prop::collection::vec(0_u64..10_000_000, 0..200),
            second in prop::collection::vec(0_u64..10_000_000, 0..200),
            share in 0.0_f64..1.0,
        ) {
            let mut merged: SparseHistogram = record_micros(&first).buckets().collect();
            merged.merge(&record_micros(&second).buckets().collect());
            let combined = record_micros(&[first, second].concat());
            prop_assert_eq!(merged.count(), combined.count());
            let quantile = merged.quantile(share).map_or(Duration::ZERO, bucket_duration);
            prop_assert_eq!(quantile, combined.quantile(share));
        }
    }

    #[test]
    fn counts_saturate_and_no_bucket_is_beyond_the_last() {
        let mut histogram: SparseHistogram =
            [(255, u64::MAX), (LAST_BUCKET, 1), (3, 0)].into_iter().collect();
        histogram.merge(&histogram.clone());
        assert_eq!(histogram.buckets().collect::<Vec<_>>(), [(LAST_BUCKET, u32::MAX)]);
        assert!(bucket_duration(255) > Duration::from_secs(3600));
        assert_eq!(SparseHistogram::default().quantile(0.5), None);
    }
}
