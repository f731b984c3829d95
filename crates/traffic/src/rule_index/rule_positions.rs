//! Ordered union of sorted lists of rule positions.

use std::ops::Range;

/// The distinct positions of several lists, in order.
#[derive(Debug)]
pub(crate) struct RulePositions<'a> {
    /// The remainders of the first lists, usually all: they need no allocation.
    inline: [&'a [usize]; MAX_INLINE_LISTS],
    overflow: Vec<&'a [usize]>,
    /// All positions, if the index cannot be used.
    all: Range<usize>,
}

impl<'a> RulePositions<'a> {
    /// Creates an empty union.
    pub(crate) fn empty() -> Self {
        Self { inline: [&[]; MAX_INLINE_LISTS], overflow: Vec::new(), all: 0..0 }
    }

    /// Creates the union of all positions.
    pub(crate) fn all_rules(rules: usize) -> Self {
        Self { all: 0..rules, ..Self::empty() }
    }

    /// Adds a list.
    pub(crate) fn add_list(&mut self, list: &'a [usize]) {
        if list.is_empty() {
            return;
        }
        match self.inline.iter_mut().find(|remaining| remaining.is_empty()) {
            Some(remaining) => *remaining = list,
            None => self.overflow.push(list),
        }
    }
}

impl Iterator for RulePositions<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let lists = self.inline.iter().chain(&self.overflow);
        let Some(next) = lists.filter_map(|remaining| remaining.first()).copied().min() else {
            return self.all.next();
        };
        for remaining in self.inline.iter_mut().chain(&mut self.overflow) {
            if let Some((first, rest)) = remaining.split_first()
                && *first == next
            {
                *remaining = rest;
            }
        }
        Some(next)
    }
}

/// Enough for the path as sent and as decoded, the rules without conditions, and one more list.
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
