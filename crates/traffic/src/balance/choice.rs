//! The load balancer of one policy: chooses an endpoint with the policy's algorithm. Each data thread has its own
//! balancer, with its own round-robin position.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use leno_model::{
    BalanceAlgorithm, Endpoint, HashKey, LoadBalancing, RepeatedHeader, WorkloadName,
};

use super::hashing::{self, EndpointHashTable, find_by_rendezvous_hash};
use super::policy::{
    choose_among_participants, choose_with_slow_start, pick_in_turn, pick_least_loaded,
    pick_random, slow_start_share,
};
use super::{Candidates, pick_candidate};
use crate::request::RequestView;
use crate::tag::{cookie_value, header_value};

/// A load balancing policy with the state of one data thread.
#[derive(Debug)]
pub struct Balancer {
    rule: LoadBalancing,
    /// The number of round-robin choices so far.
    turn: Cell<usize>,
}

/// The hash of a request's key (a header, a cookie or the caller); all bits are uniform.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHash(pub u64);

impl RequestHash {
    /// Returns the hash for a request, or for an opaque connection without a request; `None` if the hashed value is
    /// absent. The default algorithm is then used.
    #[must_use]
    pub fn for_request(
        key: &HashKey,
        request: Option<&RequestView<'_>>,
        caller: &WorkloadName,
    ) -> Option<Self> {
        let hash_value = |value: Option<Cow<'_, str>>| Some(hashing::hash_key(&value?));
        let hash = match (key, request) {
            (HashKey::Source, _) => Some(hashing::hash_key(&caller.to_string())),
            (_, None) => None,
            (HashKey::Header(name), Some(request)) => {
                hash_value(header_value(request, name, RepeatedHeader::Joined))
            }
            (HashKey::Cookie(name), Some(request)) => hash_value(cookie_value(request, name)),
        };
        hash.map(Self)
    }
}

