//! HTTP and gRPC routes: rules that forward matching requests of a service to backends.

use std::time::Duration;

use crate::action::{BackendEdits, RuleActions};
use crate::change::ObjectKey;
use crate::name::{RouteName, ServiceName};
use crate::request_match::RequestMatch;

/// A Gateway API `HTTPRoute` or `GRPCRoute` attached to services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRoute {
    /// The name of the route. Among equally specific matches in routes of the same age, the first route by name takes
    /// precedence.
    pub name: RouteName,
    /// The services that the route is attached to, at least one.
    pub parents: Vec<RouteParent>,
    /// The rules in document order.
    pub rules: Vec<RouteRule>,
    /// The kind of the route.
    pub kind: RouteKind,
    /// The creation time, in seconds since 1970; 0 if unknown, as for files. Between equally specific matches
    /// the older route takes precedence (Gateway API, `HTTPRouteRule`).
    pub created: i64,
}

/// The kind of a route. If a port has routes of several kinds, the last kind in this order takes precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum RouteKind {
    /// A `TrafficSplit`.
    Split,
    /// A `TCPRoute` of the Gateway API.
    Tcp,
    /// A `TLSRoute`. Its rules are of type [`TlsRule`](crate::TlsRule).
    Tls,
    /// An `HTTPRoute`.
    #[default]
    Http,
    /// A `GRPCRoute`.
    Grpc,
}

impl RouteKind {
    /// Returns the word used in manifests.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Split => "TrafficSplit",
            Self::Tcp => "TCPRoute",
            Self::Tls => "TLSRoute",
            Self::Http => "HTTPRoute",
            Self::Grpc => "GRPCRoute",
        }
    }

    /// Returns the identity of the route of this kind and name.
    #[must_use]
    pub fn object_key(self, name: RouteName) -> ObjectKey {
        match self {
            Self::Split => ObjectKey::TrafficSplit(name),
            Self::Tcp => ObjectKey::GatewayTcpRoute(name),
            Self::Tls => ObjectKey::TlsRoute(name),
            Self::Http => ObjectKey::HttpRoute(name),
            Self::Grpc => ObjectKey::GrpcRoute(name),
        }
    }
}

/// A service, or one port of it, that a route is attached to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteParent {
    /// The name of the service.
    pub service: ServiceName,
    /// One port of the service; all ports when absent.
    pub port: Option<u16>,
}

/// True if all `parents` of a route are the same `service`. Such a route needs no grant to forward to the service,
/// because it forwards only the service's own requests.
#[must_use]
pub fn is_only_parent(parents: &[RouteParent], service: &ServiceName) -> bool {
    parents.iter().all(|parent| parent.service == *service)
}

/// One rule of a route.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RouteRule {
    /// The route that contains the rule.
    pub route: RouteName,
    /// The matches; one match is enough. Never empty: the parser adds a match for all requests.
    pub matches: Vec<RequestMatch>,
    /// The weighted backends. If empty, or if all weights are 0, requests receive a 500.
    pub backends: Vec<WeightedBackend>,
    /// The timeout of the whole exchange, including all attempts; no timeout when absent.
    pub request_timeout: Option<Duration>,
    /// The actions of the rule, other than its choice of a backend.
    pub actions: RuleActions,
    /// The kind of the route that contains the rule.
    pub kind: RouteKind,
}

/// A service port that receives a share of a rule's requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WeightedBackend {
    /// The name of the service.
    pub service: ServiceName,
    /// The port of the service.
    pub port: u16,
    /// The share of the requests, relative to the sum of the weights of the rule's backends. A backend of weight 0
    /// receives no requests.
    pub weight: u32,
    /// The edits of requests to this backend, in addition to the rule's edits; none when absent.
    pub edits: Option<Box<BackendEdits>>,
}

impl WeightedBackend {
    /// Creates a backend without edits.
    #[must_use]
    pub const fn new(service: ServiceName, port: u16, weight: u32) -> Self {
        Self { service, port, weight, edits: None }
    }
}
