//! Compiled ingress and egress rules of a workload, and problems of ingress policies.

use leno_model::{
    Change, Egress, IngressProtocol, IngressRule, MatchedBy, Object, ObjectKey, WorkloadConfig,
};

use super::*;

const INGRESS_POLICY: &str = "apiVersion: policy.openservicemesh.io/v1alpha1\nkind: IngressBackend\n\
                    metadata: {name: web, namespace: bookinfo}\n\
                    spec: {backends: [{name: reviews, port: {number: 9082, protocol: http}}], \
                    sources: [{kind: IPRange, name: 10.9.0.0/16}, \
                    {kind: Service, name: nginx, namespace: edge}]}";

fn workload_config(mesh: &Mesh, name: &str) -> Arc<WorkloadConfig> {
    let workload = mesh.workload(&workload_name(name)).unwrap();
    compile_config(mesh, workload, &Default::default(), &mut ServiceConfigCache::default())
        .snapshot
        .config
        .clone()
}

fn ingress_rules(mesh: &Mesh, name: &str) -> Vec<IngressRule> {
    workload_config(mesh, name).ingress_rules.clone()
}

fn apply_yaml(mesh: &mut Mesh, yaml: &str) -> crate::mesh::AffectedSet {
    mesh.apply(Change::Upsert(crate::fixture::parse_objects(yaml).pop().unwrap()))
}

