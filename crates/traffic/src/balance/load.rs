//! Load of a candidate: requests in progress, response time and weight.

use leno_model::Weight;

/// The load of a candidate, for comparison with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Requests in progress plus consecutive failures.
    pub in_progress: u32,
    /// The response time, from [`EndpointLatency::latency_step`](super::EndpointLatency::latency_step).
    pub step: Option<u8>,
    /// The weight; absent if all weights are equal.
    pub weight: Option<Weight>,
}

impl Load {
    /// Creates the load of a candidate with only the number of requests in progress known.
    #[must_use]
    pub const fn from_requests(under_way: u32) -> Self {
        Self { in_progress: under_way, step: None, weight: None }
    }

    /// True if this candidate is expected to answer the next request sooner: the product of its requests in
    /// progress, relative to its weight, and its response time is smaller. An unknown response time counts as
    /// equal to the other's.
    #[must_use]
    pub fn is_less_than(self, other: Self) -> bool {
        let steps = self.step.zip(other.step);
        if self.weight.is_none() && other.weight.is_none() {
            return match steps {
                None => self.in_progress < other.in_progress,
                Some((here, there)) => {
                    self.request_count() << here < other.request_count() << there
                }
            };
        }
        let (here, there) = steps.unwrap_or_default();
        let (own, others) = (self.effective_weight(), other.effective_weight());
        (self.weighted_load(own) << here) * others < (other.weighted_load(others) << there) * own
    }

    /// Includes the next request. At most 2^32.
    fn request_count(self) -> u64 {
        u64::from(self.in_progress) + 1
    }

    /// Scales the requests in progress by the weight, in units of the default weight; the next request counts
    /// as one. Idle candidates are thus equal, since the draw already follows the weights. Below 2^28.
    fn weighted_load(self, weight: u64) -> u64 {
        u64::from(self.in_progress.min(UNDER_WAY_MAX)) * u64::from(Weight::DEFAULT) + weight
    }

    fn effective_weight(self) -> u64 {
        u64::from(self.weight.unwrap_or_default().as_u16())
    }
}

/// The maximum with weights: with steps below 2^5 and weights below 2^10 nothing overflows.
const UNDER_WAY_MAX: u32 = (1 << 20) - 1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn test_load(under_way: u32, step: Option<u8>, weight: u16) -> Load {
        Load { in_progress: under_way, step, weight: Weight::new(weight) }
    }

    #[test]
    fn what_is_under_way_counts_by_how_long_it_takes() {
        let load = |(under_way, step)| test_load(under_way, step, 0);
        for (one, other, is_less) in [
            ((1, None), (2, None), true),
            ((2, None), (2, None), false),
            // Three requests at eight times the speed finish before one.
            ((2, Some(10)), (0, Some(13)), true),
            ((8, Some(10)), (0, Some(13)), false),
            // The response time of the other is unknown.
            ((2, Some(10)), (1, None), false),
            ((0, Some(20)), (1, None), true),
        ] {
            let (one, other) = (load(one), load(other));
            assert_eq!(one.is_less_than(other), is_less, "{one:?} {other:?}");
        }
    }

    #[test]
    fn what_is_under_way_counts_by_the_weight() {
        for (one, other, is_less) in [
            ((4, 400), (2, 100), true),
            ((8, 400), (2, 100), false),
            ((9, 400), (2, 100), false),
            // Idle candidates are equal.
            ((0, 1000), (0, 1), false),
            ((0, 1), (0, 1000), false),
        ] {
            let (one, other) = (test_load(one.0, None, one.1), test_load(other.0, None, other.1));
            assert_eq!(one.is_less_than(other), is_less, "{one:?} {other:?}");
        }
    }

    proptest! {
        #[test]
        fn of_two_one_at_most_is_less_and_more_under_way_is_never_less(
            (one, other) in ((any::<u32>(), 0..25_u8), (any::<u32>(), 0..25_u8)),
            (own, others) in (0..=1000_u16, 0..=1000_u16),
            more in any::<u32>(),
        ) {
            let here = test_load(one.0, Some(one.1), own);
            let there = test_load(other.0, Some(other.1), others);
            prop_assert!(!(here.is_less_than(there) && there.is_less_than(here)));
            let busier = Load { in_progress: here.in_progress.saturating_add(more), ..here };
            prop_assert!(!busier.is_less_than(here));
            prop_assert!(here.is_less_than(there) || !busier.is_less_than(there));
        }
    }
}
