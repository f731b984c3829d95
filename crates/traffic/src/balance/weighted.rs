//! Weighted random choice of candidates.

use super::{Candidates, draw_below, remix_draw};

/// Draws two candidates by weight and returns the one with less load.
///
/// Linear in the number of candidates; used only if weights differ.
pub(super) fn pick_weighted<C: Candidates + ?Sized>(candidates: &C, draw: u64) -> Option<usize> {
    let first = draw_one(candidates, draw)?;
    let second = draw_one(candidates, remix_draw(draw))?;
    match candidates.load(second).is_less_than(candidates.load(first)) {
        true => Some(second),
        false => Some(first),
    }
}

/// Draws a usable candidate by weight, or an eligible one if none is usable.
pub(super) fn draw_one<C: Candidates + ?Sized>(candidates: &C, draw: u64) -> Option<usize> {
    let drawn = draw_among(candidates, |_| true, draw)?;
    if candidates.is_usable(drawn) {
        return Some(drawn);
    }
    let draw = remix_draw(draw ^ AGAIN);
    draw_among(candidates, |index| candidates.is_usable(index), draw)
        .or_else(|| draw_among(candidates, |index| candidates.is_eligible(index), draw))
}

/// Returns the draw for this turn: consecutive values are spread evenly, so that heavier candidates are not
/// chosen several times in a row.
pub(super) fn turn_draw(turn: usize) -> u64 {
    (turn as u64).wrapping_mul(GOLDEN)
}

fn draw_among<C: Candidates + ?Sized>(
    candidates: &C,
    fits: impl Fn(usize) -> bool,
    draw: u64,
) -> Option<usize> {
    let weight = |index| usize::from(candidates.weight(index).unwrap_or_default().as_u16());
    let fitting = || (0..candidates.len()).filter(|index| fits(*index));
    let all = fitting().map(weight).sum();
    let mut point = draw_below(all, draw >> 32);
    fitting().find(|index| {
        let weight = weight(*index);
        let found = point < weight;
        point = point.saturating_sub(weight);
        found
    })
}

/// True if weights differ; all candidates then have one.
pub(super) fn has_weights<C: Candidates + ?Sized>(candidates: &C) -> bool {
    candidates.weight(0).is_some()
}

/// 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
const AGAIN: u64 = 0x6167_6169_6e21;

#[cfg(test)]
mod tests {
    use leno_model::Weight;

    use super::*;
    use crate::balance::Load;
    use crate::balance::policy::{in_turn, pick_random};

    /// Weight, requests in progress, and true if it may be chosen.
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
        let near = |(count, share): (&usize, &f64)| {
            (*count as f64 - TURNS as f64 * share).abs() < TURNS as f64 * 0.012
        };
        counts.iter().zip(shares).all(near)
    }

    fn seeded_draw(turn: usize) -> u64 {
        remix_draw(turn as u64 ^ 0x3333)
    }

    #[test]
    fn each_gets_what_its_weight_is_of_all_weights() {
        let shares = [0.1, 0.2, 0.7];
        let table = Table(vec![(10, 0, true), (20, 0, true), (70, 0, true)]);
        for counts in [
            pick_counts(&table, |it, turn| crate::pick_candidate(it, seeded_draw(turn))),
            pick_counts(&table, |it, turn| pick_random(it, seeded_draw(turn))),
            pick_counts(&table, in_turn),
        ] {
            assert!(are_near(&counts, &shares), "{counts:?}");
        }
    }

    #[test]
    fn who_may_not_be_chosen_leaves_its_share_to_the_others_by_weight() {
        let table = Table(vec![(10, 0, true), (50, 0, false), (30, 0, true)]);
        for counts in [
            pick_counts(&table, |it, turn| crate::pick_candidate(it, seeded_draw(turn))),
            pick_counts(&table, |it, turn| pick_random(it, seeded_draw(turn))),
            pick_counts(&table, in_turn),
        ] {
            assert!(are_near(&counts, &[0.25, 0.0, 0.75]), "{counts:?}");
        }
        let none = Table(vec![(10, 0, false), (30, 0, false)]);
        let counts = pick_counts(&none, |it, turn| pick_random(it, seeded_draw(turn)));
        assert!(are_near(&counts, &[0.25, 0.75]), "{counts:?}");
    }

    #[test]
    fn turns_of_the_heaviest_are_not_all_in_a_row() {
        let table = Table(vec![(100, 0, true), (400, 0, true)]);
        let order: Vec<usize> = (0..100).filter_map(|turn| in_turn(&table, turn)).collect();
        // Every third, fifth or eighth turn.
        assert!(order.windows(8).all(|eight| eight.contains(&0)), "{order:?}");
    }

    #[test]
    fn load_evens_out_by_weight() {
        let mut table = Table(vec![(100, 0, true), (100, 0, true), (300, 0, true)]);
        for turn in 0..1000 {
            let index = crate::pick_candidate(&table, seeded_draw(turn)).unwrap();
            table.0[index].1 += 1;
        }
        let loads: Vec<u32> = table.0.iter().map(|it| it.1).collect();
        assert!((190..=210).contains(&loads[0]) && (580..=620).contains(&loads[2]), "{loads:?}");
    }
}
