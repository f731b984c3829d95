//! Tests that policies for requests need a sidecar that parses the requests.

use super::*;

/// A pod with a sidecar and the named port `main`, 8080.
fn pod_with_named_port() -> WatchEvent {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "a", "namespace": "shop", "labels": {"app": "web", "leno.dev/meshed": "sidecar"}},
        "spec": {"containers": [{"name": "web", "ports": [{"name": "main", "containerPort": 8080}]}]},
        "status": {"podIP": "10.1.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .unwrap();
    WatchEvent::Applied(Box::new(ConvertedObject::from_pod(pod)))
}

/// A Service of that pod with port 80 and the given `targetPort`.
fn service_to_port(name: &str, target: Value, protocol: &str) -> WatchEvent {
    let service: KubeService = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"clusterIP": "10.0.0.1", "selector": {"app": "web"},
                 "ports": [{"port": 80, "targetPort": target, "appProtocol": protocol}]},
    }))
    .unwrap();
    WatchEvent::Applied(Box::new(ConvertedObject::from_service(service)))
}

fn rate_limit_event(kind: usize) -> WatchEvent {
    let rules = json!([{"requests": 10, "per": "1s"}]);
    let spec = json!({"targetRefs": [{"kind": "Service", "name": "web"}], "rules": rules});
    custom_event(kind, "a", "2025-01-01T00:00:00Z", spec)
}

/// A port of the pod has a name, and services target it by name or number.
#[test]
fn requests_are_visible_through_another_service_with_the_same_target_port() {
    let limit = kind_index("RateLimit", "leno.dev");
    let mut store = listed_store();
    store.apply_event(PODS, pod_with_named_port());
    store.apply_event(SERVICES, service_to_port("web", json!("main"), "tcp"));
    store.apply_event(limit, rate_limit_event(limit));
    let programmed = |store: &mut ObjectStore| {
        let conditions = first_conditions(store);
        *conditions.iter().find(|condition| condition.0 == "Programmed").unwrap()
    };
    assert_eq!(programmed(&mut store), ("Programmed", "False", "NoRequests"));
    store.apply_event(SERVICES, service_to_port("other", json!(8081), "http"));
    assert_eq!(programmed(&mut store), ("Programmed", "False", "NoRequests"));
    for target in [json!("main"), json!(8080)] {
        store.apply_event(SERVICES, service_to_port("other", target, "http"));
        assert_eq!(programmed(&mut store), PROGRAMMED);
    }
}

/// A limit applies in the sidecars of the pods, so it also counts requests through another Service with the
/// same target port.
#[test]
fn a_limit_applies_to_requests_through_another_service_with_the_same_target_port() {
    let limit = kind_index("RateLimit", "leno.dev");
    let routes = kind_index("HTTPRoute", "gateway.networking.k8s.io");
    let mut store = listed_store();
    store.apply_event(PODS, pod_with_named_port());
    store.apply_event(SERVICES, service_event("web", 8080));
    store.apply_event(SERVICES, service_to_port("next", json!("main"), "http"));
    store.apply_event(limit, rate_limit_event(limit));
    let parent = json!({"group": "", "kind": "Service", "name": "web"});
    let backend = json!({"name": "next", "port": 80});
    let spec = json!({"parentRefs": [parent], "rules": [{"backendRefs": [backend]}]});
    store.apply_event(routes, custom_event(routes, "away", "2025-01-01T00:00:00Z", spec));
    let statuses = store.changed_statuses().unwrap();
    let conditions = statuses.iter().find_map(|status| match &status.content {
        StatusContent::Conditions(conditions) if status.target.name == "a" => {
            Some(conditions.clone())
        }
        _ => None,
    });
    let programmed =
        conditions.unwrap().into_iter().find(|condition| condition.name == "Programmed").unwrap();
    assert_eq!(
        (programmed.status, programmed.reason),
        ("True", "Programmed"),
        "{}",
        programmed.message
    );
}
