//! `leno install` and `leno uninstall`: install the mesh into a Kubernetes cluster, and remove it.

#[cfg(test)]
mod chart;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use leno_control::PermittedServers;
use leno_kubernetes::inject::AddressRange;
use leno_kubernetes::install::{
    InstallOptions, InstallStep, InstalledOptions, NodeNetwork, RemovalExtent, apply_manifests,
    installation_manifests, lease_reference, objects_to_remove, remove_cni,
    remove_gateway_permissions, remove_gateways, remove_objects, remove_protections,
    remove_secret_permissions, retract_gateways, retract_statuses, wait_for_control_planes,
    wait_for_rollout, wait_for_webhook,
};
use leno_kubernetes::webhook::read_client_ca;
use leno_model::{ClientRanges, MeshConfig, Name, TrustDomain};
use serde_json::Value;

use crate::cluster::{self, ClusterArgs};
use crate::duration::parse_positive;
use crate::{output, yaml};

/// Arguments of `leno install`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InstallArgs {
    /// Image for control planes and sidecars
    #[arg(long, value_name = "IMAGE", default_value = IMAGE)]
    image: String,
    /// Number of control plane replicas [default: as installed before, or 2]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=16))]
    replicas: Option<u32>,
    /// Trust domain of all identities; immutable once installed [default: as installed before, or
    /// cluster.local]
    #[arg(long, value_name = "NAME", value_parser = TrustDomain::new)]
    trust_domain: Option<TrustDomain>,
    /// Also install the CRDs of SMI and OSM, for clusters without them
    #[arg(long)]
    with_smi: bool,
    /// Install the CNI plugin, which redirects the traffic of pods to their sidecars, so that pods need no
    /// NET_ADMIN [default: as installed before, or false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    cni: Option<bool>,
    /// Directory of CNI plugins on nodes [default: as installed before, or /opt/cni/bin]
    #[arg(long, value_name = "DIR")]
    cni_bin_dir: Option<String>,
    /// Directory of the CNI configuration on nodes [default: as installed before, or /etc/cni/net.d]
    #[arg(long, value_name = "DIR")]
    cni_conf_dir: Option<String>,
    /// Enable gateways of the Gateway API: grants the control plane permission to create Deployments and read
    /// Secrets in every namespace [default: as installed before, or false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    gateways: Option<bool>,
    /// Namespaces in which the control plane may write Secrets: the certificates of AccessCerts, for clients
    /// outside the mesh; `none` removes all of them [default: as installed before, or none]
    #[arg(long, value_name = "NAMESPACE,…", value_delimiter = ',', value_parser = cluster::parse_namespace_as_name)]
    access_certs: Option<Vec<Name>>,
    /// CA certificates (PEM) that sign the client certificates of API servers, for the webhook. Use a CA that
    /// signs nothing else, not the CA of the cluster (docs/kubernetes.md); `none` accepts all clients [default: as
    /// installed before, or all clients]
    #[arg(long, value_name = "FILE")]
    webhook_client_ca: Option<PathBuf>,
    /// Install a NetworkPolicy for each port of the control plane [default: as installed before, or true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    network_policies: Option<bool>,
    /// Address ranges from which API servers call the webhook; the NetworkPolicy permits no others; `none`
    /// permits all [default: as installed before, or all]
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',', value_parser = parse_address_range)]
    api_server: Option<Vec<Option<AddressRange>>>,
    /// Namespaces with mesh-wide objects, in addition to the control plane's own: osm-mesh-config or
    /// fsm-mesh-config (used until a MeshConfig of leno.dev sets more than the trust domain), TagRoutes for all
    /// services, and Egress objects for accounts of other namespaces; `none` removes all of them [default: as
    /// installed before, or none]
    #[arg(long, value_name = "NAMESPACE,…", value_delimiter = ',', value_parser = cluster::parse_namespace_as_name)]
    settings_namespaces: Option<Vec<Name>>,
    /// Hosts and address ranges, in addition to public addresses, from which the control plane may fetch the
    /// JWKS of `JwtValidation`s, such as issuers in the cluster; `none` removes all of them [default: as
    /// installed before, or none]
    #[arg(long, value_name = "LIST")]
    jwks_allow: Option<PermittedServers>,
    /// Clients that may scrape the metrics of gateways and of sidecars with the annotation `leno.dev/metrics:
    /// enabled`; `any`, or comma-separated addresses and ranges, such as those of Prometheus; `none` disables
    /// both [default: as installed before, or any for such sidecars and none for gateways]
    #[arg(long, value_name = "LIST")]
    metrics_from: Option<ClientRanges>,
    /// Apply to the cluster, and wait until the mesh is ready [default: print the manifests]
    #[arg(long)]
    apply: bool,
    /// Maximum time to wait until the mesh is ready
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_positive, requires = "apply")]
    timeout: Duration,
    /// Output format of the manifests
    #[arg(short, long, value_enum, default_value_t, conflicts_with = "apply")]
    output: ManifestFormat,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// The output format of manifests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
