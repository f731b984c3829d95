//! HTTP routing: selects the rule and the backend of each request to a service port, by the precedence of the Gateway
//! API.

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
/// Among all matches for a request, the first one in this order applies (Gateway API, `HTTPRouteRule`): exact path;
/// longest prefix; regular expression; any path (also the prefix `/`); then a match with methods; most headers; most
/// query parameters; then by the name of the route, the order of its rules and the order of their matches. The Gateway
/// API does not specify the position of regular expressions; here they take precedence over matches for any path.
///
/// Exact paths and prefixes are indexed. If many matches have the same path condition, their exact headers, query
/// parameters and methods are indexed as well. The time for a request does not grow with the number of indexed matches.
/// Only regular expressions without such conditions are evaluated one by one.
#[derive(Debug, Clone)]
pub struct PortRoutes {
    /// True if requests that match no rule are rejected.
    has_attached_routes: bool,
    /// True if there are neither rules nor attached routes.
    is_trivial: bool,
    /// True if a rule has a CORS policy.
    has_cors: bool,
    /// The index of the rules' matches.
    index: RouteIndex,
    /// The rules, in the order of the port's configuration.
    rules: Box<[CompiledRouteRule]>,
    /// The client's retry policy, for rules without their own retry settings.
    default_retry: Option<Box<DefaultRetry>>,
}

/// A client's compiled retry policy, the default of rules.
#[derive(Debug, Clone)]
struct DefaultRetry {
    policy: ServiceRetry,
    /// The actions for requests that match no rule.
    direct_actions: Arc<CompiledActions>,
}

impl PortRoutes {
    /// Compiles the rules of a port.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first invalid regular expression, with its route.
    pub fn compile(port: &PortConfig) -> Result<Self, InvalidPattern> {
        Self::from_rules(&port.rules, port.has_attached_routes)
    }

