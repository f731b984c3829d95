//! Seeded random numbers of the simulation and of the tests with hostile peers.

/// A small seeded random number generator (SplitMix64).
pub(super) struct SeededRandom(pub(super) u64);

impl SeededRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below_bound(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(super) fn one_in(&mut self, bound: usize) -> bool {
        self.below_bound(bound) == 0
    }

    pub(super) fn random_head(&mut self) -> Vec<u8> {
        let size = if self.one_in(50) { 8_000 } else { 400 };
        (0..self.below_bound(size)).map(|_| self.0 as u8).collect()
    }
}
