//! Enumerates all possible tag routing results with their probabilities, for `leno explain`.

use std::sync::Arc;

use leno_model::Endpoint;

use super::CompiledTagRules;
use super::weighted_targets::{ChoicePurpose, RandomChoice, WeightedTargets};
use crate::request::RequestView;

/// One possible routing result.
#[derive(Debug, Clone)]
pub struct TagOutcome {
    /// The share of requests with this result, which is its probability; from 0 to 1.
    pub share: f64,
    /// The index of the matching rule; absent if none matches.
    pub rule_index: Option<usize>,
    /// The index of the caller rule that narrowed the instances further.
    pub caller_rule_index: Option<usize>,
    /// The description of the selected set; absent if no instance remains.
    pub set: Option<String>,
    /// The remaining instances.
    pub endpoints: Arc<[Arc<Endpoint>]>,
    /// True if other instances receive the requests if none of these instances is healthy.
    pub has_fallback: bool,
}

impl CompiledTagRules {
    /// Returns all possible results for a request, or for an opaque connection without a request. Results with the same
    /// set and instances are merged.
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
                rule_index: decision.rule,
                caller_rule_index: decision.by_caller,
                set: set.map(ToString::to_string),
                endpoints: decision.endpoints.map_or_else(|| [].into(), Arc::clone),
                has_fallback: decision.fallbacks.is_some(),
            };
            let is_same_outcome = |listed_outcome: &&mut TagOutcome| {
                listed_outcome.set == outcome.set && listed_outcome.endpoints == outcome.endpoints
            };
            match outcomes.iter_mut().find(is_same_outcome) {
                Some(existing) => existing.share += outcome.share,
                None if outcome.share > 0.0 => outcomes.push(outcome),
                // No random number leads to this result.
                None => {}
            }
            if !script.next_run() {
                return outcomes;
            }
        }
    }
}

/// A source of choices that enumerates all possible sequences of choices, one sequence per run.
#[derive(Default)]
struct ScriptedChoice {
    /// The selected index and the number of possible indices of each choice.
    choices: Vec<(usize, usize)>,
    /// The position of the next choice in this run.
    position: usize,
    /// The probability of the choices of this run so far.
    probability: f64,
}

impl ScriptedChoice {
    /// Starts a run.
    fn begin_run(&mut self) {
        self.position = 0;
        self.probability = 1.0;
    }

    /// Prepares the next run; false if all sequences were enumerated.
    fn next_run(&mut self) -> bool {
        while let Some((selected, index_count)) = self.choices.pop() {
            if selected + 1 < index_count {
                self.choices.push((selected + 1, index_count));
                return true;
            }
        }
        false
    }
}

impl RandomChoice for ScriptedChoice {
    fn pick_target(&mut self, _: ChoicePurpose, targets: &WeightedTargets) -> usize {
        if self.position == self.choices.len() {
            // The last index stands for the points that belong to no target.
            self.choices.push((0, targets.len() + 1));
        }
        let selected = self.choices.get(self.position).map_or(0, |(selected, _)| *selected);
        self.position += 1;
        self.probability *=
            targets.target_points(selected) as f64 / targets.total_points().max(1) as f64;
        selected
    }
}
