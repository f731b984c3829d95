//! `leno inject`: adds sidecars to manifests, for clusters without the webhook.

mod cluster_settings;

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use leno_kubernetes::inject::{
    InjectedManifest, InjectionSettings, TemplateOutcome, inject_manifest, namespaces_of,
};
use leno_model::{MeshConfig, TrustDomain};
use serde_json::Value;

use self::cluster_settings::ClusterSettings;
use crate::cluster::{self, ClusterArgs};
use crate::{install, output, yaml};

/// Arguments of `leno inject`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InjectArgs {
    /// YAML file with Deployments, Pods and similar workloads, or `-` for standard input
    #[arg(short, long = "file", value_name = "FILE", default_value = "-")]
    file: PathBuf,
    /// Mesh root certificates (PEM), instead of querying the cluster
    #[arg(long, value_name = "FILE")]
    roots: Option<PathBuf>,
    /// Leno image [default: the control plane's; with --roots that of this version]
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Trust domain of the mesh [default: the control plane's; with --roots cluster.local]
    #[arg(long, value_name = "NAME", value_parser = TrustDomain::new)]
    trust_domain: Option<TrustDomain>,
    /// Inject a regular container instead of a native sidecar, for clusters older than 1.29
    #[arg(long)]
    no_native_sidecar: bool,
    /// For meshes installed with --cni: CNI plugins redirect traffic, so that pods need no NET_ADMIN [default:
    /// as installed; with --roots false]
    #[arg(long)]
    cni: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

impl InjectArgs {
    /// Prints the manifests with sidecars; the summary goes to standard error.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let documents = read_documents(&self.file)?;
        let cluster_settings = match &self.roots {
            Some(path) => {
                let roots = std::fs::read_to_string(path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                ClusterSettings { roots, ..ClusterSettings::default() }
            }
            None => {
                let namespaces: BTreeSet<String> =
                    documents.iter().flat_map(namespaces_of).collect();
                cluster::block_on(ClusterSettings::read_from_cluster(&self.cluster, namespaces))?
            }
        };
        let settings = self.injection_settings(&cluster_settings);
        let mut injected_manifests = Vec::with_capacity(documents.len());
        for document in documents {
            let InjectedManifest { manifest, outcomes } =
                inject_manifest(document, &cluster_settings.namespaces, &settings)
                    .map_err(|(object, error)| anyhow::anyhow!("{object}: {error}"))?;
            for (object, outcome) in outcomes {
                print_result(&object, &outcome);
            }
            injected_manifests.push(manifest);
        }
        output::print_raw(&yaml::write_documents(&injected_manifests))?;
        Ok(ExitCode::SUCCESS)
    }

    fn injection_settings(&self, cluster_settings: &ClusterSettings) -> InjectionSettings {
        let image = self
            .image
            .as_ref()
            .or(cluster_settings.image.as_ref())
            .map_or_else(|| install::IMAGE.to_owned(), Clone::clone);
        let trust_domain = self
            .trust_domain
            .as_ref()
            .or(cluster_settings.trust_domain.as_ref())
            .cloned()
            .unwrap_or_else(|| MeshConfig::default().trust_domain);
        let namespace = self.cluster.namespace.clone();
        InjectionSettings {
            native_sidecars: !self.no_native_sidecar && !cluster_settings.lacks_native_sidecars,
            uses_cni_plugin: self.cni || cluster_settings.uses_cni_plugin,
            exclusions: cluster_settings.exclusions.clone(),
            floor: cluster_settings.floor.clone(),
            ..InjectionSettings::new(image, namespace, trust_domain, cluster_settings.roots.clone())
        }
    }
}

fn print_result(object: &str, outcome: &TemplateOutcome) {
    match outcome {
        TemplateOutcome::Injected(warnings) => {
            eprintln!("{object}: sidecar added");
            for warning in warnings {
                eprintln!("{object}: warning: {}", output::format_line(&warning));
            }
        }
        TemplateOutcome::Skipped(reason) => eprintln!("{object}: unchanged: {reason}"),
    }
}

fn read_documents(path: &Path) -> anyhow::Result<Vec<Value>> {
    let mut text = String::new();
    if path == Path::new("-") {
        let read_result = std::io::stdin().take(MAX_INPUT_BYTES + 1).read_to_string(&mut text);
        read_result.context("cannot read standard input")?;
    } else {
        let open_result = std::fs::File::open(path);
        let read_result =
            open_result.and_then(|file| file.take(MAX_INPUT_BYTES + 1).read_to_string(&mut text));
        read_result.with_context(|| format!("cannot read {}", path.display()))?;
    }
    if text.len() as u64 > MAX_INPUT_BYTES {
        bail!("{} has more than {MAX_INPUT_BYTES} bytes: split it", path.display());
    }
    parse_documents(&text).with_context(|| format!("{} is not YAML", path.display()))
}

/// Parses documents like `kubectl`: `yes` is true, and `0644` is octal.
fn parse_documents(text: &str) -> anyhow::Result<Vec<Value>> {
    let mut options = serde_saphyr::Options::default();
    options.legacy_octal_numbers = true;
    options.with_snippet = false;
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options)?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

/// The maximum size of the input, in bytes; 16 MiB.
const MAX_INPUT_BYTES: u64 = 16 << 20;

const EXAMPLES: &str = "\
Examples:
  kubectl get deployment web -o yaml | leno inject | kubectl apply -f -
  leno inject -f web.yaml --roots roots.pem --image registry.example.org/leno:0.1.0

For clusters in which pods must not depend on a webhook. Injected pods keep their image and roots until
they are recreated.

The cluster provides the settings that the webhook uses: namespace annotations, the floor of the MeshConfig,
the exclusions for all pods in a MeshConfig of OSM or FSM, and the --cni option of the installation.
Objects without a namespace use that of the context. With --roots none of it is read: set those annotations
and lists on the pods, and add --cni if the mesh uses it. docs/kubernetes.md lists the annotations.
";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn manifests_are_parsed_as_kubectl_does() {
        let text = "---\na: 0644\nb: yes\nc: '0644'\nd: 1.50\n---\n\n---\ne: [x, ~]\n";
        let expected =
            [json!({"a": 420, "b": true, "c": "0644", "d": 1.5}), json!({"e": ["x", null]})];
        assert_eq!(parse_documents(text).unwrap(), expected);
        assert!(parse_documents("a: [").is_err());
    }
}
