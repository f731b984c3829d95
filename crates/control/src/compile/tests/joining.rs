//! The endpoints that sidecars balance over while some pods of a service have no sidecar, or none has one.

use std::net::IpAddr;

use leno_model::{
    Change, Object, ObjectKey, Protocol, ServicePort, TargetPort, Workload, WorkloadPort,
};
use leno_registry::JOINING_LABEL;

use super::gateways::{client_config, service_endpoints, unmeshed_workload};
use super::*;
use crate::fixture::parse_objects;

/// Bookinfo in a cluster: `reviews-v1` has the address 10.96.0.9, one pod with a sidecar (`reviews-v1-1`), and
/// the pods in `unmeshed_names` without one.
pub(super) fn cluster_with_unmeshed(yaml: &str, unmeshed_names: &[&str]) -> Mesh {
    let mut mesh = mesh_with_sidecars(yaml);
    let mut reviews = mesh.service(&service_name("reviews-v1")).unwrap().clone();
    reviews.addresses.insert(SERVICE_ADDRESS);
    mesh.apply(Change::Upsert(Object::Service(reviews)));
    for (name, last_byte) in unmeshed_names.iter().zip(1..) {
        let labels = "{app: reviews, version: v1}";
        let workload = unmeshed_workload(name, labels, [10, 9, 0, last_byte]);
        mesh.apply(Change::Upsert(Object::Workload(workload)));
    }
    mesh
}

/// Sets the readiness of the pod with a sidecar.
fn set_ready(mesh: &mut Mesh, ready: bool) {
    let workload = mesh.workload(&workload_name("reviews-v1-1")).unwrap().clone();
    mesh.apply(Change::Upsert(Object::Workload(Workload { ready, ..workload })));
}

/// Returns the endpoints that a client sees, each with a mark for a sidecar.
pub(super) fn visible_endpoints(mesh: &Mesh) -> Vec<(String, bool)> {
    let endpoints =
        service_endpoints(&client_config(mesh, "productpage-1", &["reviews-v1"]), "reviews-v1");
    endpoints.into_iter().map(|(name, _, has_sidecar)| (name, has_sidecar)).collect()
}

fn all_endpoints() -> [(String, bool); 3] {
    [("reviews-v1-1", true), ("reviews-v1-7", false), ("reviews-v1-8", false)]
        .map(|(name, has_sidecar)| (name.to_owned(), has_sidecar))
}

/// True if sidecars balance connections to the address of the service.
pub(super) fn is_balanced(mesh: &Mesh) -> bool {
    let entries = address_entries(
        mesh,
        &BTreeSet::from([SERVICE_ADDRESS]),
        &mut ServiceConfigCache::default(),
    );
    assert!(entries.dependencies.contains(&service_name("reviews-v1")));
    *entries.by_address[&SERVICE_ADDRESS] == AddressEntry::Service(service_name("reviews-v1"))
}

fn rate_limit(spec: &str) -> Object {
    let yaml = format!(
        "apiVersion: leno.dev/v1alpha1\nkind: RateLimit\nmetadata: {{name: p, namespace: bookinfo}}\n\
         spec: {{targetRefs: [{{kind: Service, name: reviews-v1}}], {spec}}}"
    );
    parse_objects(&yaml).pop().unwrap()
}

#[test]
fn requests_are_balanced_over_all_ready_endpoints_with_and_without_a_sidecar() {
    let mut mesh = cluster_with_unmeshed(BOOKINFO, &["reviews-v1-7", "reviews-v1-8"]);
    assert!(is_balanced(&mesh));
    assert_eq!(visible_endpoints(&mesh), all_endpoints());
    // An unready pod is not an endpoint, and becomes one without any other change.
    let mut unmeshed =
        unmeshed_workload("reviews-v1-8", "{app: reviews, version: v1}", [10, 9, 0, 2]);
    unmeshed.ready = false;
    let affected_set = mesh.apply(Change::Upsert(Object::Workload(unmeshed.clone())));
    assert!(affected_set.services.contains(&service_name("reviews-v1")));
    assert_eq!(visible_endpoints(&mesh), all_endpoints()[..2]);
    unmeshed.ready = true;
    mesh.apply(Change::Upsert(Object::Workload(unmeshed)));
    assert_eq!(visible_endpoints(&mesh), all_endpoints());
}

