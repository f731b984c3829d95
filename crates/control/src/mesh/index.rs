//! Defines `Index`, a map from keys to non-empty sets of values.

use std::collections::{BTreeMap, BTreeSet};

/// The values of each key, both in order. Keys without values are absent, so that indexes with equal contents
/// are equal regardless of their history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Index<K, V>(BTreeMap<K, BTreeSet<V>>);

impl<K, V> Default for Index<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone, V: Ord + Clone> Index<K, V> {
    /// Returns the values of a key, in order.
    pub(crate) fn values_for(&self, key: &K) -> impl Iterator<Item = &V> {
        self.0.get(key).into_iter().flatten()
    }

    /// Returns the keys with values, in order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }

    pub(crate) fn insert(&mut self, key: &K, value: &V) {
        let values = self.0.entry(key.clone()).or_default();
        values.insert(value.clone());
    }

    pub(crate) fn remove(&mut self, key: &K, value: &V) {
        if let Some(values) = self.0.get_mut(key) {
            values.remove(value);
            if values.is_empty() {
                self.0.remove(key);
            }
        }
    }

    /// Removes a key and returns its values.
    pub(crate) fn remove_key(&mut self, key: &K) -> BTreeSet<V> {
        self.0.remove(key).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_values_leave_no_empty_keys() {
        let mut index = Index::default();
        index.insert(&1, &"a");
        index.insert(&1, &"b");
        assert_eq!(index.values_for(&1).collect::<Vec<_>>(), [&"a", &"b"]);
        index.remove(&1, &"a");
        index.remove(&1, &"b");
        index.remove(&2, &"c");
        assert_eq!(index, Index::default());
    }
}
