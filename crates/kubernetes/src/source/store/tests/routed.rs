//! Pods without a sidecar behind services that routes of the mesh name.

use super::*;

const GATEWAY_API: &str = "gateway.networking.k8s.io";

fn selecting(name: &str) -> WatchEvent {
    let service: Served = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"clusterIP": "10.0.0.2", "selector": {"app": name}, "ports": [{"port": 80}]},
    }))
    .unwrap();
    WatchEvent::Seen(Box::new(Seen::service(service)))
}

fn unmeshed(app: &str) -> WatchEvent {
    pod(&format!("{app}-1"), json!({"labels": {"app": app}}))
}

/// Takes the service `web` with a sidecar, and `un` without one.
fn take_services(store: &mut ObjectStore) {
    for event in [selecting("web"), selecting("un")] {
        store.take(SERVICES, event);
    }
    store.take(PODS, pod("web-1", json!({})));
    store.take(PODS, unmeshed("un"));
}

fn rules(backends: &Value) -> Value {
    json!({"parentRefs": [{"group": "", "kind": "Service", "name": "web"}],
           "rules": [{"backendRefs": backends}]})
}

/// The objects at `web` that name `un`, with the index of their kind.
fn routes() -> Vec<(usize, Value)> {
    let both = json!([{"name": "web", "port": 80}, {"name": "un", "port": 80}]);
    let mut tls = rules(&both);
    tls["hostnames"] = json!(["a.example"]);
    let mut mirror = rules(&json!([{"name": "web", "port": 80}]));
    let copy = json!({"backendRef": {"name": "un", "port": 80}});
    mirror["rules"][0]["filters"] = json!([{"type": "RequestMirror", "requestMirror": copy}]);
    let split = json!({"service": "web", "backends": [
        {"service": "web", "weight": 1}, {"service": "un", "weight": 1},
    ]});
    let of = |kind: &str, spec: Value| (index(kind, GATEWAY_API), spec);
    vec![
        of("HTTPRoute", rules(&both)),
        of("HTTPRoute", mirror),
        of("GRPCRoute", rules(&both)),
        of("TCPRoute", rules(&both)),
        of("TLSRoute", tls),
        (index("TrafficSplit", "split.smi-spec.io"), split),
    ]
}

fn made_today(kind: usize, spec: &Value) -> WatchEvent {
    custom(kind, "r", "2025-01-01T00:00:00Z", spec.clone())
}

fn has(reported: &[String], line: &str) -> bool {
    reported.iter().any(|it| it == line)
}

/// Issue 27: sidecars had no endpoint for such a backend, and answered 503 to its share of requests.
#[test]
fn a_backend_without_sidecars_has_endpoints_while_a_route_names_it() {
    for gateways in [true, false] {
        for (kind, spec) in routes() {
            let mut store = settled_with(gateways);
            take_services(&mut store);
            let reported = shown(store.flush());
            assert!(has(&reported, "+ Workload shop/web-1"), "{reported:?}");
            assert!(!has(&reported, "+ Workload shop/un-1"), "{reported:?}");
            store.take(kind, made_today(kind, &spec));
            let reported = shown(store.flush());
            assert!(has(&reported, "+ Workload shop/un-1"), "{spec} {reported:?}");
            store.take(PODS, gone("shop", "un-1"));
            assert_eq!(shown(store.flush()), ["- Workload shop/un-1"]);
            store.take(PODS, unmeshed("un"));
            assert_eq!(shown(store.flush()), ["+ Workload shop/un-1"]);
            store.take(kind, gone("shop", "r"));
            let reported = shown(store.flush());
            assert!(has(&reported, "- Workload shop/un-1"), "{spec} {reported:?}");
        }
    }
}

#[test]
fn a_control_plane_that_starts_publishes_such_endpoints() {
    for (kind, spec) in routes() {
        let mut store = ObjectStore::new(kinds());
        for index in 0..kinds().len() {
            store.take(index, WatchEvent::Begin);
        }
        store.take(kind, made_today(kind, &spec));
        take_services(&mut store);
        for index in 0..kinds().len() {
            store.take(index, WatchEvent::Complete);
        }
        let reported = shown(store.flush());
        assert!(has(&reported, "+ Workload shop/un-1"), "{spec} {reported:?}");
    }
}

#[test]
fn a_root_without_sidecars_keeps_its_endpoints_while_its_route_leads_into_the_mesh() {
    let mut store = settled();
    take_services(&mut store);
    let kind = index("HTTPRoute", GATEWAY_API);
    let mut spec = rules(&json!([{"name": "web", "port": 80}, {"name": "un", "port": 80}]));
    spec["parentRefs"][0]["name"] = json!("un");
    store.take(kind, made_today(kind, &spec));
    let reported = shown(store.flush());
    assert!(has(&reported, "+ Workload shop/un-1"), "{reported:?}");
    // Connections to a service bypass the sidecar if its route names no other service.
    spec["rules"] = json!([{"backendRefs": [{"name": "un", "port": 80}]}]);
    store.take(kind, made_today(kind, &spec));
    let reported = shown(store.flush());
    assert!(has(&reported, "- Workload shop/un-1"), "{reported:?}");
}

