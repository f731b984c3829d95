//! Reads the options of an existing installation from its Deployment, DaemonSet, ConfigMap and NetworkPolicy. A
//! new installation uses them as defaults, and `leno check` derives the expected objects from them.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Container, Volume};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Client;
use leno_model::{MeshConfig, Name, TrustDomain};

use super::control_plane::{
    ACCESS_CERTS_OPTION, CLIENT_CA_KEY, CLIENT_CA_OPTION, JWKS_ALLOW_OPTION, METRICS_FROM_OPTION,
    NETWORK_POLICIES_ANNOTATION, SETTINGS_NAMESPACES_OPTION, WEBHOOK_CLIENTS,
};
use super::{InstallError, InstallOptions, NodeNetwork};
use crate::api::{NamespaceName, ObjectApi, ObjectName};
use crate::inject::AddressRange;
use crate::well_known::{CNI, CNI_NAME, CNI_NAMESPACE, CONTROL, CONTROL_NAME, WEBHOOK_PORT};

/// The options of an existing installation. Each installation sets all of them again, so the next one has to
/// repeat them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstalledOptions {
    /// The number of control plane replicas; `None` if the Deployment has no count.
    pub replicas: Option<u32>,
    /// The trust domain of the mesh; `None` if the Deployment does not set `LENO_TRUST_DOMAIN`.
    pub trust_domain: Option<TrustDomain>,
    /// True if the CNI plugin of nodes redirects connections to sidecars.
    pub cni: bool,
    /// The CNI directories of nodes; `None` if the CNI plugin has no DaemonSet.
    pub network: Option<NodeNetwork>,
    /// True if gateways are enabled.
    pub gateways: bool,
    /// The namespaces in which the control plane may write Secrets of external principals.
    pub access_certs: BTreeSet<Name>,
    /// The client CA certificates of the webhook, as PEM; `None` if it does not verify clients.
    pub webhook_client_ca: Option<String>,
    /// False if NetworkPolicies are disabled; `None` if no installation specified it.
    pub network_policies: Option<bool>,
    /// The API servers' address ranges in the NetworkPolicy; empty if all addresses may connect to the webhook.
    pub api_server: BTreeSet<AddressRange>,
    /// The namespaces that may have mesh-wide objects, in addition to the control plane's namespace.
    pub settings_namespaces: BTreeSet<Name>,
    /// The allowed JWKS servers: the value of `--jwks-allow`; `None` without this option.
    pub jwks_allow: Option<String>,
    /// The clients that may read metrics: the value of `--metrics-from`; `None` without this option.
    pub metrics_from: Option<String>,
}

impl InstalledOptions {
    /// Reads the options of the installation in a namespace; `None` if it has no control plane.
    ///
    /// # Errors
    /// When an object cannot be read.
    pub async fn read_installation(
        client: &Client,
        namespace: &NamespaceName,
    ) -> Result<Option<Self>, InstallError> {
        let deployments: ObjectApi<Deployment> =
            ObjectApi::for_namespace(client.clone(), namespace);
        let deployment_result = deployments.get_opt(&CONTROL_NAME).await;
        let Some(deployment) = deployment_result
            .map_err(|error| InstallError::from_api_error("get", CONTROL, error))?
        else {
            return Ok(None);
        };
        let mut installed = Self::from_deployment(&deployment);
        if installed.cni {
            let daemon_sets: ObjectApi<DaemonSet> =
                ObjectApi::for_namespace(client.clone(), &CNI_NAMESPACE);
            let daemon_set_result = daemon_sets.get_opt(&CNI_NAME).await;
            let daemon_set = daemon_set_result
                .map_err(|error| InstallError::from_api_error("get", CNI, error))?;
            installed.network = daemon_set.as_ref().and_then(node_network);
        }
        if has_option(&deployment, CLIENT_CA_OPTION) {
            let config_maps: ObjectApi<ConfigMap> =
                ObjectApi::for_namespace(client.clone(), namespace);
            let config_map_result =
                config_maps.get_opt(&const { ObjectName::from_literal(WEBHOOK_CLIENTS) }).await;
            let config_map = config_map_result
                .map_err(|error| InstallError::from_api_error("get", WEBHOOK_CLIENTS, error))?;
            let data = config_map.and_then(|config_map| config_map.data);
            installed.webhook_client_ca = data.and_then(|mut data| data.remove(CLIENT_CA_KEY));
        }
        let policies: ObjectApi<NetworkPolicy> =
            ObjectApi::for_namespace(client.clone(), namespace);
        let policy_result = policies.get_opt(&CONTROL_NAME).await;
        let policy = policy_result
            .map_err(|error| InstallError::from_api_error("get", "the NetworkPolicy", error))?;
        installed.api_server = policy.as_ref().map(webhook_ranges).unwrap_or_default();
        Ok(Some(installed))
    }

