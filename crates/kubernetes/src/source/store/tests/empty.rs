//! Tests that Services of a cluster without a pod of the mesh cause no warning.

use super::*;

/// As cluster add-ons have them.
fn sticky_service(labels: Value) -> WatchEvent {
    let service: KubeService = serde_json::from_value(json!({
        "metadata": {"name": "metrics-server", "namespace": "shop", "uid": "u"},
        "spec": {"clusterIP": "10.0.0.1", "selector": labels, "sessionAffinity": "ClientIP",
                 "internalTrafficPolicy": "Local",
                 "ports": [{"port": 443, "appProtocol": "example.com/odd"}]},
    }))
    .unwrap();
    WatchEvent::Applied(Box::new(ConvertedObject::from_service(service)))
}

#[test]
fn a_service_has_warnings_once_it_selects_a_pod_with_a_sidecar() {
    let mut store = listed_store();
    store.apply_event(SERVICES, sticky_service(json!({"app": "web"})));
    let warnings = |store: &mut ObjectStore| {
        store.flush();
        let count = store.all_diagnostics().1.len();
        let statuses = store.changed_statuses().unwrap_or_default();
        let diagnosed = statuses.iter().filter(|status| status.diagnostic.is_some()).count();
        (count, diagnosed)
    };
    assert_eq!(warnings(&mut store), (0, 0));
    let unmeshed = pod_event("web-1", json!({"labels": {"app": "web"}}));
    store.apply_event(PODS, unmeshed);
    assert_eq!(warnings(&mut store), (0, 0));
    store.apply_event(PODS, pod_event("web-2", json!({})));
    assert_eq!(warnings(&mut store), (3, 1));
    // The order does not matter.
    let mut store = listed_store();
    store.apply_event(PODS, pod_event("web-2", json!({})));
    store.apply_event(SERVICES, sticky_service(json!({"app": "web"})));
    assert_eq!(warnings(&mut store), (3, 1));
}
