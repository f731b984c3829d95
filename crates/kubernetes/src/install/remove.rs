//! Removes an installation, or parts of it, from a cluster.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::{Client, ResourceExt as _};
use leno_model::Name;
use serde_json::{Value, json};
use tokio::time::{Duration, sleep};

use super::access::{ACCESS_CERTS_ROLE, GATEWAYS_ROLE};
use super::apply::{ApiTarget, manifest_resource};
use super::cni::{self, NodeNetwork};
use super::control_plane::WEBHOOK_CLIENTS;
use super::kinds::crd_name;
use super::{
    InstallError, InstallOptions, InstallStep, PART_OF, PART_OF_LABEL, installation_manifests,
};
use crate::api::{ApiError, ObjectApi, ObjectName};
use crate::webhook::WEBHOOK_SECRET;
use crate::well_known::{AUTHORITY_SECRET, CONTROL, GATEWAY_PART, ROOTS_CONFIG_MAP};

/// The extent of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovalExtent {
    /// Only the components that run, with their permissions. Users' objects and their kinds stay, as does the
    /// authority, so that a new installation trusts the same sidecars.
    Components,
    /// The whole installation, with all objects of our kinds.
    Everything,
}

/// Returns the objects to remove, in this order: the webhook first, so that pods can be created at any time.
#[must_use]
pub fn objects_to_remove(options: &InstallOptions, extent: RemovalExtent) -> Vec<Value> {
    let namespaced_object = |kind: &str, name: &str| {
        json!({
            "apiVersion": "v1",
            "kind": kind,
            "metadata": {"name": name, "namespace": options.namespace},
        })
    };
    // The lowest rank is removed first; within a rank, the order is the reverse of the installation.
    let mut manifests_by_rank: BTreeMap<u8, Vec<Value>> = BTreeMap::new();
    for manifest in installation_manifests(options).into_iter().rev() {
        let rank = match manifest["kind"].as_str().unwrap_or_default() {
            "MutatingWebhookConfiguration" => 0,
            "Deployment" | "DaemonSet" => 1,
            "CustomResourceDefinition" if extent == RemovalExtent::Everything => 3,
            "Namespace" if extent == RemovalExtent::Everything => 4,
            "CustomResourceDefinition" | "Namespace" | "MeshConfig" => continue,
            _ => 2,
        };
        manifests_by_rank.entry(rank).or_default().push(manifest);
    }
    let component_objects = manifests_by_rank.entry(2).or_default();
    component_objects.push(namespaced_object("Secret", WEBHOOK_SECRET));
    component_objects.push(namespaced_object("ConfigMap", ROOTS_CONFIG_MAP));
    component_objects.push(lease_reference(&options.namespace));
    if extent == RemovalExtent::Everything {
        component_objects.push(namespaced_object("Secret", AUTHORITY_SECRET));
        manifests_by_rank.entry(3).or_default().extend(FORMER_PLURALS.iter().map(|plural| {
            json!({
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": crd_name(plural)},
            })
        }));
    }
    manifests_by_rank.into_values().flatten().collect()
}

/// Returns a reference to the Lease of the control planes.
#[must_use]
pub fn lease_reference(namespace: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": CONTROL, "namespace": namespace},
    })
}

/// Removes the objects that exist.
///
/// # Errors
/// When the API server rejects a call. The objects before it have been removed.
pub async fn remove_objects(
    client: &Client,
    removals: &[Value],
    mut report: impl FnMut(InstallStep),
) -> Result<(), InstallError> {
    for manifest in removals {
        let ApiTarget { object, name, api } = ApiTarget::from_manifest(client, manifest)?;
        // Permissions are revoked immediately. The removal of other objects includes their dependents.
        let parameters = match manifest["kind"].as_str() {
            Some("Role" | "RoleBinding" | "ClusterRole" | "ClusterRoleBinding") => {
                DeleteParams::background()
            }
            _ => DeleteParams::foreground(),
        };
        let result = match api.delete(&name, &parameters).await {
            Ok(()) if must_be_gone(manifest) => {
                let wait_result = wait_until_deleted(&api, &name).await;
                wait_result.map_err(|error| InstallError::from_api_error("get", &object, error))?
            }
            Ok(()) => "removed",
            Err(error) if error.status_code() == Some(NOT_FOUND) => "does not exist",
            Err(error) => return Err(InstallError::from_api_error("remove", &object, error)),
        };
        report(InstallStep { object, result });
    }
    Ok(())
}

