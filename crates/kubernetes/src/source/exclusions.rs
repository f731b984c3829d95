//! What goes around every sidecar of the mesh, for who asks once and does not follow the cluster.

use std::sync::Arc;

use kube::Client;
use kube::api::ListParams;

use super::kinds::{Found, Watched, find};
use super::ledger::Ledger;
use super::news::{News, Seen};
use crate::api::ApiError;
use crate::inject::Exclusions;
use crate::read::FOREIGN_CONFIGS;

/// What a control plane finds in the settings of other meshes that no pod sends through its sidecar.
///
/// # Errors
/// When the API server does not answer, or forbids to list them where it has their kind.
pub async fn exclusions(client: &Client) -> Result<Exclusions, ApiError> {
    let mut ledger = Ledger::new(FOREIGN_CONFIGS.map(Watched::Custom).to_vec());
    for (index, kind) in FOREIGN_CONFIGS.into_iter().enumerate() {
        let Found::Served(api, resource) = find(client, kind).await? else { continue };
        let resource = Arc::new(resource);
        for object in api.list(&ListParams::default()).await? {
            ledger.take(index, News::Seen(Box::new(Seen::custom(kind, &resource, object))));
        }
    }
    Ok(ledger.exclusions())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::Server;

    #[tokio::test]
    async fn settings_of_other_meshes_are_heeded_as_by_a_control_plane() {
        let server = Server::open().await;
        assert_eq!(exclusions(&server.client).await.unwrap(), Exclusions::default());
        let config = |namespace: &str, year: &str, port: u16| {
            json!({
                "apiVersion": "config.flomesh.io/v1alpha3", "kind": "MeshConfig",
                "metadata": {
                    "name": "fsm-mesh-config", "namespace": namespace,
                    "creationTimestamp": format!("{year}-01-01T00:00:00Z"),
                },
                "spec": {"traffic": {"outboundPortExclusionList": [port]}},
            })
        };
        let list = |items: Value| {
            json!({
                "apiVersion": "config.flomesh.io/v1alpha3", "kind": "MeshConfigList",
                "metadata": {}, "items": items,
            })
        };
        let resources = json!({
            "kind": "APIResourceList", "apiVersion": "v1",
            "groupVersion": "config.flomesh.io/v1alpha3",
            "resources": [{
                "name": "meshconfigs", "singularName": "meshconfig", "namespaced": true,
                "kind": "MeshConfig", "verbs": ["list"],
            }],
        });
        let put = |path: &str, value: Value| {
            server.store.lock().unwrap().objects.insert(path.to_owned(), value);
        };
        put("/apis/config.flomesh.io/v1alpha3", resources);
        let all = json!([config("a", "2025", 25), config("fsm-system", "2024", 26)]);
        put("/apis/config.flomesh.io/v1alpha3/meshconfigs", list(all));
        // Of one mesh the oldest counts.
        let found = exclusions(&server.client).await.unwrap();
        assert_eq!(found.outbound_ports, [26].into());
        server.store.lock().unwrap().forbidden = Some(("GET", "meshconfigs"));
        assert_eq!(exclusions(&server.client).await.unwrap_err().code(), Some(403));
    }
}
