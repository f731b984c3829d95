//! Tests of the mesh: the affected set of changes, and removal without residue.

use leno_model::{DefaultPolicy, Name, Object, ObjectKey};

use super::*;
use crate::fixture::{
    BOOKINFO, STRICT, mesh_with_sidecars, parse_objects, service_name, strict_bookinfo,
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
fn a_sidecar_touches_the_services_in_front_of_it_and_nothing_else() {
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
fn a_workload_touches_itself_and_the_services_it_joins_or_leaves() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let moved = r#"
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: details-1, namespace: bookinfo, labels: {app: reviews, version: v1}}
spec: {serviceAccount: details, ports: [{name: http, port: 9081, protocol: HTTP}]}
"#;
    let affected_set = mesh.apply(Change::Upsert(parse_object(moved)));
    assert_eq!(affected_set.workloads, workload_names(["details-1"]));
    assert_eq!(affected_set.services, service_names(["details", "reviews", "reviews-v1"]));
    assert!(mesh.apply(Change::Upsert(parse_object(moved))).is_empty());
}

#[test]
fn how_a_workload_is_started_matters_to_no_client() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let mut details = mesh.workload(&workload_name("details-1")).unwrap().clone();
    details.run = vec!["true".to_owned()];
    let affected_set = mesh.apply(Change::Upsert(Object::Workload(details)));
    let expected =
        AffectedSet { workloads: workload_names(["details-1"]), ..AffectedSet::default() };
    assert_eq!(affected_set, expected);
}

#[test]
fn a_service_touches_its_users_and_its_owners() {
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
fn a_route_touches_its_parents_before_and_after() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let moved = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: reviews, namespace: bookinfo}
spec:
  parentRefs: [{group: "", kind: Service, name: details}]
  rules: [{backendRefs: [{name: reviews-v1, port: 9080}]}]
"#;
    let affected_set = mesh.apply(Change::Upsert(parse_object(moved)));
    let expected =
        AffectedSet { services: service_names(["reviews", "details"]), ..AffectedSet::default() };
    assert_eq!(affected_set, expected);
}

#[test]
fn what_a_split_stands_on_touches_its_root() {
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
    let group =
        parse_objects(STRICT).into_iter().find(|it| matches!(it, Object::HttpRouteGroup(_)));
    let root = AffectedSet { services: service_names(["details"]), ..AffectedSet::default() };
    for object in [group.unwrap(), parse_object(grant), parse_object(split)] {
        let key = object.object_key();
        let affected_set = mesh.apply(Change::Upsert(object));
        // The split itself is unchanged.
        let expected =
            if matches!(key, ObjectKey::TrafficSplit(_)) { &AffectedSet::default() } else { &root };
        assert_eq!(affected_set, *expected, "{key}");
    }
    let key = parse_objects(split).pop().unwrap().object_key();
    assert_eq!(mesh.apply(Change::Remove(key)), root);
}

#[test]
fn policies_touch_nobody_in_permissive_mode() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    for object in parse_objects(&strict_bookinfo("")) {
        if !matches!(object, Object::MeshConfig(_)) {
            let key = object.object_key();
            assert!(mesh.apply(Change::Upsert(object)).is_empty(), "{key}");
        }
    }
    let target = mesh.traffic_targets().next().unwrap().name.clone();
    assert!(mesh.apply(Change::Remove(ObjectKey::TrafficTarget(target))).is_empty());
}

#[test]
fn a_policy_touches_its_destination_and_the_views_of_its_sources() {
    let mut mesh = mesh_with_sidecars(&strict_bookinfo(""));
    let target = mesh.traffic_targets().next().unwrap().clone();
    let mut more = target.clone();
    more.sources = vec![ServiceAccount::new("bookinfo", "stranger").unwrap()];
    let affected_set = mesh.apply(Change::Upsert(Object::TrafficTarget(more)));
    let expected = AffectedSet {
        workloads: workload_names(["reviews-v1-1"]),
        accounts: account_names(["productpage", "stranger"]),
        ..AffectedSet::default()
    };
    assert_eq!(affected_set, expected);
}