#[test]
fn the_last_of_several_routes_takes_the_endpoints_away() {
    let mut store = settled();
    take_services(&mut store);
    let kind = index("HTTPRoute", GATEWAY_API);
    let spec = rules(&json!([{"name": "un", "port": 80}]));
    for name in ["a", "b"] {
        store.take(kind, custom(kind, name, "2025-01-01T00:00:00Z", spec.clone()));
    }
    store.flush();
    store.take(kind, gone("shop", "a"));
    assert!(!has(&shown(store.flush()), "- Workload shop/un-1"));
    store.take(kind, gone("shop", "b"));
    assert!(has(&shown(store.flush()), "- Workload shop/un-1"));
}

/// The sidecars of clients leave out such an endpoint while a policy applies that only its own sidecar enforces.
#[test]
fn a_policy_of_such_a_backend_is_not_enforced() {
    let mut store = settled();
    take_services(&mut store);
    let limits = index("RateLimit", "leno.dev");
    let limit = json!({
        "targetRefs": [{"group": "", "kind": "Service", "name": "un"}],
        "rules": [{"requests": 5, "in": "1s"}],
    });
    store.take(limits, custom(limits, "l", "2025-01-01T00:00:00Z", limit));
    store.flush();
    let enforced = |store: &mut ObjectStore| {
        let statements = store.statements().expect("something has changed");
        let found = statements.iter().find(|it| it.target.name == "l").expect("a status");
        let Said::Conditions(conditions) = &found.said else { panic!("{:?}", found.said) };
        conditions.iter().find(|it| it.word == "Enforced").expect("a condition").status
    };
    assert_eq!(enforced(&mut store), "True");
    let kind = index("HTTPRoute", GATEWAY_API);
    let spec = rules(&json!([{"name": "un", "port": 80}]));
    store.take(kind, made_today(kind, &spec));
    assert_eq!(enforced(&mut store), "False");
    store.take(kind, gone("shop", "r"));
    assert_eq!(enforced(&mut store), "True");
}

/// Returns the reason and message of the condition `Programmed` of a route.
fn programmed(store: &mut ObjectStore, name: &str) -> (&'static str, String) {
    let statements = store.statements().expect("something has changed");
    let found = statements.iter().find(|it| it.target.name == name).expect("a status");
    let Said::Parents(parents) = &found.said else { panic!("{:?}", found.said) };
    let conditions = &parents[0].conditions;
    assert_eq!((conditions[0].word, conditions[0].status), ("Accepted", "True"));
    let found = conditions.iter().find(|it| it.word == "Programmed").expect("a condition");
    (found.reason, found.message.clone())
}

const PROGRAMMED: &str = "Programmed";

/// Issue 27: such a route was reported as in force.
#[test]
fn a_route_between_services_without_sidecars_says_that_it_has_no_effect() {
    let mut store = settled();
    take_services(&mut store);
    let kind = index("HTTPRoute", GATEWAY_API);
    let mut spec = rules(&json!([{"name": "un", "port": 80}]));
    spec["parentRefs"][0]["name"] = json!("un");
    store.take(kind, made_today(kind, &spec));
    store.flush();
    let (reason, message) = programmed(&mut store, "r");
    assert_eq!(reason, "NoSidecars");
    assert!(message.starts_with("no pod of shop/un or of a backend has a sidecar"), "{message}");
    // The first pod with a sidecar, ready or not, brings the Service into the mesh.
    let meshed = json!({"labels": {"app": "un", "leno.dev/meshed": "sidecar"}});
    store.take(PODS, pod("un-2", meshed));
    assert_eq!(programmed(&mut store, "r").0, PROGRAMMED);
    store.take(PODS, gone("shop", "un-2"));
    assert_eq!(programmed(&mut store, "r").0, "NoSidecars");
    // So does a backend with a sidecar.
    spec["rules"] = json!([{"backendRefs": [{"name": "web", "port": 80}]}]);
    store.take(kind, made_today(kind, &spec));
    assert_eq!(programmed(&mut store, "r").0, PROGRAMMED);
    store.take(PODS, gone("shop", "web-1"));
    store.take(PODS, pod("web-2", json!({"labels": {"app": "web"}})));
    assert_eq!(programmed(&mut store, "r").0, "NoSidecars");
    // Future pods are unknown.
    for name in ["un-1", "web-2"] {
        store.take(PODS, gone("shop", name));
    }
    assert_eq!(programmed(&mut store, "r").0, PROGRAMMED);
}

/// Issue 27: such a route was reported as in force.
#[test]
fn a_route_whose_matches_an_older_one_has_says_that_it_never_decides() {
    let mut store = settled();
    take_services(&mut store);
    let kind = index("HTTPRoute", GATEWAY_API);
    let all = rules(&json!([{"name": "web", "port": 80}]));
    store.take(kind, custom(kind, "z", "2025-01-01T00:00:00Z", all.clone()));
    store.take(kind, custom(kind, "a", "2025-02-01T00:00:00Z", all.clone()));
    store.flush();
    let (reason, message) = programmed(&mut store, "a");
    let expected =
        "none of its rules has an effect: HTTPRoute shop/z has the same matches, and is older";
    assert_eq!((reason, message.as_str()), ("Overridden", expected));
    // One rule of its own is enough.
    let mut own = all;
    own["rules"].as_array_mut().unwrap().push(json!({
        "matches": [{"path": {"type": "Exact", "value": "/own"}}],
        "backendRefs": [{"name": "web", "port": 80}],
    }));
    store.take(kind, custom(kind, "a", "2025-02-01T00:00:00Z", own));
    assert_eq!(programmed(&mut store, "a").0, PROGRAMMED);
    assert!(store.statements().is_none(), "nothing is new");
}
