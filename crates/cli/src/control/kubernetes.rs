//! Control plane in a Kubernetes cluster: facts, identities, authority and peers from the API server.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use clap::Args;
use kube::Client;
use leno_control::{
    Config, Control, Health, ReviewError, ReviewFuture, Reviewer, StartError, TokenSubject,
    UPDATES_MAX, trust_domain_of,
};
use leno_identity::{Authority, AuthoritySource};
use leno_kubernetes::api::{NamespaceName, server_version};
use leno_kubernetes::authority::SharedAuthority;
use leno_kubernetes::external_principals::{SecretPermissions, keep_external_principals};
use leno_kubernetes::gateway::{DesiredGateway, provision_gateways};
use leno_kubernetes::inject::{Exclusions, InjectionSettings, has_native_sidecars};
use leno_kubernetes::peers;
use leno_kubernetes::rejections::keep_rejections;
use leno_kubernetes::review::{self, TokenReviewer};
use leno_kubernetes::source::{KubernetesSource, ListProgress, SourceOptions};
use leno_kubernetes::status::{ElectionIdentity, hold_lease, keep_statuses};
use leno_kubernetes::webhook::{self, ListenOptions};
use leno_kubernetes::words::SYSTEM_NAMESPACE;
use leno_model::{ClientRanges, Floor, Name, SidecarFacts, TrustDomain, WorkloadName};
use leno_registry::{RegistryUpdate, RejectedDocument, Warning};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::check_started;
use crate::cluster::namespace_name;
use crate::wildcard_address::parse_listen_address;

/// Arguments of a control plane in a cluster.
#[derive(Debug, Args)]
pub(super) struct InClusterArgs {
    /// Read resources from the API server instead of files, and keep the authority in a Secret; inside a pod,
    /// or with KUBECONFIG
    #[arg(long, conflicts_with_all = ["file", "peers", "shared", "issuer"], requires = "pod_ip")]
    pub(super) kubernetes: bool,
    /// Address for the API server's webhook requests
    #[arg(long, value_name = "ADDRESS", requires = "kubernetes", value_parser = parse_listen_address)]
    webhook: Option<SocketAddr>,
    /// CA certificates (PEM) used to verify webhook clients, reloaded on change; other clients are rejected. The API
    /// server gets its client certificate from an AdmissionConfiguration (docs/kubernetes.md)
    #[arg(long, value_name = "FILE", requires = "webhook")]
    webhook_client_ca: Option<PathBuf>,
    /// Trust domain of the mesh until a MeshConfig sets it
    #[arg(long, env = "LENO_TRUST_DOMAIN", value_name = "NAME", value_parser = TrustDomain::new, hide = true)]
    trust_domain: Option<TrustDomain>,
    /// Image of injected sidecars
    #[arg(long, env = "LENO_IMAGE", hide = true)]
    image: Option<String>,
    /// Omit the init container from pods: the CNI plugin of their node redirects connections
    #[arg(long, requires = "webhook")]
    cni: bool,
    /// Serve Gateway API gateways: watch their resources and references, Secrets included, and create
    /// Deployments and Services for them
    #[arg(long, requires = "kubernetes")]
    gateways: bool,
    /// Namespaces in which the control plane may write Secrets, for AccessCerts and for the ingress gateway
    /// certificate in OSM and FSM settings
    #[arg(long, value_name = "NAMESPACE", value_delimiter = ',', requires = "kubernetes", value_parser = namespace_name)]
    access_certs: Vec<Name>,
    /// Namespaces for mesh-wide objects, in addition to its own: osm-mesh-config and fsm-mesh-config, until a
    /// leno.dev MeshConfig sets more than the trust domain; TagRoutes for all services; Egress objects for
    /// accounts of other namespaces
    #[arg(long, value_name = "NAMESPACE", value_delimiter = ',', requires = "kubernetes", value_parser = namespace_name)]
    settings_namespaces: Vec<Name>,
    /// Clients allowed to read /metrics of gateways and of sidecars with the annotation leno.dev/metrics:
    /// enabled: `any`, or a comma-separated list of addresses and ranges [default: any for such sidecars, none
    /// for gateways]
    #[arg(long, value_name = "LIST", requires = "kubernetes")]
    metrics_from: Option<ClientRanges>,
    #[arg(long, env = "POD_NAMESPACE", hide = true, default_value = SYSTEM_NAMESPACE)]
    pod_namespace: NamespaceName,
    /// Name of this pod; without it no statuses are written
    #[arg(long, env = "POD_NAME", hide = true)]
    pod_name: Option<String>,
    #[arg(long, env = "POD_IP", hide = true)]
    pod_ip: Option<IpAddr>,
}

impl InClusterArgs {
    /// Returns the pod of this process, if known.
    pub(super) fn own_pod(&self) -> Option<WorkloadName> {
        WorkloadName::new(&self.pod_namespace, self.pod_name.as_ref()?).ok()
    }