#[test]
fn a_group_of_matches_touches_the_destinations_of_its_policies_only() {
    let mut mesh = mesh_with_sidecars(&strict_bookinfo(""));
    let name = RouteGroupName::new("bookinfo", "reviews").unwrap();
    let affected_set = mesh.apply(Change::Remove(ObjectKey::HttpRouteGroup(name)));
    let expected =
        AffectedSet { workloads: workload_names(["reviews-v1-1"]), ..AffectedSet::default() };
    assert_eq!(affected_set, expected);
}

#[test]
fn a_strict_service_touches_who_routes_to_it() {
    let mut mesh = mesh_with_sidecars(&strict_bookinfo(""));
    let affected_set =
        mesh.apply(Change::Remove(ObjectKey::Workload(workload_name("reviews-v2-1"))));
    assert_eq!(affected_set.services, service_names(["reviews", "reviews-v2"]));
    let affected_set = mesh.apply(Change::Remove(ObjectKey::Service(service_name("reviews-v1"))));
    assert_eq!(affected_set.services, service_names(["reviews", "reviews-v1"]));
}

#[test]
fn the_mode_touches_everybody_and_going_back_restores_everything() {
    let mut mesh = mesh_with_sidecars(&strict_bookinfo(""));
    let before = mesh.clone();
    let strict = Object::MeshConfig(mesh.config().clone());
    assert!(mesh.apply(Change::Remove(ObjectKey::MeshConfig)).all_proxies);
    assert!(mesh.apply(Change::Upsert(strict)).all_proxies);
    assert_eq!(mesh, before);
}

#[test]
fn a_strict_workload_in_a_permissive_mesh_touches_everybody_as_it_comes_and_goes() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let before = mesh.clone();
    let mut details = mesh.workload(&workload_name("details-1")).unwrap().clone();
    let permissive = details.clone();
    details.admission.default_policy = Some(DefaultPolicy::Deny);
    assert!(mesh.apply(Change::Upsert(Object::Workload(details.clone()))).all_proxies);
    assert!(mesh.has_strict());
    details.admission.default_policy = Some(DefaultPolicy::DryRun);
    assert!(mesh.apply(Change::Upsert(Object::Workload(details.clone()))).all_proxies);
    assert!(!mesh.has_strict() && mesh.has_policed());
    let affected_set = mesh.apply(Change::Upsert(Object::Workload(permissive)));
    assert!(
        !affected_set.all_proxies && affected_set.workloads.contains(&details.name),
        "{affected_set:?}"
    );
    assert!(!mesh.has_policed());
    assert_eq!(mesh, before);
}

#[test]
fn an_access_policy_touches_what_it_is_about_and_who_may_see_it() {
    let policy = "apiVersion: leno.dev/v1alpha1\nkind: AccessPolicy\n\
                  metadata: {name: guard, namespace: bookinfo}\n\
                  spec: {serviceAccounts: [details], allow: [{from: [{serviceAccount: \"s*\"}]}]}\n";
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let affected_set = mesh.apply(Change::Upsert(parse_object(policy)));
    let expected =
        AffectedSet { workloads: workload_names(["details-1"]), ..AffectedSet::default() };
    assert_eq!(affected_set, expected);
    assert!(mesh.apply(Change::Upsert(parse_object(policy))).is_empty());
    let mut mesh = mesh_with_sidecars(&strict_bookinfo(""));
    let before = mesh.clone();
    let affected_set = mesh.apply(Change::Upsert(parse_object(policy)));
    assert_eq!(affected_set.workloads, workload_names(["details-1"]));
    assert_eq!(affected_set.services, service_names(["details"]));
    let name = "bookinfo/guard".parse().unwrap();
    assert_eq!(mesh.apply(Change::Remove(ObjectKey::AccessPolicy(name))), affected_set);
    assert_eq!(mesh, before);
}

