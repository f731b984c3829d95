//! The affected sets of changes of the mesh, and removal of objects without residue.

use leno_model::{DefaultPolicy, Name, Object, ObjectKey};

use super::*;
use crate::fixture::{
    BOOKINFO, DEFAULT_DENY, default_deny_bookinfo, mesh_with_sidecars, parse_objects, service_name,
    workload_name,
};

fn parse_object(yaml: &str) -> Object {
    parse_objects(yaml).pop().unwrap()
}

fn service_names<const N: usize>(names: [&str; N]) -> BTreeSet<ServiceName> {
    names.map(service_name).into()
}

fn workload_names<const N: usize>(names: [&str; N]) -> BTreeSet<WorkloadName> {
    names.map(workload_name).into()
}

fn account_names<const N: usize>(names: [&str; N]) -> BTreeSet<ServiceAccount> {
    let account = |name| ServiceAccount::new("bookinfo", name).unwrap();
    names.map(account).into()
}

#[test]
fn a_sidecar_affects_only_the_services_of_its_workload() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let affected_set = mesh.set_listeners(&workload_name("reviews-v1-1"), None);
    let expected = AffectedSet {
        services: service_names(["reviews", "reviews-v1"]),
        ..AffectedSet::default()
    };
    assert_eq!(affected_set, expected);
    assert!(mesh.set_listeners(&workload_name("reviews-v1-1"), None).is_empty());
    assert!(mesh.set_listeners(&workload_name("nobody"), Some(Listeners::new())).is_empty());
}

#[test]
fn a_workload_affects_itself_and_the_services_it_joins_or_leaves() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let changed_yaml = r#"
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: details-1, namespace: bookinfo, labels: {app: reviews, version: v1}}
spec: {serviceAccount: details, ports: [{name: http, port: 9081, protocol: HTTP}]}
"#;
    let affected_set = mesh.apply(Change::Upsert(parse_object(changed_yaml)));
    assert_eq!(affected_set.workloads, workload_names(["details-1"]));
    assert_eq!(affected_set.services, service_names(["details", "reviews", "reviews-v1"]));
    assert!(mesh.apply(Change::Upsert(parse_object(changed_yaml))).is_empty());
}

#[test]
fn the_command_of_a_workload_affects_no_client() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let mut details = mesh.workload(&workload_name("details-1")).unwrap().clone();
    details.run = vec!["true".to_owned()];
    let affected_set = mesh.apply(Change::Upsert(Object::Workload(details)));
    let expected =
        AffectedSet { workloads: workload_names(["details-1"]), ..AffectedSet::default() };
    assert_eq!(affected_set, expected);
}

#[test]
fn a_service_affects_its_clients_and_its_workloads() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let affected_set = mesh.apply(Change::Remove(ObjectKey::Service(service_name("details"))));
    let expected = AffectedSet {
        services: service_names(["details"]),
        workloads: workload_names(["details-1"]),
        ..AffectedSet::default()
    };
    assert_eq!(affected_set, expected);
}

#[test]
fn a_route_affects_its_old_and_new_parents() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let changed_yaml = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: reviews, namespace: bookinfo}
spec:
  parentRefs: [{group: "", kind: Service, name: details}]
  rules: [{backendRefs: [{name: reviews-v1, port: 9080}]}]
"#;
    let affected_set = mesh.apply(Change::Upsert(parse_object(changed_yaml)));
    let expected =
        AffectedSet { services: service_names(["reviews", "details"]), ..AffectedSet::default() };
    assert_eq!(affected_set, expected);
}

#[test]
fn the_dependencies_of_a_split_affect_its_root() {
    let split = r#"
---
apiVersion: split.smi-spec.io/v1alpha4
kind: TrafficSplit
metadata: {name: details, namespace: bookinfo}
spec:
  service: details
  matches: [{kind: HTTPRouteGroup, name: reviews}]
  backends: [{service: other/details, weight: 1}]
"#;
    let grant = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: any, namespace: other}
