//! Routing: which rule of the attached routes decides a request, and which backend takes it.

mod index;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leno_model::{
    PathMatch, PortView, RequestMatch, RouteKind, RouteName, RouteRule, ServiceRetry,
    WeightedBackend,
};

use crate::action::CompiledActions;
use crate::cors::preflight_for;
use crate::hits::HitSlot;
use crate::matcher::{RequestMatcher, prefix_elements};
use crate::pattern::BadPattern;
use crate::persistence::CompiledPersistence;
use crate::request::RequestView;

use self::index::Index;

/// The routes of one service port, compiled.
///
/// Of all matches that a request fits, the first by this order decides (Gateway API,
/// `HTTPRouteRule`): exact path; longest prefix; regular expression; any path (also the prefix
/// `/`); then a match that names methods; most headers; most query parameters; and between
/// equals the name of the route, the order of its rules and of their matches. The Gateway API
/// leaves the place of regular expressions open; here a catch-all does not hide them.
///
/// Exact paths and prefixes are looked up, and where many matches have the same one, or none, exact
/// headers, query parameters and methods: what a request costs does not grow with their number. Only
/// regular expressions that have nothing of these are tried one after the other.
#[derive(Debug, Clone)]
pub struct PortRoutes {
    attached: bool,
    /// Neither rules nor attached routes.
    trivial: bool,
    /// A rule says what pages of other origins may.
    has_cors: bool,
    index: Index,
    rules: Box<[CompiledRule]>,
    retried: Option<Box<Retried>>,
}

/// A policy sends requests once more where no rule says it.
#[derive(Debug, Clone)]
struct Retried {
    policy: ServiceRetry,
    /// What is done for requests that no rule is about.
    direct: Arc<CompiledActions>,
}

impl PortRoutes {
    /// Compiles the rules of a port.
    ///
    /// # Errors
    /// [`BadPattern`] for the first regular expression that cannot be used; it names the route.
    pub fn compile(view: &PortView) -> Result<Self, BadPattern> {
        Self::of(&view.rules, view.routed)
    }

    /// The same for a client whose requests a policy sends once more where no rule says it.
    #[must_use]
    pub fn under(mut self, policy: Option<&ServiceRetry>) -> Self {
        let Some(policy) = policy else { return self };
        let direct = Arc::new(CompiledActions::default().under(policy));
        let under = |actions: Option<&Arc<CompiledActions>>| {
            Some(actions.map_or_else(|| direct.clone(), |actions| Arc::new(actions.under(policy))))
        };
        for rule in &mut self.rules {
            rule.actions = under(rule.actions.as_ref());
            for own in &mut rule.own {
                *own = under(own.as_ref());
            }
        }
        self.retried = Some(Box::new(Retried { policy: policy.clone(), direct }));
        self
    }

