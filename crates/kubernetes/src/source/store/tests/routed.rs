//! Tests pods without a sidecar behind services that routes of the mesh name.

use super::*;

const GATEWAY_API: &str = "gateway.networking.k8s.io";

fn selecting_service(name: &str) -> WatchEvent {
    let service: KubeService = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"clusterIP": "10.0.0.2", "selector": {"app": name}, "ports": [{"port": 80}]},
    }))
    .unwrap();
    WatchEvent::Applied(Box::new(ConvertedObject::from_service(service)))
}

fn unmeshed_pod(app: &str) -> WatchEvent {
    pod_event(&format!("{app}-1"), json!({"labels": {"app": app}}))
}

/// Adds the service `web` with a sidecar, and `un` without one.
fn add_services(store: &mut ObjectStore) {
    for event in [selecting_service("web"), selecting_service("un")] {
        store.apply_event(SERVICES, event);
    }
    store.apply_event(PODS, pod_event("web-1", json!({})));
    store.apply_event(PODS, unmeshed_pod("un"));
}

fn route_rules(backends: &Value) -> Value {
    json!({"parentRefs": [{"group": "", "kind": "Service", "name": "web"}],
           "rules": [{"backendRefs": backends}]})
}

/// The objects at `web` that name `un`, with the index of their kind.
fn routes_to_unmeshed() -> Vec<(usize, Value)> {
    let backends = json!([{"name": "web", "port": 80}, {"name": "un", "port": 80}]);
    let mut tls = route_rules(&backends);
    tls["hostnames"] = json!(["a.example"]);
    let mut mirror = route_rules(&json!([{"name": "web", "port": 80}]));
    let copy = json!({"backendRef": {"name": "un", "port": 80}});
    mirror["rules"][0]["filters"] = json!([{"type": "RequestMirror", "requestMirror": copy}]);
    let split = json!({"service": "web", "backends": [
        {"service": "web", "weight": 1}, {"service": "un", "weight": 1},
    ]});
    let route = |kind: &str, spec: Value| (kind_index(kind, GATEWAY_API), spec);
    vec![
        route("HTTPRoute", route_rules(&backends)),
        route("HTTPRoute", mirror),
        route("GRPCRoute", route_rules(&backends)),
        route("TCPRoute", route_rules(&backends)),
        route("TLSRoute", tls),
        (kind_index("TrafficSplit", "split.smi-spec.io"), split),
    ]
}

fn custom_object(kind: usize, spec: &Value) -> WatchEvent {
    custom_event(kind, "r", "2025-01-01T00:00:00Z", spec.clone())
}

fn contains_line(changes: &[String], line: &str) -> bool {
    changes.iter().any(|change| change == line)
}

/// Issue 27: sidecars had no endpoint for such a backend, and answered 503 to its share of requests.
#[test]
fn a_backend_without_sidecars_has_endpoints_while_a_route_references_it() {
    for gateways in [true, false] {
        for (kind, spec) in routes_to_unmeshed() {
            let mut store = store_with_gateways_option(gateways);
            add_services(&mut store);
            let changes = describe_update(store.flush());
            assert!(contains_line(&changes, "+ Workload shop/web-1"), "{changes:?}");
            assert!(!contains_line(&changes, "+ Workload shop/un-1"), "{changes:?}");
            store.apply_event(kind, custom_object(kind, &spec));
            let changes = describe_update(store.flush());
            assert!(contains_line(&changes, "+ Workload shop/un-1"), "{spec} {changes:?}");
            store.apply_event(PODS, removal_event("shop", "un-1"));
            assert_eq!(describe_update(store.flush()), ["- Workload shop/un-1"]);
            store.apply_event(PODS, unmeshed_pod("un"));
            assert_eq!(describe_update(store.flush()), ["+ Workload shop/un-1"]);
            store.apply_event(kind, removal_event("shop", "r"));
            let changes = describe_update(store.flush());
            assert!(contains_line(&changes, "- Workload shop/un-1"), "{spec} {changes:?}");
        }
    }
}

