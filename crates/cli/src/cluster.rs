//! Creates the Kubernetes client of a command. The cluster is found in the same way as by `kubectl`: by kubeconfig and
//! context, or by the service account of the pod.

use anyhow::Context as _;
use clap::Args;
use leno_kubernetes::api::{ApiError, NamespaceName};
use leno_kubernetes::well_known::SYSTEM_NAMESPACE;
use leno_model::Name;

/// Selects a control plane and its cluster.
#[derive(Debug, Clone, Args)]
pub(crate) struct ClusterArgs {
    /// Namespace of the control plane, not of your objects
    #[arg(short, long, value_name = "NAME", default_value = SYSTEM_NAMESPACE, value_parser = parse_namespace)]
    pub(crate) namespace: NamespaceName,
    /// Context of the kubeconfig [default: the current context]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl ClusterArgs {
    /// Creates a client according to `KUBECONFIG`, `~/.kube/config` or the pod's service account.
    ///
    /// # Errors
    /// If no cluster is configured, or the kubeconfig is invalid or lacks the context.
    pub(crate) async fn create_client(&self) -> anyhow::Result<kube::Client> {
        create_client_for_context(self.context.as_deref()).await
    }
}

/// Selects a cluster; the namespace of its control plane is detected unless an option sets it.
#[derive(Debug, Clone, Args)]
pub(crate) struct DetectedClusterArgs {
    /// Namespace of the control plane, not of your objects [default: found by a search of all namespaces]
    #[arg(short, long, value_name = "NAME", requires = "kubernetes", value_parser = parse_namespace)]
    pub(crate) namespace: Option<NamespaceName>,
    /// Context of the kubeconfig [default: the current context]
    #[arg(long, value_name = "NAME", requires = "kubernetes")]
    context: Option<String>,
}

impl DetectedClusterArgs {
    /// Creates a client according to `KUBECONFIG`, `~/.kube/config` or the pod's service account.
    ///
    /// # Errors
    /// If no cluster is configured, or the kubeconfig is invalid or lacks the context.
    pub(crate) async fn create_client(&self) -> anyhow::Result<kube::Client> {
        create_client_for_context(self.context.as_deref()).await
    }

    /// Creates a client as [`Self::create_client`] does, but without retries: with retries, a command waits for minutes
    /// before it receives the error of the API server.
    ///
    /// # Errors
    /// If no cluster is configured, or the kubeconfig is invalid or lacks the context.
    pub(crate) async fn create_client_without_retries(&self) -> anyhow::Result<kube::Client> {
        let mut config = load_config(self.context.as_deref()).await?;
        config.default_retry = false;
        client_from_config(config)
    }
}

/// Creates a client for the cluster of a context of the kubeconfig. Without a context, uses the current context or the
/// pod's service account.
///
/// # Errors
/// If no cluster is configured, or the kubeconfig is invalid or lacks the context.
pub(crate) async fn create_client_for_context(
    context: Option<&str>,
) -> anyhow::Result<kube::Client> {
    client_from_config(load_config(context).await?)
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

fn client_from_config(config: kube::Config) -> anyhow::Result<kube::Client> {
    kube::Client::try_from(config).context("cannot connect to the cluster")
}

/// Waits until a future that sends requests to a cluster is complete. The future runs on a new single-threaded runtime.
///
/// # Errors
/// The error of `work`, or an error if the runtime cannot be created.
pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
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

/// Parses the name of a namespace as a [`Name`], for names that are used as plain text.
///
/// # Errors
/// A message for users, if the name is invalid.
pub(crate) fn parse_namespace_as_name(text: &str) -> Result<Name, String> {
    let name = parse_namespace(text)?;
    Name::new(&name).map_err(|_| INVALID_NAMESPACE.to_owned())
}

const INVALID_NAMESPACE: &str =
    "is not the name of a namespace; use lower-case letters, digits and `-`";
