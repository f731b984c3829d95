//! Access control of SMI (Service Mesh Interface): the objects as written in manifests, and the rules that the control
//! plane compiles from them for a sidecar.

use crate::identity::ServiceAccount;
use crate::name::{PolicyName, RouteGroupName, TcpRouteName};
use crate::request_match::RequestMatch;

/// An SMI `TrafficTarget`: sources and the traffic that they may send to a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrafficTarget {
    /// The name of the policy. Its rules refer to route groups in the same namespace.
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
    /// The named matches of an `HTTPRouteGroup`; an empty list allows no request.
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
    /// The conditions on the request. A regular expression must match the whole value.
    pub request: RequestMatch,
}

/// An SMI `TCPRoute`: workload ports that `TrafficTarget`s refer to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpRoute {
    /// The name of the route.
    pub name: TcpRouteName,
    /// The ports of the workload.
    pub ports: PortSet,
}

/// A set of application ports of a workload.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PortSet {
    /// Every port.
    All,
    /// Only these ports; no port when empty.
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
    /// Every verified member of the mesh may call the workload.
    AllowAll,
    /// Only traffic that one of these rules allows is allowed; an empty list allows no traffic.
    AllowListed(Vec<AccessRule>),
}

/// The traffic that one policy allows to one workload.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AccessRule {
    /// The name of the policy, reported in rejections and by `leno explain`.
    pub policy: PolicyName,
    /// The allowed sources.
    pub sources: Vec<ServiceAccount>,
    /// The allowed HTTP requests; none when empty.
    pub http: Vec<RequestMatch>,
    /// The ports at which opaque TCP is allowed.
    pub tcp: PortSet,
}
