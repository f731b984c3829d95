//! Chooses candidates at random by weight, if the weights of a port's endpoints differ.

use super::{Candidates, mix_random, random_below};

/// Picks two candidates by weight and returns the one with less load; `None` if no candidate is eligible.
///
/// The time is linear in the number of candidates.
pub(super) fn pick_weighted<C: Candidates + ?Sized>(candidates: &C, random: u64) -> Option<usize> {
    let first = pick_by_weight(candidates, random)?;
    let second = pick_by_weight(candidates, mix_random(random))?;
    match candidates.load(second).is_less_than(candidates.load(first)) {
        true => Some(second),
        false => Some(first),
    }
}

/// Picks a usable candidate by weight, or an eligible candidate if none is usable. `None` if no candidate is eligible.
pub(super) fn pick_by_weight<C: Candidates + ?Sized>(candidates: &C, random: u64) -> Option<usize> {
    let picked = pick_among(candidates, |_| true, random)?;
    if candidates.is_usable(picked) {
        return Some(picked);
    }
    let random = mix_random(random ^ SECOND_PICK_SALT);
    pick_among(candidates, |index| candidates.is_usable(index), random)
        .or_else(|| pick_among(candidates, |index| candidates.is_eligible(index), random))
}

/// Returns the number that a choice by weight uses instead of a random number in this round-robin turn. The numbers of
/// consecutive turns are spread evenly, so that candidates with a high weight are not chosen several times in a row.
pub(super) fn random_for_turn(turn: usize) -> u64 {
    (turn as u64).wrapping_mul(GOLDEN_RATIO_FRACTION)
}

/// Picks one of the allowed candidates by weight; `None` if no candidate is allowed.
fn pick_among<C: Candidates + ?Sized>(
    candidates: &C,
    is_allowed: impl Fn(usize) -> bool,
    random: u64,
) -> Option<usize> {
    let weight_of = |index| usize::from(candidates.weight(index).unwrap_or_default().as_u16());
    let allowed = || (0..candidates.len()).filter(|index| is_allowed(*index));
    let total_weight = allowed().map(weight_of).sum();
    let mut point = random_below(total_weight, random >> 32);
    allowed().find(|index| {
        let weight = weight_of(*index);
        let is_selected = point < weight;
        point = point.saturating_sub(weight);
        is_selected
    })
}

/// True if the weights differ. Either all candidates have a weight, or none has.
pub(super) fn has_weights<C: Candidates + ?Sized>(candidates: &C) -> bool {
    candidates.weight(0).is_some()
}

/// The multiplier that spreads consecutive values evenly: 2^64 divided by the golden ratio.
const GOLDEN_RATIO_FRACTION: u64 = 0x9E37_79B9_7F4A_7C15;
/// The salt that makes the second random number independent of the first: `again!` in ASCII.
const SECOND_PICK_SALT: u64 = 0x6167_6169_6e21;

#[cfg(test)]
mod tests {
    use leno_model::Weight;

    use super::*;
    use crate::balance::Load;
    use crate::balance::policy::{pick_in_turn, pick_random};

    /// The weight and the requests in progress of each candidate, and true if it is usable.
    struct Table(Vec<(u16, u32, bool)>);

    impl Candidates for Table {
        fn len(&self) -> usize {
            self.0.len()
        }
        fn load(&self, index: usize) -> Load {
            Load { weight: self.weight(index), ..Load::from_requests(self.0[index].1) }
        }
        fn is_usable(&self, index: usize) -> bool {
            self.0[index].2
        }
        fn weight(&self, index: usize) -> Option<Weight> {
            Weight::new(self.0[index].0)
        }
    }

    const TURNS: usize = 20_000;

    fn pick_counts(table: &Table, choose: impl Fn(&Table, usize) -> Option<usize>) -> Vec<usize> {
        let mut counts = vec![0; table.len()];
        for turn in 0..TURNS {
            counts[choose(table, turn).unwrap()] += 1;
        }
        counts
    }

    fn are_near(counts: &[usize], shares: &[f64]) -> bool {
        let is_near = |(count, share): (&usize, &f64)| {
            (*count as f64 - TURNS as f64 * share).abs() < TURNS as f64 * 0.012
        };
        counts.iter().zip(shares).all(is_near)
    }

    fn seeded_random(turn: usize) -> u64 {
        mix_random(turn as u64 ^ 0x3333)
    }

    #[test]
    fn each_candidate_receives_its_share_by_weight() {
        let shares = [0.1, 0.2, 0.7];
        let table = Table(vec![(10, 0, true), (20, 0, true), (70, 0, true)]);
        for counts in [
            pick_counts(&table, |candidates, turn| {
                crate::pick_candidate(candidates, seeded_random(turn))
            }),
            pick_counts(&table, |candidates, turn| pick_random(candidates, seeded_random(turn))),
            pick_counts(&table, pick_in_turn),
        ] {
            assert!(are_near(&counts, &shares), "{counts:?}");
        }
    }

    #[test]
    fn the_share_of_an_unusable_candidate_goes_to_the_others_by_weight() {
        let table = Table(vec![(10, 0, true), (50, 0, false), (30, 0, true)]);
        for counts in [
            pick_counts(&table, |candidates, turn| {
                crate::pick_candidate(candidates, seeded_random(turn))
            }),
            pick_counts(&table, |candidates, turn| pick_random(candidates, seeded_random(turn))),
            pick_counts(&table, pick_in_turn),
        ] {
            assert!(are_near(&counts, &[0.25, 0.0, 0.75]), "{counts:?}");
        }
        let unusable_table = Table(vec![(10, 0, false), (30, 0, false)]);
        let counts = pick_counts(&unusable_table, |candidates, turn| {
            pick_random(candidates, seeded_random(turn))
        });
        assert!(are_near(&counts, &[0.25, 0.75]), "{counts:?}");
    }

    #[test]
    fn turns_of_the_heaviest_candidate_are_spread() {
        let table = Table(vec![(100, 0, true), (400, 0, true)]);
        let order: Vec<usize> = (0..100).filter_map(|turn| pick_in_turn(&table, turn)).collect();
        // Every third, fifth or eighth turn.
        assert!(order.windows(8).all(|eight| eight.contains(&0)), "{order:?}");
    }

    #[test]
    fn choices_make_load_proportional_to_weight() {
        let mut table = Table(vec![(100, 0, true), (100, 0, true), (300, 0, true)]);
        for turn in 0..1000 {
            let index = crate::pick_candidate(&table, seeded_random(turn)).unwrap();
            table.0[index].1 += 1;
        }
        let loads: Vec<u32> = table.0.iter().map(|(_, load, _)| *load).collect();
        assert!((190..=210).contains(&loads[0]) && (580..=620).contains(&loads[2]), "{loads:?}");
    }
}
