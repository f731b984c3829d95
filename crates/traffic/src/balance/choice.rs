//! The load balancer of one policy, with its per-thread state.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use leno_model::{
    BalanceAlgorithm, Endpoint, HashKey, LoadBalancing, RepeatedHeader, WorkloadName,
};

use super::hashing::{self, EndpointHashTable, rendezvous_hash};
use super::policy::{
    choose_thinned, choose_warmed, in_turn, least_of, pick_random, slow_start_share,
};
use super::{Candidates, pick_candidate};
use crate::request::RequestView;
use crate::tag::{cookie_value, header_value};

/// A load balancing policy with the state of one data thread.
#[derive(Debug)]
pub struct Balancer {
    rule: LoadBalancing,
    turn: Cell<usize>,
}

/// The hash of a request's key; all bits are uniform.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHash(pub u64);

impl RequestHash {
    /// Returns the key of a request, or of an opaque connection; `None` if the hashed value is absent: the
    /// default algorithm then decides.
    #[must_use]
    pub fn for_request(
        key: &HashKey,
        request: Option<&RequestView<'_>>,
        caller: &WorkloadName,
    ) -> Option<Self> {
        let of = |value: Option<Cow<'_, str>>| Some(hashing::hash_key(&value?));
        let number = match (key, request) {
            (HashKey::Source, _) => Some(hashing::hash_key(&caller.to_string())),
            (_, None) => None,
            (HashKey::Header(name), Some(request)) => {
                of(header_value(request, name, RepeatedHeader::Joined))
            }
            (HashKey::Cookie(name), Some(request)) => of(cookie_value(request, name)),
        };
        number.map(Self)
    }
}

/// The set of candidates for a key.
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

    /// Returns the rule.
    #[must_use]
    pub const fn rule(&self) -> &LoadBalancing {
        &self.rule
    }

    /// Chooses a candidate. `keyed`: the key, and its candidates. `age`: the time since a candidate was added;
    /// `None` for one outside slow start.
    pub fn choose_candidate<C: Candidates + ?Sized>(
        &self,
        candidates: &C,
        keyed: Option<(RequestHash, KeyedCandidates<'_>)>,
        age: impl Fn(usize) -> Option<Duration>,
        draw: u64,
    ) -> Option<usize> {
        if self.rule.algorithm.hash_key().is_some() {
            let found = keyed.and_then(|(key, keyed)| find_by_key(candidates, key, keyed));
            return found.or_else(|| pick_candidate(candidates, draw));
        }
        let warm_up = self.rule.slow_start;
        let warmth = |index| match (warm_up, age(index)) {
            (Some(rule), Some(age)) => slow_start_share(rule, age),
            (None, _) | (_, None) => u32::MAX,
        };
        match self.rule.algorithm {
            BalanceAlgorithm::PeakEwma { choices } | BalanceAlgorithm::LeastRequest { choices }
                if warm_up.is_some() && candidates.len() > 1 =>
            {
                let warm = choose_thinned((candidates, &warmth), draw, |it, draw| {
                    least_loaded(it, choices, draw)
                });
                warm.or_else(|| least_loaded(candidates, choices, draw))
            }
            BalanceAlgorithm::PeakEwma { choices } | BalanceAlgorithm::LeastRequest { choices } => {
                least_loaded(candidates, choices, draw)
            }
            BalanceAlgorithm::RoundRobin => {
                choose_warmed(|_| in_turn(candidates, self.next()), warmth, draw)
            }
            BalanceAlgorithm::Random
            | BalanceAlgorithm::RingHash(_)
            | BalanceAlgorithm::Maglev(_) => {
                choose_warmed(|draw| pick_random(candidates, draw), warmth, draw)
            }
        }
    }

    fn next(&self) -> usize {
        let turn = self.turn.get();
        self.turn.set(turn.wrapping_add(1));
        turn
    }
}

/// Returns the least loaded of this many candidates.
fn least_loaded<C: Candidates + ?Sized>(candidates: &C, choices: u8, draw: u64) -> Option<usize> {
    match choices {
        0..=2 => pick_candidate(candidates, draw),
        choices => least_of(candidates, choices, draw),
    }
}

fn find_by_key<C: Candidates + ?Sized>(
    candidates: &C,
    key: RequestHash,
    keyed: KeyedCandidates<'_>,
) -> Option<usize> {
    let usable = |index: usize| index < candidates.len() && candidates.is_usable(index);
    match keyed {
        KeyedCandidates::HashTable(places) => places.find_endpoint(key.0, usable),
        KeyedCandidates::Few(endpoints) => rendezvous_hash(key.0, endpoints, usable),
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

    /// The share of the last candidate, added this many seconds ago, in percent.
    fn share_of_slow_start_endpoint(choices: u8, loads: &[u32], seconds: u64) -> u32 {
        let warm_up = Some(SlowStart { time: Duration::from_secs(100), percent_min: 10 });
        let algorithm = BalanceAlgorithm::LeastRequest { choices };
        let balancer = Balancer::new(LoadBalancing { algorithm, slow_start: warm_up });
        let slow_start_endpoint = loads.len() - 1;
        let age =
            |index: usize| (index == slow_start_endpoint).then(|| Duration::from_secs(seconds));
        let table = Loads(loads.to_vec());
        let draws = (0..10_000_u64).map(|n| hash(n, "draw"));
        let chosen = draws.filter_map(|draw| balancer.choose_candidate(&table, None, age, draw));
        u32::try_from(chosen.filter(|index| *index == slow_start_endpoint).count() / 100).unwrap()
    }

    #[test]
    fn a_slow_start_endpoint_with_nothing_under_way_gets_no_more_than_it_is_warm() {
        for (choices, loads) in [(2, &[9, 0][..]), (2, &[9, 9, 9, 0]), (4, &[9, 9, 9, 0])] {
            let warm = share_of_slow_start_endpoint(choices, loads, 100);
            assert!(warm >= 45, "{choices} {loads:?}: {warm}");
            for (seconds, percent) in [(0, 10), (30, 30), (70, 70)] {
                let share = share_of_slow_start_endpoint(choices, loads, seconds);
                let expected = warm * percent / 100;
                assert!(share.abs_diff(expected) <= 2, "{choices} {loads:?}: {share} of {warm}");
            }
        }
    }

    #[test]
    fn where_all_are_cold_one_of_them_it_is() {
        let warm_up = Some(SlowStart { time: Duration::from_secs(100), percent_min: 1 });
        let algorithm = BalanceAlgorithm::LeastRequest { choices: 2 };
        let balancer = Balancer::new(LoadBalancing { algorithm, slow_start: warm_up });
        for count in 1..4 {
            let table = Loads(vec![0; count]);
            for draw in (0..200).map(|n| hash(n, "draw")) {
                let chosen =
                    balancer.choose_candidate(&table, None, |_| Some(Duration::ZERO), draw);
                assert!(chosen.is_some());
            }
        }
    }
}
