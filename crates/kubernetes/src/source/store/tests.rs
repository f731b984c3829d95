//! Changes of objects, and the published differences.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Pod, Service as Served};
use kube::core::ApiResource;
use leno_model::{DefaultPolicy, Egress, MeshConfig, MtlsMode, TrustDomain};
use serde_json::{Value, json};

use super::*;
use crate::status::StatusContent;

mod boundary;
mod conflicts;
mod empty;
mod external_principals;
mod floor;
mod gateways;
mod listed;
mod places;
mod requests;
mod routed;
mod settings;

const PODS: usize = 0;
const SERVICES: usize = 1;
const NAMESPACES: usize = 2;

fn watched_kinds() -> Vec<WatchedKind> {
    crate::source::watched_kinds(true)
}

fn index(kind: &str, group: &str) -> usize {
    let is = |it: &WatchedKind| matches!(it, WatchedKind::Custom(it) if it.kind == kind && it.group == group);
    watched_kinds().iter().position(is).unwrap()
}

/// Creates an empty store in which every kind has been listed.
fn listed_store() -> ObjectStore {
    settled_with(true)
}

/// Creates one for an installation with or without gateways. Each kind that both watch has the same index.
fn settled_with(gateways: bool) -> ObjectStore {
    let watched = crate::source::watched_kinds(gateways);
    let count = watched.len();
    let mut store = ObjectStore::new(watched);
    store.take_settings_of(["leno-system", "osm-system"].map(|it| Name::new(it).unwrap()).into());
    for kind in 0..count {
        store.apply_event(kind, WatchEvent::Begin);
        store.apply_event(kind, WatchEvent::Complete);
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
    WatchEvent::Seen(Box::new(ConvertedObject::from_pod(pod)))
}

fn service_event(name: &str, target: u16) -> WatchEvent {
    let service: Served = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"clusterIP": "10.0.0.1", "selector": {"app": "web"},
                 "ports": [{"port": 80, "targetPort": target}]},
    }))
    .unwrap();
    WatchEvent::Seen(Box::new(ConvertedObject::from_service(service)))
}

/// A headless service.
fn headless_event(name: &str) -> WatchEvent {
    let service: Served = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"clusterIP": "None", "selector": {"app": "web"}, "ports": [{"port": 80}]},
    }))
    .unwrap();
    WatchEvent::Seen(Box::new(ConvertedObject::from_service(service)))
}

fn namespace_event(name: &str, default_policy: &str) -> WatchEvent {
    let namespace: Namespace = serde_json::from_value(json!({
        "metadata": {"name": name, "annotations": {"leno.dev/default-policy": default_policy}},
    }))
    .unwrap();
    WatchEvent::Seen(Box::new(ConvertedObject::from_namespace(namespace)))
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
    let kind = index("MeshConfig", "config.openservicemesh.io");
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
    WatchEvent::Seen(Box::new(ConvertedObject::from_custom(served, &resource, object)))
}

fn removal_event(namespace: &str, name: &str) -> WatchEvent {
    WatchEvent::Gone(ObjectId { namespace: namespace.to_owned(), name: name.to_owned() })
}

fn describe_update(update: Option<RegistryUpdate>) -> Vec<String> {
    let changes = update.map(|update| update.changes).unwrap_or_default();
    let line = |change: &Change| match change {
        Change::Upsert(object) => format!("+ {}", object.object_key()),
        Change::Remove(key) => format!("- {key}"),
    };
    changes.iter().map(line).collect()
}

fn updated_config(update: Option<RegistryUpdate>) -> MeshConfig {
    let changes = update.unwrap().changes;
    let found = changes.into_iter().find_map(|change| match change {
        Change::Upsert(Object::MeshConfig(config)) => Some(config),
        _ => None,
    });
    found.unwrap()
}

