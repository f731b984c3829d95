//! An index of path prefixes: finds all prefixes of a path with one lookup per length. Each prefix consists of whole
//! path elements, the texts between slashes. `/a/b` is a prefix of `/a/b` and `/a/b/c`, not of `/a/bc`.

use rustc_hash::FxHashMap;

/// Values by path prefix. Each prefix consists of whole path elements, and ends before the slash of the next element.
#[derive(Debug, Clone)]
pub(crate) struct PrefixIndex<T> {
    values: FxHashMap<Box<[u8]>, T>,
    /// The distinct lengths of the prefixes, in descending order.
    lengths: Box<[usize]>,
}

impl<T> PrefixIndex<T> {
    /// Builds the index from distinct prefixes.
    pub(crate) fn from_prefixes(entries: impl Iterator<Item = (Box<str>, T)>) -> Self {
        let values: FxHashMap<Box<[u8]>, T> =
            entries.map(|(prefix, value)| (prefix.into_boxed_bytes(), value)).collect();
        let mut lengths: Vec<usize> = values.keys().map(|prefix| prefix.len()).collect();
        lengths.sort_unstable_by(|first, second| second.cmp(first));
        lengths.dedup();
        Self { values, lengths: lengths.into() }
    }

    /// Calls `select` with the value of each prefix of a path, the longest first, until it returns a result. `None` if
    /// `select` accepts no value.
    #[inline]
    pub(crate) fn find_longest_accepted<'a, R>(
        &'a self,
        path: &str,
        mut select: impl FnMut(&'a T) -> Option<R>,
    ) -> Option<R> {
        let path = path.as_bytes();
        for length in &self.lengths {
            let Some((prefix, remainder)) = path.split_at_checked(*length) else { continue };
            if !matches!(remainder, [] | [b'/', ..]) {
                continue;
            }
            let value = self.values.get(prefix);
            if let Some(selected) = value.and_then(&mut select) {
                return Some(selected);
            }
        }
        None
    }

    /// Calls `on_value` with the value of each prefix of a normalized path, the longest first. A prefix may also end
    /// before a dot, because applications may read `/a.json` as `/a`.
    #[inline]
    pub(crate) fn for_each_prefix_or_stem<'a>(
        &'a self,
        path: &str,
        mut on_value: impl FnMut(&'a T),
    ) {
        let path = path.as_bytes();
        for length in &self.lengths {
            let Some((prefix, remainder)) = path.split_at_checked(*length) else { continue };
            if matches!(remainder, [] | [b'/' | b'.', ..])
                && let Some(value) = self.values.get(prefix)
            {
                on_value(value);
            }
        }
    }

    /// Calls `on_value` with the value of each prefix of a path, the longest first.
    #[inline]
    pub(crate) fn for_each_prefix<'a>(&'a self, path: &str, mut on_value: impl FnMut(&'a T)) {
        self.find_longest_accepted(path, |value| {
            on_value(value);
            None::<()>
        });
    }
}

impl<T> Default for PrefixIndex<T> {
    fn default() -> Self {
        Self { values: FxHashMap::default(), lengths: Box::default() }
    }
}

/// Returns the whole elements with which all paths with this textual prefix begin: `/a` for `/a/b`, because `/a/bc` has
/// the textual prefix as well. `None` if there are none.
pub(crate) fn common_whole_elements(prefix: &str) -> Option<&str> {
    let (elements, _) = prefix.rsplit_once('/')?;
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
        fn lookup_finds_every_prefix_of_the_path(
            values in proptest::collection::btree_set(any_path(), 0..8),
            path in any_path(),
        ) {
            let index = PrefixIndex::from_prefixes(values.iter().map(|prefix| (prefix.as_str().into(), prefix)));
            let is_prefix = |prefix: &&String| {
                let remainder = path.strip_prefix(prefix.as_str());
                remainder.is_some_and(|remainder| remainder.is_empty() || remainder.starts_with('/'))
            };
            let mut expected: Vec<&String> = values.iter().filter(is_prefix).collect();
            expected.sort_by_key(|prefix| std::cmp::Reverse(prefix.len()));
            let mut found_prefixes = Vec::new();
            index.for_each_prefix(&path, |prefix| found_prefixes.push(*prefix));
            prop_assert_eq!(&found_prefixes, &expected);
            let first_prefix = index.find_longest_accepted(&path, |prefix| prefix.contains('a').then_some(*prefix));
            prop_assert_eq!(first_prefix, expected.into_iter().find(|prefix| prefix.contains('a')));
        }

        #[test]
        fn a_path_with_a_textual_prefix_has_its_whole_elements(text in any_path(), suffix in any_path()) {
            if let Some(elements) = common_whole_elements(&text) {
                let index = PrefixIndex::from_prefixes(std::iter::once((elements.into(), ())));
                let path = [text.as_str(), &suffix].concat();
                prop_assert!(index.find_longest_accepted(&path, Some).is_some());
            }
        }
    }
}
