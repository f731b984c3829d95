//! Policies: who may call whom, as authors write them and as a sidecar enforces them.

use crate::identity::ServiceAccount;
use crate::name::{PolicyName, RouteGroupName, TcpRouteName};
use crate::route::RequestMatch;

/// An SMI `TrafficTarget`: sources that may use the rules at a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrafficTarget {
    /// Its name; route groups are looked up in the same namespace.
    pub name: PolicyName,
    /// Whose inbound traffic it allows; always of the policy's own namespace.
    pub destination: ServiceAccount,
    /// Who is allowed.
    pub sources: Vec<ServiceAccount>,
    /// What is allowed.
    pub rules: Vec<TargetRule>,
}

/// One rule of a `TrafficTarget`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetRule {
    /// The named matches of an `HTTPRouteGroup`; no names allow nothing.
    Http {
        /// The group.
        group: RouteGroupName,
        /// The names of its matches.
        matches: Vec<String>,
    },
    /// The ports of a `TCPRoute`.
    Tcp {
        /// The route.
        route: TcpRouteName,
    },
}

/// An SMI `HTTPRouteGroup`: named request matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRouteGroup {
    /// Its name.
    pub name: RouteGroupName,
    /// Its matches.
    pub matches: Vec<NamedMatch>,
}

/// One named match of an `HTTPRouteGroup`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedMatch {
    /// How a `TrafficTarget` refers to it.
    pub name: String,
    /// What the request must look like; regular expressions match in full.
    pub request: RequestMatch,
}

/// An SMI `TCPRoute`: ports of the workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpRoute {
    /// Its name.
    pub name: TcpRouteName,
    /// The ports.
    pub ports: PortSet,
}

/// Ports of a workload's application.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PortSet {
    /// Every port.
    All,
    /// These ports.
    Only(Vec<u16>),
}

impl PortSet {
    /// Whether it has this port.
    #[must_use]
    pub fn contains(&self, port: u16) -> bool {
        match self {
            Self::All => true,
            Self::Only(ports) => ports.contains(&port),
        }
    }
}

/// What a sidecar enforces inbound, compiled from the policies that name its account.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Access {
    /// Every verified member of the mesh may call.
    Permissive,
    /// Only what one of these rules allows; none allow nothing.
    Strict(Vec<AccessRule>),
}

/// What one policy allows at one workload.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AccessRule {
    /// The policy, named in refusals and by `leno explain`.
    pub policy: PolicyName,
    /// Who is allowed.
    pub sources: Vec<ServiceAccount>,
    /// HTTP requests that are allowed; none when empty.
    pub http: Vec<RequestMatch>,
    /// Ports on which opaque TCP is allowed; `Only` of an empty list allows none.
    pub tcp: PortSet,
}
