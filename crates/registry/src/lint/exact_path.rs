//! Warns about rules that deny or check requests for one exact path, but not requests for paths below it.

use leno_model::{
    AccessPolicy, PathMatch, PolicyAction, RequestCheck, RequestMatch, ServicePolicy,
    TokenRequirement,
};

use super::WarningCollector;

/// Warns about the deny rules of an `AccessPolicy`. In allow rules, an exact path is the safer choice.
pub(super) fn lint_access(policy: &AccessPolicy, collector: &mut WarningCollector<'_>) {
    let deny_rules = policy.rules.iter().filter(|rule| rule.action == PolicyAction::Deny);
    for (rule, rule_index) in deny_rules.zip(0..) {
        lint_requests(
            &rule.requests,
            &format!("spec.deny[{rule_index}].requests"),
            "denies",
            collector,
        );
    }
}

/// Warns about requests that an `ExternalAuthorization` checks, and about requests for which a `JwtValidation` requires a token.
pub(super) fn lint_policy(policy: &ServicePolicy, collector: &mut WarningCollector<'_>) {
    match policy.rule.server_check() {
        Some(RequestCheck::Authorization(rule)) => {
            lint_requests(&rule.requests, "spec.matches", "checks", collector);
        }
        Some(RequestCheck::Tokens(tokens)) => {
            if let TokenRequirement::Matching(requests) = &tokens.required {
                lint_requests(requests, "spec.requiredFor", "requires a token for", collector);
            }
        }
        None => {}
    }
}

/// Warns about each match of an exact path. `verb` is the effect of the rule on the requests, for the message.
fn lint_requests(
    requests: &[RequestMatch],
    field: &str,
    verb: &str,
    collector: &mut WarningCollector<'_>,
) {
    for (request, index) in requests.iter().zip(0..) {
        let PathMatch::Exact(path) = &request.path else { continue };
        collector.add_warning(
            format!("{field}[{index}].path.type"),
            format!(
                "{verb} {path} and no path below it, where an application may serve the same \
                     resource"
            ),
            "PathPrefix is safer; use Exact only for exactly this path",
        );
    }
}