enum ManifestFormat {
    /// YAML
    #[default]
    Yaml,
    /// JSON, as one List
    Json,
}

impl InstallArgs {
    /// Prints the manifests, or applies them.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if self.apply {
            cluster::block_on(self.install())?;
        } else {
            print_manifests(
                &installation_manifests(&self.merge_options(InstalledOptions::default())?),
                self.output,
            )?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Returns the options of the installation. Options that are missing on the command line keep their values in
    /// `installed`.
    ///
    /// # Errors
    /// If a CNI directory is set without the CNI plugin, `--api-server` without NetworkPolicies, or
    /// `--access-certs` to the control plane's namespace; or if the file of `--webhook-client-ca` cannot be
    /// read.
    fn merge_options(&self, installed: InstalledOptions) -> anyhow::Result<InstallOptions> {
        let trust_domain = self
            .trust_domain
            .clone()
            .or(installed.trust_domain)
            .unwrap_or_else(|| MeshConfig::default().trust_domain);
        let defaults = InstallOptions::new(self.image.clone(), trust_domain);
        let node_network = installed.network.unwrap_or_default();
        let has_cni = self.cni.unwrap_or(installed.cni);
        let cni_directories =
            [("--cni-bin-dir", &self.cni_bin_dir), ("--cni-conf-dir", &self.cni_conf_dir)];
        if let Some((option, _)) =
            cni_directories.into_iter().find(|(_, dir)| dir.is_some() && !has_cni)
        {
            anyhow::bail!("{option} requires --cni: set both, or neither");
        }
        let cni = has_cni.then(|| NodeNetwork {
            bin_dir: self.cni_bin_dir.clone().unwrap_or(node_network.bin_dir),
            conf_dir: self.cni_conf_dir.clone().unwrap_or(node_network.conf_dir),
        });
        // A list on the command line replaces the installed list, and is not merged with it.
        let or_installed = |names: Option<&[Name]>, installed: BTreeSet<Name>| {
            names.map(listed_namespaces).unwrap_or(installed)
        };
        let access_certs = or_installed(self.access_certs.as_deref(), installed.access_certs);
        let settings_namespaces =
            or_installed(self.settings_namespaces.as_deref(), installed.settings_namespaces);
        let own_namespace = &self.cluster.namespace;
        if access_certs.iter().any(|namespace| namespace.as_str() == &**own_namespace) {
            anyhow::bail!(
                "--access-certs {own_namespace}: the control plane's own namespace is not allowed; use others"
            );
        }
        let webhook_client_ca = match &self.webhook_client_ca {
            None => installed.webhook_client_ca,
            Some(path) if path.as_os_str() == NONE => None,
            Some(path) => Some(read_client_ca(path)?),
        };
        let network_policies = self.network_policies.or(installed.network_policies).unwrap_or(true);
        let api_server = match &self.api_server {
            None => installed.api_server,
            Some(ranges) => ranges.iter().flatten().cloned().collect(),
        };
        if !network_policies && self.api_server.is_some() {
            anyhow::bail!("--api-server requires --network-policies: set both, or neither");
        }
        let jwks_allow = match &self.jwks_allow {
            // The word `none`.
            Some(servers) if *servers == PermittedServers::default() => None,
            Some(servers) => Some(servers.to_string()),
            None => installed.jwks_allow,
        };
        Ok(InstallOptions {
            webhook_client_ca,
            network_policies,
            api_server,
            namespace: self.cluster.namespace.to_string(),
            replicas: self.replicas.or(installed.replicas).unwrap_or(defaults.replicas),
            with_smi: self.with_smi,
            cni,
            gateways: self.gateways.unwrap_or(installed.gateways),
            access_certs,
            settings_namespaces,
            jwks_allow,
            metrics_from: self
                .metrics_from
                .as_ref()
                .map(ToString::to_string)
                .or(installed.metrics_from),
            ..defaults
        })
    }

    async fn install(&self) -> anyhow::Result<()> {
        let (cluster, timeout) = (&self.cluster, self.timeout);
        let client = cluster.create_client().await?;
        let installed = InstalledOptions::read_installation(&client, &cluster.namespace).await?;
        let options = self.merge_options(installed.clone().unwrap_or_default())?;
        if let Some(unchanged_options) = installed
            .map(|installed| self.unchanged_options(&installed))
            .filter(|options| !options.is_empty())
        {
            eprintln!("as installed before: {}", unchanged_options.join(" "));
        }
        apply_manifests(&client, &installation_manifests(&options), print_step).await?;
        // Permissions that the options do not grant are removed.
        remove_secret_permissions(&client, &options.access_certs, print_step).await?;
        if !options.gateways {
            remove_gateway_permissions(&client, print_step).await?;
        }
        remove_protections(&client, &options, print_step).await?;
        eprintln!("waiting for the control plane …");
        wait_for_rollout(&client, &cluster.namespace, timeout).await?;
        if !options.gateways {
            retract_gateways(&client, print_step).await?;
        }
        eprintln!("waiting for the injection webhook …");
        wait_for_webhook(&client, WEBHOOK_TIMEOUT.min(timeout)).await?;
        // Pods created from now on redirect their traffic without the plugin.
        if options.cni.is_none() {
            remove_cni(&client, &options, print_step).await?;
        }
        print_next_step();
        Ok(())
    }

    /// Returns the options that are absent from the command line and keep their installed values.
    fn unchanged_options(&self, installed: &InstalledOptions) -> Vec<String> {
        let is_unchanged = |option: Option<bool>, installed: bool| option.is_none() && installed;
        let replicas = installed.replicas.filter(|_| self.replicas.is_none());
        let trust_domain = installed.trust_domain.as_ref().filter(|_| self.trust_domain.is_none());
        let join_names = |is_set: bool, installed: &BTreeSet<Name>| {
            let names: Vec<&str> = installed.iter().map(Name::as_str).collect();
            (!is_set && !names.is_empty()).then(|| names.join(","))
        };
        let access_certs = join_names(self.access_certs.is_some(), &installed.access_certs);
        let settings_namespaces =
            join_names(self.settings_namespaces.is_some(), &installed.settings_namespaces);
        let ranges: Vec<String> = installed.api_server.iter().map(ToString::to_string).collect();
        let api_server =
            (self.api_server.is_none() && !ranges.is_empty()).then(|| ranges.join(","));
        let jwks_servers = installed.jwks_allow.as_ref().filter(|_| self.jwks_allow.is_none());
        let metrics_clients =
            installed.metrics_from.as_ref().filter(|_| self.metrics_from.is_none());
        let arguments = [
            replicas.map(|count| format!("--replicas {count}")),
            trust_domain.map(|trust_domain| format!("--trust-domain {trust_domain}")),
            is_unchanged(self.cni, installed.cni).then(|| "--cni".to_owned()),
            is_unchanged(self.gateways, installed.gateways).then(|| "--gateways".to_owned()),
            access_certs.map(|access_certs| format!("--access-certs {access_certs}")),
            (self.webhook_client_ca.is_none() && installed.webhook_client_ca.is_some())
                .then(|| "--webhook-client-ca".to_owned()),
            (self.network_policies.is_none() && installed.network_policies == Some(false))
                .then(|| "--network-policies=false".to_owned()),
            api_server.map(|ranges| format!("--api-server {ranges}")),
            settings_namespaces
                .map(|settings_namespaces| format!("--settings-namespaces {settings_namespaces}")),
            jwks_servers.map(|servers| format!("--jwks-allow {servers}")),
            metrics_clients.map(|metrics_clients| format!("--metrics-from {metrics_clients}")),
        ];
        arguments.into_iter().flatten().collect()
    }
}

