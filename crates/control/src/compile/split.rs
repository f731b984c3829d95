//! Compiles the rules for all traffic of a port: those of TCP routes, and of `TrafficSplit`s on ports without a route.

use leno_model::{
    Name, ObjectKey, RouteKind, RouteName, RouteRule, ServiceName, TcpRule, TrafficSplit,
    precedence_reason,
};

use super::service::remove_ungranted;
use crate::mesh::Mesh;

/// Returns the rules for requests to a port without an `HTTPRoute` or `GRPCRoute`: the rule of a TCP route, or
/// the rules of splits. Splits with matches come first, by age and name, and then the split for all requests.
/// Unmatched requests go to the service's own endpoints.
pub(super) fn split_rules(
    mesh: &Mesh,
    service: &ServiceName,
    port: u16,
    consumer_namespace: Option<&Name>,
) -> Vec<RouteRule> {
    if let Some(rule) = tcp_route_rule(mesh, service, port, consumer_namespace) {
        return vec![rule.for_requests()];
    }
    if gateway_route_key(mesh, service, port, consumer_namespace).is_some() {
        return Vec::new();
    }
    let splits_with_matches =
        mesh.traffic_splits().attached_to(service).filter(|split| split.groups.is_some());
    let mut splits: Vec<&TrafficSplit> = splits_with_matches.collect();
    splits.sort_by_key(|split| split.precedence());
    splits.extend(split_for_all_requests(mesh, service));
    splits.into_iter().filter_map(|split| split_rule(mesh, split, port)).collect()
}

/// Returns the rule for connections to a port on which no request is detected. Splits with matches do not apply to
/// them.
pub(super) fn tcp_rule(
    mesh: &Mesh,
    service: &ServiceName,
    port: u16,
    consumer_namespace: Option<&Name>,
) -> Option<TcpRule> {
    if let Some(rule) = tcp_route_rule(mesh, service, port, consumer_namespace) {
        return Some(rule);
    }
    if gateway_route_key(mesh, service, port, consumer_namespace).is_some() {
        return None;
    }
    split_for_all_requests(mesh, service).map(|split| split_shares(mesh, split, port))
}

/// Returns the objects that override a split at each port of its root, as sentences for its author.
pub(crate) fn overriding_objects(mesh: &Mesh, split: &TrafficSplit) -> Vec<Vec<String>> {
    let root = &split.root.service;
    let applied_split = split_for_all_requests(mesh, root).filter(|_| split.groups.is_none());
    let applied_split = applied_split.filter(|applied_split| applied_split.name != split.name);
    let other_split = applied_split.map(|applied_split| {
        let reason = precedence_reason(applied_split.created, split.created);
        format!("TrafficSplit {} has the same root service and {reason}", applied_split.name)
    });
    let ports = mesh.service(root).into_iter().flat_map(|service| &service.ports);
    // A consumer route overrides the split only for its own namespace, so no consumer namespace is passed.
    let objects_at_port = |port: u16| {
        let overriding_route = gateway_route_key(mesh, root, port, None).map(|object_key| {
            format!("{object_key} is attached to port {port} and takes precedence there")
        });
        overriding_route.into_iter().chain(other_split.clone()).collect()
    };
    let objects_by_port: Vec<Vec<String>> = ports.map(|port| objects_at_port(port.port)).collect();
    // A missing root service has no ports.
    match objects_by_port.is_empty() {
        true => vec![other_split.into_iter().collect()],
        false => objects_by_port,
    }
}

/// Returns the TCP route that overrides another one at a port, as a sentence for its author.
pub(crate) fn tcp_conflict(
    mesh: &Mesh,
    name: &RouteName,
    service: &ServiceName,
    port: u16,
) -> Option<String> {
    let mut routes = mesh.gateway_tcp_routes().routes_at_port(service, port, Some(&name.namespace));
    let first_route = &routes.next()?.rule.route;
    let other_route = (first_route != name).then_some(first_route)?;
    Some(format!("TCPRoute {other_route} is also attached to port {port} and takes precedence"))
}

/// Returns the rule of the first TCP route attached to a port.
fn tcp_route_rule(
    mesh: &Mesh,
    service: &ServiceName,
    port: u16,
    consumer_namespace: Option<&Name>,
) -> Option<TcpRule> {
    let route =
        mesh.gateway_tcp_routes().routes_at_port(service, port, consumer_namespace).next()?;
    Some(permitted_rule(mesh, service, route.rule.clone()))
}

/// Returns the split without matches that applies to a root service: the oldest, then the first by name.
fn split_for_all_requests<'a>(mesh: &'a Mesh, root: &ServiceName) -> Option<&'a TrafficSplit> {
    let splits_without_matches =
        mesh.traffic_splits().attached_to(root).filter(|split| split.groups.is_none());
    splits_without_matches.min_by_key(|split| split.precedence())
}

/// Returns the key of a Gateway API route attached to a port; `None` if no route is attached. Splits do not apply to a
/// port with a route.
fn gateway_route_key(
    mesh: &Mesh,
    service: &ServiceName,
    port: u16,
    consumer_namespace: Option<&Name>,
) -> Option<ObjectKey> {
    let http_key = mesh
        .http_routes()
        .routes_at_port(service, port, consumer_namespace)
        .max_by_key(|route| route.kind)
        .map(|route| route.kind.object_key(route.name.clone()));
    let mut tcp_keys = mesh
        .gateway_tcp_routes()
        .routes_at_port(service, port, consumer_namespace)
        .map(|route| ObjectKey::GatewayTcpRoute(route.rule.route.clone()));
    let mut tls_keys = mesh
        .tls_routes()
        .routes_at_port(service, port, consumer_namespace)
        .map(|route| ObjectKey::TlsRoute(route.rule.route.clone()));
    http_key.or_else(|| tcp_keys.next()).or_else(|| tls_keys.next())
}

/// Returns the rule of a split; `None` if it matches no request.
fn split_rule(mesh: &Mesh, split: &TrafficSplit, port: u16) -> Option<RouteRule> {
    let mut rule = split_shares(mesh, split, port).for_requests();
    if let Some(groups) = &split.groups {
        let existing_groups = groups.iter().filter_map(|group| mesh.route_group(group));
        let matches = existing_groups.flat_map(|group| &group.matches);
        rule.matches = matches.map(|named_match| named_match.request.clone()).collect();
    }
    (!rule.matches.is_empty()).then_some(rule)
}

/// Returns the rule of a split for all traffic of a port: its backends with their weights.
fn split_shares(mesh: &Mesh, split: &TrafficSplit, port: u16) -> TcpRule {
    let (route, kind) = (split.name.clone(), RouteKind::Split);
    let root = &split.root.service;
    permitted_rule(
        mesh,
        root,
        TcpRule { route, kind, backends: split.backends_for(port), ungranted_weight: 0 },
    )
}

/// Returns the rule without the backends that it may not refer to; their share is rejected.
fn permitted_rule(mesh: &Mesh, requested_service: &ServiceName, mut rule: TcpRule) -> TcpRule {
    let object = (rule.kind, &rule.route);
    rule.ungranted_weight = remove_ungranted(mesh, requested_service, object, &mut rule.backends);
    rule
}
