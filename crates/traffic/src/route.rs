//! HTTP routing: rule precedence and backend selection for one service port.

mod index;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leno_model::{
    PathMatch, PortConfig, RequestMatch, RouteKind, RouteName, RouteRule, ServiceRetry,
    WeightedBackend,
};

use crate::action::CompiledActions;
use crate::cors::preflight_for;
use crate::match_slot::MatchSlot;
use crate::matcher::{RequestMatcher, prefix_elements};
use crate::pattern::InvalidPattern;
use crate::request::RequestView;
use crate::session_persistence::CompiledPersistence;

use self::index::RouteIndex;

/// The compiled routes of one service port.
///
/// Of all matches for a request, the first in this order decides (Gateway API, `HTTPRouteRule`): exact path;
/// longest prefix; regular expression; any path (also the prefix `/`); then a match with methods; most headers;
/// most query parameters; and among equals the name of the route, the order of its rules and of their matches.
/// The Gateway API leaves the position of regular expressions open; here a catch-all does not hide them.
///
/// Exact paths and prefixes are indexed; if many matches share one, or have none, so are exact headers, query
/// parameters and methods. The cost of a request does not grow with their number. Only regular expressions
/// without such conditions are tried one by one.
#[derive(Debug, Clone)]
pub struct PortRoutes {
    /// True if requests that match no rule are rejected.
    has_attached_routes: bool,
    /// True if there are neither rules nor attached routes.
    is_trivial: bool,
    /// True if a rule has CORS.
    has_cors: bool,
    index: RouteIndex,
    rules: Box<[CompiledRouteRule]>,
    /// The client's retry policy, for rules without retries of their own.
    default_retry: Option<Box<DefaultRetry>>,
}

/// A client's default retry policy, compiled.
#[derive(Debug, Clone)]
struct DefaultRetry {
    policy: ServiceRetry,
    /// The actions for requests that match no rule.
    unmatched_actions: Arc<CompiledActions>,
}

impl PortRoutes {
    /// Compiles the rules of a port.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first invalid regular expression, with its route.
    pub fn compile(port: &PortConfig) -> Result<Self, InvalidPattern> {
        Self::from_rules(&port.rules, port.routed)
    }

    /// Adds a client's retry policy, for rules without retries of their own.
    #[must_use]
    pub fn with_retry(mut self, policy: Option<&ServiceRetry>) -> Self {
        let Some(policy) = policy else { return self };
        let unmatched_actions = Arc::new(CompiledActions::default().with_retry(policy));
        let with_default = |actions: Option<&Arc<CompiledActions>>| {
            Some(actions.map_or_else(
                || unmatched_actions.clone(),
                |actions| Arc::new(actions.with_retry(policy)),
            ))
        };
        for rule in &mut self.rules {
            rule.actions = with_default(rule.actions.as_ref());
            for actions in &mut rule.backend_actions {
                *actions = with_default(actions.as_ref());
            }
        }
        self.default_retry =
            Some(Box::new(DefaultRetry { policy: policy.clone(), unmatched_actions }));
        self
    }

