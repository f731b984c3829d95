//! Unknown fields of rules: a real API server stores them if validation is disabled, and the control plane
//! rejects such rules, since a condition could be lost.

use leno_model::ObjectKey;
use serde_json::{Value, json};

use crate::installed::{install, options};
use crate::server::{Server, run};
use crate::world::World;

fn policy(method_field: &str) -> Value {
    let request = json!({"path": {"value": "/"}, method_field: ["GET"]});
    let rule = json!({"from": [{"serviceAccount": "web"}], "requests": [request]});
    json!({"spec": {"allow": [rule]}})
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn a_rule_with_a_misspelled_field_is_rejected_however_it_is_written() {
    run(async {
        let server = Server::start().await;
        server.namespace("shop").await;
        install(&server, &options()).await;
        let mut world = World::follow(server.client().await);
        world.until("a first picture", |world| world.updates == 1).await;
        // By a controller or Helm, by client-side apply, and by server-side apply.
        server.create_ignoring(POLICIES, "shop", "created", policy("metods")).await;
        let mut applied = policy("metods");
        applied["metadata"]["annotations"] =
            json!({"kubectl.kubernetes.io/last-applied-configuration": "{}"});
        server.create_ignoring(POLICIES, "shop", "applied", applied).await;
        server.apply(POLICIES, Some("shop"), "server-side", policy("metods")).await;
        let mut beside = policy("methods");
        beside["ports"] = json!([80]);
        server.create_ignoring(POLICIES, "shop", "beside", beside).await;
        for name in ["created", "applied", "server-side", "beside"] {
            world
                .until("a rejection", |world| {
                    let is_it = |it: &&leno_registry::Rejected| it.at.name.as_deref() == Some(name);
                    world
                        .rejected
                        .iter()
                        .find(is_it)
                        .is_some_and(|it| it.problem.contains("is an unknown field"))
                })
                .await;
        }
        assert!(policies(&world).is_empty(), "{:?}", policies(&world));
        server.create_ignoring(POLICIES, "shop", "good", policy("methods")).await;
        world.until("a policy", |world| policies(world).len() == 1).await;
    });
}

/// Returns the keys of the access policies that were read; the installation itself has Services.
fn policies(world: &World) -> Vec<&ObjectKey> {
    world.objects.keys().filter(|key| matches!(key, ObjectKey::AccessPolicy(_))).collect()
}

const POLICIES: &str = "leno.dev/v1alpha1/AccessPolicy";
