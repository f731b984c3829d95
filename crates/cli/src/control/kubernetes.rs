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
use leno_kubernetes::inject::{Settings, has_native_sidecars};
use leno_kubernetes::peers;
use leno_kubernetes::review::{self, TokenReviewer};
use leno_kubernetes::source::{Options, Source};
use leno_kubernetes::status::{Writer, keep_statuses};
use leno_kubernetes::webhook;
use leno_kubernetes::words::SYSTEM_NAMESPACE;
use leno_model::TrustDomain;
use leno_registry::Update;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::told;
use crate::install;

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
    /// The image of the sidecars that the webhook puts into pods
    #[arg(long, env = "LENO_IMAGE", value_name = "IMAGE", default_value = install::IMAGE)]
    image: String,
    #[arg(long, env = "POD_NAMESPACE", hide = true, default_value = SYSTEM_NAMESPACE)]
    pod_namespace: String,
    /// Without a name it writes no statuses
    #[arg(long, env = "POD_NAME", hide = true)]
    pod_name: Option<String>,
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
    let source = Source::new(client.clone(), Options::default());
    if let Some(name) = args.pod_name.clone() {
        let writer = Writer { namespace: namespace.clone(), name };
        let writing = keep_statuses(client.clone(), writer, source.statements());
        tasks.spawn(named("the writer of statuses", writing));
    }
    tasks.spawn(named("the source of the facts", source.follow(facts)));
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
    let roots = authority.roots();
    tasks.spawn(named("the keeper of the authority", authority.keep()));

    let (found, peers) = watch::channel(BTreeSet::new());
    config.found_peers = Some(peers);
    let here = (own, config.listen.port());
    let looking = (client.clone(), namespace);
    tasks.spawn(named("the search for other control planes", async move {
        peers::follow(looking.0, &looking.1, here, found).await;
    }));
    config.reviewer = Some(Arc::new(ByTokenReview(TokenReviewer::new(client.clone()))));

    let (again, fed) = mpsc::channel(UPDATES_MAX);
    tasks.spawn(named("the source of the facts", forward(first, updates, again)));
    let control = told(Control::start_fed(config, fed).await)?;

    if let Some(address) = args.webhook {
        let trust_domain = control.trust_domain().clone();
        let settings = settings(&client, args, trust_domain, roots).await?;
        tasks.spawn(named("the webhook", answer(client, address, settings)));
    }
    Ok((control, Cluster { tasks }))
}

/// Waits until something has ended that runs beside a control plane; for ever when there is nothing.
pub(super) async fn ended(cluster: Option<Cluster>) -> anyhow::Error {
    let Some(Cluster { mut tasks }) = cluster else { return std::future::pending().await };
    match tasks.join_next().await {
        Some(Ok(name)) => {
            anyhow::anyhow!("{name} ended unexpectedly; its last words are in the log")
        }
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

/// What sidecars are made with, and the roots that they are to trust.
async fn settings(
    client: &Client,
    args: &ClusterArgs,
    trust_domain: TrustDomain,
    roots: watch::Receiver<String>,
) -> anyhow::Result<(Settings, watch::Receiver<String>)> {
    let version = client.apiserver_version().await;
    let version = version.context("the API server does not tell its version")?;
    let (image, namespace) = (args.image.clone(), args.pod_namespace.clone());
    let known = roots.borrow().clone();
    let settings = Settings {
        native_sidecars: has_native_sidecars(&version.major, &version.minor),
        ..Settings::new(image, namespace, trust_domain, known)
    };
    Ok((settings, roots))
}

/// Answers the API server's webhooks, with the roots as they are then.
async fn answer(
    client: Client,
    listen: SocketAddr,
    (settings, mut roots): (Settings, watch::Receiver<String>),
) {
    let (tell, told) = watch::channel(settings);
    let (_going, stop) = watch::channel(false);
    let following = async {
        while roots.changed().await.is_ok() {
            let now = roots.borrow_and_update().clone();
            tell.send_modify(|settings| settings.roots = now);
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = following => {}
        served = webhook::serve(client, listen, told, stop) => {
            if let Err(error) = served {
                tracing::error!(%error, "the API server's webhooks are not answered");
            }
        }
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