#[test]
fn a_selector_chooses_by_all_labels_within_its_namespace_and_an_empty_one_nothing() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let behind = |mesh: &Mesh, name: &str| {
        let name = service_name(name);
        mesh.service_workloads(&name).map(|w| w.name.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(behind(&mesh, "reviews-v2"), ["reviews-v2-1"]);
    let mut all = mesh.service(&service_name("reviews")).unwrap().clone();
    all.selector.clear();
    mesh.apply(Change::Upsert(Object::Service(all.clone())));
    assert_eq!(behind(&mesh, "reviews"), [""; 0]);
    all.selector.insert("app".to_owned(), "reviews".to_owned());
    all.name.namespace = Name::new("elsewhere").unwrap();
    let name = all.name.clone();
    mesh.apply(Change::Upsert(Object::Service(all)));
    assert_eq!(mesh.service_workloads(&name).count(), 0);
}

#[test]
fn a_workload_that_changes_its_account_has_no_sidecar_until_one_comes_as_that() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let mut details = mesh.workload(&workload_name("details-1")).unwrap().clone();
    details.run = vec!["true".to_owned()];
    mesh.apply(Change::Upsert(Object::Workload(details.clone())));
    assert!(mesh.sidecar_listeners(&details.name).is_some(), "it is who it was");
    details.account.name = Name::new("other").unwrap();
    let affected_set = mesh.apply(Change::Upsert(Object::Workload(details.clone())));
    assert_eq!(mesh.sidecar_listeners(&details.name), None);
    assert!(affected_set.services.contains(&service_name("details")), "{affected_set:?}");
}

/// The port or account changes, and the sidecar reconnects shortly after.
#[test]
fn requests_wait_for_the_sidecar_of_a_workload_that_changed() {
    let awaited = |mesh: &Mesh| {
        let found = mesh.service(&service_name("reviews-v1")).unwrap();
        let view =
            crate::compile::compile_service(mesh, &crate::compile::ClientClass::AllClients, found);
        let port = view.ports.values().next().unwrap();
        (port.endpoints.len(), view.awaited)
    };
    let name = workload_name("reviews-v1-1");
    let mut unchanged = mesh_with_sidecars(BOOKINFO);
    assert_eq!(awaited(&unchanged), (1, false));
    let before = unchanged.workload(&name).unwrap().clone();
    let change = |change: &dyn Fn(&mut Workload)| {
        let mut mesh = mesh_with_sidecars(BOOKINFO);
        let mut reviews = before.clone();
        change(&mut reviews);
        let affected_set = mesh.apply(Change::Upsert(Object::Workload(reviews)));
        (mesh, affected_set)
    };
    let listeners = |port: u16| Some(Listeners::from([(port, ([127, 0, 0, 1], 20_000).into())]));
    type Edit<'a> = &'a dyn Fn(&mut Workload);
    let cases: [(u16, Edit<'_>); 3] = [
        (9999, &|it| it.ports[0].port = 9999),
        (9082, &|it| it.account = ServiceAccount::new("bookinfo", "other").unwrap()),
        (9999, &|it| {
            it.ports[0].port = 9999;
            it.account = ServiceAccount::new("bookinfo", "other").unwrap();
        }),
    ];
    for (port, changes) in cases {
        let (mut mesh, affected_set) = change(changes);
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
        assert!(mesh.give_up(&name).is_empty(), "its sidecar is back");
        mesh.set_listeners(&name, None);
        assert_eq!(awaited(&mesh), (0, false));

        // It never reconnects.
        let (mut mesh, _) = change(changes);
        assert!(mesh.give_up(&name).services.contains(&service_name("reviews-v1")));
        assert_eq!(awaited(&mesh), (0, false));

        // The change is reverted at once.
        let (mut mesh, _) = change(changes);
        mesh.apply(Change::Upsert(Object::Workload(before.clone())));
        let endpoints = awaited(&mesh).0;
        assert_eq!(awaited(&mesh), (endpoints, endpoints == 0));
        mesh.set_listeners(&name, None);
        assert_eq!(awaited(&mesh), (0, true));

        // The workload is removed.
        let (mut mesh, _) = change(changes);
        mesh.apply(Change::Remove(ObjectKey::Workload(name.clone())));
        assert!(!mesh.has_changed(&name));
    }
    let (mesh, _) = change(&|reviews| drop(reviews.labels.insert("a".into(), "b".into())));
    assert_eq!(awaited(&mesh), (1, false));
    // Without a sidecar there is none to wait for.
    unchanged.set_listeners(&name, None);
    let mut reviews = before.clone();
    reviews.ports[0].port = 9999;
    unchanged.apply(Change::Upsert(Object::Workload(reviews)));
    assert_eq!(awaited(&unchanged), (0, false));
}