#[test]
fn a_pod_with_a_sidecar_that_is_not_ready_changes_nothing() {
    let mut mesh = cluster_with_unmeshed(BOOKINFO, &["reviews-v1-7", "reviews-v1-8"]);
    set_ready(&mut mesh, false);
    // Sidecars balance before it is ready: the cluster network would route plaintext to it.
    assert!(is_balanced(&mesh));
    assert_eq!(visible_endpoints(&mesh), all_endpoints()[1..]);
    set_ready(&mut mesh, true);
    assert!(is_balanced(&mesh));
    // Its sidecar has not reported yet, as after a start of the control plane: unknown endpoints fail closed.
    mesh.set_listeners(&workload_name("reviews-v1-1"), None);
    assert!(is_balanced(&mesh));
    assert_eq!(visible_endpoints(&mesh), all_endpoints()[1..]);
}

#[test]
fn a_service_whose_pods_all_have_sidecars_is_never_called_in_plaintext() {
    let mut mesh = cluster_with_unmeshed(BOOKINFO, &[]);
    set_ready(&mut mesh, false);
    assert!(is_balanced(&mesh));
    assert_eq!(visible_endpoints(&mesh), []);
    let unmeshed = unmeshed_workload("reviews-v1-7", "{app: reviews, version: v1}", [10, 9, 0, 1]);
    let unmeshed = Workload { ready: false, ..unmeshed };
    mesh.apply(Change::Upsert(Object::Workload(unmeshed)));
    assert!(is_balanced(&mesh));
}

#[test]
fn a_service_leaves_the_mesh_with_its_last_sidecar() {
    let mut mesh = cluster_with_unmeshed(BOOKINFO, &["reviews-v1-7", "reviews-v1-8"]);
    set_ready(&mut mesh, false);
    mesh.apply(Change::Remove(ObjectKey::Workload(workload_name("reviews-v1-1"))));
    assert!(!is_balanced(&mesh));
    assert_eq!(visible_endpoints(&mesh), all_endpoints()[1..]);
}

/// The endpoints of a Service without a selector are known only once they receive requests.
#[test]
fn a_service_whose_pods_may_join_is_balanced_before_the_first_joins() {
    let mark_joining = |mesh: &mut Mesh, joining_names: &[&str]| {
        for name in ["reviews-v1-7", "reviews-v1-8"] {
            let key = service_name("reviews-v1");
            let existing_workload = mesh
                .unmeshed_workloads_of(&key)
                .find(|workload| workload.name == workload_name(name));
            let mut unmeshed = existing_workload.unwrap().clone();
            unmeshed.labels.remove(JOINING_LABEL);
            if joining_names.contains(&name) {
                unmeshed.labels.insert(JOINING_LABEL.to_owned(), String::new());
            }
            mesh.apply(Change::Upsert(Object::Workload(unmeshed)));
        }
    };
    let mut mesh = cluster_with_unmeshed(BOOKINFO, &["reviews-v1-7", "reviews-v1-8"]);
    mesh.apply(Change::Remove(ObjectKey::Workload(workload_name("reviews-v1-1"))));
    assert!(!is_balanced(&mesh));
    mark_joining(&mut mesh, &["reviews-v1-7", "reviews-v1-8"]);
    assert!(is_balanced(&mesh));
    assert_eq!(visible_endpoints(&mesh), all_endpoints()[1..]);
    mark_joining(&mut mesh, &["reviews-v1-7"]);
    assert!(!is_balanced(&mesh), "only gateways call the other one");
    mark_joining(&mut mesh, &["reviews-v1-7", "reviews-v1-8"]);
    // Sidecars may not send plaintext here: clients reach it as without a mesh.
    mesh.apply(Change::Upsert(rate_limit("concurrency: {requests: 10}")));
    assert!(!is_balanced(&mesh));
    let mut mesh =
        cluster_with_unmeshed(&default_deny_bookinfo(""), &["reviews-v1-7", "reviews-v1-8"]);
    mesh.apply(Change::Remove(ObjectKey::Workload(workload_name("reviews-v1-1"))));
    mark_joining(&mut mesh, &["reviews-v1-7", "reviews-v1-8"]);
    assert!(!is_balanced(&mesh));
}