    fn listen_options(&self) -> Option<ListenOptions> {
        let client_ca = self.webhook_client_ca.clone();
        self.webhook.map(|address| ListenOptions { address, client_ca })
    }

    /// Returns the namespaces in which it may write Secrets; a Secret in its own namespace is rejected, even if
    /// that is listed.
    fn secret_grants(&self) -> SecretPermissions {
        let namespaces = self.access_certs.iter().cloned().collect();
        SecretPermissions { namespaces, own: Name::new(&self.pod_namespace).ok() }
    }

    /// Returns the namespaces for mesh-wide objects.
    fn settings_namespaces(&self) -> BTreeSet<Name> {
        let own = Name::new(&self.pod_namespace).ok();
        self.settings_namespaces.iter().cloned().chain(own).collect()
    }
}

/// The tasks alongside a control plane in a cluster.
#[derive(Debug)]
pub(super) struct ClusterTasks {
    tasks: JoinSet<&'static str>,
    stop: watch::Sender<bool>,
    /// The tasks that must complete by themselves after `stop`.
    ending: Vec<&'static str>,
}

impl ClusterTasks {
    /// Shuts down: releases the Kubernetes lease at once, while the webhook keeps serving briefly, since API
    /// servers still call it.
    pub(super) async fn shutdown(mut self) {
        self.stop.send_replace(true);
        while !self.ending.is_empty()
            && let Some(ended) = self.tasks.join_next().await
        {
            if let Ok(ended) = ended {
                self.ending.retain(|name| *name != ended);
            }
        }
    }
}

const WEBHOOK: &str = "the webhook";
const LEASE: &str = "the lease renewal";

/// Starts a control plane that follows the API server.
///
/// # Errors
/// If there is no API server, or it does not return the required resources.
pub(super) async fn start(
    args: &InClusterArgs,
    mut config: Config,
    health: Option<&Health>,
) -> anyhow::Result<(Control, ClusterTasks)> {
    let client = Client::try_default().await.context("no API server configured")?;
    let own = args.pod_ip.context("the pod's own address is unknown: set POD_IP")?;
    let namespace = args.pod_namespace.clone();
    let mut tasks = JoinSet::new();
    let (stop, stopped) = watch::channel(false);

    let (facts, mut updates) = mpsc::channel(UPDATES_MAX);
    let (outcomes, became) = watch::channel(Arc::default());
    let (unwritten, failed) = watch::channel(Arc::default());
    let source = KubernetesSource::new(client.clone(), source_options(args))
        .with_trust_domain(args.trust_domain.clone())
        .with_settings_of(args.settings_namespaces())
        .with_image(args.image.clone())
        .with_grants(args.secret_grants(), became)
        .with_unwritten(failed);
    let (facts_of_sidecars, of_sidecars) = watch::channel(Arc::default());
    let written = of_sidecars.clone();
    let leading = write_statuses(&client, args, &stopped, written, &source, unwritten, &mut tasks);
    let mut progress = source.subscribe_progress();
    let choices = NewSidecarSettings {
        exclusions: source.subscribe_exclusions(),
        floor: source.subscribe_floor(),
    };
    let principals = source.external_principals();
    let (lifetime, leader) = (config.certificate_lifetime, leading.clone());
    let gateways =
        args.gateways.then(|| GatewayLeadership { desired: source.subscribe_gateways(), leading });
    tasks.spawn(with_task_name("the watch of the API server", source.send_updates(facts)));
    let first = tokio::select! {
        first = updates.recv() => first,
        () = tell_progress(&mut progress, health) => None,
    };
    let Some(first) = first else { bail!("the API server returned no configuration") };
    let in_doubt: Vec<RejectedDocument> = first.mesh_config_in_doubt().cloned().collect();
    if !in_doubt.is_empty() {
        // No authority is created for a trust domain that may be wrong.
        check_started(Err(StartError::MeshConfig(in_doubt)))?;
    }

    // The authority is one of the trust domain in the MeshConfig.
    let dir = config.data.join("authority");
    let mut authority =
        SharedAuthority::new(client.clone(), &namespace, &dir, trust_domain_of(&first));
    if let AuthoritySource::Issuer(dir) = authority.establish_authority().await? {
        config.issuer = Some(dir);
    }
    tasks.spawn(with_task_name("the renewal of the authority", authority.run_synchronization()));

    let port = config.listen.port();
    config.found_peers = Some(discover_peers(client.clone(), namespace, own, port, &mut tasks));
    config.reviewer = Some(Arc::new(ClusterTokenReviewer(TokenReviewer::new(client.clone()))));

    let (again, fed) = mpsc::channel(UPDATES_MAX);
    let forwarding = forward_updates(first, updates, again);
    tasks.spawn(with_task_name("the watch of the API server", forwarding));
    let control = check_started(Control::start_fed(config, fed).await)?;
    let (asking, authority) = (client.clone(), control.watch_authority());
    let keeping =
        keep_external_principals(asking, lifetime, authority, principals, leader, outcomes);
    tasks.spawn(with_task_name("the controller of AccessCerts", keeping));
    write_facts(&client, args, &control, facts_of_sidecars, of_sidecars, &mut tasks);

    if args.webhook.is_some() || args.image.is_some() {
        let settings = injection_settings(&client, args, &control).await?;
        let serving = inject_sidecars(
            client,
            settings,
            control.watch_authority(),
            choices,
            args.listen_options().map(|listen| (listen, stopped)),
            gateways,
        );
        tasks.spawn(with_task_name(WEBHOOK, serving));
    }
    Ok((control, ClusterTasks { tasks, stop, ending: ending_tasks(args) }))
}

