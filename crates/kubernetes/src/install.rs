//! Everything that a cluster needs for a mesh: as objects, applied, removed, looked at.

mod access;
mod admission;
mod apply;
mod cni;
mod control_plane;
mod examine;
mod hook;
mod installed;
mod kinds;
mod network_policy;
mod refusals;
mod remove;
mod retract;
mod schema;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unknown_fields;

use std::collections::BTreeSet;

use leno_model::{Name, TrustDomain};
use serde_json::{Map, Value, json};

use crate::inject::AddressRange;
use crate::words::{CONTROL, GATEWAY_CLASS, GATEWAY_CONTROLLER, SYSTEM_NAMESPACE};

pub(crate) use apply::Addressed;
pub use apply::{InstallError, Step, apply, wait_for_rollout, wait_for_webhook};
pub use cni::NodeNetwork;
pub use examine::{Examined, Finding, Trouble, examine, examine_each};
pub use hook::uninstall_hook;
pub use installed::Installed;
pub use kinds::crd_name;
pub use remove::{
    Extent, lease, removals, remove, remove_gateways, withdraw, withdraw_cni, withdraw_gateways,
    withdraw_protections,
};
pub use retract::{retract_statuses, wait_for_control_planes};

/// What is installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The image of Leno, for control planes and sidecars.
    pub image: String,
    /// The namespace of the control plane.
    pub namespace: String,
    /// How many control planes.
    pub replicas: u32,
    /// The trust domain of the mesh.
    pub trust_domain: TrustDomain,
    /// Whether the kinds of SMI and OSM are installed too.
    pub with_smi: bool,
    /// Where the network of nodes is, if their plugins are to lead connections to sidecars.
    pub cni: Option<NodeNetwork>,
    /// Whether there are gateways, for which the control plane may much more.
    pub gateways: bool,
    /// The namespaces in which the control plane may write Secrets, for clients outside the mesh.
    pub access_certs: BTreeSet<Name>,
    /// The authorities of clients of the webhook, as PEM, if clients are verified.
    pub webhook_client_ca: Option<String>,
    /// True for a NetworkPolicy that permits the connections that the control plane needs, and no others.
    pub network_policies: bool,
    /// The addresses of API servers, which alone may connect to the webhook then; all addresses when it is empty.
    pub api_server: BTreeSet<AddressRange>,
    /// The namespaces with objects about the whole mesh, in addition to the control plane's.
    pub settings_namespaces: BTreeSet<Name>,
    /// The servers, in addition to those at public addresses, that keys of issuers may be read from: the text of
    /// `leno control --jwks-allow`; none when absent.
    pub jwks_allow: Option<String>,
    /// The clients that get metrics of sidecars and gateways: the text of `leno control --metrics-from`.
    pub metrics_from: Option<String>,
}

impl Options {
    /// With everything at its default but for the image.
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

/// Everything, in the order in which it is applied: kinds before what uses them, and who may what
/// before whoever needs it.
#[must_use]
pub fn manifests(options: &Options) -> Vec<Value> {
    let mut all = kinds::own();
    if options.with_smi {
        all.extend(kinds::of_smi());
    }
    all.push(control_plane::namespace(options));
    all.extend(access::objects(options));
    // The control plane makes its authority for the trust domain that it finds. Where the settings of another mesh are to
    // apply, the trust domain is in the environment of the control plane alone.
    let has_default = options.trust_domain.to_string() == TRUST_DOMAIN_DEFAULT;
    if !has_default && options.settings_namespaces.is_empty() {
        all.push(mesh_config(options));
    }
    // Before pods are made that rely on it.
    if let Some(network) = &options.cni {
        all.extend(cni::objects(options, network));
    }
    if options.network_policies {
        all.push(network_policy::object(options));
    }
    all.extend(control_plane::objects(options));
    all.push(admission::configuration(options));
    all.extend(refusals::objects());
    if options.gateways {
        all.push(gateway_class());
    }
    all
}

/// By which gateways of the Gateway API are ours. Where that API is not installed it cannot be.
fn gateway_class() -> Value {
    json!({
        "apiVersion": GATEWAY_CLASS_VERSION,
        "kind": "GatewayClass",
        "metadata": cluster_metadata(GATEWAY_CLASS),
        "spec": {"controllerName": GATEWAY_CONTROLLER},
    })
}

/// What is said of an object that is left out because a cluster need not have its kind, or its namespace.
fn left_out(manifest: &Value) -> Option<&'static str> {
    let kind = manifest["kind"].as_str().unwrap_or_default();
    if kind == "GatewayClass" || refusals::is_kind(kind) {
        return Some("left out: the cluster does not have its kind");
    }
    let is_right_there = manifest["metadata"]["name"] == access::ACCESS_CERTS;
    is_right_there.then_some("left out: the cluster does not have its namespace")
}

/// Whether it defines a kind that is not ours, and that another mesh may have brought.
fn is_borrowed_kind(manifest: &Value) -> bool {
    manifest["kind"] == "CustomResourceDefinition" && manifest["spec"]["group"] != kinds::GROUP
}

/// The trust domain is a setting of the mesh, as it is outside of clusters.
fn mesh_config(options: &Options) -> Value {
    json!({
        "apiVersion": "leno.dev/v1alpha1",
        "kind": "MeshConfig",
        "metadata": {"name": "mesh"},
        "spec": {"trustDomain": options.trust_domain.to_string()},
    })
}

/// Metadata of an object without a namespace.
fn cluster_metadata(name: &str) -> Value {
    json!({"name": name, "labels": labels()})
}

/// Metadata of an object beside the control plane.
fn metadata(name: &str, options: &Options) -> Value {
    json!({"name": name, "namespace": options.namespace, "labels": labels()})
}

fn labels() -> Map<String, Value> {
    let mut labels = selector();
    labels.insert(PART_OF_LABEL.to_owned(), PART_OF.into());
    labels
}

/// By which Services and the Deployment find the pods of the control plane.
fn selector() -> Map<String, Value> {
    let mut labels = Map::new();
    labels.insert("app.kubernetes.io/name".to_owned(), CONTROL.into());
    labels
}

const GATEWAY_CLASS_VERSION: &str = "gateway.networking.k8s.io/v1";
const PART_OF: &str = "leno";
const PART_OF_LABEL: &str = "app.kubernetes.io/part-of";
/// What a mesh has when nobody says anything.
const TRUST_DOMAIN_DEFAULT: &str = "cluster.local";
