//! Terminating endpoints that still serve: used while no other is ready, as by kube-proxy (KEP-1669).

use leno_model::{Change, Gateway, Object, ObjectKey, Workload};

use super::gateways::{client_config, gateway_with_backends, service_endpoints, unmeshed_workload};
use super::joining::{cluster_with_unmeshed, is_balanced, visible_endpoints};
use super::*;
use crate::fixture::parse_objects;

/// The stage of a pod: ready, terminating and serving, or neither.
#[derive(Clone, Copy)]
enum PodStage {
    Ready,
    Terminating,
    Ended,
}

use PodStage::{Ended, Ready, Terminating};

/// Returns a pod without a sidecar of `reviews-v1`.
fn unmeshed_pod(name: &str, stage: PodStage) -> Change {
    let last_byte = name.as_bytes().last().copied().unwrap();
    let workload = unmeshed_workload(name, "{app: reviews, version: v1}", [10, 9, 0, last_byte]);
    upsert_at(workload, stage)
}

/// Returns the pod with a sidecar of `reviews-v1`.
fn meshed_pod(mesh: &Mesh, stage: PodStage) -> Change {
    upsert_at(mesh.workload(&workload_name("reviews-v1-1")).unwrap().clone(), stage)
}

fn upsert_at(workload: Workload, stage: PodStage) -> Change {
    let (ready, terminating) = match stage {
        Ready => (true, false),
        Terminating => (false, true),
        Ended => (false, false),
    };
    Change::Upsert(Object::Workload(Workload { ready, terminating, ..workload }))
}

fn endpoint_names(mesh: &Mesh) -> Vec<String> {
    visible_endpoints(mesh).into_iter().map(|(name, _)| name).collect()
}

#[test]
fn the_last_pod_still_serves_while_it_terminates() {
    let mut mesh = cluster_with_unmeshed(BOOKINFO, &[]);
    let endpoints_while_ready = visible_endpoints(&mesh);
    assert_eq!(endpoints_while_ready, [("reviews-v1-1".to_owned(), true)]);
    let change = meshed_pod(&mesh, Terminating);
    assert!(mesh.apply(change).services.contains(&service_name("reviews-v1")));
    assert!(is_balanced(&mesh));
    assert_eq!(visible_endpoints(&mesh), endpoints_while_ready);
    // Its application has ended.
    let change = meshed_pod(&mesh, Ended);
    assert!(mesh.apply(change).services.contains(&service_name("reviews-v1")));
    assert_eq!(visible_endpoints(&mesh), []);
}

#[test]
fn a_ready_pod_is_preferred_to_those_that_terminate() {
    // A terminating pod with a sidecar and a ready pod without, then the reverse.
    let mut mesh = cluster_with_unmeshed(BOOKINFO, &["reviews-v1-7"]);
    let change = meshed_pod(&mesh, Terminating);
    mesh.apply(change);
    assert_eq!(endpoint_names(&mesh), ["reviews-v1-7"]);
    mesh.apply(unmeshed_pod("reviews-v1-7", Terminating));
    assert!(is_balanced(&mesh));
    assert_eq!(endpoint_names(&mesh), ["reviews-v1-1", "reviews-v1-7"]);
    mesh.apply(unmeshed_pod("reviews-v1-8", Ready));
    assert_eq!(endpoint_names(&mesh), ["reviews-v1-8"]);
    mesh.apply(unmeshed_pod("reviews-v1-8", Ended));
    assert_eq!(endpoint_names(&mesh), ["reviews-v1-1", "reviews-v1-7"]);
    let change = meshed_pod(&mesh, Ready);
    mesh.apply(change);
    assert_eq!(endpoint_names(&mesh), ["reviews-v1-1"]);
    // Ready, but its sidecar is not connected to a control plane yet: only the terminating pod receives
    // requests.
    mesh.set_listeners(&workload_name("reviews-v1-1"), None);
    assert_eq!(endpoint_names(&mesh), ["reviews-v1-7"]);
}

#[test]
fn gateways_use_terminating_pods_as_well() {
    let edge = "---\napiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {name: edge-1, namespace: bookinfo, \
                labels: {gateway.networking.k8s.io/gateway-name: edge}}\nspec: {serviceAccount: leno-gateway-edge}\n";
    let mut mesh = cluster_with_unmeshed(&format!("{BOOKINFO}{edge}"), &["reviews-v1-7"]);
    let edge: Gateway = gateway_with_backends(&["reviews-v1"]);
    mesh.apply(Change::Upsert(Object::Gateway(edge)));
    let endpoints_of = |mesh: &Mesh| -> Vec<String> {
        let endpoints = service_endpoints(&client_config(mesh, "edge-1", &[]), "reviews-v1");
        endpoints.into_iter().map(|(name, _, _)| name).collect()
    };
    assert_eq!(endpoints_of(&mesh), ["reviews-v1-1", "reviews-v1-7"]);
    mesh.apply(Change::Remove(ObjectKey::Workload(workload_name("reviews-v1-1"))));
    mesh.apply(unmeshed_pod("reviews-v1-7", Terminating));
    assert_eq!(endpoints_of(&mesh), ["reviews-v1-7"]);
    mesh.apply(unmeshed_pod("reviews-v1-8", Ready));
    assert_eq!(endpoints_of(&mesh), ["reviews-v1-8"]);
}

#[test]
fn denied_egress_keeps_a_service_in_the_mesh_while_its_last_pod_with_a_sidecar_terminates() {
    let config = "apiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {name: default}\nspec: {egress: deny}";
    let mut mesh = cluster_with_unmeshed(BOOKINFO, &["reviews-v1-7"]);
    mesh.apply(Change::Upsert(parse_objects(config).pop().unwrap()));
    let change = meshed_pod(&mesh, Terminating);
    mesh.apply(change);
    // The cluster network routes to the ready pod.
    assert!(!is_balanced(&mesh));
    mesh.apply(unmeshed_pod("reviews-v1-7", Terminating));
    assert!(is_balanced(&mesh));
    assert_eq!(endpoint_names(&mesh), ["reviews-v1-1"]);
    let change = meshed_pod(&mesh, Ended);
    mesh.apply(change);
    assert!(!is_balanced(&mesh));
}

#[test]
fn endpoints_of_unreported_sidecars_are_uncertain_also_while_their_pods_terminate() {
    let mut mesh = cluster_with_unmeshed(BOOKINFO, &[]);
    let change = meshed_pod(&mesh, Terminating);
    mesh.apply(change);
    mesh.set_listeners(&workload_name("reviews-v1-1"), None);
    let compiled_config = client_config(&mesh, "productpage-1", &["reviews-v1"]);
    let client = mesh.workload(&workload_name("productpage-1")).unwrap();
    let unknown_endpoints = find_unknown_endpoints(&mesh, client, &compiled_config);
    assert!(!unknown_endpoints.is_empty());
    // A missing report of a pod that has ended is not an uncertain endpoint.
    let change = meshed_pod(&mesh, Ended);
    mesh.apply(change);
    let client = mesh.workload(&workload_name("productpage-1")).unwrap();
    let compiled_config = client_config(&mesh, "productpage-1", &["reviews-v1"]);
    assert!(find_unknown_endpoints(&mesh, client, &compiled_config).is_empty());
}