#[test]
fn a_service_that_publishes_unready_endpoints_includes_all() {
    let mut mesh = cluster_with_unmeshed(BOOKINFO, &["reviews-v1-7", "reviews-v1-8"]);
    let mut reviews = mesh.service(&service_name("reviews-v1")).unwrap().clone();
    reviews.unready = true;
    mesh.apply(Change::Upsert(Object::Service(reviews)));
    set_ready(&mut mesh, false);
    let unmeshed = unmeshed_workload("reviews-v1-8", "{app: reviews, version: v1}", [10, 9, 0, 2]);
    mesh.apply(Change::Upsert(Object::Workload(Workload { ready: false, ..unmeshed })));
    assert!(is_balanced(&mesh));
    assert_eq!(visible_endpoints(&mesh), all_endpoints());
}

#[test]
fn default_deny_and_denied_egress_restrict_plaintext() {
    let settings = |spec: &str| {
        let config =
            "apiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {name: default}\nspec: ";
        parse_objects(&format!("{config}{{{spec}}}")).pop().unwrap()
    };
    let reviews = |mesh: &Mesh| mesh.service(&service_name("reviews-v1")).unwrap().clone();
    let default_deny = (
        "namespaces: [{name: bookinfo, defaultPolicy: deny}]",
        PlaintextRestriction::DefaultPolicy,
    );
    for ((spec, plaintext_restriction), with_policy) in [
        (default_deny, true),
        (default_deny, false),
        (("egress: deny", PlaintextRestriction::Egress), true),
    ] {
        let mut mesh = cluster_with_unmeshed(BOOKINFO, &["reviews-v1-7", "reviews-v1-8"]);
        assert_eq!(restricted_workloads(&mesh, &reviews(&mesh)), None);
        let allow = "apiVersion: leno.dev/v1alpha1\nkind: AccessPolicy\nmetadata: {name: p, namespace: bookinfo}\n\
                     spec: {serviceAccounts: [reviews], allow: [{from: [{namespace: bookinfo}]}]}";
        if with_policy {
            mesh.apply(Change::Upsert(parse_objects(allow).pop().unwrap()));
        }
        mesh.apply(Change::Upsert(settings(spec)));
        assert!(is_balanced(&mesh), "{spec}");
        let members = if with_policy { 1 } else { 0 };
        assert_eq!(visible_endpoints(&mesh), all_endpoints()[..members], "{spec}");
        assert_eq!(
            restricted_workloads(&mesh, &reviews(&mesh)),
            Some((2, plaintext_restriction)),
            "{spec}"
        );
        // Without a ready member, the default policy still excludes unmeshed endpoints, and `egress` does not.
        set_ready(&mut mesh, false);
        assert_eq!(
            is_balanced(&mesh),
            plaintext_restriction == PlaintextRestriction::DefaultPolicy,
            "{spec}"
        );
        let excluded = Some((2, plaintext_restriction))
            .filter(|_| plaintext_restriction == PlaintextRestriction::DefaultPolicy);
        assert_eq!(restricted_workloads(&mesh, &reviews(&mesh)), excluded, "{spec}");
        // If no pod has a sidecar, clients reach the service as without a mesh.
        mesh.apply(Change::Remove(ObjectKey::Workload(workload_name("reviews-v1-1"))));
        assert_eq!(restricted_workloads(&mesh, &reviews(&mesh)), None, "{spec}");
    }
}

#[test]
fn policies_that_only_sidecars_enforce_exclude_other_endpoints() {
    let mut mesh = cluster_with_unmeshed(BOOKINFO, &["reviews-v1-7", "reviews-v1-8"]);
    mesh.apply(Change::Upsert(rate_limit("concurrency: {requests: 10}")));
    assert_eq!(visible_endpoints(&mesh), all_endpoints()[..1]);
    // The unmeshed endpoints stay excluded while the pod that enforces the policy is not ready.
    set_ready(&mut mesh, false);
    assert!(is_balanced(&mesh));
    assert_eq!(visible_endpoints(&mesh), []);
    let Object::ServicePolicy(applied) = rate_limit("concurrency: {requests: 10}") else {
        panic!()
    };
    assert_eq!(excluded_endpoints(&mesh, &ObjectKey::ServicePolicy(applied.name)).len(), 2);
    // Without a pod with a sidecar no policy is enforced, and none excludes endpoints.
    mesh.apply(Change::Remove(ObjectKey::Workload(workload_name("reviews-v1-1"))));
    assert!(!is_balanced(&mesh));
}

