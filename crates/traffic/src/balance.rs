//! Load balancing: the choice of an endpoint by power of two choices, which is the default. The submodules contain the
//! other algorithms, consistent hashing, slow start and load measurement.

mod choice;
pub mod hashing;
mod latency;
mod load;
pub mod policy;
mod slow_start;
mod weighted;

use leno_model::Weight;

pub use choice::{Balancer, KeyedCandidates, RequestHash};
pub use latency::EndpointLatency;
pub use load::Load;
pub use slow_start::SlowStartEndpoints;

/// The endpoints to choose from.
pub trait Candidates {
    /// Returns the number of candidates.
    fn len(&self) -> usize;

    /// Returns the load of the candidate at this index, below [`Self::len`].
    fn load(&self, index: usize) -> Load;

    /// Returns the weight of the candidate at this index; `None` if all weights are equal.
    fn weight(&self, index: usize) -> Option<Weight> {
        let _ = index;
        None
    }

    /// True if the candidate at this index, below [`Self::len`], may be chosen; false during back-off after a
    /// failed connect.
    fn is_usable(&self, index: usize) -> bool;

    /// True if the candidate at this index may be chosen when no candidate is usable; false if outlier detection
    /// ejected it.
    fn is_eligible(&self, index: usize) -> bool {
        let _ = index;
        true
    }