/// Starts the discovery of the other control planes, and returns their addresses.
fn discover_peers(
    client: Client,
    namespace: NamespaceName,
    own: IpAddr,
    port: u16,
    tasks: &mut JoinSet<&'static str>,
) -> watch::Receiver<BTreeSet<SocketAddr>> {
    let (found, peers) = watch::channel(BTreeSet::new());
    tasks.spawn(with_task_name("the discovery of other control planes", async move {
        peers::follow_peers(client, &namespace, own, port, found).await;
    }));
    peers
}

/// Returns the tasks that must complete by themselves.
fn ending_tasks(args: &InClusterArgs) -> Vec<&'static str> {
    let lease = args.pod_name.is_some().then_some(LEASE);
    let webhook = args.webhook.is_some().then_some(WEBHOOK);
    lease.into_iter().chain(webhook).collect()
}

/// Starts the tasks that write statuses while this control plane holds the lease, which the receiver reports.
fn write_statuses(
    client: &Client,
    args: &InClusterArgs,
    stopped: &watch::Receiver<bool>,
    facts: watch::Receiver<Arc<SidecarFacts>>,
    source: &KubernetesSource,
    unwritten: watch::Sender<Arc<Vec<Warning>>>,
    tasks: &mut JoinSet<&'static str>,
) -> watch::Receiver<bool> {
    let (leads, leading) = watch::channel(false);
    let Some(name) = args.pod_name.clone() else { return leading };
    let namespace = args.pod_namespace.clone();
    let writer = ElectionIdentity { namespace, name: name.clone(), facts };
    tasks.spawn(with_task_name(LEASE, hold_lease(client.clone(), writer, leads, stopped.clone())));
    let writing = keep_statuses(
        client.clone(),
        name,
        source.subscribe_statements(),
        leading.clone(),
        unwritten,
    );
    tasks.spawn(with_task_name("the writer of statuses", writing));
    leading
}

/// Starts the tasks that write facts about sidecars into the cluster.
fn write_facts(
    client: &Client,
    args: &InClusterArgs,
    control: &Control,
    known: watch::Sender<Arc<SidecarFacts>>,
    written: watch::Receiver<Arc<SidecarFacts>>,
    tasks: &mut JoinSet<&'static str>,
) {
    let mut facts = control.sidecar_facts();
    let forwarding = async move {
        while facts.changed().await.is_ok() {
            known.send_replace(Arc::clone(&facts.borrow_and_update()));
        }
        // The control plane has ended: its last facts stay.
        std::future::pending().await
    };
    tasks.spawn(with_task_name("the configuration of injected sidecars", forwarding));
    if let Some(name) = args.pod_name.clone() {
        let keeping = keep_rejections(client.clone(), name, written);
        tasks.spawn(with_task_name("the writer of events about rejected clients", keeping));
    }
}

/// Returns the settings for injected sidecars.
///
/// # Errors
/// If their image is unknown, or the API server does not report its version.
async fn injection_settings(
    client: &Client,
    args: &InClusterArgs,
    control: &Control,
) -> anyhow::Result<InjectionSettings> {
    let image = args.image.clone();
    let image = image.context("the image of sidecars is unknown: set LENO_IMAGE")?;
    let version = server_version(client).await;
    let version = version.context("the API server does not report its version")?;
    let (domain, roots) = (control.trust_domain().clone(), control.roots().to_pem());
    Ok(InjectionSettings {
        native_sidecars: has_native_sidecars(&version.major, &version.minor),
        by_plugin: args.cni,
        metrics_from: args.metrics_from.clone(),
        ..InjectionSettings::new(image, args.pod_namespace.clone(), domain, roots)
    })
}

fn source_options(args: &InClusterArgs) -> SourceOptions {
    SourceOptions { gateways: args.gateways, ..SourceOptions::default() }
}