    /// Compiles rules; `attached`: a request that none of them fits goes nowhere.
    pub(crate) fn of(rules: &[RouteRule], attached: bool) -> Result<Self, BadPattern> {
        let mut matches = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            for request in &rule.matches {
                let matcher = RequestMatcher::compile(request)
                    .map_err(|bad| bad.within(rule.kind.key(rule.route.clone())))?;
                matches.push((request, CompiledMatch { matcher, rule: index }));
            }
        }
        Ok(Self {
            attached,
            trivial: !attached && rules.is_empty(),
            has_cors: rules.iter().any(|rule| rule.actions.cors.is_some()),
            index: Index::build(matches),
            rules: compiled(rules),
            retried: None,
        })
    }

    /// Where a request goes; `draw` is a random number that chooses among weighted backends.
    #[must_use]
    pub fn choose(&self, request: &RequestView<'_>, draw: u64) -> RouteChoice<'_> {
        if self.trivial {
            return RouteChoice::Direct;
        }
        let asked_about = if self.has_cors { self.asked_about(request) } else { None };
        let decisive = || self.rules.get(self.index.find(request)?.rule);
        let Some(rule) = asked_about.or_else(decisive) else {
            return if self.attached { RouteChoice::NoRoute } else { RouteChoice::Direct };
        };
        if rule.actions.as_ref().is_some_and(|actions| actions.redirects()) {
            return RouteChoice::Redirect { rule };
        }
        match rule.backend(draw) {
            Some((index, backend)) => RouteChoice::To { rule, backend, index },
            None => RouteChoice::InvalidBackend { rule },
        }
    }

    /// The rule for the request that a browser asks about, if it says what pages of other origins may:
    /// the question is for whom the request would be.
    #[inline(never)]
    fn asked_about(&self, request: &RequestView<'_>) -> Option<&CompiledRule> {
        let method = preflight_for(request)?;
        let request = RequestView { method: &method, ..*request };
        let rule = self.rules.get(self.index.find(&request)?.rule)?;
        rule.actions.as_ref().is_some_and(|actions| actions.cors.is_some()).then_some(rule)
    }

    /// Whether there are no rules, and no route is attached: every request goes to the service's
    /// own endpoints.
    #[must_use]
    pub fn is_trivial(&self) -> bool {
        self.trivial
    }

    /// What is done for a request that no rule is about; `None` when that is nothing.
    #[must_use]
    pub fn direct_actions(&self) -> Option<&Arc<CompiledActions>> {
        self.retried.as_ref().map(|retried| &retried.direct)
    }

    /// The policy that sends requests once more where no rule says it.
    #[must_use]
    pub fn retry_policy(&self) -> Option<&ServiceRetry> {
        self.retried.as_ref().map(|retried| &retried.policy)
    }

    /// The rules, in the order of the port's view.
    #[must_use]
    pub fn rules(&self) -> &[CompiledRule] {
        &self.rules
    }
}

/// Where a request goes.
#[derive(Debug, Clone, Copy)]
pub enum RouteChoice<'a> {
    /// No route is attached, and no rule of a split is about it: to the service's own endpoints.
    Direct,
    /// A rule decided. Its backend may still be unknown to the mesh; then the answer is
    /// `invalid-backend` as well.
    To {
        /// The rule.
        rule: &'a CompiledRule,
        /// The backend that takes the request.
        backend: &'a WeightedBackend,
        /// The backend's place in [`CompiledRule::backends`].
        index: usize,
    },
    /// Routes are attached, and the request fits none of their matches.
    NoRoute,
    /// The rule that decided answers with a redirection.
    Redirect {
        /// The rule.
        rule: &'a CompiledRule,
    },
    /// The rule that decided has no backends, or none with a weight, or no grant permits the one
    /// whose turn it is.
    InvalidBackend {
        /// The rule.
        rule: &'a CompiledRule,
    },
}

/// A rule, without its matches.
#[derive(Debug, Clone)]
pub struct CompiledRule {
    /// Its place among the rules of the port's view.
    pub index: usize,
    /// The route that it came from.
    pub route: RouteName,
    /// Its kind.
    pub kind: RouteKind,
    /// How long the whole exchange may take; no limit when absent.
    pub request_timeout: Option<Duration>,
    /// Where its requests go.
    pub backends: Box<[WeightedBackend]>,
    /// What it does beside; `None` when that is nothing.
    pub actions: Option<Arc<CompiledActions>>,
    /// The actions for each backend, where one has edits of its own; otherwise empty.
    own: Box<[Option<Arc<CompiledActions>>]>,
    /// What keeps the requests of one client at one endpoint, if it says so.
    pub persistence: Option<Arc<CompiledPersistence>>,
    /// Its place among the rules of its route.
    pub number: usize,
    /// Where its decisions are counted.
    pub hits: HitSlot,
    weight_total: u64,
}

/// The rules, each with its place among those of its route.
fn compiled(rules: &[RouteRule]) -> Box<[CompiledRule]> {
    let mut so_far: BTreeMap<(RouteKind, &RouteName), usize> = BTreeMap::new();
    let rules = rules.iter().enumerate().map(|(index, rule)| {
        let number = so_far.entry((rule.kind, &rule.route)).or_default();
        let compiled = CompiledRule::new((index, rule), *number);
        *number += 1;
        compiled
    });
    rules.collect()
}

