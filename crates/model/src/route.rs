//! HTTP and gRPC routes: rules that forward matching requests of a service to backends.

use std::fmt;
use std::time::Duration;

use crate::action::{BackendEdits, RuleActions};
use crate::change::ObjectKey;
use crate::name::{RouteName, ServiceName};

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

/// The conditions on a request, all of which must hold. The default matches every request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RequestMatch {
    /// The condition on the path, without the query.
    pub path: PathMatch,
    /// The methods, one of which the request must have; any method when empty.
    pub methods: Vec<String>,
    /// The conditions on headers, all of which must hold. Names are in lower case; `:authority` is the host.
    pub headers: Vec<FieldMatch>,
    /// The conditions on query parameters, all of which must hold. Names are case-sensitive.
    pub query: Vec<FieldMatch>,
}

/// Formats the conditions, such as `path prefix /a, method GET`.
impl fmt::Display for RequestMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = match &self.path {
            PathMatch::Any => None,
            PathMatch::Exact(path) => Some(format!("path {path}")),
            PathMatch::Prefix(path) => Some(format!("path prefix {path}")),
            PathMatch::Regex(path) => Some(format!("path regex {path}")),
        };
        let methods = (!self.methods.is_empty()).then(|| self.methods.join(" or "));
        let to_text = |kind: &'static str| move |field: &FieldMatch| field.to_text(kind);
        let conditions: Vec<String> = path
            .into_iter()
            .chain(methods.map(|methods| format!("method {methods}")))
            .chain(self.headers.iter().map(to_text("header")))
            .chain(self.query.iter().map(to_text("query")))
            .collect();
        match conditions.is_empty() {
            true => f.write_str("every request"),
            false => f.write_str(&conditions.join(", ")),
        }
    }
}

impl FieldMatch {
    /// Formats the condition. `kind` is the word for its field, such as `header`.
    fn to_text(&self, kind: &str) -> String {
        match &self.value {
            ValueMatch::Exact(value) => format!("{kind} {} = {value}", self.name),
            ValueMatch::Regex(value) => format!("{kind} {} matches {value}", self.name),
        }
    }
}

/// A condition on a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum PathMatch {
    /// Any path.
    #[default]
    Any,
    /// Exactly this path.
    Exact(String),
    /// A prefix of whole path elements: `/a` matches `/a` and `/a/b`, not `/ab`.
    Prefix(String),
    /// A regular expression that the whole path must match.
    Regex(String),
}

/// A condition on a header or query parameter.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FieldMatch {
    /// The name of the header or parameter.
    pub name: String,
    /// The condition on its value.
    pub value: ValueMatch,
}

/// A condition on a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ValueMatch {
    /// Exactly this value.
    Exact(String),
    /// A regular expression that the whole value must match.
    Regex(String),
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