spec:
  from: [{group: split.smi-spec.io, kind: TrafficSplit, namespace: bookinfo}]
  to: [{group: "", kind: Service}]
"#;
    let mut mesh = mesh_with_sidecars(&[BOOKINFO, split].concat());
    let group = parse_objects(DEFAULT_DENY)
        .into_iter()
        .find(|object| matches!(object, Object::HttpRouteGroup(_)));
    let root_affected =
        AffectedSet { services: service_names(["details"]), ..AffectedSet::default() };
    for object in [group.unwrap(), parse_object(grant), parse_object(split)] {
        let key = object.object_key();
        let affected_set = mesh.apply(Change::Upsert(object));
        // The split itself is unchanged.
        let expected = if matches!(key, ObjectKey::TrafficSplit(_)) {
            &AffectedSet::default()
        } else {
            &root_affected
        };
        assert_eq!(affected_set, *expected, "{key}");
    }
    let key = parse_objects(split).pop().unwrap().object_key();
    assert_eq!(mesh.apply(Change::Remove(key)), root_affected);
}

#[test]
fn policies_affect_no_proxy_if_all_clients_are_allowed_by_default() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    for object in parse_objects(&default_deny_bookinfo("")) {
        if !matches!(object, Object::MeshConfig(_)) {
            let key = object.object_key();
            assert!(mesh.apply(Change::Upsert(object)).is_empty(), "{key}");
        }
    }
    let target = mesh.traffic_targets().next().unwrap().name.clone();
    assert!(mesh.apply(Change::Remove(ObjectKey::TrafficTarget(target))).is_empty());
}

#[test]
fn a_policy_affects_its_destination_and_its_sources() {
    let mut mesh = mesh_with_sidecars(&default_deny_bookinfo(""));
    let target = mesh.traffic_targets().next().unwrap().clone();
    let mut changed_target = target.clone();
    changed_target.sources = vec![ServiceAccount::new("bookinfo", "stranger").unwrap()];
    let affected_set = mesh.apply(Change::Upsert(Object::TrafficTarget(changed_target)));
    let expected = AffectedSet {
        workloads: workload_names(["reviews-v1-1"]),
        accounts: account_names(["productpage", "stranger"]),
        ..AffectedSet::default()
    };
    assert_eq!(affected_set, expected);
}

#[test]
fn a_route_group_affects_only_the_destinations_of_its_policies() {
    let mut mesh = mesh_with_sidecars(&default_deny_bookinfo(""));
    let name = RouteGroupName::new("bookinfo", "reviews").unwrap();
    let affected_set = mesh.apply(Change::Remove(ObjectKey::HttpRouteGroup(name)));
    let expected =
        AffectedSet { workloads: workload_names(["reviews-v1-1"]), ..AffectedSet::default() };
    assert_eq!(affected_set, expected);
}

#[test]
fn with_default_deny_a_service_affects_the_services_that_route_to_it() {
    let mut mesh = mesh_with_sidecars(&default_deny_bookinfo(""));
    let affected_set =
        mesh.apply(Change::Remove(ObjectKey::Workload(workload_name("reviews-v2-1"))));
    assert_eq!(affected_set.services, service_names(["reviews", "reviews-v2"]));
    let affected_set = mesh.apply(Change::Remove(ObjectKey::Service(service_name("reviews-v1"))));
    assert_eq!(affected_set.services, service_names(["reviews", "reviews-v1"]));
}

#[test]
fn the_default_policy_affects_all_proxies_and_can_be_reverted() {
    let mut mesh = mesh_with_sidecars(&default_deny_bookinfo(""));
    let original_mesh = mesh.clone();
    let default_deny_config = Object::MeshConfig(mesh.config().clone());
    assert!(mesh.apply(Change::Remove(ObjectKey::MeshConfig)).all_proxies);
    assert!(mesh.apply(Change::Upsert(default_deny_config)).all_proxies);
    assert_eq!(mesh, original_mesh);
}