    /// Compiles rules. With `has_attached_routes`, requests that match no rule are rejected.
    pub(crate) fn from_rules(
        rules: &[RouteRule],
        has_attached_routes: bool,
    ) -> Result<Self, InvalidPattern> {
        let mut matches = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            for request in &rule.matches {
                let matcher = RequestMatcher::compile(request)
                    .map_err(|error| error.with_object(rule.kind.object_key(rule.route.clone())))?;
                matches.push((request, CompiledMatch { matcher, rule: index }));
            }
        }
        Ok(Self {
            has_attached_routes,
            is_trivial: !has_attached_routes && rules.is_empty(),
            has_cors: rules.iter().any(|rule| rule.actions.cors.is_some()),
            index: RouteIndex::build(matches),
            rules: compile_rules(rules),
            default_retry: None,
        })
    }

    /// Selects the backend of a request. `random` is a uniform random number, for the choice among weighted
    /// backends.
    #[must_use]
    pub fn choose_backend(&self, request: &RequestView<'_>, random: u64) -> RouteChoice<'_> {
        if self.is_trivial {
            return RouteChoice::Direct;
        }
        let preflight_rule = if self.has_cors { self.preflight_rule(request) } else { None };
        let matching_rule = || self.rules.get(self.index.find_match(request)?.rule);
        let Some(rule) = preflight_rule.or_else(matching_rule) else {
            return if self.has_attached_routes {
                RouteChoice::NoRoute
            } else {
                RouteChoice::Direct
            };
        };
        if rule.actions.as_ref().is_some_and(|actions| actions.is_redirect()) {
            return RouteChoice::Redirect { rule };
        }
        match rule.select_backend(random) {
            Some((index, backend)) => RouteChoice::To { rule, backend, index },
            None => RouteChoice::InvalidBackend { rule },
        }
    }

    /// Returns the rule for the request that a CORS preflight announces; `None` if the request is no preflight,
    /// or the rule has no CORS.
    #[inline(never)]
    fn preflight_rule(&self, request: &RequestView<'_>) -> Option<&CompiledRouteRule> {
        let method = preflight_for(request)?;
        let request = RequestView { method: &method, ..*request };
        let rule = self.rules.get(self.index.find_match(&request)?.rule)?;
        rule.actions.as_ref().is_some_and(|actions| actions.cors.is_some()).then_some(rule)
    }

    /// True if there are no rules and no attached routes: every request goes to the service's own endpoints.
    #[must_use]
    pub fn is_trivial(&self) -> bool {
        self.is_trivial
    }

    /// Returns the actions for requests that match no rule, if any.
    #[must_use]
    pub fn direct_actions(&self) -> Option<&Arc<CompiledActions>> {
        self.default_retry.as_ref().map(|default_retry| &default_retry.unmatched_actions)
    }

    /// Returns the client's default retry policy, if any.
    #[must_use]
    pub fn retry_policy(&self) -> Option<&ServiceRetry> {
        self.default_retry.as_ref().map(|default_retry| &default_retry.policy)
    }

    /// Returns the rules, in the order of the port's configuration.
    #[must_use]
    pub fn rules(&self) -> &[CompiledRouteRule] {
        &self.rules
    }
}

/// The routing result of a request.
#[derive(Debug, Clone, Copy)]
pub enum RouteChoice<'a> {
    /// No route is attached, and no split rule matches: the service's own endpoints.
    Direct,
    /// A rule matched, and its backend was selected. The caller responds `invalid-backend` if the mesh does not
    /// contain the backend.
    To {
        /// The matching rule.
        rule: &'a CompiledRouteRule,
        /// The selected backend.
        backend: &'a WeightedBackend,
        /// The index of the backend in [`CompiledRouteRule::backends`].
        index: usize,
    },
    /// Routes are attached, but none matches the request.
    NoRoute,
    /// The matching rule redirects.
    Redirect {
        /// The matching rule.
        rule: &'a CompiledRouteRule,
    },
    /// The matching rule has no backends, or none with a weight, or no grant permits the selected one.
    InvalidBackend {
        /// The matching rule.
        rule: &'a CompiledRouteRule,
    },
}

/// A rule without its matches.
#[derive(Debug, Clone)]
pub struct CompiledRouteRule {
    /// The index of the rule in the port's configuration.
    pub index: usize,
    /// The name of the rule's route.
    pub route: RouteName,
    /// The kind of the route resource.
    pub kind: RouteKind,
    /// The timeout of the whole exchange; no limit when absent.
    pub request_timeout: Option<Duration>,
    /// The backends.
    pub backends: Box<[WeightedBackend]>,
    /// The other actions of the rule, if any.
    pub actions: Option<Arc<CompiledActions>>,
    /// The actions for each backend, if one has header edits of its own; otherwise empty.
    backend_actions: Box<[Option<Arc<CompiledActions>>]>,
    /// The session persistence of the rule, if any.
    pub persistence: Option<Arc<CompiledPersistence>>,
    /// The index of the rule in its route.
    pub number: usize,
    /// The counter of the rule's matches.
    pub match_slot: MatchSlot,
    /// The sum of the weights, including those of backends that no grant permits.
    weight_total: u64,
}

/// Compiles the rules, each with its index in its route.
fn compile_rules(rules: &[RouteRule]) -> Box<[CompiledRouteRule]> {
    let mut rule_counts: BTreeMap<(RouteKind, &RouteName), usize> = BTreeMap::new();
    let rules = rules.iter().enumerate().map(|(index, rule)| {
        let number = rule_counts.entry((rule.kind, &rule.route)).or_default();
        let compiled = CompiledRouteRule::new(index, rule, *number);
        *number += 1;
        compiled
    });
    rules.collect()
}

/// Returns the actions for each backend, if one of them has header edits of its own; otherwise an empty list.
fn backend_actions(
    rule: &RouteRule,
    actions: Option<&Arc<CompiledActions>>,
) -> Box<[Option<Arc<CompiledActions>>]> {
    let backends = &rule.backends;
    if backends.iter().all(|backend| backend.edits.is_none()) {
        return Box::default();
    }
    let actions = backends.iter().map(|backend| match &backend.edits {
        None => actions.cloned(),
        Some(edits) => Some(Arc::new(CompiledActions::for_backend(actions, edits, &rule.matches))),
    });
    actions.collect()
}

