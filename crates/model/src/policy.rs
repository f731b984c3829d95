//! SMI access control: the objects as written, and the rules that a sidecar enforces.

use crate::identity::ServiceAccount;
use crate::name::{PolicyName, RouteGroupName, TcpRouteName};
use crate::route::RequestMatch;

/// An SMI `TrafficTarget`: sources and the traffic that they may send to a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrafficTarget {
    /// The name of the policy; route groups are resolved in the same namespace.
    pub name: PolicyName,
    /// The account that the traffic is allowed to; always of the policy's own namespace.
    pub destination: ServiceAccount,
    /// The allowed sources.
    pub sources: Vec<ServiceAccount>,
    /// The rules of the allowed traffic.
    pub rules: Vec<TargetRule>,
}

/// One rule of a `TrafficTarget`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetRule {
    /// The named matches of an `HTTPRouteGroup`; an empty list allows nothing.
    Http {
        /// The name of the group.
        group: RouteGroupName,
        /// The names of the matches in the group.
        matches: Vec<String>,
    },
    /// The ports of a `TCPRoute`.
    Tcp {
        /// The name of the route.
        route: TcpRouteName,
    },
}

/// An SMI `HTTPRouteGroup`: named request matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRouteGroup {
    /// The name of the group.
    pub name: RouteGroupName,
    /// The matches of the group.
    pub matches: Vec<NamedMatch>,
}

/// One named match of an `HTTPRouteGroup`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedMatch {
    /// The name that a `TrafficTarget` refers to.
    pub name: String,
    /// The conditions on the request; regular expressions match in full.
    pub request: RequestMatch,
}

/// An SMI `TCPRoute`: ports of the workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpRoute {
    /// The name of the route.
    pub name: TcpRouteName,
    /// The ports of the workload.
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
    /// True if the set contains this port.
    #[must_use]
    pub fn contains(&self, port: u16) -> bool {
        match self {
            Self::All => true,
            Self::Only(ports) => ports.contains(&port),
        }
    }
}

/// The inbound authorization of a sidecar, compiled from the policies of its account.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Access {
    /// Every verified member of the mesh may call.
    AllowAll,
    /// Only traffic that one of these rules allows; an empty list allows nothing.
    AllowListed(Vec<AccessRule>),
}

/// The traffic that one policy allows to one workload.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AccessRule {
    /// The policy, reported in rejections and by `leno explain`.
    pub policy: PolicyName,
    /// The allowed sources.
    pub sources: Vec<ServiceAccount>,
    /// The allowed HTTP requests; none when empty.
    pub http: Vec<RequestMatch>,
    /// The ports with allowed opaque TCP; `Only` of an empty list allows none.
    pub tcp: PortSet,
}
