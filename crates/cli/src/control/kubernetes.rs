//! Runs a control plane in a Kubernetes cluster: objects, identities, the certificate authority and the
//! addresses of peers come from the API server.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use clap::Args;
use kube::Client;
use leno_control::{
    Config, Control, HealthListener, MAX_UPDATES, ReviewError, ReviewFuture, Reviewer, StartError,
    TokenSubject, requested_trust_domain,
};
use leno_identity::{Authority, AuthoritySource};
use leno_kubernetes::api::{NamespaceName, server_version};
use leno_kubernetes::authority::SharedAuthority;
use leno_kubernetes::external_principals::{SecretPermissions, reconcile_external_principals};
use leno_kubernetes::gateway::{DesiredGateway, provision_gateways};
use leno_kubernetes::inject::{Exclusions, InjectionSettings, has_native_sidecars};
use leno_kubernetes::peers;
use leno_kubernetes::rejections::report_rejections;
use leno_kubernetes::review::{self, TokenReviewer};
use leno_kubernetes::source::{KubernetesSource, ListProgress, SourceOptions};
use leno_kubernetes::status::{ElectionIdentity, hold_lease, reconcile_statuses};
use leno_kubernetes::webhook::{self, ListenOptions};
use leno_kubernetes::well_known::SYSTEM_NAMESPACE;
use leno_model::{ClientRanges, Name, SecurityFloor, SidecarFacts, TrustDomain, WorkloadName};
use leno_registry::{RegistryUpdate, RejectedDocument, Warning};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::report_start_error;
use crate::cluster::parse_namespace_as_name;
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
    /// CA certificates (PEM) used to verify webhook clients, reloaded on change; other clients are rejected.
    /// The API server gets its client certificate from an AdmissionConfiguration (docs/kubernetes.md)
    #[arg(long, value_name = "FILE", requires = "webhook")]
    webhook_client_ca: Option<PathBuf>,
    /// Trust domain of the mesh until a MeshConfig sets it
    #[arg(long, env = "LENO_TRUST_DOMAIN", value_name = "NAME", value_parser = TrustDomain::new, hide = true)]
    trust_domain: Option<TrustDomain>,
    /// Image of injected sidecars
    #[arg(long, env = "LENO_IMAGE", hide = true)]
    image: Option<String>,
    /// Inject an init container that only verifies the redirection, without NET_ADMIN: the CNI plugin of the node
    /// sets it up
    #[arg(long, requires = "webhook")]
    cni: bool,
    /// Serve Gateway API gateways: watch their resources and references, Secrets included, and create
    /// Deployments and Services for them
    #[arg(long, requires = "kubernetes")]
    gateways: bool,
    /// Namespaces in which the control plane may write Secrets, for AccessCerts and for the ingress gateway
    /// certificate in OSM and FSM settings
    #[arg(long, value_name = "NAMESPACE,…", value_delimiter = ',', requires = "kubernetes", value_parser = parse_namespace_as_name)]
    access_certs: Vec<Name>,
    /// Namespaces for mesh-wide objects, in addition to its own: osm-mesh-config and fsm-mesh-config, until a
    /// leno.dev MeshConfig sets more than the trust domain; TagRoutes for all services; Egress objects for
    /// accounts of other namespaces
    #[arg(long, value_name = "NAMESPACE,…", value_delimiter = ',', requires = "kubernetes", value_parser = parse_namespace_as_name)]
    settings_namespaces: Vec<Name>,
    /// Clients allowed to read /metrics of gateways and of sidecars with the annotation `leno.dev/metrics:
    /// enabled`; `any`, or a comma-separated list of addresses and ranges [default: any for such sidecars, none
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

    /// Returns the namespaces in which the control plane may write Secrets; it writes none in its own namespace,
    /// even if that is listed.
    fn secret_permissions(&self) -> SecretPermissions {
        let namespaces = self.access_certs.iter().cloned().collect();
        SecretPermissions { namespaces, own_namespace: Name::new(&self.pod_namespace).ok() }
    }

    /// Returns the namespaces for mesh-wide objects.
    fn settings_namespaces(&self) -> BTreeSet<Name> {
        let own_namespace = Name::new(&self.pod_namespace).ok();
        self.settings_namespaces.iter().cloned().chain(own_namespace).collect()
    }
}