impl CompiledRouteRule {
    fn new(index: usize, rule: &RouteRule, number: usize) -> Self {
        let persistence = CompiledPersistence::from_rule(rule, number).map(Arc::new);
        let mut actions = CompiledActions::compile(&rule.actions, &rule.matches);
        if let (Some(name), Some(actions)) =
            (persistence.as_ref().and_then(|persistence| persistence.header_name()), &mut actions)
        {
            actions.hide_field(name);
        }
        let actions = actions.map(Arc::new);
        Self {
            index,
            route: rule.route.clone(),
            kind: rule.kind,
            request_timeout: rule.request_timeout,
            backends: rule.backends.as_slice().into(),
            backend_actions: backend_actions(rule, actions.as_ref()),
            actions,
            persistence,
            number,
            match_slot: MatchSlot::default(),
            weight_total: rule
                .backends
                .iter()
                .map(|backend| u64::from(backend.weight))
                .sum::<u64>()
                + u64::from(rule.actions.ungranted_weight),
        }
    }

    /// Returns the actions for a request to this backend, if any.
    #[must_use]
    pub fn actions_at(&self, index: usize) -> Option<&Arc<CompiledActions>> {
        match self.backend_actions.get(index) {
            None => self.actions.as_ref(),
            Some(actions) => actions.as_ref(),
        }
    }

    /// Returns the routing result for the backend at this index; `None` if there is none.
    pub(crate) fn choice_at(&self, index: usize) -> Option<RouteChoice<'_>> {
        Some(RouteChoice::To { rule: self, backend: self.backends.get(index)?, index })
    }

    /// Returns the backend that the random number selects by weight, with its index.
    fn select_backend(&self, random: u64) -> Option<(usize, &WeightedBackend)> {
        select_by_weight(&self.backends, self.weight_total, random)
    }
}

/// Returns the backend that the random number selects by weight, with its index; `total` is the sum of weights.
pub(crate) fn select_by_weight(
    backends: &[WeightedBackend],
    total: u64,
    random: u64,
) -> Option<(usize, &WeightedBackend)> {
    // Weights have 32 bits and random numbers 64: the bias of the remainder is below one in four billion.
    let mut remainder = random.checked_rem(total)?;
    backends.iter().enumerate().find(|(_, backend)| {
        let weight = u64::from(backend.weight);
        let selected = remainder < weight;
        remainder = remainder.saturating_sub(weight);
        selected
    })
}

/// A match of a rule.
#[derive(Debug, Clone)]
struct CompiledMatch {
    matcher: RequestMatcher,
    /// The index of the rule.
    rule: usize,
}

/// The specificity of a match; the greatest wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    path: PathRank,
    names_methods: bool,
    headers: usize,
    parameters: usize,
}

/// The specificity of a path condition, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PathRank {
    Any,
    Regex,
    /// The length of the prefix.
    Prefix(usize),
    Exact,
}

/// The reason why one match takes precedence over another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precedence {
    /// A more specific path.
    Path,
    /// A method.
    Method,
    /// More headers.
    Headers,
    /// More query parameters.
    Query,
    /// Equal specificity: the older route, or the order of route names, rules or matches.
    Order,
}

/// True if `first` is more specific than `second`, and takes precedence if both match.
#[must_use]
pub fn takes_precedence(first: &RequestMatch, second: &RequestMatch) -> bool {
    match_rank(first) > match_rank(second)
}

/// Returns the reason why `first` takes precedence over `second`, given that it does.
#[must_use]
pub fn precedence(first: &RequestMatch, second: &RequestMatch) -> Precedence {
    let (first, second) = (match_rank(first), match_rank(second));
    if first.path != second.path {
        Precedence::Path
    } else if first.names_methods != second.names_methods {
        Precedence::Method
    } else if first.headers != second.headers {
        Precedence::Headers
    } else if first.parameters != second.parameters {
        Precedence::Query
    } else {
        Precedence::Order
    }
}

fn match_rank(request: &RequestMatch) -> Rank {
    Rank {
        path: match &request.path {
            PathMatch::Any => PathRank::Any,
            PathMatch::Regex(_) => PathRank::Regex,
            PathMatch::Prefix(prefix) => match prefix_elements(prefix).len() {
                0 => PathRank::Any,
                length => PathRank::Prefix(length),
            },
            PathMatch::Exact(_) => PathRank::Exact,
        },
        names_methods: !request.methods.is_empty(),
        headers: request.headers.len(),
        parameters: request.query.len(),
    }
}

#[cfg(test)]
mod tests;
