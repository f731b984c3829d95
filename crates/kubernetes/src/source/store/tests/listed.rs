//! Tests EndpointSlices of Services without a selector that list pods with a sidecar among other addresses.

use leno_model::TargetPort;
use leno_registry::JOINING_LABEL;

use super::*;
use crate::source::store::selectorless_services::MAX_LISTED_ENDPOINTS;

pub(super) fn slice_kind() -> usize {
    watched_kinds().iter().position(|watched| *watched == WatchedKind::Slices).unwrap()
}

/// A Service without a selector.
pub(super) fn selectorless_service() -> WatchEvent {
    let service: KubeService = serde_json::from_value(json!({
        "metadata": {"name": "hand", "namespace": "shop"},
        "spec": {"clusterIP": "10.0.0.7", "ports": [{"name": "http", "port": 80}]},
    }))
    .unwrap();
    WatchEvent::Applied(Box::new(ConvertedObject::from_service(service)))
}

/// A slice of that Service, with the address and readiness of each endpoint.
pub(super) fn slice_event(name: &str, port: u16, endpoints: &[(&str, bool)]) -> WatchEvent {
    let endpoint = |(address, ready): &(&str, bool)| json!({"addresses": [address], "conditions": {"ready": ready}});
    let endpoints: Vec<Value> = endpoints.iter().map(endpoint).collect();
    let labels = json!({"kubernetes.io/service-name": "hand"});
    let slice = json!({
        "metadata": {"name": name, "namespace": "shop", "labels": labels},
        "addressType": "IPv4", "ports": [{"name": "http", "port": port}], "endpoints": endpoints,
    });
    WatchEvent::Applied(Box::new(ConvertedObject::from_slice(
        serde_json::from_value(slice).unwrap(),
    )))
}

/// A pod of a namespace at an address.
fn pod_at(namespace: &str, name: &str, address: &str, sidecar: bool) -> WatchEvent {
    let labels = if sidecar { json!({"leno.dev/meshed": "sidecar"}) } else { json!({}) };
    let pod = json!({
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        // The name of a container port has no meaning for a slice.
        "spec": {"containers": [{"name": "web", "ports": [{"name": "http", "containerPort": 9999}]}]},
        "status": {"podIP": address, "conditions": [{"type": "Ready", "status": "True"}]},
    });
    WatchEvent::Applied(Box::new(ConvertedObject::from_pod(serde_json::from_value(pod).unwrap())))
}

fn updated_workload(update: &RegistryUpdate, name: &str) -> Workload {
    let workload = update.changes.iter().find_map(|change| match change {
        Change::Upsert(Object::Workload(workload)) if workload.name.to_string() == name => {
            Some(workload)
        }
        _ => None,
    });
    workload.unwrap_or_else(|| panic!("no {name} in {update:?}")).clone()
}

fn updated_service(update: &RegistryUpdate) -> Service {
    let service = update.changes.iter().find_map(|change| match change {
        Change::Upsert(Object::Service(service)) => Some(service.clone()),
        _ => None,
    });
    service.unwrap()
}