/// Returns the listed namespaces; the single word `none` lists none.
fn listed_namespaces(names: &[Name]) -> BTreeSet<Name> {
    let is_none = names.len() == 1 && names.iter().all(|name| name.as_str() == NONE);
    names.iter().filter(|_| !is_none).cloned().collect()
}

/// Parses a range of addresses; `None` for the word `none`.
fn parse_address_range(text: &str) -> Result<Option<AddressRange>, String> {
    if text == NONE {
        return Ok(None);
    }
    let parse_result = text.parse().map(Some);
    parse_result
        .map_err(|()| "is not a range of addresses; use CIDR, such as 10.0.0.0/28".to_owned())
}

fn print_next_step() {
    let next_command = "kubectl label namespace NAME leno.dev/injection=enabled";
    eprintln!("the mesh is ready; add a namespace with `{next_command}`");
}

fn print_manifests(manifests: &[Value], format: ManifestFormat) -> anyhow::Result<()> {
    match format {
        ManifestFormat::Yaml => output::print_raw(&yaml::write_documents(manifests)),
        ManifestFormat::Json => output::print_json(&serde_json::json!({
            "apiVersion": "v1",
            "kind": "List",
            "items": manifests,
        })),
    }
}

fn print_step(step: InstallStep) {
    eprintln!("{} {}", step.object, step.result);
}