#[test]
fn a_policy_applies_at_the_named_port_of_each_workload() {
    let mut mesh = cluster_with_unmeshed(BOOKINFO, &[]);
    let mut reviews = mesh.service(&service_name("reviews-v1")).unwrap().clone();
    let named_port = |name: &str, port, target| ServicePort {
        name: Some(name.parse().unwrap()),
        port,
        target,
        protocol: None,
    };
    let main_target = TargetPort::Name("main".parse().unwrap());
    reviews.ports = vec![
        named_port("main", 9080, main_target),
        named_port("other", 9081, TargetPort::Number(7001)),
        named_port("third", 9082, TargetPort::Number(7002)),
    ];
    mesh.apply(Change::Upsert(Object::Service(reviews)));
    for (name, number) in [("reviews-v1-7", 7001), ("reviews-v1-8", 7002)] {
        let last_byte = u8::try_from(number - 7000).unwrap();
        let mut unmeshed =
            unmeshed_workload(name, "{app: reviews, version: v1}", [10, 9, 0, last_byte]);
        unmeshed.ports = vec![WorkloadPort {
            name: Some("main".parse().unwrap()),
            port: number,
            protocol: Protocol::Detect,
        }];
        mesh.apply(Change::Upsert(Object::Workload(unmeshed)));
    }
    let yaml = "apiVersion: leno.dev/v1alpha1\nkind: RateLimit\nmetadata: {name: p, namespace: bookinfo}\n\
                spec: {targetRefs: [{kind: Service, name: reviews-v1, port: 9080}], concurrency: {requests: 10}}";
    mesh.apply(Change::Upsert(parse_objects(yaml).pop().unwrap()));
    let compiled_config = client_config(&mesh, "productpage-1", &["reviews-v1"]);
    let services = &compiled_config.snapshot.services;
    let unmeshed_count = |port: u16| {
        let endpoints = &services[&service_name("reviews-v1")].ports[&port].endpoints;
        endpoints.iter().filter(|endpoint| endpoint.account.is_none()).count()
    };
    // `main` is port 7001 at one endpoint and 7002 at the other: each keeps the other port.
    assert_eq!([unmeshed_count(9080), unmeshed_count(9081), unmeshed_count(9082)], [0, 1, 1]);
}

#[test]
fn a_headless_service_resolves_to_each_pod() {
    let mut mesh = cluster_with_unmeshed(BOOKINFO, &["reviews-v1-7"]);
    let mut reviews = mesh.service(&service_name("reviews-v1")).unwrap().clone();
    reviews.addresses.clear();
    mesh.apply(Change::Upsert(Object::Service(reviews)));
    let workload = mesh.workload(&workload_name("reviews-v1-1")).unwrap().clone();
    let (meshed, unmeshed) = (IpAddr::from([10, 9, 0, 9]), IpAddr::from([10, 9, 0, 1]));
    mesh.apply(Change::Upsert(Object::Workload(Workload { address: meshed, ..workload })));
    let name = service_name("reviews-v1");
    let addresses_of = |mesh: &Mesh| {
        dns_records(mesh, &BTreeSet::from([name.clone()]))[&name].addresses().to_vec()
    };
    assert_eq!(addresses_of(&mesh), [unmeshed, meshed]);
    let entries = address_entries(
        &mesh,
        &BTreeSet::from([meshed, unmeshed]),
        &mut ServiceConfigCache::default(),
    );
    assert!(matches!(&*entries.by_address[&meshed], AddressEntry::Workload { .. }));
    assert_eq!(*entries.by_address[&unmeshed], AddressEntry::External);
    // No DNS record contains a pod with a sidecar that cannot start.
    set_ready(&mut mesh, false);
    assert_eq!(addresses_of(&mesh), [unmeshed]);
}

const SERVICE_ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 96, 0, 9));
