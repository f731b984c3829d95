//! The conditions of a rule of a `RateLimit` or `FaultInjection`, and the name of the rule.

use crate::access_policy::PeerMatch;
use crate::definition::{Definition, ManifestBuilder};
use crate::name::Name;
use crate::request_match::RequestMatch;

/// The name of a rule, and the conditions on requests and callers, both of which must hold.
pub(crate) struct RuleConditions {
    /// The name, or the index in the document, such as `rules[0]`.
    pub(crate) name: String,
    /// The requests; one matching entry is enough. All requests when empty.
    pub(crate) requests: Vec<RequestMatch>,
    /// The callers; one matching entry is enough. All callers when empty.
    pub(crate) peers: Vec<PeerMatch>,
}

/// The fields of a name and conditions.
#[derive(Definition)]
#[definition(builds = RuleConditions)]
struct RuleConditionFields {
    /// Name of the rule in reports, unique in the policy.
    #[field(absent = "its index, such as `rules[0]`")]
    name: Option<Name>,
    /// Requests that the rule matches; one matching entry is enough.
    #[field(list(1, 256), absent = "all requests")]
    matches: Vec<RequestMatch>,
    /// Clients that the rule matches; one matching entry is enough.
    #[field(list(1, 256), absent = "all clients")]
    from: Vec<PeerMatch>,
}

impl RuleConditionFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> RuleConditions {
        RuleConditions {
            name: self.name.map_or_else(|| builder.element_label(), |name| name.to_string()),
            requests: self.matches,
            peers: self.from,
        }
    }
}

/// Rejects a rule with the name of an earlier rule.
pub(crate) fn check_rule_names<R>(
    rules: Vec<R>,
    name_of: fn(&R) -> &str,
    builder: &mut ManifestBuilder<'_>,
) -> Option<Vec<R>> {
    let (problem, hint) = ("has the name of another rule", "use another name");
    builder
        .check_unique("rules", &rules, |rule| name_of(rule).to_owned(), problem, hint)
        .then_some(rules)
}
