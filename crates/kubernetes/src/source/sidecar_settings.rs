//! Reads the settings of new sidecars once, for commands that do not watch the cluster: the ports and addresses that
//! are excluded from redirection, and the floor (`spec.floor` of the MeshConfig), which pods and namespaces cannot relax.

use std::collections::BTreeSet;
use std::sync::Arc;

use kube::Client;
use kube::api::ListParams;
use leno_model::{Name, SecurityFloor};
use leno_registry::served_kinds;

use super::event::{ConvertedObject, WatchEvent};
use super::kinds::{DiscoveredKind, WatchedKind, find_version};
use super::store::ObjectStore;
use crate::api::ApiError;
use crate::inject::Exclusions;
use crate::read::FOREIGN_CONFIG_KINDS;

/// Returns the settings that a control plane applies to every new sidecar: the exclusions in the settings of other
/// meshes in these namespaces (none if there are no namespaces), and the floor of Leno's `MeshConfig`.
///
/// # Errors
/// When the API server does not respond, or forbids listing a kind that it has.
pub async fn read_sidecar_settings(
    client: &Client,
    namespaces: BTreeSet<Name>,
) -> Result<(Exclusions, SecurityFloor), ApiError> {
    // Of Leno's kinds, only the MeshConfig has such settings.
    let own_kinds = served_kinds().into_iter().filter(|kind| kind.kind == "MeshConfig");
    let kinds: Vec<_> = own_kinds.chain(FOREIGN_CONFIG_KINDS).collect();
    let mut store = ObjectStore::new(kinds.iter().copied().map(WatchedKind::Custom).collect());
    store.set_settings_namespaces(namespaces);
    for (index, kind) in kinds.into_iter().enumerate() {
        // Most clusters do not have the kinds of other meshes.
        let DiscoveredKind::Served(api_and_resource) = find_version(client, kind).await? else {
            continue;
        };
        let (api, resource) = *api_and_resource;
        let resource = Arc::new(resource);
        for object in api.list(&ListParams::default()).await? {
            store.apply_event(
                index,
                WatchEvent::Applied(Box::new(ConvertedObject::from_custom(
                    kind, &resource, object,
                ))),
            );
        }
    }
    Ok((store.mesh_exclusions(), store.mesh_floor()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::Server;

    #[tokio::test]
    async fn settings_of_other_meshes_apply_in_the_permitted_namespaces_only() {
        let server = Server::start_server().await;
        let namespaces = || BTreeSet::from([Name::new("fsm-system").unwrap()]);
        let no_settings = (Exclusions::default(), SecurityFloor::default());
        assert_eq!(read_sidecar_settings(&server.client, namespaces()).await.unwrap(), no_settings);
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
        let insert_object = |path: &str, value: Value| {
            server.store.lock().unwrap().objects.insert(path.to_owned(), value);
        };
        insert_object("/apis/config.flomesh.io/v1alpha3", resources);
        let configs = json!([config("a", "2023", 25), config("fsm-system", "2024", 26)]);
        insert_object("/apis/config.flomesh.io/v1alpha3/meshconfigs", list(configs));
        // Another namespace has no effect, even if its object is older.
        let (exclusions, _) = read_sidecar_settings(&server.client, namespaces()).await.unwrap();
        assert_eq!(exclusions.outbound_ports, [26].into());
        assert_eq!(
            read_sidecar_settings(&server.client, BTreeSet::new()).await.unwrap(),
            no_settings
        );
        server.store.lock().unwrap().forbidden = Some(("GET", "meshconfigs"));
        let forbidden = read_sidecar_settings(&server.client, namespaces()).await;
        assert_eq!(forbidden.unwrap_err().status_code(), Some(403));
    }
}
