//! Traces: every way that a decision may go, each with its probability.

use std::sync::Arc;

use leno_model::Endpoint;

use super::TagPlan;
use super::share::{Chance, Draw, Shares};
use crate::request::RequestView;

/// One way that a decision may go.
#[derive(Debug, Clone)]
pub struct TagOutcome {
    /// How probable it is, from 0 to 1.
    pub share: f64,
    /// The rule that decides, by its place among the rules; none fits when absent.
    pub rule: Option<usize>,
    /// The rule by caller that narrowed the instances down further, by its place.
    pub by_caller: Option<usize>,
    /// The set of instances that was chosen, in words; nobody is left when absent.
    pub set: Option<String>,
    /// Who is left.
    pub endpoints: Arc<[Arc<Endpoint>]>,
    /// Whether others take such requests while none of these is well.
    pub yields: bool,
}

impl TagPlan {
    /// Every way that a request may go, or a connection in which none is seen; ways that lead to
    /// the same instances by the same rules are one.
    #[must_use]
    pub fn outcomes(&self, request: Option<&RequestView<'_>>) -> Vec<TagOutcome> {
        let mut outcomes: Vec<TagOutcome> = Vec::new();
        let mut script = Script::default();
        loop {
            script.begin();
            let decision = match request {
                Some(request) => self.choose(request, &mut script),
                None => self.without_request(&mut script),
            };
            let set = decision.endpoints.and_then(|_| self.set(decision.set));
            let outcome = TagOutcome {
                share: script.probability,
                rule: decision.rule,
                by_caller: decision.by_caller,
                set: set.map(ToString::to_string),
                endpoints: decision.endpoints.map_or_else(|| [].into(), Arc::clone),
                yields: decision.others.is_some(),
            };
            let same = |other: &&mut TagOutcome| {
                other.set == outcome.set && other.endpoints == outcome.endpoints
            };
            match outcomes.iter_mut().find(same) {
                Some(known) => known.share += outcome.share,
                None if outcome.share > 0.0 => outcomes.push(outcome),
                None => {}
            }
            if !script.advance() {
                return outcomes;
            }
        }
    }
}

/// Draws that go through all possibilities, one run after the other.
#[derive(Default)]
struct Script {
    /// What is drawn, and out of how many.
    draws: Vec<(usize, usize)>,
    at: usize,
    probability: f64,
}

impl Script {
    fn begin(&mut self) {
        self.at = 0;
        self.probability = 1.0;
    }

    /// Turns to the next run; false when there is none.
    fn advance(&mut self) -> bool {
        while let Some((drawn, choices)) = self.draws.pop() {
            if drawn + 1 < choices {
                self.draws.push((drawn + 1, choices));
                return true;
            }
        }
        false
    }
}

impl Chance for Script {
    fn pick(&mut self, _: Draw, shares: &Shares) -> usize {
        if self.at == self.draws.len() {
            self.draws.push((0, shares.len() + 1));
        }
        let drawn = self.draws.get(self.at).map_or(0, |(drawn, _)| *drawn);
        self.at += 1;
        self.probability *= shares.points(drawn) as f64 / shares.total().max(1) as f64;
        drawn
    }
}