/// Arguments of `leno uninstall`.
#[derive(Debug, Args)]
#[command(after_help = UNINSTALL_EXAMPLES)]
pub(crate) struct UninstallArgs {
    /// Also remove the rules, the CRDs, the CA and the namespace. This cannot be undone: a mesh that is installed
    /// later has another CA, and pods with a sidecar must be restarted
    #[arg(long)]
    purge: bool,
    /// Only delete the Lease and retract statuses, once no control plane runs; for use after another tool, such
    /// as Helm, has removed the other objects
    #[arg(long, conflicts_with = "purge")]
    statuses_only: bool,
    /// Remove from the cluster [default: print the objects that would be removed]
    #[arg(long)]
    apply: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

impl UninstallArgs {
    /// Prints the objects to remove, or removes them.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if self.statuses_only {
            return self.retract_installation_statuses();
        }
        let namespace = self.cluster.namespace.to_string();
        let trust_domain = MeshConfig::default().trust_domain;
        // The values of the options do not matter. They are set so that the objects of all options are removed.
        let cni = Some(NodeNetwork::default());
        let webhook_client_ca = Some(String::new());
        let options = InstallOptions {
            namespace,
            cni,
            gateways: true,
            webhook_client_ca,
            ..InstallOptions::new(String::new(), trust_domain)
        };
        let extent = if self.purge { RemovalExtent::Everything } else { RemovalExtent::Components };
        let removals = objects_to_remove(&options, extent);
        if self.apply {
            cluster::block_on(async {
                let client = self.cluster.create_client().await?;
                remove_objects(&client, &removals, print_step).await?;
                remove_gateways(&client, print_step).await?;
                remove_secret_permissions(&client, &BTreeSet::new(), print_step).await?;
                retract_statuses(&client, print_step).await?;
                anyhow::Ok(())
            })?;
            eprintln!("pods keep their sidecars until they are restarted");
        } else {
            let names: Vec<String> =
                removals.iter().map(|object| yaml::object_name(object) + "\n").collect();
            output::print_raw(&names.concat())?;
            eprintln!(
                "and, in every namespace, the objects of gateways: {REMOVED_GATEWAY_OBJECTS}"
            );
            eprintln!("and, in every namespace, the permission to write Secrets: {REMOVED_ROLES}");
            eprintln!("{RETRACTION_EFFECT}");
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Deletes the Lease and retracts statuses, or prints these actions.
    fn retract_installation_statuses(&self) -> anyhow::Result<ExitCode> {
        let namespace = &self.cluster.namespace;
        let lease = lease_reference(namespace);
        if self.apply {
            cluster::block_on(async {
                let client = self.cluster.create_client().await?;
                wait_for_control_planes(&client, namespace, print_step).await?;
                remove_objects(&client, &[lease], print_step).await?;
                retract_statuses(&client, print_step).await?;
                anyhow::Ok(())
            })?;
        } else {
            output::print_raw(&(yaml::object_name(&lease) + "\n"))?;
            eprintln!("{RETRACTION_EFFECT}");
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The option value that empties a list.
const NONE: &str = "none";
/// The removed objects of `--access-certs`.
const REMOVED_ROLES: &str = "Roles and RoleBindings named leno-access-certs";
/// The notice about the effect of a retraction on statuses.
const RETRACTION_EFFECT: &str =
    "status conditions that report an effect become Unknown, and gateways lose their addresses";
/// The removed objects of gateways.
const REMOVED_GATEWAY_OBJECTS: &str = "Deployments, PodDisruptionBudgets, Services and ServiceAccounts with the label \
                    leno.dev/gateway";
/// The default image, tagged with the version of this program.
pub(crate) const IMAGE: &str = concat!("leno:", env!("CARGO_PKG_VERSION"));
/// The timeout for the webhook, which responds soon once the control planes are ready.
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(60);

const EXAMPLES: &str = "\
Examples:
  leno install --image registry.example.org/leno:0.1.0 | kubectl apply --server-side -f -
  leno install --image registry.example.org/leno:0.1.0 --apply
  leno install --trust-domain prod.example.org --replicas 3 --apply

A repeated installation updates the objects that differ, and keeps the CA, rules and sidecars; with --apply
it also keeps installed options that are not set. `--cni=false`, `--gateways=false`, `--access-certs none` and
`--settings-namespaces none` reset them.
";

const UNINSTALL_EXAMPLES: &str = "\
Examples:
  leno uninstall                             list the objects that would be removed
  leno uninstall --apply                     remove the components; keep rules and the CA
  leno uninstall --apply --purge             remove everything
  leno uninstall --apply --statuses-only     after `helm uninstall --no-hooks`: retract statuses
";

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct CommandLine {
        #[command(flatten)]
        install: InstallArgs,
    }

    fn parse_args(arguments: &[&str]) -> InstallArgs {
        CommandLine::try_parse_from([&["install"], arguments].concat()).unwrap().install
    }

    fn installed_before() -> InstalledOptions {
        let network = NodeNetwork { bin_dir: "/b".to_owned(), conf_dir: "/c".to_owned() };
        InstalledOptions {
            replicas: Some(3),
            trust_domain: TrustDomain::new("prod.example").ok(),
            cni: true,
            network: Some(network),
            gateways: true,
            access_certs: [Name::new("shop").unwrap()].into(),
            webhook_client_ca: Some("PEM".to_owned()),
            network_policies: None,
            api_server: ["10.0.0.0/28".parse().unwrap()].into(),
            settings_namespaces: [Name::new("osm-system").unwrap()].into(),
            jwks_allow: Some("keys.shop.svc".to_owned()),
            metrics_from: Some("10.0.0.0/8".to_owned()),
        }
    }

    #[test]
    fn a_reinstallation_keeps_options_that_are_not_set() {
        let args = parse_args(&[]);
        let options = args.merge_options(installed_before()).unwrap();
        assert_eq!((options.replicas, options.gateways), (3, true));
        assert_eq!(options.trust_domain.to_string(), "prod.example");
        assert_eq!(options.cni, installed_before().network);
        let unchanged = args.unchanged_options(&installed_before()).join(" ");
        assert_eq!(options.access_certs, installed_before().access_certs);
        assert_eq!(options.settings_namespaces, installed_before().settings_namespaces);
        let expected = "--replicas 3 --trust-domain prod.example --cni --gateways --access-certs shop \
                        --webhook-client-ca --api-server 10.0.0.0/28 --settings-namespaces osm-system \
                        --jwks-allow keys.shop.svc --metrics-from 10.0.0.0/8";
        assert_eq!(unchanged, expected);
        assert_eq!(options.webhook_client_ca, installed_before().webhook_client_ca);
        assert_eq!(
            (options.network_policies, options.api_server),
            (true, installed_before().api_server)
        );
    }

    #[test]
    fn options_of_the_command_line_override_installed_ones() {
        let protections = ["--webhook-client-ca", "none", "--api-server", "none"];
        let arguments = ["--gateways=false", "--cni", "--cni-bin-dir", "/x", "--replicas", "1"];
        let args = parse_args(&[&arguments[..], &protections].concat());
        let options = args.merge_options(installed_before()).unwrap();
        assert_eq!((options.replicas, options.gateways), (1, false));
        let network = options.cni.unwrap();
        assert_eq!((network.bin_dir.as_str(), network.conf_dir.as_str()), ("/x", "/c"));
        let unchanged = [
            "--trust-domain prod.example",
            "--access-certs shop",
            "--settings-namespaces osm-system",
            "--jwks-allow keys.shop.svc",
            "--metrics-from 10.0.0.0/8",
        ];
        assert_eq!(args.unchanged_options(&installed_before()), unchanged);
        let options_without_settings = parse_args(&["--settings-namespaces", "none"])
            .merge_options(installed_before())
            .unwrap();
        assert_eq!(options_without_settings.settings_namespaces, BTreeSet::new());
        assert_eq!(
            parse_args(&["--cni=false"]).merge_options(installed_before()).unwrap().cni,
            None
        );
    }

    #[test]
    fn jwks_servers_and_metrics_clients_are_merged_with_installed_ones() {
        let servers = |arguments: &[&str]| {
            parse_args(arguments).merge_options(installed_before()).unwrap().jwks_allow
        };
        assert_eq!(servers(&[]).as_deref(), Some("keys.shop.svc"));
        let arguments = ["--jwks-allow", "KEYS.svc,10.0.0.1"];
        assert_eq!(servers(&arguments).as_deref(), Some("keys.svc,10.0.0.1/32"));
        assert_eq!(servers(&["--jwks-allow", "none"]), None);
        let clients = |arguments: &[&str]| {
            parse_args(arguments).merge_options(installed_before()).unwrap().metrics_from
        };
        assert_eq!(clients(&[]).as_deref(), Some("10.0.0.0/8"));
        assert_eq!(clients(&["--metrics-from", "any"]).as_deref(), Some("any"));
    }

    #[test]
    fn secret_namespaces_are_merged_and_validated() {
        let namespaces = |arguments: &[&str]| -> Vec<String> {
            let options = parse_args(arguments).merge_options(installed_before()).unwrap();
            options.access_certs.iter().map(ToString::to_string).collect()
        };
        assert_eq!(namespaces(&["--access-certs", "ingress,jobs"]), ["ingress", "jobs"]);
        assert_eq!(
            namespaces(&["--access-certs", "jobs", "--access-certs", "shop"]),
            ["jobs", "shop"]
        );
        assert_eq!(namespaces(&["--access-certs", "none"]), [""; 0]);
        assert!(
            parse_args(&["--access-certs", "leno-system"])
                .merge_options(installed_before())
                .is_err()
        );
        assert!(CommandLine::try_parse_from(["install", "--access-certs", "a.b"]).is_err());
    }

    #[test]
    fn network_policies_are_enabled_by_default() {
        let merge = |arguments: &[&str], installed| parse_args(arguments).merge_options(installed);
        let ranges = |arguments: &[&str]| merge(arguments, installed_before()).unwrap().api_server;
        let parse_ranges =
            |text: &[&str]| text.iter().map(|range| range.parse().unwrap()).collect();
        assert_eq!(
            ranges(&["--api-server", "192.0.2.1,2001:db8::/64"]),
            parse_ranges(&["192.0.2.1", "2001:db8::/64"])
        );
        assert_eq!(ranges(&["--api-server", "none"]), BTreeSet::new());
        assert!(CommandLine::try_parse_from(["install", "--api-server", "api.example"]).is_err());
        let without_policies =
            InstalledOptions { network_policies: Some(false), ..InstalledOptions::default() };
        assert!(!merge(&[], without_policies.clone()).unwrap().network_policies);
        assert!(merge(&["--network-policies"], without_policies.clone()).unwrap().network_policies);
        assert!(merge(&["--api-server", "192.0.2.1"], without_policies).is_err());
        assert!(merge(&["--webhook-client-ca", "/no/such/file"], installed_before()).is_err());
    }

    #[test]
    fn cni_directories_require_the_cni_plugin() {
        for (arguments, installed, works) in [
            (&["--cni-bin-dir", "/x"][..], InstalledOptions::default(), false),
            (&["--cni-conf-dir", "/x"], InstalledOptions::default(), false),
            (&["--cni=false", "--cni-bin-dir", "/x"], installed_before(), false),
            (&["--cni-bin-dir", "/x"], installed_before(), true),
            (&["--cni", "--cni-conf-dir", "/x"], InstalledOptions::default(), true),
        ] {
            assert_eq!(
                parse_args(arguments).merge_options(installed).is_ok(),
                works,
                "{arguments:?}"
            );
        }
    }

    #[test]
    fn a_first_installation_has_the_default_options() {
        let options = parse_args(&[]).merge_options(InstalledOptions::default()).unwrap();
        let domain = MeshConfig::default().trust_domain;
        assert_eq!(options, InstallOptions::new(IMAGE.to_owned(), domain));
        assert_eq!(
            parse_args(&["--cni"]).merge_options(InstalledOptions::default()).unwrap().cni,
            Some(NodeNetwork::default())
        );
    }
}
