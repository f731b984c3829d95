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
fn a_rule_with_a_misspelled_field_is_rejected_however_it_is_written() {
    run(async {
        let server = ApiServerProcess::start().await;
        server.create_namespace("shop").await;
        install_objects(&server, &test_options()).await;
        let mut world = SourceUpdates::from_client(server.admin_client().await);
        world.wait_until("a first picture", |world| world.updates == 1).await;
        // By a controller or Helm, by client-side apply, and by server-side apply.
        server.create_ignoring(POLICIES, "shop", "created", access_policy("metods")).await;
        let mut applied = access_policy("metods");
        applied["metadata"]["annotations"] =
            json!({"kubectl.kubernetes.io/last-applied-configuration": "{}"});
        server.create_ignoring(POLICIES, "shop", "applied", applied).await;
        server.apply_object(POLICIES, Some("shop"), "server-side", access_policy("metods")).await;
        let mut beside = access_policy("methods");
        beside["ports"] = json!([80]);
        server.create_ignoring(POLICIES, "shop", "beside", beside).await;
        for name in ["created", "applied", "server-side", "beside"] {
            world
                .wait_until("a rejection", |world| {
                    let is_it =
                        |it: &&leno_registry::RejectedDocument| it.at.name.as_deref() == Some(name);
                    world
                        .rejected
                        .iter()
                        .find(is_it)
                        .is_some_and(|it| it.problem.contains("is an unknown field"))
                })
                .await;
        }
        assert!(policy_keys(&world).is_empty(), "{:?}", policy_keys(&world));
        server.create_ignoring(POLICIES, "shop", "good", access_policy("methods")).await;
        world.wait_until("a policy", |world| policy_keys(world).len() == 1).await;
    });
}

/// Returns the keys of the access policies that were read; the installation itself has Services.
fn policy_keys(world: &SourceUpdates) -> Vec<&ObjectKey> {
    world.objects.keys().filter(|key| matches!(key, ObjectKey::AccessPolicy(_))).collect()
}

const POLICIES: &str = "leno.dev/v1alpha1/AccessPolicy";
