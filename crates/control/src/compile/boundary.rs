//! Compiles a workload's ingress and egress rules, and finds the problems of ingress policies.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use leno_model::{
    Egress, EgressPolicy, EgressRule, IngressBackend, IngressName, IngressPolicy, IngressProtocol,
    IngressRule, IngressSource, IpRange, MatchedBy, MeshConfig, Name, PolicyName, RequestMatch,
    RouteGroupName, ServiceName, Workload,
};
use leno_registry::NODE_NETWORK_LABEL;

use crate::mesh::Mesh;

/// Compiles a workload's ingress rules: one for each port of a service that it backs, from the first policy
/// that names the service.
pub(super) fn compile_ingress_rules(mesh: &Mesh, workload: &Workload) -> Vec<IngressRule> {
    let mut ingress_rules = Vec::new();
    for policy in mesh.ingress_in(&workload.name.namespace) {
        for backend in &policy.backends {
            let is_selected = mesh
                .services_of(&workload.name)
                .any(|service| service.name.name == backend.service);
            if !is_selected
                || mesh.preceding_ingress(policy, backend).is_some()
                || conflicting_policy(mesh, workload, policy, backend).is_some()
            {
                continue;
            }
            let ingress_rule = compile_ingress_rule(mesh, policy, backend);
            if !ingress_rules.contains(&ingress_rule) {
                ingress_rules.push(ingress_rule);
            }
        }
    }
    ingress_rules
}

/// Returns the policy that already opens a workload's port with another protocol, through another service that
/// selects the workload.
fn conflicting_policy<'a>(
    mesh: &'a Mesh,
    workload: &Workload,
    policy: &IngressPolicy,
    backend: &IngressBackend,
) -> Option<&'a IngressName> {
    let is_selected_by =
        |name: &Name| mesh.services_of(&workload.name).any(|service| service.name.name == *name);
    let mut policy_backends = mesh
        .ingress_in(&policy.name.namespace)
        .flat_map(|policy| policy.backends.iter().map(move |backend| (&policy.name, backend)));
    let (preceding_policy, other_backend) = policy_backends
        .find(|(_, other)| other.port == backend.port && is_selected_by(&other.service))?;
    (other_backend.protocol != backend.protocol).then_some(preceding_policy)
}

fn compile_ingress_rule(
    mesh: &Mesh,
    policy: &IngressPolicy,
    backend: &IngressBackend,
) -> IngressRule {
    let is_address_source = |source: &&IngressSource| {
        matches!(source, IngressSource::Service(_) | IngressSource::Range(_))
    };
    let has_address_source = policy.sources.iter().any(|source| is_address_source(&source));
    let mut ranges: Vec<IpRange> = policy
        .sources
        .iter()
        .filter(is_address_source)
        .flat_map(|source| source_ranges(mesh, source))
        .collect();
    ranges.sort_unstable();
    ranges.dedup();
    // If certificates identify clients, their source address may be unrestricted.
    let from_any_address = !has_address_source && !backend.protocol.is_plaintext();
    let MeshConfig { trust_domain, revoked, .. } = mesh.config();
    let accounts = policy.sources.iter().filter_map(|source| source.account_in(trust_domain));
    // A revocation also covers an external principal with the same name as the account.
    let is_unrevoked = |source: &&IngressSource| {
        source.account_in(trust_domain).is_none_or(|account| !revoked.contains(&account))
    };
    let external_principals =
        policy.sources.iter().filter(is_unrevoked).filter_map(|source| match source {
            IngressSource::Named(name) => Some(name.clone()),
            IngressSource::Principal(_) | IngressSource::Service(_) | IngressSource::Range(_) => {
                None
            }
        });
    // Without TLS, clients are not identified.
    let (accounts, external_principals) = match backend.protocol {
        IngressProtocol::Https { .. } => (accounts.collect(), external_principals.collect()),
        IngressProtocol::Http | IngressProtocol::Grpc | IngressProtocol::Tcp => {
            (Vec::new(), Vec::new())
        }
    };
    IngressRule {
        policy: policy.name.clone(),
        port: backend.port,
        protocol: backend.protocol.clone(),
        ranges: (!from_any_address).then_some(ranges),
        accounts,
        external_principals,
        requests: group_matches(mesh, &policy.groups),
    }
}

/// Returns the address ranges of a source. Node addresses are left out, because all processes of the node share them,
/// and often clients behind NAT as well.
fn source_ranges(mesh: &Mesh, source: &IngressSource) -> Vec<IpRange> {
    match source {
        IngressSource::Range(range) => vec![*range],
        IngressSource::Principal(_) | IngressSource::Named(_) => Vec::new(),
        IngressSource::Service(service) => {
            let workloads =
                mesh.service_workloads(service).chain(mesh.unmeshed_workloads_of(service));
            let pod_workloads =
                workloads.filter(|workload| !workload.labels.contains_key(NODE_NETWORK_LABEL));
            let addresses = pod_workloads.flat_map(Workload::addresses);
            let remote_addresses =
                addresses.filter(|address| !address.is_loopback() && !address.is_unspecified());
            remote_addresses.map(IpRange::from).collect()
        }
    }
}

