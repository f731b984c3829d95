//! Revokes a Kubernetes pod with an entry of `spec.revoked` in the MeshConfig.

use std::collections::BTreeSet;

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use leno_kubernetes::api::{NamespaceName, ObjectApi, ObjectName};
use leno_model::{RevokedWorkload, Uid, WorkloadName};
use serde_json::{Value, json};

use super::{RevocationChange, RevocationResult, RevokeArgs};
use crate::cluster::from_api_error;

/// Adds or removes an entry of `spec.revoked` in the MeshConfig. Without a selected workload, lists the
/// workloads of that list.
///
/// # Errors
/// If the API server rejects a request, there is not exactly one MeshConfig, or other clients keep changing it.
pub(super) async fn run(
    args: &RevokeArgs,
    change: RevocationChange,
) -> anyhow::Result<RevocationResult> {
    let client = args.cluster.create_client().await?;
    let uid = match (&args.workload, &args.uid) {
        (Some(workload), None) if !args.by_name && change == RevocationChange::Revoke => {
            Some(query_pod_uid(&client, workload).await?)
        }
        (_, uid) => uid.clone(),
    };
    let selected = args.revoked_workload(uid);
    for _ in 0..MAX_ATTEMPTS {
        let mut config = read_mesh_config(&client).await?;
        let mut entries = read_revoked_entries(&config)?;
        let Some(selected) = &selected else {
            return Ok(RevocationResult {
                revoked_workloads: parse_revoked_workloads(&entries),
                selected_workload: None,
            });
        };
        let has_changed = edit_entries(&mut entries, selected, change);
        let result = RevocationResult {
            revoked_workloads: parse_revoked_workloads(&entries),
            selected_workload: Some((selected.clone(), has_changed)),
        };
        if !has_changed {
            return Ok(result);
        }
        config
            .data
            .get_mut("spec")
            .and_then(Value::as_object_mut)
            .context("the MeshConfig has no `spec`")?
            .insert("revoked".to_owned(), Value::Array(entries));
        let name = ObjectName::new(&config.metadata.name.clone().unwrap_or_default())?;
        // The object has the resource version that was read. The API server rejects the replacement with 409 if
        // another client has changed the object since.
        match mesh_config_api(&client)?.replace(&name, &PostParams::default(), &config).await {
            Ok(_) => return Ok(result),
            Err(error) if error.status_code() == Some(409) => {}
            Err(error) => {
                return Err(from_api_error(error)).context("cannot change the MeshConfig");
            }
        }
    }
    bail!("too many concurrent changes of the MeshConfig: try again")
}

/// Returns the UID of the pod that has this name now.
async fn query_pod_uid(client: &Client, workload: &WorkloadName) -> anyhow::Result<Uid> {
    let namespace = NamespaceName::new(workload.namespace.as_str())?;
    let pods = ObjectApi::<Pod>::for_namespace(client.clone(), &namespace);
    let name = ObjectName::from(&workload.name);
    let pod = pods.get_opt(&name).await.map_err(from_api_error)?;
    let uid = pod.and_then(|pod| Uid::new(pod.metadata.uid.as_deref()?).ok());
    uid.with_context(|| {
        format!(
            "no pod {workload} exists now: select its UID with --uid, or every pod with --by-name"
        )
    })
}

/// Reads the single MeshConfig of the cluster.
async fn read_mesh_config(client: &Client) -> anyhow::Result<DynamicObject> {
    let mut configs = mesh_config_api(client)?
        .list(&ListParams::default().limit(2))
        .await
        .map_err(from_api_error)
        .context("cannot read the MeshConfig")?
        .items;
    match (configs.pop(), configs.is_empty()) {
        (Some(config), true) => Ok(config),
        (Some(_), false) => bail!("the cluster has several MeshConfigs: remove all but one"),
        (None, _) => bail!(
            "the cluster has no MeshConfig: create one, with \
             `apiVersion: leno.dev/v1alpha1`, `kind: MeshConfig`, `metadata: {{name: mesh}}`, `spec: {{}}`"
        ),
    }
}

