//! Looks for rules that never decide, because another one takes the same requests before.

use std::cmp::Reverse;

use leno_model::{
    FieldMatch, HttpRoute, Lane, LaneRule, RequestMatch, RouteParent, ServicePolicy, ServiceRule,
    TagMatch,
};

use super::{Lint, World};

impl World<'_> {
    /// Matches that an earlier rule has already, of the route itself or of one that goes first.
    pub(super) fn lint_repeated(&self, route: &HttpRoute, lint: &mut Lint<'_>) {
        let routes = self.routes.iter().copied();
        let rivals: Vec<&HttpRoute> = routes.filter(|other| goes_first(other, route)).collect();
        for (place, rule) in route.rules.iter().enumerate() {
            for (index, request) in rule.matches.iter().enumerate() {
                let before = route.rules.iter().take(place);
                let own = earlier(before, request).map(|number| format!("spec.rules[{number}]"));
                let others = || {
                    rivals.iter().find_map(|other| {
                        let number = earlier(other.rules.iter(), request)?;
                        let (kind, name) = (other.kind.as_str(), &other.name);
                        Some(format!("rules[{number}] of the {kind} {name}, which goes first,"))
                    })
                };
                if let Some(first) = own.or_else(others) {
                    lint.warn(
                        format!("spec.rules[{place}].matches[{index}]"),
                        format!("never decides: {first} is for the same requests"),
                        "remove one of the two, or say in one what differs",
                    );
                }
            }
        }
    }
}

/// What stands after a rule of a policy that takes everything.
pub(super) fn lint_policy(policy: &ServicePolicy, lint: &mut Lint<'_>) {
    let all = |requests: &[RequestMatch], peers: usize| {
        peers == 0 && (requests.is_empty() || requests.contains(&RequestMatch::default()))
    };
    let (takes_all, count) = match &policy.rule {
        ServiceRule::FaultInjection(rules) => {
            let first = rules.iter().position(|it| all(&it.requests, it.peers.len()));
            (first, rules.len())
        }
        ServiceRule::RateLimit(limits) => {
            let mut rules = limits.rules.iter();
            let first = rules.position(|it| it.is_last && all(&it.requests, it.peers.len()));
            (first, limits.rules.len())
        }
        _ => (None, 0),
    };
    let Some(first) = takes_all else { return };
    for place in first + 1..count {
        lint.warn(
            format!("spec.rules[{place}]"),
            format!("never decides: rules[{first}] takes every request before"),
            "put it before that rule, or say there which requests it is for",
        );
    }
}

/// What stands after a rule of a lane that takes everything.
pub(super) fn lint_lane(lane: &Lane, lint: &mut Lint<'_>) {
    let mut rules: Vec<&LaneRule> = lane.rules.iter().collect();
    rules.sort_by_key(|rule| Reverse(rule.precedence));
    let mut rules = rules.into_iter();
    let Some(all) = rules.find(|rule| rule.matches == TagMatch::default()) else { return };
    for rule in rules {
        lint.warn(
            format!("spec.rules[{}]", rule.origin.index),
            format!("never decides: rules[{}] takes every request before", all.origin.index),
            "give it a greater `precedence`, or the other a `match`",
        );
    }
}

/// Whether the rules of a route are asked before the same ones of another: of two of one kind and
/// namespace at one port the first by name.
fn goes_first(one: &HttpRoute, other: &HttpRoute) -> bool {
    let meets = |parent: &RouteParent| {
        let mut parents = one.parents.iter();
        parents.any(|it| {
            it.service == parent.service && it.port.is_none_or(|port| parent.port == Some(port))
        })
    };
    (one.kind, &one.name.namespace) == (other.kind, &other.name.namespace)
        && one.name.name < other.name.name
        && other.parents.iter().all(meets)
}

/// The first of these rules that has such a match.
fn earlier<'a>(
    mut rules: impl Iterator<Item = &'a leno_model::RouteRule>,
    request: &RequestMatch,
) -> Option<usize> {
    rules.position(|rule| rule.matches.iter().any(|found| is_same(found, request)))
}

/// The order of headers and parameters means nothing.
fn is_same(one: &RequestMatch, other: &RequestMatch) -> bool {
    let same = |one: &[FieldMatch], other: &[FieldMatch]| {
        one.len() == other.len() && one.iter().all(|field| other.contains(field))
    };
    one.path == other.path
        && one.methods == other.methods
        && same(&one.headers, &other.headers)
        && same(&one.query, &other.query)
}
