//! Enumeration of all possible tag routing results with their probabilities.

use std::sync::Arc;

use leno_model::Endpoint;

use super::CompiledTagRules;
use super::weighted_targets::{ChoicePurpose, RandomChoice, WeightedTargets};
use crate::request::RequestView;

/// One possible routing result.
#[derive(Debug, Clone)]
pub struct TagOutcome {
    /// The probability, from 0 to 1.
    pub share: f64,
    /// The index of the matching rule; absent if none matches.
    pub rule: Option<usize>,
    /// The index of the caller rule that narrowed the instances further.
    pub by_caller: Option<usize>,
    /// The description of the selected set; absent if no instance remains.
    pub set: Option<String>,
    /// The remaining instances.
    pub endpoints: Arc<[Arc<Endpoint>]>,
    /// True if other instances receive the requests while none of these is healthy.
    pub yields: bool,
}

impl CompiledTagRules {
    /// Returns all possible results for a request, or for an opaque connection; results with the same instances
    /// and rules are merged.
    #[must_use]
    pub fn all_outcomes(&self, request: Option<&RequestView<'_>>) -> Vec<TagOutcome> {
        let mut outcomes: Vec<TagOutcome> = Vec::new();
        let mut script = ScriptedChoice::default();
        loop {
            script.begin_run();
            let decision = match request {
                Some(request) => self.choose_instances(request, &mut script),
                None => self.choose_without_request(&mut script),
            };
            let set = decision.endpoints.and_then(|_| self.find_set(decision.set));
            let outcome = TagOutcome {
                share: script.probability,
                rule: decision.rule,
                by_caller: decision.by_caller,
                set: set.map(ToString::to_string),
                endpoints: decision.endpoints.map_or_else(|| [].into(), Arc::clone),
                yields: decision.fallbacks.is_some(),
            };
            let is_same_outcome = |other: &&mut TagOutcome| {
                other.set == outcome.set && other.endpoints == outcome.endpoints
            };
            match outcomes.iter_mut().find(is_same_outcome) {
                Some(existing) => existing.share += outcome.share,
                None if outcome.share > 0.0 => outcomes.push(outcome),
                None => {}
            }
            if !script.next_run() {
                return outcomes;
            }
        }
    }
}

/// A source of draws that enumerates all possibilities, one per run.
#[derive(Default)]
struct ScriptedChoice {
    /// The selected index and the number of choices of each draw.
    draws: Vec<(usize, usize)>,
    /// The position of the next draw in this run.
    position: usize,
    probability: f64,
}

impl ScriptedChoice {
    fn begin_run(&mut self) {
        self.position = 0;
        self.probability = 1.0;
    }

    /// Advances to the next run; false if there is none.
    fn next_run(&mut self) -> bool {
        while let Some((selected, choices)) = self.draws.pop() {
            if selected + 1 < choices {
                self.draws.push((selected + 1, choices));
                return true;
            }
        }
        false
    }
}

impl RandomChoice for ScriptedChoice {
    fn pick_target(&mut self, _: ChoicePurpose, shares: &WeightedTargets) -> usize {
        if self.position == self.draws.len() {
            self.draws.push((0, shares.len() + 1));
        }
        let selected = self.draws.get(self.position).map_or(0, |(selected, _)| *selected);
        self.position += 1;
        self.probability *=
            shares.target_points(selected) as f64 / shares.total_points().max(1) as f64;
        selected
    }
}
