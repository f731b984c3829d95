//! Merges the sorted lists of rule positions that an index lookup finds into one ordered sequence.

use std::ops::Range;

/// An iterator over the distinct positions of several sorted lists, in ascending order.
#[derive(Debug)]
pub(crate) struct RulePositions<'a> {
    /// The remaining positions of the first lists, which need no allocation.
    inline_lists: [&'a [usize]; MAX_INLINE_LISTS],
    /// The remaining positions of all further lists.
    overflow_lists: Vec<&'a [usize]>,
    /// All positions, if the index cannot be used.
    all_positions: Range<usize>,
}

impl<'a> RulePositions<'a> {
    /// Creates an iterator without positions.
    pub(crate) fn empty() -> Self {
        Self {
            inline_lists: [&[]; MAX_INLINE_LISTS],
            overflow_lists: Vec::new(),
            all_positions: 0..0,
        }
    }

    /// Creates an iterator over the positions of all rules, of which there are `count`.
    pub(crate) fn all_rules(count: usize) -> Self {
        Self { all_positions: 0..count, ..Self::empty() }
    }

    /// Adds the positions of a sorted list.
    pub(crate) fn add_list(&mut self, list: &'a [usize]) {
        if list.is_empty() {
            return;
        }
        match self.inline_lists.iter_mut().find(|remaining| remaining.is_empty()) {
            Some(remaining) => *remaining = list,
            None => self.overflow_lists.push(list),
        }
    }
}

impl Iterator for RulePositions<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let lists = self.inline_lists.iter().chain(&self.overflow_lists);
        let Some(next_position) = lists.filter_map(|remaining| remaining.first()).copied().min()
        else {
            return self.all_positions.next();
        };
        for remaining in self.inline_lists.iter_mut().chain(&mut self.overflow_lists) {
            if let Some((first, later_positions)) = remaining.split_first()
                && *first == next_position
            {
                *remaining = later_positions;
            }
        }
        Some(next_position)
    }
}

/// The maximum number of lists without an allocation. Usual lookups have lists for the path as sent, the decoded path
/// and the rules without conditions.
const MAX_INLINE_LISTS: usize = 4;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lists_are_merged_in_order(
            lists in proptest::collection::vec(proptest::collection::btree_set(0_usize..12, 0..5), 0..8),
        ) {
            let expected: BTreeSet<usize> = lists.iter().flatten().copied().collect();
            let lists: Vec<Vec<usize>> = lists.into_iter().map(Vec::from_iter).collect();
            let mut positions = RulePositions::empty();
            lists.iter().for_each(|list| positions.add_list(list));
            prop_assert_eq!(positions.collect::<Vec<_>>(), Vec::from_iter(expected));
        }
    }

    #[test]
    fn all_rules_yields_every_position() {
        assert_eq!(RulePositions::all_rules(3).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
