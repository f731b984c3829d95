//! Index of path prefixes that consist of whole elements.

use rustc_hash::FxHashMap;

/// Values by path prefix; a prefix ends at an element boundary.
#[derive(Debug, Clone)]
pub(crate) struct PrefixIndex<T> {
    held: FxHashMap<Box<[u8]>, T>,
    /// The distinct lengths of the prefixes, in descending order.
    lengths: Box<[usize]>,
}

impl<T> PrefixIndex<T> {
    /// Builds the index from distinct prefixes.
    pub(crate) fn from_prefixes(held: impl Iterator<Item = (Box<str>, T)>) -> Self {
        let held: FxHashMap<Box<[u8]>, T> =
            held.map(|(beginning, it)| (beginning.into_boxed_bytes(), it)).collect();
        let mut lengths: Vec<usize> = held.keys().map(|beginning| beginning.len()).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.dedup();
        Self { held, lengths: lengths.into() }
    }

    /// Returns the first result of `found` over the values of a path's prefixes, the longest first.
    #[inline]
    pub(crate) fn find_longest<'a, R>(
        &'a self,
        path: &str,
        mut found: impl FnMut(&'a T) -> Option<R>,
    ) -> Option<R> {
        let path = path.as_bytes();
        for length in &self.lengths {
            let Some((beginning, rest)) = path.split_at_checked(*length) else { continue };
            if !matches!(rest, [] | [b'/', ..]) {
                continue;
            }
            let held = self.held.get(beginning);
            if let Some(found) = held.and_then(&mut found) {
                return Some(found);
            }
        }
        None
    }

    /// Calls `take` with the value of each prefix of a normalized path that ends at an element boundary or
    /// before a dot.
    #[inline]
    pub(crate) fn each_meant<'a>(&'a self, path: &str, mut take: impl FnMut(&'a T)) {
        let path = path.as_bytes();
        for length in &self.lengths {
            let Some((beginning, rest)) = path.split_at_checked(*length) else { continue };
            if matches!(rest, [] | [b'/' | b'.', ..])
                && let Some(held) = self.held.get(beginning)
            {
                take(held);
            }
        }
    }

    /// Calls `take` with the value of each prefix of a path.
    #[inline]
    pub(crate) fn for_each_prefix<'a>(&'a self, path: &str, mut take: impl FnMut(&'a T)) {
        self.find_longest(path, |held| {
            take(held);
            None::<()>
        });
    }
}

impl<T> Default for PrefixIndex<T> {
    fn default() -> Self {
        Self { held: FxHashMap::default(), lengths: Box::default() }
    }
}

/// Returns the whole elements that all paths with this textual prefix share, if any.
pub(crate) fn whole_elements(text: &str) -> Option<&str> {
    let (elements, _) = text.rsplit_once('/')?;
    (!elements.is_empty()).then_some(elements)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_path() -> impl Strategy<Value = String> {
        proptest::collection::vec("[abä]{0,2}", 0..5).prop_map(|elements| elements.join("/"))
    }

    proptest! {
        #[test]
        fn what_is_found_is_what_the_path_has(
            held in proptest::collection::btree_set(any_path(), 0..8),
            path in any_path(),
        ) {
            let beginnings = PrefixIndex::from_prefixes(held.iter().map(|it| (it.as_str().into(), it)));
            let has = |beginning: &&String| {
                let rest = path.strip_prefix(beginning.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            let mut expected: Vec<&String> = held.iter().filter(has).collect();
            expected.sort_by_key(|it| std::cmp::Reverse(it.len()));
            let mut found = Vec::new();
            beginnings.for_each_prefix(&path, |it| found.push(*it));
            prop_assert_eq!(&found, &expected);
            let first = beginnings.find_longest(&path, |it| it.contains('a').then_some(*it));
            prop_assert_eq!(first, expected.into_iter().find(|it| it.contains('a')));
        }

        #[test]
        fn who_begins_with_a_text_has_its_whole_elements(text in any_path(), rest in any_path()) {
            if let Some(elements) = whole_elements(&text) {
                let beginnings = PrefixIndex::from_prefixes(std::iter::once((elements.into(), ())));
                let path = [text.as_str(), &rest].concat();
                prop_assert!(beginnings.find_longest(&path, Some).is_some());
            }
        }
    }
}
