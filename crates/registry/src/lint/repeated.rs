//! Warnings about rules that never match because an earlier rule matches the same requests.

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

/// A route, and its first rule with a match.
type MatchingRule<'a> = (&'a HttpRoute, usize);

/// A match normalized so that the order of headers and parameters is irrelevant.
#[derive(Clone, PartialEq, Eq, Hash)]
struct NormalizedMatch<'a> {
    path: &'a PathMatch,
    methods: &'a [String],
    headers: Vec<FieldKey<'a>>,
    query: Vec<FieldKey<'a>>,
}

/// Name, true for a regular expression, and the value.
type FieldKey<'a> = (&'a str, bool, &'a str);

impl<'a> NormalizedMatch<'a> {
    fn from_match(request: &'a RequestMatch) -> Self {
        let keys = |fields: &'a [FieldMatch]| {
            let key = |field: &'a FieldMatch| match &field.value {
                ValueMatch::Exact(value) => (&*field.name, false, &**value),
                ValueMatch::Regex(value) => (&*field.name, true, &**value),
            };
            let mut keys: Vec<FieldKey<'a>> = fields.iter().map(key).collect();
            keys.sort_unstable();
            keys
        };
        Self {
            path: &request.path,
            methods: &request.methods,
            headers: keys(&request.headers),
            query: keys(&request.query),
        }
    }
}

impl<'a> RepeatedMatches<'a> {
    pub(super) fn add_route(&mut self, route: &'a HttpRoute) {
        let services: BTreeSet<&ServiceName> =
            route.parents.iter().map(|parent| &parent.service).collect();
        for (number, rule) in route.rules.iter().enumerate() {
            for request in rule.matches.iter().map(NormalizedMatch::from_match) {
                for service in &services {
                    let held = self.0.entry((*service, request.clone())).or_default();
                    // The first rule of a route is sufficient.
                    if held.last().is_none_or(|(last, _)| !std::ptr::eq(*last, route)) {
                        held.push((route, number));
                    }
                }
            }
        }
    }

    /// Returns the first preceding route with such a match.
    fn find_preceding(
        &self,
        route: &'a HttpRoute,
        request: &NormalizedMatch<'a>,
    ) -> Option<MatchingRule<'a>> {
        // A preceding route has all parents of this one, so checking the first suffices.
        let first = &route.parents.first()?.service;
        let held = self.0.get(&(first, request.clone()))?;
        held.iter().find(|(other, _)| goes_first(other, route)).copied()
    }
}

impl<'a> ObjectIndex<'a> {
    /// Warns about matches repeated from an earlier rule, of this route or of a preceding one.
    pub(super) fn lint_repeated(&self, route: &'a HttpRoute, lint: &mut WarningCollector<'_>) {
        let mut own: HashMap<NormalizedMatch<'_>, usize> = HashMap::new();
        for (place, rule) in route.rules.iter().enumerate() {
            for (index, request) in rule.matches.iter().map(NormalizedMatch::from_match).enumerate()
            {
                let before = own.get(&request).filter(|number| **number < place);
                let before = before.map(|number| format!("spec.rules[{number}]"));
                let others = || {
                    let (other, number) = self.matches.find_preceding(route, &request)?;
                    let (kind, name) = (other.kind.as_str(), &other.name);
                    Some(format!("rules[{number}] of the {kind} {name}, which takes precedence,"))
                };
                if let Some(first) = before.or_else(others) {
                    lint.add_warning(
                        format!("spec.rules[{place}].matches[{index}]"),
                        format!("never applies: {first} matches the same requests"),
                        "remove one of the two, or change its matches",
                    );
                }
                own.entry(request).or_insert(place);
            }
        }
    }
}

/// Warns about policy rules after a rule that matches every request.
pub(super) fn lint_policy(policy: &ServicePolicy, lint: &mut WarningCollector<'_>) {
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
            let first = rules.position(|it| it.stop && all(&it.requests, it.peers.len()));
            (first, limits.rules.len())
        }
        _ => (None, 0),
    };
    let Some(first) = takes_all else { return };
    for place in first + 1..count {
        lint.add_warning(
            format!("spec.rules[{place}]"),
            format!("never applies: rules[{first}] matches every request first"),
            "move it before that rule, or restrict the requests of that rule",
        );
    }
}

/// Warns about lane rules after a rule that matches every request.
pub(super) fn lint_lane(lane: &Lane, lint: &mut WarningCollector<'_>) {
    let mut rules: Vec<&LaneRule> = lane.rules.iter().collect();
    rules.sort_by_key(|rule| Reverse(rule.precedence));
    let mut rules = rules.into_iter();
    let Some(all) = rules.find(|rule| rule.matches == TagMatch::default()) else { return };
    for rule in rules {
        lint.add_warning(
            format!("spec.rules[{}]", rule.origin.index),
            format!("never applies: rules[{}] matches every request first", all.origin.index),
            "give it a greater `precedence`, or the other a `match`",
        );
    }
}

/// True if the rules of one route are evaluated before the same rules of another: of two routes of one kind and
/// namespace on one port, the oldest first, then by name.
fn goes_first(one: &HttpRoute, other: &HttpRoute) -> bool {
    let meets = |parent: &RouteParent| {
        let mut parents = one.parents.iter();
        parents.any(|it| {
            it.service == parent.service && it.port.is_none_or(|port| parent.port == Some(port))
        })
    };
    (one.kind, &one.name.namespace) == (other.kind, &other.name.namespace)
        && (one.created, &one.name.name) < (other.created, &other.name.name)
        && other.parents.iter().all(meets)
}
