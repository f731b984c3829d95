//! Policy algorithms: round robin, random, least of several, and slow start.

use std::time::Duration;

use leno_model::{SlowStart, Weight};

use super::{Candidates, Load, draw_below, remix_draw, weighted};

/// Returns the next candidate in turn. Unusable candidates are skipped by a random draw among the others, so
/// that their neighbors do not receive a double share.
#[must_use]
pub fn in_turn<C: Candidates + ?Sized>(candidates: &C, turn: usize) -> Option<usize> {
    let count = candidates.len();
    let from = turn.checked_rem(count)?;
    if weighted::has_weights(candidates) {
        return weighted::draw_one(candidates, weighted::turn_draw(turn));
    }
    // The common case: the candidate in turn is usable.
    if candidates.is_usable(from) {
        return Some(from);
    }
    // A new number: the turn is known to select an unusable candidate, so its values are not uniform over the
    // others.
    nth_fitting(candidates, usize::try_from(remix_draw(turn as u64) >> 33).unwrap_or(0))
}

/// Returns a random usable candidate.
#[must_use]
pub fn pick_random<C: Candidates + ?Sized>(candidates: &C, draw: u64) -> Option<usize> {
    let count = candidates.len();
    if count > 0 && weighted::has_weights(candidates) {
        return weighted::draw_one(candidates, draw);
    }
    let index = draw_below(count, draw >> 32);
    if count > 0 && candidates.is_usable(index) {
        return Some(index);
    }
    nth_fitting(candidates, usize::try_from(remix_draw(draw) >> 33).unwrap_or(0))
}

/// Returns the least loaded of `choices` random candidates, usable ones if there are any.
#[must_use]
pub fn least_of<C: Candidates + ?Sized>(candidates: &C, choices: u8, draw: u64) -> Option<usize> {
    let mut draw = draw;
    let mut best: Option<(Load, usize)> = None;
    for _ in 0..choices.max(1) {
        draw = remix_draw(draw);
        let Some(index) = pick_random(candidates, draw) else { break };
        let load = candidates.load(index);
        if best.is_none_or(|(least, _)| load.is_less_than(least)) {
            best = Some((load, index));
        }
    }
    best.map(|(_, index)| index)
}

/// Returns a usable candidate by its number among the usable ones, or an eligible one if none is usable.
fn nth_fitting<C: Candidates + ?Sized>(candidates: &C, number: usize) -> Option<usize> {
    let nth = |fits: &dyn Fn(usize) -> bool| {
        let fitting = || (0..candidates.len()).filter(|index| fits(*index));
        let number = number.checked_rem(fitting().count())?;
        fitting().nth(number)
    };
    nth(&|index| candidates.is_usable(index))
        .or_else(|| nth(&|index| candidates.is_eligible(index)))
}

/// Returns the share of requests for a candidate of this age, in 65536ths.
#[must_use]
pub fn slow_start_share(rule: SlowStart, age: Duration) -> u32 {
    if age >= rule.time {
        return WHOLE;
    }
    let grown = age.as_nanos() * u128::from(WHOLE) / rule.time.as_nanos().max(1);
    let least = u32::from(rule.percent_min) * WHOLE / 100;
    u32::try_from(grown).unwrap_or(WHOLE).max(least)
}

/// Repeats the choice until a draw falls below the candidate's slow-start share, a limited number of times;
/// each candidate thus receives requests in proportion to its share.
pub fn choose_warmed(
    mut choose: impl FnMut(u64) -> Option<usize>,
    warmth: impl Fn(usize) -> u32,
    draw: u64,
) -> Option<usize> {
    let mut draw = draw;
    let mut chosen = choose(draw)?;
    for _ in 0..CHANGES_MAX {
        let warmth = warmth(chosen);
        if warmth >= WHOLE {
            break;
        }
        draw = remix_draw(draw);
        if u32::try_from(draw >> 48).unwrap_or(0) < warmth {
            break;
        }
        draw = remix_draw(draw);
        chosen = choose(draw)?;
    }
    Some(chosen)
}

/// Candidates that take part in a choice with the probability of their slow-start share. Algorithms that
/// compare loads use this: a new endpoint is the least loaded, and would win every comparison no matter how
/// often it is rejected afterwards.
pub(super) struct SlowStartCandidates<'a, C: ?Sized, W> {
    pub(super) candidates: &'a C,
    pub(super) warmth: W,
    /// The random number of one choice, for all candidates.
    pub(super) draw: u64,
}

impl<C: Candidates + ?Sized, W: Fn(usize) -> u32> Candidates for SlowStartCandidates<'_, C, W> {
    fn len(&self) -> usize {
        self.candidates.len()
    }

    fn load(&self, index: usize) -> Load {
        self.candidates.load(index)
    }

    fn weight(&self, index: usize) -> Option<Weight> {
        self.candidates.weight(index)
    }

    fn is_usable(&self, index: usize) -> bool {
        let warmth = (self.warmth)(index);
        let is_warm = warmth >= WHOLE
            || u32::try_from(remix_draw(self.draw ^ index as u64) >> 48).unwrap_or(0) < warmth;
        is_warm && self.candidates.is_usable(index)
    }

    /// If no candidate takes part, a new draw is better than the last resort.
    fn is_eligible(&self, _: usize) -> bool {
        false
    }
}

