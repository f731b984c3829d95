//! Match counter slots of compiled rules.

use std::sync::atomic::{AtomicU32, Ordering};

/// The index of the match counter of one rule. Threads share it; the first match stores the index, so that
/// later matches need no lookup by name.
///
/// Two rules are equal whatever their counters are, so all slots compare equal.
#[derive(Debug, Default)]
pub struct MatchSlot(AtomicU32);

impl MatchSlot {
    /// Returns the index, and stores the result of `find` first if it is unknown (0).
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