#[test]
fn a_starting_control_plane_publishes_unmeshed_backends() {
    for (kind, spec) in routes_to_unmeshed() {
        let mut store = ObjectStore::new(watched_kinds());
        for index in 0..watched_kinds().len() {
            store.apply_event(index, WatchEvent::ListStarted);
        }
        store.apply_event(kind, custom_object(kind, &spec));
        add_services(&mut store);
        for index in 0..watched_kinds().len() {
            store.apply_event(index, WatchEvent::ListComplete);
        }
        let changes = describe_update(store.flush());
        assert!(contains_line(&changes, "+ Workload shop/un-1"), "{spec} {changes:?}");
    }
}

#[test]
fn a_service_without_sidecars_keeps_its_endpoints_while_its_route_has_a_meshed_backend() {
    let mut store = listed_store();
    add_services(&mut store);
    let kind = kind_index("HTTPRoute", GATEWAY_API);
    let mut spec = route_rules(&json!([{"name": "web", "port": 80}, {"name": "un", "port": 80}]));
    spec["parentRefs"][0]["name"] = json!("un");
    store.apply_event(kind, custom_object(kind, &spec));
    let changes = describe_update(store.flush());
    assert!(contains_line(&changes, "+ Workload shop/un-1"), "{changes:?}");
    // Connections to a service bypass the sidecar if its route names no other service.
    spec["rules"] = json!([{"backendRefs": [{"name": "un", "port": 80}]}]);
    store.apply_event(kind, custom_object(kind, &spec));
    let changes = describe_update(store.flush());
    assert!(contains_line(&changes, "- Workload shop/un-1"), "{changes:?}");
}

#[test]
fn endpoints_are_removed_with_the_last_of_several_routes() {
    let mut store = listed_store();
    add_services(&mut store);
    let kind = kind_index("HTTPRoute", GATEWAY_API);
    let spec = route_rules(&json!([{"name": "un", "port": 80}]));
    for name in ["a", "b"] {
        store.apply_event(kind, custom_event(kind, name, "2025-01-01T00:00:00Z", spec.clone()));
    }
    store.flush();
    store.apply_event(kind, removal_event("shop", "a"));
    assert!(!contains_line(&describe_update(store.flush()), "- Workload shop/un-1"));
    store.apply_event(kind, removal_event("shop", "b"));
    assert!(contains_line(&describe_update(store.flush()), "- Workload shop/un-1"));
}

/// Clients do not use an endpoint without a sidecar while a policy applies that only the endpoint's sidecar can
/// enforce.
#[test]
fn a_policy_of_an_unmeshed_backend_is_not_enforced() {
    let mut store = listed_store();
    add_services(&mut store);
    let limits = kind_index("RateLimit", "leno.dev");
    let limit = json!({
        "targetRefs": [{"group": "", "kind": "Service", "name": "un"}],
        "rules": [{"requests": 5, "per": "1s"}],
    });
    store.apply_event(limits, custom_event(limits, "l", "2025-01-01T00:00:00Z", limit));
    store.flush();
    let enforced = |store: &mut ObjectStore| {
        let statuses = store.changed_statuses().expect("statuses have changed");
        let policy_status =
            statuses.iter().find(|status| status.target.name == "l").expect("a status");
        let StatusContent::Conditions(conditions) = &policy_status.content else {
            panic!("{:?}", policy_status.content)
        };
        conditions
            .iter()
            .find(|condition| condition.name == "Enforced")
            .expect("a condition")
            .status
    };
    assert_eq!(enforced(&mut store), "True");
    let kind = kind_index("HTTPRoute", GATEWAY_API);
    let spec = route_rules(&json!([{"name": "un", "port": 80}]));
    store.apply_event(kind, custom_object(kind, &spec));
    assert_eq!(enforced(&mut store), "False");
    store.apply_event(kind, removal_event("shop", "r"));
    assert_eq!(enforced(&mut store), "True");
}