/// The tasks alongside a control plane in a cluster.
#[derive(Debug)]
pub(super) struct ClusterTasks {
    /// Each task returns its name.
    tasks: JoinSet<&'static str>,
    /// True once the tasks should stop.
    stop_sender: watch::Sender<bool>,
    /// The names of the tasks that must complete by themselves after the stop signal.
    self_ending_tasks: Vec<&'static str>,
}

impl ClusterTasks {
    /// Shuts down: releases the Kubernetes lease at once, while the webhook keeps serving briefly, since API
    /// servers still call it.
    pub(super) async fn shutdown(mut self) {
        self.stop_sender.send_replace(true);
        while !self.self_ending_tasks.is_empty()
            && let Some(ended_task) = self.tasks.join_next().await
        {
            if let Ok(ended_task) = ended_task {
                self.self_ending_tasks.retain(|name| *name != ended_task);
            }
        }
    }
}

const WEBHOOK_TASK: &str = "the webhook";
const LEASE_TASK: &str = "the lease renewal";

/// Starts a control plane that follows the API server.
///
/// # Errors
/// If there is no API server, or it does not return the required resources.
pub(super) async fn start(
    args: &InClusterArgs,
    mut config: Config,
    health: Option<&HealthListener>,
) -> anyhow::Result<(Control, ClusterTasks)> {
    let client = Client::try_default().await.context("no API server configured")?;
    let own_address = args.pod_ip.context("the pod's own address is unknown: set POD_IP")?;
    let namespace = args.pod_namespace.clone();
    let mut tasks = JoinSet::new();
    let (stop_sender, stopped) = watch::channel(false);

    // The source of updates. Its tasks need the receivers of results that later tasks produce.
    let (update_sender, mut updates) = mpsc::channel(MAX_UPDATES);
    let (outcome_sender, secret_outcomes) = watch::channel(Arc::default());
    let (unwritten_sender, unwritten_statuses) = watch::channel(Arc::default());
    let source = KubernetesSource::new(client.clone(), source_options(args))
        .with_trust_domain(args.trust_domain.clone())
        .with_settings_namespaces(args.settings_namespaces())
        .with_image(args.image.clone())
        .with_secret_permissions(args.secret_permissions(), secret_outcomes)
        .with_unwritten_statuses(unwritten_statuses);
    let (facts_sender, sidecar_facts) = watch::channel(Arc::default());
    let facts = sidecar_facts.clone();
    let is_leader =
        start_status_writers(&client, args, &stopped, facts, &source, unwritten_sender, &mut tasks);
    let mut progress = source.subscribe_progress();
    let sidecar_settings = NewSidecarSettings {
        exclusions: source.subscribe_exclusions(),
        floor: source.subscribe_floor(),
    };
    let external_principals = source.subscribe_external_principals();
    let (lifetime, principals_leader) = (config.certificate_lifetime, is_leader.clone());
    let gateways = args
        .gateways
        .then(|| GatewayLeadership { desired_gateways: source.subscribe_gateways(), is_leader });
    tasks.spawn(with_task_name("the watch of the API server", source.send_updates(update_sender)));
    let first_update = wait_for_first_update(&mut updates, &mut progress, health).await?;

    // The first update has the trust domain, without which there is no authority and no control plane.
    let trust_domain = requested_trust_domain(&first_update);
    start_authority(&client, &namespace, trust_domain, &mut config, &mut tasks).await?;
    let listen_port = config.listen.port();
    config.discovered_peers =
        Some(start_peer_discovery(client.clone(), namespace, own_address, listen_port, &mut tasks));
    config.reviewer = Some(Arc::new(ClusterTokenReviewer(TokenReviewer::new(client.clone()))));

    let (forward_sender, forwarded_updates) = mpsc::channel(MAX_UPDATES);
    let forwarding = forward_updates(first_update, updates, forward_sender);
    tasks.spawn(with_task_name("the watch of the API server", forwarding));
    let control = report_start_error(Control::start_with_updates(config, forwarded_updates).await)?;
    let principals_controller = reconcile_external_principals(
        client.clone(),
        lifetime,
        control.watch_authority(),
        external_principals,
        principals_leader,
        outcome_sender,
    );
    tasks.spawn(with_task_name("the controller of AccessCerts", principals_controller));
    start_fact_writers(&client, args, &control, facts_sender, sidecar_facts, &mut tasks);

    if args.webhook.is_some() || args.image.is_some() {
        let settings = injection_settings(&client, args, &control).await?;
        let injection = run_injection(
            client,
            settings,
            control.watch_authority(),
            sidecar_settings,
            args.listen_options().map(|listen| (listen, stopped)),
            gateways,
        );
        tasks.spawn(with_task_name(WEBHOOK_TASK, injection));
    }
    Ok((control, ClusterTasks { tasks, stop_sender, self_ending_tasks: self_ending_tasks(args) }))
}

