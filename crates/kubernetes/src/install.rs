//! Installs a mesh in a cluster: builds its manifests, applies and removes them, and examines the result.

mod access;
mod admission;
mod apply;
mod cni;
mod control_plane;
mod definition_schema;
mod examine;
mod hook;
mod installed;
mod json_schema;
mod kinds;
mod network_policy;
mod remove;
mod retract;
mod schema;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unknown_fields;
mod validation_rules;

use std::collections::BTreeSet;

use leno_model::{Name, TrustDomain};
use serde_json::{Map, Value, json};

use crate::inject::AddressRange;
use crate::well_known::{CONTROL, GATEWAY_CLASS, GATEWAY_CONTROLLER, SYSTEM_NAMESPACE};

pub(crate) use apply::ApiTarget;
pub use apply::{InstallError, InstallStep, apply_manifests, wait_for_rollout, wait_for_webhook};
pub use cni::NodeNetwork;
pub use examine::{ExamineProblem, ExamineResult, ExaminedSubject, examine_all, examine_each};
pub use hook::uninstall_hook;
pub use installed::InstalledOptions;
pub use json_schema::manifest_schemas;
pub use kinds::crd_name;
pub use remove::{
    RemovalExtent, lease_reference, objects_to_remove, remove_cni, remove_gateway_permissions,
    remove_gateways, remove_objects, remove_protections, remove_secret_permissions,
};
pub use retract::{retract_gateways, retract_statuses, wait_for_control_planes};

/// Options of an installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstallOptions {
    /// The container image of control planes and sidecars.
    pub image: String,
    /// The namespace of the control plane.
    pub namespace: String,
    /// The number of control plane replicas; 2 by default.
    pub replicas: u32,
    /// The trust domain of the mesh.
    pub trust_domain: TrustDomain,
    /// True to install the supported kinds of SMI, OSM and FSM too.
    pub with_smi: bool,
    /// The CNI directories of nodes, if the CNI plugin redirects connections to sidecars.
    pub cni: Option<NodeNetwork>,
    /// True if gateways are enabled, for which the control plane needs many more permissions.
    pub gateways: bool,
    /// The namespaces in which the control plane may write Secrets of external principals.
    pub access_certs: BTreeSet<Name>,
    /// The client CA certificates of the webhook, as PEM, if it verifies clients.
    pub webhook_client_ca: Option<String>,
    /// True to install a NetworkPolicy that permits only the connections that the control plane needs.
    pub network_policies: bool,
    /// The API servers' address ranges. Only these addresses may connect to the webhook; if there are none, all
    /// addresses may.
    pub api_server: BTreeSet<AddressRange>,
    /// The namespaces with mesh-wide objects, in addition to the control plane's.
    pub settings_namespaces: BTreeSet<Name>,
    /// The JWKS servers that are allowed in addition to those at public addresses: the value of `leno control
    /// --jwks-allow`. `None` allows no others.
    pub jwks_allow: Option<String>,
    /// The clients that may read metrics of sidecars and gateways: the value of `leno control --metrics-from`.
    pub metrics_from: Option<String>,
}

impl InstallOptions {
    /// Creates default options with this image and trust domain.
    #[must_use]
    pub fn new(image: String, trust_domain: TrustDomain) -> Self {
        let namespace = SYSTEM_NAMESPACE.to_owned();
        Self {
            image,
            namespace,
            replicas: 2,
            trust_domain,
            with_smi: false,
            cni: None,
            gateways: false,
            access_certs: BTreeSet::new(),
            webhook_client_ca: None,
            network_policies: true,
            api_server: BTreeSet::new(),
            settings_namespaces: BTreeSet::new(),
            jwks_allow: None,
            metrics_from: None,
        }
    }
}

