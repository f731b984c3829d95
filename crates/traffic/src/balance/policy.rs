//! The algorithms of load balancing policies: round robin, random, the least loaded of several, and slow start.

use std::time::Duration;

use leno_model::{SlowStart, Weight};

use super::{Candidates, Load, mix_random, random_below, weighted};

/// Returns the candidate of this round-robin turn; `None` if no candidate is eligible. An unusable candidate is
/// replaced by a random one, so that no neighbor receives a double share.
#[must_use]
pub fn pick_in_turn<C: Candidates + ?Sized>(candidates: &C, turn: usize) -> Option<usize> {
    let count = candidates.len();
    let index = turn.checked_rem(count)?;
    if weighted::has_weights(candidates) {
        return weighted::pick_by_weight(candidates, weighted::random_for_turn(turn));
    }
    // The common case: the candidate in turn is usable.
    if candidates.is_usable(index) {
        return Some(index);
    }
    // Consecutive turns select neighbors. Mixing makes the replacement of an unusable candidate independent of the
    // turn, so that all other candidates are equally likely. The upper 31 bits fit into a `usize`.
    nth_available(candidates, usize::try_from(mix_random(turn as u64) >> 33).unwrap_or(0))
}

/// Returns a random usable candidate; an eligible candidate if none is usable. `None` if no candidate is eligible.
#[must_use]
pub fn pick_random<C: Candidates + ?Sized>(candidates: &C, random: u64) -> Option<usize> {
    let count = candidates.len();
    if count > 0 && weighted::has_weights(candidates) {
        return weighted::pick_by_weight(candidates, random);
    }
    let index = random_below(count, random >> 32);
    if count > 0 && candidates.is_usable(index) {
        return Some(index);
    }
    // The upper 31 bits fit into a `usize`.
    nth_available(candidates, usize::try_from(mix_random(random) >> 33).unwrap_or(0))
}

/// Returns the least loaded of `choices` random candidates, which are usable if any candidate is. `None` if no
/// candidate is eligible.
#[must_use]
pub fn pick_least_loaded<C: Candidates + ?Sized>(
    candidates: &C,
    choices: u8,
    random: u64,
) -> Option<usize> {
    let mut random = random;
    let mut least_loaded: Option<(Load, usize)> = None;
    for _ in 0..choices.max(1) {
        random = mix_random(random);
        let Some(index) = pick_random(candidates, random) else { break };
        let load = candidates.load(index);
        if least_loaded.is_none_or(|(least, _)| load.is_less_than(least)) {
            least_loaded = Some((load, index));
        }
    }
    least_loaded.map(|(_, index)| index)
}

/// Returns the usable candidate at this position among the usable candidates, modulo their number. If no candidate is
/// usable, returns an eligible one in the same way.
fn nth_available<C: Candidates + ?Sized>(candidates: &C, ordinal: usize) -> Option<usize> {
    let select_nth = |is_available: &dyn Fn(usize) -> bool| {
        let available = || (0..candidates.len()).filter(|index| is_available(*index));
        let ordinal = ordinal.checked_rem(available().count())?;
        available().nth(ordinal)
    };
    select_nth(&|index| candidates.is_usable(index))
        .or_else(|| select_nth(&|index| candidates.is_eligible(index)))
}

/// Returns the share of requests for a candidate of this age, in 65536ths of the full share.
#[must_use]
pub fn slow_start_share(rule: SlowStart, age: Duration) -> u32 {
    if age >= rule.duration {
        return FULL_SHARE;
    }
    let share = age.as_nanos() * u128::from(FULL_SHARE) / rule.duration.as_nanos().max(1);
    let min_share = u32::from(rule.min_percent) * FULL_SHARE / 100;
    u32::try_from(share).unwrap_or(FULL_SHARE).max(min_share)
}

/// Repeats a choice until a random number falls below the chosen candidate's slow-start share, a limited
/// number of times. Each candidate thus receives requests in proportion to its share.
pub fn choose_with_slow_start(
    mut choose: impl FnMut(u64) -> Option<usize>,
    share_of: impl Fn(usize) -> u32,
    random: u64,
) -> Option<usize> {
    let mut random = random;
    let mut chosen = choose(random)?;
    for _ in 0..MAX_REPETITIONS {
        let share = share_of(chosen);
        if share >= FULL_SHARE {
            break;
        }
        random = mix_random(random);
        // The upper 16 bits are a random number below `FULL_SHARE`.
        if u32::try_from(random >> 48).unwrap_or(0) < share {
            break;
        }
        random = mix_random(random);
        chosen = choose(random)?;
    }
    Some(chosen)
}

/// Candidates that take part in a choice with the probability of their slow-start share. Algorithms that compare loads
/// use this type. With [`choose_with_slow_start`], a new endpoint would be chosen too often, because it has the least
/// load in every comparison.
pub(super) struct SlowStartCandidates<'a, C: ?Sized, S> {
    pub(super) candidates: &'a C,
    /// Returns the slow-start share of the candidate at an index.
    pub(super) share_of: S,
    /// The random number that determines the participants of one choice.
    pub(super) random: u64,
}