#[test]
fn a_listed_address_of_a_meshed_pod_is_that_pod() {
    for gateways in [true, false] {
        // The order of the objects makes no difference.
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let mut store = store_with_gateways_option(gateways);
            for step in order {
                match step {
                    0 => store.apply_event(PODS, pod_at("shop", "web-1", "10.1.0.1", true)),
                    1 => {
                        let endpoints = [("10.1.0.1", true), ("192.0.2.7", true)];
                        store.apply_event(slice_kind(), slice_event("hand-1", 8080, &endpoints));
                    }
                    _ => store.apply_event(SERVICES, selectorless_service()),
                }
            }
            store.resolve_gateways();
            let update = store.flush().unwrap();
            let service = updated_service(&update);
            assert_eq!(service.ports[0].target, TargetPort::Number(8080));
            let member = updated_workload(&update, "shop/web-1");
            assert!(
                member.sidecar && matches_selector(&service.selector, &member.labels),
                "{member:?}"
            );
            assert!(
                member.ports.iter().any(|workload_port| workload_port.port == 8080),
                "{member:?}"
            );
            let unmeshed = updated_workload(&update, "shop/hand-1.192-0-2-7");
            assert!(
                !unmeshed.sidecar && matches_selector(&service.selector, &unmeshed.labels),
                "{unmeshed:?}"
            );
            assert!(unmeshed.labels.contains_key(JOINING_LABEL), "{unmeshed:?}");
            let expected_changes = [
                "+ Workload shop/hand-1.192-0-2-7",
                "+ Workload shop/web-1",
                "+ Service shop/hand",
            ];
            assert_eq!(describe_update(Some(update)), expected_changes, "{order:?}");
            // A pod that the slice no longer lists stays a workload, but it is no endpoint of the Service.
            store.apply_event(slice_kind(), slice_event("hand-1", 8080, &[("192.0.2.7", true)]));
            let update = store.flush().unwrap();
            assert!(!matches_selector(
                &service.selector,
                &updated_workload(&update, "shop/web-1").labels
            ));
            assert_eq!(describe_update(Some(update)), ["+ Workload shop/web-1"]);
            // The address of a pod that is not known yet is an endpoint without a sidecar until the pod is known.
            let endpoints = [("10.1.0.2", true), ("192.0.2.7", true)];
            store.apply_event(slice_kind(), slice_event("hand-1", 8080, &endpoints));
            assert_eq!(describe_update(store.flush()), ["+ Workload shop/hand-1.10-1-0-2"]);
            store.apply_event(PODS, pod_at("shop", "web-2", "10.1.0.2", true));
            let update = store.flush().unwrap();
            assert!(matches_selector(
                &service.selector,
                &updated_workload(&update, "shop/web-2").labels
            ));
            let expected_changes = ["- Workload shop/hand-1.10-1-0-2", "+ Workload shop/web-2"];
            assert_eq!(describe_update(Some(update)), expected_changes);
            store.apply_event(PODS, removal_event("shop", "web-2"));
            let expected_changes = ["- Workload shop/web-2", "+ Workload shop/hand-1.10-1-0-2"];
            assert_eq!(describe_update(store.flush()), expected_changes);
            store.apply_event(SERVICES, removal_event("shop", "hand"));
            let expected_changes = [
                "- Workload shop/hand-1.10-1-0-2",
                "- Workload shop/hand-1.192-0-2-7",
                "- Service shop/hand",
            ];
            assert_eq!(describe_update(store.flush()), expected_changes);
        }
    }
}

/// A slice lists a pod only when the pod is ready. The Service has to be in the mesh before that.
#[test]
fn a_service_with_listed_pods_joins_with_the_first_sidecar_of_its_namespace() {
    let mut store = store_with_gateways_option(false);
    store.apply_event(PODS, pod_at("shop", "web-1", "10.1.0.1", false));
    store.apply_event(SERVICES, selectorless_service());
    store.apply_event(slice_kind(), slice_event("hand-1", 8080, &[("10.1.0.1", true)]));
    assert!(store.flush().is_none(), "a service without sidecars is not sent");
    store.apply_event(PODS, pod_at("bank", "web-2", "10.1.0.2", true));
    assert_eq!(describe_update(store.flush()), ["+ Workload bank/web-2"]);
    store.apply_event(PODS, pod_at("shop", "web-2", "10.1.0.3", true));
    let update = store.flush().unwrap();
    assert!(updated_workload(&update, "shop/hand-1.10-1-0-1").labels.contains_key(JOINING_LABEL));
    let expected_changes =
        ["+ Workload shop/hand-1.10-1-0-1", "+ Workload shop/web-2", "+ Service shop/hand"];
    assert_eq!(describe_update(Some(update)), expected_changes);
    // Without a listed pod, the Service stays outside the mesh.
    let mut store = store_with_gateways_option(false);
    store.apply_event(PODS, pod_at("shop", "web-2", "10.1.0.3", true));
    store.apply_event(SERVICES, selectorless_service());
    store.apply_event(slice_kind(), slice_event("hand-1", 8080, &[("192.0.2.7", true)]));
    assert_eq!(describe_update(store.flush()), ["+ Workload shop/web-2"]);
}

