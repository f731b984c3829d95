//! Mesh settings and namespace facts from the cluster, as the webhook uses them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Client;
use leno_kubernetes::api::{NamespaceName, ObjectApi, ObjectName, server_version};
use leno_kubernetes::inject::{Exclusions, NamespaceFacts, has_native_sidecars};
use leno_kubernetes::install::InstalledOptions;
use leno_kubernetes::source::sidecar_settings;
use leno_kubernetes::words::{CONTROL, CONTROL_NAME, ROOTS_CONFIG_MAP, ROOTS_NAME};
use leno_model::{Floor, Name, TrustDomain};

use crate::cluster::{ClusterArgs, format_api_error};

/// The mesh settings of a cluster; without a cluster, the roots alone.
#[derive(Debug, Default)]
pub(super) struct ClusterSettings {
    /// The mesh root certificates (PEM).
    pub(super) roots: String,
    pub(super) image: Option<String>,
    pub(super) trust_domain: Option<TrustDomain>,
    /// True if the cluster has no native sidecars.
    pub(super) lacks_native_sidecars: bool,
    /// True if CNI plugins redirect traffic to sidecars.
    pub(super) by_plugin: bool,
    /// Traffic excluded from redirection for every sidecar.
    pub(super) exclusions: Exclusions,
    /// The minimums that annotations cannot lower.
    pub(super) floor: Floor,
    /// The facts of namespaces, keyed by their names in the manifests.
    pub(super) namespaces: BTreeMap<String, NamespaceFacts>,
}

impl ClusterSettings {
    /// Reads the settings from the cluster, with the facts of these namespaces.
    pub(super) async fn read_from_cluster(
        cluster: &ClusterArgs,
        namespaces: BTreeSet<String>,
    ) -> anyhow::Result<Self> {
        let client = cluster.connect_client().await?;
        let namespace = &cluster.namespace;
        let roots = read_roots(&client, namespace).await?;
        let deployments: ObjectApi<Deployment> =
            ObjectApi::for_namespace(client.clone(), namespace);
        let deployment =
            deployments.get(&CONTROL_NAME).await.map_err(format_api_error).with_context(|| {
                format!("cannot read the Deployment {namespace}/{CONTROL}: pass --roots FILE")
            })?;
        let installed = InstalledOptions::from_deployment(&deployment);
        let version = server_version(&client)
            .await
            .map_err(format_api_error)
            .context("cannot query the API server")?;
        let own_namespace = Name::new(namespace).ok();
        let namespaces_of_settings =
            installed.settings_namespaces.iter().cloned().chain(own_namespace);
        let settings = sidecar_settings(&client, namespaces_of_settings.collect()).await;
        let (exclusions, floor) = settings.map_err(format_api_error).context(
            "cannot read the MeshConfig of Leno, OSM or FSM, which applies to every pod: request \
             permission to list it, or pass --roots FILE and annotate the pods",
        )?;
        Ok(Self {
            roots,
            image: control_image(deployment),
            trust_domain: installed.trust_domain,
            lacks_native_sidecars: !has_native_sidecars(&version.major, &version.minor),
            by_plugin: installed.cni,
            exclusions,
            floor,
            namespaces: read_namespace_facts(&client, namespaces).await?,
        })
    }
}

async fn read_roots(client: &Client, namespace: &NamespaceName) -> anyhow::Result<String> {
    let maps: ObjectApi<ConfigMap> = ObjectApi::for_namespace(client.clone(), namespace);
    let map = maps.get(&ROOTS_NAME).await.map_err(format_api_error).with_context(|| {
        format!(
            "cannot read the roots of the mesh, ConfigMap {namespace}/{ROOTS_CONFIG_MAP}: \
             install the mesh, or pass --roots FILE"
        )
    })?;
    let roots = map.data.and_then(|mut data| data.remove("roots.pem"));
    roots.with_context(|| {
        format!("ConfigMap {namespace}/{ROOTS_CONFIG_MAP} has no roots.pem; pass --roots FILE")
    })
}

/// Returns the image of the control plane, which sidecars use too.
fn control_image(deployment: Deployment) -> Option<String> {
    let pod = deployment.spec?.template.spec?;
    pod.containers.into_iter().find(|container| container.name == CONTROL)?.image
}

/// Returns the facts of namespaces by their names in the manifests. The empty name stands for the namespace of the
/// context, as in `kubectl apply`.
async fn read_namespace_facts(
    client: &Client,
    names: BTreeSet<String>,
) -> anyhow::Result<BTreeMap<String, NamespaceFacts>> {
    let namespaces: ObjectApi<Namespace> = ObjectApi::for_all_namespaces(client.clone());
    let mut facts = BTreeMap::new();
    for name_in_manifest in names {
        let name = if name_in_manifest.is_empty() {
            client.default_namespace()
        } else {
            &name_in_manifest
        };
        let object = ObjectName::from(&NamespaceName::new(name)?);
        let namespace = namespaces.get_opt(&object).await.map_err(format_api_error).with_context(|| {
            format!(
                "cannot read the namespace {name} and its annotations: request permission to read it, or \
                 pass --roots FILE and annotate the pods"
            )
        })?;
        match namespace {
            Some(namespace) => drop(facts.insert(name_in_manifest, namespace.into())),
            None => eprintln!("the namespace {name} does not exist: its annotations are unknown"),
        }
    }
    Ok(facts)
}