#[test]
fn nothing_is_reported_before_every_kind_is_listed() {
    let mut store = ObjectStore::new(watched_kinds());
    let last = watched_kinds().len() - 1;
    for kind in 0..last {
        store.apply_event(kind, WatchEvent::Begin);
        if kind == PODS {
            store.apply_event(kind, pod_event("a", json!({})));
        }
        store.apply_event(kind, WatchEvent::Complete);
        assert!(store.flush().is_none());
    }
    assert_eq!(store.progress().waiting.len(), 1);
    store.apply_event(last, WatchEvent::Failing("refused".to_owned()));
    assert!(store.flush().is_none());
    store.apply_event(last, WatchEvent::Absent);
    assert!(store.progress().is_synced());
    assert_eq!(describe_update(store.flush()), ["+ Workload shop/a"]);
    assert!(store.flush().is_none(), "nothing is told twice");
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
fn a_listing_takes_away_what_it_has_not() {
    let mut store = listed_store();
    for name in ["a", "b", "c"] {
        store.apply_event(PODS, pod_event(name, json!({})));
    }
    store.flush();
    // An interrupted list, started again.
    store.apply_event(PODS, WatchEvent::Begin);
    store.apply_event(PODS, pod_event("a", json!({})));
    store.apply_event(PODS, WatchEvent::Failing("reset".to_owned()));
    assert_eq!(describe_update(store.flush()), [] as [&str; 0]);
    store.apply_event(PODS, WatchEvent::Begin);
    store.apply_event(PODS, pod_event("b", json!({})));
    store.apply_event(PODS, pod_event("d", json!({})));
    store.apply_event(PODS, WatchEvent::Complete);
    let reported = describe_update(store.flush());
    assert_eq!(reported, ["- Workload shop/a", "- Workload shop/c", "+ Workload shop/d"]);
}

#[test]
fn ports_of_services_are_those_of_the_pods_behind_them() {
    let mut store = listed_store();
    store.apply_event(PODS, pod_event("a", json!({})));
    store.apply_event(
        PODS,
        pod_event("b", json!({"labels": {"app": "db", "leno.dev/meshed": "sidecar"}})),
    );
    store.flush();
    let ports = |update: &RegistryUpdate| match &update.changes[..] {
        [.., Change::Upsert(Object::Workload(workload))] => {
            workload.ports.iter().map(|port| port.port).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    for (event, reported, expected) in [
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
        if let Some(expected) = expected {
            assert_eq!(ports(&update), expected as Vec<u16>);
        }
        assert_eq!(describe_update(Some(update)), reported);
    }
}

#[test]
fn the_last_good_version_stays() {
    let kind = index("HTTPRouteGroup", "specs.smi-spec.io");
    let good = json!({"matches": [{"name": "m", "pathRegex": "/a"}]});
    let bad = json!({"matches": [{"name": "m", "pathRegex": "("}]});
    let mut store = listed_store();
    store.apply_event(kind, custom_event(kind, "g", "2025-01-01T00:00:00Z", good.clone()));
    assert_eq!(describe_update(store.flush()), ["+ HTTPRouteGroup shop/g"]);
    store.apply_event(kind, custom_event(kind, "g", "2025-01-01T00:00:00Z", bad.clone()));
    let update = store.flush().unwrap();
    assert_eq!((update.changes.len(), update.rejected.len(), update.objects), (0, 1, 1));
    let refusal = update.rejected[0].to_string();
    assert!(refusal.starts_with("HTTPRouteGroup shop/g: spec.matches[0].pathRegex: "), "{refusal}");
    store.apply_event(kind, custom_event(kind, "g", "2025-01-01T00:00:00Z", good));
    let update = store.flush().unwrap();
    assert_eq!((update.changes.len(), update.rejected.len()), (0, 0));
    store.apply_event(kind, custom_event(kind, "g", "2025-01-01T00:00:00Z", bad));
    store.apply_event(kind, WatchEvent::Absent);
    let update = store.flush().unwrap();
    assert_eq!(update.rejected, []);
    assert_eq!(describe_update(Some(update)), ["- HTTPRouteGroup shop/g"]);
}

#[test]
fn of_two_mesh_configs_the_older_is_in_force() {
    let kind = index("MeshConfig", "leno.dev");
    let mut store = listed_store();
    let strict = json!({"defaultPolicy": "deny"});
    store.apply_event(kind, custom_event(kind, "a", "2025-01-02T00:00:00Z", json!({})));
    store.apply_event(kind, custom_event(kind, "b", "2025-01-01T00:00:00Z", strict));
    let update = store.flush().unwrap();
    let refusals: Vec<String> = update.rejected.iter().map(ToString::to_string).collect();
    assert_eq!(
        refusals,
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
fn one_name_in_two_groups_is_one_object() {
    let ours = index("UpstreamTrafficSetting", "policy.openservicemesh.io");
    let theirs = index("UpstreamTrafficSetting", "policy.flomesh.io");
    let spec = json!({"host": "web.shop.svc.cluster.local",
                      "connectionSettings": {"tcp": {"maxConnections": 3}}});
    let mut store = listed_store();
    store.apply_event(theirs, custom_event(theirs, "s", "2025-01-01T00:00:00Z", spec.clone()));
    store.apply_event(ours, custom_event(ours, "s", "2025-01-02T00:00:00Z", spec));
    let update = store.flush().unwrap();
    assert_eq!(update.rejected.len(), 1, "{:?}", update.rejected);
    assert_eq!(describe_update(Some(update)), ["+ UpstreamTrafficSetting shop/s"]);
    store.apply_event(theirs, WatchEvent::Absent);
    assert_eq!(store.flush().unwrap().rejected, []);
}

#[test]
fn namespaces_say_their_mode_where_the_mesh_config_does_not() {
    let kind = index("MeshConfig", "leno.dev");
    let default_policy =
        |config: &MeshConfig, name: &str| config.mode_in(&Name::new(name).unwrap());
    let mut store = listed_store();
    store.apply_event(NAMESPACES, namespace_event("shop", "deny"));
    store.apply_event(NAMESPACES, namespace_event("bank", "dry-run"));
    let found = updated_config(store.flush());
    assert_eq!(found.default_policy, DefaultPolicy::Allow);
    assert_eq!(default_policy(&found, "shop"), DefaultPolicy::Deny);
    let listed = json!({"namespaces": [{"name": "bank", "defaultPolicy": "deny"}]});
    store.apply_event(kind, custom_event(kind, "mesh", "2025-01-01T00:00:00Z", listed));
    let update = store.flush().unwrap();
    assert_eq!(update.warnings.len(), 1);
    let found = updated_config(Some(update));
    assert_eq!(default_policy(&found, "bank"), DefaultPolicy::Deny);
    assert_eq!(default_policy(&found, "shop"), DefaultPolicy::Deny);
    // An invalid value is ignored; without a previous valid one the default policy is `deny`.
    store.apply_event(NAMESPACES, namespace_event("shop", "permisive"));
    store.apply_event(NAMESPACES, namespace_event("new", "permisive"));
    let update = store.flush().unwrap();
    assert_eq!(update.rejected.len(), 2);
    let found = updated_config(Some(update));
    assert_eq!(default_policy(&found, "shop"), DefaultPolicy::Deny);
    assert_eq!(default_policy(&found, "new"), DefaultPolicy::Deny);
    store.apply_event(kind, removal_event("", "mesh"));
    for name in ["shop", "bank", "new"] {
        store.apply_event(NAMESPACES, removal_event("", name));
    }
    assert_eq!(describe_update(store.flush()), ["- MeshConfig"]);
}

fn annotated_namespace(name: &str, annotations: Value) -> WatchEvent {
    let object = json!({"metadata": {"name": name, "annotations": annotations}});
    WatchEvent::Seen(Box::new(ConvertedObject::from_namespace(
        serde_json::from_value(object).unwrap(),
    )))
}

/// An invalid object never replaces a working one.
#[test]
fn an_invalid_annotation_changes_nothing_in_a_namespace_that_was_read() {
    let mut store = listed_store();
    let mut admission_after = |name: &str, annotations: Value, rejected: usize| {
        store.apply_event(NAMESPACES, annotated_namespace(name, annotations));
        let update = store.flush();
        if let Some(update) = update {
            assert_eq!(update.rejected.len(), rejected, "{:?}", update.rejected);
        }
        store.namespaces.get(&Name::new(name).unwrap()).copied()
    };
    let (default_policy, mtls) = ("leno.dev/default-policy", "leno.dev/mtls");
    // No annotation, and then an invalid one: the default policy of the mesh stays in force.
    assert_eq!(admission_after("wv", json!({}), 0), None);
    assert_eq!(admission_after("wv", json!({mtls: "yes"}), 1), None);
    assert_eq!(admission_after("wv", json!({mtls: "yes", default_policy: "Deny"}), 2), None);
    // Each annotation counts by itself.
    let strict = AdmissionSettings { default_policy: Some(DefaultPolicy::Deny), mtls: None };
    assert_eq!(
        admission_after("wv", json!({mtls: "yes", default_policy: "deny"}), 1),
        Some(strict)
    );
    let accept = AdmissionSettings { mtls: Some(MtlsMode::Permissive), ..strict };
    assert_eq!(
        admission_after("wv", json!({mtls: "permissive", default_policy: "x"}), 1),
        Some(accept)
    );
    assert_eq!(admission_after("wv", json!({}), 0), None);
}

/// After a restart the last valid value is unknown, and the invalid one may be meant as the strictest one.
#[test]
fn an_annotation_that_is_wrong_at_the_first_look_is_the_strictest() {
    let mut store = listed_store();
    let mut first = |name: &str, annotations: Value| {
        store.apply_event(NAMESPACES, annotated_namespace(name, annotations));
        store.namespaces.get(&Name::new(name).unwrap()).copied()
    };
    let of = |default_policy, mtls| Some(AdmissionSettings { default_policy, mtls });
    let (default_policy, mtls) = ("leno.dev/default-policy", "leno.dev/mtls");
    let (strict, refuse) = (Some(DefaultPolicy::Deny), Some(MtlsMode::Strict));
    assert_eq!(first("a", json!({default_policy: "Allow"})), of(strict, None));
    // An invalid mutual TLS mode does not affect the default policy.
    assert_eq!(first("b", json!({mtls: "yes"})), of(None, refuse));
    let audit = json!({default_policy: "dry-run", mtls: "yes"});
    assert_eq!(first("c", audit), of(Some(DefaultPolicy::DryRun), refuse));
    // It stays so until it is corrected.
    assert_eq!(first("a", json!({default_policy: "Dry-run"})), of(strict, None));
    assert_eq!(
        first("a", json!({default_policy: "dry-run"})),
        of(Some(DefaultPolicy::DryRun), None)
    );
}

#[test]
fn an_invalid_annotation_changes_nothing_in_a_pod_that_was_read() {
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
    let wrong = json!({"leno.dev/mtls": "yes", "leno.dev/default-policy": "Allow"});
    assert_eq!(admission_after("1", wrong.clone()), AdmissionSettings::default());
    // Another pod of the same name has no previous state.
    let (default_policy, mtls) = (Some(DefaultPolicy::Deny), Some(MtlsMode::Strict));
    assert_eq!(admission_after("2", wrong), AdmissionSettings { default_policy, mtls });
}

#[test]
fn an_image_of_another_mesh_is_reported_beside_the_namespace() {
    let mut store = listed_store();
    let annotated = |annotations: Value| {
        let object = json!({"metadata": {"name": "shop", "annotations": annotations}});
        WatchEvent::Seen(Box::new(ConvertedObject::from_namespace(
            serde_json::from_value(object).unwrap(),
        )))
    };
    store.flush();
    store.apply_event(NAMESPACES, annotated(json!({"flomesh.io/sidecar-image": "pipy"})));
    let update = store.flush().unwrap();
    assert_eq!(update.warnings.len(), 1);
    assert!(update.changes.is_empty() && update.rejected.is_empty());
    let statement = store.changed_statements().unwrap().pop().unwrap();
    assert_eq!(statement.target.kind, "Namespace");
    assert!(statement.diagnostic.unwrap().contains("flomesh.io/sidecar-image"));
    store.apply_event(NAMESPACES, annotated(json!({})));
    assert_eq!(store.flush().unwrap().warnings, []);
}

#[test]
fn what_may_not_be_read_is_reported_and_the_rest_goes_on() {
    let routes = index("HTTPRoute", "gateway.networking.k8s.io");
    let mesh = index("MeshConfig", "leno.dev");
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
    store.apply_event(routes, WatchEvent::Begin);
    assert_eq!(store.flush().unwrap().warnings, []);
    store.apply_event(mesh, WatchEvent::Forbidden("no".to_owned()));
    let update = store.flush().unwrap();
    assert_eq!(update.mesh_config_in_doubt().count(), 1, "what is enforced is not known");
}

#[test]
fn nothing_is_reported_while_policies_may_not_be_read() {
    let targets = index("TrafficTarget", "access.smi-spec.io");
    let mut store = ObjectStore::new(watched_kinds());
    for kind in 0..watched_kinds().len() {
        let settled = if kind == targets {
            WatchEvent::Forbidden("no".to_owned())
        } else {
            WatchEvent::Absent
        };
        store.apply_event(kind, settled);
    }
    assert_eq!(store.flush(), None, "that none may be seen is not that there is none");
    let progress = store.progress();
    assert!(!progress.is_synced());
    let reported = progress.to_string();
    assert!(reported.contains("denies listing TrafficTarget"), "{reported}");
    store.apply_event(targets, WatchEvent::Begin);
    store.apply_event(targets, WatchEvent::Complete);
    assert!(store.progress().is_synced());
    assert!(store.flush().is_some());
}

#[test]
fn an_annotation_of_a_pod_that_is_no_mode_is_strict() {
    let mut store = listed_store();
    let annotated =
        |default_policy: &str| json!({"annotations": {"leno.dev/default-policy": default_policy}});
    let mut mode_after = |default_policy: &str| {
        store.apply_event(PODS, pod_event("a", annotated(default_policy)));
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
    let statements = store.changed_statements().unwrap();
    let Some(statement) = statements.first() else { return Vec::new() };
    let all = match &statement.content {
        StatusContent::Parents(parents) => {
            parents.iter().flat_map(|it| it.conditions.clone()).collect()
        }
        StatusContent::Conditions(all) => all.clone(),
        other => panic!("{other:?}"),
    };
    all.iter().map(|it| (it.word, it.status, it.reason)).collect()
}

const PROGRAMMED: (&str, &str, &str) = ("Programmed", "True", "Programmed");
const NOT_PROGRAMMED: (&str, &str, &str) = ("Programmed", "False", "Invalid");

fn route_spec(parent: Value, backend: Value) -> Value {
    json!({"parentRefs": [parent, {"name": "edge"}], "rules": [{"backendRefs": [backend]}]})
}

#[test]
fn a_policy_is_reported_whether_it_decides_and_its_targets_are_there() {
    let kind = index("OutlierDetection", "leno.dev");
    let outlier_detection = |name: &str, targets: Value| {
        custom_event(
            kind,
            name,
            "2025-01-01T00:00:00Z",
            json!({"targetRefs": targets, "consecutiveFailures": 3}),
        )
    };
    let web = || json!([{"kind": "Service", "name": "web"}]);
    let mut store = listed_store();
    store.apply_event(kind, outlier_detection("b", web()));
    let nowhere = [
        ("Accepted", "False", "TargetNotFound"),
        ("ResolvedRefs", "False", "TargetNotFound"),
        NOT_PROGRAMMED,
    ];
    assert_eq!(first_conditions(&mut store), nowhere);
    store.apply_event(SERVICES, service_event("web", 8080));
    let well =
        [("Accepted", "True", "Accepted"), ("ResolvedRefs", "True", "ResolvedRefs"), PROGRAMMED];
    assert_eq!(first_conditions(&mut store), well);
    // Another one is first in alphabetical order, and is in force alone.
    store.apply_event(kind, outlier_detection("a", web()));
    let statements = store.changed_statements().unwrap();
    let said = statements.iter().map(|it| match &it.content {
        StatusContent::Conditions(all) => (all[0].status, all[0].reason, all[0].message.clone()),
        other => panic!("{other:?}"),
    });
    let said: Vec<_> = said.collect();
    assert_eq!(said[0], ("True", "Accepted", "in force".to_owned()));
    let other = "OutlierDetection shop/a takes precedence at all of its targets".to_owned();
    assert_eq!(said[1], ("False", "Conflicted", other));
    // One of two targets is missing: the other one counts.
    store.apply_event(
        kind,
        outlier_detection(
            "a",
            json!([{"kind": "Service", "name": "web"}, {"kind": "Service", "name": "no"}]),
        ),
    );
    let half =
        [("Accepted", "True", "Accepted"), ("ResolvedRefs", "False", "TargetNotFound"), PROGRAMMED];
    assert_eq!(first_conditions(&mut store), half);
}

#[test]
fn a_policy_without_effect_is_accepted_and_not_programmed() {
    let kind = index("OutlierDetection", "leno.dev");
    let routes = index("HTTPRoute", "gateway.networking.k8s.io");
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
    let said = |store: &mut ObjectStore| {
        let statements = store.changed_statements().unwrap();
        let said = statements.iter().find_map(|it| match &it.content {
            StatusContent::Conditions(all) if it.target.name == "a" => Some(all.clone()),
            _ => None,
        });
        let said = said.unwrap().into_iter().filter(|it| it.word != "ResolvedRefs");
        said.map(|it| (it.word, it.status, it.reason, it.message)).collect::<Vec<_>>()
    };
    let programmed = |store: &mut ObjectStore| {
        let said = said(store);
        assert_eq!((said[0].0, said[0].1), ("Accepted", "True"));
        (said[1].0, said[1].1, said[1].2)
    };
    // It is the default of a backend without such a policy.
    assert_eq!(programmed(&mut store), PROGRAMMED);
    store.apply_event(kind, outlier_detection("own", "next"));
    let message = "HTTPRoute shop/away forwards all requests to shop/next, and each of these has its own policy, such as OutlierDetection shop/own";
    let unprogrammed = ("Programmed", "False", "Overridden", message.to_owned());
    assert_eq!(said(&mut store)[1], unprogrammed);
}

#[test]
fn rules_about_tags_are_not_programmed_where_a_route_forwards_everything() {
    let kind = index("TagRoute", "leno.dev");
    let routes = index("HTTPRoute", "gateway.networking.k8s.io");
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
    let statements = store.changed_statements().unwrap();
    let said = statements.iter().find_map(|it| match &it.content {
        StatusContent::Conditions(all) if it.target.name == "a" => Some(all),
        _ => None,
    });
    let programmed = said.unwrap().iter().find(|it| it.word == "Programmed").unwrap();
    assert_eq!((programmed.status, programmed.reason), ("False", "Overridden"));
}

#[test]
fn a_policy_that_decides_by_request_is_not_programmed_on_a_port_that_carries_tcp() {
    let kind = index("Hedging", "leno.dev");
    let mut store = listed_store();
    let service = |protocol: &str| {
        let service: Served = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"clusterIP": "10.0.0.1", "selector": {"app": "web"},
                     "ports": [{"name": "a", "port": 90, "appProtocol": "tcp"},
                               {"name": "b", "port": 80, "appProtocol": protocol}]},
        }))
        .unwrap();
        WatchEvent::Seen(Box::new(ConvertedObject::from_service(service)))
    };
    store.apply_event(SERVICES, service("tcp"));
    let spec = json!({"targetRefs": [{"kind": "Service", "name": "web"}], "after": "50ms"});
    store.apply_event(kind, custom_event(kind, "a", "2025-01-01T00:00:00Z", spec));
    let not_programmed = ("Programmed", "False", "NoRequests");
    let said = first_conditions(&mut store);
    assert_eq!((said[0], said[2]), (("Accepted", "True", "Accepted"), not_programmed));
    store.apply_event(SERVICES, service("http"));
    assert_eq!(first_conditions(&mut store)[2], PROGRAMMED);
}

#[test]
fn a_lane_whose_service_is_not_there_is_reported_so() {
    let kind = index("Lane", "leno.dev");
    let mut store = listed_store();
    let rules = json!([{"marks": [{"percent": 60, "headers": {"x-lane": "gray"}}]}]);
    let spec = json!({"service": "web", "rules": rules});
    store.apply_event(kind, custom_event(kind, "gray", "2025-01-01T00:00:00Z", spec));
    assert_eq!(first_conditions(&mut store)[0], ("Accepted", "False", "TargetNotFound"));
    store.apply_event(SERVICES, service_event("web", 8080));
    assert_eq!(first_conditions(&mut store)[0], ("Accepted", "True", "Accepted"));
}

#[test]
fn routes_are_reported_whether_what_they_name_is_there() {
    let kind = index("HTTPRoute", "gateway.networking.k8s.io");
    let parent =
        |name: &str, port: u16| json!({"group": "", "kind": "Service", "name": name, "port": port});
    let backend = |name: &str, port: u16| json!({"name": name, "port": port});
    let other_namespace = json!({"name": "web", "namespace": "bank", "port": 80});
    let bucket = json!({"group": "x.io", "kind": "Bucket", "name": "web", "port": 80});
    let text = json!({"name": "web", "port": "80"});
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
        (route_spec(parent("web", 80), text), ("False", "UnsupportedValue", "Unknown", "Pending")),
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
        assert!(store.changed_statements().is_none(), "nothing is new");
    }
}

#[test]
fn what_is_said_follows_services_and_grants() {
    let kind = index("HTTPRoute", "gateway.networking.k8s.io");
    let parent = json!({"group": "", "kind": "Service", "name": "web"});
    let spec = route_spec(parent, json!({"name": "web", "port": 80}));
    let mut store = listed_store();
    store.apply_event(kind, custom_event(kind, "r", "2025-01-01T00:00:00Z", spec));
    assert_eq!(first_conditions(&mut store)[0].2, "NoMatchingParent");
    store.apply_event(SERVICES, service_event("web", 8080));
    assert_eq!(first_conditions(&mut store)[0].2, "Accepted");
    store.apply_event(PODS, pod_event("a", json!({})));
    assert!(store.changed_statements().is_none(), "pods change nothing of it");
}

#[test]
fn what_stands_in_a_status_is_not_said_again() {
    let kind = index("CircuitBreaker", "leno.dev");
    let spec = |most: Value, status: Value| {
        let targets = json!([{"kind": "Service", "group": "", "name": "web"}]);
        json!({"targetRefs": targets, "limits": {"connections": most}, "status": status})
    };
    let mut store = listed_store();
    let first = spec(json!("many"), json!({}));
    store.apply_event(kind, custom_event(kind, "c", "2025-01-01T00:00:00Z", first));
    let unread =
        [("Accepted", "False", "Invalid"), ("ResolvedRefs", "Unknown", "Pending"), NOT_PROGRAMMED];
    assert_eq!(first_conditions(&mut store), unread);
    let statement = |store: &mut ObjectStore| {
        store.statuses_stale = true;
        store.changed_statements().unwrap().pop()
    };
    let written = statement(&mut store).unwrap().changed_status(&json!("now")).unwrap();
    let again = spec(json!("many"), written);
    store.apply_event(kind, custom_event(kind, "c", "2025-01-01T00:00:00Z", again));
    let left = statement(&mut store).unwrap();
    assert_eq!(left.changed_status(&json!("later")), None);
    assert!(
        left.refusal.unwrap().starts_with("spec.limits.connections: "),
        "there is still an event"
    );
}

#[test]
fn what_no_longer_holds_is_taken_back() {
    let kind = index("TagRoute", "leno.dev");
    let mut store = listed_store();
    let mut written = json!({});
    for (scope, resolved) in [
        (json!({"service": "web"}), "False"),
        (json!({"service": 7}), "Unknown"),
        (json!({"scope": "namespace"}), "True"),
    ] {
        let mut spec = json!({"preferSameTag": [{"tags": ["rack"]}], "status": written});
        spec.as_object_mut().unwrap().extend(scope.as_object().unwrap().clone());
        store.apply_event(kind, custom_event(kind, "t", "2025-01-01T00:00:00Z", spec));
        store.statuses_stale = true;
        let statement = store.changed_statements().unwrap().pop().unwrap();
        written = statement.changed_status(&json!("now")).unwrap();
        let conditions = written["conditions"].as_array().unwrap();
        assert_eq!(conditions.len(), 3, "{written}");
        assert_eq!(conditions[1]["status"], resolved, "{written}");
    }
}

#[test]
fn policies_are_judged_beside_those_of_their_services() {
    let kind = index("OutlierDetection", "leno.dev");
    let of_namespace = index("SermantRemoval", "leno.dev");
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
    let published = custom_event(of_namespace, "a", "2025-01-01T00:00:00Z", published);
    store.apply_event(of_namespace, published);
    store.apply_event(kind, outlier_detection("b", "web"));
    store.apply_event(kind, outlier_detection("c", "web"));
    let said = |store: &mut ObjectStore| -> BTreeMap<String, &'static str> {
        store.statuses_stale = true;
        let statements = store.changed_statements().unwrap();
        let said = statements.iter().map(|it| match &it.content {
            StatusContent::Conditions(all) => {
                assert_eq!(it.refusal, None);
                (it.target.name.clone(), all[0].reason)
            }
            other => panic!("{other:?}"),
        });
        said.collect()
    };
    let expected = |all: &[(&str, &'static str)]| -> BTreeMap<String, &'static str> {
        all.iter().map(|(name, reason)| ((*name).to_owned(), *reason)).collect()
    };
    let both = [("a", "Accepted"), ("b", "Accepted"), ("c", "Conflicted")];
    assert_eq!(said(&mut store), expected(&both));
    // When each service has a policy of its own, nothing is left for that of the namespace.
    store.apply_event(kind, outlier_detection("d", "db"));
    let all = [("a", "Conflicted"), ("b", "Accepted"), ("c", "Conflicted"), ("d", "Accepted")];
    assert_eq!(said(&mut store), expected(&all));
}

#[test]
fn a_route_that_went_over_to_gateways_says_nothing_of_ours() {
    let kind = index("HTTPRoute", "gateway.networking.k8s.io");
    let ours =
        json!({"controllerName": "leno.dev/mesh-controller", "parentRef": {}, "conditions": []});
    let theirs = json!({"controllerName": "x/y", "parentRef": {}, "conditions": []});
    let spec =
        |parents: Value| json!({"parentRefs": [{"name": "edge"}], "status": {"parents": parents}});
    let mut store = listed_store();
    store.apply_event(
        kind,
        custom_event(kind, "r", "2025-01-01T00:00:00Z", spec(json!([theirs, ours]))),
    );
    let statement = store.changed_statements().unwrap().pop().unwrap();
    assert_eq!(statement.changed_status(&Value::Null), Some(json!({"parents": [theirs]})));
    store.apply_event(kind, custom_event(kind, "r", "2025-01-01T00:00:00Z", spec(json!([theirs]))));
    assert!(store.changed_statements().unwrap().is_empty());
}

#[test]
fn pods_without_a_sidecar_are_known_once_a_pod_of_their_service_has_one() {
    let member =
        || pod_event("meshed", json!({"labels": {"app": "web", "leno.dev/meshed": "sidecar"}}));
    let plain = || pod_event("plain", json!({"labels": {"app": "web"}}));
    let sorted = |update: Option<RegistryUpdate>| {
        let mut reported = describe_update(update);
        reported.sort();
        reported
    };
    let mut store = listed_store();
    store.apply_event(SERVICES, service_event("web", 80));
    store.apply_event(PODS, plain());
    assert_eq!(describe_update(store.flush()), ["+ Service shop/web"]);
    store.apply_event(PODS, member());
    assert_eq!(sorted(store.flush()), ["+ Workload shop/meshed", "+ Workload shop/plain"]);
    // Clients keep connections to the service when the last sidecar is gone.
    store.apply_event(PODS, removal_event("shop", "meshed"));
    assert_eq!(describe_update(store.flush()), ["- Workload shop/meshed"]);
    // In another order, as after a start of the control plane.
    let mut store = listed_store();
    store.apply_event(PODS, member());
    store.apply_event(PODS, plain());
    store.apply_event(SERVICES, service_event("web", 80));
    let all = ["+ Service shop/web", "+ Workload shop/meshed", "+ Workload shop/plain"];
    assert_eq!(sorted(store.flush()), all);
}

#[test]
fn pods_in_the_network_of_their_node_are_known_once_a_pod_of_their_service_has_a_sidecar() {
    let plain: Pod = serde_json::from_value(json!({
        "metadata": {"name": "agent", "namespace": "shop", "labels": {"app": "web"}},
        "spec": {"hostNetwork": true, "containers": [{"name": "web"}]},
        "status": {"podIP": "192.0.2.7", "conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .unwrap();
    let mut store = listed_store();
    store.apply_event(SERVICES, service_event("web", 80));
    store.apply_event(PODS, WatchEvent::Seen(Box::new(ConvertedObject::from_pod(plain))));
    assert_eq!(describe_update(store.flush()), ["+ Service shop/web"]);
    // Its image cannot be pulled.
    let mut broken = pod_event("broken", json!({}));
    if let WatchEvent::Seen(seen) = &mut broken
        && let Some(MeshItem::Pod(Ok(member))) = &mut seen.item
    {
        member.workload.ready = false;
    }
    store.apply_event(PODS, broken);
    let mut reported = describe_update(store.flush());
    reported.sort();
    assert_eq!(reported, ["+ Workload shop/agent", "+ Workload shop/broken"]);
}

#[test]
fn pods_without_a_sidecar_are_known_where_a_name_leads_to_them() {
    let sorted = |update: Option<RegistryUpdate>| {
        let mut reported = describe_update(update);
        reported.sort();
        reported
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
