//! Hits: where whoever counts keeps the number of a compiled rule.

use std::sync::atomic::{AtomicU32, Ordering};

/// Room for the number under which the decisions of one rule are counted. Threads share it; whoever
/// counts fills it in with the first decision, so that later ones look nothing up.
///
/// It says nothing about the rule: all of them are equal.
#[derive(Debug, Default)]
pub struct HitSlot(AtomicU32);

impl HitSlot {
    /// The number; `find` is asked while none is known, and 0 is none.
    pub fn number(&self, find: impl FnOnce() -> u32) -> u32 {
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

impl Clone for HitSlot {
    fn clone(&self) -> Self {
        Self(AtomicU32::new(self.0.load(Ordering::Relaxed)))
    }
}

impl PartialEq for HitSlot {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for HitSlot {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_looked_up_once() {
        let slot = HitSlot::default();
        assert_eq!(slot.number(|| 0), 0);
        assert_eq!(slot.number(|| 7), 7);
        assert_eq!(slot.number(|| unreachable!("it is known")), 7);
        assert_eq!(slot.clone().number(|| unreachable!("it is known")), 7);
    }
}