/// Removes the objects of gateways in every namespace, which would otherwise keep running unmanaged. Call this
/// when no control plane is left, because a control plane would recreate the objects.
///
/// # Errors
/// When the API server rejects a call. The objects before it have been removed.
pub async fn remove_gateways(
    client: &Client,
    mut report: impl FnMut(InstallStep),
) -> Result<(), InstallError> {
    for (version, kind) in [
        ("apps/v1", "Deployment"),
        ("policy/v1", "PodDisruptionBudget"),
        ("v1", "Service"),
        ("v1", "ServiceAccount"),
    ] {
        let api = api_for_all_namespaces(client, &json!({"apiVersion": version, "kind": kind}))?;
        let parameters = ListParams::default().labels(GATEWAY_PART);
        let list_result = api.list(&parameters).await;
        let objects =
            list_result.map_err(|error| InstallError::from_api_error("list", kind, error))?;
        for object in objects {
            let is_owned = |owner: &OwnerReference| owner.kind == "Gateway";
            if !object.owner_references().iter().any(is_owned) {
                continue;
            }
            let (name, namespace) = (object.name_any(), object.namespace());
            let metadata = json!({"name": name, "namespace": namespace});
            let manifest = json!({"apiVersion": version, "kind": kind, "metadata": metadata});
            remove_objects(client, &[manifest], &mut report).await?;
        }
    }
    Ok(())
}

/// Removes the permissions to write Secrets in namespaces other than `retained_namespaces`.
///
/// # Errors
/// When the API server rejects a call. The objects before it have been removed.
pub async fn remove_secret_permissions(
    client: &Client,
    retained_namespaces: &BTreeSet<Name>,
    mut report: impl FnMut(InstallStep),
) -> Result<(), InstallError> {
    // Neither grants permissions without the other, so the order does not matter.
    for kind in ["RoleBinding", "Role"] {
        let kind_reference = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind});
        let api = api_for_all_namespaces(client, &kind_reference)?;
        let parameters = ListParams::default()
            .labels(&format!("{PART_OF_LABEL}={PART_OF}"))
            .fields(&format!("metadata.name={ACCESS_CERTS_ROLE}"));
        let list_result = api.list(&parameters).await;
        let objects =
            list_result.map_err(|error| InstallError::from_api_error("list", kind, error))?;
        for object in objects {
            let namespace = object.namespace().unwrap_or_default();
            if retained_namespaces.iter().any(|retained| retained.as_str() == namespace) {
                continue;
            }
            let mut manifest = kind_reference.clone();
            manifest["metadata"] = json!({"name": ACCESS_CERTS_ROLE, "namespace": namespace});
            remove_objects(client, &[manifest], &mut report).await?;
        }
    }
    Ok(())
}

/// Removes the permissions for gateways.
///
/// # Errors
/// When the API server rejects a call. The objects before it have been removed.
pub async fn remove_gateway_permissions(
    client: &Client,
    mut report: impl FnMut(InstallStep),
) -> Result<(), InstallError> {
    for kind in ["ClusterRoleBinding", "ClusterRole"] {
        let manifest = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": GATEWAYS_ROLE},
        });
        remove_if_installed(client, manifest, &mut report).await?;
    }
    Ok(())
}

/// Removes the node agents, which remove the plugin from their nodes on shutdown, and their permissions. Call
/// this only when pods do not rely on the plugin any more, which the options of the control plane determine.
///
/// # Errors
/// When the API server rejects a call. The objects before it have been removed.
pub async fn remove_cni(
    client: &Client,
    options: &InstallOptions,
    mut report: impl FnMut(InstallStep),
) -> Result<(), InstallError> {
    // In reverse order: the DaemonSet first, because its pods need the permissions during shutdown, and the
    // namespace last.
    for manifest in cni::cni_objects(options, &NodeNetwork::default()).into_iter().rev() {
        let is_daemon_set = manifest["kind"] == "DaemonSet";
        let mut last_step = None;
        let mut report_step = |step: InstallStep| {
            last_step = Some(step.clone());
            report(step);
        };
        remove_if_installed(client, manifest, &mut report_step).await?;
        if let Some(step) = last_step.filter(|step| is_daemon_set && step.result == BEING_REMOVED) {
            return Err(remaining_agents_error(&step));
        }
    }
    Ok(())
}