    /// Adds a client's retry policy, for rules without their own retry settings.
    #[must_use]
    pub fn with_retry(mut self, policy: Option<&ServiceRetry>) -> Self {
        let Some(policy) = policy else { return self };
        let direct_actions = Arc::new(CompiledActions::default().with_retry(policy));
        let with_default = |actions: Option<&Arc<CompiledActions>>| {
            Some(actions.map_or_else(
                || direct_actions.clone(),
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
            Some(Box::new(DefaultRetry { policy: policy.clone(), direct_actions }));
        self
    }

    /// Compiles rules. With `has_attached_routes`, requests that match no rule are rejected.
    pub(crate) fn from_rules(
        rules: &[RouteRule],
        has_attached_routes: bool,
    ) -> Result<Self, InvalidPattern> {
        let mut matches = Vec::new();
        for (rule_index, rule) in rules.iter().enumerate() {
            for request in &rule.matches {
                let matcher = RequestMatcher::compile(request)
                    .map_err(|error| error.with_object(rule.kind.object_key(rule.route.clone())))?;
                matches.push((request, CompiledMatch { matcher, rule_index }));
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
        let matching_rule = || self.rules.get(self.index.find_match(request)?.rule_index);
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

    /// Returns the rule for the actual request of a CORS preflight request; `None` if the request is not a preflight
    /// request, or if the rule has no CORS policy.
    #[inline(never)]
    fn preflight_rule(&self, request: &RequestView<'_>) -> Option<&CompiledRouteRule> {
        let method = preflight_for(request)?;
        let request = RequestView { method: &method, ..*request };
        let rule = self.rules.get(self.index.find_match(&request)?.rule_index)?;
        rule.actions.as_ref().is_some_and(|actions| actions.cors.is_some()).then_some(rule)
    }

    /// True if there are no rules and no attached routes, so that every request is forwarded to the service's own
    /// endpoints.
    #[must_use]
    pub fn is_trivial(&self) -> bool {
        self.is_trivial
    }

    /// Returns the actions for requests that match no rule and are forwarded directly; `None` without a retry policy.
    #[must_use]
    pub fn direct_actions(&self) -> Option<&Arc<CompiledActions>> {
        self.default_retry.as_ref().map(|default_retry| &default_retry.direct_actions)
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
    /// The request is forwarded to the service's own endpoints: no route is attached, and no split rule matches.
    Direct,
    /// A rule matches, and a backend was selected. The caller must respond with `invalid-backend` if the snapshot does
    /// not contain the backend.
    To {
        /// The matching rule.
        rule: &'a CompiledRouteRule,
        /// The selected backend.
        backend: &'a WeightedBackend,
        /// The index of the backend in [`CompiledRouteRule::backends`].
        index: usize,
    },
    /// Routes are attached, and no rule matches the request.
    NoRoute,
    /// The matching rule redirects.
    Redirect {
        /// The matching rule.
        rule: &'a CompiledRouteRule,
    },
    /// The matching rule has no backend with a positive weight, or no grant permits the selected backend.
    InvalidBackend {
        /// The matching rule.
        rule: &'a CompiledRouteRule,
    },
}

/// A compiled route rule, without its matches.
#[derive(Debug, Clone)]
pub struct CompiledRouteRule {
    /// The index of the rule in the port's configuration.
    pub index: usize,
    /// The name of the rule's route.
    pub route: RouteName,
    /// The kind of the rule's route.
    pub kind: RouteKind,
    /// The timeout of the whole exchange; no limit when absent.
    pub request_timeout: Option<Duration>,
    /// The backends.
    pub backends: Box<[WeightedBackend]>,
    /// The actions of the rule, if any.
    pub actions: Option<Arc<CompiledActions>>,
    /// The actions for each backend, if a backend has its own edits; otherwise empty.
    backend_actions: Box<[Option<Arc<CompiledActions>>]>,
    /// The session persistence of the rule, if any.
    pub persistence: Option<Arc<CompiledPersistence>>,
    /// The index of the rule in its route, from 0; `index` counts the rules of all routes of the port.
    pub index_in_route: usize,
    /// The cached index of the counter for the rule's matches.
    pub match_slot: MatchSlot,
    /// The sum of the weights, including those of backends that no grant permits.
    total_weight: u64,
}

/// Compiles rules, and numbers them within their routes.
fn compile_rules(rules: &[RouteRule]) -> Box<[CompiledRouteRule]> {
    let mut rule_counts: BTreeMap<(RouteKind, &RouteName), usize> = BTreeMap::new();
    let rules = rules.iter().enumerate().map(|(index, rule)| {
        let index_in_route = rule_counts.entry((rule.kind, &rule.route)).or_default();
        let compiled_rule = CompiledRouteRule::new(index, rule, *index_in_route);
        *index_in_route += 1;
        compiled_rule
    });
    rules.collect()
}

/// Returns the actions for each backend, if a backend has its own edits; otherwise an empty list.
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
    fn new(index: usize, rule: &RouteRule, index_in_route: usize) -> Self {
        let persistence = CompiledPersistence::from_rule(rule, index_in_route).map(Arc::new);
        let mut actions = CompiledActions::compile(&rule.actions, &rule.matches);
        if let (Some(name), Some(actions)) =
            (persistence.as_ref().and_then(|persistence| persistence.header_name()), &mut actions)
        {
            // Only the sidecar may set the header that identifies the endpoint.
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
            index_in_route,
            match_slot: MatchSlot::default(),
            total_weight: rule
                .backends
                .iter()
                .map(|backend| u64::from(backend.weight))
                .sum::<u64>()
                + u64::from(rule.actions.ungranted_weight),
        }
    }

    /// Returns the actions for a request to the backend at this index, if any.
    #[must_use]
    pub fn actions_at(&self, index: usize) -> Option<&Arc<CompiledActions>> {
        match self.backend_actions.get(index) {
            None => self.actions.as_ref(),
            Some(actions) => actions.as_ref(),
        }
    }

    /// Returns the routing result for the backend at this index; `None` if the rule has no such backend.
    pub(crate) fn choice_at(&self, index: usize) -> Option<RouteChoice<'_>> {
        Some(RouteChoice::To { rule: self, backend: self.backends.get(index)?, index })
    }

    /// Selects a backend by weight, with its index. `random` is a uniform random number.
    fn select_backend(&self, random: u64) -> Option<(usize, &WeightedBackend)> {
        select_by_weight(&self.backends, self.total_weight, random)
    }
}

/// Selects a backend by weight, with its index. `total_weight` is the sum of all weights, including those of backends
/// that no grant permits. Returns `None` if the selected weight belongs to a backend without a grant, or if the sum is
/// 0. `random` is a uniform random number.
pub(crate) fn select_by_weight(
    backends: &[WeightedBackend],
    total_weight: u64,
    random: u64,
) -> Option<(usize, &WeightedBackend)> {
    // Weights have 32 bits and random numbers have 64, so the bias of the remainder is below one in four billion.
    let mut remainder = random.checked_rem(total_weight)?;
    backends.iter().enumerate().find(|(_, backend)| {
        let weight = u64::from(backend.weight);
        let is_selected = remainder < weight;
        remainder = remainder.saturating_sub(weight);
        is_selected
    })
}

/// A compiled match of a rule.
#[derive(Debug, Clone)]
struct CompiledMatch {
    matcher: RequestMatcher,
    /// The index of the rule among the rules of the port.
    rule_index: usize,
}

/// The rank of a match: its specificity. Among the matches for a request, the one with the greatest rank takes
/// precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    path: PathRank,
    /// True if the match has a condition on methods.
    has_methods: bool,
    /// The number of header conditions.
    header_count: usize,
    /// The number of query parameter conditions.
    parameter_count: usize,
}

/// The specificity of a path condition, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PathRank {
    Any,
    Regex,
    /// The length of the prefix in bytes; a longer prefix is more specific.
    Prefix(usize),
    Exact,
}

/// The reason why one match takes precedence over another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precedence {
    /// The path condition is more specific.
    Path,
    /// The match has a condition on methods.
    Method,
    /// The match has more header conditions.
    Headers,
    /// The match has more query parameter conditions.
    Query,
    /// The matches are equally specific; the age or name of the route, or the order of rules or matches decides.
    Order,
}

/// True if `first` is more specific than `second`, and takes precedence if both match.
#[must_use]
pub fn takes_precedence(first: &RequestMatch, second: &RequestMatch) -> bool {
    match_rank(first) > match_rank(second)
}

/// Returns the reason why `first` takes precedence over `second`, if both match and `first` does take precedence.
#[must_use]
pub fn precedence(first: &RequestMatch, second: &RequestMatch) -> Precedence {
    let (first, second) = (match_rank(first), match_rank(second));
    if first.path != second.path {
        Precedence::Path
    } else if first.has_methods != second.has_methods {
        Precedence::Method
    } else if first.header_count != second.header_count {
        Precedence::Headers
    } else if first.parameter_count != second.parameter_count {
        Precedence::Query
    } else {
        Precedence::Order
    }
}

/// Returns the rank of a match.
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
        has_methods: !request.methods.is_empty(),
        header_count: request.headers.len(),
        parameter_count: request.query.len(),
    }
}

#[cfg(test)]
mod tests;