#[test]
fn pods_of_other_namespaces_and_unready_endpoints_are_not_used() {
    let mut store = store_with_gateways_option(false);
    store.apply_event(PODS, pod_at("shop", "web-1", "10.1.0.1", true));
    store.apply_event(PODS, pod_at("shop", "web-2", "10.1.0.2", true));
    store.apply_event(PODS, pod_at("bank", "web-1", "10.1.0.3", true));
    store.apply_event(SERVICES, selectorless_service());
    let endpoints = [("10.1.0.1", true), ("10.1.0.2", false), ("10.1.0.3", true)];
    store.apply_event(slice_kind(), slice_event("hand-1", 8080, &endpoints));
    let update = store.flush().unwrap();
    let service = updated_service(&update);
    let is_selected =
        |name| matches_selector(&service.selector, &updated_workload(&update, name).labels);
    let selected = ["shop/web-1", "shop/web-2", "bank/web-1"].map(is_selected);
    assert_eq!(selected, [true, false, false]);
    let [warning] = update.warnings.as_slice() else { panic!("{:?}", update.warnings) };
    let warning = warning.to_string();
    assert!(warning.contains("10.1.0.3 is a pod of another namespace"), "{warning}");
    assert_eq!(describe_update(Some(update)).len(), 4, "three pods and the Service");
}

/// Sidecars support one number per Service port.
#[test]
fn a_service_with_slices_of_different_ports_stays_outside_the_mesh() {
    let mut store = store_with_gateways_option(false);
    store.apply_event(PODS, pod_at("shop", "web-1", "10.1.0.1", true));
    store.apply_event(SERVICES, selectorless_service());
    store.apply_event(slice_kind(), slice_event("hand-1", 8080, &[("10.1.0.1", true)]));
    assert_eq!(describe_update(store.flush()), ["+ Workload shop/web-1", "+ Service shop/hand"]);
    store.apply_event(slice_kind(), slice_event("hand-2", 9090, &[("192.0.2.7", true)]));
    let update = describe_update(store.flush());
    assert!(update.contains(&"- Service shop/hand".to_owned()), "{update:?}");
    store.apply_event(slice_kind(), removal_event("shop", "hand-2"));
    let update = describe_update(store.flush());
    assert!(update.contains(&"+ Service shop/hand".to_owned()), "{update:?}");
}

#[test]
fn the_number_of_listed_endpoints_is_limited() {
    let mut store = store_with_gateways_option(false);
    let address = |index: usize| format!("10.{}.{}.7", 100 + index / 256, index % 256);
    let addresses: Vec<String> = (0..MAX_LISTED_ENDPOINTS + 1).map(address).collect();
    for (index, chunk) in addresses.chunks(1000).enumerate() {
        let endpoints: Vec<(&str, bool)> =
            chunk.iter().map(|address| (address.as_str(), true)).collect();
        store.apply_event(slice_kind(), slice_event(&format!("hand-{index}"), 8080, &endpoints));
    }
    let update = store.flush().unwrap();
    let [warning] = update.warnings.as_slice() else { panic!("{:?}", update.warnings) };
    let warning = warning.to_string();
    assert!(warning.contains("1 of its endpoints are ignored"), "{warning}");
    store.apply_event(slice_kind(), removal_event("shop", "hand-0"));
    store.apply_event(slice_kind(), slice_event("hand-16", 8080, &[("10.1.0.1", true)]));
    assert_eq!(store.flush().unwrap().warnings, []);
}
