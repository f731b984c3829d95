//! Statuses of objects, written by one control plane with the installed permissions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use leno_kubernetes::api::NamespaceName;
use leno_kubernetes::install::installation_manifests;
use leno_kubernetes::source::{KubernetesSource, SourceOptions};
use leno_kubernetes::status::{ElectionIdentity, hold_lease, reconcile_statuses};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::installed::{install_objects, test_options};
use crate::server::{ApiServerProcess, run};

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn one_control_plane_writes_the_statuses() {
    run(async {
        let server = ApiServerProcess::start().await;
        server.create_namespace("shop").await;
        install_objects(&server, &test_options()).await;
        server.define_kind(HTTP_ROUTES).await;
        server.define_kind(HTTP_ROUTE_GROUPS).await;
        let _tasks = start_control_planes(&server, &["leno-control-a", "leno-control-b"]).await;
        let parent = json!({"group": "", "kind": "Service", "name": "web"});
        let rules = json!([{"backendRefs": [{"name": "web", "port": 80}]}]);
        let other_parent = json!({
            "parentRef": {"name": "edge"}, "controllerName": "example.com/edge", "conditions": [],
        });
        let route = json!({
            "spec": {"parentRefs": [{"name": "edge"}, parent], "rules": rules},
            "status": {"parents": [other_parent]},
        });
        server.apply_object(HTTP_ROUTES, Some("shop"), "r", route).await;
        let route = wait_for_route_reason(&server, "NoMatchingParent").await;
        assert!(route["status"]["parents"].as_array().unwrap().contains(&other_parent));
        server.create_service("web", 8080).await;
        let route = wait_for_route_reason(&server, "Accepted").await;
        let our_entry = our_parent(&route).unwrap();
        assert_eq!(our_entry["parentRef"], parent);
        assert_eq!(
            our_entry["conditions"][0]["observedGeneration"],
            route["metadata"]["generation"]
        );
        assert_eq!(our_entry["conditions"][1]["type"], "ResolvedRefs");
        assert_eq!(our_entry["conditions"][1]["status"], "True");
        assert_eq!(our_entry["conditions"][2]["type"], "Programmed");
        assert_eq!(our_entry["conditions"][2]["status"], "True");

        let invalid = json!({"spec": {"matches": [{"name": "m", "pathRegex": "("}]}});
        server.apply_object(HTTP_ROUTE_GROUPS, Some("shop"), "g", invalid).await;
        let event = wait_for_event(&server).await;
        assert_eq!(event["reason"], "Rejected");
        assert_eq!(event["regarding"]["name"], "g");
        let kind = "coordination.k8s.io/v1/Lease";
        let lease = server.read(kind, "mesh", "leno-control").await;
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap();
        assert!(holder.starts_with("leno-control-"), "{holder}");
        // An unchanged status is not written again.
        let unchanged = server.read(HTTP_ROUTES, "shop", "r").await;
        assert_eq!(unchanged["metadata"]["resourceVersion"], route["metadata"]["resourceVersion"]);
    });
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn overridden_objects_name_the_object_in_force_until_its_deletion() {
    run(async {
        let server = ApiServerProcess::start().await;
        server.create_namespace("shop").await;
        install_objects(&server, &test_options()).await;
        for kind in [HTTP_ROUTES, GRPC_ROUTES, TRAFFIC_SPLITS] {
            server.define_kind(kind).await;
        }
        let _tasks = start_control_planes(&server, &["leno-control-a"]).await;
        server.create_service("web", 8080).await;
        let spec = json!({
            "parentRefs": [{"group": "", "kind": "Service", "name": "web"}],
            "rules": [{"backendRefs": [{"name": "web", "port": 80}]}],
        });
        server.apply_object(HTTP_ROUTES, Some("shop"), "r", json!({"spec": spec})).await;
        wait_for_route_reason(&server, "Accepted").await;
        server.apply_object(GRPC_ROUTES, Some("shop"), "g", json!({"spec": spec})).await;
        let route = wait_for_route_reason(&server, "Conflicted").await;
        let conditions = &our_parent(&route).unwrap()["conditions"];
        assert_eq!(conditions[0]["status"], "False");
        assert_eq!(conditions[0]["observedGeneration"], route["metadata"]["generation"]);
        let expected = "GRPCRoute shop/g is attached to the same port and takes precedence";
        assert_eq!(conditions[0]["message"], expected);
        assert_eq!(
            (&conditions[2]["type"], &conditions[2]["status"]),
            (&"Programmed".into(), &"False".into())
        );
        server.delete_object(GRPC_ROUTES, Some("shop"), "g").await;
        let route = wait_for_route_reason(&server, "Accepted").await;
        assert_eq!(our_parent(&route).unwrap()["conditions"][2]["status"], "True");

        let split = json!({"service": "web", "backends": [{"service": "web", "weight": 1}]});
        server.apply_object(TRAFFIC_SPLITS, Some("shop"), "s", json!({"spec": split})).await;
        let event = wait_for_event(&server).await;
        assert_eq!(event["reason"], "Conflicted");
        assert_eq!(event["regarding"]["name"], "s");
        let expected = "HTTPRoute shop/r is attached to shop/web and takes precedence";
        assert_eq!(event["note"], expected);
    });
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn each_kind_gets_its_status() {
    run(async {
        let server = ApiServerProcess::start().await;
        server.create_namespace("shop").await;
        install_objects(&server, &test_options()).await;
        server.create_service("web", 8080).await;
        let _tasks = start_control_planes(&server, &["leno-control"]).await;
        let specs = kind_specs();
        let installed_kinds = installation_manifests(&test_options());
        let installed_kinds = installed_kinds
            .iter()
            .filter(|manifest| manifest["kind"] == "CustomResourceDefinition");
        let installed_kinds: BTreeSet<&str> = installed_kinds
            .map(|manifest| manifest["spec"]["names"]["kind"].as_str().unwrap())
            .collect();
        assert_eq!(specs.keys().map(String::as_str).collect::<BTreeSet<_>>(), installed_kinds);
        for (kind, spec) in &specs {
            let name = format!("leno.dev/v1alpha1/{kind}");
            let namespace = (kind != "MeshConfig").then_some("shop");
            server.apply_object(&name, namespace, "leno", json!({"spec": spec})).await;
        }
        for kind in specs.keys() {
            let name = format!("leno.dev/v1alpha1/{kind}");
            let namespace = (kind != "MeshConfig").then_some("shop");
            let has_conditions = |object: &Value| object["status"]["conditions"].is_array();
            let object = server.wait_until(&name, namespace, "leno", has_conditions).await;
            let status = &object["status"];
            let accepted = &status["conditions"][0];
            assert_eq!(accepted["type"], "Accepted", "{kind}: {status}");
            assert_eq!(accepted["observedGeneration"], 1, "{kind}: {status}");
        }
    });
}

/// Returns a spec for each kind.
fn kind_specs() -> BTreeMap<String, Value> {
    let targets = json!([{"kind": "Service", "name": "web"}]);
    let key = "{\"keys\": [{\"kty\": \"EC\", \"crv\": \"P-256\", \"kid\": \"one\", \"use\": \"sig\", \
               \"x\": \"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4\", \"y\": \"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM\"}]}";
    let specs = json!({
        "MeshConfig": {"traffic": {"mode": "permissive"}},
        "AccessPolicy": {"deny": [{"requests": [{"path": {"value": "/admin"}}]}]},
        "OutlierDetection": {"targetRefs": targets},
        "SermantRemoval": {"compat": "sermant", "config": "enableRemoval: true"},
        "CircuitBreaker": {"targetRefs": targets, "limits": {"requests": 2}},
        "RateLimit": {"targetRefs": targets, "rules": [{"requests": 10, "per": "1s"}]},
        "FaultInjection": {"targetRefs": targets, "rules": [{"abort": {"httpStatus": 503}}]},
        "LoadBalancing": {"targetRefs": targets, "algorithm": "RoundRobin"},
        "Hedging": {"targetRefs": targets, "after": "50ms"},
        "ExternalAuthorization": {"targetRefs": targets, "service": {"name": "web", "port": 80}},
        "JwtValidation": {
            "targetRefs": targets, "issuers": [{"issuer": "https://issuer.test", "jwks": {"inline": key}}],
        },
        "TagRoute": {"service": "web", "port": 80, "rules": [{"split": [{"weight": 1, "tags": {"version": "v2"}}]}]},
        "Lane": {"service": "web", "rules": [{"match": {"path": {"prefix": "/a"}}, "marks": [{"percent": 60, "headers": {"x-lane": "gray"}}]}]},
        "SermantRouteRule": {"compat": "sermant", "key": "servicecomb.routeRule.web", "rules": "[]"},
    });
    specs.as_object().unwrap().clone().into_iter().collect()
}

/// Runs control planes with the installed permissions that read objects and write statuses, until the
/// returned tasks are dropped.
async fn start_control_planes(server: &ApiServerProcess, names: &[&str]) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for name in names {
        let client = server.client_as(ACCOUNT).await;
        let source = KubernetesSource::new(client.clone(), SourceOptions::default());
        let statuses = source.subscribe_statuses();
        let identity = ElectionIdentity {
            namespace: NamespaceName::from_literal("mesh"),
            name: (*name).to_owned(),
            sidecar_facts: watch::Sender::default().subscribe(),
        };
        let (leader_sender, is_leader) = watch::channel(false);
        tasks.spawn(hold_lease(client.clone(), identity, leader_sender, watch::channel(false).1));
        let unwritten_statuses = watch::Sender::default();
        tasks.spawn(reconcile_statuses(
            client,
            (*name).to_owned(),
            statuses,
            is_leader,
            unwritten_statuses,
        ));
        let (update_sender, mut update_receiver) = mpsc::channel(4);
        tasks.spawn(source.send_updates(update_sender));
        tasks.spawn(async move { while update_receiver.recv().await.is_some() {} });
    }
    tasks
}

/// Waits for the first event of the namespace and returns it.
async fn wait_for_event(server: &ApiServerProcess) -> Value {
    let deadline = Instant::now() + MAX_WAIT;
    loop {
        if let Some(event) = server.list_events("shop").await.into_iter().next() {
            return event;
        }
        assert!(Instant::now() < deadline, "there is no event");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits until the route has a condition with this reason, and returns it.
async fn wait_for_route_reason(server: &ApiServerProcess, reason: &str) -> Value {
    let has_reason = |object: &Value| {
        our_parent(object).is_some_and(|parent| parent["conditions"][0]["reason"] == reason)
    };
    server.wait_until(HTTP_ROUTES, Some("shop"), "r", has_reason).await
}

fn our_parent(route: &Value) -> Option<&Value> {
    let parents = route.pointer("/status/parents")?.as_array()?;
    parents.iter().find(|entry| entry["controllerName"] == "leno.dev/mesh-controller")
}

const ACCOUNT: &str = "system:serviceaccount:mesh:leno-control";
const HTTP_ROUTES: &str = "gateway.networking.k8s.io/v1/HTTPRoute";
const GRPC_ROUTES: &str = "gateway.networking.k8s.io/v1/GRPCRoute";
const TRAFFIC_SPLITS: &str = "split.smi-spec.io/v1alpha4/TrafficSplit";
const HTTP_ROUTE_GROUPS: &str = "specs.smi-spec.io/v1alpha4/HTTPRouteGroup";
const MAX_WAIT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