    /// Returns the options that reproduce the installation. A NetworkPolicy is expected only if an installation
    /// specified it.
    pub(super) fn into_options(self, namespace: &NamespaceName) -> InstallOptions {
        let domain = self.trust_domain.unwrap_or_else(|| MeshConfig::default().trust_domain);
        let defaults = InstallOptions::new(String::new(), domain);
        InstallOptions {
            namespace: namespace.to_string(),
            replicas: self.replicas.unwrap_or(defaults.replicas),
            cni: self.cni.then(|| self.network.unwrap_or_default()),
            gateways: self.gateways,
            access_certs: self.access_certs,
            webhook_client_ca: self.webhook_client_ca,
            network_policies: self.network_policies.unwrap_or(false),
            api_server: self.api_server,
            settings_namespaces: self.settings_namespaces,
            jwks_allow: self.jwks_allow,
            metrics_from: self.metrics_from,
            ..defaults
        }
    }

    /// Reads the options from the Deployment of a control plane.
    #[must_use]
    pub fn from_deployment(deployment: &Deployment) -> Self {
        let Some(spec) = &deployment.spec else { return Self::default() };
        let containers = spec.template.spec.iter().flat_map(|pod| &pod.containers);
        let container = containers.into_iter().find(|container| container.name == CONTROL);
        let annotations = deployment.metadata.annotations.as_ref();
        let network_policies =
            annotations.and_then(|annotations| annotations.get(NETWORK_POLICIES_ANNOTATION));
        let has_argument = |argument: &str| {
            let args = container.and_then(|container: &Container| container.args.as_ref());
            args.into_iter().flatten().any(|current| current == argument)
        };
        let args = || container.and_then(|container| container.args.as_ref()).into_iter().flatten();
        let option_value = |option: &str| {
            args().find_map(|argument| argument.strip_prefix(option)).map(str::to_owned)
        };
        let option_namespaces = |option: &str| -> BTreeSet<Name> {
            let lists = args().filter_map(|argument| argument.strip_prefix(option));
            lists.flat_map(|list| list.split(',')).filter_map(|name| Name::new(name).ok()).collect()
        };
        let variables =
            container.and_then(|container| container.env.as_ref()).into_iter().flatten();
        let domain_variable =
            variables.into_iter().find(|variable| variable.name == "LENO_TRUST_DOMAIN");
        let trust_domain =
            domain_variable.and_then(|variable| TrustDomain::new(variable.value.as_deref()?).ok());
        Self {
            replicas: spec.replicas.and_then(|count| u32::try_from(count).ok()),
            trust_domain,
            cni: has_argument("--cni"),
            network: None,
            gateways: has_argument("--gateways"),
            access_certs: option_namespaces(ACCESS_CERTS_OPTION),
            settings_namespaces: option_namespaces(SETTINGS_NAMESPACES_OPTION),
            webhook_client_ca: None,
            network_policies: network_policies.map(|value| value != "false"),
            api_server: BTreeSet::new(),
            jwks_allow: option_value(JWKS_ALLOW_OPTION),
            metrics_from: option_value(METRICS_FROM_OPTION),
        }
    }
}

/// Returns true if a control plane has an argument that starts with `option`, such as `--jwks-allow=`.
fn has_option(deployment: &Deployment, option: &str) -> bool {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let containers = pod.into_iter().flat_map(|pod| &pod.containers);
    let mut args = containers
        .filter(|container| container.name == CONTROL)
        .flat_map(|container| container.args.iter().flatten());
    args.any(|argument| argument.starts_with(option))
}

