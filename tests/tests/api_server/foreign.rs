//! Settings of another mesh in the cluster, and events about its objects.

use std::time::{Duration, Instant};

use leno_kubernetes::source::{KubernetesSource, SourceOptions};
use leno_kubernetes::status::keep_statuses;
use leno_model::{DefaultPolicy, Egress, MeshConfig, Name, Object, ObjectKey, TagRouteName};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::server::{ApiServerProcess, run};
use crate::source_updates::SourceUpdates;

fn mesh_settings(world: &SourceUpdates) -> Option<&MeshConfig> {
    match world.objects.get(&ObjectKey::MeshConfig) {
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
        let named = [Name::new("osm-system").unwrap()].into();
        let source = KubernetesSource::new(server.admin_client().await, SourceOptions::default());
        let mut world = SourceUpdates::from_source(source.with_settings_of(named));
        world.wait_until("a first picture", |world| world.updates == 1).await;
        assert_eq!(mesh_settings(&world), None);
        server.define_kind(OSM).await;
        // An older object in another namespace.
        server.create_namespace("shop").await;
        let open = json!({"enablePermissiveTrafficPolicyMode": true, "enableEgress": true});
        let open = json!({"spec": {"traffic": open}});
        server.apply_object(OSM, Some("shop"), "osm-mesh-config", open).await;
        world
            .wait_until("a warning", |world| {
                world
                    .warnings
                    .iter()
                    .any(|it| it.to_string().contains("--settings-namespaces shop"))
            })
            .await;
        assert_eq!(mesh_settings(&world), None);
        let traffic = json!({"enableEgress": true});
        let spec = json!({"spec": {"traffic": traffic}});
        server.apply_object(OSM, Some("osm-system"), "osm-mesh-config", spec).await;
        world
            .wait_until("a mesh that denies by default", |world| {
                let found = mesh_settings(world).map(|it| (it.default_policy, it.egress));
                found == Some((DefaultPolicy::Deny, Egress::Allow))
            })
            .await;
        let spec = json!({"spec": {"traffic": {"enablePermissiveTrafficPolicyMode": true}}});
        server.apply_object(OSM, Some("osm-system"), "osm-mesh-config", spec).await;
        world
            .wait_until("a mesh that allows by default", |world| {
                mesh_settings(world).is_some_and(|it| it.default_policy == DefaultPolicy::Allow)
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
        let near = json!({
            "selector": {"app": "web"}, "ports": ports, "trafficDistribution": "PreferClose",
        });
        server.apply_object("v1/Service", Some("shop"), "web", json!({"spec": near})).await;
        let mut world = SourceUpdates::from_client(server.admin_client().await);
        world
            .wait_until("a workload in its zone", |world| {
                world.objects.values().any(|object| match object {
                    Object::Workload(workload) => workload
                        .labels
                        .get("topology.kubernetes.io/zone")
                        .is_some_and(|zone| zone == "east"),
                    _ => false,
                })
            })
            .await;
        let name: TagRouteName = "shop/web.traffic-distribution".parse().unwrap();
        world
            .wait_until("a preference", |world| {
                world.objects.contains_key(&ObjectKey::TagRoute(name.clone()))
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
        let wrong = json!({"metadata": {"annotations": {"leno.dev/default-policy": "dney"}}});
        server.apply_object("v1/Namespace", None, "shop", wrong.clone()).await;
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
        let sticky = json!({"selector": {"a": "b"}, "ports": ports, "sessionAffinity": "ClientIP"});
        server.apply_object("v1/Service", Some("shop"), "web", json!({"spec": sticky})).await;

        let source = KubernetesSource::new(server.admin_client().await, SourceOptions::default());
        let statements = source.subscribe_statements();
        let mut tasks = JoinSet::new();
        let (_leads, leading) = watch::channel(true);
        let name = "leno-control-a".to_owned();
        tasks.spawn(keep_statuses(
            server.admin_client().await,
            name,
            statements,
            leading,
            watch::Sender::default(),
        ));
        let (output, mut queue) = mpsc::channel(4);
        tasks.spawn(source.send_updates(output));
        tasks.spawn(async move { while queue.recv().await.is_some() {} });

        let deadline = Instant::now() + MAX_WAIT;
        for (namespace, kind, reason, part) in [
            ("default", "Namespace", "Rejected", "leno.dev/default-policy"),
            ("shop", "Pod", "Rejected", "leno.dev/mtls"),
            ("shop", "Service", "UnsupportedField", "spec.sessionAffinity"),
        ] {
            loop {
                let events = server.list_events(namespace).await;
                let is_it = |event: &Value| {
                    event["regarding"]["kind"] == kind
                        && event["reason"] == reason
                        && event["note"].as_str().is_some_and(|note| note.contains(part))
                };
                if events.iter().any(is_it) {
                    break;
                }
                assert!(Instant::now() < deadline, "no event of {kind}: {events:?}");
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    });
}

const OSM: &str = "config.openservicemesh.io/v1alpha2/MeshConfig";
const MAX_WAIT: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);
