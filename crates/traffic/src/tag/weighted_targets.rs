//! Chooses among the targets of a tag rule or lane at random by weight.

use leno_model::{TagSplit, WeightUnit};

/// Targets by weight. Each target has a range of points, from the end of the previous target's range to its own end. A
/// random point selects the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightedTargets {
    /// The end of each target's range of points.
    range_ends: Box<[u64]>,
    /// The number of points, including those of no target.
    total_points: u64,
}

impl WeightedTargets {
    /// Returns the targets of a split. The second value is true if their percentages add up to less than 100, so that
    /// the remaining points belong to no target.
    pub(super) fn from_split(split: &TagSplit) -> (Self, bool) {
        let mut end = 0_u64;
        let ends = split.targets.iter().map(|target| {
            end = end.saturating_add(u64::from(target.weight));
            match split.weights {
                WeightUnit::Relative => end,
                WeightUnit::Percent => end.min(TOTAL_PERCENT),
            }
        });
        let range_ends: Box<[u64]> = ends.collect();
        let last_end = range_ends.last().copied().unwrap_or(0);
        match split.weights {
            WeightUnit::Relative => (Self { range_ends, total_points: last_end }, false),
            WeightUnit::Percent => {
                (Self { range_ends, total_points: TOTAL_PERCENT }, last_end < TOTAL_PERCENT)
            }
        }
    }

    /// Returns the targets of a lane, which have percentages. The points after the last target belong to no target.
    pub(super) fn from_percentages(percentages: impl Iterator<Item = u32>) -> Self {
        let mut end = 0_u64;
        let ends = percentages.map(|percent| {
            end = end.saturating_add(u64::from(percent)).min(TOTAL_PERCENT);
            end
        });
        Self { range_ends: ends.collect(), total_points: TOTAL_PERCENT }
    }

    /// Returns the number of points; points are numbered from 0.
    #[must_use]
    pub fn total_points(&self) -> u64 {
        self.total_points
    }

    /// Returns the number of targets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range_ends.len()
    }

    /// True if there are no targets.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range_ends.is_empty()
    }

    /// Returns the number of points of the target at this index. For the number of targets as the index, returns the
    /// number of points that belong to no target.
    #[must_use]
    pub fn target_points(&self, index: usize) -> u64 {
        let end = |index| self.range_ends.get(index).copied();
        let previous_end = index.checked_sub(1).and_then(end).unwrap_or(0);
        end(index).unwrap_or(self.total_points).saturating_sub(previous_end)
    }

    /// Returns the index of the target that a point selects; the number of targets if the point belongs to no target.
    #[must_use]
    pub fn target_at(&self, point: u64) -> usize {
        self.range_ends.iter().position(|end| point < *end).unwrap_or(self.range_ends.len())
    }

    /// Returns the only target with points; `None` if several targets have points.
    fn only_target(&self) -> Option<usize> {
        let first = self.target_at(0);
        (self.target_points(first) >= self.total_points).then_some(first)
    }

    /// Selects a target at random; makes no random choice if only one target is possible.
    pub(super) fn choose_target(
        &self,
        purpose: ChoicePurpose,
        random: &mut impl RandomChoice,
    ) -> usize {
        self.only_target().unwrap_or_else(|| random.pick_target(purpose, self))
    }
}

/// The purpose of a random choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChoicePurpose {
    /// A target of the matching rule.
    Route,
    /// A target of the matching rule's fallback.
    Fallback,
    /// A list of a caller rule.
    Caller,
    /// The headers of a lane.
    Lane,
}

/// A source of random choices.
pub trait RandomChoice {
    /// Returns the index of the selected target; the number of targets if no target is selected.
    fn pick_target(&mut self, purpose: ChoicePurpose, targets: &WeightedTargets) -> usize;
}

/// Chooses by uniform random numbers of 64 bits, which the function returns.
impl<F: FnMut() -> u64> RandomChoice for F {
    fn pick_target(&mut self, _: ChoicePurpose, targets: &WeightedTargets) -> usize {
        // Totals are far below 64 bits, so the bias of the remainder is negligible.
        let point = self().checked_rem(targets.total_points).unwrap_or(0);
        targets.target_at(point)
    }
}

/// The number of points of targets with percentages.
const TOTAL_PERCENT: u64 = 100;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use leno_model::{TagSet, TagTarget};

    use super::*;

    fn tag_split(weights: &[u32], unit: WeightUnit) -> TagSplit {
        let target = |weight: &u32| TagTarget { weight: *weight, set: TagSet::AllInstances };
        TagSplit { targets: weights.iter().map(target).collect(), weights: unit }
    }

    #[test]
    fn points_belong_to_targets_by_weight() {
        for (weights, unit, expected, has_remainder) in [
            (&[1, 3][..], WeightUnit::Relative, &[1, 3, 0][..], false),
            (&[20, 40], WeightUnit::Percent, &[20, 40, 40], true),
            (&[80, 80], WeightUnit::Percent, &[80, 20, 0], false),
            (&[0, 100], WeightUnit::Percent, &[0, 100, 0], false),
            (&[], WeightUnit::Percent, &[100], true),
        ] {
            let (shares, leaves_remainder) = WeightedTargets::from_split(&tag_split(weights, unit));
            let mut counts = BTreeMap::new();
            for point in 0..shares.total_points() {
                *counts.entry(shares.target_at(point)).or_insert(0_u64) += 1;
            }
            for (index, points) in expected.iter().enumerate() {
                assert_eq!(counts.get(&index).copied().unwrap_or(0), *points, "{weights:?}");
                assert_eq!(shares.target_points(index), *points, "{weights:?}");
            }
            assert_eq!(leaves_remainder, has_remainder, "{weights:?}");
        }
    }

    #[test]
    fn a_single_possible_target_needs_no_random_choice() {
        let mut panicking_choice = || -> u64 { panic!("a random choice was made") };
        for (weights, expected) in [(&[100][..], 0), (&[0, 100], 1), (&[100, 50], 0), (&[], 0)] {
            let (shares, _) = WeightedTargets::from_split(&tag_split(weights, WeightUnit::Percent));
            assert_eq!(
                shares.choose_target(ChoicePurpose::Route, &mut panicking_choice),
                expected,
                "{weights:?}"
            );
        }
    }
}
