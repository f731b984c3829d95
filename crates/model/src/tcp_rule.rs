//! TCP routes: rules that forward opaque connections of a service to backends.

use crate::action::RuleActions;
use crate::name::RouteName;
use crate::request_match::RequestMatch;
use crate::route::{RouteKind, RouteParent, RouteRule, WeightedBackend};

/// A Gateway API `TCPRoute` attached to services; unrelated to SMI's `TCPRoute`, which describes ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayTcpRoute {
    /// The services that the route is attached to, at least one.
    pub parents: Vec<RouteParent>,
    /// The only rule of the route, which contains the route's name.
    pub rule: TcpRule,
    /// The creation time, in seconds since 1970; 0 if unknown. The oldest route takes precedence.
    pub created: i64,
}

/// The backends of the connections to a port. For each connection a backend is chosen at random, by weight.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TcpRule {
    /// The name of the route or split that contains the rule.
    pub route: RouteName,
    /// The kind of the route or split.
    pub kind: RouteKind,
    /// The weighted backends. If all weights are 0, connections are closed.
    pub backends: Vec<WeightedBackend>,
    /// The total weight of backends in other namespaces that no grant permits. Connections that this weight selects
    /// are closed.
    pub ungranted_weight: u32,
}

impl TcpRule {
    /// Returns the equivalent rule for requests, with a random choice for each request.
    #[must_use]
    pub fn for_requests(&self) -> RouteRule {
        RouteRule {
            route: self.route.clone(),
            matches: vec![RequestMatch::default()],
            backends: self.backends.clone(),
            request_timeout: None,
            actions: RuleActions {
                ungranted_weight: self.ungranted_weight,
                ..RuleActions::default()
            },
            kind: self.kind,
        }
    }
}
