//! Converts an SMI `TrafficTarget`, with the route groups and routes that it references, to an `AccessPolicy`.

use leno_model::{
    HttpRouteGroup, Object, PolicyName, PortSet, Protocol, TargetRule, TcpRoute, TrafficTarget,
    Workload,
};
use serde_json::{Value, json};

use super::native_values::write_access_request;

/// Converts a `TrafficTarget` to an `AccessPolicy`, or returns the reason why the meaning would differ.
pub(super) fn convert_target(objects: &[&Object], target: &TrafficTarget) -> Result<Value, String> {
    let TrafficTarget { name, destination, sources, rules } = target;
    let has_policy = objects
        .iter()
        .any(|object| matches!(object, Object::AccessPolicy(policy) if policy.name == *name));
    if has_policy {
        return Err(format!("an AccessPolicy {name} exists already"));
    }
    let allowed_peers: Vec<Value> = sources
        .iter()
        .map(|source| json!({"namespace": source.namespace.as_str(), "serviceAccount": source.name.as_str()}))
        .collect();
    let mut requests: Vec<Value> = Vec::new();
    let mut allow_rules: Vec<Value> = Vec::new();
    for rule in rules {
        match rule {
            TargetRule::Http { group: group_name, matches: match_names } => {
                let found_group = find_object(objects, |object| match object {
                    Object::HttpRouteGroup(group) if group.name == *group_name => Some(group),
                    _ => None,
                });
                let group: &HttpRouteGroup =
                    found_group.ok_or_else(|| format!("no HTTPRouteGroup {group_name}"))?;
                for match_name in match_names {
                    let named_match = group
                        .matches
                        .iter()
                        .find(|named_match| named_match.name == *match_name)
                        .ok_or_else(|| format!("{} has no match {match_name}", group.name))?;
                    requests.push(write_access_request(&named_match.request));
                }
            }
            TargetRule::Tcp { route: route_name } => {
                let found_route = find_object(objects, |object| match object {
                    Object::TcpRoute(route) if route.name == *route_name => Some(route),
                    _ => None,
                });
                let route: &TcpRoute =
                    found_route.ok_or_else(|| format!("no TCPRoute {route_name}"))?;
                allow_rules.push(convert_tcp_rule(objects, target, route, &allowed_peers)?);
            }
        }
    }
    // One rule allows the requests of all groups.
    if !requests.is_empty() {
        allow_rules.insert(0, json!({"from": allowed_peers, "requests": requests}));
    }
    if allow_rules.is_empty() || sources.is_empty() {
        return Err("it allows nothing".to_owned());
    }
    if allow_rules.len() > MAX_LIST_LENGTH
        || requests.len() > MAX_LIST_LENGTH
        || allowed_peers.len() > MAX_LIST_LENGTH
    {
        return Err(format!(
            "an AccessPolicy has at most {MAX_LIST_LENGTH} rules, requests and peers"
        ));
    }
    let PolicyName { namespace, name } = name;
    Ok(json!({
        "apiVersion": "leno.dev/v1alpha1",
        "kind": "AccessPolicy",
        "metadata": {"name": name.as_str(), "namespace": namespace.as_str()},
        "spec": {"serviceAccounts": [destination.name.as_str()], "allow": allow_rules},
    }))
}

/// Returns the rule that allows connections to the ports of a `TCPRoute`. The native rule also allows HTTP
/// requests. Returns an error unless the input has workloads of the target, and none of them serves HTTP on
/// these ports.
fn convert_tcp_rule(
    objects: &[&Object],
    target: &TrafficTarget,
    route: &TcpRoute,
    allowed_peers: &[Value],
) -> Result<Value, String> {
    let target_workloads = objects.iter().filter_map(|object| match object {
        Object::Workload(workload) if workload.account == target.destination => Some(workload),
        _ => None,
    });
    let serves_http = |workload: &Workload| {
        let mut route_ports = workload.ports.iter().filter(|port| route.ports.contains(port.port));
        route_ports.any(|port| port.protocol != Protocol::Tcp)
    };
    let mut target_workloads = target_workloads.peekable();
    if target_workloads.peek().is_none() || target_workloads.any(serves_http) {
        return Err(format!(
            "the TCPRoute {} allows only opaque TCP on its ports, and an AccessPolicy would also allow HTTP there",
            route.name
        ));
    }
    Ok(match &route.ports {
        PortSet::All => json!({"from": allowed_peers}),
        PortSet::Only(ports) => json!({"from": allowed_peers, "ports": ports}),
    })
}

/// Returns the first result of `select`.
fn find_object<'a, T>(
    objects: &[&'a Object],
    select: impl Fn(&'a Object) -> Option<T>,
) -> Option<T> {
    objects.iter().find_map(|object| select(object))
}

/// The maximum length of any list in an `AccessPolicy`.
const MAX_LIST_LENGTH: usize = 256;
