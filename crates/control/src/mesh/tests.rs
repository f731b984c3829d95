//! Tests of the mesh: the affected set of changes, and removal without residue.

use leno_model::{Name, Object, ObjectKey, TrafficMode};

use super::*;
use crate::fixture::{BOOKINFO, STRICT, mesh, objects, service, strict, workload};

fn object(yaml: &str) -> Object {
    objects(yaml).pop().unwrap()
}

fn services<const N: usize>(names: [&str; N]) -> BTreeSet<ServiceName> {
    names.map(service).into()
}

fn workloads<const N: usize>(names: [&str; N]) -> BTreeSet<WorkloadName> {
    names.map(workload).into()
}

fn accounts<const N: usize>(names: [&str; N]) -> BTreeSet<ServiceAccount> {
    let account = |name| ServiceAccount::new("bookinfo", name).unwrap();
    names.map(account).into()
}

#[test]
fn a_sidecar_touches_the_services_in_front_of_it_and_nothing_else() {
    let mut mesh = mesh(BOOKINFO);
    let touched = mesh.listen(&workload("reviews-v1-1"), None);
    let expected = Touched { services: services(["reviews", "reviews-v1"]), ..Touched::default() };
    assert_eq!(touched, expected);
    assert!(mesh.listen(&workload("reviews-v1-1"), None).is_empty());
    assert!(mesh.listen(&workload("nobody"), Some(Listeners::new())).is_empty());
}

#[test]
fn a_workload_touches_itself_and_the_services_it_joins_or_leaves() {
    let mut mesh = mesh(BOOKINFO);
    let moved = r#"
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: details-1, namespace: bookinfo, labels: {app: reviews, version: v1}}
spec: {serviceAccount: details, ports: [{name: http, port: 9081, protocol: HTTP}]}
"#;
    let touched = mesh.apply(Change::Upsert(object(moved)));
    assert_eq!(touched.workloads, workloads(["details-1"]));
    assert_eq!(touched.services, services(["details", "reviews", "reviews-v1"]));
    assert!(mesh.apply(Change::Upsert(object(moved))).is_empty());
}

#[test]
fn how_a_workload_is_started_matters_to_no_client() {
    let mut mesh = mesh(BOOKINFO);
    let mut details = mesh.workload(&workload("details-1")).unwrap().clone();
    details.run = vec!["true".to_owned()];
    let touched = mesh.apply(Change::Upsert(Object::Workload(details)));
    let expected = Touched { workloads: workloads(["details-1"]), ..Touched::default() };
    assert_eq!(touched, expected);
}

#[test]
fn a_service_touches_its_users_and_its_owners() {
    let mut mesh = mesh(BOOKINFO);
    let touched = mesh.apply(Change::Remove(ObjectKey::Service(service("details"))));
    let expected = Touched {
        services: services(["details"]),
        workloads: workloads(["details-1"]),
        ..Touched::default()
    };
    assert_eq!(touched, expected);
}

#[test]
fn a_route_touches_its_parents_before_and_after() {
    let mut mesh = mesh(BOOKINFO);
    let moved = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: reviews, namespace: bookinfo}
spec:
  parentRefs: [{group: "", kind: Service, name: details}]
  rules: [{backendRefs: [{name: reviews-v1, port: 9080}]}]
"#;
    let touched = mesh.apply(Change::Upsert(object(moved)));
    let expected = Touched { services: services(["reviews", "details"]), ..Touched::default() };
    assert_eq!(touched, expected);
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
    let mut mesh = mesh(&[BOOKINFO, split].concat());
    let group = objects(STRICT).into_iter().find(|it| matches!(it, Object::HttpRouteGroup(_)));
    let root = Touched { services: services(["details"]), ..Touched::default() };
    for object in [group.unwrap(), object(grant), object(split)] {
        let key = object.key();
        let touched = mesh.apply(Change::Upsert(object));
        // The split itself is unchanged.
        let expected =
            if matches!(key, ObjectKey::TrafficSplit(_)) { &Touched::default() } else { &root };
        assert_eq!(touched, *expected, "{key}");
    }
    let key = objects(split).pop().unwrap().key();
    assert_eq!(mesh.apply(Change::Remove(key)), root);
}

#[test]
fn policies_touch_nobody_in_permissive_mode() {
    let mut mesh = mesh(BOOKINFO);
    for object in objects(&strict("")) {
        if !matches!(object, Object::MeshConfig(_)) {
            let key = object.key();
            assert!(mesh.apply(Change::Upsert(object)).is_empty(), "{key}");
        }
    }
    let target = mesh.targets().next().unwrap().name.clone();
    assert!(mesh.apply(Change::Remove(ObjectKey::TrafficTarget(target))).is_empty());
}

