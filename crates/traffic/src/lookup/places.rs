//! Places of rules, in order, out of several lists that are in order.

use std::ops::Range;

/// All places that some lists have together, in order, each once.
#[derive(Debug)]
pub(crate) struct Places<'a> {
    /// What is left of the first lists, which are all as a rule: they take no memory of their own.
    few: [&'a [usize]; FEW],
    more: Vec<&'a [usize]>,
    /// All of them, where nothing can be looked up.
    all: Range<usize>,
}

impl<'a> Places<'a> {
    /// Those of no list.
    pub(crate) fn none() -> Self {
        Self { few: [&[]; FEW], more: Vec::new(), all: 0..0 }
    }

    /// As many as there are.
    pub(crate) fn all(rules: usize) -> Self {
        Self { all: 0..rules, ..Self::none() }
    }

    /// Adds those of a list.
    pub(crate) fn add(&mut self, list: &'a [usize]) {
        if list.is_empty() {
            return;
        }
        match self.few.iter_mut().find(|left| left.is_empty()) {
            Some(left) => *left = list,
            None => self.more.push(list),
        }
    }
}

impl Iterator for Places<'_> {
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

/// A path as it was sent and decoded, the rules that demand nothing, and one more.
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
            let mut places = Places::none();
            lists.iter().for_each(|list| places.add(list));
            prop_assert_eq!(places.collect::<Vec<_>>(), Vec::from_iter(together));
        }
    }

    #[test]
    fn all_are_as_many_as_there_are() {
        assert_eq!(Places::all(3).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
