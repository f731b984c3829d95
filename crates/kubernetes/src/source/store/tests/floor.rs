//! Tests that annotations and objects of tenants do not weaken the mesh below its floor.

use super::*;

const CREATED: &str = "2025-01-01T00:00:00Z";

fn set_floor(store: &mut ObjectStore, floor: Value) {
    let mesh_config_kind = kind_index("MeshConfig", "leno.dev");
    store.apply_event(
        mesh_config_kind,
        custom_event(mesh_config_kind, "mesh", CREATED, json!({"floor": floor})),
    );
}

fn annotated_namespace(namespace: &str, labels: Value, annotations: Value) -> WatchEvent {
    let namespace: Namespace = serde_json::from_value(json!({
        "metadata": {"name": namespace, "labels": labels, "annotations": annotations},
    }))
    .unwrap();
    WatchEvent::Applied(Box::new(ConvertedObject::from_namespace(namespace)))
}

fn running_pod(name: &str, image: &str) -> WatchEvent {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "shop", "labels": {"app": "web"}},
        "spec": {
            "initContainers": [{"name": "leno-proxy", "image": image}],
            "containers": [{"name": "web", "image": "web:1"}],
        },
        "status": {"podIP": "10.1.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .unwrap();
    WatchEvent::Applied(Box::new(ConvertedObject::from_pod(pod)))
}

fn update_warnings(update: Option<RegistryUpdate>) -> Vec<String> {
    update.unwrap().warnings.iter().map(ToString::to_string).collect()
}

#[test]
fn annotations_below_the_floor_have_no_effect_and_are_reported() {
    let mut store = listed_store();
    set_floor(&mut store, json!({"defaultPolicy": "deny", "mtls": "strict"}));
    store.apply_event(NAMESPACES, namespace_event("shop", "allow"));
    let annotations = json!({"leno.dev/default-policy": "dry-run", "leno.dev/mtls": "permissive"});
    store.apply_event(PODS, pod_event("a", json!({"annotations": annotations})));
    let update = store.flush();
    let config = store.mesh_config().unwrap();
    let workload = store.workloads.values().next().unwrap();
    assert_eq!(config.default_policy_of(workload), DefaultPolicy::Deny);
    assert_eq!(config.mtls_mode_of(workload), MtlsMode::Strict);
    assert_eq!(
        update_warnings(update),
        [
            "Namespace shop: metadata.annotations[\"leno.dev/default-policy\"]: allow is below \
             spec.floor.defaultPolicy of the MeshConfig, and deny is in force; remove the annotation",
            "Pod shop/a: metadata.annotations[\"leno.dev/default-policy\"]: dry-run is below spec.floor.defaultPolicy \
             of the MeshConfig, and deny is in force; remove the annotation",
            "Pod shop/a: metadata.annotations[\"leno.dev/mtls\"]: permissive is below spec.floor.mtls of \
             the MeshConfig, and strict is in force; remove the annotation",
        ]
    );
    // The Pod and the Namespace get an event each.
    let statuses = store.changed_statuses().unwrap();
    let kinds: Vec<&str> = statuses
        .iter()
        .filter(|status| status.diagnostic.is_some())
        .map(|status| status.target.kind)
        .collect();
    assert_eq!(kinds, ["Pod", "Namespace"]);
    // The annotations apply in a namespace that is exempt from the floor.
    set_floor(&mut store, json!({"mtls": "strict", "exceptNamespaces": ["shop"]}));
    assert_eq!(update_warnings(store.flush()), [""; 0]);
    let shop = Name::new("shop").unwrap();
    assert_eq!(store.mesh_config().unwrap().default_policy_in(&shop), DefaultPolicy::Allow);
}