/// Establishes the authority that issues certificates for this trust domain, and starts its renewal. The configuration
/// gets the directory of an intermediate.
async fn start_authority(
    client: &Client,
    namespace: &NamespaceName,
    trust_domain: TrustDomain,
    config: &mut Config,
    tasks: &mut JoinSet<&'static str>,
) -> anyhow::Result<()> {
    let directory = config.data.join("authority");
    let mut authority = SharedAuthority::new(client.clone(), namespace, &directory, trust_domain);
    if let AuthoritySource::Intermediate(directory) = authority.establish_authority().await? {
        config.issuer = Some(directory);
    }
    tasks.spawn(with_task_name("the renewal of the authority", authority.run_synchronization()));
    Ok(())
}

/// Waits for the first configuration from the API server, and checks its MeshConfig: no authority is created for
/// a trust domain that may be wrong.
async fn wait_for_first_update(
    updates: &mut mpsc::Receiver<RegistryUpdate>,
    progress: &mut watch::Receiver<ListProgress>,
    health: Option<&HealthListener>,
) -> anyhow::Result<RegistryUpdate> {
    let received_update = tokio::select! {
        update = updates.recv() => update,
        () = report_progress(progress, health) => None,
    };
    let Some(first_update) = received_update else {
        bail!("the API server returned no configuration")
    };
    let rejected: Vec<RejectedDocument> =
        first_update.possible_mesh_config_rejections().cloned().collect();
    if !rejected.is_empty() {
        report_start_error(Err(StartError::MeshConfig(rejected)))?;
    }
    Ok(first_update)
}

/// Starts the discovery of the other control planes, and returns their addresses.
fn start_peer_discovery(
    client: Client,
    namespace: NamespaceName,
    own_address: IpAddr,
    port: u16,
    tasks: &mut JoinSet<&'static str>,
) -> watch::Receiver<BTreeSet<SocketAddr>> {
    let (peer_sender, peers) = watch::channel(BTreeSet::new());
    tasks.spawn(with_task_name("the discovery of other control planes", async move {
        peers::follow_peers(client, &namespace, own_address, port, peer_sender).await;
    }));
    peers
}

/// Returns the names of the tasks that must complete by themselves after the stop signal.
fn self_ending_tasks(args: &InClusterArgs) -> Vec<&'static str> {
    let lease_task = args.pod_name.is_some().then_some(LEASE_TASK);
    let webhook_task = args.webhook.is_some().then_some(WEBHOOK_TASK);
    lease_task.into_iter().chain(webhook_task).collect()
}

