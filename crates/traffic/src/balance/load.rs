//! How loaded a candidate is: what it has under way, how long it takes, and how much it should get.

use leno_model::Weight;

/// The load of a candidate, to be compared with that of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Requests under way, and those that have failed in a row.
    pub under_way: u32,
    /// How long it takes to answer, as [`Latency::step`](super::Latency::step) tells.
    pub step: Option<u8>,
    /// How much it should get; absent where all get the same.
    pub weight: Option<Weight>,
}

impl Load {
    /// Of a candidate of which only is known what it has under way.
    #[must_use]
    pub const fn of(under_way: u32) -> Self {
        Self { under_way, step: None, weight: None }
    }

    /// Whether the next request is answered sooner here than there: where what is under way with it,
    /// beside what should be, times how long it takes is less. A candidate of which is not known how
    /// long it takes is taken to take as long as the other.
    #[must_use]
    pub fn is_less_than(self, other: Self) -> bool {
        let steps = self.step.zip(other.step);
        if self.weight.is_none() && other.weight.is_none() {
            return match steps {
                None => self.under_way < other.under_way,
                Some((here, there)) => self.requests() << here < other.requests() << there,
            };
        }
        let (here, there) = steps.unwrap_or_default();
        let (own, others) = (self.weight(), other.weight());
        (self.weighted(own) << here) * others < (other.weighted(others) << there) * own
    }

    /// With the one to come. At most 2^32.
    fn requests(self) -> u64 {
        u64::from(self.under_way) + 1
    }

    /// In requests of somebody of the usual weight, times the weight: what is under way counts by the
    /// weight, the one to come is one. Whoever has nothing under way is as good as anybody like it,
    /// for how often it is drawn says what it should get. Below 2^28.
    fn weighted(self, weight: u64) -> u64 {
        u64::from(self.under_way.min(UNDER_WAY_MAX)) * u64::from(Weight::DEFAULT) + weight
    }

    fn weight(self) -> u64 {
        u64::from(self.weight.unwrap_or_default().number())
    }
}

/// Beside weights what is more counts as this: with steps below 2^5 and weights below 2^10 nothing overflows.
const UNDER_WAY_MAX: u32 = (1 << 20) - 1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn load(under_way: u32, step: Option<u8>, weight: u16) -> Load {
        Load { under_way, step, weight: Weight::new(weight) }
    }

    #[test]
    fn what_is_under_way_counts_by_how_long_it_takes() {
        for (one, other, is_less) in [
            ((1, None), (2, None), true),
            ((2, None), (2, None), false),
            // Three at eight times the speed are done before one.
            ((2, Some(10)), (0, Some(13)), true),
            ((8, Some(10)), (0, Some(13)), false),
            // Nobody knows how long the other takes.
            ((2, Some(10)), (1, None), false),
            ((0, Some(20)), (1, None), true),
        ] {
            let (one, other) = (load(one.0, one.1, 0), load(other.0, other.1, 0));
            assert_eq!(one.is_less_than(other), is_less, "{one:?} {other:?}");
        }
    }

    #[test]
    fn what_is_under_way_counts_by_the_weight() {
        for (one, other, is_less) in [
            ((4, 400), (2, 100), true),
            ((8, 400), (2, 100), false),
            ((9, 400), (2, 100), false),
            // Who does nothing is as good as another who does nothing.
            ((0, 1000), (0, 1), false),
            ((0, 1), (0, 1000), false),
        ] {
            let (one, other) = (load(one.0, None, one.1), load(other.0, None, other.1));
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
            let here = load(one.0, Some(one.1), own);
            let there = load(other.0, Some(other.1), others);
            prop_assert!(!(here.is_less_than(there) && there.is_less_than(here)));
            let busier = Load { under_way: here.under_way.saturating_add(more), ..here };
            prop_assert!(!busier.is_less_than(here));
            prop_assert!(here.is_less_than(there) || !busier.is_less_than(there));
        }
    }
}
