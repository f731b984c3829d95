//! Routes: which requests to a service go to which backends.

use std::fmt;
use std::time::Duration;

use crate::action::{BackendEdits, RuleActions};
use crate::change::ObjectKey;
use crate::name::{RouteName, ServiceName};

/// A Gateway API `HTTPRoute` or `GRPCRoute` attached to services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRoute {
    /// Its name; also the last tie-breaker between equally specific matches of routes of one age.
    pub name: RouteName,
    /// The services whose traffic it decides, at least one.
    pub parents: Vec<RouteParent>,
    /// Its rules in the order of the document.
    pub rules: Vec<RouteRule>,
    /// In which words it was written.
    pub kind: RouteKind,
    /// When it was made, in seconds since 1970; 0 where nobody keeps that, as of files. Between equally
    /// specific matches those of the older route decide (Gateway API, `HTTPRouteRule`).
    pub created: i64,
}

/// The kind of a route: in which words its rules were written. As rules they are the same. Where
/// several are attached to one port, the last in this order decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum RouteKind {
    /// A `TrafficSplit`.
    Split,
    /// A `TCPRoute` of the Gateway API.
    Tcp,
    /// A `TLSRoute`, whose rules are of another form: grants name it.
    Tls,
    /// An `HTTPRoute`.
    #[default]
    Http,
    /// A `GRPCRoute`.
    Grpc,
}

impl RouteKind {
    /// The word used in manifests.
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

    /// What identifies the route of this kind and name.
    #[must_use]
    pub fn key(self, name: RouteName) -> ObjectKey {
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
    /// The service.
    pub service: ServiceName,
    /// One of its ports; all of them when absent.
    pub port: Option<u16>,
}

/// Whether a route that is attached to `parents` only leads their requests back when it leads to
/// `service`: that takes no grant.
#[must_use]
pub fn leads_back(parents: &[RouteParent], service: &ServiceName) -> bool {
    parents.iter().all(|parent| parent.service == *service)
}

/// One rule of a route.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RouteRule {
    /// The route that the rule came from.
    pub route: RouteName,
    /// Any of these must match; never empty (the reader fills in "everything").
    pub matches: Vec<RequestMatch>,
    /// Where matching requests go, by weight. Empty, or all weights 0: they are answered 500.
    pub backends: Vec<WeightedBackend>,
    /// How long the whole exchange may take; no limit when absent.
    pub request_timeout: Option<Duration>,
    /// What it does beside choosing a backend.
    pub actions: RuleActions,
    /// The kind of the route that it came from.
    pub kind: RouteKind,
}

/// What a request must look like; all parts must hold. The default matches everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RequestMatch {
    /// The path, without the query.
    pub path: PathMatch,
    /// One of these methods; any when empty.
    pub methods: Vec<String>,
    /// All of these headers. Names are lower case; `:authority` stands for the host.
    pub headers: Vec<FieldMatch>,
    /// All of these query parameters. Names are case-sensitive.
    pub query: Vec<FieldMatch>,
}

/// The conditions in words, such as `path prefix /a, method GET`.
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

/// How a path is compared.
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

/// A named value, a header or query parameter, and what it must be.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FieldMatch {
    /// The header or parameter.
    pub name: String,
    /// What it must be.
    pub value: ValueMatch,
}

/// How a value is compared.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ValueMatch {
    /// Exactly this value.
    Exact(String),
    /// A regular expression that the whole value must match.
    Regex(String),
}

/// A service port that takes a share of a rule's requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WeightedBackend {
    /// The service.
    pub service: ServiceName,
    /// Its port.
    pub port: u16,
    /// Its share, relative to the sum over the rule's backends; 0 takes nothing.
    pub weight: u32,
    /// What is done to its requests and answers beside what the rule does; usually nothing.
    pub edits: Option<Box<BackendEdits>>,
}

impl WeightedBackend {
    /// A backend whose requests and answers are only edited as the rule says.
    #[must_use]
    pub const fn new(service: ServiceName, port: u16, weight: u32) -> Self {
        Self { service, port, weight, edits: None }
    }
}
