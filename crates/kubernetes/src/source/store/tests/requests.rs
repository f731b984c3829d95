//! Policies that decide by request need a sidecar that sees requests.

use super::*;

/// A pod with a sidecar and the named port `main`, 8080.
fn pod_with_named_port() -> WatchEvent {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "a", "namespace": "shop", "labels": {"app": "web", "leno.dev/meshed": "sidecar"}},
        "spec": {"containers": [{"name": "web", "ports": [{"name": "main", "containerPort": 8080}]}]},
        "status": {"podIP": "10.1.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .unwrap();
    WatchEvent::Seen(Box::new(ConvertedObject::from_pod(pod)))
}

/// A Service of that pod with port 80 and the given `targetPort`.
fn leading_to(name: &str, target: Value, protocol: &str) -> WatchEvent {
    let service: Served = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"clusterIP": "10.0.0.1", "selector": {"app": "web"},
                 "ports": [{"port": 80, "targetPort": target, "appProtocol": protocol}]},
    }))
    .unwrap();
    WatchEvent::Seen(Box::new(ConvertedObject::from_service(service)))
}

fn limit_of_web(kind: usize) -> WatchEvent {
    let rules = json!([{"requests": 10, "per": "1s"}]);
    let spec = json!({"targetRefs": [{"kind": "Service", "name": "web"}], "rules": rules});
    custom_event(kind, "a", "2025-01-01T00:00:00Z", spec)
}

/// A port of the pod has a name, and services target it by name or number.
#[test]
fn a_service_that_leads_to_the_same_port_by_number_shows_its_requests() {
    let limit = index("RateLimit", "leno.dev");
    let mut store = listed_store();
    store.apply_event(PODS, pod_with_named_port());
    store.apply_event(SERVICES, leading_to("web", json!("main"), "tcp"));
    store.apply_event(limit, limit_of_web(limit));
    let programmed = |store: &mut ObjectStore| {
        let all = first_conditions(store);
        *all.iter().find(|it| it.0 == "Programmed").unwrap()
    };
    assert_eq!(programmed(&mut store), ("Programmed", "False", "NoRequests"));
    store.apply_event(SERVICES, leading_to("other", json!(8081), "http"));
    assert_eq!(programmed(&mut store), ("Programmed", "False", "NoRequests"));
    for target in [json!("main"), json!(8080)] {
        store.apply_event(SERVICES, leading_to("other", target, "http"));
        assert_eq!(programmed(&mut store), PROGRAMMED);
    }
}

/// A limit applies in the sidecars of the pods, so it also counts requests through another Service with the
/// same target port.
#[test]
fn a_limit_of_a_service_without_traffic_applies_where_another_service_leads_to_the_same_port_by_name()
 {
    let limit = index("RateLimit", "leno.dev");
    let routes = index("HTTPRoute", "gateway.networking.k8s.io");
    let mut store = listed_store();
    store.apply_event(PODS, pod_with_named_port());
    store.apply_event(SERVICES, service_event("web", 8080));
    store.apply_event(SERVICES, leading_to("next", json!("main"), "http"));
    store.apply_event(limit, limit_of_web(limit));
    let parent = json!({"group": "", "kind": "Service", "name": "web"});
    let backend = json!({"name": "next", "port": 80});
    let spec = json!({"parentRefs": [parent], "rules": [{"backendRefs": [backend]}]});
    store.apply_event(routes, custom_event(routes, "away", "2025-01-01T00:00:00Z", spec));
    let statements = store.changed_statements().unwrap();
    let said = statements.iter().find_map(|it| match &it.content {
        StatusContent::Conditions(all) if it.target.name == "a" => Some(all.clone()),
        _ => None,
    });
    let programmed = said.unwrap().into_iter().find(|it| it.word == "Programmed").unwrap();
    assert_eq!(
        (programmed.status, programmed.reason),
        ("True", "Programmed"),
        "{}",
        programmed.message
    );
}