/// Starts the tasks that write statuses while this control plane holds the lease. The returned receiver is true
/// during that time.
fn start_status_writers(
    client: &Client,
    args: &InClusterArgs,
    stop_receiver: &watch::Receiver<bool>,
    sidecar_facts: watch::Receiver<Arc<SidecarFacts>>,
    source: &KubernetesSource,
    unwritten_sender: watch::Sender<Arc<Vec<Warning>>>,
    tasks: &mut JoinSet<&'static str>,
) -> watch::Receiver<bool> {
    let (leader_sender, is_leader) = watch::channel(false);
    let Some(name) = args.pod_name.clone() else { return is_leader };
    let namespace = args.pod_namespace.clone();
    let election_identity = ElectionIdentity { namespace, name: name.clone(), sidecar_facts };
    tasks.spawn(with_task_name(
        LEASE_TASK,
        hold_lease(client.clone(), election_identity, leader_sender, stop_receiver.clone()),
    ));
    let status_writer = reconcile_statuses(
        client.clone(),
        name,
        source.subscribe_statuses(),
        is_leader.clone(),
        unwritten_sender,
    );
    tasks.spawn(with_task_name("the writer of statuses", status_writer));
    is_leader
}

/// Starts the tasks that write the control plane's observations of sidecars into the cluster, as events and
/// annotations.
fn start_fact_writers(
    client: &Client,
    args: &InClusterArgs,
    control: &Control,
    facts_sender: watch::Sender<Arc<SidecarFacts>>,
    sidecar_facts: watch::Receiver<Arc<SidecarFacts>>,
    tasks: &mut JoinSet<&'static str>,
) {
    let mut latest_facts = control.sidecar_facts();
    let forwarding = async move {
        while latest_facts.changed().await.is_ok() {
            facts_sender.send_replace(Arc::clone(&latest_facts.borrow_and_update()));
        }
        // The control plane has ended. While this task holds the sender, receivers keep the last facts.
        std::future::pending().await
    };
    tasks.spawn(with_task_name("the configuration of injected sidecars", forwarding));
    if let Some(name) = args.pod_name.clone() {
        let event_writer = report_rejections(client.clone(), name, sidecar_facts);
        tasks.spawn(with_task_name("the writer of events about rejected clients", event_writer));
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
    let image = args.image.clone().context("the image of sidecars is unknown: set LENO_IMAGE")?;
    let version =
        server_version(client).await.context("the API server does not report its version")?;
    let (trust_domain, roots) = (control.trust_domain().clone(), control.roots().to_pem());
    Ok(InjectionSettings {
        native_sidecars: has_native_sidecars(&version.major, &version.minor),
        uses_cni_plugin: args.cni,
        metrics_from: args.metrics_from.clone(),
        ..InjectionSettings::new(image, args.pod_namespace.clone(), trust_domain, roots)
    })
}

fn source_options(args: &InClusterArgs) -> SourceOptions {
    SourceOptions { gateways: args.gateways, ..SourceOptions::default() }
}

/// Reports the resource kinds that are still loading as the reason why the control plane is not ready, until
/// the source has ended.
async fn report_progress(
    progress: &mut watch::Receiver<ListProgress>,
    health: Option<&HealthListener>,
) {
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
    desired_gateways: watch::Receiver<Arc<Vec<DesiredGateway>>>,
    /// True while this control plane holds the lease.
    is_leader: watch::Receiver<bool>,
}

/// The settings of the mesh for new sidecars.
struct NewSidecarSettings {
    exclusions: watch::Receiver<Exclusions>,
    /// The minimum security settings of the MeshConfig, which annotations cannot lower.
    floor: watch::Receiver<SecurityFloor>,
}

/// Injects sidecars into pods and creates gateway pods, with the current roots of the authority and the current
/// traffic exclusions. The exclusions come from the MeshConfig of OSM or FSM.
async fn run_injection(
    client: Client,
    mut settings: InjectionSettings,
    mut authority: watch::Receiver<Arc<Authority>>,
    mut sidecar_settings: NewSidecarSettings,
    webhook: Option<(ListenOptions, watch::Receiver<bool>)>,
    gateways: Option<GatewayLeadership>,
) {
    settings.exclusions = sidecar_settings.exclusions.borrow_and_update().clone();
    settings.floor = sidecar_settings.floor.borrow_and_update().clone();
    // The webhook and the gateways read the settings from this channel, which `follow_changes` updates.
    let (settings_sender, settings_receiver) = watch::channel(settings);
    let (gateway_client, gateway_settings) = (client.clone(), settings_receiver.clone());
    let provision_gateways_task = async {
        match gateways {
            Some(GatewayLeadership { desired_gateways, is_leader }) => {
                provision_gateways(gateway_client, gateway_settings, desired_gateways, is_leader)
                    .await
            }
            None => std::future::pending().await,
        }
    };
    let serve_webhook_task = async {
        match webhook {
            Some((listen, stop_receiver)) => {
                webhook::serve_webhook(client, listen, settings_receiver, stop_receiver).await
            }
            None => std::future::pending().await,
        }
    };
    let follow_changes = async {
        loop {
            tokio::select! {
                Ok(()) = authority.changed() => {}
                Ok(()) = sidecar_settings.exclusions.changed() => {}
                Ok(()) = sidecar_settings.floor.changed() => {}
                else => return,
            }
            let roots = authority.borrow_and_update().roots().to_pem();
            let exclusions = sidecar_settings.exclusions.borrow_and_update().clone();
            let floor = sidecar_settings.floor.borrow_and_update().clone();
            settings_sender.send_modify(|settings| {
                settings.roots = roots;
                settings.exclusions = exclusions;
                settings.floor = floor;
            });
        }
    };
    tokio::select! {
        outcome = serve_webhook_task => if let Err(error) = outcome {
            tracing::error!(%error, "cannot serve the webhook");
        },
        () = follow_changes => {}
        () = provision_gateways_task => {}
    }
}

/// Waits until a task alongside the control plane has ended, and returns the error. Never returns if there is
/// no such task.
pub(super) async fn wait_until_ended(cluster_tasks: &mut Option<ClusterTasks>) -> anyhow::Error {
    let Some(cluster_tasks) = cluster_tasks else { return std::future::pending().await };
    match cluster_tasks.tasks.join_next().await {
        Some(Ok(name)) => {
            anyhow::anyhow!("{name} ended unexpectedly; see the log")
        }
        Some(Err(error)) => anyhow::Error::from(error).context("a task of the control plane"),
        None => std::future::pending().await,
    }
}

async fn with_task_name(name: &'static str, task: impl Future<Output = ()>) -> &'static str {
    task.await;
    name
}

/// Forwards the first update, which [`wait_for_first_update`] has checked, and then all later updates.
async fn forward_updates(
    first_update: RegistryUpdate,
    mut updates: mpsc::Receiver<RegistryUpdate>,
    forward_sender: mpsc::Sender<RegistryUpdate>,
) {
    let mut next_update = Some(first_update);
    while let Some(update) = next_update {
        if forward_sender.send(update).await.is_err() {
            return;
        }
        next_update = updates.recv().await;
    }
}

/// Reviews tokens with the API server.
#[derive(Debug)]
struct ClusterTokenReviewer(TokenReviewer);

impl ClusterTokenReviewer {
    fn to_token_subject(pod_holder: review::PodHolder) -> TokenSubject {
        let review::PodHolder { workload, account, uid } = pod_holder;
        TokenSubject { workload, account, uid }
    }

    fn to_review_error(error: review::TokenReviewError) -> ReviewError {
        match error {
            review::TokenReviewError::Rejected(reason) => ReviewError::Rejected(reason),
            error => ReviewError::Unavailable(error.to_string()),
        }
    }
}

impl Reviewer for ClusterTokenReviewer {
    fn claimed_subject(
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
