//! What tag rules make of a request: the rule, the sets with their shares, who is left and who not.

use std::sync::Arc;

use leno_model::{Endpoint, Reason, RuleOrigin, TagRules};
use leno_traffic::{RequestView, TagOutcome, TagPlan};
use serde_json::{Value, json};

/// What tag rules make of a request.
#[derive(Debug)]
pub(super) struct DecidedTags {
    rules: TagRules,
    /// Every way it may go.
    outcomes: Vec<TagOutcome>,
    /// The endpoints that take no such request.
    left_out: Vec<Arc<Endpoint>>,
}

impl DecidedTags {
    pub(super) fn of(
        tags: &TagPlan,
        request: Option<&RequestView<'_>>,
        all: &[Arc<Endpoint>],
    ) -> Self {
        let outcomes = tags.outcomes(request);
        let mut decided = Self { rules: tags.rules().clone(), outcomes, left_out: Vec::new() };
        decided.left_out = all.iter().filter(|one| !decided.leaves(one)).cloned().collect();
        decided
    }

    /// Whether an endpoint takes some of such requests.
    pub(super) fn leaves(&self, endpoint: &Arc<Endpoint>) -> bool {
        let mut outcomes = self.outcomes.iter();
        outcomes.any(|outcome| outcome.endpoints.iter().any(|left| left.id == endpoint.id))
    }

    /// Whether no request of this kind is taken.
    pub(super) fn leave_nobody(&self) -> bool {
        self.outcomes.iter().all(|outcome| outcome.set.is_none())
    }

    /// Whether some request of this kind is not taken.
    pub(super) fn may_leave_nobody(&self) -> bool {
        self.outcomes.iter().any(|outcome| outcome.set.is_none())
    }

    /// Lines for people, each with its label.
    pub(super) fn told(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("tag rule", self.rule())];
        for outcome in &self.outcomes {
            lines.push(("tag set", self.told_outcome(outcome)));
        }
        lines.extend(self.left_out.iter().map(|endpoint| ("", told_left_out(endpoint))));
        lines
    }

    /// The same for programs.
    pub(super) fn json(&self) -> Value {
        let outcome = |outcome: &TagOutcome| {
            json!({
                "share": outcome.share,
                "set": outcome.set,
                "narrowed_by": self.narrowed_by(outcome),
                "reason": outcome.set.is_none().then(|| Reason::NoTaggedEndpoint.label()),
                "workloads": names(&outcome.endpoints),
                "yields": outcome.yields,
            })
        };
        json!({
            "rule": self.rule(),
            "outcomes": self.outcomes.iter().map(outcome).collect::<Vec<_>>(),
            "left_out": names(&self.left_out),
        })
    }

    /// The rule that decides, and how many before it do not fit.
    fn rule(&self) -> String {
        let decides = self.outcomes.first().and_then(|outcome| outcome.rule);
        match decides.and_then(|place| Some((place, self.rules.rules.get(place)?))) {
            Some((before, rule)) => {
                let before = match before {
                    0 => String::new(),
                    1 => ", after one that does not fit".to_owned(),
                    several => format!(", after {several} that do not fit"),
                };
                format!("{} (precedence {}){before}", told_origin(&rule.origin), rule.precedence)
            }
            None => match self.rules.rules.len() {
                0 => "none looks at requests".to_owned(),
                several => format!("none of {several} fits"),
            },
        }
    }

    fn told_outcome(&self, outcome: &TagOutcome) -> String {
        let share = format!("{:.4}", outcome.share * 100.0);
        let share = share.trim_end_matches('0').trim_end_matches('.');
        let Some(set) = &outcome.set else {
            let reason = Reason::NoTaggedEndpoint;
            return format!("{share} %: nobody is left: {} {}", reason.status(), reason.label());
        };
        let narrowed = match self.narrowed_by(outcome) {
            Some(rule) => format!(", of these as {rule} prefers"),
            None => String::new(),
        };
        let others = if outcome.yields { "; others while none of these is well" } else { "" };
        format!("{share} %: {set}{narrowed}: {}{others}", names(&outcome.endpoints).join(", "))
    }

    fn narrowed_by(&self, outcome: &TagOutcome) -> Option<String> {
        let rule = self.rules.by_caller.get(outcome.by_caller?)?;
        Some(format!("{} by the caller's tags", told_origin(&rule.origin)))
    }
}

/// An endpoint that is left out, with what it has instead.
fn told_left_out(endpoint: &Endpoint) -> String {
    let tags = endpoint.tags.iter().map(|(name, value)| format!("{name}={value}"));
    let tags: Vec<String> = tags.collect();
    match tags.is_empty() {
        true => format!("{} is left out: it has none of the tags", endpoint.id.workload),
        false => format!("{} is left out: it has {}", endpoint.id.workload, tags.join(", ")),
    }
}

fn told_origin(origin: &RuleOrigin) -> String {
    format!("{} rule {}", origin.object(), origin.index)
}

fn names(endpoints: &[Arc<Endpoint>]) -> Vec<String> {
    endpoints.iter().map(|endpoint| endpoint.id.workload.to_string()).collect()
}
