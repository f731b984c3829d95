//! Changes of the mesh: facts that a registry added, replaced or removed.

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

/// One fact that a registry added, replaced or removed.
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
    /// An SMI access policy.
    TrafficTarget(TrafficTarget),
    /// SMI request matches.
    HttpRouteGroup(HttpRouteGroup),
    /// SMI ports.
    TcpRoute(TcpRoute),
    /// A Gateway API route for gRPC.
    GrpcRoute(HttpRoute),
    /// A traffic policy of some services.
    ServicePolicy(ServicePolicy),
    /// Tag rules.
    TagRoute(TagRoute),
    /// Tag rules as Sermant publishes them.
    SermantRouteRule(SermantRouteRule),
    /// Request marks at the first service of a lane.
    Lane(Lane),
    /// A Gateway API grant.
    ReferenceGrant(ReferenceGrant),
    /// Allow and deny rules.
    AccessPolicy(AccessPolicy),
    /// SMI traffic shares.
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
            // These kinds do not depend on age: each object is unique by key, or is combined with its peers.
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
            Self::Workload(o) => ObjectKey::Workload(o.name.clone()),
            Self::Service(o) => ObjectKey::Service(o.name.clone()),
            Self::MeshConfig(_) => ObjectKey::MeshConfig,
            Self::HttpRoute(o) => ObjectKey::HttpRoute(o.name.clone()),
            Self::TlsRoute(o) => ObjectKey::TlsRoute(o.rule.route.clone()),
            Self::TrafficTarget(o) => ObjectKey::TrafficTarget(o.name.clone()),
            Self::HttpRouteGroup(o) => ObjectKey::HttpRouteGroup(o.name.clone()),
            Self::TcpRoute(o) => ObjectKey::TcpRoute(o.name.clone()),
            Self::GrpcRoute(o) => ObjectKey::GrpcRoute(o.name.clone()),
            Self::ServicePolicy(o) => ObjectKey::ServicePolicy(o.name.clone()),
            Self::TagRoute(o) => ObjectKey::TagRoute(o.name.clone()),
            Self::SermantRouteRule(o) => ObjectKey::SermantRouteRule(o.name.clone()),
            Self::Lane(o) => ObjectKey::Lane(o.name.clone()),
            Self::ReferenceGrant(o) => ObjectKey::ReferenceGrant(o.name.clone()),
            Self::AccessPolicy(o) => ObjectKey::AccessPolicy(o.name.clone()),
            Self::TrafficSplit(o) => ObjectKey::TrafficSplit(o.name.clone()),
            Self::GatewayTcpRoute(o) => ObjectKey::GatewayTcpRoute(o.rule.route.clone()),
            Self::Gateway(o) => ObjectKey::Gateway(o.name.clone()),
            Self::Ingress(o) => ObjectKey::Ingress(o.name.clone()),
            Self::Egress(o) => ObjectKey::Egress(o.name.clone()),
            Self::Retry(o) => ObjectKey::Retry(o.name.clone()),
            Self::AccessCert(o) => ObjectKey::AccessCert(o.name.clone()),
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
    /// An SMI access policy.
    TrafficTarget(PolicyName),
    /// SMI request matches.
    HttpRouteGroup(RouteGroupName),
    /// SMI ports.
    TcpRoute(TcpRouteName),
    /// A Gateway API route for gRPC.
    GrpcRoute(RouteName),
    /// A traffic policy of some services.
    ServicePolicy(ServicePolicyName),
    /// Tag rules.
    TagRoute(TagRouteName),
    /// Tag rules as Sermant publishes them.
    SermantRouteRule(TagRouteName),
    /// Request marks at the first service of a lane.
    Lane(TagRouteName),
    /// A Gateway API grant.
    ReferenceGrant(GrantName),
    /// Allow and deny rules.
    AccessPolicy(PolicyName),
    /// SMI traffic shares.
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
            Self::GatewayTcpRoute(name) => write!(f, "TCPRoute {name}"),
            Self::Gateway(name) => write!(f, "Gateway {name}"),
            Self::Ingress(name) => write!(f, "{name}"),
            Self::Egress(name) => write!(f, "Egress {name}"),
            Self::Retry(name) => write!(f, "Retry {name}"),
            Self::AccessCert(name) => write!(f, "AccessCert {name}"),
        }
    }
}