/// Reports the kinds that are still loading, until their source has ended.
async fn tell_progress(progress: &mut watch::Receiver<ListProgress>, health: Option<&Health>) {
    loop {
        if let Some(health) = health {
            health.set_waiting(progress.borrow_and_update().to_string());
        }
        if progress.changed().await.is_err() {
            return;
        }
    }
}

/// The desired gateway resources, and the leadership of this control plane.
struct GatewayLeadership {
    desired: watch::Receiver<Arc<Vec<DesiredGateway>>>,
    leading: watch::Receiver<bool>,
}

/// The settings of the mesh for new sidecars.
struct NewSidecarSettings {
    exclusions: watch::Receiver<Exclusions>,
    floor: watch::Receiver<Floor>,
}

/// Injects sidecars into pods and creates gateway pods, with the current roots of the authority and the traffic
/// exclusions from the settings of another mesh.
async fn inject_sidecars(
    client: Client,
    mut settings: InjectionSettings,
    mut authority: watch::Receiver<Arc<Authority>>,
    mut choices: NewSidecarSettings,
    webhook: Option<(ListenOptions, watch::Receiver<bool>)>,
    gateways: Option<GatewayLeadership>,
) {
    settings.exclusions = choices.exclusions.borrow_and_update().clone();
    settings.floor = choices.floor.borrow_and_update().clone();
    let (settings, reported) = watch::channel(settings);
    let (maker, wanted) = (client.clone(), reported.clone());
    let making = async {
        match gateways {
            Some(GatewayLeadership { desired, leading }) => {
                provision_gateways(maker, wanted, desired, leading).await
            }
            None => std::future::pending().await,
        }
    };
    let serving = async {
        match webhook {
            Some((listen, stop)) => webhook::serve_webhook(client, listen, reported, stop).await,
            None => std::future::pending().await,
        }
    };
    let following = async {
        loop {
            tokio::select! {
                Ok(()) = authority.changed() => {}
                Ok(()) = choices.exclusions.changed() => {}
                Ok(()) = choices.floor.changed() => {}
                else => return,
            }
            let roots = authority.borrow_and_update().roots().to_pem();
            let exclusions = choices.exclusions.borrow_and_update().clone();
            let floor = choices.floor.borrow_and_update().clone();
            settings.send_modify(|settings| {
                settings.roots = roots;
                settings.exclusions = exclusions;
                settings.floor = floor;
            });
        }
    };
    tokio::select! {
        served = serving => if let Err(error) = served {
            tracing::error!(%error, "cannot serve the webhook");
        },
        () = following => {}
        () = making => {}
    }
}

/// Waits until a task alongside the control plane has ended; never returns if there is none.
pub(super) async fn wait_until_ended(cluster: &mut Option<ClusterTasks>) -> anyhow::Error {
    let Some(cluster) = cluster else { return std::future::pending().await };
    match cluster.tasks.join_next().await {
        Some(Ok(name)) => {
            anyhow::anyhow!("{name} ended unexpectedly; see the log")
        }
        Some(Err(error)) => anyhow::Error::from(error).context("a task of the control plane"),
        None => std::future::pending().await,
    }
}

async fn with_task_name(name: &'static str, work: impl Future<Output = ()>) -> &'static str {
    work.await;
    name
}

/// Forwards the first facts, which were already checked, and then all others.
async fn forward_updates(
    first: RegistryUpdate,
    mut updates: mpsc::Receiver<RegistryUpdate>,
    again: mpsc::Sender<RegistryUpdate>,
) {
    let mut next = Some(first);
    while let Some(update) = next {
        if again.send(update).await.is_err() {
            return;
        }
        next = updates.recv().await;
    }
}

/// Reviews tokens with the API server.
#[derive(Debug)]
struct ClusterTokenReviewer(TokenReviewer);

impl ClusterTokenReviewer {
    fn to_token_subject(found: review::PodHolder) -> TokenSubject {
        let review::PodHolder { workload, account, uid } = found;
        TokenSubject { workload, account, uid }
    }

    fn to_review_error(error: review::TokenReviewError) -> ReviewError {
        match error {
            review::TokenReviewError::Refused(reason) => ReviewError::Refused(reason),
            error => ReviewError::Unavailable(error.to_string()),
        }
    }
}

impl Reviewer for ClusterTokenReviewer {
    fn claimed_holder(
        &self,
        token: &str,
        now: SystemTime,
    ) -> Result<Option<TokenSubject>, ReviewError> {
        self.0
            .claimed_pod(token, now)
            .map(Self::to_token_subject)
            .map(Some)
            .map_err(Self::to_review_error)
    }

    fn review_token<'a>(&'a self, token: &'a str) -> ReviewFuture<'a> {
        Box::pin(async move {
            self.0
                .review_token(token)
                .await
                .map(Self::to_token_subject)
                .map_err(Self::to_review_error)
        })
    }
}
