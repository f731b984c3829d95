//! What an installation was made with, read from what runs.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Container, Volume};
use kube::{Api, Client};
use leno_model::{Name, TrustDomain};

use super::control_plane::{ACCESS_CERTS_OPTION, SETTINGS_NAMESPACES_OPTION};
use super::{InstallError, NodeNetwork};
use crate::words::{CNI, CONTROL};

/// What a control plane was installed with, as far as it is told anew with every installation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Installed {
    /// How many control planes, if that can be told.
    pub replicas: Option<u32>,
    /// The trust domain of the mesh, if it is told.
    pub trust_domain: Option<TrustDomain>,
    /// Whether it relies on the network plugins of nodes.
    pub cni: bool,
    /// Where those are.
    pub network: Option<NodeNetwork>,
    /// Whether it serves gateways.
    pub gateways: bool,
    /// Where it may write Secrets.
    pub access_certs: BTreeSet<Name>,
    /// The namespaces that may have objects about the whole mesh.
    pub settings_namespaces: BTreeSet<Name>,
}

impl Installed {
    /// What is installed in a namespace, if anything is.
    ///
    /// # Errors
    /// When that cannot be read.
    pub async fn find(client: &Client, namespace: &str) -> Result<Option<Self>, InstallError> {
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
        let found = deployments.get_opt(CONTROL).await;
        let Some(found) = found.map_err(|error| InstallError::of("get", CONTROL, error))? else {
            return Ok(None);
        };
        let mut installed = Self::of(&found);
        if installed.cni {
            let sets: Api<DaemonSet> = Api::namespaced(client.clone(), CNI);
            let set = sets.get_opt(CNI).await;
            let set = set.map_err(|error| InstallError::of("get", CNI, error))?;
            installed.network = set.as_ref().and_then(network);
        }
        Ok(Some(installed))
    }

    /// What the Deployment of a control plane tells.
    #[must_use]
    pub fn of(deployment: &Deployment) -> Self {
        let Some(spec) = &deployment.spec else { return Self::default() };
        let containers = spec.template.spec.iter().flat_map(|pod| &pod.containers);
        let container = containers.into_iter().find(|it| it.name == CONTROL);
        let has = |word: &str| {
            let args = container.and_then(|it: &Container| it.args.as_ref());
            args.into_iter().flatten().any(|argument| argument == word)
        };
        let namespaces = |option: &str| -> BTreeSet<Name> {
            let args = container.and_then(|it| it.args.as_ref()).into_iter().flatten();
            let namespaces = args.filter_map(|it| it.strip_prefix(option));
            namespaces.flat_map(|it| it.split(',')).filter_map(|it| Name::new(it).ok()).collect()
        };
        let variables = container.and_then(|it| it.env.as_ref()).into_iter().flatten();
        let domain = variables.into_iter().find(|it| it.name == "LENO_TRUST_DOMAIN");
        let domain = domain.and_then(|it| TrustDomain::new(it.value.as_deref()?).ok());
        Self {
            replicas: spec.replicas.and_then(|count| u32::try_from(count).ok()),
            trust_domain: domain,
            cni: has("--cni"),
            network: None,
            gateways: has("--gateways"),
            access_certs: namespaces(ACCESS_CERTS_OPTION),
            settings_namespaces: namespaces(SETTINGS_NAMESPACES_OPTION),
        }
    }
}

fn network(set: &DaemonSet) -> Option<NodeNetwork> {
    let volumes = set.spec.as_ref()?.template.spec.as_ref()?.volumes.as_ref()?;
    let path = |name: &str| {
        let is_it = |volume: &&Volume| volume.name == name;
        Some(volumes.iter().find(is_it)?.host_path.as_ref()?.path.clone())
    };
    Some(NodeNetwork { bin_dir: path("bin")?, conf_dir: path("conf")? })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::install::{Options, manifests};

    fn written(options: &Options, kind: &str) -> Value {
        let all = manifests(options).into_iter();
        all.into_iter().find(|it| it["kind"] == kind).unwrap()
    }

    #[test]
    fn what_was_asked_for_is_read_again() {
        let domain = TrustDomain::new("prod.example").unwrap();
        let network = NodeNetwork { bin_dir: "/b".to_owned(), conf_dir: "/c".to_owned() };
        for (cni, gateways) in [(None, true), (Some(network), false)] {
            let options = Options {
                replicas: 3,
                cni: cni.clone(),
                gateways,
                access_certs: (["jobs", "shop"].map(|it| Name::new(it).unwrap())).into(),
                settings_namespaces: [Name::new("osm-system").unwrap()].into(),
                ..Options::new("leno:test".to_owned(), domain.clone())
            };
            let deployment = serde_json::from_value(written(&options, "Deployment")).unwrap();
            let expected = Installed {
                replicas: Some(3),
                trust_domain: Some(domain.clone()),
                cni: cni.is_some(),
                network: None,
                gateways,
                access_certs: options.access_certs.clone(),
                settings_namespaces: options.settings_namespaces.clone(),
            };
            assert_eq!(Installed::of(&deployment), expected);
            if cni.is_some() {
                let set = serde_json::from_value(written(&options, "DaemonSet")).unwrap();
                assert_eq!(super::network(&set), cni);
            }
        }
    }
}