/// The actions for each backend, if one of them has edits of its own.
fn own(
    rule: &RouteRule,
    actions: Option<&Arc<CompiledActions>>,
) -> Box<[Option<Arc<CompiledActions>>]> {
    let backends = &rule.backends;
    if backends.iter().all(|backend| backend.edits.is_none()) {
        return Box::default();
    }
    let own = backends.iter().map(|backend| match &backend.edits {
        None => actions.cloned(),
        Some(edits) => Some(Arc::new(CompiledActions::for_backend(actions, edits, &rule.matches))),
    });
    own.collect()
}

impl CompiledRule {
    fn new((index, rule): (usize, &RouteRule), number: usize) -> Self {
        let persistence = CompiledPersistence::of(rule, number).map(Arc::new);
        let mut actions = CompiledActions::compile(&rule.actions, &rule.matches);
        if let (Some(name), Some(actions)) =
            (persistence.as_ref().and_then(|it| it.header()), &mut actions)
        {
            actions.hide(name);
        }
        let actions = actions.map(Arc::new);
        Self {
            index,
            route: rule.route.clone(),
            kind: rule.kind,
            request_timeout: rule.request_timeout,
            backends: rule.backends.as_slice().into(),
            own: own(rule, actions.as_ref()),
            actions,
            persistence,
            number,
            hits: HitSlot::default(),
            weight_total: rule.backends.iter().map(|b| u64::from(b.weight)).sum::<u64>()
                + u64::from(rule.actions.ungranted_weight),
        }
    }

    /// What is done beside choosing this backend; `None` when that is nothing.
    #[must_use]
    pub fn actions_at(&self, index: usize) -> Option<&Arc<CompiledActions>> {
        match self.own.get(index) {
            None => self.actions.as_ref(),
            Some(own) => own.as_ref(),
        }
    }

    /// The choice of the backend at this place; `None` when there is none.
    pub(crate) fn at(&self, index: usize) -> Option<RouteChoice<'_>> {
        Some(RouteChoice::To { rule: self, backend: self.backends.get(index)?, index })
    }

    /// The backend whose share of the weights the draw falls into.
    fn backend(&self, draw: u64) -> Option<(usize, &WeightedBackend)> {
        by_weight(&self.backends, self.weight_total, draw)
    }
}

/// The backend, and its place, whose share of the weights the draw falls into; `total` is their
/// sum.
pub(crate) fn by_weight(
    backends: &[WeightedBackend],
    total: u64,
    draw: u64,
) -> Option<(usize, &WeightedBackend)> {
    // Weights are 32 bits: the bias of the remainder is below one in four billion.
    let mut point = draw.checked_rem(total)?;
    backends.iter().enumerate().find(|(_, backend)| {
        let weight = u64::from(backend.weight);
        let taken = point < weight;
        point = point.saturating_sub(weight);
        taken
    })
}

#[derive(Debug, Clone)]
struct CompiledMatch {
    matcher: RequestMatcher,
    rule: usize,
}

/// How specific a match is; the greatest decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    path: PathRank,
    names_methods: bool,
    headers: usize,
    parameters: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PathRank {
    Any,
    Regex,
    Prefix(usize),
    Exact,
}

/// Why one match decides before another that a request fits as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precedence {
    /// Its path is more specific.
    Path,
    /// It names methods.
    Method,
    /// It names more headers.
    Headers,
    /// It names more query parameters.
    Query,
    /// It is as specific, and comes first: of an older route, by name of route, rule or place.
    Order,
}

/// Whether `first` is more specific than `second`, so that it decides what both fit.
#[must_use]
pub fn goes_before(first: &RequestMatch, second: &RequestMatch) -> bool {
    rank(first) > rank(second)
}

/// Why `first` decides before `second`, given that it does.
#[must_use]
pub fn precedence(first: &RequestMatch, second: &RequestMatch) -> Precedence {
    let (first, second) = (rank(first), rank(second));
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

fn rank(request: &RequestMatch) -> Rank {
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
