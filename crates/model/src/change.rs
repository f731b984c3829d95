//! Changes of the mesh: objects that a registry added, replaced or removed. The control plane applies them to its
//! mesh state.

use std::fmt;

use crate::access_policy::AccessPolicy;
use crate::egress::EgressPolicy;
use crate::external_principal::AccessCert;
use crate::gateway::Gateway;
use crate::grant::ReferenceGrant;
use crate::ingress::{IngressName, IngressPolicy};
use crate::mesh::MeshConfig;
use crate::name::{
    GatewayName, GrantName, PolicyName, RouteGroupName, RouteName, ServiceName, TagRouteName,
    TcpRouteName, WorkloadName,
};
use crate::policy::{HttpRouteGroup, TcpRoute, TrafficTarget};
use crate::retry_policy::RetryPolicy;
use crate::route::HttpRoute;
use crate::service::Service;
use crate::service_policy::{ServicePolicy, ServicePolicyName};
use crate::tag::{Lane, SermantRouteRule, TagRoute};
use crate::tcp_rule::GatewayTcpRoute;
use crate::tls_route::TlsRoute;
use crate::traffic_split::TrafficSplit;
use crate::workload::Workload;

/// One object that a registry added, replaced or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The object was added or replaced.
    Upsert(Object),
    /// The object was removed.
    Remove(ObjectKey),
}

/// One object of the mesh, as its author wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// An instance of an application.
    Workload(Workload),
    /// A destination of clients.
    Service(Service),
    /// Settings of the whole mesh.
    MeshConfig(MeshConfig),
    /// A Gateway API route.
    HttpRoute(HttpRoute),
    /// A Gateway API route for TLS passthrough.
    TlsRoute(TlsRoute),
    /// An SMI policy that allows traffic between accounts.
    TrafficTarget(TrafficTarget),
    /// Named request matches of SMI, which `TrafficTarget`s refer to.
    HttpRouteGroup(HttpRouteGroup),
    /// Named workload ports of SMI, which `TrafficTarget`s refer to.
    TcpRoute(TcpRoute),
    /// A Gateway API route for gRPC.
    GrpcRoute(HttpRoute),
    /// A traffic policy of some services.
    ServicePolicy(ServicePolicy),
    /// Rules that select instances by their labels.
    TagRoute(TagRoute),
    /// Tag rules as Sermant publishes them.
    SermantRouteRule(SermantRouteRule),
    /// Headers that the first service of a lane adds to requests.
    Lane(Lane),
    /// A Gateway API grant for references from other namespaces.
    ReferenceGrant(ReferenceGrant),
    /// Allow and deny rules for inbound traffic.
    AccessPolicy(AccessPolicy),
    /// An SMI distribution of a service's traffic.
    TrafficSplit(TrafficSplit),
    /// A Gateway API route for TCP connections.
    GatewayTcpRoute(GatewayTcpRoute),
    /// The configuration of a gateway's proxies.
    Gateway(Gateway),
    /// Ingress rules for clients outside the mesh.
    Ingress(IngressPolicy),
    /// Egress rules for some accounts.
    Egress(EgressPolicy),
    /// Retry rules for the requests of some accounts.
    Retry(RetryPolicy),
    /// A certificate for an external client.
    AccessCert(AccessCert),
}

impl Object {
    /// Sets the creation time of a route, in seconds since 1970; ignored for other objects.
    pub fn set_created(&mut self, seconds: i64) {
        match self {
            Self::HttpRoute(route) | Self::GrpcRoute(route) => route.created = seconds,
            Self::TlsRoute(route) => route.created = seconds,
            Self::GatewayTcpRoute(route) => route.created = seconds,
            Self::ServicePolicy(policy) => policy.created = seconds,
            Self::TagRoute(route) => route.created = seconds,
            Self::SermantRouteRule(rule) => rule.created = seconds,
            Self::Lane(lane) => lane.created = seconds,
            Self::TrafficSplit(split) => split.created = seconds,
            Self::Ingress(policy) => policy.created = seconds,
            Self::Retry(policy) => policy.created = seconds,
            // These kinds have no precedence by age: each object is unique by key, or is combined with others.
            Self::Workload(_)
            | Self::Service(_)
            | Self::MeshConfig(_)
            | Self::TrafficTarget(_)
            | Self::HttpRouteGroup(_)
            | Self::TcpRoute(_)
            | Self::ReferenceGrant(_)
            | Self::AccessPolicy(_)
            | Self::Gateway(_)
            | Self::Egress(_)
            | Self::AccessCert(_) => {}
        }
    }