    /// True if there are no candidates.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Picks two different usable candidates at random and returns the one with less load (power of two choices).
/// If weights differ, candidates are picked by weight, and both picks may be the same one. `random` is a
/// uniform random number.
///
/// If no candidate is usable, the two are picked from all eligible candidates, because an attempt is better than a
/// certain failure. Returns `None` only if no candidate is eligible.
#[must_use]
pub fn pick_candidate<C: Candidates + ?Sized>(candidates: &C, random: u64) -> Option<usize> {
    let count = candidates.len();
    if count <= 1 {
        // A single candidate has no alternative, so it is picked even if it is not usable.
        return count
            .checked_sub(1)
            .filter(|only_candidate| candidates.is_eligible(*only_candidate));
    }
    if weighted::has_weights(candidates) {
        return weighted::pick_weighted(candidates, random);
    }
    let (first, second) = random_pair(count, random);
    match (candidates.is_usable(first), candidates.is_usable(second)) {
        (true, true) => Some(pick_less_loaded(candidates, first, second)),
        _ => pick_usable(candidates, random, first, second),
    }
}

/// Picks two usable candidates, after the first pick (`first`, `second`) returned an unusable one. Returns the one
/// with less load.
fn pick_usable<C: Candidates + ?Sized>(
    candidates: &C,
    random: u64,
    first: usize,
    second: usize,
) -> Option<usize> {
    let usable = || (0..candidates.len()).filter(|index| candidates.is_usable(*index));
    match usable().count() {
        0 => pick_eligible(candidates, random, first, second),
        1 => usable().next(),
        count => {
            // `random` is known to select an unusable candidate, so another random number is derived.
            let (first, second) = random_pair(count, mix_random(random));
            Some(pick_less_loaded(candidates, usable().nth(first)?, usable().nth(second)?))
        }
    }
}

/// Picks two eligible candidates, if no candidate is usable. Returns the one with less load.
fn pick_eligible<C: Candidates + ?Sized>(
    candidates: &C,
    random: u64,
    first: usize,
    second: usize,
) -> Option<usize> {
    let eligible = || (0..candidates.len()).filter(|index| candidates.is_eligible(*index));
    match eligible().count() {
        count if count == candidates.len() => Some(pick_less_loaded(candidates, first, second)),
        0 | 1 => eligible().next(),
        count => {
            let (first, second) = random_pair(count, mix_random(random));
            Some(pick_less_loaded(candidates, eligible().nth(first)?, eligible().nth(second)?))
        }
    }
}

/// Returns the candidate with less load; `first` if the loads are equal.
fn pick_less_loaded<C: Candidates + ?Sized>(candidates: &C, first: usize, second: usize) -> usize {
    match candidates.load(second).is_less_than(candidates.load(first)) {
        true => second,
        false => first,
    }
}

/// Returns two different numbers below `count` (at least 2) from the two halves of the random number.
fn random_pair(count: usize, random: u64) -> (usize, usize) {
    let first = random_below(count, random >> 32);
    let second = random_below(count - 1, random & LOW_BITS);
    (first, second + usize::from(second >= first))
}

/// Returns a number below `count` from 32 random bits, by multiplication instead of division.
fn random_below(count: usize, random: u64) -> usize {
    let bound = (count as u64).min(LOW_BITS);
    usize::try_from((random * bound) >> 32).unwrap_or(usize::MAX)
}

/// Derives another random number by the finalizer of SplitMix64: every bit of the result depends on every bit
/// of the input.
fn mix_random(random: u64) -> u64 {
    let mut mixed = random.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// The mask of the lower 32 bits of a random number.
const LOW_BITS: u64 = 0xFFFF_FFFF;

#[cfg(test)]
mod tests {
    use super::*;

    /// The requests in progress of each candidate, and true if it is usable.
    struct Table(Vec<(u32, bool)>);

    impl Candidates for Table {
        fn len(&self) -> usize {
            self.0.len()
        }
        fn load(&self, index: usize) -> Load {
            Load::from_requests(self.0[index].0)
        }
        fn is_usable(&self, index: usize) -> bool {
            self.0[index].1
        }
    }

    /// Returns the number of picks of each candidate in `DRAWS` seeded draws.
    fn pick_counts(table: &Table) -> Vec<u32> {
        let mut counts = vec![0; table.len()];
        for random in seeded_draws() {
            counts[pick_candidate(table, random).unwrap()] += 1;
        }
        counts
    }

    fn seeded_draws() -> impl Iterator<Item = u64> {
        (0..DRAWS).map(|n| mix_random(u64::from(n) ^ 0xA5A5_5A5A))
    }

    const DRAWS: u32 = 60_000;

    fn is_near(count: u32, share: f64) -> bool {
        let expected = f64::from(DRAWS) * share;
        (f64::from(count) - expected).abs() < f64::from(DRAWS) * 0.01
    }

    #[test]
    fn zero_or_one_candidates_need_no_choice() {
        assert_eq!(pick_candidate(&Table(vec![]), 7), None);
        assert_eq!(pick_candidate(&Table(vec![(9, true)]), 7), Some(0));
        assert_eq!(
            pick_candidate(&Table(vec![(9, false)]), 7),
            Some(0),
            "an unusable candidate is chosen if it is the only one"
        );
    }

    #[test]
    fn equal_candidates_get_equal_shares() {
        for n in [2, 3, 5] {
            let counts = pick_counts(&Table(vec![(1, true); n]));
            assert!(counts.iter().all(|count| is_near(*count, 1.0 / n as f64)), "{counts:?}");
        }
    }

    #[test]
    fn the_less_loaded_of_two_candidates_is_always_chosen() {
        assert_eq!(pick_counts(&Table(vec![(3, true), (2, true)])), [0, DRAWS]);
    }

    #[test]
    fn the_most_loaded_candidate_is_never_chosen_and_the_least_loaded_most_often() {
        let counts = pick_counts(&Table(vec![(0, true), (5, true), (9, true)]));
        assert!(is_near(counts[0], 2.0 / 3.0), "{counts:?}");
        assert!(is_near(counts[1], 1.0 / 3.0), "{counts:?}");
        assert_eq!(counts[2], 0);
    }

    #[test]
    fn unusable_candidates_are_skipped_without_favoring_a_neighbor() {
        let table =
            |usable: &[bool]| Table(usable.iter().map(|is_usable| (1, *is_usable)).collect());
        for usable in [
            &[false, true, false, true, true][..],
            &[true, false, false, false, true],
            &[false, false, true],
        ] {
            let share = 1.0 / usable.iter().filter(|is_usable| **is_usable).count() as f64;
            let counts = pick_counts(&table(usable));
            for (count, usable) in counts.iter().zip(usable) {
                assert!(if *usable { is_near(*count, share) } else { *count == 0 }, "{counts:?}");
            }
        }
    }

    #[test]
    fn all_candidates_are_tried_if_none_is_usable() {
        let counts = pick_counts(&Table(vec![(1, false); 4]));
        assert!(counts.iter().all(|count| is_near(*count, 0.25)), "{counts:?}");
    }

    /// Unusable candidates, each with true if it is eligible.
    struct EjectedCandidates(Vec<bool>);

    impl Candidates for EjectedCandidates {
        fn len(&self) -> usize {
            self.0.len()
        }
        fn load(&self, _: usize) -> Load {
            Load::from_requests(0)
        }
        fn is_usable(&self, _: usize) -> bool {
            false
        }
        fn is_eligible(&self, index: usize) -> bool {
            self.0[index]
        }
    }

    #[test]
    fn ineligible_candidates_are_never_chosen() {
        for (eligible, expected) in [
            (&[false][..], &[][..]),
            (&[false, false], &[]),
            (&[false, true, false], &[1]),
            (&[true, false, true, false, true], &[0, 2, 4]),
        ] {
            let candidates = EjectedCandidates(eligible.to_vec());
            let mut chosen = [false; 5];
            for random in seeded_draws().take(1_000) {
                if let Some(index) = pick_candidate(&candidates, random) {
                    chosen[index] = true;
                }
            }
            let chosen: Vec<usize> = (0..5).filter(|index| chosen[*index]).collect();
            assert_eq!(chosen, expected, "{eligible:?}");
        }
    }

    #[test]
    fn choices_equalize_the_load_of_candidates() {
        // 1,000 balls into 10 bins: with two choices the counts stay within a few of the mean; with one they do
        // not.
        let mut table = Table(vec![(0, true); 10]);
        for random in seeded_draws().take(1_000) {
            let index = pick_candidate(&table, random).unwrap();
            table.0[index].0 += 1;
        }
        assert!(table.0.iter().all(|(load, _)| (95..=105).contains(load)), "{:?}", table.0);
    }
}
