//! Match counter slots. The proxy counts the matches of each rule in per-thread metrics, and each compiled rule caches
//! the index of its counter in a slot.

use std::sync::atomic::{AtomicU32, Ordering};

/// The cached index of a rule's match counter, shared by all threads. The first match stores the index, so that later
/// matches need no lookup by name.
///
/// All slots compare equal, so that the counters do not affect the comparison of rules.
#[derive(Debug, Default)]
pub struct MatchSlot(AtomicU32);

impl MatchSlot {
    /// Returns the index. If the index is unknown (0), calls `find` and stores its result. Two threads may both call
    /// `find`; the order is relaxed, because no other memory depends on the index.
    pub fn index_or_find(&self, find: impl FnOnce() -> u32) -> u32 {
        match self.0.load(Ordering::Relaxed) {
            0 => {
                let index = find();
                self.0.store(index, Ordering::Relaxed);
                index
            }
            index => index,
        }
    }
}

impl Clone for MatchSlot {
    fn clone(&self) -> Self {
        Self(AtomicU32::new(self.0.load(Ordering::Relaxed)))
    }
}

impl PartialEq for MatchSlot {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for MatchSlot {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_looked_up_once() {
        let slot = MatchSlot::default();
        assert_eq!(slot.index_or_find(|| 0), 0);
        assert_eq!(slot.index_or_find(|| 7), 7);
        assert_eq!(slot.index_or_find(|| unreachable!("the index is known")), 7);
        assert_eq!(slot.clone().index_or_find(|| unreachable!("the index is known")), 7);
    }
}
