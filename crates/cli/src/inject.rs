//! `leno inject`: sidecars into manifests, where no webhook is to do it.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use leno_kubernetes::inject::{Injected, Settings, Told, has_native_sidecars, inject_manifest};
use leno_kubernetes::words::{CONTROL, ROOTS_CONFIG_MAP};
use leno_model::{MeshConfig, TrustDomain};
use serde_json::Value;

use crate::cluster::{self, ClusterArgs, plain};
use crate::{install, output, yaml};

/// Arguments of `leno inject`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InjectArgs {
    /// A file of YAML with Deployments, Pods and their like, or `-` for standard input
    #[arg(short, long = "file", value_name = "FILE", default_value = "-")]
    file: PathBuf,
    /// The roots of the mesh, as PEM; then no cluster is asked
    #[arg(long, value_name = "FILE")]
    roots: Option<PathBuf>,
    /// The image of Leno [default: the control plane's; with --roots that of this version]
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// The trust domain of the mesh [default: the control plane's; with --roots cluster.local]
    #[arg(long, value_name = "NAME", value_parser = TrustDomain::new)]
    trust_domain: Option<TrustDomain>,
    /// For clusters older than 1.29: a sidecar beside the application instead of before it
    #[arg(long)]
    classic: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

impl InjectArgs {
    /// Prints the manifests with sidecars; what was done is told beside.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let documents = read(&self.file)?;
        let settings = match &self.roots {
            Some(path) => {
                let roots = std::fs::read_to_string(path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                self.settings(roots, Found::default())
            }
            None => {
                let (roots, found) = cluster::run(Found::in_cluster(&self.cluster))?;
                self.settings(roots, found)
            }
        };
        let mut injected = Vec::with_capacity(documents.len());
        for document in documents {
            let Injected { manifest, told } = inject_manifest(document, &settings)
                .map_err(|(object, error)| anyhow::anyhow!("{object}: {error}"))?;
            for (object, told) in told {
                tell(&object, &told);
            }
            injected.push(manifest);
        }
        output::print(&yaml::stream(&injected))?;
        Ok(ExitCode::SUCCESS)
    }

    fn settings(&self, roots: String, found: Found) -> Settings {
        let image = self.image.clone().or(found.image).unwrap_or_else(|| install::IMAGE.to_owned());
        let trust_domain = self.trust_domain.clone().or(found.trust_domain);
        let trust_domain = trust_domain.unwrap_or_else(|| MeshConfig::default().trust_domain);
        let namespace = self.cluster.namespace.clone();
        let native_sidecars = !self.classic && !found.is_old;
        Settings { native_sidecars, ..Settings::new(image, namespace, trust_domain, roots) }
    }
}

/// What the cluster tells of its mesh.
#[derive(Debug, Default)]
struct Found {
    image: Option<String>,
    trust_domain: Option<TrustDomain>,
    is_old: bool,
}

impl Found {
    async fn in_cluster(cluster: &ClusterArgs) -> anyhow::Result<(String, Self)> {
        let client = cluster.client().await?;
        let namespace = cluster.namespace.as_str();
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let map = maps.get(ROOTS_CONFIG_MAP).await.map_err(plain).with_context(|| {
            format!(
                "cannot read the roots of the mesh, ConfigMap {namespace}/{ROOTS_CONFIG_MAP}: \
                 install the mesh, or pass --roots FILE"
            )
        })?;
        let roots = map.data.and_then(|mut data| data.remove("roots.pem"));
        let roots = roots.with_context(|| {
            format!("ConfigMap {namespace}/{ROOTS_CONFIG_MAP} has no roots.pem; pass --roots FILE")
        })?;
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
        let deployment = deployments.get(CONTROL).await.map_err(plain).with_context(|| {
            format!("cannot read the Deployment {namespace}/{CONTROL}: pass --roots FILE")
        })?;
        let pod = deployment.spec.and_then(|spec| spec.template.spec);
        let container =
            pod.and_then(|pod| pod.containers.into_iter().find(|it| it.name == CONTROL));
        let variable = |name: &str| {
            let variables = container.as_ref()?.env.as_ref()?;
            variables.iter().find(|it| it.name == name)?.value.clone()
        };
        let trust_domain = variable("LENO_TRUST_DOMAIN").and_then(|it| TrustDomain::new(&it).ok());
        let image = container.as_ref().and_then(|it| it.image.clone());
        let version =
            client.apiserver_version().await.map_err(plain).context("cannot ask the API server")?;
        let is_old = !has_native_sidecars(&version.major, &version.minor);
        Ok((roots, Self { image, trust_domain, is_old }))
    }
}

fn tell(object: &str, told: &Told) {
    match told {
        Told::Injected(warnings) => {
            eprintln!("{object}: has a sidecar now");
            for warning in warnings {
                eprintln!("{object}: warning: {warning}");
            }
        }
        Told::Skipped(skip) => eprintln!("{object}: stays as it is: {skip}"),
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<Value>> {
    let mut text = String::new();
    if path == Path::new("-") {
        let input = std::io::stdin().take(BYTES_MAX + 1).read_to_string(&mut text);
        input.context("cannot read standard input")?;
    } else {
        let file = std::fs::File::open(path);
        let read = file.and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text));
        read.with_context(|| format!("cannot read {}", path.display()))?;
    }
    if text.len() as u64 > BYTES_MAX {
        bail!("{} has more than {BYTES_MAX} bytes: give it in parts", path.display());
    }
    parse(&text).with_context(|| format!("{} is not YAML", path.display()))
}

/// Documents as `kubectl` reads them: `yes` is true, and `0644` is octal.
fn parse(text: &str) -> anyhow::Result<Vec<Value>> {
    let mut options = serde_saphyr::Options::default();
    options.legacy_octal_numbers = true;
    options.with_snippet = false;
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options)?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

/// The most that is read at once.
const BYTES_MAX: u64 = 16 << 20;

const EXAMPLES: &str = "\
Examples:
  kubectl get deployment web -o yaml | leno inject | kubectl apply -f -
  leno inject -f web.yaml --roots roots.pem --image registry.example.org/leno:0.1.0

It is for clusters whose pods are not to wait for a webhook. Pods that were made so keep their image
and roots until they are made again. Annotations count as they do for the webhook; docs/kubernetes.md
lists them.
";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn manifests_are_read_as_kubectl_reads_them() {
        let text = "---\na: 0644\nb: yes\nc: '0644'\nd: 1.50\n---\n\n---\ne: [x, ~]\n";
        let expected =
            [json!({"a": 420, "b": true, "c": "0644", "d": 1.5}), json!({"e": ["x", null]})];
        assert_eq!(parse(text).unwrap(), expected);
        assert!(parse("a: [").is_err());
    }
}