#[test]
fn injection_and_exclusion_settings_below_the_floor_are_reported() {
    let mut store = listed_store();
    set_floor(&mut store, json!({"injection": "required", "exclusions": "forbidden"}));
    let labels = json!({"leno.dev/injection": "enabled"});
    let lists = json!({"openservicemesh.io/outbound-port-exclusion-list": "25"});
    store.apply_event(NAMESPACES, annotated_namespace("shop", labels, lists));
    store
        .apply_event(PODS, pod_event("out", json!({"labels": {"leno.dev/injection": "Disabled"}})));
    let lists = json!({"leno.dev/inbound-port-exclusion-list": "80"});
    store.apply_event(PODS, pod_event("holes", json!({"annotations": lists})));
    let warnings = update_warnings(store.flush());
    let subjects: Vec<&str> =
        warnings.iter().map(|warning| warning.split(": ").next().unwrap()).collect();
    assert_eq!(subjects, ["Namespace shop", "Pod shop/holes", "Pod shop/out"], "{warnings:?}");
    assert!(warnings[2].contains("leno.dev/injection disables the sidecar"), "{warnings:?}");
    assert!(store.mesh_floor().exclusions_forbidden);
    // The floor requires no sidecar in a namespace without injection.
    store.apply_event(NAMESPACES, removal_event("", "shop"));
    assert_eq!(store.flush().unwrap().warnings.len(), 1);
}

#[test]
fn a_pod_with_another_sidecar_image_is_not_a_member() {
    let mut store = listed_store();
    store.set_image("mesh.example/leno:0.1");
    set_floor(&mut store, json!({"sidecarImages": ["mirror.example/leno"]}));
    store.apply_event(PODS, running_pod("a", "mesh.example/leno:0.2"));
    store.apply_event(PODS, running_pod("b", "mirror.example/leno@sha256:00"));
    store.apply_event(PODS, running_pod("c", "evil.example/leno:0.1"));
    let update = store.flush().unwrap();
    let rejected: Vec<String> = update.rejected.iter().map(ToString::to_string).collect();
    assert_eq!(
        rejected,
        ["Pod shop/c: spec.initContainers: the sidecar runs evil.example/leno:0.1, which \
          spec.floor.sidecarImages of the MeshConfig does not permit: the pod is not a member of \
          the mesh; create the pod again with a permitted image"]
    );
    assert_eq!(
        describe_update(Some(update)),
        ["+ Workload shop/a", "+ Workload shop/b", "+ MeshConfig"]
    );
    set_floor(&mut store, json!({"sidecarImages": ["evil.example/leno"]}));
    assert_eq!(
        describe_update(store.flush()),
        ["- Workload shop/b", "+ Workload shop/c", "+ MeshConfig"]
    );
    let mesh_config_kind = kind_index("MeshConfig", "leno.dev");
    store.apply_event(mesh_config_kind, removal_event("", "mesh"));
    assert_eq!(describe_update(store.flush()), ["- MeshConfig", "+ Workload shop/b"]);
}

#[test]
fn mesh_wide_objects_are_read_only_from_configured_namespaces() {
    let tag_route = json!({
        "scope": "mesh", "fallbackPolicy": "fail",
        "rules": [{"split": [{"weight": 1, "tags": {"group": "black"}}]}],
    });
    let egress = json!({
        "sources": [{"kind": "ServiceAccount", "name": "web", "namespace": "other"}],
        "hosts": ["api.example"], "ports": [{"number": 80, "protocol": "http"}],
    });
    for (kind, group, spec) in
        [("TagRoute", "leno.dev", tag_route), ("Egress", "policy.openservicemesh.io", egress)]
    {
        let index = kind_index(kind, group);
        let mut store = listed_store();
        store.apply_event(index, custom_event(index, "all", CREATED, spec.clone()));
        let update = store.flush().unwrap();
        assert_eq!(update.changes, [], "{kind}");
        let rejected = update.rejected[0].to_string();
        assert!(rejected.contains("which objects of the namespace shop may not do"), "{rejected}");
        store.set_settings_namespaces([Name::new("shop").unwrap()].into());
        store.apply_event(index, custom_event(index, "all", CREATED, spec));
        assert_eq!(describe_update(store.flush()).len(), 1, "{kind}");
    }
}