/// Returns the reason and message of the condition `Programmed` of a route.
fn programmed_condition(store: &mut ObjectStore, name: &str) -> (&'static str, String) {
    let statuses = store.changed_statuses().expect("statuses have changed");
    let status = statuses.iter().find(|status| status.target.name == name).expect("a status");
    let StatusContent::Parents(parents) = &status.content else { panic!("{:?}", status.content) };
    let conditions = &parents[0].conditions;
    assert_eq!((conditions[0].name, conditions[0].status), ("Accepted", "True"));
    let condition =
        conditions.iter().find(|condition| condition.name == "Programmed").expect("a condition");
    (condition.reason, condition.message.clone())
}

const PROGRAMMED: &str = "Programmed";

/// Issue 27: such a route was reported as in force.
#[test]
fn a_route_between_services_without_sidecars_reports_that_it_has_no_effect() {
    let mut store = listed_store();
    add_services(&mut store);
    let kind = kind_index("HTTPRoute", GATEWAY_API);
    let mut spec = route_rules(&json!([{"name": "un", "port": 80}]));
    spec["parentRefs"][0]["name"] = json!("un");
    store.apply_event(kind, custom_object(kind, &spec));
    store.flush();
    let (reason, message) = programmed_condition(&mut store, "r");
    assert_eq!(reason, "NoSidecars");
    assert!(message.starts_with("no pod of shop/un or of a backend has a sidecar"), "{message}");
    // The first pod with a sidecar, ready or not, brings the Service into the mesh.
    let meshed = json!({"labels": {"app": "un", "leno.dev/meshed": "sidecar"}});
    store.apply_event(PODS, pod_event("un-2", meshed));
    assert_eq!(programmed_condition(&mut store, "r").0, PROGRAMMED);
    store.apply_event(PODS, removal_event("shop", "un-2"));
    assert_eq!(programmed_condition(&mut store, "r").0, "NoSidecars");
    // With a backend that has a sidecar, the route has an effect.
    spec["rules"] = json!([{"backendRefs": [{"name": "web", "port": 80}]}]);
    store.apply_event(kind, custom_object(kind, &spec));
    assert_eq!(programmed_condition(&mut store, "r").0, PROGRAMMED);
    store.apply_event(PODS, removal_event("shop", "web-1"));
    store.apply_event(PODS, pod_event("web-2", json!({"labels": {"app": "web"}})));
    assert_eq!(programmed_condition(&mut store, "r").0, "NoSidecars");
    // A Service without pods has no such status, because its future pods may have sidecars.
    for name in ["un-1", "web-2"] {
        store.apply_event(PODS, removal_event("shop", name));
    }
    assert_eq!(programmed_condition(&mut store, "r").0, PROGRAMMED);
}

/// Issue 27: such a route was reported as in force.
#[test]
fn a_route_with_the_matches_of_an_older_one_reports_that_it_has_no_effect() {
    let mut store = listed_store();
    add_services(&mut store);
    let kind = kind_index("HTTPRoute", GATEWAY_API);
    let route = route_rules(&json!([{"name": "web", "port": 80}]));
    store.apply_event(kind, custom_event(kind, "z", "2025-01-01T00:00:00Z", route.clone()));
    store.apply_event(kind, custom_event(kind, "a", "2025-02-01T00:00:00Z", route.clone()));
    store.flush();
    let (reason, message) = programmed_condition(&mut store, "a");
    let expected =
        "none of its rules has an effect: HTTPRoute shop/z has the same matches, and is older";
    assert_eq!((reason, message.as_str()), ("Overridden", expected));
    // A route has an effect if at least one rule differs from those of the older route.
    let mut with_own_rule = route;
    with_own_rule["rules"].as_array_mut().unwrap().push(json!({
        "matches": [{"path": {"type": "Exact", "value": "/own"}}],
        "backendRefs": [{"name": "web", "port": 80}],
    }));
    store.apply_event(kind, custom_event(kind, "a", "2025-02-01T00:00:00Z", with_own_rule));
    assert_eq!(programmed_condition(&mut store, "a").0, PROGRAMMED);
    assert!(store.changed_statuses().is_none(), "unchanged statuses are not sent again");
}
