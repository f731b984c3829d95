//! Match counter slots of compiled rules.

use std::sync::atomic::{AtomicU32, Ordering};

/// The counter index of one rule's decisions. Threads share it; the first decision fills it in, so that later
/// ones need no lookup.
///
/// It is not part of the rule: all slots are equal.
#[derive(Debug, Default)]
pub struct MatchSlot(AtomicU32);

impl MatchSlot {
    /// Returns the index; calls `find` while it is unknown (0).
    pub fn index_or_find(&self, find: impl FnOnce() -> u32) -> u32 {
        match self.0.load(Ordering::Relaxed) {
            0 => {
                let number = find();
                self.0.store(number, Ordering::Relaxed);
                number
            }
            number => number,
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
    fn a_number_is_looked_up_once() {
        let slot = MatchSlot::default();
        assert_eq!(slot.index_or_find(|| 0), 0);
        assert_eq!(slot.index_or_find(|| 7), 7);
        assert_eq!(slot.index_or_find(|| unreachable!("it is known")), 7);
        assert_eq!(slot.clone().index_or_find(|| unreachable!("it is known")), 7);
    }
}