#[test]
fn a_workload_that_denies_by_default_affects_all_proxies_of_a_mesh_that_allows() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let original_mesh = mesh.clone();
    let mut details = mesh.workload(&workload_name("details-1")).unwrap().clone();
    let allowing_workload = details.clone();
    details.admission.default_policy = Some(DefaultPolicy::Deny);
    assert!(mesh.apply(Change::Upsert(Object::Workload(details.clone()))).all_proxies);
    assert!(mesh.has_default_deny());
    details.admission.default_policy = Some(DefaultPolicy::DryRun);
    assert!(mesh.apply(Change::Upsert(Object::Workload(details.clone()))).all_proxies);
    assert!(!mesh.has_default_deny() && mesh.has_evaluated_policies());
    let affected_set = mesh.apply(Change::Upsert(Object::Workload(allowing_workload)));
    assert!(
        !affected_set.all_proxies && affected_set.workloads.contains(&details.name),
        "{affected_set:?}"
    );
    assert!(!mesh.has_evaluated_policies());
    assert_eq!(mesh, original_mesh);
}

#[test]
fn an_access_policy_affects_its_workloads_and_their_clients() {
    let policy = "apiVersion: leno.dev/v1alpha1\nkind: AccessPolicy\n\
                  metadata: {name: guard, namespace: bookinfo}\n\
                  spec: {serviceAccounts: [details], allow: [{from: [{serviceAccount: \"s*\"}]}]}\n";
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let affected_set = mesh.apply(Change::Upsert(parse_object(policy)));
    let expected =
        AffectedSet { workloads: workload_names(["details-1"]), ..AffectedSet::default() };
    assert_eq!(affected_set, expected);
    assert!(mesh.apply(Change::Upsert(parse_object(policy))).is_empty());
    let mut mesh = mesh_with_sidecars(&default_deny_bookinfo(""));
    let original_mesh = mesh.clone();
    let affected_set = mesh.apply(Change::Upsert(parse_object(policy)));
    assert_eq!(affected_set.workloads, workload_names(["details-1"]));
    assert_eq!(affected_set.services, service_names(["details"]));
    let name = "bookinfo/guard".parse().unwrap();
    assert_eq!(mesh.apply(Change::Remove(ObjectKey::AccessPolicy(name))), affected_set);
    assert_eq!(mesh, original_mesh);
}

#[test]
fn a_selector_matches_all_labels_in_its_namespace_and_an_empty_one_nothing() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let workloads_of = |mesh: &Mesh, name: &str| {
        let name = service_name(name);
        mesh.service_workloads(&name)
            .map(|workload| workload.name.name.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(workloads_of(&mesh, "reviews-v2"), ["reviews-v2-1"]);
    let mut reviews = mesh.service(&service_name("reviews")).unwrap().clone();
    reviews.selector.clear();
    mesh.apply(Change::Upsert(Object::Service(reviews.clone())));
    assert_eq!(workloads_of(&mesh, "reviews"), [""; 0]);
    reviews.selector.insert("app".to_owned(), "reviews".to_owned());
    reviews.name.namespace = Name::new("elsewhere").unwrap();
    let name = reviews.name.clone();
    mesh.apply(Change::Upsert(Object::Service(reviews)));
    assert_eq!(mesh.service_workloads(&name).count(), 0);
}

#[test]
fn a_workload_with_a_new_account_has_no_sidecar_until_one_connects_with_it() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let mut details = mesh.workload(&workload_name("details-1")).unwrap().clone();
    details.run = vec!["true".to_owned()];
    mesh.apply(Change::Upsert(Object::Workload(details.clone())));
    assert!(mesh.sidecar_listeners(&details.name).is_some(), "its account is unchanged");
    details.account.name = Name::new("other").unwrap();
    let affected_set = mesh.apply(Change::Upsert(Object::Workload(details.clone())));
    assert_eq!(mesh.sidecar_listeners(&details.name), None);
    assert!(affected_set.services.contains(&service_name("details")), "{affected_set:?}");
}

