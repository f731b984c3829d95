//! Converts an SMI `TrafficSplit` to an `HTTPRoute` or a `TCPRoute`, or both, for each port of its root service.

use leno_model::{
    HttpRouteGroup, Object, Protocol, RouteParent, Service, ServiceName, ServicePort, TrafficSplit,
};
use serde_json::{Value, json};

use super::native_values::write_route_matches;

/// Converts a `TrafficSplit` to routes for each port of the root service, or returns the reason why their
/// meaning would differ.
pub(super) fn convert_split(
    objects: &[&Object],
    split: &TrafficSplit,
) -> Result<Vec<Value>, String> {
    let root = &split.root.service;
    let service: &Service = objects
        .iter()
        .find_map(|object| match object {
            Object::Service(service) if service.name == *root => Some(service),
            _ => None,
        })
        .ok_or_else(|| format!("the input has no Service {root}"))?;
    reject_conflicts(objects, split)?;
    if let Some(backend) =
        split.backends.iter().find(|backend| backend.service.namespace != root.namespace)
    {
        return Err(format!(
            "{} is in another namespace, where a ReferenceGrant permits a TrafficSplit and no HTTPRoute",
            backend.service
        ));
    }
    if split.backends.len() > MAX_BACKENDS
        || split.backends.iter().any(|backend| backend.weight > MAX_WEIGHT)
    {
        return Err(format!(
            "a rule of an HTTPRoute has at most {MAX_BACKENDS} backends with weights up to {MAX_WEIGHT}"
        ));
    }
    let mut routes = Vec::new();
    for port in &service.ports {
        let name = match service.ports.as_slice() {
            [_] => split.name.name.to_string(),
            _ => format!("{}-{}", split.name.name, port.port),
        };
        if port.protocol != Some(Protocol::Tcp) {
            routes.push(build_http_route(objects, split, &name, port)?);
        }
        // Matches do not apply to ports without HTTP requests.
        if split.groups.is_none() {
            let rule = json!({"backendRefs": build_backends(split, port.port)});
            routes.push(build_route_object(
                "TCPRoute",
                "v1alpha2",
                split,
                &name,
                port,
                json!([rule]),
            ));
        }
    }
    Ok(routes)
}

/// Rejects a split if other rules for the same service would apply together with it or override it.
fn reject_conflicts(objects: &[&Object], split: &TrafficSplit) -> Result<(), String> {
    let root: &ServiceName = &split.root.service;
    let targets_root =
        |parents: &[RouteParent]| parents.iter().any(|parent| parent.service == *root);
    for object in objects {
        let (is_conflict, object_key) = match object {
            Object::TrafficSplit(other_split) => (
                other_split.root.service == *root && other_split.name != split.name,
                object.object_key(),
            ),
            Object::HttpRoute(route) | Object::GrpcRoute(route) => {
                (targets_root(&route.parents), object.object_key())
            }
            Object::TlsRoute(route) => (targets_root(&route.parents), object.object_key()),
            Object::GatewayTcpRoute(route) => (targets_root(&route.parents), object.object_key()),
            _ => continue,
        };
        // The routes of a service with several ports have the name of the split and the port as a suffix.
        let has_same_name = matches!(
            object,
            Object::HttpRoute(route) if route.name.namespace == split.name.namespace
                && route.name.name.as_str().starts_with(split.name.name.as_str())
        );
        if is_conflict || has_same_name {
            return Err(format!(
                "{object_key} is for the same service, or has the same name: merge the two"
            ));
        }
    }
    Ok(())
}

/// Builds an `HTTPRoute` with a rule for matching requests, and a rule that routes all other requests to the
/// root service's own endpoints.
fn build_http_route(
    objects: &[&Object],
    split: &TrafficSplit,
    name: &str,
    port: &ServicePort,
) -> Result<Value, String> {
    let backends = build_backends(split, port.port);
    let Some(groups) = &split.groups else {
        let rules = json!([{"backendRefs": backends}]);
        return Ok(build_route_object("HTTPRoute", "v1", split, name, port, rules));
    };
    let mut matches: Vec<Value> = Vec::new();
    for group_name in groups {
        let group: &HttpRouteGroup = objects
            .iter()
            .find_map(|object| match object {
                Object::HttpRouteGroup(group) if group.name == *group_name => Some(group),
                _ => None,
            })
            .ok_or_else(|| format!("no HTTPRouteGroup {group_name}"))?;
        matches.extend(
            group.matches.iter().flat_map(|named_match| write_route_matches(&named_match.request)),
        );
    }
    if matches.is_empty() || matches.len() > MAX_MATCHES {
        return Err(format!("a rule of an HTTPRoute has 1 to {MAX_MATCHES} matches"));
    }
    let root_backend = json!({"name": split.root.service.name.as_str(), "port": port.port});
    let rules =
        json!([{"matches": matches, "backendRefs": backends}, {"backendRefs": [root_backend]}]);
    Ok(build_route_object("HTTPRoute", "v1", split, name, port, rules))
}

fn build_route_object(
    kind: &str,
    version: &str,
    split: &TrafficSplit,
    name: &str,
    port: &ServicePort,
    rules: Value,
) -> Value {
    let root = &split.root.service;
    let parent =
        json!({"group": "", "kind": "Service", "name": root.name.as_str(), "port": port.port});
    json!({
        "apiVersion": format!("gateway.networking.k8s.io/{version}"),
        "kind": kind,
        "metadata": {"name": name, "namespace": split.name.namespace.as_str()},
        "spec": {"parentRefs": [parent], "rules": rules},
    })
}

/// Builds the `backendRefs` of a split for one port of its root service.
fn build_backends(split: &TrafficSplit, port: u16) -> Vec<Value> {
    let to_backend_ref = |backend: &leno_model::SplitBackend| json!({"name": backend.service.name.as_str(), "port": port, "weight": backend.weight});
    split.backends.iter().map(to_backend_ref).collect()
}

/// The maximum number of backends in a rule of an `HTTPRoute`.
const MAX_BACKENDS: usize = 16;
/// The maximum number of matches in a rule of an `HTTPRoute`.
const MAX_MATCHES: usize = 64;
/// The maximum weight of a backend in an `HTTPRoute`.
const MAX_WEIGHT: u32 = 1_000_000;
