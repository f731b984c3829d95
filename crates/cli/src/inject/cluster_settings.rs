//! Reads mesh settings and namespace metadata from the cluster for `leno inject`, in the same way as the
//! webhook does.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Client;
use leno_kubernetes::api::{NamespaceName, ObjectApi, ObjectName, server_version};
use leno_kubernetes::inject::{Exclusions, NamespaceMetadata, has_native_sidecars};
use leno_kubernetes::install::InstalledOptions;
use leno_kubernetes::source::read_sidecar_settings;
use leno_kubernetes::well_known::{CONTROL, CONTROL_NAME, ROOTS_CONFIG_MAP, ROOTS_NAME};
use leno_model::{Name, SecurityFloor, TrustDomain};

use crate::cluster::{ClusterArgs, from_api_error};

/// The mesh settings of a cluster. Without a cluster only the roots are set.
#[derive(Debug, Default)]
pub(super) struct ClusterSettings {
    /// The mesh root certificates (PEM).
    pub(super) roots: String,
    /// The image of the control plane; `None` if it is unknown.
    pub(super) image: Option<String>,
    /// The installed trust domain; `None` without a cluster, or if the installation does not set it.
    pub(super) trust_domain: Option<TrustDomain>,
    /// True if the cluster has no native sidecars.
    pub(super) lacks_native_sidecars: bool,
    /// True if CNI plugins redirect traffic to sidecars.
    pub(super) uses_cni_plugin: bool,
    /// Traffic excluded from redirection for every sidecar.
    pub(super) exclusions: Exclusions,
    /// The minimum security settings of the MeshConfig, which annotations cannot lower.
    pub(super) floor: SecurityFloor,
    /// The labels and annotations of namespaces, keyed by the names of the namespaces in the manifests.
    pub(super) namespaces: BTreeMap<String, NamespaceMetadata>,
}

impl ClusterSettings {
    /// Reads the settings from the cluster, with the metadata of these namespaces.
    pub(super) async fn read_from_cluster(
        cluster: &ClusterArgs,
        namespaces: BTreeSet<String>,
    ) -> anyhow::Result<Self> {
        let client = cluster.create_client().await?;
        let namespace = &cluster.namespace;
        let roots = read_roots(&client, namespace).await?;
        let deployments: ObjectApi<Deployment> =
            ObjectApi::for_namespace(client.clone(), namespace);
        let deployment =
            deployments.get(&CONTROL_NAME).await.map_err(from_api_error).with_context(|| {
                format!("cannot read the Deployment {namespace}/{CONTROL}: pass --roots FILE")
            })?;
        let installed_options = InstalledOptions::from_deployment(&deployment);
        let version = server_version(&client)
            .await
            .map_err(from_api_error)
            .context("cannot query the API server")?;
        let own_namespace = Name::new(namespace).ok();
        let settings_namespaces =
            installed_options.settings_namespaces.iter().cloned().chain(own_namespace);
        let settings_result = read_sidecar_settings(&client, settings_namespaces.collect()).await;
        let (exclusions, floor) = settings_result.map_err(from_api_error).context(
            "cannot read the MeshConfig of Leno, OSM or FSM, which applies to every pod: request \
             permission to list it, or pass --roots FILE and annotate the pods",
        )?;
        Ok(Self {
            roots,
            image: control_image(deployment),
            trust_domain: installed_options.trust_domain,
            lacks_native_sidecars: !has_native_sidecars(&version.major, &version.minor),
            uses_cni_plugin: installed_options.cni,
            exclusions,
            floor,
            namespaces: read_namespace_metadata(&client, namespaces).await?,
        })
    }
}

async fn read_roots(client: &Client, namespace: &NamespaceName) -> anyhow::Result<String> {
    let config_maps: ObjectApi<ConfigMap> = ObjectApi::for_namespace(client.clone(), namespace);
    let config_map =
        config_maps.get(&ROOTS_NAME).await.map_err(from_api_error).with_context(|| {
            format!(
                "cannot read the roots of the mesh, ConfigMap {namespace}/{ROOTS_CONFIG_MAP}: \
             install the mesh, or pass --roots FILE"
            )
        })?;
    let roots = config_map.data.and_then(|mut data| data.remove("roots.pem"));
    roots.with_context(|| {
        format!("ConfigMap {namespace}/{ROOTS_CONFIG_MAP} has no roots.pem; pass --roots FILE")
    })
}

/// Returns the image of the control plane, which sidecars use too.
fn control_image(deployment: Deployment) -> Option<String> {
    let pod = deployment.spec?.template.spec?;
    pod.containers.into_iter().find(|container| container.name == CONTROL)?.image
}

/// Returns the labels and annotations of namespaces, keyed by the names in the manifests. The empty name means the
/// namespace of the kubeconfig context, as in `kubectl apply`.
async fn read_namespace_metadata(
    client: &Client,
    names: BTreeSet<String>,
) -> anyhow::Result<BTreeMap<String, NamespaceMetadata>> {
    let namespaces: ObjectApi<Namespace> = ObjectApi::for_all_namespaces(client.clone());
    let mut metadata_by_namespace = BTreeMap::new();
    for name_in_manifest in names {
        let name = if name_in_manifest.is_empty() {
            client.default_namespace()
        } else {
            &name_in_manifest
        };
        let object_name = ObjectName::from(&NamespaceName::new(name)?);
        let namespace = namespaces.get_opt(&object_name).await.map_err(from_api_error).with_context(|| {
            format!(
                "cannot read the namespace {name} and its annotations: request permission to read it, or \
                 pass --roots FILE and annotate the pods"
            )
        })?;
        match namespace {
            Some(namespace) => {
                drop(metadata_by_namespace.insert(name_in_manifest, namespace.into()))
            }
            None => eprintln!("the namespace {name} does not exist: its annotations are unknown"),
        }
    }
    Ok(metadata_by_namespace)
}
