//! Compiles the access rules of a workload from the policies that apply to its account, with all objects that the
//! policies refer to.

use leno_model::{
    Access, AccessRule, DefaultPolicy, HttpRouteGroup, InboundPolicy, PolicyAction, PolicyRule,
    PortSet, RequestMatch, TargetRule, TrafficTarget, Workload,
};

use crate::mesh::Mesh;

/// Compiles the access rules of a workload: one for each `TrafficTarget` with the workload's account as
/// destination, unless the default policy allows all requests.
pub(super) fn compile_access(mesh: &Mesh, workload: &Workload) -> Access {
    match mesh.default_policy_of(workload) {
        DefaultPolicy::Allow => Access::AllowAll,
        DefaultPolicy::Deny | DefaultPolicy::DryRun => {
            let rules = mesh.targets_of(&workload.account).map(|target| compile_rule(mesh, target));
            Access::AllowListed(rules.collect())
        }
    }
}

/// Compiles the rules of the access policies that apply to a workload.
pub(super) fn compile_inbound_policy(mesh: &Mesh, workload: &Workload) -> InboundPolicy {
    let default_policy = mesh.default_policy_of(workload);
    // Requests that are allowed by default need no allow rules.
    let decides = |rule: &&PolicyRule| {
        rule.action == PolicyAction::Deny || default_policy != DefaultPolicy::Allow
    };
    let rules = mesh.access_policies_of(workload).flat_map(|policy| &policy.rules);
    InboundPolicy {
        is_dry_run: default_policy == DefaultPolicy::DryRun,
        rules: rules.filter(decides).cloned().collect(),
    }
}

/// Returns the missing objects that a policy refers to, as sentences for its author. The policy still allows
/// the requests that its other rules match.
pub(crate) fn missing_references(mesh: &Mesh, target: &TrafficTarget) -> Vec<String> {
    let mut sentences = Vec::new();
    for rule in &target.rules {
        match rule {
            TargetRule::Http { group, matches } => match mesh.route_group(group) {
                None => sentences.push(format!("HTTPRouteGroup {group} does not exist")),
                Some(existing_group) => {
                    let missing_names =
                        matches.iter().filter(|name| find_match(existing_group, name).is_none());
                    let sentence =
                        |name| format!("HTTPRouteGroup {group} has no match named `{name}`");
                    sentences.extend(missing_names.map(sentence));
                }
            },
            TargetRule::Tcp { route } if mesh.tcp_route(route).is_none() => {
                sentences.push(format!("TCPRoute {route} does not exist"));
            }
            TargetRule::Tcp { .. } => {}
        }
    }
    sentences
}

/// Compiles the rule of a `TrafficTarget`. A missing group, match or `TCPRoute` allows nothing.
fn compile_rule(mesh: &Mesh, target: &TrafficTarget) -> AccessRule {
    let mut http_matches: Vec<RequestMatch> = Vec::new();
    let mut tcp_ports = PortSet::Only(Vec::new());
    for rule in &target.rules {
        match rule {
            TargetRule::Http { group, matches } => {
                let allowed_requests = mesh
                    .route_group(group)
                    .into_iter()
                    .flat_map(|group| matches.iter().filter_map(|name| find_match(group, name)));
                for request in allowed_requests {
                    if !http_matches.contains(request) {
                        http_matches.push(request.clone());
                    }
                }
            }
            TargetRule::Tcp { route } => {
                if let Some(tcp_route) = mesh.tcp_route(route) {
                    tcp_ports = merge_ports(tcp_ports, &tcp_route.ports);
                }
            }
        }
    }
    AccessRule {
        policy: target.name.clone(),
        sources: target.sources.clone(),
        http: http_matches,
        tcp: tcp_ports,
    }
}

fn find_match<'a>(group: &'a HttpRouteGroup, name: &str) -> Option<&'a RequestMatch> {
    let named_match = group.matches.iter().find(|named| named.name == name);
    named_match.map(|named| &named.request)
}

fn merge_ports(ports: PortSet, added_ports: &PortSet) -> PortSet {
    match (ports, added_ports) {
        (PortSet::Only(mut ports), PortSet::Only(added_ports)) => {
            ports.extend(added_ports);
            ports.sort_unstable();
            ports.dedup();
            PortSet::Only(ports)
        }
        _ => PortSet::All,
    }
}