/// The port or account changes, and the sidecar reconnects shortly after.
#[test]
fn requests_wait_for_the_sidecar_of_a_changed_workload() {
    let awaited = |mesh: &Mesh| {
        let service = mesh.service(&service_name("reviews-v1")).unwrap();
        let service_config = crate::compile::compile_service(
            mesh,
            &crate::compile::ClientClass::AllClients,
            service,
        );
        let port = service_config.ports.values().next().unwrap();
        (port.endpoints.len(), service_config.waits_for_endpoint)
    };
    let name = workload_name("reviews-v1-1");
    let mut unchanged = mesh_with_sidecars(BOOKINFO);
    assert_eq!(awaited(&unchanged), (1, false));
    let original_workload = unchanged.workload(&name).unwrap().clone();
    let apply_edit = |change: &dyn Fn(&mut Workload)| {
        let mut mesh = mesh_with_sidecars(BOOKINFO);
        let mut reviews = original_workload.clone();
        change(&mut reviews);
        let affected_set = mesh.apply(Change::Upsert(Object::Workload(reviews)));
        (mesh, affected_set)
    };
    let listeners = |port: u16| Some(Listeners::from([(port, ([127, 0, 0, 1], 20_000).into())]));
    type Edit<'a> = &'a dyn Fn(&mut Workload);
    let cases: [(u16, Edit<'_>); 3] = [
        (9999, &|workload| workload.ports[0].port = 9999),
        (9082, &|workload| workload.account = ServiceAccount::new("bookinfo", "other").unwrap()),
        (9999, &|workload| {
            workload.ports[0].port = 9999;
            workload.account = ServiceAccount::new("bookinfo", "other").unwrap();
        }),
    ];
    for (port, edit) in cases {
        let (mut mesh, affected_set) = apply_edit(edit);
        assert!(affected_set.services.contains(&service_name("reviews-v1")));
        assert_eq!(awaited(&mesh), (0, true));
        // A sidecar that has not applied the change yet.
        mesh.set_listeners(&name, listeners(1));
        assert_eq!(awaited(&mesh), (0, true));
        let affected_set = mesh.set_listeners(&name, listeners(port));
        assert!(affected_set.services.contains(&service_name("reviews-v1")));
        assert_eq!(awaited(&mesh), (1, false));
        // The former sidecar had reconnected while it was shutting down.
        mesh.set_listeners(&name, Some(Listeners::new()));
        assert_eq!(awaited(&mesh), (0, true));
        mesh.set_listeners(&name, listeners(port));
        assert!(mesh.stop_waiting_for(&name).is_empty(), "its sidecar has reconnected");
        mesh.set_listeners(&name, None);
        assert_eq!(awaited(&mesh), (0, false));

        // The sidecar never reconnects.
        let (mut mesh, _) = apply_edit(edit);
        assert!(mesh.stop_waiting_for(&name).services.contains(&service_name("reviews-v1")));
        assert_eq!(awaited(&mesh), (0, false));

        // The change is reverted at once.
        let (mut mesh, _) = apply_edit(edit);
        mesh.apply(Change::Upsert(Object::Workload(original_workload.clone())));
        let endpoints = awaited(&mesh).0;
        assert_eq!(awaited(&mesh), (endpoints, endpoints == 0));
        mesh.set_listeners(&name, None);
        assert_eq!(awaited(&mesh), (0, true));

        // The workload is removed.
        let (mut mesh, _) = apply_edit(edit);
        mesh.apply(Change::Remove(ObjectKey::Workload(name.clone())));
        assert!(!mesh.has_changed(&name));
    }
    let (mesh, _) = apply_edit(&|reviews| drop(reviews.labels.insert("a".into(), "b".into())));
    assert_eq!(awaited(&mesh), (1, false));
    // A workload without a sidecar: there is none to wait for.
    unchanged.set_listeners(&name, None);
    let mut reviews = original_workload.clone();
    reviews.ports[0].port = 9999;
    unchanged.apply(Change::Upsert(Object::Workload(reviews)));
    assert_eq!(awaited(&unchanged), (0, false));
}