/// Returns the error that node agents still run and need their permissions, so that the rest cannot be removed
/// yet.
fn remaining_agents_error(step: &InstallStep) -> InstallError {
    InstallError::TimedOut {
        operation: "the removal of the agents of nodes",
        timeout: DELETION_POLL_INTERVAL.saturating_mul(MAX_DELETION_POLLS),
        state: format!(
            "pods of {} are still terminating, perhaps on a node that is not ready; their account \
             and its permissions are kept: repeat the command when the pods are gone",
            step.object
        ),
    }
}

/// Removes the NetworkPolicy and the client CA certificates of the webhook if the options disable them.
///
/// # Errors
/// When the API server rejects a call. The objects before it have been removed.
pub async fn remove_protections(
    client: &Client,
    options: &InstallOptions,
    mut report: impl FnMut(InstallStep),
) -> Result<(), InstallError> {
    let reference = |version: &str, kind: &str, name: &str| {
        json!({
            "apiVersion": version,
            "kind": kind,
            "metadata": {"name": name, "namespace": options.namespace},
        })
    };
    if !options.network_policies {
        let policy = reference("networking.k8s.io/v1", "NetworkPolicy", CONTROL);
        remove_if_installed(client, policy, &mut report).await?;
    }
    if options.webhook_client_ca.is_none() {
        remove_if_installed(client, reference("v1", "ConfigMap", WEBHOOK_CLIENTS), &mut report)
            .await?;
    }
    Ok(())
}

/// Removes an object if it exists and was installed by Leno.
async fn remove_if_installed(
    client: &Client,
    manifest: Value,
    report: &mut impl FnMut(InstallStep),
) -> Result<(), InstallError> {
    let ApiTarget { object, name, api } = ApiTarget::from_manifest(client, &manifest)?;
    let read_result = api.get_opt(&name).await;
    let existing =
        read_result.map_err(|error| InstallError::from_api_error("get", &object, error))?;
    let belongs_to_leno = |object: &DynamicObject| {
        object.labels().get(PART_OF_LABEL).is_some_and(|part| part == PART_OF)
    };
    if existing.as_ref().is_some_and(belongs_to_leno) {
        remove_objects(client, &[manifest], report).await?;
    }
    Ok(())
}

/// Returns an API for the objects of a kind in every namespace.
fn api_for_all_namespaces(
    client: &Client,
    kind: &Value,
) -> Result<ObjectApi<DynamicObject>, InstallError> {
    let resource = manifest_resource(kind);
    let api = ObjectApi::for_dynamic_kind(client.clone(), None, &resource);
    api.map_err(|error| InstallError::from_api_error("list", &resource.kind, error))
}

/// Returns true if the object has to be gone before the next step. Node agents restore their nodes with the
/// permissions that are removed next. A control plane would recreate the objects of gateways. A terminating
/// namespace accepts no objects of a new installation.
fn must_be_gone(manifest: &Value) -> bool {
    match manifest["kind"].as_str() {
        Some("DaemonSet" | "Namespace") => true,
        Some("Deployment") => manifest["metadata"]["name"] == CONTROL,
        _ => false,
    }
}

/// Waits up to a minute until an object and its dependents are gone, and returns the result to report.
async fn wait_until_deleted(
    api: &ObjectApi<DynamicObject>,
    name: &ObjectName,
) -> Result<&'static str, ApiError> {
    for _ in 0..MAX_DELETION_POLLS {
        if api.get_opt(name).await?.is_none() {
            return Ok("removed");
        }
        sleep(DELETION_POLL_INTERVAL).await;
    }
    Ok(BEING_REMOVED)
}

/// The result for an object that still exists after the last check.
const BEING_REMOVED: &str = "is being removed";

/// The plural names of kinds that only earlier versions of Leno had.
const FORMER_PLURALS: &[&str] = &["workloads"];
const NOT_FOUND: u16 = 404;
/// The interval between checks for a deleted object.
const DELETION_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The maximum number of checks for a deleted object: one minute in total.
const MAX_DELETION_POLLS: u32 = 120;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_remaining_agents() {
        let step =
            InstallStep { object: "DaemonSet leno-cni/leno-cni".to_owned(), result: BEING_REMOVED };
        let error = remaining_agents_error(&step).to_string();
        assert!(
            error.contains("did not complete within 60s: pods of DaemonSet leno-cni/leno-cni"),
            "{error}"
        );
    }
}