#[test]
fn a_policy_touches_its_destination_and_the_views_of_its_sources() {
    let mut mesh = mesh(&strict(""));
    let target = mesh.targets().next().unwrap().clone();
    let mut more = target.clone();
    more.sources = vec![ServiceAccount::new("bookinfo", "stranger").unwrap()];
    let touched = mesh.apply(Change::Upsert(Object::TrafficTarget(more)));
    let expected = Touched {
        workloads: workloads(["reviews-v1-1"]),
        accounts: accounts(["productpage", "stranger"]),
        ..Touched::default()
    };
    assert_eq!(touched, expected);
}

#[test]
fn a_group_of_matches_touches_the_destinations_of_its_policies_only() {
    let mut mesh = mesh(&strict(""));
    let name = RouteGroupName::new("bookinfo", "reviews").unwrap();
    let touched = mesh.apply(Change::Remove(ObjectKey::HttpRouteGroup(name)));
    let expected = Touched { workloads: workloads(["reviews-v1-1"]), ..Touched::default() };
    assert_eq!(touched, expected);
}

#[test]
fn a_strict_service_touches_who_routes_to_it() {
    let mut mesh = mesh(&strict(""));
    let touched = mesh.apply(Change::Remove(ObjectKey::Workload(workload("reviews-v2-1"))));
    assert_eq!(touched.services, services(["reviews", "reviews-v2"]));
    let touched = mesh.apply(Change::Remove(ObjectKey::Service(service("reviews-v1"))));
    assert_eq!(touched.services, services(["reviews", "reviews-v1"]));
}

#[test]
fn the_mode_touches_everybody_and_going_back_restores_everything() {
    let mut mesh = mesh(&strict(""));
    let before = mesh.clone();
    let strict = Object::MeshConfig(mesh.config().clone());
    assert!(mesh.apply(Change::Remove(ObjectKey::MeshConfig)).everybody);
    assert!(mesh.apply(Change::Upsert(strict)).everybody);
    assert_eq!(mesh, before);
}

#[test]
fn a_strict_workload_in_a_permissive_mesh_touches_everybody_as_it_comes_and_goes() {
    let mut mesh = mesh(BOOKINFO);
    let before = mesh.clone();
    let mut details = mesh.workload(&workload("details-1")).unwrap().clone();
    let permissive = details.clone();
    details.admission.mode = Some(TrafficMode::Strict);
    assert!(mesh.apply(Change::Upsert(Object::Workload(details.clone()))).everybody);
    assert!(mesh.has_strict());
    details.admission.mode = Some(TrafficMode::Audit);
    assert!(mesh.apply(Change::Upsert(Object::Workload(details.clone()))).everybody);
    assert!(!mesh.has_strict() && mesh.has_policed());
    let touched = mesh.apply(Change::Upsert(Object::Workload(permissive)));
    assert!(!touched.everybody && touched.workloads.contains(&details.name), "{touched:?}");
    assert!(!mesh.has_policed());
    assert_eq!(mesh, before);
}

#[test]
fn an_access_policy_touches_what_it_is_about_and_who_may_see_it() {
    let policy = "apiVersion: leno.dev/v1alpha1\nkind: AccessPolicy\n\
                  metadata: {name: guard, namespace: bookinfo}\n\
                  spec: {serviceAccounts: [details], allow: [{from: [{serviceAccount: \"s*\"}]}]}\n";
    let mut mesh = mesh(BOOKINFO);
    let touched = mesh.apply(Change::Upsert(object(policy)));
    let expected = Touched { workloads: workloads(["details-1"]), ..Touched::default() };
    assert_eq!(touched, expected);
    assert!(mesh.apply(Change::Upsert(object(policy))).is_empty());
    let mut mesh = crate::fixture::mesh(&strict(""));
    let before = mesh.clone();
    let touched = mesh.apply(Change::Upsert(object(policy)));
    assert_eq!(touched.workloads, workloads(["details-1"]));
    assert_eq!(touched.services, services(["details"]));
    let name = "bookinfo/guard".parse().unwrap();
    assert_eq!(mesh.apply(Change::Remove(ObjectKey::AccessPolicy(name))), touched);
    assert_eq!(mesh, before);
}

