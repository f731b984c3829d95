//! Effect of tag rules on a request: the decisive rule, the tag sets with their shares, and the excluded
//! endpoints.

use std::sync::Arc;

use leno_model::{Endpoint, Reason, RuleOrigin, TagRules};
use leno_traffic::{CompiledTagRules, RequestView, TagOutcome};
use serde_json::{Value, json};

/// The effect of tag rules on a request.
#[derive(Debug)]
pub(super) struct DecidedTags {
    rules: TagRules,
    /// Every possible result.
    outcomes: Vec<TagOutcome>,
    /// The endpoints that receive no such request.
    left_out: Vec<Arc<Endpoint>>,
}

impl DecidedTags {
    pub(super) fn for_request(
        tags: &CompiledTagRules,
        request: Option<&RequestView<'_>>,
        all: &[Arc<Endpoint>],
    ) -> Self {
        let outcomes = tags.all_outcomes(request);
        let mut decided = Self { rules: tags.rules().clone(), outcomes, left_out: Vec::new() };
        decided.left_out = all.iter().filter(|one| !decided.is_selected(one)).cloned().collect();
        decided
    }

    /// True if an endpoint receives some of such requests.
    pub(super) fn is_selected(&self, endpoint: &Arc<Endpoint>) -> bool {
        let mut outcomes = self.outcomes.iter();
        outcomes.any(|outcome| outcome.endpoints.iter().any(|left| left.id == endpoint.id))
    }

    /// True if all such requests are rejected.
    pub(super) fn leave_nobody(&self) -> bool {
        self.outcomes.iter().all(|outcome| outcome.set.is_none())
    }

    /// True if some of such requests are rejected.
    pub(super) fn may_leave_nobody(&self) -> bool {
        self.outcomes.iter().any(|outcome| outcome.set.is_none())
    }

    /// Returns the lines of the text output, each with its label.
    pub(super) fn describe(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("tag rule", self.describe_rule())];
        for outcome in &self.outcomes {
            lines.push(("tag set", self.reported_outcome(outcome)));
        }
        lines.extend(self.left_out.iter().map(|endpoint| ("", reported_left_out(endpoint))));
        lines
    }

    /// Returns the JSON output.
    pub(super) fn to_json(&self) -> Value {
        let outcome = |outcome: &TagOutcome| {
            json!({
                "share": outcome.share,
                "set": outcome.set,
                "narrowed_by": self.narrowed_by(outcome),
                "reason": outcome.set.is_none().then(|| Reason::NoTaggedEndpoint.label()),
                "workloads": workload_names(&outcome.endpoints),
                "fallback": outcome.yields,
            })
        };
        json!({
            "rule": self.describe_rule(),
            "outcomes": self.outcomes.iter().map(outcome).collect::<Vec<_>>(),
            "excluded": workload_names(&self.left_out),
        })
    }

    /// Describes the rule that decides, with the number of rules before it that do not match.
    fn describe_rule(&self) -> String {
        let decides = self.outcomes.first().and_then(|outcome| outcome.rule);
        match decides.and_then(|place| Some((place, self.rules.rules.get(place)?))) {
            Some((before, rule)) => {
                let before = match before {
                    0 => String::new(),
                    1 => ", after 1 that does not match".to_owned(),
                    several => format!(", after {several} that do not match"),
                };
                format!(
                    "{} (precedence {}){before}",
                    reported_origin(&rule.origin),
                    rule.precedence
                )
            }
            None => match self.rules.rules.len() {
                0 => "no rules that match requests".to_owned(),
                several => format!("none of {several} matches"),
            },
        }
    }

    fn reported_outcome(&self, outcome: &TagOutcome) -> String {
        let share = format!("{:.4}", outcome.share * 100.0);
        let share = share.trim_end_matches('0').trim_end_matches('.');
        let Some(set) = &outcome.set else {
            let reason = Reason::NoTaggedEndpoint;
            return format!("{share} %: no endpoint: {} {}", reason.status(), reason.label());
        };
        let narrowed = match self.narrowed_by(outcome) {
            Some(rule) => format!(", narrowed by {rule}"),
            None => String::new(),
        };
        let others = if outcome.yields { "; others if none of these is healthy" } else { "" };
        format!(
            "{share} %: {set}{narrowed}: {}{others}",
            workload_names(&outcome.endpoints).join(", ")
        )
    }

    fn narrowed_by(&self, outcome: &TagOutcome) -> Option<String> {
        let rule = self.rules.by_caller.get(outcome.by_caller?)?;
        Some(format!("{} by the caller's tags", reported_origin(&rule.origin)))
    }
}

/// Describes an excluded endpoint, with its tags.
fn reported_left_out(endpoint: &Endpoint) -> String {
    let tags = endpoint.tags.iter().map(|(name, value)| format!("{name}={value}"));
    let tags: Vec<String> = tags.collect();
    match tags.is_empty() {
        true => format!("{} is excluded: it has no tags", endpoint.id.workload),
        false => format!("{} is excluded: it has {}", endpoint.id.workload, tags.join(", ")),
    }
}

fn reported_origin(origin: &RuleOrigin) -> String {
    format!("{} rule {}", origin.object_key(), origin.index)
}

fn workload_names(endpoints: &[Arc<Endpoint>]) -> Vec<String> {
    endpoints.iter().map(|endpoint| endpoint.id.workload.to_string()).collect()
}
