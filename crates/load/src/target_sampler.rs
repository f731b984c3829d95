//! Selects targets at random by their weights; a seed determines the order.

/// Selects targets by weight; the same seed gives the same order.
#[derive(Debug)]
pub(crate) struct TargetSampler {
    state: u64,
    /// The cumulative weights of the targets.
    cumulative_weights: Vec<u64>,
    total_weight: u64,
}

impl TargetSampler {
    /// Creates a sampler. At least one weight must be above 0; targets of weight 0 are never selected.
    pub(crate) fn new(weights: impl Iterator<Item = u32>, seed: u64) -> Self {
        let mut total_weight = 0;
        let cumulative_weights = weights
            .map(|weight| {
                total_weight += u64::from(weight);
                total_weight
            })
            .collect();
        debug_assert!(total_weight > 0, "a checked plan has a weight above 0");
        Self { state: seed, cumulative_weights, total_weight }
    }

    /// Returns the index of the next target.
    pub(crate) fn next_target_index(&mut self) -> usize {
        if self.cumulative_weights.len() == 1 {
            return 0;
        }
        // Scaled by multiplication: the bias is less than one part in 2^32.
        let scaled = (u128::from(self.next_random()) * u128::from(self.total_weight)) >> 64;
        self.cumulative_weights.partition_point(|sum| u128::from(*sum) <= scaled)
    }

    /// Returns the next random number of SplitMix64, which is uniform with any seed.
    fn next_random(&mut self) -> u64 {
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
        (0..length).map(|_| sampler.next_target_index()).collect()
    }

    #[test]
    fn targets_are_sampled_in_proportion_to_their_weights() {
        let weights = [90, 0, 10, 100];
        for seed in 0..20 {
            let samples = sample_sequence(&weights, seed, 20_000);
            for (index, weight) in weights.iter().enumerate() {
                let count = samples.iter().filter(|sample| **sample == index).count();
                let expected = *weight as usize * 100;
                // 400 is more than five standard deviations.
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
