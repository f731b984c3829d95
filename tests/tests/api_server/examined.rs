//! Findings of `leno check --kubernetes`, corrected one by one.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leno_kubernetes::install::{ExamineResult, InstallOptions, NodeNetwork, examine_all};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use crate::installed::{install_objects, run_program, test_options};
use crate::server::{ApiServerProcess, run};

/// Returns the verdict and the text of the finding about a subject.
async fn finding_about(server: &ApiServerProcess, subject: &str) -> (&'static str, String) {
    let findings = examine_all(&server.admin_client().await, None).await.unwrap();
    let finding = findings.into_iter().find(|finding| finding.subject == subject).unwrap().finding;
    let verdict = match finding {
        ExamineResult::Passed(_) => "ok",
        ExamineResult::Warning(_) => "warning",
        ExamineResult::Failed(_) => "error",
    };
    (verdict, finding.to_string())
}

async fn assert_finding(server: &ApiServerProcess, subject: &str, expected: (&str, &str)) {
    let (verdict, text) = finding_about(server, subject).await;
    assert_eq!(verdict, expected.0, "{subject}: {text}");
    assert!(text.contains(expected.1), "{subject}: {text}");
}

/// Returns a PEM certificate that is valid for some days.
fn certificate_pem(days: u64) -> String {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["mesh".to_owned()]).unwrap();
    let now = SystemTime::now();
    params.not_before = (now - Duration::from_secs(86_400 * 400)).into();
    params.not_after = (now + Duration::from_secs(86_400 * days) + Duration::from_secs(60)).into();
    params.self_signed(&key).unwrap().pem()
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn the_control_plane_is_found_in_any_namespace() {
    run(async {
        let server = ApiServerProcess::start().await;
        assert_finding(&server, "permissions to install", ("ok", "granted")).await;
        let none = ("warning", "there is none; `leno install --apply` installs it");
        assert_finding(&server, "control plane", none).await;
        install_objects(&server, &test_options()).await;
        let absent = "see `kubectl -n mesh describe pods`";
        assert_finding(&server, "control plane", ("error", absent)).await;
        let status = json!({
            "observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2,
            "readyReplicas": 2,
        });
        server.patch_status(DEPLOYMENTS, "mesh", "leno-control", status).await;
        assert_finding(&server, "control plane", ("ok", "all pods are ready, in mesh")).await;

        let (output, _) = run_program(&server, &["check", "--kubernetes", "-o", "json"]);
        let output: Value = serde_json::from_str(&output).unwrap();
        let finding = |subject: &str| {
            output
                .as_array()
                .unwrap()
                .iter()
                .find(|finding| finding["subject"] == subject)
                .unwrap()
                .clone()
        };
        assert_eq!(finding("control plane")["verdict"], "ok");
        assert_eq!(finding("authority")["verdict"], "error");
        assert_eq!(finding("authority")["hint"], "see the log of the control plane");
        let (output, _) = run_program(&server, &["check", "--kubernetes", "-n", "another"]);
        assert!(output.contains("warning: control plane: there is none in another"), "{output}");

        install_objects(
            &server,
            &InstallOptions { namespace: "other".to_owned(), ..test_options() },
        )
        .await;
        assert_finding(
            &server,
            "control plane",
            ("error", "in each of the namespaces mesh, other"),
        )
        .await;
    });
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn missing_and_unused_node_agents_are_reported() {
    run(async {
        let server = ApiServerProcess::start().await;
        install_objects(&server, &test_options()).await;
        assert_finding(&server, NETWORK_SUBJECT, ("ok", "init containers")).await;
        let with_cni = InstallOptions { cni: Some(NodeNetwork::default()), ..test_options() };
        install_objects(&server, &with_cni).await;
        server.patch_status(DAEMON_SETS, "leno-cni", "leno-cni", agent_status(2)).await;
        assert_finding(&server, NETWORK_SUBJECT, ("ok", "2 agents of 2 are ready")).await;
        let node = json!({"metadata": {}});
        server.apply_object("v1/Node", None, "n1", node).await;
        server.patch_status(DAEMON_SETS, "leno-cni", "leno-cni", agent_status(1)).await;
        let too_few = "1 agents of 2 are ready; there is none on n1";
        assert_finding(&server, NETWORK_SUBJECT, ("error", too_few)).await;
        server.delete_object(DAEMON_SETS, Some("leno-cni"), "leno-cni").await;
        let missing = "run `leno install -n mesh --cni --apply`";
        assert_finding(&server, NETWORK_SUBJECT, ("error", missing)).await;
        install_objects(&server, &with_cni).await;
        install_objects(&server, &test_options()).await;
        let unused = "`leno install -n mesh --cni --apply` uses them";
        assert_finding(&server, NETWORK_SUBJECT, ("warning", unused)).await;
    });
}

fn agent_status(ready: u32) -> Value {
    json!({
        "currentNumberScheduled": 2, "desiredNumberScheduled": 2, "numberMisscheduled": 0,
        "numberReady": ready,
    })
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn namespaces_that_reject_sidecars_and_outdated_sidecars_are_reported() {
    run(async {
        let server = ApiServerProcess::start().await;
        install_objects(&server, &test_options()).await;
        let namespace = |standard: &str| {
            json!({"metadata": {"labels": {
                "leno.dev/injection": "enabled", "pod-security.kubernetes.io/enforce": standard,
            }}})
        };
        server.apply_object("v1/Namespace", None, "shop", namespace("privileged")).await;
        assert_finding(&server, "namespaces", ("ok", "1 with sidecar injection")).await;
        server.apply_object("v1/Namespace", None, "closed", namespace("restricted")).await;
        let rejecting = "closed (restricted) reject; run `leno install -n mesh --cni --apply`";
        assert_finding(&server, "namespaces", ("error", rejecting)).await;
        install_objects(
            &server,
            &InstallOptions { cni: Some(NodeNetwork::default()), ..test_options() },
        )
        .await;
        assert_finding(&server, "namespaces", ("ok", "2 with sidecar injection")).await;

        assert_finding(&server, "sidecars", ("ok", "0, none of another image")).await;
        let pod = |image: &str| {
            json!({
                "metadata": {"labels": {"leno.dev/meshed": "sidecar"}},
                "spec": {
                    "initContainers": [{"name": "leno-proxy", "image": image, "restartPolicy": "Always"}],
                    "containers": [{"name": "web", "image": "web"}],
                },
            })
        };
        server.create_namespace("apart").await;
        server.apply_object("v1/Pod", Some("apart"), "new", pod(&test_options().image)).await;
        assert_finding(&server, "sidecars", ("ok", "1, none of another image")).await;
        server.apply_object("v1/Pod", Some("apart"), "old", pod("leno:before")).await;
        let outdated =
            format!("1 of 2 have another image than {}: apart/old", test_options().image);
        assert_finding(&server, "sidecars", ("warning", &outdated)).await;
    });
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn certificates_that_expire_soon_are_reported() {
    run(async {
        let server = ApiServerProcess::start().await;
        install_objects(&server, &test_options()).await;
        let missing = ("error", "see the log of the control plane");
        assert_finding(&server, "authority", missing).await;
        assert_finding(&server, ROOTS_SUBJECT, missing).await;
        for (days, authority, roots) in [
            (400, ("ok", "valid for 400 days"), ("ok", "1, valid for 400 days")),
            (
                20,
                ("warning", "expires in 20 days; replace"),
                ("warning", "expires in 20 days; replace"),
            ),
        ] {
            let pem = certificate_pem(days);
            let secret = json!({"data": {"ca.pem": STANDARD.encode(&pem), "ca.key": ""}});
            server.apply_object("v1/Secret", Some("mesh"), "leno-authority", secret).await;
            let config_map = json!({"data": {"roots.pem": pem}});
            server.apply_object("v1/ConfigMap", Some("mesh"), "leno-roots", config_map).await;
            assert_finding(&server, "authority", authority).await;
            assert_finding(&server, ROOTS_SUBJECT, roots).await;
        }
        // An external intermediate is short-lived and renewed.
        let encoded = STANDARD.encode(certificate_pem(20));
        let secret = json!({"data": {"tls.crt": encoded, "ca.pem": null}});
        server.apply_object("v1/Secret", Some("mesh"), "leno-authority", secret).await;
        assert_finding(&server, "authority", ("ok", "valid for 20 days")).await;
    });
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn an_unreachable_webhook_is_reported() {
    run(async {
        let server = ApiServerProcess::start().await;
        install_objects(&server, &test_options()).await;
        let untrusted = "the webhook configuration has no CA bundle";
        assert_finding(&server, "webhook", ("error", untrusted)).await;
        server.delete_object(WEBHOOK_CONFIGURATIONS, None, INJECTOR).await;
        assert_finding(&server, "webhook", ("error", "run `leno install --apply` again")).await;
        let kind = "apiextensions.k8s.io/v1/CustomResourceDefinition";
        server.delete_object(kind, None, "lanes.leno.dev").await;
        assert_finding(&server, "kinds", ("error", "lanes.leno.dev are not installed")).await;
    });
}

/// Compares the existing objects with those of `leno install`.
#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn objects_that_differ_from_the_installation_are_reported() {
    run(async {
        let server = ApiServerProcess::start().await;
        let options = InstallOptions { cni: Some(NodeNetwork::default()), ..test_options() };
        install_objects(&server, &options).await;
        assert_finding(&server, OBJECTS_SUBJECT, ("ok", "match the output of `leno install`"))
            .await;
        server
            .delete_object("rbac.authorization.k8s.io/v1/ClusterRoleBinding", None, "leno-control")
            .await;
        let absent = "ClusterRoleBinding leno-control is absent";
        assert_finding(&server, OBJECTS_SUBJECT, ("error", absent)).await;
        install_objects(&server, &options).await;
        assert_finding(&server, OBJECTS_SUBJECT, ("ok", "match the output of `leno install`"))
            .await;
        server.delete_object("v1/Service", Some("mesh"), "leno-control").await;
        assert_finding(&server, OBJECTS_SUBJECT, ("error", "Service mesh/leno-control is absent"))
            .await;
        install_objects(&server, &options).await;

        // A webhook with half of its entries, each with a `caBundle`.
        let mut webhook = server.find_object(WEBHOOK_CONFIGURATIONS, None, INJECTOR).await.unwrap();
        let entries = webhook["webhooks"].as_array_mut().unwrap();
        for entry in entries.iter_mut() {
            entry["clientConfig"]["caBundle"] = STANDARD.encode(certificate_pem(400)).into();
        }
        let removed = entries.remove(0);
        assert_eq!(removed["name"], format!("namespace.{INJECTOR}"));
        server.delete_object(WEBHOOK_CONFIGURATIONS, None, INJECTOR).await;
        let remaining = json!({"webhooks": webhook["webhooks"]});
        server.apply_object(WEBHOOK_CONFIGURATIONS, None, INJECTOR, remaining).await;
        let absent = format!("webhooks[namespace.{INJECTOR}] is absent");
        assert_finding(&server, "webhook", ("error", &absent)).await;
    });
}

const OBJECTS_SUBJECT: &str = "objects of the installation";
const DEPLOYMENTS: &str = "apps/v1/Deployment";
const DAEMON_SETS: &str = "apps/v1/DaemonSet";
const WEBHOOK_CONFIGURATIONS: &str = "admissionregistration.k8s.io/v1/MutatingWebhookConfiguration";
const INJECTOR: &str = "sidecar-injector.leno.dev";
const NETWORK_SUBJECT: &str = "network of nodes";
const ROOTS_SUBJECT: &str = "roots of the mesh";
