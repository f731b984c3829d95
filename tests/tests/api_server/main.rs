//! Configuration from a real API server without nodes: objects are created, changed and deleted.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its fixture too"
)]
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "tests write and read objects by any name"
)]

mod certificates;
mod examined;
mod foreign;
mod gateways;
mod inject;
mod installed;
mod issuer;
mod migration;
mod refusals;
mod rights;
mod rules;
mod server;
mod source_updates;
mod statuses;
mod unknown_fields;

use leno_model::{Object, ObjectKey, ServiceName, WorkloadName};
use serde_json::json;

use crate::server::{ApiServerProcess, run};
use crate::source_updates::SourceUpdates;

fn workload_key(name: &str) -> ObjectKey {
    ObjectKey::Workload(WorkloadName::new("shop", name).unwrap())
}

fn service_key(name: &str) -> ObjectKey {
    ObjectKey::Service(ServiceName::new("shop", name).unwrap())
}

fn group_key(name: &str) -> ObjectKey {
    ObjectKey::HttpRouteGroup(format!("shop/{name}").parse().unwrap())
}

fn workload_ports(world: &SourceUpdates, name: &str) -> Vec<u16> {
    match world.objects.get(&workload_key(name)) {
        Some(Object::Workload(workload)) => workload.ports.iter().map(|port| port.port).collect(),
        _ => Vec::new(),
    }
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn objects_come_change_and_go() {
    run(async {
        let server = ApiServerProcess::start().await;
        server.create_namespace("shop").await;
        server.create_pod("web-1", "10.9.0.1").await;
        let mut world = SourceUpdates::from_client(server.admin_client().await);
        world.wait_until("a first picture", |world| world.updates == 1).await;
        assert!(world.progress.borrow().is_synced());
        assert!(world.objects.contains_key(&workload_key("web-1")));

        server.create_service("web", 8080).await;
        world
            .wait_until("the port of the service", |world| workload_ports(world, "web-1") == [8080])
            .await;
        assert!(world.objects.contains_key(&service_key("web")));
        server.create_service("web", 8081).await;
        world.wait_until("its new port", |world| workload_ports(world, "web-1") == [8081]).await;

        server
            .apply_object(
                "v1/Namespace",
                None,
                "shop",
                json!({"metadata": {
                    "annotations": {"leno.dev/default-policy": "deny"},
                }}),
            )
            .await;
        world
            .wait_until("a mode", |world| world.objects.contains_key(&ObjectKey::MeshConfig))
            .await;

        server.create_pod("web-2", "10.9.0.2").await;
        server.delete_object("v1/Pod", Some("shop"), "web-1").await;
        world
            .wait_until("another pod", |world| {
                !world.objects.contains_key(&workload_key("web-1"))
                    && workload_ports(world, "web-2") == [8081]
            })
            .await;
        server.delete_object("v1/Service", Some("shop"), "web").await;
        world.wait_until("no port", |world| workload_ports(world, "web-2").is_empty()).await;
        assert!(!world.objects.contains_key(&service_key("web")));
    });
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn kinds_come_later_and_their_last_good_objects_stay() {
    run(async {
        let server = ApiServerProcess::start().await;
        server.create_namespace("shop").await;
        let mut world = SourceUpdates::from_client(server.admin_client().await);
        world.wait_until("a first picture", |world| world.updates == 1).await;

        server.define_kind(GROUPS).await;
        let spec = |path: &str| json!({"spec": {"matches": [{"name": "m", "pathRegex": path}]}});
        server.apply_object(GROUPS, Some("shop"), "g", spec("/a")).await;
        world
            .wait_until("a kind that came later", |world| {
                world.objects.contains_key(&group_key("g"))
            })
            .await;

        server.apply_object(GROUPS, Some("shop"), "g", spec("(")).await;
        world.wait_until("a refusal", |world| world.rejected.len() == 1).await;
        let refused = world.rejected[0].to_string();
        assert!(
            refused.starts_with("HTTPRouteGroup shop/g: spec.matches[0].pathRegex"),
            "{refused}"
        );
        assert!(world.objects.contains_key(&group_key("g")), "the last good version stays");

        server.apply_object(GROUPS, Some("shop"), "g", spec("/b")).await;
        world.wait_until("no refusal", |world| world.rejected.is_empty()).await;
        server.delete_object(DEFINITIONS, None, "httproutegroups.specs.smi-spec.io").await;
        world
            .wait_until("nothing of it", |world| !world.objects.contains_key(&group_key("g")))
            .await;
        // And once more: the kind is discovered again.
        server.define_kind(GROUPS).await;
        server.apply_object(GROUPS, Some("shop"), "h", spec("/c")).await;
        world
            .wait_until("the kind again", |world| world.objects.contains_key(&group_key("h")))
            .await;
    });
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn unreadable_kinds_are_reported_and_others_are_read() {
    run(async {
        let server = ApiServerProcess::start().await;
        server.create_namespace("shop").await;
        server.define_kind(GROUPS).await;
        server.allow_reading("reader", &["pods", "services", "namespaces"]).await;
        server.create_pod("web-1", "10.9.0.1").await;
        let mut world = SourceUpdates::from_client(server.client_as("reader").await);
        world.wait_until("a first picture", |world| world.updates == 1).await;
        assert!(world.objects.contains_key(&workload_key("web-1")));
        let warnings: Vec<String> = world.warnings.iter().map(ToString::to_string).collect();
        let kinds = ["EndpointSlice", "EndpointSlice of the API server", "HTTPRouteGroup", "Node"];
        assert_eq!(warnings.len(), kinds.len(), "{warnings:?}");
        for (warning, kind) in warnings.iter().zip(kinds) {
            let expected = format!("{kind}: the API server denies");
            assert!(warning.starts_with(&expected), "{warnings:?}");
        }
        server.create_pod("web-2", "10.9.0.2").await;
        world
            .wait_until("what may be read", |it| it.objects.contains_key(&workload_key("web-2")))
            .await;
    });
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn watches_resume_after_a_restart_of_the_api_server() {
    run(async {
        let mut server = ApiServerProcess::start().await;
        server.create_namespace("shop").await;
        for (name, address) in [("web-1", "10.9.0.1"), ("web-2", "10.9.0.2")] {
            server.create_pod(name, address).await;
        }
        let mut world = SourceUpdates::from_client(server.admin_client().await);
        world.wait_until("a first picture", |world| world.updates == 1).await;
        server.restart_server().await;
        server.delete_object("v1/Pod", Some("shop"), "web-1").await;
        server.create_pod("web-3", "10.9.0.3").await;
        world
            .wait_until("what happened since", |world| {
                !world.objects.contains_key(&workload_key("web-1"))
                    && world.objects.contains_key(&workload_key("web-3"))
            })
            .await;
        assert!(world.objects.contains_key(&workload_key("web-2")));
        assert_eq!(world.gone, [workload_key("web-1")], "nothing went that was there");
    });
}

const GROUPS: &str = "specs.smi-spec.io/v1alpha4/HTTPRouteGroup";
const DEFINITIONS: &str = "apiextensions.k8s.io/v1/CustomResourceDefinition";
