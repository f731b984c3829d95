//! Reads Gateway API routes that are attached to a gateway: host names and rules. The caller reads the parents.

use leno_model::{HostPattern, RouteName, RouteRule, TcpRule, TlsRule};

use super::tls_route::{read_host_patterns, read_hostnames};
use super::{DocumentKind, ObjectMetadata, gateway_tcp_route, grpc_route, http_route, tls_route};
use crate::field::{Field, MapFields};

/// A Gateway API route of a gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayRoute {
    /// The host names that the route matches; all if empty.
    pub hostnames: Vec<HostPattern>,
    /// The rules for requests, sessions or connections.
    pub rules: GatewayRules,
}

/// The rules of a route, by its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GatewayRules {
    /// Rules for requests, in document order.
    Requests(Vec<RouteRule>),
    /// A rule for TLS passthrough sessions.
    Sessions(TlsRule),
    /// A rule for TCP connections.
    Connections(TcpRule),
}

/// Reads a route of this kind; `parentRefs` are accepted and ignored.
pub(super) fn read(
    kind: DocumentKind,
    metadata: ObjectMetadata,
    spec: &Field<'_>,
) -> Option<GatewayRoute> {
    let name = RouteName { namespace: metadata.namespace, name: metadata.name };
    match kind {
        DocumentKind::HttpRoute => {
            let fields = spec.read_fields(ROUTE_FIELDS)?;
            let hostnames = read_route_hostnames(&fields);
            let rules = http_route::read_rules(spec, &fields, &name);
            Some(GatewayRoute { hostnames: hostnames?, rules: GatewayRules::Requests(rules) })
        }
        DocumentKind::GrpcRoute => {
            let fields = spec.read_fields(ROUTE_FIELDS)?;
            let hostnames = read_route_hostnames(&fields);
            let rules = grpc_route::read_rules(&fields, &name);
            Some(GatewayRoute { hostnames: hostnames?, rules: GatewayRules::Requests(rules) })
        }
        DocumentKind::TlsRoute => {
            let fields = spec.read_fields(ROUTE_FIELDS)?;
            let hostnames = read_hostnames(&fields);
            let backends = tls_route::read_backends(&fields, &name);
            let hostnames = hostnames?;
            let rule = TlsRule {
                route: name,
                hostnames: hostnames.clone(),
                backends: backends?,
                ungranted_weight: 0,
            };
            Some(GatewayRoute { hostnames, rules: GatewayRules::Sessions(rule) })
        }
        DocumentKind::GatewayTcpRoute => {
            let fields = spec.read_fields(&["parentRefs", "rules"])?;
            let rule = gateway_tcp_route::read_rule(&fields, name)?;
            Some(GatewayRoute { hostnames: Vec::new(), rules: GatewayRules::Connections(rule) })
        }
        _ => {
            spec.reject("is not a route", "use a route of the Gateway API");
            None
        }
    }
}

/// Reads the `hostnames` of a route for requests; empty if the field is absent.
fn read_route_hostnames(fields: &MapFields<'_>) -> Option<Vec<HostPattern>> {
    fields.find("hostnames").map_or(Some(Vec::new()), read_host_patterns)
}

/// The fields of routes with host names.
const ROUTE_FIELDS: &[&str] = &["parentRefs", "hostnames", "rules"];
