//! HTTP and gRPC routes: rules that forward matching requests of a service to backends.

use std::fmt;
use std::time::Duration;

use crate::action::{BackendEdits, RuleActions};
use crate::change::ObjectKey;
use crate::name::{RouteName, ServiceName};

/// A Gateway API `HTTPRoute` or `GRPCRoute` attached to services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRoute {
    /// The name of the route. Among equally specific matches of routes of the same age, the first name takes
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

/// The kind of a route; the rules of all kinds are equivalent. Of several kinds at one port, the last in this
/// order takes precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum RouteKind {
    /// A `TrafficSplit`.
    Split,
    /// A `TCPRoute` of the Gateway API.
    Tcp,
    /// A `TLSRoute`, which has rules of another form; listed for grants.
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

/// True if a route attached to `parents` only forwards their requests to `service` itself; this requires no
/// grant.
#[must_use]
pub fn is_only_parent(parents: &[RouteParent], service: &ServiceName) -> bool {
    parents.iter().all(|parent| parent.service == *service)
}

/// One rule of a route.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RouteRule {
    /// The route that contains the rule.
    pub route: RouteName,
    /// The matches, any of which must hold; never empty (the parser adds a match for everything).
    pub matches: Vec<RequestMatch>,
    /// The weighted backends. If empty, or if all weights are 0, requests receive a 500.
    pub backends: Vec<WeightedBackend>,
    /// The timeout of the whole exchange; none when absent.
    pub request_timeout: Option<Duration>,
    /// The actions of the rule, other than its choice of a backend.
    pub actions: RuleActions,
    /// The kind of the route that contains the rule.
    pub kind: RouteKind,
}

/// The conditions on a request; all parts must hold. The default matches everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RequestMatch {
    /// The path, without the query.
    pub path: PathMatch,
    /// One of these methods; any when empty.
    pub methods: Vec<String>,
    /// All of these headers. Names are in lower case; `:authority` is the host.
    pub headers: Vec<FieldMatch>,
    /// All of these query parameters. Names are case-sensitive.
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
        let field = |kind: &'static str| move |field: &FieldMatch| field.to_text(kind);
        let parts: Vec<String> = path
            .into_iter()
            .chain(methods.map(|methods| format!("method {methods}")))
            .chain(self.headers.iter().map(field("header")))
            .chain(self.query.iter().map(field("query")))
            .collect();
        match parts.is_empty() {
            true => f.write_str("every request"),
            false => f.write_str(&parts.join(", ")),
        }
    }
}

impl FieldMatch {
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
    /// This path or one below it, element by element (`/a` matches `/a` and `/a/b`, not `/ab`).
    Prefix(String),
    /// A regular expression that the whole path must match.
    Regex(String),
}

/// A condition on a header or query parameter.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FieldMatch {
    /// The header or parameter.
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
    /// The share of the requests, relative to the sum over the rule's backends; 0 receives nothing.
    pub weight: u32,
    /// Edits of the backend's requests and responses in addition to those of the rule; usually none.
    pub edits: Option<Box<BackendEdits>>,
}

impl WeightedBackend {
    /// Creates a backend without edits.
    #[must_use]
    pub const fn new(service: ServiceName, port: u16, weight: u32) -> Self {
        Self { service, port, weight, edits: None }
    }
}