#[test]
fn a_selector_chooses_by_all_labels_within_its_namespace_and_an_empty_one_nothing() {
    let mut mesh = mesh(BOOKINFO);
    let behind = |mesh: &Mesh, name: &str| {
        let name = service(name);
        mesh.behind(&name).map(|w| w.name.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(behind(&mesh, "reviews-v2"), ["reviews-v2-1"]);
    let mut all = mesh.service(&service("reviews")).unwrap().clone();
    all.selector.clear();
    mesh.apply(Change::Upsert(Object::Service(all.clone())));
    assert_eq!(behind(&mesh, "reviews"), [""; 0]);
    all.selector.insert("app".to_owned(), "reviews".to_owned());
    all.name.namespace = Name::new("elsewhere").unwrap();
    let name = all.name.clone();
    mesh.apply(Change::Upsert(Object::Service(all)));
    assert_eq!(mesh.behind(&name).count(), 0);
}

#[test]
fn a_workload_that_changes_its_account_has_no_sidecar_until_one_comes_as_that() {
    let mut mesh = mesh(BOOKINFO);
    let mut details = mesh.workload(&workload("details-1")).unwrap().clone();
    details.run = vec!["true".to_owned()];
    mesh.apply(Change::Upsert(Object::Workload(details.clone())));
    assert!(mesh.listeners(&details.name).is_some(), "it is who it was");
    details.account.name = Name::new("other").unwrap();
    let touched = mesh.apply(Change::Upsert(Object::Workload(details.clone())));
    assert_eq!(mesh.listeners(&details.name), None);
    assert!(touched.services.contains(&service("details")), "{touched:?}");
}

/// The port or account changes, and the sidecar reconnects shortly after.
#[test]
fn requests_wait_for_the_sidecar_of_a_workload_that_changed() {
    let awaited = |mesh: &Mesh| {
        let found = mesh.service(&service("reviews-v1")).unwrap();
        let view = crate::compile::view(mesh, &crate::compile::Viewer::Anybody, found);
        let port = view.ports.values().next().unwrap();
        (port.endpoints.len(), view.awaited)
    };
    let name = workload("reviews-v1-1");
    let mut unchanged = mesh(BOOKINFO);
    assert_eq!(awaited(&unchanged), (1, false));
    let before = unchanged.workload(&name).unwrap().clone();
    let change = |change: &dyn Fn(&mut Workload)| {
        let mut mesh = mesh(BOOKINFO);
        let mut reviews = before.clone();
        change(&mut reviews);
        let touched = mesh.apply(Change::Upsert(Object::Workload(reviews)));
        (mesh, touched)
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
        let (mut mesh, touched) = change(changes);
        assert!(touched.services.contains(&service("reviews-v1")));
        assert_eq!(awaited(&mesh), (0, true));
        // A sidecar that has not applied the change yet.
        mesh.listen(&name, listeners(1));
        assert_eq!(awaited(&mesh), (0, true));
        let touched = mesh.listen(&name, listeners(port));
        assert!(touched.services.contains(&service("reviews-v1")));
        assert_eq!(awaited(&mesh), (1, false));
        // The former sidecar had reconnected while it was shutting down.
        mesh.listen(&name, Some(Listeners::new()));
        assert_eq!(awaited(&mesh), (0, true));
        mesh.listen(&name, listeners(port));
        assert!(mesh.give_up(&name).is_empty(), "its sidecar is back");
        mesh.listen(&name, None);
        assert_eq!(awaited(&mesh), (0, false));

        // It never reconnects.
        let (mut mesh, _) = change(changes);
        assert!(mesh.give_up(&name).services.contains(&service("reviews-v1")));
        assert_eq!(awaited(&mesh), (0, false));

        // The change is reverted at once.
        let (mut mesh, _) = change(changes);
        mesh.apply(Change::Upsert(Object::Workload(before.clone())));
        let endpoints = awaited(&mesh).0;
        assert_eq!(awaited(&mesh), (endpoints, endpoints == 0));
        mesh.listen(&name, None);
        assert_eq!(awaited(&mesh), (0, true));

        // The workload is removed.
        let (mut mesh, _) = change(changes);
        mesh.apply(Change::Remove(ObjectKey::Workload(name.clone())));
        assert!(!mesh.has_changed(&name));
    }
    let (mesh, _) = change(&|reviews| drop(reviews.labels.insert("a".into(), "b".into())));
    assert_eq!(awaited(&mesh), (1, false));
    // Without a sidecar there is none to wait for.
    unchanged.listen(&name, None);
    let mut reviews = before.clone();
    reviews.ports[0].port = 9999;
    unchanged.apply(Change::Upsert(Object::Workload(reviews)));
    assert_eq!(awaited(&unchanged), (0, false));
}
