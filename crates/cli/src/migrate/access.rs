//! Conversion of a `TrafficTarget` and its references to an `AccessPolicy`.

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
            TargetRule::Http { group, matches } => {
                let object = find_object(objects, |object| match object {
                    Object::HttpRouteGroup(candidate) if candidate.name == *group => {
                        Some(candidate)
                    }
                    _ => None,
                });
                let group: &HttpRouteGroup =
                    object.ok_or_else(|| format!("no HTTPRouteGroup {group}"))?;
                for match_name in matches {
                    let named_match =
                        group.matches.iter().find(|named_match| named_match.name == *match_name);
                    let named_match = named_match
                        .ok_or_else(|| format!("{} has no match {match_name}", group.name))?;
                    requests.push(write_access_request(&named_match.request));
                }
            }
            TargetRule::Tcp { route } => {
                let object = find_object(objects, |object| match object {
                    Object::TcpRoute(candidate) if candidate.name == *route => Some(candidate),
                    _ => None,
                });
                let route: &TcpRoute = object.ok_or_else(|| format!("no TCPRoute {route}"))?;
                allow_rules.push(convert_tcp_rule(objects, target, route, &allowed_peers)?);
            }
        }
    }
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

/// Returns the rule that opens the ports of a `TCPRoute`. The rule also allows HTTP, so the meaning is equal
/// only if no workload serves HTTP on these ports.
fn convert_tcp_rule(
    objects: &[&Object],
    target: &TrafficTarget,
    route: &TcpRoute,
    allowed_peers: &[Value],
) -> Result<Value, String> {
    let workloads = objects.iter().filter_map(|object| match object {
        Object::Workload(workload) if workload.account == target.destination => Some(workload),
        _ => None,
    });
    let serves_http = |workload: &Workload| {
        let ports = workload.ports.iter();
        let mut ports = ports.filter(|port| route.ports.contains(port.port));
        ports.any(|port| port.protocol != Protocol::Tcp)
    };
    let mut workloads = workloads.peekable();
    if workloads.peek().is_none() || workloads.any(serves_http) {
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

fn find_object<'a, T>(
    objects: &[&'a Object],
    select: impl Fn(&'a Object) -> Option<T>,
) -> Option<T> {
    objects.iter().find_map(|object| select(object))
}

/// The maximum length of any list in an `AccessPolicy`.
const MAX_LIST_LENGTH: usize = 256;