fn mesh_config_api(client: &Client) -> anyhow::Result<ObjectApi<DynamicObject>> {
    let kind = GroupVersionKind::gvk("leno.dev", "v1alpha1", "MeshConfig");
    let resource = ApiResource::from_gvk_with_plural(&kind, "meshconfigs");
    ObjectApi::for_dynamic_kind(client.clone(), None, &resource).map_err(from_api_error)
}

fn read_revoked_entries(config: &DynamicObject) -> anyhow::Result<Vec<Value>> {
    match config.data.pointer("/spec/revoked") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(entries)) => Ok(entries.clone()),
        Some(_) => bail!("`spec.revoked` of the MeshConfig is not a list: correct it first"),
    }
}

/// Adds or removes an entry. Returns false if no change is needed.
fn edit_entries(
    entries: &mut Vec<Value>,
    selected: &RevokedWorkload,
    change: RevocationChange,
) -> bool {
    let previous_count = entries.len();
    match change {
        RevocationChange::Revoke => {
            if !parse_revoked_workloads(entries).contains(selected) {
                let RevokedWorkload { workload: WorkloadName { namespace, name }, uid } = selected;
                let mut entry = json!({
                    "kind": "Pod", "namespace": namespace.as_str(), "name": name.as_str(),
                });
                if let Some(uid) = uid {
                    entry["uid"] = json!(uid.as_str());
                }
                entries.push(entry);
            }
        }
        RevocationChange::Undo => entries.retain(|entry| {
            let is_selected = |workload: RevokedWorkload| {
                workload.workload == selected.workload
                    && (selected.uid.is_none() || workload.uid == selected.uid)
            };
            !parse_entry(entry).is_some_and(is_selected)
        }),
    }
    entries.len() != previous_count
}

/// Returns the workloads of the entries; entries of other kinds, such as service accounts, are skipped.
fn parse_revoked_workloads(entries: &[Value]) -> BTreeSet<RevokedWorkload> {
    entries.iter().filter_map(parse_entry).collect()
}

/// Parses an entry for a pod or a workload; `None` for other kinds and invalid entries.
fn parse_entry(entry: &Value) -> Option<RevokedWorkload> {
    let text_field = |field: &str| entry.get(field).and_then(Value::as_str);
    let is_workload = matches!(text_field("kind"), Some("Pod" | "Workload"));
    let workload = WorkloadName::new(text_field("namespace")?, text_field("name")?).ok()?;
    let uid = match text_field("uid") {
        None => None,
        Some(uid) => Some(Uid::new(uid).ok()?),
    };
    is_workload.then_some(RevokedWorkload { workload, uid })
}

/// The maximum number of attempts to change the MeshConfig while other clients change it concurrently.
const MAX_ATTEMPTS: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_added_once_and_removed_without_other_entries() {
        let account = json!({"kind": "ServiceAccount", "namespace": "shop", "name": "web-0"});
        let mut entries = vec![account.clone()];
        let revoked = |uid: Option<&str>| RevokedWorkload {
            workload: "shop/web-0".parse().unwrap(),
            uid: uid.map(|uid| Uid::new(uid).unwrap()),
        };
        assert!(edit_entries(&mut entries, &revoked(Some("a")), RevocationChange::Revoke));
        assert!(!edit_entries(&mut entries, &revoked(Some("a")), RevocationChange::Revoke));
        assert!(edit_entries(&mut entries, &revoked(Some("b")), RevocationChange::Revoke));
        assert_eq!(entries[1]["uid"], "a");
        assert_eq!(
            parse_revoked_workloads(&entries),
            [revoked(Some("a")), revoked(Some("b"))].into()
        );
        assert!(!edit_entries(&mut entries, &revoked(Some("c")), RevocationChange::Undo));
        assert!(edit_entries(&mut entries, &revoked(None), RevocationChange::Undo));
        assert_eq!(entries, [account]);
    }
}
