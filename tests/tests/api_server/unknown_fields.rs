//! Unknown fields of rules: a real API server stores them if validation is disabled, and the control plane
//! rejects such rules, since a condition could be lost.

use leno_model::ObjectKey;
use serde_json::{Value, json};

use crate::installed::{install_objects, test_options};
use crate::server::{ApiServerProcess, run};
use crate::source_updates::SourceUpdates;

fn access_policy(method_field: &str) -> Value {
    let request = json!({"path": {"value": "/"}, method_field: ["GET"]});
    let rule = json!({"from": [{"serviceAccount": "web"}], "requests": [request]});
    json!({"spec": {"allow": [rule]}})
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn a_rule_with_an_unknown_field_is_rejected_for_every_kind_of_write() {
    run(async {
        let server = ApiServerProcess::start().await;
        server.create_namespace("shop").await;
        install_objects(&server, &test_options()).await;
        let mut source = SourceUpdates::from_client(server.admin_client().await);
        source.wait_until("a first update", |source| source.update_count == 1).await;
        // By a controller or Helm, by client-side apply, and by server-side apply.
        server
            .create_unvalidated(ACCESS_POLICIES, "shop", "created", access_policy("metods"))
            .await;
        let mut applied = access_policy("metods");
        applied["metadata"]["annotations"] =
            json!({"kubectl.kubernetes.io/last-applied-configuration": "{}"});
        server.create_unvalidated(ACCESS_POLICIES, "shop", "applied", applied).await;
        server
            .apply_object(ACCESS_POLICIES, Some("shop"), "server-side", access_policy("metods"))
            .await;
        let mut valid_and_unknown = access_policy("methods");
        valid_and_unknown["ports"] = json!([80]);
        server.create_unvalidated(ACCESS_POLICIES, "shop", "beside", valid_and_unknown).await;
        for name in ["created", "applied", "server-side", "beside"] {
            source
                .wait_until("a rejection", |source| {
                    let has_name = |document: &&leno_registry::RejectedDocument| {
                        document.location.name.as_deref() == Some(name)
                    };
                    source
                        .rejected
                        .iter()
                        .find(has_name)
                        .is_some_and(|document| document.problem.contains("is an unknown field"))
                })
                .await;
        }
        assert!(policy_keys(&source).is_empty(), "{:?}", policy_keys(&source));
        server.create_unvalidated(ACCESS_POLICIES, "shop", "good", access_policy("methods")).await;
        source.wait_until("a policy", |source| policy_keys(source).len() == 1).await;
    });
}

/// Returns the keys of the access policies that were read; the installation itself has Services.
fn policy_keys(source: &SourceUpdates) -> Vec<&ObjectKey> {
    source.objects.keys().filter(|key| matches!(key, ObjectKey::AccessPolicy(_))).collect()
}

const ACCESS_POLICIES: &str = "leno.dev/v1alpha1/AccessPolicy";
