//! Evaluates the tag rules of a port for the request that `leno explain` explains. Describes the rule that decides, the tag
//! sets with their shares of equal requests, and the endpoints that receive none of these requests.

use std::sync::Arc;

use leno_model::{Endpoint, Reason, RuleOrigin, TagRules};
use leno_traffic::{CompiledTagRules, RequestView, TagOutcome};
use serde_json::{Value, json};

/// The effect of tag rules on requests that are equal to the request of the command. Equal requests may have several
/// outcomes, because a rule divides them among tag sets at random.
#[derive(Debug)]
pub(super) struct TagRuleEvaluation {
    rules: TagRules,
    /// Every possible outcome of the rules for the request.
    outcomes: Vec<TagOutcome>,
    /// The endpoints that receive none of the requests.
    excluded_endpoints: Vec<Arc<Endpoint>>,
}

impl TagRuleEvaluation {
    /// Evaluates the tag rules of a port for a request, or for an opaque connection if `request` is `None`.
    /// `endpoints` are all endpoints of the port.
    pub(super) fn for_request(
        tag_rules: &CompiledTagRules,
        request: Option<&RequestView<'_>>,
        endpoints: &[Arc<Endpoint>],
    ) -> Self {
        let outcomes = tag_rules.all_outcomes(request);
        let mut evaluation =
            Self { rules: tag_rules.rules().clone(), outcomes, excluded_endpoints: Vec::new() };
        evaluation.excluded_endpoints = endpoints
            .iter()
            .filter(|endpoint| !evaluation.is_selected(endpoint))
            .cloned()
            .collect();
        evaluation
    }

    /// True if the endpoint receives some of the requests.
    pub(super) fn is_selected(&self, endpoint: &Arc<Endpoint>) -> bool {
        let mut outcomes = self.outcomes.iter();
        outcomes.any(|outcome| outcome.endpoints.iter().any(|selected| selected.id == endpoint.id))
    }

    /// True if all of the requests are rejected.
    pub(super) fn rejects_all(&self) -> bool {
        self.outcomes.iter().all(|outcome| outcome.set.is_none())
    }

    /// True if some of the requests are rejected.
    pub(super) fn may_reject(&self) -> bool {
        self.outcomes.iter().any(|outcome| outcome.set.is_none())
    }

    /// Returns the lines on tag rules in the text output, each with its label: the rule, the tag sets, and the excluded
    /// endpoints. Lines of excluded endpoints have an empty label, because they continue the tag sets.
    pub(super) fn describe_lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("tag rule", self.describe_rule())];
        for outcome in &self.outcomes {
            lines.push(("tag set", self.describe_outcome(outcome)));
        }
        lines.extend(
            self.excluded_endpoints.iter().map(|endpoint| ("", describe_excluded(endpoint))),
        );
        lines
    }

    /// Returns the object `tags` of a backend in the JSON output.
    pub(super) fn to_json(&self) -> Value {
        let outcome_to_json = |outcome: &TagOutcome| {
            json!({
                "share": outcome.share,
                "set": outcome.set,
                "narrowed_by": self.describe_narrowing(outcome),
                "reason": outcome.set.is_none().then(|| Reason::NoTaggedEndpoint.label()),
                "workloads": workload_names(&outcome.endpoints),
                "fallback": outcome.has_fallback,
            })
        };
        json!({
            "rule": self.describe_rule(),
            "outcomes": self.outcomes.iter().map(outcome_to_json).collect::<Vec<_>>(),
            "excluded": workload_names(&self.excluded_endpoints),
        })
    }

    /// Describes the rule that decides, with the number of rules before it that do not match.
    fn describe_rule(&self) -> String {
        let rule_index = self.outcomes.first().and_then(|outcome| outcome.rule_index);
        match rule_index.and_then(|index| Some((index, self.rules.rules.get(index)?))) {
            // Rules are evaluated in order, so the index is also the number of rules before this one.
            Some((skipped_count, rule)) => {
                let skipped_text = match skipped_count {
                    0 => String::new(),
                    1 => ", after 1 that does not match".to_owned(),
                    count => format!(", after {count} that do not match"),
                };
                format!(
                    "{} (precedence {}){skipped_text}",
                    describe_origin(&rule.origin),
                    rule.priority
                )
            }
            None => match self.rules.rules.len() {
                0 => "no rules that match requests".to_owned(),
                count => format!("none of {count} matches"),
            },
        }
    }

    fn describe_outcome(&self, outcome: &TagOutcome) -> String {
        let padded_percent = format!("{:.4}", outcome.share * 100.0);
        let percent = padded_percent.trim_end_matches('0').trim_end_matches('.');
        let Some(set) = &outcome.set else {
            let reason = Reason::NoTaggedEndpoint;
            return format!("{percent} %: no endpoint: {} {}", reason.status(), reason.label());
        };
        let caller_rule_text = match self.describe_narrowing(outcome) {
            Some(rule) => format!(", narrowed by {rule}"),
            None => String::new(),
        };
        let fallback_text =
            if outcome.has_fallback { "; others if none of these is healthy" } else { "" };
        format!(
            "{percent} %: {set}{caller_rule_text}: {}{fallback_text}",
            workload_names(&outcome.endpoints).join(", ")
        )
    }

    /// Describes the rule that restricts the set to endpoints with the caller's own tags; `None` without such a
    /// rule.
    fn describe_narrowing(&self, outcome: &TagOutcome) -> Option<String> {
        let rule = self.rules.caller_rules.get(outcome.caller_rule_index?)?;
        Some(format!("{} by the caller's tags", describe_origin(&rule.origin)))
    }
}

/// Describes an excluded endpoint, with its tags.
fn describe_excluded(endpoint: &Endpoint) -> String {
    let tags: Vec<String> =
        endpoint.tags.iter().map(|(name, value)| format!("{name}={value}")).collect();
    match tags.is_empty() {
        true => format!("{} is excluded: it has no tags", endpoint.id.workload),
        false => format!("{} is excluded: it has {}", endpoint.id.workload, tags.join(", ")),
    }
}

fn describe_origin(origin: &RuleOrigin) -> String {
    format!("{} rule {}", origin.object_key(), origin.index)
}

fn workload_names(endpoints: &[Arc<Endpoint>]) -> Vec<String> {
    endpoints.iter().map(|endpoint| endpoint.id.workload.to_string()).collect()
}