/// The candidates from which a key selects one.
#[derive(Clone, Copy)]
pub enum KeyedCandidates<'a> {
    /// All endpoints of a port, with their hash table.
    HashTable(&'a EndpointHashTable),
    /// A subset of endpoints, without a hash table.
    Few(&'a [Arc<Endpoint>]),
}

impl Balancer {
    /// Creates a balancer that starts with the first endpoint.
    #[must_use]
    pub fn new(rule: LoadBalancing) -> Self {
        Self { rule, turn: Cell::new(0) }
    }

    /// Returns the load balancing policy.
    #[must_use]
    pub const fn rule(&self) -> &LoadBalancing {
        &self.rule
    }

    /// Chooses a candidate; `None` if no candidate is eligible. `keyed_candidates` is the hash of the request's key
    /// with the candidates for it. `age_of` returns the time since a candidate was added; `None` outside slow start.
    /// `random` is a uniform random number.
    pub fn choose_candidate<C: Candidates + ?Sized>(
        &self,
        candidates: &C,
        keyed_candidates: Option<(RequestHash, KeyedCandidates<'_>)>,
        age_of: impl Fn(usize) -> Option<Duration>,
        random: u64,
    ) -> Option<usize> {
        if self.rule.algorithm.hash_key().is_some() {
            let index_by_key = keyed_candidates.and_then(|(request_hash, keyed_candidates)| {
                find_by_key(candidates, request_hash, keyed_candidates)
            });
            return index_by_key.or_else(|| pick_candidate(candidates, random));
        }
        let slow_start = self.rule.slow_start;
        let share_of = |index| match (slow_start, age_of(index)) {
            (Some(rule), Some(age)) => slow_start_share(rule, age),
            // More than the full share: the candidate is not in slow start.
            (None, _) | (_, None) => u32::MAX,
        };
        match self.rule.algorithm {
            // These algorithms differ only in the loads of the candidates: `LeastRequest` ignores latency and recent
            // failures.
            BalanceAlgorithm::PeakEwma { choices } | BalanceAlgorithm::LeastRequest { choices }
                if slow_start.is_some() && candidates.len() > 1 =>
            {
                let chosen = choose_among_participants(
                    (candidates, &share_of),
                    random,
                    |participants, random| choose_least_loaded(participants, choices, random),
                );
                chosen.or_else(|| choose_least_loaded(candidates, choices, random))
            }
            BalanceAlgorithm::PeakEwma { choices } | BalanceAlgorithm::LeastRequest { choices } => {
                choose_least_loaded(candidates, choices, random)
            }
            BalanceAlgorithm::RoundRobin => choose_with_slow_start(
                |_| pick_in_turn(candidates, self.next_turn()),
                share_of,
                random,
            ),
            // The choice of the hash-based algorithms was returned above.
            BalanceAlgorithm::Random
            | BalanceAlgorithm::RingHash(_)
            | BalanceAlgorithm::Maglev(_) => {
                choose_with_slow_start(|random| pick_random(candidates, random), share_of, random)
            }
        }
    }

    /// Returns the number of this round-robin turn, and increments the number for the next turn.
    fn next_turn(&self) -> usize {
        let turn = self.turn.get();
        self.turn.set(turn.wrapping_add(1));
        turn
    }
}

/// Returns the least loaded of `choices` random candidates. Fewer than two choices count as two, for which
/// [`pick_candidate`] is faster.
fn choose_least_loaded<C: Candidates + ?Sized>(
    candidates: &C,
    choices: u8,
    random: u64,
) -> Option<usize> {
    match choices {
        0..=2 => pick_candidate(candidates, random),
        choices => pick_least_loaded(candidates, choices, random),
    }
}

/// Returns the usable candidate for a key; `None` if no candidate is usable.
fn find_by_key<C: Candidates + ?Sized>(
    candidates: &C,
    key: RequestHash,
    keyed_candidates: KeyedCandidates<'_>,
) -> Option<usize> {
    let is_usable = |index: usize| index < candidates.len() && candidates.is_usable(index);
    match keyed_candidates {
        KeyedCandidates::HashTable(table) => table.find_endpoint(key.0, is_usable),
        KeyedCandidates::Few(endpoints) => find_by_rendezvous_hash(key.0, endpoints, is_usable),
    }
}

#[cfg(test)]
mod tests {
    use leno_model::SlowStart;

    use super::*;
    use crate::balance::Load;
    use crate::hash::hash;

    /// The requests in progress of each candidate.
    struct Loads(Vec<u32>);

    impl Candidates for Loads {
        fn len(&self) -> usize {
            self.0.len()
        }
        fn load(&self, index: usize) -> Load {
            Load::from_requests(self.0[index])
        }
        fn is_usable(&self, _: usize) -> bool {
            true
        }
    }

    /// Returns the share of the last candidate, added this many seconds ago, in percent.
    fn share_of_slow_start_endpoint(choices: u8, loads: &[u32], seconds: u64) -> u32 {
        let slow_start = Some(SlowStart { duration: Duration::from_secs(100), min_percent: 10 });
        let algorithm = BalanceAlgorithm::LeastRequest { choices };
        let balancer = Balancer::new(LoadBalancing { algorithm, slow_start });
        let slow_start_endpoint = loads.len() - 1;
        let age =
            |index: usize| (index == slow_start_endpoint).then(|| Duration::from_secs(seconds));
        let table = Loads(loads.to_vec());
        let random_numbers = (0..10_000_u64).map(|n| hash(n, "draw"));
        let chosen_indices = random_numbers
            .filter_map(|random| balancer.choose_candidate(&table, None, age, random));
        u32::try_from(chosen_indices.filter(|index| *index == slow_start_endpoint).count() / 100)
            .unwrap()
    }

    #[test]
    fn an_idle_slow_start_endpoint_receives_only_its_share() {
        for (choices, loads) in [(2, &[9, 0][..]), (2, &[9, 9, 9, 0]), (4, &[9, 9, 9, 0])] {
            let full_share = share_of_slow_start_endpoint(choices, loads, 100);
            assert!(full_share >= 45, "{choices} {loads:?}: {full_share}");
            for (seconds, percent) in [(0, 10), (30, 30), (70, 70)] {
                let share = share_of_slow_start_endpoint(choices, loads, seconds);
                let expected = full_share * percent / 100;
                assert!(
                    share.abs_diff(expected) <= 2,
                    "{choices} {loads:?}: {share} of {full_share}"
                );
            }
        }
    }

    #[test]
    fn an_endpoint_is_chosen_even_if_all_are_in_slow_start() {
        let slow_start = Some(SlowStart { duration: Duration::from_secs(100), min_percent: 1 });
        let algorithm = BalanceAlgorithm::LeastRequest { choices: 2 };
        let balancer = Balancer::new(LoadBalancing { algorithm, slow_start });
        for count in 1..4 {
            let table = Loads(vec![0; count]);
            for random in (0..200).map(|n| hash(n, "draw")) {
                let chosen =
                    balancer.choose_candidate(&table, None, |_| Some(Duration::ZERO), random);
                assert!(chosen.is_some());
            }
        }
    }
}
