//! Supported rules of another mesh in a cluster.

use leno_tests::leno_command;
use serde_json::{Value, json};

use crate::server::{ApiServerProcess, run};

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn migration_of_a_cluster_reports_kept_objects_of_another_mesh() {
    run(async {
        let server = ApiServerProcess::start().await;
        let metadata = json!({"annotations": {
            "flomesh.io/sidecar-injection": "enabled", "flomesh.io/proxy-mode": "podlevel",
        }});
        server.apply_object("v1/Namespace", None, "shop", json!({"metadata": metadata})).await;
        server.create_service("web", 8080).await;
        for kind in [EGRESS, RETRY, PLUGIN_CHAIN] {
            server.define_kind(kind).await;
        }
        let source = json!({"kind": "ServiceAccount", "name": "a", "namespace": "shop"});
        let ports = json!([{"number": 80, "protocol": "http"}]);
        let egress = json!({"spec": {"sources": [source], "hosts": ["a.example"], "ports": ports}});
        server.apply_object(EGRESS, Some("shop"), "out", egress).await;
        let retry = json!({"spec": {
            "source": source,
            "destinations": [{"kind": "Service", "name": "web", "namespace": "shop"}],
            "retryPolicy": {"retryOn": "retriable-status-codes", "numRetries": 3},
        }});
        server.apply_object(RETRY, Some("shop"), "again", retry).await;
        server
            .apply_object(PLUGIN_CHAIN, Some("shop"), "mail", json!({"spec": {"chains": []}}))
            .await;

        let output = leno_command()
            .args(["migrate", "check", "-o", "json"])
            .env("KUBECONFIG", server.kubeconfig())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let entries: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        for (object, outcome, widens) in [
            ("Service shop/web", "native", false),
            ("Egress shop/out", "unchanged", false),
            ("Retry shop/again", "dropped", false),
            ("PluginChain shop/mail", "dropped", true),
            ("annotation flomesh.io/proxy-mode", "dropped", false),
        ] {
            let entry = entries.iter().find(|entry| entry["object"] == object);
            let entry = entry.unwrap_or_else(|| panic!("{object}: {entries:?}"));
            assert_eq!((&entry["outcome"], &entry["widens"]), (&outcome.into(), &widens.into()));
        }
        assert!(
            !entries
                .iter()
                .any(|entry| entry["object"] == "annotation flomesh.io/sidecar-injection")
        );
    });
}

const EGRESS: &str = "policy.flomesh.io/v1alpha1/Egress";
const RETRY: &str = "policy.flomesh.io/v1alpha1/Retry";
const PLUGIN_CHAIN: &str = "plugin.flomesh.io/v1alpha1/PluginChain";
