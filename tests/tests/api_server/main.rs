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

mod admission;
mod certificates;
mod examined;
mod foreign;
mod gateways;
mod inject;
mod installed;
mod issuer;
mod migration;
mod permissions;
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

fn workload_ports(source: &SourceUpdates, name: &str) -> Vec<u16> {
    match source.objects.get(&workload_key(name)) {
        Some(Object::Workload(workload)) => workload.ports.iter().map(|port| port.port).collect(),
        _ => Vec::new(),
    }
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn created_changed_and_deleted_objects_are_followed() {
    run(async {
        let server = ApiServerProcess::start().await;
        server.create_namespace("shop").await;
        server.create_pod("web-1", "10.9.0.1").await;
        let mut source = SourceUpdates::from_client(server.admin_client().await);
        source.wait_until("a first update", |source| source.update_count == 1).await;
        assert!(source.progress.borrow().is_synced());
        assert!(source.objects.contains_key(&workload_key("web-1")));

        server.create_service("web", 8080).await;
        source
            .wait_until("the port of the service", |source| {
                workload_ports(source, "web-1") == [8080]
            })
            .await;
        assert!(source.objects.contains_key(&service_key("web")));
        server.create_service("web", 8081).await;
        source.wait_until("its new port", |source| workload_ports(source, "web-1") == [8081]).await;

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
        source
            .wait_until("a mode", |source| source.objects.contains_key(&ObjectKey::MeshConfig))
            .await;

        server.create_pod("web-2", "10.9.0.2").await;
        server.delete_object("v1/Pod", Some("shop"), "web-1").await;
        source
            .wait_until("another pod", |source| {
                !source.objects.contains_key(&workload_key("web-1"))
                    && workload_ports(source, "web-2") == [8081]
            })
            .await;
        server.delete_object("v1/Service", Some("shop"), "web").await;
        source.wait_until("no port", |source| workload_ports(source, "web-2").is_empty()).await;
        assert!(!source.objects.contains_key(&service_key("web")));
    });
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn later_kinds_are_read_and_their_last_valid_objects_stay() {
    run(async {
        let server = ApiServerProcess::start().await;
        server.create_namespace("shop").await;
        let mut source = SourceUpdates::from_client(server.admin_client().await);
        source.wait_until("a first update", |source| source.update_count == 1).await;

        server.define_kind(HTTP_ROUTE_GROUPS).await;
        let spec = |path: &str| json!({"spec": {"matches": [{"name": "m", "pathRegex": path}]}});
        server.apply_object(HTTP_ROUTE_GROUPS, Some("shop"), "g", spec("/a")).await;
        source
            .wait_until("a kind defined later", |source| {
                source.objects.contains_key(&group_key("g"))
            })
            .await;

        server.apply_object(HTTP_ROUTE_GROUPS, Some("shop"), "g", spec("(")).await;
        source.wait_until("a rejection", |source| source.rejected.len() == 1).await;
        let rejection = source.rejected[0].to_string();
        assert!(
            rejection.starts_with("HTTPRouteGroup shop/g: spec.matches[0].pathRegex"),
            "{rejection}"
        );
        assert!(source.objects.contains_key(&group_key("g")), "the last valid version stays");

        server.apply_object(HTTP_ROUTE_GROUPS, Some("shop"), "g", spec("/b")).await;
        source.wait_until("no rejection", |source| source.rejected.is_empty()).await;
        server.delete_object(DEFINITIONS, None, "httproutegroups.specs.smi-spec.io").await;
        source
            .wait_until("the removal of its objects", |source| {
                !source.objects.contains_key(&group_key("g"))
            })
            .await;
        // A kind that is defined again is discovered again.
        server.define_kind(HTTP_ROUTE_GROUPS).await;
        server.apply_object(HTTP_ROUTE_GROUPS, Some("shop"), "h", spec("/c")).await;
        source
            .wait_until("the kind again", |source| source.objects.contains_key(&group_key("h")))
            .await;
    });
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn unreadable_kinds_are_reported_and_others_are_read() {
    run(async {
        let server = ApiServerProcess::start().await;
        server.create_namespace("shop").await;
        server.define_kind(HTTP_ROUTE_GROUPS).await;
        server.allow_reading("reader", &["pods", "services", "namespaces"]).await;
        server.create_pod("web-1", "10.9.0.1").await;
        let mut source = SourceUpdates::from_client(server.client_as("reader").await);
        source.wait_until("a first update", |source| source.update_count == 1).await;
        assert!(source.objects.contains_key(&workload_key("web-1")));
        let warnings: Vec<String> = source.warnings.iter().map(ToString::to_string).collect();
        let kinds = ["EndpointSlice", "EndpointSlice of the API server", "HTTPRouteGroup", "Node"];
        assert_eq!(warnings.len(), kinds.len(), "{warnings:?}");
        for (warning, kind) in warnings.iter().zip(kinds) {
            let expected = format!("{kind}: the API server denies");
            assert!(warning.starts_with(&expected), "{warnings:?}");
        }
        server.create_pod("web-2", "10.9.0.2").await;
        source
            .wait_until("a change of a readable kind", |source| {
                source.objects.contains_key(&workload_key("web-2"))
            })
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
        let mut source = SourceUpdates::from_client(server.admin_client().await);
        source.wait_until("a first update", |source| source.update_count == 1).await;
        server.restart_server().await;
        server.delete_object("v1/Pod", Some("shop"), "web-1").await;
        server.create_pod("web-3", "10.9.0.3").await;
        source
            .wait_until("the changes since the restart", |source| {
                !source.objects.contains_key(&workload_key("web-1"))
                    && source.objects.contains_key(&workload_key("web-3"))
            })
            .await;
        assert!(source.objects.contains_key(&workload_key("web-2")));
        assert_eq!(source.removed, [workload_key("web-1")], "only the deleted object was removed");
    });
}

const HTTP_ROUTE_GROUPS: &str = "specs.smi-spec.io/v1alpha4/HTTPRouteGroup";
const DEFINITIONS: &str = "apiextensions.k8s.io/v1/CustomResourceDefinition";