/// Repeats the choice among [`SlowStartCandidates`] candidates until one is returned; after the last
/// attempt, chooses among all.
pub(super) fn choose_thinned<'a, C: Candidates + ?Sized, W: Fn(usize) -> u32 + Copy>(
    (candidates, warmth): (&'a C, W),
    draw: u64,
    choose: impl Fn(&SlowStartCandidates<'a, C, W>, u64) -> Option<usize>,
) -> Option<usize> {
    let mut draw = draw;
    for _ in 0..CHANGES_MAX {
        let thinned = SlowStartCandidates { candidates, warmth, draw: remix_draw(draw) };
        if let Some(index) = choose(&thinned, draw) {
            return Some(index);
        }
        draw = remix_draw(thinned.draw);
    }
    None
}

const WHOLE: u32 = 1 << 16;
/// The maximum number of draws if all candidates are in slow start.
const CHANGES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

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

    const TURNS: usize = 30_000;

    fn pick_counts(len: usize, mut pick: impl FnMut(usize) -> Option<usize>) -> Vec<usize> {
        let mut counts = vec![0; len];
        for turn in 0..TURNS {
            counts[pick(turn).unwrap()] += 1;
        }
        counts
    }

    fn turn_draw(turn: usize) -> u64 {
        remix_draw(turn as u64 ^ 0x5555)
    }

    fn is_near(count: usize, share: f64) -> bool {
        (count as f64 - TURNS as f64 * share).abs() < TURNS as f64 * 0.012
    }

    #[test]
    fn turns_go_round() {
        let table = Table(vec![(0, true); 4]);
        let order: Vec<_> = (0..6).filter_map(|turn| in_turn(&table, turn)).collect();
        assert_eq!(order, [0, 1, 2, 3, 0, 1]);
        assert_eq!(in_turn(&Table(vec![]), 3), None);
    }

    #[test]
    fn who_is_not_usable_is_passed_over_and_its_turns_are_shared() {
        let table = Table(vec![(0, true), (0, false), (0, true), (0, true)]);
        for counts in [
            pick_counts(4, |turn| in_turn(&table, turn)),
            pick_counts(4, |turn| pick_random(&table, turn_draw(turn))),
        ] {
            assert_eq!(counts[1], 0);
            assert!([0, 2, 3].iter().all(|i| counts[*i] * 4 > TURNS), "{counts:?}");
        }
        // Two candidates that are not neighbors, of an even number.
        let table = Table(vec![(0, true), (0, false), (0, true), (0, false)]);
        let counts = pick_counts(4, |turn| in_turn(&table, turn));
        assert!(is_near(counts[0], 0.5) && is_near(counts[2], 0.5), "{counts:?}");
    }

    #[test]
    fn any_is_tried_when_none_is_usable() {
        let none = Table(vec![(0, false); 3]);
        assert!(
            pick_counts(3, |turn| pick_random(&none, turn_draw(turn)))
                .iter()
                .all(|it| is_near(*it, 1.0 / 3.0))
        );
    }

    #[test]
    fn the_more_are_compared_the_oftener_the_least_loaded_is_chosen() {
        let table = Table(vec![(0, true), (5, true), (9, true), (9, true)]);
        let mut before = 0;
        for choices in [2, 4, 16] {
            let counts = pick_counts(4, |turn| least_of(&table, choices, turn_draw(turn)));
            let missed = 1.0 - 0.75_f64.powi(choices.into());
            assert!(is_near(counts[0], missed), "{choices}: {counts:?}");
            assert!(counts[0] > before);
            before = counts[0];
        }
    }

    #[test]
    fn an_endpoint_gets_as_much_as_it_is_warm() {
        let rule = SlowStart { time: Duration::from_secs(100), percent_min: 10 };
        let warm =
            |seconds| f64::from(slow_start_share(rule, Duration::from_secs(seconds))) / 65536.0;
        for (seconds, expected) in [(0, 0.1), (5, 0.1), (50, 0.5), (100, 1.0), (1000, 1.0)] {
            assert!((warm(seconds) - expected).abs() < 0.001, "{seconds}");
        }
        let table = Table(vec![(0, true); 3]);
        for (ages, expected) in [
            ([1000, 1000, 0], [1.0 / 2.1, 1.0 / 2.1, 0.1 / 2.1]),
            ([1000, 50, 50], [0.5, 0.25, 0.25]),
            ([0, 0, 0], [1.0 / 3.0; 3]),
        ] {
            let age = |index: usize| slow_start_share(rule, Duration::from_secs(ages[index]));
            let counts = pick_counts(3, |turn| {
                choose_warmed(|draw| pick_random(&table, draw), age, turn_draw(turn))
            });
            let fits = counts.iter().zip(expected).all(|(count, share)| is_near(*count, share));
            assert!(fits, "{ages:?}: {counts:?}");
        }
    }
}
