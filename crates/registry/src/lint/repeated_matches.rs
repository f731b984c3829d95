//! Warns about rules of routes, service policies and lanes that never match, because a preceding rule matches the same
//! requests.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use leno_model::{
    FieldMatch, HttpRoute, Lane, LaneRule, PathMatch, RequestMatch, RouteParent, ServiceName,
    ServicePolicy, ServiceRule, TagMatch, ValueMatch,
};

use super::{ObjectIndex, WarningCollector};

/// The rules of all routes by service and match, in route order.
#[derive(Default)]
pub(super) struct RepeatedMatches<'a>(
    HashMap<(&'a ServiceName, NormalizedMatch<'a>), Vec<MatchingRule<'a>>>,
);

/// A route, and the index of its first rule with the match.
type MatchingRule<'a> = (&'a HttpRoute, usize);

/// A match in normalized form: the order of headers and parameters is irrelevant.
#[derive(Clone, PartialEq, Eq, Hash)]
struct NormalizedMatch<'a> {
    path: &'a PathMatch,
    methods: &'a [String],
    headers: Vec<FieldKey<'a>>,
    query: Vec<FieldKey<'a>>,
}

/// A header or parameter match: the name, true if the value is a regular expression, and the value.
type FieldKey<'a> = (&'a str, bool, &'a str);

impl<'a> NormalizedMatch<'a> {
    /// Returns the normalized form, with headers and parameters sorted.
    fn from_match(request: &'a RequestMatch) -> Self {
        let sorted_keys = |fields: &'a [FieldMatch]| {
            let to_key = |field: &'a FieldMatch| match &field.value {
                ValueMatch::Exact(value) => (&*field.name, false, &**value),
                ValueMatch::Regex(value) => (&*field.name, true, &**value),
            };
            let mut keys: Vec<FieldKey<'a>> = fields.iter().map(to_key).collect();
            keys.sort_unstable();
            keys
        };
        Self {
            path: &request.path,
            methods: &request.methods,
            headers: sorted_keys(&request.headers),
            query: sorted_keys(&request.query),
        }
    }
}

impl<'a> RepeatedMatches<'a> {
    /// Adds the matches of a route, with the index of the first rule that has each match.
    pub(super) fn add_route(&mut self, route: &'a HttpRoute) {
        let services: BTreeSet<&ServiceName> =
            route.parents.iter().map(|parent| &parent.service).collect();
        for (rule_index, rule) in route.rules.iter().enumerate() {
            for request in rule.matches.iter().map(NormalizedMatch::from_match) {
                for service in &services {
                    let rules = self.0.entry((*service, request.clone())).or_default();
                    // The first rule of each route suffices.
                    if rules.last().is_none_or(|(last_route, _)| !std::ptr::eq(*last_route, route))
                    {
                        rules.push((route, rule_index));
                    }
                }
            }
        }
    }

    /// Returns the first route with this match that takes precedence over `route`, and the index of the rule.
    fn find_preceding(
        &self,
        route: &'a HttpRoute,
        request: &NormalizedMatch<'a>,
    ) -> Option<MatchingRule<'a>> {
        // A preceding route has all parents of this route, so checking the first parent suffices.
        let first_service = &route.parents.first()?.service;
        let rules = self.0.get(&(first_service, request.clone()))?;
        rules.iter().find(|(other, _)| takes_precedence(other, route)).copied()
    }
}

