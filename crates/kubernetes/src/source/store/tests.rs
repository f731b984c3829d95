//! Tests that changes of objects are published as differences.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Pod, Service as KubeService};
use kube::core::ApiResource;
use leno_model::{DefaultPolicy, Egress, MeshConfig, MtlsMode, TrustDomain};
use serde_json::{Value, json};

use super::*;
use crate::status::StatusContent;

mod conflicts;
mod empty;
mod external_principals;
mod floor;
mod gateways;
mod ingress_policies;
mod listed;
mod requests;
mod routed;
mod settings;
mod zone_preferences;

// The indexes of three watched kinds.
const PODS: usize = 0;
const SERVICES: usize = 1;
const NAMESPACES: usize = 2;

fn watched_kinds() -> Vec<WatchedKind> {
    crate::source::watched_kinds(true)
}

fn kind_index(kind: &str, group: &str) -> usize {
    let has_kind = |watched: &WatchedKind| match watched {
        WatchedKind::Custom(watched) => watched.kind == kind && watched.group == group,
        _ => false,
    };
    watched_kinds().iter().position(has_kind).unwrap()
}

/// Creates an empty store in which every kind has been listed.
fn listed_store() -> ObjectStore {
    store_with_gateways_option(true)
}

/// Creates an empty store like [`listed_store`], for an installation with or without gateways. Each kind that
/// both watch has the same index.
fn store_with_gateways_option(gateways: bool) -> ObjectStore {
    let watched = crate::source::watched_kinds(gateways);
    let count = watched.len();
    let mut store = ObjectStore::new(watched);
    store.set_settings_namespaces(
        ["leno-system", "osm-system"].map(|name| Name::new(name).unwrap()).into(),
    );
    for kind in 0..count {
        store.apply_event(kind, WatchEvent::ListStarted);
        store.apply_event(kind, WatchEvent::ListComplete);
    }
    assert_eq!(store.flush().unwrap().changes, []);
    store
}

fn pod_event(name: &str, changes: Value) -> WatchEvent {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "shop", "labels": {"app": "web", "leno.dev/meshed": "sidecar"}},
        "spec": {"containers": [{"name": "web"}]},
        "status": {"podIP": "10.1.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    for (key, value) in changes.as_object().unwrap() {
        pod["metadata"][key] = value.clone();
    }
    let pod: Pod = serde_json::from_value(pod).unwrap();
    WatchEvent::Applied(Box::new(ConvertedObject::from_pod(pod)))
}

fn service_event(name: &str, target: u16) -> WatchEvent {
    let service: KubeService = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"clusterIP": "10.0.0.1", "selector": {"app": "web"},
                 "ports": [{"port": 80, "targetPort": target}]},
    }))
    .unwrap();
    WatchEvent::Applied(Box::new(ConvertedObject::from_service(service)))
}

/// Returns the event of a headless Service.
fn headless_event(name: &str) -> WatchEvent {
    let service: KubeService = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"clusterIP": "None", "selector": {"app": "web"}, "ports": [{"port": 80}]},
    }))
    .unwrap();
    WatchEvent::Applied(Box::new(ConvertedObject::from_service(service)))
}

fn namespace_event(name: &str, default_policy: &str) -> WatchEvent {
    let namespace: Namespace = serde_json::from_value(json!({
        "metadata": {"name": name, "annotations": {"leno.dev/default-policy": default_policy}},
    }))
    .unwrap();
    WatchEvent::Applied(Box::new(ConvertedObject::from_namespace(namespace)))
}

fn custom_event(kind: usize, name: &str, created: &str, spec: Value) -> WatchEvent {
    let WatchedKind::Custom(served) = watched_kinds()[kind] else { panic!() };
    let mut metadata = json!({
        "name": name, "creationTimestamp": created, "generation": 2, "uid": format!("u-{name}"),
    });
    match (served.kind, served.group) {
        ("MeshConfig", "leno.dev") | ("GatewayClass", _) => {}
        ("MeshConfig", _) => metadata["namespace"] = json!("osm-system"),
        _ => metadata["namespace"] = json!("shop"),
    }
    object_event(kind, metadata, spec)
}

/// Returns OSM settings in a namespace.
fn settings_of_osm(namespace: &str, created: &str, spec: Value) -> (usize, WatchEvent) {
    let kind = kind_index("MeshConfig", "config.openservicemesh.io");
    let metadata = json!({
        "name": "osm-mesh-config", "namespace": namespace, "uid": "u", "creationTimestamp": created,
    });
    (kind, object_event(kind, metadata, spec))
}

fn object_event(kind: usize, metadata: Value, spec: Value) -> WatchEvent {
    let WatchedKind::Custom(served) = watched_kinds()[kind] else { panic!() };
    let mut object = json!({"metadata": metadata, "spec": spec});
    if let Some(status) = object["spec"].as_object_mut().and_then(|spec| spec.remove("status")) {
        object["status"] = status;
    }
    let object = serde_json::from_value(object).unwrap();
    let resource = Arc::new(ApiResource {
        group: served.group.to_owned(),
        version: "v1".to_owned(),
        api_version: served.api_versions[0].to_owned(),
        kind: served.kind.to_owned(),
        plural: "them".to_owned(),
    });
    WatchEvent::Applied(Box::new(ConvertedObject::from_custom(served, &resource, object)))
}

fn removal_event(namespace: &str, name: &str) -> WatchEvent {
    WatchEvent::Deleted(ObjectId { namespace: namespace.to_owned(), name: name.to_owned() })
}

fn describe_update(update: Option<RegistryUpdate>) -> Vec<String> {
    let changes = update.map(|update| update.changes).unwrap_or_default();
    let describe_change = |change: &Change| match change {
        Change::Upsert(object) => format!("+ {}", object.object_key()),
        Change::Remove(key) => format!("- {key}"),
    };
    changes.iter().map(describe_change).collect()
}

