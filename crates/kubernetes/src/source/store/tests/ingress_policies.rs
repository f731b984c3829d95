//! Tests ingress policies without effect, and the reported reasons.

use super::*;

/// Returns the status of the policy that sorts first.
fn first_status(store: &mut ObjectStore) -> Result<(), String> {
    let statuses = store.changed_statuses().expect("statuses have changed");
    match statuses.first().map(|status| status.content.clone()) {
        Some(StatusContent::Current(current)) => current,
        other => panic!("{other:?}"),
    }
}

fn ingress_backend(name: &str) -> (usize, impl Fn(u16, &str) -> WatchEvent) {
    let kind = kind_index("IngressBackend", "policy.openservicemesh.io");
    let name = name.to_owned();
    let policy = move |port: u16, protocol: &str| {
        let spec = json!({
            "backends": [{"name": "web", "port": {"number": port, "protocol": protocol}}],
            "sources": [{"kind": "Service", "name": "edge", "namespace": "shop"}],
            "matches": [{"kind": "HTTPRouteGroup", "name": "g"}],
        });
        custom_event(kind, &name, "2025-01-01T00:00:00Z", spec)
    };
    (kind, policy)
}

fn selecting_service(name: &str, app: &str) -> WatchEvent {
    let service: KubeService = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"clusterIP": "10.0.0.2", "selector": {"app": app},
                 "ports": [{"port": 80, "targetPort": 8080}]},
    }))
    .unwrap();
    WatchEvent::Applied(Box::new(ConvertedObject::from_service(service)))
}

fn controller_pod(host_network: bool) -> WatchEvent {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "edge-1", "namespace": "shop",
                     "labels": {"app": "edge", "leno.dev/meshed": "sidecar"}},
        "spec": {"containers": [{"name": "edge"}], "hostNetwork": host_network},
        "status": {"podIP": "10.1.0.9", "podIPs": [{"ip": "10.1.0.9"}]},
    }))
    .unwrap();
    WatchEvent::Applied(Box::new(ConvertedObject::from_pod(pod)))
}

#[test]
fn the_status_of_an_ingress_backend_gives_the_reason_until_it_opens_a_port() {
    assert_opens_when_complete(store_with_gateways_option(true));
}

#[test]
fn without_gateways_an_ingress_backend_admits_the_pods_of_a_service() {
    assert_opens_when_complete(store_with_gateways_option(false));
}

fn assert_opens_when_complete(mut store: ObjectStore) {
    let (kind, policy) = ingress_backend("a");
    let group = kind_index("HTTPRouteGroup", "specs.smi-spec.io");
    let no_endpoints = "endpoints not found for service shop/edge";
    let port = "spec.backends: no pod of the Service shop/web has the port 81";
    store.apply_event(kind, policy(81, "http"));
    let no_service = "spec.backends: there is no Service shop/web that selects pods";
    assert_eq!(first_status(&mut store), Err(no_service.to_owned()));
    store.apply_event(SERVICES, service_event("web", 8080));
    let no_group = "spec.matches: there is no HTTPRouteGroup shop/g";
    assert_eq!(first_status(&mut store), Err(no_group.to_owned()));
    store.apply_event(PODS, pod_event("a", json!({})));
    assert_eq!(first_status(&mut store), Err(port.to_owned()));
    store.apply_event(kind, policy(8080, "http"));
    assert_eq!(first_status(&mut store), Err(no_group.to_owned()));
    let routes = json!({"matches": [{"name": "all"}]});
    store.apply_event(group, custom_event(group, "g", "2025-01-01T00:00:00Z", routes));
    assert_eq!(first_status(&mut store), Err(no_endpoints.to_owned()));
    store.apply_event(SERVICES, selecting_service("edge", "edge"));
    assert_eq!(first_status(&mut store), Err(no_endpoints.to_owned()));
    // A pod in the host network has no address of its own, so it is no source.
    store.apply_event(PODS, controller_pod(true));
    let on_node = format!(
        "{no_endpoints}: its pods have the addresses of their nodes (hostNetwork); write an IPRange with those addresses"
    );
    assert_eq!(first_status(&mut store), Err(on_node));
    store.apply_event(PODS, controller_pod(false));
    assert_eq!(first_status(&mut store), Ok(()));
    store.apply_event(PODS, controller_pod(false));
    assert!(store.changed_statuses().is_none(), "unchanged statuses are not sent again");
    store.apply_event(PODS, removal_event("shop", "edge-1"));
    assert_eq!(first_status(&mut store), Err(no_endpoints.to_owned()));
}

