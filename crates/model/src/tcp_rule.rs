//! TCP rules: where connections go in which no request is seen.

use crate::action::RuleActions;
use crate::name::RouteName;
use crate::route::{RequestMatch, RouteKind, RouteParent, RouteRule, WeightedBackend};

/// A Gateway API `TCPRoute` attached to services. Not the one of SMI, which describes ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayTcpRoute {
    /// The services whose connections it decides, at least one.
    pub parents: Vec<RouteParent>,
    /// Its only rule, which has its name.
    pub rule: TcpRule,
    /// As of an [`HttpRoute`](crate::HttpRoute): the oldest goes first.
    pub created: i64,
}

/// Where the connections to a port go, each drawn once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TcpRule {
    /// The object that the rule came from.
    pub route: RouteName,
    /// The kind of that object.
    pub kind: RouteKind,
    /// Where they go, by weight. All weights 0: they are cut off.
    pub backends: Vec<WeightedBackend>,
    /// The weight of backends in other namespaces that no grant permits: their share of the
    /// connections is cut off.
    pub ungranted_weight: u32,
}

impl TcpRule {
    /// The same for requests, each drawn once.
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