fn updated_config(update: Option<RegistryUpdate>) -> MeshConfig {
    let changes = update.unwrap().changes;
    let config = changes.into_iter().find_map(|change| match change {
        Change::Upsert(Object::MeshConfig(config)) => Some(config),
        _ => None,
    });
    config.unwrap()
}

#[test]
fn nothing_is_reported_before_every_kind_is_listed() {
    let mut store = ObjectStore::new(watched_kinds());
    let last = watched_kinds().len() - 1;
    for kind in 0..last {
        store.apply_event(kind, WatchEvent::ListStarted);
        if kind == PODS {
            store.apply_event(kind, pod_event("a", json!({})));
        }
        store.apply_event(kind, WatchEvent::ListComplete);
        assert!(store.flush().is_none());
    }
    assert_eq!(store.progress().unlisted.len(), 1);
    store.apply_event(last, WatchEvent::Unavailable("refused".to_owned()));
    assert!(store.flush().is_none());
    store.apply_event(last, WatchEvent::KindNotServed);
    assert!(store.progress().is_synced());
    assert_eq!(describe_update(store.flush()), ["+ Workload shop/a"]);
    assert!(store.flush().is_none(), "unchanged objects are not sent again");
}

#[test]
fn only_differences_are_reported() {
    let mut store = listed_store();
    store.apply_event(PODS, pod_event("a", json!({})));
    store.apply_event(PODS, pod_event("b", json!({})));
    assert_eq!(describe_update(store.flush()), ["+ Workload shop/a", "+ Workload shop/b"]);
    store.apply_event(PODS, pod_event("a", json!({"resourceVersion": "7"})));
    assert_eq!(describe_update(store.flush()), [] as [&str; 0]);
    store.apply_event(PODS, pod_event("a", json!({"deletionTimestamp": "2025-01-01T00:00:00Z"})));
    store.apply_event(PODS, removal_event("shop", "b"));
    assert_eq!(describe_update(store.flush()), ["- Workload shop/b", "+ Workload shop/a"]);
    store.apply_event(PODS, pod_event("a", json!({"labels": {}})));
    assert_eq!(describe_update(store.flush()), ["- Workload shop/a"]);
}

#[test]
fn a_complete_list_removes_objects_that_it_does_not_contain() {
    let mut store = listed_store();
    for name in ["a", "b", "c"] {
        store.apply_event(PODS, pod_event(name, json!({})));
    }
    store.flush();
    // An interrupted list removes nothing. The list starts again.
    store.apply_event(PODS, WatchEvent::ListStarted);
    store.apply_event(PODS, pod_event("a", json!({})));
    store.apply_event(PODS, WatchEvent::Unavailable("reset".to_owned()));
    assert_eq!(describe_update(store.flush()), [] as [&str; 0]);
    store.apply_event(PODS, WatchEvent::ListStarted);
    store.apply_event(PODS, pod_event("b", json!({})));
    store.apply_event(PODS, pod_event("d", json!({})));
    store.apply_event(PODS, WatchEvent::ListComplete);
    let changes = describe_update(store.flush());
    assert_eq!(changes, ["- Workload shop/a", "- Workload shop/c", "+ Workload shop/d"]);
}

