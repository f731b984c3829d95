//! Settings of another mesh in the cluster, zones of nodes, and events about rejected or unsupported settings.

use std::time::{Duration, Instant};

use leno_kubernetes::source::{KubernetesSource, SourceOptions};
use leno_kubernetes::status::reconcile_statuses;
use leno_model::{DefaultPolicy, Egress, MeshConfig, Name, Object, ObjectKey, TagRouteName};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::server::{ApiServerProcess, run};
use crate::source_updates::SourceUpdates;

fn mesh_settings(updates: &SourceUpdates) -> Option<&MeshConfig> {
    match updates.objects.get(&ObjectKey::MeshConfig) {
        Some(Object::MeshConfig(config)) => Some(config),
        _ => None,
    }
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn the_settings_of_osm_are_followed() {
    run(async {
        let server = ApiServerProcess::start().await;
        server.create_namespace("osm-system").await;
        let namespaces = [Name::new("osm-system").unwrap()].into();
        let source = KubernetesSource::new(server.admin_client().await, SourceOptions::default());
        let mut updates = SourceUpdates::from_source(source.with_settings_namespaces(namespaces));
        updates.wait_until("a first update", |updates| updates.update_count == 1).await;
        assert_eq!(mesh_settings(&updates), None);
        server.define_kind(OSM_MESH_CONFIG).await;
        // An older object in another namespace.
        server.create_namespace("shop").await;
        let permissive = json!({"enablePermissiveTrafficPolicyMode": true, "enableEgress": true});
        let permissive = json!({"spec": {"traffic": permissive}});
        server.apply_object(OSM_MESH_CONFIG, Some("shop"), "osm-mesh-config", permissive).await;
        updates
            .wait_until("a warning", |updates| {
                updates
                    .warnings
                    .iter()
                    .any(|warning| warning.to_string().contains("--settings-namespaces shop"))
            })
            .await;
        assert_eq!(mesh_settings(&updates), None);
        let traffic = json!({"enableEgress": true});
        let spec = json!({"spec": {"traffic": traffic}});
        server.apply_object(OSM_MESH_CONFIG, Some("osm-system"), "osm-mesh-config", spec).await;
        updates
            .wait_until("a mesh that denies by default", |updates| {
                let admission_and_egress =
                    mesh_settings(updates).map(|config| (config.default_policy, config.egress));
                admission_and_egress == Some((DefaultPolicy::Deny, Egress::Allow))
            })
            .await;
        let spec = json!({"spec": {"traffic": {"enablePermissiveTrafficPolicyMode": true}}});
        server.apply_object(OSM_MESH_CONFIG, Some("osm-system"), "osm-mesh-config", spec).await;
        updates
            .wait_until("a mesh that allows by default", |updates| {
                mesh_settings(updates)
                    .is_some_and(|config| config.default_policy == DefaultPolicy::Allow)
            })
            .await;
    });
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn node_zones_and_service_settings_are_followed() {
    run(async {
        let server = ApiServerProcess::start().await;
        server.create_namespace("shop").await;
        let labels = json!({"topology.kubernetes.io/zone": "east"});
        server.apply_object("v1/Node", None, "n1", json!({"metadata": {"labels": labels}})).await;
        let pod = json!({
            "metadata": {"labels": {"app": "web", "leno.dev/meshed": "sidecar"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "web", "image": "none"}]},
            "status": {"phase": "Running", "podIP": "10.9.0.1"},
        });
        server.apply_object("v1/Pod", Some("shop"), "web-1", pod).await;
        let ports = json!([{"port": 80, "protocol": "TCP"}]);
        let service = json!({
            "selector": {"app": "web"}, "ports": ports, "trafficDistribution": "PreferClose",
        });
        server.apply_object("v1/Service", Some("shop"), "web", json!({"spec": service})).await;
        let mut updates = SourceUpdates::from_client(server.admin_client().await);
        updates
            .wait_until("a workload in its zone", |updates| {
                updates.objects.values().any(|object| match object {
                    Object::Workload(workload) => workload
                        .labels
                        .get("topology.kubernetes.io/zone")
                        .is_some_and(|zone| zone == "east"),
                    _ => false,
                })
            })
            .await;
        let name: TagRouteName = "shop/web.traffic-distribution".parse().unwrap();
        updates
            .wait_until("a preference", |updates| {
                updates.objects.contains_key(&ObjectKey::TagRoute(name.clone()))
            })
            .await;
    });
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn rejected_or_unsupported_settings_have_events() {
    run(async {
        let server = ApiServerProcess::start().await;
        server.create_namespace("shop").await;
        let invalid = json!({"metadata": {"annotations": {"leno.dev/default-policy": "dney"}}});
        server.apply_object("v1/Namespace", None, "shop", invalid.clone()).await;
        let pod = json!({
            "metadata": {
                "labels": {"a": "b", "leno.dev/meshed": "sidecar"},
                "annotations": {"leno.dev/mtls": "yes"},
            },
            "spec": {"containers": [{"name": "web", "image": "none"}]},
            "status": {"phase": "Running", "podIP": "10.9.0.1"},
        });
        server.apply_object("v1/Pod", Some("shop"), "web-1", pod).await;
        let ports = json!([{"port": 80, "protocol": "TCP"}]);
        let service =
            json!({"selector": {"a": "b"}, "ports": ports, "sessionAffinity": "ClientIP"});
        server.apply_object("v1/Service", Some("shop"), "web", json!({"spec": service})).await;

        let source = KubernetesSource::new(server.admin_client().await, SourceOptions::default());
        let statuses = source.subscribe_statuses();
        let mut tasks = JoinSet::new();
        let (_leader_sender, is_leader) = watch::channel(true);
        let name = "leno-control-a".to_owned();
        tasks.spawn(reconcile_statuses(
            server.admin_client().await,
            name,
            statuses,
            is_leader,
            watch::Sender::default(),
        ));
        let (update_sender, mut update_receiver) = mpsc::channel(4);
        tasks.spawn(source.send_updates(update_sender));
        tasks.spawn(async move { while update_receiver.recv().await.is_some() {} });

        let deadline = Instant::now() + MAX_WAIT;
        for (namespace, kind, reason, text) in [
            ("default", "Namespace", "Rejected", "leno.dev/default-policy"),
            ("shop", "Pod", "Rejected", "leno.dev/mtls"),
            ("shop", "Service", "UnsupportedField", "spec.sessionAffinity"),
        ] {
            loop {
                let events = server.list_events(namespace).await;
                let matches = |event: &Value| {
                    event["regarding"]["kind"] == kind
                        && event["reason"] == reason
                        && event["note"].as_str().is_some_and(|note| note.contains(text))
                };
                if events.iter().any(matches) {
                    break;
                }
                assert!(Instant::now() < deadline, "no event of {kind}: {events:?}");
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
    });
}

const OSM_MESH_CONFIG: &str = "config.openservicemesh.io/v1alpha2/MeshConfig";
const MAX_WAIT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