/// Returns the address ranges that may connect to the webhook; empty if the policy does not restrict them.
fn webhook_ranges(policy: &NetworkPolicy) -> BTreeSet<AddressRange> {
    let webhook_port = IntOrString::Int(i32::from(WEBHOOK_PORT));
    let rules = policy.spec.iter().flat_map(|spec| spec.ingress.iter().flatten());
    rules
        .filter(|rule| {
            rule.ports
                .iter()
                .flatten()
                .any(|network_port| network_port.port.as_ref() == Some(&webhook_port))
        })
        .flat_map(|rule| rule.from.iter().flatten())
        .filter_map(|peer| peer.ip_block.as_ref()?.cidr.parse().ok())
        .collect()
}

/// Returns the CNI directories that the plugin's DaemonSet mounts; `None` if a volume is missing.
fn node_network(daemon_set: &DaemonSet) -> Option<NodeNetwork> {
    let volumes = daemon_set.spec.as_ref()?.template.spec.as_ref()?.volumes.as_ref()?;
    let host_path = |name: &str| {
        let has_name = |volume: &&Volume| volume.name == name;
        Some(volumes.iter().find(has_name)?.host_path.as_ref()?.path.clone())
    };
    Some(NodeNetwork { bin_dir: host_path("bin")?, conf_dir: host_path("conf")? })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::install::installation_manifests;

    fn written_manifest(options: &InstallOptions, kind: &str) -> Value {
        let manifests = installation_manifests(options).into_iter();
        manifests.into_iter().find(|manifest| manifest["kind"] == kind).unwrap()
    }

    #[test]
    fn options_are_read_from_the_installed_objects() {
        let domain = TrustDomain::new("prod.example").unwrap();
        let network = NodeNetwork { bin_dir: "/b".to_owned(), conf_dir: "/c".to_owned() };
        for (cni, gateways) in [(None, true), (Some(network), false)] {
            let options = InstallOptions {
                replicas: 3,
                cni: cni.clone(),
                gateways,
                webhook_client_ca: gateways.then(|| "PEM".to_owned()),
                network_policies: !gateways,
                access_certs: (["jobs", "shop"].map(|name| Name::new(name).unwrap())).into(),
                settings_namespaces: [Name::new("osm-system").unwrap()].into(),
                jwks_allow: gateways.then(|| "keys.shop.svc,10.0.0.0/8".to_owned()),
                metrics_from: gateways.then(|| "any".to_owned()),
                ..InstallOptions::new("leno:test".to_owned(), domain.clone())
            };
            let deployment =
                serde_json::from_value(written_manifest(&options, "Deployment")).unwrap();
            let expected = InstalledOptions {
                replicas: Some(3),
                trust_domain: Some(domain.clone()),
                cni: cni.is_some(),
                network: None,
                gateways,
                access_certs: options.access_certs.clone(),
                webhook_client_ca: None,
                network_policies: gateways.then_some(false),
                api_server: BTreeSet::new(),
                settings_namespaces: options.settings_namespaces.clone(),
                jwks_allow: options.jwks_allow.clone(),
                metrics_from: options.metrics_from.clone(),
            };
            assert_eq!(InstalledOptions::from_deployment(&deployment), expected);
            assert_eq!(has_option(&deployment, CLIENT_CA_OPTION), gateways);
            if !gateways {
                let api_server: BTreeSet<AddressRange> =
                    ["10.0.0.0/28", "2001:db8::1/128"].map(|range| range.parse().unwrap()).into();
                let options = InstallOptions { api_server: api_server.clone(), ..options.clone() };
                let policy =
                    serde_json::from_value(written_manifest(&options, "NetworkPolicy")).unwrap();
                assert_eq!(webhook_ranges(&policy), api_server);
            }
            if cni.is_some() {
                let daemon_set =
                    serde_json::from_value(written_manifest(&options, "DaemonSet")).unwrap();
                assert_eq!(node_network(&daemon_set), cni);
            }
        }
    }
}