/// Issue 27: the source was not admitted, because only pods that a selector selects were sources.
#[test]
fn an_ingress_backend_admits_the_endpoints_of_a_service_without_a_selector() {
    for gateways in [true, false] {
        // The Service and its slice come after the policy, or before it.
        for is_policy_first in [true, false] {
            let mut store = store_with_gateways_option(gateways);
            let kind = kind_index("IngressBackend", "policy.openservicemesh.io");
            let spec = json!({
                "backends": [{"name": "web", "port": {"number": 8080, "protocol": "http"}}],
                "sources": [{"kind": "Service", "name": "hand", "namespace": "shop"}],
            });
            let policy = || custom_event(kind, "a", "2025-01-01T00:00:00Z", spec.clone());
            if is_policy_first {
                store.apply_event(kind, policy());
            }
            store.apply_event(SERVICES, service_event("web", 8080));
            store.apply_event(SERVICES, listed::selectorless_service());
            let slice = |endpoints: &[(&str, bool)]| listed::slice_event("hand-1", 8080, endpoints);
            store.apply_event(listed::slice_kind(), slice(&[("10.1.0.9", true)]));
            if !is_policy_first {
                store.flush();
                store.apply_event(kind, policy());
            }
            let changes = describe_update(store.flush());
            for line in ["+ Workload shop/hand-1.10-1-0-9", "+ Service shop/hand"] {
                assert!(changes.iter().any(|change| change == line), "{line} {changes:?}");
            }
            assert_eq!(first_status(&mut store), Ok(()));
            store.apply_event(listed::slice_kind(), slice(&[]));
            assert_eq!(describe_update(store.flush()), ["- Workload shop/hand-1.10-1-0-9"]);
            let no_endpoints = "endpoints not found for service shop/hand";
            assert_eq!(first_status(&mut store), Err(no_endpoints.to_owned()));
            store.apply_event(kind, removal_event("shop", "a"));
            let changes = describe_update(store.flush());
            assert!(changes.iter().any(|change| change == "- Service shop/hand"), "{changes:?}");
        }
    }
}

#[test]
fn two_policies_cannot_open_a_port_with_different_settings() {
    let (kind, policy) = ingress_backend("a");
    let mut store = listed_store();
    for event in [service_event("web", 8080), service_event("www", 8080)] {
        store.apply_event(SERVICES, event);
    }
    store.apply_event(PODS, pod_event("a", json!({})));
    let first = json!({
        "backends": [{"name": "www", "port": {"number": 8080, "protocol": "grpc"}}],
        "sources": [{"kind": "IPRange", "name": "10.0.0.0/8"}],
    });
    let custom = custom_event(kind, "0", "2025-01-01T00:00:00Z", first);
    store.apply_event(kind, custom);
    assert_eq!(first_status(&mut store), Ok(()));
    store.apply_event(kind, policy(8080, "http"));
    let statuses = store.changed_statuses().unwrap();
    let contents: Vec<&StatusContent> = statuses.iter().map(|status| &status.content).collect();
    let [StatusContent::Current(Ok(())), StatusContent::Current(Err(second))] = contents[..] else {
        panic!("{contents:?}")
    };
    assert_eq!(
        second,
        "spec.backends: the IngressBackend shop/0 opens port 8080 of pods of shop/web with other \
         settings"
    );
}