impl<'a> ObjectIndex<'a> {
    /// Warns about matches that a preceding rule of this route, or a rule of a route that takes precedence, also has.
    pub(super) fn lint_repeated_matches(
        &self,
        route: &'a HttpRoute,
        collector: &mut WarningCollector<'_>,
    ) {
        let mut own_matches: HashMap<NormalizedMatch<'_>, usize> = HashMap::new();
        for (rule_index, rule) in route.rules.iter().enumerate() {
            for (index, request) in rule.matches.iter().map(NormalizedMatch::from_match).enumerate()
            {
                let own_preceding_index = own_matches
                    .get(&request)
                    .filter(|preceding_index| **preceding_index < rule_index);
                let own_preceding_rule = own_preceding_index
                    .map(|preceding_index| format!("spec.rules[{preceding_index}]"));
                let rule_of_preceding_route = || {
                    let (preceding_route, preceding_index) =
                        self.route_matches.find_preceding(route, &request)?;
                    let (kind, name) = (preceding_route.kind.as_str(), &preceding_route.name);
                    Some(format!(
                        "rules[{preceding_index}] of the {kind} {name}, which takes precedence,"
                    ))
                };
                if let Some(preceding_rule) = own_preceding_rule.or_else(rule_of_preceding_route) {
                    collector.add_warning(
                        format!("spec.rules[{rule_index}].matches[{index}]"),
                        format!("never applies: {preceding_rule} matches the same requests"),
                        "remove one of the two, or change its matches",
                    );
                }
                own_matches.entry(request).or_insert(rule_index);
            }
        }
    }
}

/// Warns about rules of a `FaultInjection` or `RateLimit` that follow a rule for every request.
pub(super) fn lint_policy(policy: &ServicePolicy, collector: &mut WarningCollector<'_>) {
    let matches_all = |requests: &[RequestMatch], peer_count: usize| {
        peer_count == 0 && (requests.is_empty() || requests.contains(&RequestMatch::default()))
    };
    let (catch_all_index, rule_count) = match &policy.rule {
        ServiceRule::FaultInjection(rules) => {
            let catch_all_index =
                rules.iter().position(|rule| matches_all(&rule.requests, rule.peers.len()));
            (catch_all_index, rules.len())
        }
        ServiceRule::RateLimit(limits) => {
            let mut rules = limits.rules.iter();
            let catch_all_index =
                rules.position(|rule| rule.stop && matches_all(&rule.requests, rule.peers.len()));
            (catch_all_index, limits.rules.len())
        }
        _ => (None, 0),
    };
    let Some(catch_all_index) = catch_all_index else { return };
    for index in catch_all_index + 1..rule_count {
        collector.add_warning(
            format!("spec.rules[{index}]"),
            format!("never applies: rules[{catch_all_index}] matches every request first"),
            "move it before that rule, or restrict the requests of that rule",
        );
    }
}

/// Warns about rules of a lane that follow, in the order of their precedence, a rule for every request.
pub(super) fn lint_lane(lane: &Lane, collector: &mut WarningCollector<'_>) {
    let mut ordered_rules: Vec<&LaneRule> = lane.rules.iter().collect();
    ordered_rules.sort_by_key(|rule| Reverse(rule.priority));
    let mut remaining_rules = ordered_rules.into_iter();
    let is_catch_all = |rule: &&LaneRule| rule.request_match == TagMatch::default();
    let Some(catch_all) = remaining_rules.find(is_catch_all) else { return };
    for rule in remaining_rules {
        collector.add_warning(
            format!("spec.rules[{}]", rule.origin.index),
            format!("never applies: rules[{}] matches every request first", catch_all.origin.index),
            "give it a greater `precedence`, or give the other rule a `match`",
        );
    }
}

/// True if the rules of the first route are evaluated before the rules of the second route, on all ports of the second
/// route. Both have the same kind and namespace; the older route is first and, at equal age, the route with the lesser
/// name.
fn takes_precedence(first_route: &HttpRoute, second_route: &HttpRoute) -> bool {
    let shares_port = |parent: &RouteParent| {
        let mut parents = first_route.parents.iter();
        parents.any(|first_parent| {
            first_parent.service == parent.service
                && first_parent.port.is_none_or(|port| parent.port == Some(port))
        })
    };
    (first_route.kind, &first_route.name.namespace)
        == (second_route.kind, &second_route.name.namespace)
        && (first_route.created, &first_route.name.name)
            < (second_route.created, &second_route.name.name)
        && second_route.parents.iter().all(shares_port)
}
