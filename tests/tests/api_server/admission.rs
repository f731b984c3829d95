//! Admission policies of the API server, and its behavior while the webhook does not respond.

use serde_json::{Value, json};

use crate::installed::{install_objects, test_options};
use crate::server::{ApiServerProcess, run};
use leno_kubernetes::install::InstallOptions;

/// Waits until a policy rejects an object in a namespace, and returns its message.
async fn wait_for_rejection(
    server: &ApiServerProcess,
    namespace: &str,
    kind: &str,
    name: &str,
    spec: &Value,
) -> String {
    for _ in 0..MAX_ATTEMPTS {
        match server.try_apply(kind, Some(namespace), name, json!({"spec": spec})).await {
            Err(message) => return message,
            Ok(()) => tokio::time::sleep(POLL_INTERVAL).await,
        }
        // The policies accept an update without changes, so the object must be created again.
        server.delete_object(kind, Some(namespace), name).await;
    }
    panic!("{kind} {name} is accepted in {namespace}")
}

/// Waits until a policy rejects an object in the namespace `shop`, and returns its message.
async fn rejection_message(
    server: &ApiServerProcess,
    kind: &str,
    name: &str,
    spec: &Value,
) -> String {
    wait_for_rejection(server, "shop", kind, name, spec).await
}

