//! A policy's choice: its algorithm, with what one data thread remembers for it.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use leno_model::{BalanceAlgorithm, Endpoint, HashKey, LoadBalancing, Repeated, WorkloadName};

use super::hashing::{self, Places, rendezvous};
use super::policy::{any, in_turn, least_of, warmed, warmth};
use super::{Candidates, pick};
use crate::request::RequestView;
use crate::tag::{cookie, header};

/// A policy about load balancing, as one data thread carries it out.
#[derive(Debug)]
pub struct Balancer {
    rule: LoadBalancing,
    turn: Cell<usize>,
}

/// What a policy hashes of one request: a number, with all bits spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(pub u64);

impl Key {
    /// The key of a request, or of a connection in which none is seen; `None` when it lacks what is
    /// hashed, and then the default decides.
    #[must_use]
    pub fn of(
        key: &HashKey,
        request: Option<&RequestView<'_>>,
        caller: &WorkloadName,
    ) -> Option<Self> {
        let of = |value: Option<Cow<'_, str>>| Some(hashing::key(&value?));
        let number = match (key, request) {
            (HashKey::Source, _) => Some(hashing::key(&caller.to_string())),
            (_, None) => None,
            (HashKey::Header(name), Some(request)) => of(header(request, name, Repeated::Joined)),
            (HashKey::Cookie(name), Some(request)) => of(cookie(request, name)),
        };
        number.map(Self)
    }
}

/// Where candidates are found by a key.
#[derive(Clone, Copy)]
pub enum Keyed<'a> {
    /// All endpoints of a port, with their places.
    Places(&'a Places),
    /// Some of them, which have no places of their own.
    Few(&'a [Arc<Endpoint>]),
}

impl Balancer {
    /// Begins with the first.
    #[must_use]
    pub fn new(rule: LoadBalancing) -> Self {
        Self { rule, turn: Cell::new(0) }
    }

    /// What it says.
    #[must_use]
    pub const fn rule(&self) -> &LoadBalancing {
        &self.rule
    }

    /// Chooses a candidate. `keyed`: the key, and where it is looked up. `age`: for how long a
    /// candidate has been there; `None` when it is not new.
    pub fn choose<C: Candidates + ?Sized>(
        &self,
        candidates: &C,
        keyed: Option<(Key, Keyed<'_>)>,
        age: impl Fn(usize) -> Option<Duration>,
        draw: u64,
    ) -> Option<usize> {
        if self.rule.algorithm.key().is_some() {
            let found = keyed.and_then(|(key, keyed)| find(candidates, key, keyed));
            return found.or_else(|| pick(candidates, draw));
        }
        let choose = |draw| match self.rule.algorithm {
            BalanceAlgorithm::LeastRequest { choices: 0..=2 } => pick(candidates, draw),
            BalanceAlgorithm::LeastRequest { choices } => least_of(candidates, choices, draw),
            BalanceAlgorithm::RoundRobin => in_turn(candidates, self.next()),
            BalanceAlgorithm::Random
            | BalanceAlgorithm::RingHash(_)
            | BalanceAlgorithm::Maglev(_) => any(candidates, draw),
        };
        let Some(rule) = self.rule.warm_up else {
            return choose(draw);
        };
        let warmth = |index| age(index).map_or(u32::MAX, |age| warmth(rule, age));
        warmed(choose, warmth, draw)
    }

    fn next(&self) -> usize {
        let turn = self.turn.get();
        self.turn.set(turn.wrapping_add(1));
        turn
    }
}

fn find<C: Candidates + ?Sized>(candidates: &C, key: Key, keyed: Keyed<'_>) -> Option<usize> {
    let usable = |index: usize| index < candidates.len() && candidates.usable(index);
    match keyed {
        Keyed::Places(places) => places.find(key.0, usable),
        Keyed::Few(endpoints) => rendezvous(key.0, endpoints, usable),
    }
}