    /// Returns the identity of the object across changes.
    #[must_use]
    pub fn object_key(&self) -> ObjectKey {
        match self {
            Self::Workload(object) => ObjectKey::Workload(object.name.clone()),
            Self::Service(object) => ObjectKey::Service(object.name.clone()),
            Self::MeshConfig(_) => ObjectKey::MeshConfig,
            Self::HttpRoute(object) => ObjectKey::HttpRoute(object.name.clone()),
            Self::TlsRoute(object) => ObjectKey::TlsRoute(object.rule.route.clone()),
            Self::TrafficTarget(object) => ObjectKey::TrafficTarget(object.name.clone()),
            Self::HttpRouteGroup(object) => ObjectKey::HttpRouteGroup(object.name.clone()),
            Self::TcpRoute(object) => ObjectKey::TcpRoute(object.name.clone()),
            Self::GrpcRoute(object) => ObjectKey::GrpcRoute(object.name.clone()),
            Self::ServicePolicy(object) => ObjectKey::ServicePolicy(object.name.clone()),
            Self::TagRoute(object) => ObjectKey::TagRoute(object.name.clone()),
            Self::SermantRouteRule(object) => ObjectKey::SermantRouteRule(object.name.clone()),
            Self::Lane(object) => ObjectKey::Lane(object.name.clone()),
            Self::ReferenceGrant(object) => ObjectKey::ReferenceGrant(object.name.clone()),
            Self::AccessPolicy(object) => ObjectKey::AccessPolicy(object.name.clone()),
            Self::TrafficSplit(object) => ObjectKey::TrafficSplit(object.name.clone()),
            Self::GatewayTcpRoute(object) => ObjectKey::GatewayTcpRoute(object.rule.route.clone()),
            Self::Gateway(object) => ObjectKey::Gateway(object.name.clone()),
            Self::Ingress(object) => ObjectKey::Ingress(object.name.clone()),
            Self::Egress(object) => ObjectKey::Egress(object.name.clone()),
            Self::Retry(object) => ObjectKey::Retry(object.name.clone()),
            Self::AccessCert(object) => ObjectKey::AccessCert(object.name.clone()),
        }
    }
}

/// The identity of an object: its kind and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKey {
    /// A workload.
    Workload(WorkloadName),
    /// A service.
    Service(ServiceName),
    /// The mesh settings, a singleton.
    MeshConfig,
    /// A Gateway API route.
    HttpRoute(RouteName),
    /// A Gateway API route for TLS passthrough.
    TlsRoute(RouteName),
    /// An SMI policy that allows traffic between accounts.
    TrafficTarget(PolicyName),
    /// Named request matches of SMI, which `TrafficTarget`s refer to.
    HttpRouteGroup(RouteGroupName),
    /// Named workload ports of SMI, which `TrafficTarget`s refer to.
    TcpRoute(TcpRouteName),
    /// A Gateway API route for gRPC.
    GrpcRoute(RouteName),
    /// A traffic policy of some services.
    ServicePolicy(ServicePolicyName),
    /// Rules that select instances by their labels.
    TagRoute(TagRouteName),
    /// Tag rules as Sermant publishes them.
    SermantRouteRule(TagRouteName),
    /// Headers that the first service of a lane adds to requests.
    Lane(TagRouteName),
    /// A Gateway API grant for references from other namespaces.
    ReferenceGrant(GrantName),
    /// Allow and deny rules for inbound traffic.
    AccessPolicy(PolicyName),
    /// An SMI distribution of a service's traffic.
    TrafficSplit(RouteName),
    /// A Gateway API route for TCP connections.
    GatewayTcpRoute(RouteName),
    /// A gateway.
    Gateway(GatewayName),
    /// Ingress rules for clients outside the mesh.
    Ingress(IngressName),
    /// Egress rules for some accounts.
    Egress(PolicyName),
    /// Retry rules for the requests of some accounts.
    Retry(PolicyName),
    /// A certificate for an external client.
    AccessCert(PolicyName),
}

/// Formats as `Kind namespace/name`.
impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workload(name) => write!(f, "Workload {name}"),
            Self::Service(name) => write!(f, "Service {name}"),
            Self::MeshConfig => f.write_str("MeshConfig"),
            Self::HttpRoute(name) => write!(f, "HTTPRoute {name}"),
            Self::TlsRoute(name) => write!(f, "TLSRoute {name}"),
            Self::TrafficTarget(name) => write!(f, "TrafficTarget {name}"),
            Self::HttpRouteGroup(name) => write!(f, "HTTPRouteGroup {name}"),
            Self::TcpRoute(name) => write!(f, "TCPRoute {name}"),
            Self::GrpcRoute(name) => write!(f, "GRPCRoute {name}"),
            Self::ServicePolicy(name) => write!(f, "{name}"),
            Self::TagRoute(name) => write!(f, "TagRoute {name}"),
            Self::SermantRouteRule(name) => write!(f, "SermantRouteRule {name}"),
            Self::Lane(name) => write!(f, "Lane {name}"),
            Self::ReferenceGrant(name) => write!(f, "ReferenceGrant {name}"),
            Self::AccessPolicy(name) => write!(f, "AccessPolicy {name}"),
            Self::TrafficSplit(name) => write!(f, "TrafficSplit {name}"),
            // SMI and the Gateway API both call their kind `TCPRoute`.
            Self::GatewayTcpRoute(name) => write!(f, "TCPRoute {name}"),
            Self::Gateway(name) => write!(f, "Gateway {name}"),
            Self::Ingress(name) => write!(f, "{name}"),
            Self::Egress(name) => write!(f, "Egress {name}"),
            Self::Retry(name) => write!(f, "Retry {name}"),
            Self::AccessCert(name) => write!(f, "AccessCert {name}"),
        }
    }
}