#[test]
fn a_port_is_open_if_a_policy_names_its_service() {
    let mut mesh = mesh_with_sidecars(&default_deny_bookinfo(""));
    let affected_set = apply_yaml(&mut mesh, INGRESS_POLICY);
    assert!(affected_set.workloads.contains(&workload_name("reviews-v1-1")), "{affected_set:?}");
    assert_eq!(ingress_rules(&mesh, "details-1"), []);
    let compiled_rules = ingress_rules(&mesh, "reviews-v1-1");
    let [rule] = compiled_rules.as_slice() else { panic!("{compiled_rules:?}") };
    assert_eq!((rule.port, &rule.protocol), (9082, &IngressProtocol::Http));
    let ranges = |rule: &IngressRule| {
        let ranges = rule.ranges.iter().flatten().map(ToString::to_string);
        ranges.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(ranges(rule), "10.9.0.0/16");
    // Members of a source service are allowed, with a sidecar or without.
    apply_yaml(
        &mut mesh,
        "apiVersion: v1\nkind: Service\nmetadata: {name: nginx, namespace: edge}\n\
         spec: {selector: {app: nginx}, ports: [{port: 80}]}",
    );
    let nginx = "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
                 metadata: {name: nginx-1, namespace: edge, labels: {app: nginx}}\n\
                 spec: {serviceAccount: nginx, address: 10.3.0.1}";
    let Object::Workload(nginx) = crate::fixture::parse_objects(nginx).pop().unwrap() else {
        panic!()
    };
    let nginx = Workload { sidecar: false, ..nginx };
    let affected_set = mesh.apply(Change::Upsert(Object::Workload(nginx.clone())));
    assert!(affected_set.workloads.contains(&workload_name("reviews-v1-1")), "{affected_set:?}");
    assert_eq!(ranges(&ingress_rules(&mesh, "reviews-v1-1")[0]), "10.3.0.1/32 10.9.0.0/16");
    // All of its addresses count, except those of its node.
    let dual_stack = ["fd00::1".parse().unwrap()].into();
    let dual_stack = Workload { other_addresses: dual_stack, ..nginx.clone() };
    mesh.apply(Change::Upsert(Object::Workload(dual_stack.clone())));
    assert_eq!(
        ranges(&ingress_rules(&mesh, "reviews-v1-1")[0]),
        "10.3.0.1/32 10.9.0.0/16 fd00::1/128"
    );
    let mut with_node_network = dual_stack;
    with_node_network.labels.insert(leno_registry::NODE_NETWORK_LABEL.to_owned(), String::new());
    mesh.apply(Change::Upsert(Object::Workload(with_node_network)));
    assert_eq!(ranges(&ingress_rules(&mesh, "reviews-v1-1")[0]), "10.9.0.0/16");
    let affected_set = mesh.apply(Change::Remove(ObjectKey::Workload(nginx.name)));
    assert!(affected_set.workloads.contains(&workload_name("reviews-v1-1")), "{affected_set:?}");
    assert_eq!(ranges(&ingress_rules(&mesh, "reviews-v1-1")[0]), "10.9.0.0/16");
}

#[test]
fn only_the_first_policy_opens_a_port() {
    let mut mesh = mesh_with_sidecars(&default_deny_bookinfo(""));
    apply_yaml(&mut mesh, &INGRESS_POLICY.replace("name: web,", "name: z,"));
    let second_policy =
        INGRESS_POLICY.replace("IngressBackend", "AccessControl").replace("name: web,", "name: a,");
    apply_yaml(&mut mesh, &second_policy);
    let compiled_rules = ingress_rules(&mesh, "reviews-v1-1");
    let names: Vec<String> = compiled_rules.iter().map(|rule| rule.policy.to_string()).collect();
    assert_eq!(names, ["IngressBackend bookinfo/z"]);
    let problems: Vec<Vec<String>> =
        mesh.ingress_policies().map(|policy| policy_problems(&mesh, policy)).collect();
    let missing_source = "endpoints not found for service edge/nginx";
    assert_eq!(problems[0], [missing_source]);
    let first_problem = "IngressBackend bookinfo/z already opens port 9082 of bookinfo/reviews";
    assert_eq!(problems[1], [first_problem, missing_source]);
}

#[test]
fn a_port_is_opened_with_one_protocol_for_all_its_services() {
    let mut mesh = mesh_with_sidecars(&default_deny_bookinfo(""));
    apply_yaml(
        &mut mesh,
        "apiVersion: v1\nkind: Service\nmetadata: {name: stars, namespace: bookinfo}\n\
         spec: {selector: {app: reviews}, ports: [{port: 80, targetPort: 9082}]}",
    );
    apply_yaml(&mut mesh, INGRESS_POLICY);
    let other =
        INGRESS_POLICY.replace("name: web,", "name: x,").replace("name: reviews", "name: stars");
    apply_yaml(&mut mesh, &other);
    // A duplicate is not a contradiction.
    assert_eq!(ingress_rules(&mesh, "reviews-v1-1").len(), 2);
    apply_yaml(&mut mesh, &other.replace("protocol: http", "protocol: grpc"));
    let compiled_rules = ingress_rules(&mesh, "reviews-v1-1");
    let [rule] = compiled_rules.as_slice() else { panic!("{compiled_rules:?}") };
    assert_eq!(
        (rule.policy.to_string().as_str(), &rule.protocol),
        ("IngressBackend bookinfo/web", &IngressProtocol::Http)
    );
    let problems: Vec<Vec<String>> =
        mesh.ingress_policies().map(|policy| policy_problems(&mesh, policy)).collect();
    let missing_source = "endpoints not found for service edge/nginx";
    assert_eq!(problems[0], [missing_source]);
    let conflict = "IngressBackend bookinfo/web already opens port 9082 of the workloads of bookinfo/stars with different settings";
    assert_eq!(problems[1], [conflict, missing_source]);
    apply_yaml(&mut mesh, &other.replace("9082", "80"));
    let problems: Vec<Vec<String>> =
        mesh.ingress_policies().map(|policy| policy_problems(&mesh, policy)).collect();
    assert_eq!(problems[1], ["no workload of bookinfo/stars has port 80", missing_source]);
}

#[test]
fn a_missing_group_matches_no_request() {
    let mut mesh = mesh_with_sidecars(&default_deny_bookinfo(""));
    apply_yaml(
        &mut mesh,
        &INGRESS_POLICY
            .replace("sources:", "matches: [{kind: HTTPRouteGroup, name: late}], sources:"),
    );
    assert_eq!(ingress_rules(&mesh, "reviews-v1-1")[0].requests, Some(Vec::new()));
    let group = "apiVersion: specs.smi-spec.io/v1alpha4\nkind: HTTPRouteGroup\n\
                 metadata: {name: late, namespace: bookinfo}\nspec: {matches: [{name: all}]}";
    let affected_set = apply_yaml(&mut mesh, group);
    assert!(affected_set.workloads.contains(&workload_name("reviews-v1-1")), "{affected_set:?}");
    assert_eq!(ingress_rules(&mesh, "reviews-v1-1")[0].requests.as_ref().map(Vec::len), Some(1));
}

#[test]
fn egress_rules_apply_only_if_egress_is_denied() {
    let egress = "apiVersion: policy.flomesh.io/v1alpha1\nkind: Egress\n\
               metadata: {name: out, namespace: bookinfo}\n\
               spec: {sources: [{kind: ServiceAccount, name: reviews, namespace: bookinfo}], \
               hosts: [api.example], ipAddresses: [10.1.0.0/16], \
               ports: [{number: 443, protocol: https}, {number: 25, protocol: tcp}]}";
    let mut mesh = mesh_with_sidecars(&default_deny_bookinfo(""));
    let affected_set = apply_yaml(&mut mesh, egress);
    assert!(affected_set.workloads.contains(&workload_name("reviews-v1-1")), "{affected_set:?}");
    assert_eq!(workload_config(&mesh, "reviews-v1-1").egress_rules, []);
    let mut config = mesh.config().clone();
    config.egress = Egress::Deny;
    mesh.apply(Change::Upsert(Object::MeshConfig(config)));
    let config = workload_config(&mesh, "reviews-v1-1");
    let compiled_rules: Vec<_> =
        config.egress_rules.iter().map(|rule| (rule.port, rule.matched_by)).collect();
    assert_eq!(compiled_rules, [(443, MatchedBy::ServerName), (25, MatchedBy::Address)]);
    // The protocol carries no host name.
    assert!(config.egress_rules[1].hosts.is_empty());
    assert_eq!(workload_config(&mesh, "details-1").egress_rules, []);
}

#[test]
fn egress_deny_leaves_the_api_server_reachable() {
    let mut mesh = mesh_with_sidecars(&default_deny_bookinfo(""));
    let addresses = ["10.96.0.1:443", "192.0.2.7:6443", "192.0.2.8:6443"];
    let mut config = mesh.config().clone();
    config.api_server = addresses.map(|address| address.parse().unwrap()).into();
    mesh.apply(Change::Upsert(Object::MeshConfig(config.clone())));
    assert_eq!(workload_config(&mesh, "details-1").egress_rules, [], "all connections may leave");
    config.egress = Egress::Deny;
    let affected_set = mesh.apply(Change::Upsert(Object::MeshConfig(config)));
    assert!(affected_set.all_proxies);
    let egress_rules = workload_config(&mesh, "details-1").egress_rules.clone();
    let compiled = leno_traffic::EgressRules::compile(&egress_rules).unwrap();
    for address in addresses {
        assert_eq!(
            compiled.decide_address(address.parse().unwrap()),
            leno_traffic::EgressDecision::Allowed,
            "{address}"
        );
    }
    for other in ["10.96.0.1:6443", "10.96.0.2:443", "192.0.2.7:443", "192.0.2.9:6443"] {
        assert_eq!(
            compiled.decide_address(other.parse().unwrap()),
            leno_traffic::EgressDecision::Denied,
            "{other}"
        );
    }
}
