//! Compares the load of candidates for a request. A load consists of requests in progress, response time and weight.
//! Power of two choices and other algorithms that prefer less loaded endpoints compare loads.

use leno_model::Weight;

/// The load of a candidate, for comparison with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// The requests in progress. Balancers that consider latency add
    /// [`EndpointLatency::failure_count`](super::EndpointLatency::failure_count).
    pub effective_requests: u32,
    /// The binary logarithm of the response time in microseconds, from
    /// [`EndpointLatency::latency_log2`](super::EndpointLatency::latency_log2); `None` if unknown.
    pub latency_log2: Option<u8>,
    /// The weight; `None` if all endpoints have the same weight.
    pub weight: Option<Weight>,
}

impl Load {
    /// Creates the load of a candidate without known response time and weight.
    #[must_use]
    pub const fn from_requests(effective_requests: u32) -> Self {
        Self { effective_requests, latency_log2: None, weight: None }
    }

    /// True if this candidate is expected to respond to the next request sooner than the other: the product of
    /// response time and requests in progress, divided by the weight, is smaller. If one response time is unknown, the
    /// two response times count as equal.
    #[must_use]
    pub fn is_less_than(self, other: Self) -> bool {
        let latencies = self.latency_log2.zip(other.latency_log2);
        if self.weight.is_none() && other.weight.is_none() {
            return match latencies {
                None => self.effective_requests < other.effective_requests,
                Some((own_log2, other_log2)) => {
                    self.count_with_next() << own_log2 < other.count_with_next() << other_log2
                }
            };
        }
        // Without both response times, neither load is shifted.
        let (own_log2, other_log2) = latencies.unwrap_or_default();
        let (own_weight, other_weight) = (self.effective_weight(), other.effective_weight());
        (self.weighted_load(own_weight) << own_log2) * other_weight
            < (other.weighted_load(other_weight) << other_log2) * own_weight
    }

    /// Returns the number of requests in progress, including the next request. At most 2^32.
    fn count_with_next(self) -> u64 {
        u64::from(self.effective_requests) + 1
    }

    /// Returns the requests in progress, scaled so that the next request counts as this weight. Idle candidates thus
    /// have equal loads, because the random choice already considers the weights. Below 2^28.
    fn weighted_load(self, weight: u64) -> u64 {
        u64::from(self.effective_requests.min(MAX_WEIGHTED_REQUESTS)) * u64::from(Weight::DEFAULT)
            + weight
    }

    /// Returns the weight, or the default weight if it is absent.
    fn effective_weight(self) -> u64 {
        u64::from(self.weight.unwrap_or_default().as_u16())
    }
}

/// The maximum number of requests in progress that is compared by weight, so that weighted loads are below 2^28.
/// Shifted by at most 24 bits and multiplied by a weight below 2^10, they are below 2^62 and do not overflow.
const MAX_WEIGHTED_REQUESTS: u32 = (1 << 20) - 1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn test_load(effective_requests: u32, latency_log2: Option<u8>, weight: u16) -> Load {
        Load { effective_requests, latency_log2, weight: Weight::new(weight) }
    }

    #[test]
    fn requests_in_progress_count_by_response_time() {
        let load = |(request_count, latency)| test_load(request_count, latency, 0);
        for (left, right, is_less) in [
            ((1, None), (2, None), true),
            ((2, None), (2, None), false),
            // Three requests at eight times the speed finish before one.
            ((2, Some(10)), (0, Some(13)), true),
            ((8, Some(10)), (0, Some(13)), false),
            // The response time of the other is unknown.
            ((2, Some(10)), (1, None), false),
            ((0, Some(20)), (1, None), true),
        ] {
            let (left, right) = (load(left), load(right));
            assert_eq!(left.is_less_than(right), is_less, "{left:?} {right:?}");
        }
    }

    #[test]
    fn requests_in_progress_count_by_weight() {
        for (left, right, is_less) in [
            ((4, 400), (2, 100), true),
            ((8, 400), (2, 100), false),
            ((9, 400), (2, 100), false),
            // Idle candidates are equal.
            ((0, 1000), (0, 1), false),
            ((0, 1), (0, 1000), false),
        ] {
            let (left, right) =
                (test_load(left.0, None, left.1), test_load(right.0, None, right.1));
            assert_eq!(left.is_less_than(right), is_less, "{left:?} {right:?}");
        }
    }

    proptest! {
        #[test]
        fn comparison_is_antisymmetric_and_monotonic(
            (first, second) in ((any::<u32>(), 0..25_u8), (any::<u32>(), 0..25_u8)),
            (first_weight, second_weight) in (0..=1000_u16, 0..=1000_u16),
            added_requests in any::<u32>(),
        ) {
            let first_load = test_load(first.0, Some(first.1), first_weight);
            let second_load = test_load(second.0, Some(second.1), second_weight);
            prop_assert!(!(first_load.is_less_than(second_load) && second_load.is_less_than(first_load)));
            let busier_requests = first_load.effective_requests.saturating_add(added_requests);
            let busier_load = Load { effective_requests: busier_requests, ..first_load };
            prop_assert!(!busier_load.is_less_than(first_load));
            prop_assert!(first_load.is_less_than(second_load) || !busier_load.is_less_than(second_load));
        }
    }
}