/// Creates a namespace with a label.
async fn create_namespace(server: &ApiServerProcess, name: &str, label: &str) {
    let labels = json!({"metadata": {"labels": {label: "a-word"}}});
    server.apply_object("v1/Namespace", None, name, labels).await;
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn ineffective_rules_are_rejected_by_the_api_server() {
    run(async {
        let server = ApiServerProcess::start().await;
        create_namespace(&server, "shop", "leno.dev/injection").await;
        install_objects(&server, &InstallOptions { with_smi: true, ..test_options() }).await;
        let target = |namespace: &str| {
            json!({
                "destination": {"kind": "ServiceAccount", "name": "web", "namespace": namespace},
                "sources": [{"kind": "ServiceAccount", "name": "a", "namespace": "another"}],
            })
        };
        let message = rejection_message(&server, TRAFFIC_TARGETS, "t", &target("other")).await;
        assert!(message.contains("is not the namespace of the TrafficTarget"), "{message}");
        server
            .try_apply(TRAFFIC_TARGETS, Some("shop"), "t", json!({"spec": target("shop")}))
            .await
            .unwrap();

        let backends = json!([{"name": "web", "port": {"number": 80, "protocol": "http"}}]);
        let message =
            rejection_message(&server, INGRESS_BACKENDS, "b", &json!({"backends": backends})).await;
        assert!(message.contains("spec.sources: is empty"), "{message}");
        let sources = json!([{"kind": "IPRange", "name": "192.0.2.0/24"}]);
        let message =
            rejection_message(&server, INGRESS_BACKENDS, "b", &json!({"sources": sources})).await;
        assert!(message.contains("spec.backends: is empty"), "{message}");
        let valid = json!({"spec": {"backends": backends, "sources": sources}});
        server.try_apply(INGRESS_BACKENDS, Some("shop"), "b", valid).await.unwrap();
        // Rules that another mesh may support, but not Leno, cause a warning.
        let ports = json!([{"number": 5432, "protocol": "tcp"}]);
        let egress = json!({"spec": {"hosts": ["db.example"], "ports": ports}});
        server.try_apply(EGRESSES, Some("shop"), "e", egress).await.unwrap();
        for _ in 0..MAX_ATTEMPTS {
            let warnings = server.creation_warnings(EGRESSES, "shop", "e2").await;
            if warnings.contains("has neither `hosts` nor `ipAddresses`") {
                return;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        panic!("no warning about an Egress to everywhere");
    });
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn policies_apply_only_to_namespaces_of_the_mesh() {
    run(async {
        let server = ApiServerProcess::start().await;
        for (name, label) in [
            ("ours", "leno.dev/injection"),
            ("osm", "openservicemesh.io/monitored-by"),
            ("fsm", "flomesh.io/monitored-by"),
        ] {
            create_namespace(&server, name, label).await;
        }
        server.create_namespace("other").await;
        install_objects(&server, &InstallOptions { with_smi: true, ..test_options() }).await;
        let no_sources =
            json!({"backends": [{"name": "web", "port": {"number": 80, "protocol": "http"}}]});
        for name in ["ours", "osm", "fsm"] {
            let message =
                wait_for_rejection(&server, name, INGRESS_BACKENDS, "b", &no_sources).await;
            assert!(message.contains("spec.sources: is empty"), "{message}");
            // The policy that warns may take effect later than the policy that rejects.
            let mut attempts = 0..MAX_ATTEMPTS;
            while !server
                .creation_warnings(EGRESSES, name, "e")
                .await
                .contains("would match every destination")
            {
                attempts.next().expect("no warning about an Egress to everywhere");
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        server
            .try_apply(INGRESS_BACKENDS, Some("other"), "b", json!({"spec": no_sources}))
            .await
            .unwrap();
        assert_eq!(server.creation_warnings(EGRESSES, "other", "e").await, "");
    });
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn without_a_control_plane_only_pods_with_injection_are_rejected() {
    run(async {
        let server = ApiServerProcess::start().await;
        install_objects(&server, &test_options()).await;
        for name in ["shop", "other"] {
            server.create_namespace(name).await;
        }
        let labels = json!({"metadata": {"labels": {"leno.dev/injection": "enabled"}}});
        server.apply_object("v1/Namespace", None, "shop", labels).await;
        let pod = |labels: Value| {
            json!({
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "web", "image": "none"}]},
            })
        };
        let injection = |value: &str| json!({"leno.dev/injection": value});
        let message = pod_rejection(&server, "shop", pod(json!({}))).await;
        assert!(
            message.contains("failed calling webhook \"namespace.sidecar-injector.leno.dev\""),
            "{message}"
        );
        let message = pod_rejection(&server, "other", pod(injection("enabled"))).await;
        assert!(
            message.contains("failed calling webhook \"pod.sidecar-injector.leno.dev\""),
            "{message}"
        );
        for (namespace, labels) in [("shop", injection("disabled")), ("other", json!({}))] {
            server.try_apply("v1/Pod", Some(namespace), "free", pod(labels)).await.unwrap();
        }
        // The documented procedure for emergencies.
        server.delete_object(WEBHOOK_CONFIGURATIONS, None, "sidecar-injector.leno.dev").await;
        for _ in 0..MAX_ATTEMPTS {
            if server.try_apply("v1/Pod", Some("shop"), "late", pod(json!({}))).await.is_ok() {
                return;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        panic!("pods are not created without the webhook's configuration");
    });
}

/// Returns a Pod with the containers that the webhook adds.
fn pod_with_sidecar() -> Value {
    let image = "registry.example.org/leno:0.1.0";
    json!({
        "metadata": {},
        "spec": {
            "initContainers": [
                {"name": "leno-init", "image": image,
                 "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}},
                {"name": "leno-proxy", "image": image, "restartPolicy": "Always",
                 "securityContext": {"runAsUser": 1500}},
            ],
            "containers": [{"name": "web", "image": "none"}],
        },
    })
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn the_policies_on_the_security_page_reject_pods_that_evade_the_mesh() {
    run(async {
        let server = ApiServerProcess::start().await;
        let labels = json!({"metadata": {"labels": {"leno.dev/injection": "enabled"}}});
        server.apply_object("v1/Namespace", None, "shop", labels).await;
        let page = include_str!("../../../docs/security.md");
        let block = page
            .split("```yaml\n")
            .find(|example| example.contains("name: mesh-floor-pods"))
            .unwrap();
        let block = block.split("```").next().unwrap();
        for document in serde_saphyr::from_multiple::<Value>(block).unwrap() {
            let kind = format!(
                "{}/{}",
                document["apiVersion"].as_str().unwrap(),
                document["kind"].as_str().unwrap()
            );
            let name = document["metadata"]["name"].as_str().unwrap().to_owned();
            server.apply_object(&kind, None, &name, document).await;
        }
        let plain_pod =
            json!({"metadata": {}, "spec": {"containers": [{"name": "a", "image": "none"}]}});
        let message = pod_rejection(&server, "shop", plain_pod).await;
        assert!(message.contains("the pod has no sidecar of the mesh"), "{message}");
        server.try_apply("v1/Pod", Some("shop"), "good", pod_with_sidecar()).await.unwrap();
        for (pointer, value, expected) in [
            ("/spec/initContainers/1/image", json!("evil.example/leno:0.1.0"), "has no sidecar"),
            ("/spec/initContainers/0/image", json!("evil.example/a:1"), "another container runs"),
            ("/spec/containers/0/securityContext", json!({"runAsUser": 1500}), "user 1500"),
            ("/spec/securityContext", json!({"runAsUser": 1500}), "user 1500"),
            ("/spec/hostNetwork", json!(true), "network of their node"),
            (
                "/spec/containers/0/securityContext",
                json!({"capabilities": {"add": ["NET_ADMIN"]}}),
                "could change the interception",
            ),
            ("/spec/containers/0/securityContext", json!({"privileged": true}), "could change"),
        ] {
            let mut pod = pod_with_sidecar();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            pod.pointer_mut(parent).unwrap()[key] = value;
            let message = server.try_apply("v1/Pod", Some("shop"), "bad", pod).await.unwrap_err();
            assert!(message.contains(expected), "{pointer}: {message}");
        }
        // The test's account may update the MeshConfig, so it may also label namespaces.
        let ignored = json!({"metadata": {"labels": {
            "leno.dev/injection": "enabled", "leno.dev/ignore": "true",
        }}});
        server.apply_object("v1/Namespace", None, "shop", ignored).await;
    });
}

/// Creates Pods until the API server uses the webhook; returns the rejection.
async fn pod_rejection(server: &ApiServerProcess, namespace: &str, pod: Value) -> String {
    for index in 0..MAX_ATTEMPTS {
        let name = format!("p{index}");
        match server.try_apply("v1/Pod", Some(namespace), &name, pod.clone()).await {
            Err(message) => return message,
            Ok(()) => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
    panic!("a pod is created without a sidecar")
}

const TRAFFIC_TARGETS: &str = "access.smi-spec.io/v1alpha3/TrafficTarget";
const INGRESS_BACKENDS: &str = "policy.openservicemesh.io/v1alpha1/IngressBackend";
const EGRESSES: &str = "policy.openservicemesh.io/v1alpha1/Egress";
const WEBHOOK_CONFIGURATIONS: &str = "admissionregistration.k8s.io/v1/MutatingWebhookConfiguration";
const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(500);
/// The maximum number of attempts, one per `POLL_INTERVAL`: policies take effect with a delay.
const MAX_ATTEMPTS: usize = 120;
