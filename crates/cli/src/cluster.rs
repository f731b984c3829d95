//! Connects to the Kubernetes cluster of a command, which it finds in the same way as `kubectl`.

use anyhow::Context as _;
use clap::Args;
use leno_kubernetes::api::{ApiError, NamespaceName};
use leno_kubernetes::well_known::SYSTEM_NAMESPACE;
use leno_model::Name;

/// Selects a control plane and its cluster.
#[derive(Debug, Clone, Args)]
pub(crate) struct ClusterArgs {
    /// Namespace of the control plane
    #[arg(short, long, value_name = "NAME", default_value = SYSTEM_NAMESPACE, value_parser = parse_namespace)]
    pub(crate) namespace: NamespaceName,
    /// Context of the kubeconfig [default: the current context]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl ClusterArgs {
    /// Connects according to `KUBECONFIG`, `~/.kube/config` or the pod's service account.
    ///
    /// # Errors
    /// If no cluster is configured.
    pub(crate) async fn connect_client(&self) -> anyhow::Result<kube::Client> {
        connect_to_context(self.context.as_deref()).await
    }
}

/// Selects a cluster; the control plane is found automatically.
#[derive(Debug, Clone, Args)]
pub(crate) struct ClusterSearchArgs {
    /// Namespace of the control plane [default: detected]
    #[arg(short, long, value_name = "NAME", requires = "kubernetes", value_parser = parse_namespace)]
    pub(crate) namespace: Option<NamespaceName>,
    /// Context of the kubeconfig [default: the current context]
    #[arg(long, value_name = "NAME", requires = "kubernetes")]
    context: Option<String>,
}

impl ClusterSearchArgs {
    /// Connects according to `KUBECONFIG`, `~/.kube/config` or the pod's service account.
    ///
    /// # Errors
    /// If no cluster is configured.
    pub(crate) async fn connect_client(&self) -> anyhow::Result<kube::Client> {
        connect_to_context(self.context.as_deref()).await
    }

    /// Connects as [`Self::connect_client`] does, without retries, which hide the API server's response for
    /// minutes.
    ///
    /// # Errors
    /// If no cluster is configured.
    pub(crate) async fn connect_without_retries(&self) -> anyhow::Result<kube::Client> {
        let mut config = load_config(self.context.as_deref()).await?;
        config.default_retry = false;
        connect_with_config(config)
    }
}

/// Connects to the cluster of a context, or of the current one.
///
/// # Errors
/// If no cluster is configured.
pub(crate) async fn connect_to_context(context: Option<&str>) -> anyhow::Result<kube::Client> {
    connect_with_config(load_config(context).await?)
}

async fn load_config(context: Option<&str>) -> anyhow::Result<kube::Config> {
    let config = match context {
        None => kube::Config::infer().await.map_err(anyhow::Error::from),
        Some(context) => {
            let context = Some(context.to_owned());
            let options = kube::config::KubeConfigOptions { context, ..Default::default() };
            kube::Config::from_kubeconfig(&options).await.map_err(anyhow::Error::from)
        }
    };
    config
        .context("no cluster configured: set KUBECONFIG, or create ~/.kube/config, as for kubectl")
}

fn connect_with_config(config: kube::Config) -> anyhow::Result<kube::Client> {
    kube::Client::try_from(config).context("cannot connect to the cluster")
}

/// Runs a future that uses a cluster to completion, on a new single-threaded runtime.
///
/// # Errors
/// The error of `work`, or an error if the runtime cannot be created.
pub(crate) fn run<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot wait for the cluster")?.block_on(work)
}

/// Converts an API server error to an error with the same message.
pub(crate) fn from_api_error(error: ApiError) -> anyhow::Error {
    anyhow::anyhow!("{error}")
}

fn parse_namespace(text: &str) -> Result<NamespaceName, String> {
    NamespaceName::new(text).map_err(|_| INVALID_NAMESPACE.to_owned())
}

/// Parses the name of a namespace.
///
/// # Errors
/// A message for users, if the name is invalid.
pub(crate) fn parse_namespace_name(text: &str) -> Result<Name, String> {
    let name = parse_namespace(text)?;
    Name::new(&name).map_err(|_| INVALID_NAMESPACE.to_owned())
}

const INVALID_NAMESPACE: &str =
    "is not the name of a namespace; use lower-case letters, digits and `-`";