/// Returns all objects in the order in which they are applied: kinds before objects of them, and permissions
/// before their users.
#[must_use]
pub fn installation_manifests(options: &InstallOptions) -> Vec<Value> {
    let mut manifests = kinds::kind_definitions();
    if options.with_smi {
        manifests.extend(kinds::smi_kind_definitions());
    }
    manifests.push(control_plane::control_namespace(options));
    manifests.extend(access::access_objects(options));
    // The control plane creates its authority for the trust domain that it finds. If the settings of another
    // mesh apply, the trust domain is only in the environment of the control plane.
    let has_default_domain = options.trust_domain.to_string() == DEFAULT_TRUST_DOMAIN;
    if !has_default_domain && options.settings_namespaces.is_empty() {
        manifests.push(mesh_config(options));
    }
    // The plugin is installed before pods that rely on it are created.
    if let Some(network) = &options.cni {
        manifests.extend(cni::cni_objects(options, network));
    }
    if options.network_policies {
        manifests.push(network_policy::policy_object(options));
    }
    manifests.extend(control_plane::control_plane_objects(options));
    manifests.push(admission::webhook_configuration(options));
    manifests.extend(validation_rules::policy_objects());
    if options.gateways {
        manifests.push(gateway_class());
    }
    manifests
}

/// Returns the GatewayClass of our gateways. It cannot be created in clusters without the Gateway API.
fn gateway_class() -> Value {
    json!({
        "apiVersion": GATEWAY_CLASS_VERSION,
        "kind": "GatewayClass",
        "metadata": cluster_metadata(GATEWAY_CLASS),
        "spec": {"controllerName": GATEWAY_CONTROLLER},
    })
}

/// Returns the result for an object that may be skipped if the cluster does not have its kind or its namespace;
/// `None` for objects that every installation needs.
fn skip_result(manifest: &Value) -> Option<&'static str> {
    let kind = manifest["kind"].as_str().unwrap_or_default();
    if kind == "GatewayClass" || validation_rules::is_policy_kind(kind) {
        return Some("skipped: the cluster does not have its kind");
    }
    let is_access_cert_role = manifest["metadata"]["name"] == access::ACCESS_CERTS_ROLE;
    is_access_cert_role.then_some("skipped: the cluster does not have its namespace")
}

/// Returns true for the CustomResourceDefinition of a kind of SMI, OSM or FSM, which another mesh may have
/// installed.
fn is_foreign_crd(manifest: &Value) -> bool {
    manifest["kind"] == "CustomResourceDefinition" && manifest["spec"]["group"] != kinds::GROUP
}

/// Returns the mesh settings with the trust domain of the options.
fn mesh_config(options: &InstallOptions) -> Value {
    json!({
        "apiVersion": "leno.dev/v1alpha1",
        "kind": "MeshConfig",
        "metadata": {"name": "mesh"},
        "spec": {"trustDomain": options.trust_domain.to_string()},
    })
}

/// Returns the metadata of a cluster-scoped object.
fn cluster_metadata(name: &str) -> Value {
    json!({"name": name, "labels": common_labels()})
}

/// Returns the metadata of an object in the namespace of the control plane.
fn namespaced_metadata(name: &str, options: &InstallOptions) -> Value {
    json!({"name": name, "namespace": options.namespace, "labels": common_labels()})
}

fn common_labels() -> Map<String, Value> {
    let mut labels = pod_selector();
    labels.insert(PART_OF_LABEL.to_owned(), PART_OF.into());
    labels
}

/// Returns the labels by which Services and the Deployment select the pods of the control plane.
fn pod_selector() -> Map<String, Value> {
    let mut labels = Map::new();
    labels.insert("app.kubernetes.io/name".to_owned(), CONTROL.into());
    labels
}

const GATEWAY_CLASS_VERSION: &str = "gateway.networking.k8s.io/v1";
const PART_OF: &str = "leno";
const PART_OF_LABEL: &str = "app.kubernetes.io/part-of";
/// The default trust domain, which needs no MeshConfig.
const DEFAULT_TRUST_DOMAIN: &str = "cluster.local";