impl<C: Candidates + ?Sized, S: Fn(usize) -> u32> Candidates for SlowStartCandidates<'_, C, S> {
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
        let share = (self.share_of)(index);
        let takes_part = share >= FULL_SHARE
            || u32::try_from(mix_random(self.random ^ index as u64) >> 48).unwrap_or(0) < share;
        takes_part && self.candidates.is_usable(index)
    }

    /// Always false: if no candidate takes part, the caller repeats the choice with other participants.
    fn is_eligible(&self, _: usize) -> bool {
        false
    }
}

/// Repeats the choice among [`SlowStartCandidates`] until one is returned, at most [`MAX_REPETITIONS`] times;
/// `None` after that.
pub(super) fn choose_among_participants<'a, C: Candidates + ?Sized, S: Fn(usize) -> u32 + Copy>(
    (candidates, share_of): (&'a C, S),
    random: u64,
    choose: impl Fn(&SlowStartCandidates<'a, C, S>, u64) -> Option<usize>,
) -> Option<usize> {
    let mut random = random;
    for _ in 0..MAX_REPETITIONS {
        let participants = SlowStartCandidates { candidates, share_of, random: mix_random(random) };
        if let Some(index) = choose(&participants, random) {
            return Some(index);
        }
        random = mix_random(participants.random);
    }
    None
}

/// The share of a candidate that is not in slow start.
const FULL_SHARE: u32 = 1 << 16;
/// The maximum number of repetitions of a choice. It bounds the work while all candidates are in slow start.
const MAX_REPETITIONS: usize = 16;

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

    fn random_for_turn(turn: usize) -> u64 {
        mix_random(turn as u64 ^ 0x5555)
    }

    fn is_near(count: usize, share: f64) -> bool {
        (count as f64 - TURNS as f64 * share).abs() < TURNS as f64 * 0.012
    }

    #[test]
    fn candidates_are_chosen_in_turn() {
        let table = Table(vec![(0, true); 4]);
        let order: Vec<_> = (0..6).filter_map(|turn| pick_in_turn(&table, turn)).collect();
        assert_eq!(order, [0, 1, 2, 3, 0, 1]);
        assert_eq!(pick_in_turn(&Table(vec![]), 3), None);
    }

    #[test]
    fn turns_of_an_unusable_candidate_are_shared() {
        let table = Table(vec![(0, true), (0, false), (0, true), (0, true)]);
        for counts in [
            pick_counts(4, |turn| pick_in_turn(&table, turn)),
            pick_counts(4, |turn| pick_random(&table, random_for_turn(turn))),
        ] {
            assert_eq!(counts[1], 0);
            assert!([0, 2, 3].iter().all(|i| counts[*i] * 4 > TURNS), "{counts:?}");
        }
        // Two candidates that are not neighbors, of an even number.
        let table = Table(vec![(0, true), (0, false), (0, true), (0, false)]);
        let counts = pick_counts(4, |turn| pick_in_turn(&table, turn));
        assert!(is_near(counts[0], 0.5) && is_near(counts[2], 0.5), "{counts:?}");
    }

    #[test]
    fn any_candidate_is_tried_if_none_is_usable() {
        let unusable_table = Table(vec![(0, false); 3]);
        assert!(
            pick_counts(3, |turn| pick_random(&unusable_table, random_for_turn(turn)))
                .iter()
                .all(|count| is_near(*count, 1.0 / 3.0))
        );
    }

    #[test]
    fn more_choices_select_the_least_loaded_candidate_more_often() {
        let table = Table(vec![(0, true), (5, true), (9, true), (9, true)]);
        let mut before = 0;
        for choices in [2, 4, 16] {
            let counts =
                pick_counts(4, |turn| pick_least_loaded(&table, choices, random_for_turn(turn)));
            let expected_share = 1.0 - 0.75_f64.powi(choices.into());
            assert!(is_near(counts[0], expected_share), "{choices}: {counts:?}");
            assert!(counts[0] > before);
            before = counts[0];
        }
    }

    #[test]
    fn endpoints_receive_requests_by_their_slow_start_share() {
        let rule = SlowStart { duration: Duration::from_secs(100), min_percent: 10 };
        let share_after =
            |seconds| f64::from(slow_start_share(rule, Duration::from_secs(seconds))) / 65536.0;
        for (seconds, expected) in [(0, 0.1), (5, 0.1), (50, 0.5), (100, 1.0), (1000, 1.0)] {
            assert!((share_after(seconds) - expected).abs() < 0.001, "{seconds}");
        }
        let table = Table(vec![(0, true); 3]);
        for (ages, expected) in [
            ([1000, 1000, 0], [1.0 / 2.1, 1.0 / 2.1, 0.1 / 2.1]),
            ([1000, 50, 50], [0.5, 0.25, 0.25]),
            ([0, 0, 0], [1.0 / 3.0; 3]),
        ] {
            let age = |index: usize| slow_start_share(rule, Duration::from_secs(ages[index]));
            let counts = pick_counts(3, |turn| {
                choose_with_slow_start(
                    |random| pick_random(&table, random),
                    age,
                    random_for_turn(turn),
                )
            });
            let is_expected =
                counts.iter().zip(expected).all(|(count, share)| is_near(*count, share));
            assert!(is_expected, "{ages:?}: {counts:?}");
        }
    }
}