/// Compiles the egress rules of a workload: those for the API server, which every workload may call, and those of the
/// policies for its account. None are needed while all egress is allowed.
pub(super) fn compile_egress_rules(mesh: &Mesh, workload: &Workload) -> Vec<EgressRule> {
    if mesh.config().egress == Egress::Allow {
        return Vec::new();
    }
    let server_rules = api_server_rules(&mesh.config().api_server);
    let policy_rules =
        mesh.egress_of(&workload.account).flat_map(|policy| policy_egress_rules(mesh, policy));
    server_rules.chain(policy_rules).collect()
}

/// Returns the egress rules for the API server, one per port.
fn api_server_rules(addresses: &BTreeSet<SocketAddr>) -> impl Iterator<Item = EgressRule> + use<> {
    let mut ranges_by_port: BTreeMap<u16, Vec<IpRange>> = BTreeMap::new();
    for address in addresses {
        ranges_by_port.entry(address.port()).or_default().push(address.ip().into());
    }
    // No policy object exists for these rules, so they have the name of the Service of the API server.
    let policy = PolicyName::new("default", "kubernetes").expect("it is the name of its Service");
    ranges_by_port.into_iter().map(move |(port, ranges)| EgressRule {
        policy: policy.clone(),
        port,
        matched_by: MatchedBy::Address,
        hosts: Vec::new(),
        ranges,
        requests: None,
    })
}

/// Returns the rules of an egress policy, one per port.
fn policy_egress_rules<'a>(
    mesh: &'a Mesh,
    policy: &'a EgressPolicy,
) -> impl Iterator<Item = EgressRule> + 'a {
    policy.ports.iter().map(|port| {
        // Host names are not checked if the destination address decides.
        let matches_host = port.matched_by != MatchedBy::Address;
        let is_http = port.matched_by == MatchedBy::Http;
        EgressRule {
            policy: policy.name.clone(),
            port: port.port,
            matched_by: port.matched_by,
            hosts: if matches_host { policy.hosts.clone() } else { Vec::new() },
            ranges: policy.ranges.clone(),
            requests: if is_http { group_matches(mesh, &policy.groups) } else { None },
        }
    })
}

/// Returns the matches of all groups; `None` without groups. A missing group has no matches.
fn group_matches(mesh: &Mesh, groups: &[RouteGroupName]) -> Option<Vec<RequestMatch>> {
    if groups.is_empty() {
        return None;
    }
    let existing_groups = groups.iter().filter_map(|group| mesh.route_group(group));
    let matches = existing_groups.flat_map(|group| &group.matches);
    Some(matches.map(|named_match| named_match.request.clone()).collect())
}

/// Returns the problems that keep a policy, or one of its backends or sources, from taking effect, as sentences for its
/// author.
pub(crate) fn policy_problems(mesh: &Mesh, policy: &IngressPolicy) -> Vec<String> {
    let mut problems = missing_groups(mesh, &policy.groups);
    for backend in &policy.backends {
        let (namespace, name) = (policy.name.namespace.clone(), backend.service.clone());
        let service = ServiceName { namespace, name };
        if let Some(preceding_policy) = mesh.preceding_ingress(policy, backend) {
            problems.push(format!(
                "{preceding_policy} already opens port {} of {service}",
                backend.port
            ));
        }
        if mesh.service(&service).is_none() {
            problems.push(format!("Service {service} does not exist"));
        }
        let workloads: Vec<&Workload> = mesh.service_workloads(&service).collect();
        let mut ports = workloads
            .iter()
            .flat_map(|workload| super::workload_config::application_ports(mesh, workload));
        if !workloads.is_empty() && !ports.any(|port| port.port == backend.port) {
            problems.push(format!("no workload of {service} has port {}", backend.port));
        }
        let mut conflicting_policies = workloads
            .iter()
            .filter_map(|workload| conflicting_policy(mesh, workload, policy, backend));
        if let Some(other_policy) = conflicting_policies.next() {
            let port = backend.port;
            problems.push(format!(
                "{other_policy} already opens port {port} of the workloads of {service} with different settings"
            ));
        }
    }
    for source in &policy.sources {
        match source {
            IngressSource::Service(service) if source_ranges(mesh, source).is_empty() => {
                problems.push(format!("endpoints not found for service {service}"));
            }
            IngressSource::Principal(id) if id.trust_domain != mesh.config().trust_domain => {
                problems.push(format!(
                    "{} is an account of another trust domain, {}",
                    id.account, id.trust_domain
                ));
            }
            IngressSource::Named(name) => problems.extend(name_problem(mesh, name)),
            IngressSource::Service(_) | IngressSource::Range(_) | IngressSource::Principal(_) => {}
        }
    }
    problems
}

/// Returns the reason why a name is neither an account nor an external principal.
fn name_problem(mesh: &Mesh, name: &Name) -> Option<String> {
    let trust_domain = &mesh.config().trust_domain;
    let is_external_principal =
        mesh.access_certs().any(|access_cert| access_cert.subjects.contains(name));
    let is_account = IngressSource::Named(name.clone()).account_in(trust_domain).is_some();
    (!is_account && !is_external_principal)
        .then(|| format!("{name} is not an account of {trust_domain}, and no AccessCert lists it"))
}

/// Returns missing groups, as sentences for the author of the object that names them.
pub(crate) fn missing_groups(mesh: &Mesh, groups: &[RouteGroupName]) -> Vec<String> {
    let missing = groups.iter().filter(|group| mesh.route_group(group).is_none());
    missing.map(|group| format!("HTTPRouteGroup {group} does not exist")).collect()
}
