//! Counts of rule matches, by the data thread that applied the rule.

use leno_model::{PolicyName, RouteKind, RouteName, RuleKind, RuleOrigin, ServicePolicyName};
use leno_telemetry::{MetricsShard, RuleLabels, RuleNumber};
use leno_traffic::{CompiledRouteRule, MatchSlot, PolicyDecision};

/// Counts a match of a route rule.
pub(crate) fn count_route(shard: &MetricsShard, rule: &CompiledRouteRule) {
    count_match(shard, &rule.match_slot, || {
        route_labels(rule.kind.as_str(), &rule.route, rule.number)
    });
}

/// Counts a match of a rule for connections without parsed requests. These rules have no slot that caches their
/// series: a connection looks it up anyway.
pub(crate) fn count_connection_rule(shard: &MetricsShard, kind: &'static str, route: &RouteName) {
    shard.count_match(shard.rule_number(&route_labels(kind, route, 0)));
}

/// Counts a match of a rule of this kind of route, for connections without parsed requests.
pub(crate) fn count_route_kind(shard: &MetricsShard, kind: RouteKind, route: &RouteName) {
    count_connection_rule(shard, kind.as_str(), route);
}

/// Counts a match of an authorization rule.
pub(crate) fn count_policy(shard: &MetricsShard, decision: &PolicyDecision) {
    count_match(shard, decision.match_slot(), || RuleLabels {
        kind: decision.policy_kind(),
        namespace: decision.policy.namespace.to_string(),
        name: decision.policy.name.to_string(),
        rule: decision.rule.as_deref().unwrap_or_default().to_owned(),
    });
}

/// Counts a match of a tag or lane rule.
pub(crate) fn count_tags(shard: &MetricsShard, origin: &RuleOrigin, slot: &MatchSlot) {
    count_match(shard, slot, || RuleLabels {
        kind: origin.dialect.as_str(),
        namespace: origin.name.namespace.to_string(),
        name: origin.name.name.to_string(),
        rule: origin.index.to_string(),
    });
}

/// Counts a match of a policy as a whole, or of its only rule.
pub(crate) fn count_whole_policy(
    shard: &MetricsShard,
    policy: &ServicePolicyName,
    slot: &MatchSlot,
) {
    count_match(shard, slot, || RuleLabels {
        kind: policy.kind.as_str(),
        namespace: policy.namespace.to_string(),
        name: policy.name.to_string(),
        rule: String::new(),
    });
}

/// Counts a retry by a retry policy.
pub(crate) fn count_retry(shard: &MetricsShard, policy: &PolicyName, slot: &MatchSlot) {
    count_match(shard, slot, || RuleLabels {
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

fn count_match(shard: &MetricsShard, slot: &MatchSlot, labels: impl FnOnce() -> RuleLabels) {
    let rule_number = slot.index_or_find(|| shard.rule_number(&labels()).get());
    if let Some(rule) = RuleNumber::new(rule_number) {
        shard.count_match(rule);
    }
}
