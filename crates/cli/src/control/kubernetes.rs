//! A control plane in a cluster: facts, identities, its own authority and its peers of the API server.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use kube::Client;
use leno_control::{
    Config, Control, Holder, Review, ReviewError, Reviewer, UPDATES_MAX, trust_domain_of,
};
use leno_identity::AuthoritySource;
use leno_kubernetes::authority::SharedAuthority;
use leno_kubernetes::peers;
use leno_kubernetes::review::{self, TokenReviewer};
use leno_kubernetes::source::{self, Options};
use leno_kubernetes::words::SYSTEM_NAMESPACE;
use leno_registry::Update;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::told;

/// Arguments of a control plane in a cluster.
#[derive(Debug, Args)]
pub(super) struct ClusterArgs {
    /// Read what the API server tells in place of files, and keep the authority in a Secret; within
    /// a pod, or where KUBECONFIG says
    #[arg(long, conflicts_with_all = ["file", "peers", "shared", "issuer"], requires = "pod_ip")]
    pub(super) kubernetes: bool,
    /// Where it answers the API server's webhooks
    #[arg(long, value_name = "ADDRESS", requires = "kubernetes")]
    webhook: Option<SocketAddr>,
    #[arg(long, env = "POD_NAMESPACE", hide = true, default_value = SYSTEM_NAMESPACE)]
    pod_namespace: String,
    #[arg(long, env = "POD_IP", hide = true)]
    pod_ip: Option<IpAddr>,
}

/// What runs beside a control plane in a cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    tasks: JoinSet<&'static str>,
}

/// Starts a control plane that follows the API server.
///
/// # Errors
/// When there is no API server, or it does not give what the control plane needs.
pub(super) async fn start(
    args: &ClusterArgs,
    mut config: Config,
) -> anyhow::Result<(Control, Cluster)> {
    let client = Client::try_default().await.context("there is no API server to ask")?;
    let own = args.pod_ip.context("the own address is not known: set POD_IP")?;
    let namespace = args.pod_namespace.clone();
    let mut tasks = JoinSet::new();

    let (facts, mut updates) = mpsc::channel(UPDATES_MAX);
    let reading = source::follow(client.clone(), Options::default(), facts);
    tasks.spawn(named("the source of the facts", reading));
    let Some(first) = updates.recv().await else {
        bail!("the API server tells nothing");
    };

    // The authority is one of the trust domain that the MeshConfig wants.
    let dir = config.data.join("authority");
    let mut authority =
        SharedAuthority::new(client.clone(), &namespace, &dir, trust_domain_of(&first));
    if let AuthoritySource::Issuer(dir) = authority.establish().await? {
        config.issuer = Some(dir);
    }
    tasks.spawn(named("the keeper of the authority", authority.keep()));

    let (found, peers) = watch::channel(BTreeSet::new());
    config.found_peers = Some(peers);
    let here = (own, config.listen.port());
    let looking = (client.clone(), namespace);
    tasks.spawn(named("the search for other control planes", async move {
        peers::follow(looking.0, &looking.1, here, found).await;
    }));
    config.reviewer = Some(Arc::new(ByTokenReview(TokenReviewer::new(client))));

    let (again, fed) = mpsc::channel(UPDATES_MAX);
    tasks.spawn(named("the source of the facts", forward(first, updates, again)));
    let control = told(Control::start_fed(config, fed).await)?;

    // The webhook has its place here: `leno_kubernetes::webhook::serve(client, listen, settings, stop)`.
    if let Some(address) = args.webhook {
        tracing::warn!(%address, "there is no webhook yet");
    }
    Ok((control, Cluster { tasks }))
}

/// Waits until something has ended that runs beside a control plane; for ever when there is nothing.
pub(super) async fn ended(cluster: Option<Cluster>) -> anyhow::Error {
    let Some(Cluster { mut tasks }) = cluster else { return std::future::pending().await };
    match tasks.join_next().await {
        Some(Ok(name)) => anyhow::anyhow!("{name} ended unexpectedly; its last words are in the log"),
        Some(Err(error)) => anyhow::Error::from(error).context("a part beside the control plane"),
        None => std::future::pending().await,
    }
}

async fn named(name: &'static str, work: impl Future<Output = ()>) -> &'static str {
    work.await;
    name
}

/// The first facts, which were looked at, and then all others.
async fn forward(first: Update, mut updates: mpsc::Receiver<Update>, again: mpsc::Sender<Update>) {
    let mut next = Some(first);
    while let Some(update) = next {
        if again.send(update).await.is_err() {
            return;
        }
        next = updates.recv().await;
    }
}

/// Asks the API server whose tokens are.
#[derive(Debug)]
struct ByTokenReview(TokenReviewer);

impl Reviewer for ByTokenReview {
    fn review<'a>(&'a self, token: &'a str) -> Review<'a> {
        Box::pin(async move {
            match self.0.review(token).await {
                Ok(review::PodHolder { workload, account }) => Ok(Holder { workload, account }),
                Err(review::ReviewError::Refused(reason)) => Err(ReviewError::Refused(reason)),
                Err(error) => Err(ReviewError::Unavailable(error.to_string())),
            }
        })
    }
}
