//! `leno install` and `leno uninstall`: the mesh into a cluster, and out of it.

#[cfg(test)]
mod chart;

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use leno_kubernetes::install::{
    Extent, NodeNetwork, Options, Step, apply, manifests, removals, remove, remove_gateways,
    wait_for_rollout, wait_for_webhook,
};
use leno_model::{MeshConfig, TrustDomain};
use serde_json::Value;

use crate::cluster::{self, ClusterArgs};
use crate::duration::parse_positive;
use crate::{output, yaml};

/// Arguments of `leno install`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InstallArgs {
    /// The image of Leno, for control planes and sidecars
    #[arg(long, value_name = "IMAGE", default_value = IMAGE)]
    image: String,
    /// How many control planes
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    replicas: u32,
    /// Who vouches for identities; it cannot be changed later
    #[arg(long, value_name = "NAME", default_value = "cluster.local", value_parser = TrustDomain::new)]
    trust_domain: TrustDomain,
    /// Install the kinds of SMI and OSM too, for clusters that have none
    #[arg(long)]
    with_smi: bool,
    /// Let the network plugins of nodes lead connections to sidecars, so that pods need no NET_ADMIN
    #[arg(long)]
    cni: bool,
    /// Where nodes have their network plugins
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin", requires = "cni")]
    cni_bin_dir: String,
    /// Where nodes have their network's configuration
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d", requires = "cni")]
    cni_conf_dir: String,
    /// Let there be gateways of the Gateway API: the control plane may then create Deployments, and
    /// read Secrets, in every namespace
    #[arg(long)]
    gateways: bool,
    /// Apply to the cluster, and wait until the mesh is there [default: print]
    #[arg(long)]
    apply: bool,
    /// How long to wait for that
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_positive, requires = "apply")]
    timeout: Duration,
    /// How to print
    #[arg(short, long, value_enum, default_value_t, conflicts_with = "apply")]
    output: Form,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// How manifests are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
enum Form {
    /// YAML
    #[default]
    Yaml,
    /// JSON, as one list
    Json,
}

impl InstallArgs {
    /// Prints what is to be installed, or installs it.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let options = Options {
            image: self.image,
            namespace: self.cluster.namespace.clone(),
            replicas: self.replicas,
            trust_domain: self.trust_domain,
            with_smi: self.with_smi,
            cni: self
                .cni
                .then_some(NodeNetwork { bin_dir: self.cni_bin_dir, conf_dir: self.cni_conf_dir }),
            gateways: self.gateways,
        };
        let manifests = manifests(&options);
        if self.apply {
            cluster::run(install(&self.cluster, &manifests, self.timeout))?;
        } else {
            print(&manifests, self.output)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn install(
    cluster: &ClusterArgs,
    manifests: &[Value],
    timeout: Duration,
) -> anyhow::Result<()> {
    let client = cluster.client().await?;
    apply(&client, manifests, tell).await?;
    eprintln!("waiting for the control plane …");
    wait_for_rollout(&client, &cluster.namespace, timeout).await?;
    eprintln!("waiting until pods get sidecars …");
    wait_for_webhook(&client, WEBHOOK_MAX.min(timeout)).await?;
    let next = "kubectl label namespace NAME leno.dev/injection=enabled";
    eprintln!("the mesh is there; put a namespace into it with `{next}`");
    Ok(())
}

fn print(manifests: &[Value], form: Form) -> anyhow::Result<()> {
    match form {
        Form::Yaml => output::print(&yaml::stream(manifests)),
        Form::Json => output::print_json(&serde_json::json!({
            "apiVersion": "v1",
            "kind": "List",
            "items": manifests,
        })),
    }
}

fn tell(step: Step) {
    eprintln!("{} {}", step.object, step.done);
}

/// Arguments of `leno uninstall`.
#[derive(Debug, Args)]
#[command(after_help = UNINSTALL_EXAMPLES)]
pub(crate) struct UninstallArgs {
    /// Remove rules, their kinds, the authority and the namespace too: whatever trusts the mesh now
    /// has to start anew
    #[arg(long)]
    purge: bool,
    /// Remove from the cluster [default: print what would be removed]
    #[arg(long)]
    apply: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

impl UninstallArgs {
    /// Prints what is to be removed, or removes it.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let namespace = self.cluster.namespace.clone();
        let trust_domain = MeshConfig::default().trust_domain;
        let cni = Some(NodeNetwork::default());
        let options =
            Options { namespace, cni, gateways: true, ..Options::new(String::new(), trust_domain) };
        let extent = if self.purge { Extent::Everything } else { Extent::Running };
        let removals = removals(&options, extent);
        if self.apply {
            cluster::run(async {
                let client = self.cluster.client().await?;
                remove(&client, &removals, tell).await?;
                remove_gateways(&client, tell).await?;
                anyhow::Ok(())
            })?;
            eprintln!("pods keep their sidecars until they are restarted");
        } else {
            let names: Vec<String> = removals.iter().map(|it| yaml::name(it) + "\n").collect();
            output::print(&names.concat())?;
            eprintln!("and, in every namespace, what was made for gateways: {MADE}");
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What is removed of gateways, by label.
const MADE: &str = "Deployments, Services and ServiceAccounts with the label leno.dev/gateway";
/// The image of this version.
pub(crate) const IMAGE: &str = concat!("leno:", env!("CARGO_PKG_VERSION"));
/// Once control planes are ready, a moment is enough.
const WEBHOOK_MAX: Duration = Duration::from_secs(60);

const EXAMPLES: &str = "\
Examples:
  leno install --image registry.example.org/leno:0.1.0 | kubectl apply --server-side -f -
  leno install --image registry.example.org/leno:0.1.0 --apply
  leno install --trust-domain prod.example.org --replicas 3 --apply

Installing again changes what differs, and keeps authority, rules and sidecars.
";

const UNINSTALL_EXAMPLES: &str = "\
Examples:
  leno uninstall                             see what would be removed
  leno uninstall --apply                     remove what runs; rules and authority stay
  leno uninstall --apply --purge             remove everything
";
