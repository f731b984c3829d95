//! Ordered union of sorted lists of rule positions.

use std::ops::Range;

/// The distinct positions of several lists, in order.
#[derive(Debug)]
pub(crate) struct RulePositions<'a> {
    /// The remainders of the first lists, usually all: they need no allocation.
    few: [&'a [usize]; FEW],
    more: Vec<&'a [usize]>,
    /// All positions, if the index cannot be used.
    all: Range<usize>,
}

impl<'a> RulePositions<'a> {
    /// Creates an empty union.
    pub(crate) fn empty() -> Self {
        Self { few: [&[]; FEW], more: Vec::new(), all: 0..0 }
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
        match self.few.iter_mut().find(|left| left.is_empty()) {
            Some(left) => *left = list,
            None => self.more.push(list),
        }
    }
}

impl Iterator for RulePositions<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let lists = self.few.iter().chain(&self.more);
        let Some(next) = lists.filter_map(|left| left.first()).copied().min() else {
            return self.all.next();
        };
        for left in self.few.iter_mut().chain(&mut self.more) {
            if let Some((first, rest)) = left.split_first()
                && *first == next
            {
                *left = rest;
            }
        }
        Some(next)
    }
}

/// The path as sent and as decoded, rules without conditions, and one more.
const FEW: usize = 4;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lists_are_one_in_order(
            lists in proptest::collection::vec(proptest::collection::btree_set(0_usize..12, 0..5), 0..8),
        ) {
            let together: BTreeSet<usize> = lists.iter().flatten().copied().collect();
            let lists: Vec<Vec<usize>> = lists.into_iter().map(Vec::from_iter).collect();
            let mut places = RulePositions::empty();
            lists.iter().for_each(|list| places.add_list(list));
            prop_assert_eq!(places.collect::<Vec<_>>(), Vec::from_iter(together));
        }
    }

    #[test]
    fn all_are_as_many_as_there_are() {
        assert_eq!(RulePositions::all_rules(3).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
