//! Counts rule matches in the metrics of the data thread that applied the rule.

use leno_model::{PolicyName, RouteKind, RouteName, RuleKind, RuleOrigin, ServicePolicyName};
use leno_telemetry::{MetricsShard, RuleLabels, RuleNumber};
use leno_traffic::{CompiledRouteRule, MatchSlot, PolicyDecision};

/// Counts a match of a route rule.
pub(crate) fn count_route(metrics: &MetricsShard, rule: &CompiledRouteRule) {
    count_match(metrics, &rule.match_slot, || {
        route_labels(rule.kind.as_str(), &rule.route, rule.index_in_route)
    });
}

/// Counts a match of a rule for connections without parsed requests. The number of the rule is looked up each
/// time, since these rules have no slot that caches it.
pub(crate) fn count_connection_rule(metrics: &MetricsShard, kind: &'static str, route: &RouteName) {
    metrics.count_match(metrics.rule_number(&route_labels(kind, route, 0)));
}

/// Counts a match of a rule of a route of this kind, for connections without parsed requests.
pub(crate) fn count_route_kind(metrics: &MetricsShard, kind: RouteKind, route: &RouteName) {
    count_connection_rule(metrics, kind.as_str(), route);
}

/// Counts a match of an authorization rule.
pub(crate) fn count_policy(metrics: &MetricsShard, decision: &PolicyDecision) {
    count_match(metrics, decision.match_slot(), || RuleLabels {
        kind: decision.policy_kind(),
        namespace: decision.policy.namespace.to_string(),
        name: decision.policy.name.to_string(),
        rule: decision.rule.as_deref().unwrap_or_default().to_owned(),
    });
}

/// Counts a match of a tag or lane rule.
pub(crate) fn count_tags(metrics: &MetricsShard, origin: &RuleOrigin, match_slot: &MatchSlot) {
    count_match(metrics, match_slot, || RuleLabels {
        kind: origin.dialect.as_str(),
        namespace: origin.name.namespace.to_string(),
        name: origin.name.name.to_string(),
        rule: origin.index.to_string(),
    });
}

/// Counts a match of a policy as a whole, or of its only rule.
pub(crate) fn count_whole_policy(
    metrics: &MetricsShard,
    policy: &ServicePolicyName,
    match_slot: &MatchSlot,
) {
    count_match(metrics, match_slot, || RuleLabels {
        kind: policy.kind.as_str(),
        namespace: policy.namespace.to_string(),
        name: policy.name.to_string(),
        rule: String::new(),
    });
}

/// Counts a retry by a retry policy.
pub(crate) fn count_retry(metrics: &MetricsShard, policy: &PolicyName, match_slot: &MatchSlot) {
    count_match(metrics, match_slot, || RuleLabels {
        kind: RuleKind::Retry.as_str(),
        namespace: policy.namespace.to_string(),
        name: policy.name.to_string(),
        rule: String::new(),
    });
}

fn route_labels(kind: &'static str, route: &RouteName, rule_index: usize) -> RuleLabels {
    RuleLabels {
        kind,
        namespace: route.namespace.to_string(),
        name: route.name.to_string(),
        rule: rule_index.to_string(),
    }
}

/// Counts a match of a rule. `match_slot` caches the rule's number. `labels` is called on the first match.
fn count_match(
    metrics: &MetricsShard,
    match_slot: &MatchSlot,
    labels: impl FnOnce() -> RuleLabels,
) {
    let rule_number = match_slot.index_or_find(|| metrics.rule_number(&labels()).get());
    if let Some(rule) = RuleNumber::new(rule_number) {
        metrics.count_match(rule);
    }
}