#[test]
fn pods_have_the_target_ports_of_their_services() {
    let mut store = listed_store();
    store.apply_event(PODS, pod_event("a", json!({})));
    store.apply_event(
        PODS,
        pod_event("b", json!({"labels": {"app": "db", "leno.dev/meshed": "sidecar"}})),
    );
    store.flush();
    let workload_ports = |update: &RegistryUpdate| match &update.changes[..] {
        [.., Change::Upsert(Object::Workload(workload))] => {
            workload.ports.iter().map(|port| port.port).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    for (event, expected_changes, expected_ports) in [
        (service_event("web", 8080), vec!["+ Workload shop/a", "+ Service shop/web"], None),
        (service_event("web", 8081), vec!["+ Workload shop/a", "+ Service shop/web"], None),
        (
            removal_event("shop", "web"),
            vec!["- Service shop/web", "+ Workload shop/a"],
            Some(vec![]),
        ),
    ] {
        store.apply_event(SERVICES, event);
        let update = store.flush().unwrap();
        if let Some(expected_ports) = expected_ports {
            assert_eq!(workload_ports(&update), expected_ports as Vec<u16>);
        }
        assert_eq!(describe_update(Some(update)), expected_changes);
    }
}

#[test]
fn an_invalid_version_does_not_replace_the_last_valid_one() {
    let kind = kind_index("HTTPRouteGroup", "specs.smi-spec.io");
    let valid = json!({"matches": [{"name": "m", "pathRegex": "/a"}]});
    let invalid = json!({"matches": [{"name": "m", "pathRegex": "("}]});
    let mut store = listed_store();
    store.apply_event(kind, custom_event(kind, "g", "2025-01-01T00:00:00Z", valid.clone()));
    assert_eq!(describe_update(store.flush()), ["+ HTTPRouteGroup shop/g"]);
    store.apply_event(kind, custom_event(kind, "g", "2025-01-01T00:00:00Z", invalid.clone()));
    let update = store.flush().unwrap();
    assert_eq!((update.changes.len(), update.rejected.len(), update.object_count), (0, 1, 1));
    let rejection = update.rejected[0].to_string();
    assert!(
        rejection.starts_with("HTTPRouteGroup shop/g: spec.matches[0].pathRegex: "),
        "{rejection}"
    );
    store.apply_event(kind, custom_event(kind, "g", "2025-01-01T00:00:00Z", valid));
    let update = store.flush().unwrap();
    assert_eq!((update.changes.len(), update.rejected.len()), (0, 0));
    store.apply_event(kind, custom_event(kind, "g", "2025-01-01T00:00:00Z", invalid));
    store.apply_event(kind, WatchEvent::KindNotServed);
    let update = store.flush().unwrap();
    assert_eq!(update.rejected, []);
    assert_eq!(describe_update(Some(update)), ["- HTTPRouteGroup shop/g"]);
}

#[test]
fn the_older_of_two_mesh_configs_is_in_force() {
    let kind = kind_index("MeshConfig", "leno.dev");
    let mut store = listed_store();
    let strict = json!({"defaultPolicy": "deny"});
    store.apply_event(kind, custom_event(kind, "a", "2025-01-02T00:00:00Z", json!({})));
    store.apply_event(kind, custom_event(kind, "b", "2025-01-01T00:00:00Z", strict));
    let update = store.flush().unwrap();
    let rejections: Vec<String> = update.rejected.iter().map(ToString::to_string).collect();
    assert_eq!(
        rejections,
        [
            "MeshConfig a: metadata.name: a mesh has one MeshConfig, and b is in force; remove one of \
          the two, or rename it"
        ]
    );
    assert_eq!(updated_config(Some(update)).default_policy, DefaultPolicy::Deny);
    store.apply_event(kind, removal_event("", "b"));
    let update = store.flush().unwrap();
    assert_eq!(update.rejected, []);
    assert_eq!(updated_config(Some(update)).default_policy, DefaultPolicy::Allow);
    store.apply_event(kind, removal_event("", "a"));
    assert_eq!(describe_update(store.flush()), ["- MeshConfig"]);
}

#[test]
fn objects_of_the_same_name_in_two_groups_conflict() {
    let osm_kind = kind_index("UpstreamTrafficSetting", "policy.openservicemesh.io");
    let fsm_kind = kind_index("UpstreamTrafficSetting", "policy.flomesh.io");
    let spec = json!({"host": "web.shop.svc.cluster.local",
                      "connectionSettings": {"tcp": {"maxConnections": 3}}});
    let mut store = listed_store();
    store.apply_event(fsm_kind, custom_event(fsm_kind, "s", "2025-01-01T00:00:00Z", spec.clone()));
    store.apply_event(osm_kind, custom_event(osm_kind, "s", "2025-01-02T00:00:00Z", spec));
    let update = store.flush().unwrap();
    assert_eq!(update.rejected.len(), 1, "{:?}", update.rejected);
    assert_eq!(describe_update(Some(update)), ["+ UpstreamTrafficSetting shop/s"]);
    store.apply_event(fsm_kind, WatchEvent::KindNotServed);
    assert_eq!(store.flush().unwrap().rejected, []);
}

#[test]
fn annotations_of_namespaces_apply_unless_the_mesh_config_lists_the_namespace() {
    let kind = kind_index("MeshConfig", "leno.dev");
    let default_policy =
        |config: &MeshConfig, name: &str| config.default_policy_in(&Name::new(name).unwrap());
    let mut store = listed_store();
    store.apply_event(NAMESPACES, namespace_event("shop", "deny"));
    store.apply_event(NAMESPACES, namespace_event("bank", "dry-run"));
    let config = updated_config(store.flush());
    assert_eq!(config.default_policy, DefaultPolicy::Allow);
    assert_eq!(default_policy(&config, "shop"), DefaultPolicy::Deny);
    let mesh_config = json!({"namespaces": [{"name": "bank", "defaultPolicy": "deny"}]});
    store.apply_event(kind, custom_event(kind, "mesh", "2025-01-01T00:00:00Z", mesh_config));
    let update = store.flush().unwrap();
    assert_eq!(update.warnings.len(), 1);
    let config = updated_config(Some(update));
    assert_eq!(default_policy(&config, "bank"), DefaultPolicy::Deny);
    assert_eq!(default_policy(&config, "shop"), DefaultPolicy::Deny);
    // An invalid value is ignored. If there is no previous valid value, the default policy is `deny`.
    store.apply_event(NAMESPACES, namespace_event("shop", "permisive"));
    store.apply_event(NAMESPACES, namespace_event("new", "permisive"));
    let update = store.flush().unwrap();
    assert_eq!(update.rejected.len(), 2);
    let config = updated_config(Some(update));
    assert_eq!(default_policy(&config, "shop"), DefaultPolicy::Deny);
    assert_eq!(default_policy(&config, "new"), DefaultPolicy::Deny);
    store.apply_event(kind, removal_event("", "mesh"));
    for name in ["shop", "bank", "new"] {
        store.apply_event(NAMESPACES, removal_event("", name));
    }
    assert_eq!(describe_update(store.flush()), ["- MeshConfig"]);
}

fn annotated_namespace(name: &str, annotations: Value) -> WatchEvent {
    let object = json!({"metadata": {"name": name, "annotations": annotations}});
    WatchEvent::Applied(Box::new(ConvertedObject::from_namespace(
        serde_json::from_value(object).unwrap(),
    )))
}

/// An invalid object never replaces a working one.
#[test]
fn an_invalid_annotation_does_not_change_a_known_namespace() {
    let mut store = listed_store();
    let mut admission_after = |name: &str, annotations: Value, rejected: usize| {
        store.apply_event(NAMESPACES, annotated_namespace(name, annotations));
        let update = store.flush();
        if let Some(update) = update {
            assert_eq!(update.rejected.len(), rejected, "{:?}", update.rejected);
        }
        store.namespace_admission.get(&Name::new(name).unwrap()).copied()
    };
    let (default_policy, mtls) = ("leno.dev/default-policy", "leno.dev/mtls");
    // No annotation, and then an invalid one: the default policy of the mesh stays in force.
    assert_eq!(admission_after("wv", json!({}), 0), None);
    assert_eq!(admission_after("wv", json!({mtls: "yes"}), 1), None);
    assert_eq!(admission_after("wv", json!({mtls: "yes", default_policy: "Deny"}), 2), None);
    // An invalid annotation does not affect the valid one.
    let strict = AdmissionSettings { default_policy: Some(DefaultPolicy::Deny), mtls: None };
    assert_eq!(
        admission_after("wv", json!({mtls: "yes", default_policy: "deny"}), 1),
        Some(strict)
    );
    let permissive = AdmissionSettings { mtls: Some(MtlsMode::Permissive), ..strict };
    assert_eq!(
        admission_after("wv", json!({mtls: "permissive", default_policy: "x"}), 1),
        Some(permissive)
    );
    assert_eq!(admission_after("wv", json!({}), 0), None);
}

/// After a restart the last valid value is unknown, and the invalid one may be meant as the strictest one.
#[test]
fn an_annotation_that_is_invalid_from_the_start_means_the_strictest_value() {
    let mut store = listed_store();
    let mut admission_of = |name: &str, annotations: Value| {
        store.apply_event(NAMESPACES, annotated_namespace(name, annotations));
        store.namespace_admission.get(&Name::new(name).unwrap()).copied()
    };
    let settings = |default_policy, mtls| Some(AdmissionSettings { default_policy, mtls });
    let (default_policy, mtls) = ("leno.dev/default-policy", "leno.dev/mtls");
    let (strict, strict_mtls) = (Some(DefaultPolicy::Deny), Some(MtlsMode::Strict));
    assert_eq!(admission_of("a", json!({default_policy: "Allow"})), settings(strict, None));
    // An invalid mutual TLS mode does not affect the default policy.
    assert_eq!(admission_of("b", json!({mtls: "yes"})), settings(None, strict_mtls));
    let audit = json!({default_policy: "dry-run", mtls: "yes"});
    assert_eq!(admission_of("c", audit), settings(Some(DefaultPolicy::DryRun), strict_mtls));
    // Another invalid value does not change the strictest value.
    assert_eq!(admission_of("a", json!({default_policy: "Dry-run"})), settings(strict, None));
    assert_eq!(
        admission_of("a", json!({default_policy: "dry-run"})),
        settings(Some(DefaultPolicy::DryRun), None)
    );
}

#[test]
fn an_invalid_annotation_does_not_change_a_known_pod() {
    let mut store = listed_store();
    let mut admission_after = |uid: &str, annotations: Value| {
        store.apply_event(PODS, pod_event("a", json!({"annotations": annotations, "uid": uid})));
        store.flush();
        let key = ObjectKey::Workload(WorkloadName::new("shop", "a").unwrap());
        match store.current_object(&key) {
            Some(Object::Workload(workload)) => workload.admission,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(admission_after("1", json!({})), AdmissionSettings::default());
    let annotations = json!({"leno.dev/mtls": "yes", "leno.dev/default-policy": "Allow"});
    assert_eq!(admission_after("1", annotations.clone()), AdmissionSettings::default());
    // Another pod of the same name has no previous state.
    let (default_policy, mtls) = (Some(DefaultPolicy::Deny), Some(MtlsMode::Strict));
    assert_eq!(admission_after("2", annotations), AdmissionSettings { default_policy, mtls });
}

#[test]
fn a_sidecar_image_of_another_mesh_is_reported_for_the_namespace() {
    let mut store = listed_store();
    let namespace = |annotations: Value| {
        let object = json!({"metadata": {"name": "shop", "annotations": annotations}});
        WatchEvent::Applied(Box::new(ConvertedObject::from_namespace(
            serde_json::from_value(object).unwrap(),
        )))
    };
    store.flush();
    store.apply_event(NAMESPACES, namespace(json!({"flomesh.io/sidecar-image": "pipy"})));
    let update = store.flush().unwrap();
    assert_eq!(update.warnings.len(), 1);
    assert!(update.changes.is_empty() && update.rejected.is_empty());
    let status = store.changed_statuses().unwrap().pop().unwrap();
    assert_eq!(status.target.kind, "Namespace");
    assert!(status.diagnostic.unwrap().contains("flomesh.io/sidecar-image"));
    store.apply_event(NAMESPACES, namespace(json!({})));
    assert_eq!(store.flush().unwrap().warnings, []);
}

#[test]
fn forbidden_kinds_are_reported_and_others_are_read() {
    let routes = kind_index("HTTPRoute", "gateway.networking.k8s.io");
    let mesh = kind_index("MeshConfig", "leno.dev");
    let mut store = listed_store();
    store.apply_event(routes, WatchEvent::Forbidden("no".to_owned()));
    store.apply_event(PODS, pod_event("a", json!({})));
    let update = store.flush().unwrap();
    assert_eq!(
        update.warnings[0].to_string(),
        "HTTPRoute: the API server denies read access (no); allow the control plane's \
         ServiceAccount to list and watch it"
    );
    assert_eq!(describe_update(Some(update)), ["+ Workload shop/a"]);
    store.apply_event(routes, WatchEvent::ListStarted);
    assert_eq!(store.flush().unwrap().warnings, []);
    store.apply_event(mesh, WatchEvent::Forbidden("no".to_owned()));
    let update = store.flush().unwrap();
    assert_eq!(
        update.possible_mesh_config_rejections().count(),
        1,
        "the default policy is unknown"
    );
}

#[test]
fn nothing_is_sent_while_policies_cannot_be_read() {
    let targets = kind_index("TrafficTarget", "access.smi-spec.io");
    let mut store = ObjectStore::new(watched_kinds());
    for kind in 0..watched_kinds().len() {
        let event = if kind == targets {
            WatchEvent::Forbidden("no".to_owned())
        } else {
            WatchEvent::KindNotServed
        };
        store.apply_event(kind, event);
    }
    assert_eq!(store.flush(), None, "forbidden policies do not count as absent");
    let progress = store.progress();
    assert!(!progress.is_synced());
    let progress_text = progress.to_string();
    assert!(progress_text.contains("denies listing TrafficTarget"), "{progress_text}");
    store.apply_event(targets, WatchEvent::ListStarted);
    store.apply_event(targets, WatchEvent::ListComplete);
    assert!(store.progress().is_synced());
    assert!(store.flush().is_some());
}

#[test]
fn an_invalid_default_policy_of_a_pod_is_deny_or_the_last_valid_one() {
    let mut store = listed_store();
    let with_policy =
        |default_policy: &str| json!({"annotations": {"leno.dev/default-policy": default_policy}});
    let mut mode_after = |default_policy: &str| {
        store.apply_event(PODS, pod_event("a", with_policy(default_policy)));
        store.flush();
        let key = ObjectKey::Workload(WorkloadName::new("shop", "a").unwrap());
        match store.current_object(&key) {
            Some(Object::Workload(workload)) => workload.admission.default_policy.unwrap(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(mode_after("typo"), DefaultPolicy::Deny);
    assert_eq!(mode_after("dry-run"), DefaultPolicy::DryRun);
    assert_eq!(mode_after("typo"), DefaultPolicy::DryRun);
}

/// Returns the conditions of the first object, each with its status and reason.
fn first_conditions(store: &mut ObjectStore) -> Vec<(&'static str, &'static str, &'static str)> {
    let statuses = store.changed_statuses().unwrap();
    let Some(status) = statuses.first() else { return Vec::new() };
    let conditions = match &status.content {
        StatusContent::Parents(parents) => {
            parents.iter().flat_map(|parent| parent.conditions.clone()).collect()
        }
        StatusContent::Conditions(conditions) => conditions.clone(),
        other => panic!("{other:?}"),
    };
    conditions
        .iter()
        .map(|condition| (condition.name, condition.status, condition.reason))
        .collect()
}

const PROGRAMMED: (&str, &str, &str) = ("Programmed", "True", "Programmed");
const NOT_PROGRAMMED: (&str, &str, &str) = ("Programmed", "False", "Invalid");

fn route_spec(parent: Value, backend: Value) -> Value {
    json!({"parentRefs": [parent, {"name": "edge"}], "rules": [{"backendRefs": [backend]}]})
}

#[test]
fn the_status_of_a_policy_reports_missing_targets_and_conflicts() {
    let kind = kind_index("OutlierDetection", "leno.dev");
    let outlier_detection = |name: &str, targets: Value| {
        custom_event(
            kind,
            name,
            "2025-01-01T00:00:00Z",
            json!({"targetRefs": targets, "consecutiveFailures": 3}),
        )
    };
    let web_targets = || json!([{"kind": "Service", "name": "web"}]);
    let mut store = listed_store();
    store.apply_event(kind, outlier_detection("b", web_targets()));
    let not_found = [
        ("Accepted", "False", "TargetNotFound"),
        ("ResolvedRefs", "False", "TargetNotFound"),
        NOT_PROGRAMMED,
    ];
    assert_eq!(first_conditions(&mut store), not_found);
    store.apply_event(SERVICES, service_event("web", 8080));
    let in_force =
        [("Accepted", "True", "Accepted"), ("ResolvedRefs", "True", "ResolvedRefs"), PROGRAMMED];
    assert_eq!(first_conditions(&mut store), in_force);
    // Of two policies of the same age, the one with the first name in alphabetical order is in force.
    store.apply_event(kind, outlier_detection("a", web_targets()));
    let statuses = store.changed_statuses().unwrap();
    let conditions = statuses.iter().map(|status| match &status.content {
        StatusContent::Conditions(conditions) => {
            (conditions[0].status, conditions[0].reason, conditions[0].message.clone())
        }
        other => panic!("{other:?}"),
    });
    let conditions: Vec<_> = conditions.collect();
    assert_eq!(conditions[0], ("True", "Accepted", "in force".to_owned()));
    let conflict = "OutlierDetection shop/a takes precedence at all of its targets".to_owned();
    assert_eq!(conditions[1], ("False", "Conflicted", conflict));
    // If one of two targets is missing, the policy applies to the other one.
    store.apply_event(
        kind,
        outlier_detection(
            "a",
            json!([{"kind": "Service", "name": "web"}, {"kind": "Service", "name": "no"}]),
        ),
    );
    let partly_resolved =
        [("Accepted", "True", "Accepted"), ("ResolvedRefs", "False", "TargetNotFound"), PROGRAMMED];
    assert_eq!(first_conditions(&mut store), partly_resolved);
}

#[test]
fn a_policy_without_effect_is_accepted_and_not_programmed() {
    let kind = kind_index("OutlierDetection", "leno.dev");
    let routes = kind_index("HTTPRoute", "gateway.networking.k8s.io");
    let outlier_detection = |name: &str, target: &str| {
        let spec =
            json!({"targetRefs": [{"kind": "Service", "name": target}], "consecutiveFailures": 3});
        custom_event(kind, name, "2025-01-01T00:00:00Z", spec)
    };
    let mut store = listed_store();
    store.apply_event(SERVICES, service_event("web", 8080));
    store.apply_event(SERVICES, service_event("next", 8080));
    store.apply_event(kind, outlier_detection("a", "web"));
    let parent = json!({"group": "", "kind": "Service", "name": "web"});
    let spec = json!({
        "parentRefs": [parent], "rules": [{"backendRefs": [{"name": "next", "port": 80}]}]
    });
    store.apply_event(routes, custom_event(routes, "away", "2025-01-01T00:00:00Z", spec));
    let conditions = |store: &mut ObjectStore| {
        let statuses = store.changed_statuses().unwrap();
        let conditions = statuses.iter().find_map(|status| match &status.content {
            StatusContent::Conditions(conditions) if status.target.name == "a" => {
                Some(conditions.clone())
            }
            _ => None,
        });
        let conditions =
            conditions.unwrap().into_iter().filter(|condition| condition.name != "ResolvedRefs");
        conditions
            .map(|condition| {
                (condition.name, condition.status, condition.reason, condition.message)
            })
            .collect::<Vec<_>>()
    };
    let programmed = |store: &mut ObjectStore| {
        let conditions = conditions(store);
        assert_eq!((conditions[0].0, conditions[0].1), ("Accepted", "True"));
        (conditions[1].0, conditions[1].1, conditions[1].2)
    };
    // The policy of `web` also applies to a backend without such a policy.
    assert_eq!(programmed(&mut store), PROGRAMMED);
    store.apply_event(kind, outlier_detection("own", "next"));
    let message = "HTTPRoute shop/away forwards all requests to shop/next, and each of these has its own policy, such as OutlierDetection shop/own";
    let unprogrammed = ("Programmed", "False", "Overridden", message.to_owned());
    assert_eq!(conditions(&mut store)[1], unprogrammed);
}

#[test]
fn a_tag_route_is_not_programmed_if_a_route_forwards_all_requests() {
    let kind = kind_index("TagRoute", "leno.dev");
    let routes = kind_index("HTTPRoute", "gateway.networking.k8s.io");
    let mut store = listed_store();
    store.apply_event(SERVICES, service_event("web", 8080));
    store.apply_event(SERVICES, service_event("next", 8080));
    let rules = json!([{"split": [{"tags": {"version": "2"}}]}]);
    let spec = json!({"service": "web", "fallbackPolicy": "any", "rules": rules});
    store.apply_event(kind, custom_event(kind, "a", "2025-01-01T00:00:00Z", spec));
    assert_eq!(first_conditions(&mut store)[2], PROGRAMMED);
    let parent = json!({"group": "", "kind": "Service", "name": "web"});
    let spec = json!({
        "parentRefs": [parent], "rules": [{"backendRefs": [{"name": "next", "port": 80}]}]
    });
    store.apply_event(routes, custom_event(routes, "away", "2025-01-01T00:00:00Z", spec));
    let statuses = store.changed_statuses().unwrap();
    let conditions = statuses.iter().find_map(|status| match &status.content {
        StatusContent::Conditions(conditions) if status.target.name == "a" => Some(conditions),
        _ => None,
    });
    let programmed =
        conditions.unwrap().iter().find(|condition| condition.name == "Programmed").unwrap();
    assert_eq!((programmed.status, programmed.reason), ("False", "Overridden"));
}

#[test]
fn a_policy_for_requests_is_not_programmed_on_tcp_ports() {
    let kind = kind_index("Hedging", "leno.dev");
    let mut store = listed_store();
    let service = |protocol: &str| {
        let service: KubeService = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"clusterIP": "10.0.0.1", "selector": {"app": "web"},
                     "ports": [{"name": "a", "port": 90, "appProtocol": "tcp"},
                               {"name": "b", "port": 80, "appProtocol": protocol}]},
        }))
        .unwrap();
        WatchEvent::Applied(Box::new(ConvertedObject::from_service(service)))
    };
    store.apply_event(SERVICES, service("tcp"));
    let spec = json!({"targetRefs": [{"kind": "Service", "name": "web"}], "after": "50ms"});
    store.apply_event(kind, custom_event(kind, "a", "2025-01-01T00:00:00Z", spec));
    let not_programmed = ("Programmed", "False", "NoRequests");
    let conditions = first_conditions(&mut store);
    assert_eq!((conditions[0], conditions[2]), (("Accepted", "True", "Accepted"), not_programmed));
    store.apply_event(SERVICES, service("http"));
    assert_eq!(first_conditions(&mut store)[2], PROGRAMMED);
}

#[test]
fn a_lane_with_a_missing_service_is_not_accepted() {
    let kind = kind_index("Lane", "leno.dev");
    let mut store = listed_store();
    let rules = json!([{"marks": [{"percent": 60, "headers": {"x-lane": "gray"}}]}]);
    let spec = json!({"service": "web", "rules": rules});
    store.apply_event(kind, custom_event(kind, "gray", "2025-01-01T00:00:00Z", spec));
    assert_eq!(first_conditions(&mut store)[0], ("Accepted", "False", "TargetNotFound"));
    store.apply_event(SERVICES, service_event("web", 8080));
    assert_eq!(first_conditions(&mut store)[0], ("Accepted", "True", "Accepted"));
}

#[test]
fn the_status_of_a_route_reports_missing_parents_and_backends() {
    let kind = kind_index("HTTPRoute", "gateway.networking.k8s.io");
    let parent =
        |name: &str, port: u16| json!({"group": "", "kind": "Service", "name": name, "port": port});
    let backend = |name: &str, port: u16| json!({"name": name, "port": port});
    let other_namespace = json!({"name": "web", "namespace": "bank", "port": 80});
    let bucket = json!({"group": "x.io", "kind": "Bucket", "name": "web", "port": 80});
    let string_port = json!({"name": "web", "port": "80"});
    for (spec, expected) in [
        (
            route_spec(parent("web", 80), backend("web", 80)),
            ("True", "Accepted", "True", "ResolvedRefs"),
        ),
        (
            route_spec(parent("web", 81), backend("web", 80)),
            ("False", "NoMatchingParent", "True", "ResolvedRefs"),
        ),
        (
            route_spec(parent("wob", 80), backend("web", 80)),
            ("False", "NoMatchingParent", "True", "ResolvedRefs"),
        ),
        (
            route_spec(parent("web", 80), backend("wob", 80)),
            ("True", "Accepted", "False", "BackendNotFound"),
        ),
        (
            route_spec(parent("web", 80), backend("web", 81)),
            ("True", "Accepted", "False", "BackendNotFound"),
        ),
        (
            route_spec(parent("web", 80), other_namespace),
            ("True", "Accepted", "False", "RefNotPermitted"),
        ),
        (
            route_spec(parent("web", 80), bucket),
            ("False", "UnsupportedValue", "False", "InvalidKind"),
        ),
        (
            route_spec(parent("web", 80), string_port),
            ("False", "UnsupportedValue", "Unknown", "Pending"),
        ),
    ] {
        let mut store = listed_store();
        store.apply_event(SERVICES, service_event("web", 8080));
        store.apply_event(kind, custom_event(kind, "r", "2025-01-01T00:00:00Z", spec.clone()));
        store.flush();
        let (accepted, cause, resolved, reason) = expected;
        let programmed = if accepted == "True" { PROGRAMMED } else { NOT_PROGRAMMED };
        let expected =
            [("Accepted", accepted, cause), ("ResolvedRefs", resolved, reason), programmed];
        assert_eq!(first_conditions(&mut store), expected, "{spec}");
        assert!(store.changed_statuses().is_none(), "unchanged statuses are not sent again");
    }
}

#[test]
fn the_status_of_a_route_follows_its_service() {
    let kind = kind_index("HTTPRoute", "gateway.networking.k8s.io");
    let parent = json!({"group": "", "kind": "Service", "name": "web"});
    let spec = route_spec(parent, json!({"name": "web", "port": 80}));
    let mut store = listed_store();
    store.apply_event(kind, custom_event(kind, "r", "2025-01-01T00:00:00Z", spec));
    assert_eq!(first_conditions(&mut store)[0].2, "NoMatchingParent");
    store.apply_event(SERVICES, service_event("web", 8080));
    assert_eq!(first_conditions(&mut store)[0].2, "Accepted");
    store.apply_event(PODS, pod_event("a", json!({})));
    assert!(store.changed_statuses().is_none(), "pods do not change the status");
}

#[test]
fn a_status_that_is_already_written_is_not_written_again() {
    let kind = kind_index("CircuitBreaker", "leno.dev");
    let spec = |max_connections: Value, current_status: Value| {
        let targets = json!([{"kind": "Service", "group": "", "name": "web"}]);
        json!({"targetRefs": targets, "limits": {"connections": max_connections}, "status": current_status})
    };
    let mut store = listed_store();
    let new_object = spec(json!("many"), json!({}));
    store.apply_event(kind, custom_event(kind, "c", "2025-01-01T00:00:00Z", new_object));
    let unparsed =
        [("Accepted", "False", "Invalid"), ("ResolvedRefs", "Unknown", "Pending"), NOT_PROGRAMMED];
    assert_eq!(first_conditions(&mut store), unparsed);
    let current_status = |store: &mut ObjectStore| {
        store.statuses_stale = true;
        store.changed_statuses().unwrap().pop()
    };
    let written_status = current_status(&mut store).unwrap().changed_status(&json!("now")).unwrap();
    let unchanged_object = spec(json!("many"), written_status);
    store.apply_event(kind, custom_event(kind, "c", "2025-01-01T00:00:00Z", unchanged_object));
    let remaining = current_status(&mut store).unwrap();
    assert_eq!(remaining.changed_status(&json!("later")), None);
    assert!(
        remaining.rejection.unwrap().starts_with("spec.limits.connections: "),
        "there is still an event"
    );
}

#[test]
fn conditions_that_are_no_longer_true_are_replaced() {
    let kind = kind_index("TagRoute", "leno.dev");
    let mut store = listed_store();
    let mut written_status = json!({});
    for (scope, resolved) in [
        (json!({"service": "web"}), "False"),
        (json!({"service": 7}), "Unknown"),
        (json!({"scope": "namespace"}), "True"),
    ] {
        let mut spec = json!({"preferSameTag": [{"tags": ["rack"]}], "status": written_status});
        spec.as_object_mut().unwrap().extend(scope.as_object().unwrap().clone());
        store.apply_event(kind, custom_event(kind, "t", "2025-01-01T00:00:00Z", spec));
        store.statuses_stale = true;
        let status = store.changed_statuses().unwrap().pop().unwrap();
        written_status = status.changed_status(&json!("now")).unwrap();
        let conditions = written_status["conditions"].as_array().unwrap();
        assert_eq!(conditions.len(), 3, "{written_status}");
        assert_eq!(conditions[1]["status"], resolved, "{written_status}");
    }
}

#[test]
fn a_policy_of_a_namespace_conflicts_only_if_each_service_has_its_own() {
    let kind = kind_index("OutlierDetection", "leno.dev");
    let removal_kind = kind_index("SermantRemoval", "leno.dev");
    let outlier_detection = |name: &str, service: &str| {
        let targets = json!([{"kind": "Service", "name": service}]);
        let spec = json!({"targetRefs": targets, "consecutiveFailures": 3});
        custom_event(kind, name, "2025-01-01T00:00:00Z", spec)
    };
    let mut store = listed_store();
    store.apply_event(SERVICES, service_event("web", 8080));
    store.apply_event(SERVICES, service_event("db", 8080));
    let config = "enableRemoval: true\nexceptions: [java.net.ConnectException]\n\
                  recoveryTime: 30000\nwindowsTime: 1000\nwindowsNum: 10\nrules:\n\
                  - {key: default-rule, scaleUpLimit: 0.6, minInstanceNum: 1, errorRate: 0.6}\n";
    let published = json!({"compat": "sermant", "config": config});
    let published = custom_event(removal_kind, "a", "2025-01-01T00:00:00Z", published);
    store.apply_event(removal_kind, published);
    store.apply_event(kind, outlier_detection("b", "web"));
    store.apply_event(kind, outlier_detection("c", "web"));
    let reasons = |store: &mut ObjectStore| -> BTreeMap<String, &'static str> {
        store.statuses_stale = true;
        let statuses = store.changed_statuses().unwrap();
        let reasons = statuses.iter().map(|status| match &status.content {
            StatusContent::Conditions(conditions) => {
                assert_eq!(status.rejection, None);
                (status.target.name.clone(), conditions[0].reason)
            }
            other => panic!("{other:?}"),
        });
        reasons.collect()
    };
    let expected = |rows: &[(&str, &'static str)]| -> BTreeMap<String, &'static str> {
        rows.iter().map(|(name, reason)| ((*name).to_owned(), *reason)).collect()
    };
    let one_conflict = [("a", "Accepted"), ("b", "Accepted"), ("c", "Conflicted")];
    assert_eq!(reasons(&mut store), expected(&one_conflict));
    // If each service has its own policy, the policy of the namespace has no effect.
    store.apply_event(kind, outlier_detection("d", "db"));
    let conditions =
        [("a", "Conflicted"), ("b", "Accepted"), ("c", "Conflicted"), ("d", "Accepted")];
    assert_eq!(reasons(&mut store), expected(&conditions));
}

#[test]
fn the_mesh_entry_is_removed_from_a_route_without_service_parents() {
    let kind = kind_index("HTTPRoute", "gateway.networking.k8s.io");
    let mesh_entry =
        json!({"controllerName": "leno.dev/mesh-controller", "parentRef": {}, "conditions": []});
    let other_entry = json!({"controllerName": "x/y", "parentRef": {}, "conditions": []});
    let spec =
        |parents: Value| json!({"parentRefs": [{"name": "edge"}], "status": {"parents": parents}});
    let mut store = listed_store();
    store.apply_event(
        kind,
        custom_event(kind, "r", "2025-01-01T00:00:00Z", spec(json!([other_entry, mesh_entry]))),
    );
    let status = store.changed_statuses().unwrap().pop().unwrap();
    assert_eq!(status.changed_status(&Value::Null), Some(json!({"parents": [other_entry]})));
    store.apply_event(
        kind,
        custom_event(kind, "r", "2025-01-01T00:00:00Z", spec(json!([other_entry]))),
    );
    assert!(store.changed_statuses().unwrap().is_empty());
}

#[test]
fn pods_without_a_sidecar_are_sent_once_a_pod_of_their_service_has_one() {
    let meshed =
        || pod_event("meshed", json!({"labels": {"app": "web", "leno.dev/meshed": "sidecar"}}));
    let unmeshed = || pod_event("plain", json!({"labels": {"app": "web"}}));
    let sorted = |update: Option<RegistryUpdate>| {
        let mut changes = describe_update(update);
        changes.sort();
        changes
    };
    let mut store = listed_store();
    store.apply_event(SERVICES, service_event("web", 80));
    store.apply_event(PODS, unmeshed());
    assert_eq!(describe_update(store.flush()), ["+ Service shop/web"]);
    store.apply_event(PODS, meshed());
    assert_eq!(sorted(store.flush()), ["+ Workload shop/meshed", "+ Workload shop/plain"]);
    // When the last sidecar is gone, the other pods remain, because clients still have connections to the service.
    store.apply_event(PODS, removal_event("shop", "meshed"));
    assert_eq!(describe_update(store.flush()), ["- Workload shop/meshed"]);
    // After a start of the control plane, the objects come in another order.
    let mut store = listed_store();
    store.apply_event(PODS, meshed());
    store.apply_event(PODS, unmeshed());
    store.apply_event(SERVICES, service_event("web", 80));
    let expected = ["+ Service shop/web", "+ Workload shop/meshed", "+ Workload shop/plain"];
    assert_eq!(sorted(store.flush()), expected);
}

#[test]
fn host_network_pods_are_sent_once_a_pod_of_their_service_has_a_sidecar() {
    let host_network_pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "agent", "namespace": "shop", "labels": {"app": "web"}},
        "spec": {"hostNetwork": true, "containers": [{"name": "web"}]},
        "status": {"podIP": "192.0.2.7", "conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .unwrap();
    let mut store = listed_store();
    store.apply_event(SERVICES, service_event("web", 80));
    store.apply_event(
        PODS,
        WatchEvent::Applied(Box::new(ConvertedObject::from_pod(host_network_pod))),
    );
    assert_eq!(describe_update(store.flush()), ["+ Service shop/web"]);
    // A pod that never becomes ready, as if its image cannot be pulled, also brings its Service into the mesh.
    let mut broken = pod_event("broken", json!({}));
    if let WatchEvent::Applied(converted) = &mut broken
        && let Some(MeshItem::Pod(Ok(member))) = &mut converted.item
    {
        member.workload.ready = false;
    }
    store.apply_event(PODS, broken);
    let mut changes = describe_update(store.flush());
    changes.sort();
    assert_eq!(changes, ["+ Workload shop/agent", "+ Workload shop/broken"]);
}

#[test]
fn pods_without_a_sidecar_are_sent_if_a_headless_service_selects_them() {
    let sorted = |update: Option<RegistryUpdate>| {
        let mut changes = describe_update(update);
        changes.sort();
        changes
    };
    let mut store = listed_store();
    store.apply_event(PODS, pod_event("plain", json!({"labels": {"app": "web"}})));
    store.apply_event(SERVICES, service_event("web", 80));
    assert_eq!(describe_update(store.flush()), ["+ Service shop/web"]);
    store.apply_event(SERVICES, headless_event("peers"));
    assert_eq!(sorted(store.flush()), ["+ Service shop/peers", "+ Workload shop/plain"]);
    store.apply_event(SERVICES, service_event("peers", 80));
    assert_eq!(sorted(store.flush()), ["+ Service shop/peers", "- Workload shop/plain"]);
}
