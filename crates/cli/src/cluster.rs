//! The cluster that commands are about, as `kubectl` finds it.

use anyhow::Context as _;
use clap::Args;
use leno_kubernetes::api::{ApiError, NamespaceName};
use leno_kubernetes::words::SYSTEM_NAMESPACE;
use leno_model::Name;

/// Which control plane, of which cluster.
#[derive(Debug, Clone, Args)]
pub(crate) struct ClusterArgs {
    /// The namespace of the control plane
    #[arg(short, long, value_name = "NAME", default_value = SYSTEM_NAMESPACE, value_parser = namespace)]
    pub(crate) namespace: NamespaceName,
    /// The context of the kubeconfig to use [default: the current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl ClusterArgs {
    /// A connection, as `KUBECONFIG`, `~/.kube/config` or the account of the pod say.
    ///
    /// # Errors
    /// When there is no cluster to be found.
    pub(crate) async fn client(&self) -> anyhow::Result<kube::Client> {
        client(self.context.as_deref()).await
    }
}

/// Which control plane, of which cluster, for a command that looks for it by itself.
#[derive(Debug, Clone, Args)]
pub(crate) struct FoundArgs {
    /// The namespace of the control plane [default: wherever it is]
    #[arg(short, long, value_name = "NAME", requires = "kubernetes", value_parser = namespace)]
    pub(crate) namespace: Option<NamespaceName>,
    /// The context of the kubeconfig to use [default: the current one]
    #[arg(long, value_name = "NAME", requires = "kubernetes")]
    context: Option<String>,
}

impl FoundArgs {
    /// As [`ClusterArgs::client`].
    ///
    /// # Errors
    /// When there is no cluster to be found.
    pub(crate) async fn client(&self) -> anyhow::Result<kube::Client> {
        client(self.context.as_deref()).await
    }

    /// The same without retries, which hide the API server's answer for minutes.
    ///
    /// # Errors
    /// When there is no cluster to be found.
    pub(crate) async fn client_without_retries(&self) -> anyhow::Result<kube::Client> {
        let mut config = config(self.context.as_deref()).await?;
        config.default_retry = false;
        connect(config)
    }
}

/// A connection to the cluster of a context, or of the current one.
///
/// # Errors
/// When there is no cluster to be found.
pub(crate) async fn client(context: Option<&str>) -> anyhow::Result<kube::Client> {
    connect(config(context).await?)
}

async fn config(context: Option<&str>) -> anyhow::Result<kube::Config> {
    let config = match context {
        None => kube::Config::infer().await.map_err(anyhow::Error::from),
        Some(context) => {
            let context = Some(context.to_owned());
            let options = kube::config::KubeConfigOptions { context, ..Default::default() };
            kube::Config::from_kubeconfig(&options).await.map_err(anyhow::Error::from)
        }
    };
    config.context(
        "there is no cluster to be found: set KUBECONFIG, or make ~/.kube/config, as for kubectl",
    )
}

fn connect(config: kube::Config) -> anyhow::Result<kube::Client> {
    kube::Client::try_from(config).context("cannot connect to the cluster")
}

/// Runs to its end what waits for a cluster.
///
/// # Errors
/// As `work`, or when the system gives no room for it.
pub(crate) fn run<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot wait for the cluster")?.block_on(work)
}

/// An error of the API server in its words.
pub(crate) fn plain(error: ApiError) -> anyhow::Error {
    anyhow::anyhow!("{error}")
}

fn namespace(text: &str) -> Result<NamespaceName, String> {
    NamespaceName::new(text).map_err(|_| NO_NAMESPACE.to_owned())
}

/// The name of a namespace.
///
/// # Errors
/// In words for whoever wrote it.
pub(crate) fn namespace_name(text: &str) -> Result<Name, String> {
    let name = namespace(text)?;
    Name::new(&name).map_err(|_| NO_NAMESPACE.to_owned())
}

const NO_NAMESPACE: &str = "is not the name of a namespace; use lower-case letters, digits and `-`";
