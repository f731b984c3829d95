//! Weighted random selection of targets, determined by a seed.

/// Selects targets by weight; the same seed gives the same order.
#[derive(Debug)]
pub(crate) struct TargetSampler {
    state: u64,
    /// The cumulative weights of the targets.
    sums: Vec<u64>,
    total: u64,
}

impl TargetSampler {
    /// Requires a weight above 0; targets of weight 0 are never selected.
    pub(crate) fn new(weights: impl Iterator<Item = u32>, seed: u64) -> Self {
        let mut total = 0;
        let sums = weights
            .map(|weight| {
                total += u64::from(weight);
                total
            })
            .collect();
        debug_assert!(total > 0, "a checked plan has a weight above 0");
        Self { state: seed, sums, total }
    }

    /// Returns the index of the next target.
    pub(crate) fn next(&mut self) -> usize {
        if self.sums.len() == 1 {
            return 0;
        }
        // Scaled by multiplication: the bias is less than one part in 2^32.
        let scaled = (u128::from(self.random()) * u128::from(self.total)) >> 64;
        self.sums.partition_point(|sum| u128::from(*sum) <= scaled)
    }

    /// SplitMix64: small, uniform, and good with any seed.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_sequence(weights: &[u32], seed: u64, length: usize) -> Vec<usize> {
        let mut sampler = TargetSampler::new(weights.iter().copied(), seed);
        (0..length).map(|_| sampler.next()).collect()
    }

    #[test]
    fn targets_are_sampled_in_proportion_to_their_weights() {
        let weights = [90, 0, 10, 100];
        for seed in 0..20 {
            let samples = sample_sequence(&weights, seed, 20_000);
            for (index, weight) in weights.iter().enumerate() {
                let count = samples.iter().filter(|i| **i == index).count();
                let expected = *weight as usize * 100;
                assert!(count.abs_diff(expected) < 400, "seed {seed} target {index}: {count}");
                assert!(*weight != 0 || count == 0);
            }
        }
    }

    #[test]
    fn the_seed_determines_the_order() {
        assert_eq!(sample_sequence(&[1, 2, 3], 7, 1000), sample_sequence(&[1, 2, 3], 7, 1000));
        assert_ne!(sample_sequence(&[1, 2, 3], 7, 1000), sample_sequence(&[1, 2, 3], 8, 1000));
    }
}
