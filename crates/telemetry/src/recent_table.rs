//! A bounded map that evicts the least recently used entry (an LRU cache).

use std::collections::BTreeMap;
use std::ops::RangeBounds;

/// A table of at most `MAX` entries. An entry is used by its insertion, by [`Self::entry`] and by
/// [`Self::use_value`]; [`Self::get`] and the iterators only read.
#[derive(Debug)]
pub struct RecentTable<K, V, const MAX: usize> {
    entries: BTreeMap<K, TableEntry<V>>,
    /// The keys by the number of their last use: the first is the least recently used.
    keys_by_last_use: BTreeMap<u64, K>,
    /// The number of uses since the creation of the table.
    use_count: u64,
}

/// A value, and its last use.
#[derive(Debug)]
struct TableEntry<V> {
    value: V,
    /// The number of the last use, a key of `keys_by_last_use`.
    last_use: u64,
}

impl<K, V, const MAX: usize> Default for RecentTable<K, V, MAX> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), keys_by_last_use: BTreeMap::new(), use_count: 0 }
    }
}

impl<K: Ord + Clone, V, const MAX: usize> RecentTable<K, V, MAX> {
    /// Uses the entry of a key, which `new` creates if the key has none. Returns the value, and the entry that
    /// was evicted to make room.
    pub fn entry(&mut self, key: K, new: impl FnOnce() -> V) -> (&mut V, Option<(K, V)>) {
        let evicted = match self.entries.contains_key(&key) {
            true => None,
            false => self.make_room(),
        };
        self.use_count += 1;
        let use_number = self.use_count;
        self.keys_by_last_use.insert(use_number, key.clone());
        let keys_by_last_use = &mut self.keys_by_last_use;
        let entry = self.entries.entry(key).and_modify(|entry| {
            keys_by_last_use.remove(&entry.last_use);
            entry.last_use = use_number;
        });
        (
            &mut entry.or_insert_with(|| TableEntry { value: new(), last_use: use_number }).value,
            evicted,
        )
    }

    /// Inserts or replaces a value. Returns the entry that was evicted to make room.
    pub fn insert(&mut self, key: K, value: V) -> Option<(K, V)> {
        let mut value = Some(value);
        let (slot, evicted) = self.entry(key, || value.take().expect("this is called once"));
        if let Some(value) = value {
            *slot = value;
        }
        evicted
    }

    /// Uses the entry of a key, and returns its value; `None` if the key has no entry.
    pub fn use_value(&mut self, key: &K) -> Option<&mut V> {
        let entry = self.entries.get_mut(key)?;
        self.use_count += 1;
        if let Some(key) = self.keys_by_last_use.remove(&entry.last_use) {
            self.keys_by_last_use.insert(self.use_count, key);
        }
        entry.last_use = self.use_count;
        Some(&mut entry.value)
    }

    /// Returns the value of a key. This does not count as a use.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|entry| &entry.value)
    }

    /// True if the key has an entry.
    #[must_use]
    pub fn contains_key(&self, key: &K) -> bool {
        self.entries.contains_key(key)
    }

    /// Removes the entry of a key, and returns its value; `None` if the key has no entry.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let entry = self.entries.remove(key)?;
        self.keys_by_last_use.remove(&entry.last_use);
        Some(entry.value)
    }

    /// Retains the entries for which `predicate` is true.
    pub fn retain(&mut self, mut predicate: impl FnMut(&K, &mut V) -> bool) {
        let keys_by_last_use = &mut self.keys_by_last_use;
        self.entries.retain(|key, entry| {
            let is_retained = predicate(key, &mut entry.value);
            if !is_retained {
                keys_by_last_use.remove(&entry.last_use);
            }
            is_retained
        });
    }

    /// Returns all entries, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, entry)| (key, &entry.value))
    }

    /// Returns the keys in a range, in key order. This does not count as a use.
    pub fn keys_in(&self, range: impl RangeBounds<K>) -> impl Iterator<Item = &K> {
        self.entries.range(range).map(|(key, _)| key)
    }

    /// Returns all keys by their last use, the least recently used first.
    pub fn least_recent(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.keys_by_last_use.values()
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Evicts the least recently used entry if the table is full.
    fn make_room(&mut self) -> Option<(K, V)> {
        if self.entries.len() < MAX {
            return None;
        }
        let (_, key) = self.keys_by_last_use.pop_first()?;
        let entry = self.entries.remove(&key)?;
        Some((key, entry.value))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: usize = 8;

    proptest! {
        /// Checks that the table contains the most recently used entries, each with the number of its uses
        /// since its insertion.
        #[test]
        fn the_most_recently_used_entries_are_retained_with_their_values(
            uses in prop::collection::vec((0..24_u8, any::<bool>()), 0..400)
        ) {
            let mut table = RecentTable::<u8, u64, MAX>::default();
            // The newest last.
            let mut model: Vec<(u8, u64)> = Vec::new();
            for (key, is_removal) in uses {
                let position = model.iter().position(|(candidate, _)| *candidate == key);
                let previous = position.map(|index| model.remove(index));
                if is_removal && key % 4 == 0 {
                    prop_assert_eq!(table.remove(&key), previous.map(|(_, count)| count));
                    continue;
                }
                let count = previous.map_or(0, |(_, count)| count) + 1;
                let expected = (model.len() == MAX).then(|| model.remove(0));
                model.push((key, count));
                let (value, evicted) = table.entry(key, || 0);
                *value += 1;
                prop_assert_eq!(*value, count);
                prop_assert_eq!(evicted, expected);
                let order: Vec<u8> = table.least_recent().copied().collect();
                let keys: Vec<u8> = model.iter().map(|(key, _)| *key).collect();
                prop_assert_eq!(order, keys);
                prop_assert_eq!(table.keys_by_last_use.len(), table.entries.len());
            }
        }
    }

    #[test]
    fn a_read_does_not_count_as_a_use() {
        let mut table = RecentTable::<u8, &str, 2>::default();
        assert_eq!(table.insert(1, "one"), None);
        assert_eq!(table.insert(2, "two"), None);
        assert_eq!(table.get(&1), Some(&"one"));
        assert_eq!(table.insert(3, "three"), Some((1, "one")));
        assert_eq!(table.use_value(&2), Some(&mut "two"));
        assert_eq!(table.use_value(&1), None);
        assert_eq!(table.insert(4, "four"), Some((3, "three")));
        assert_eq!(table.insert(2, "again"), None);
        assert_eq!(table.iter().collect::<Vec<_>>(), [(&2, &"again"), (&4, &"four")]);
        table.retain(|key, _| *key == 4);
        assert_eq!((table.len(), table.least_recent().count()), (1, 1));
    }
}
