//! Starts a control plane: opens its files and listeners, connects its components, and spawns its tasks. The program uses
//! and stops the running control plane through [`Control`].

mod start_error;

use std::collections::{BTreeSet, VecDeque};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use leno_discovery::{Budgets, ChangeId, EventQueue, OperatorSessions, event_queue};
use leno_identity::{Authority, AuthorityError, JoinBundle, RevocationFile, Roots, control_id};
use leno_model::{ServiceAccount, SidecarFacts, TrustDomain, Workload, WorkloadName};
use leno_outside::{Exporter, ResourceIdentity};
use leno_registry::{RegistryUpdate, RejectedDocument};
use leno_telemetry::LogLimits;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::admin::{self, AdminHandler, AdminQueries};
use crate::applications::Applications;
use crate::authority::{RevokedWorkloads, follow_files};
use crate::certify::{Certifier, JoinCredentials, open_join_credentials};
use crate::config::Config;
use crate::control_task::{ControlTask, EndedUnexpectedly, TaskMonitor};
use crate::data_directory::DataDirectory;
use crate::dial::DirectDialer;
use crate::explanation::ExplainRunner;
use crate::history::History;
use crate::invite::{Invitations, InviteError};
use crate::keys::{JwksFetcher, JwksFetches, KeyUpdate, key_sources_in_update};
use crate::mesh::Mesh;
use crate::metrics_exporter::MetricsExporter;
use crate::page::{Page, PageResources};
use crate::peers::{PeerAddresses, PeerStreamContext, Peers, follow_all};
use crate::presence::{Presence, StartupGrace};
use crate::publish::ConnectedProxies;
use crate::query_share::QueryShare;
use crate::replaced::{ReplacedRejections, ReplacedSidecars};
use crate::server::{ConnectionCounters, ProxyServer, VerifiedConnections, accept_connections};
use crate::server_credential::ServerCredential;
use crate::state_task::{
    AdminQuery, AdminResponse, ControlState, Inbox, QueueLengths, StateOutputs, run_state_task,
};
use crate::status::Status;
use crate::watch::{Diagnostics, MAX_UPDATES, follow_sources, requested_trust_domain};

pub use start_error::StartError;

/// A running control plane. Dropping it stops it at once; [`Control::shutdown`] notifies proxies.
#[derive(Debug)]
pub struct Control {
    listen_address: SocketAddr,
    page_address: Option<SocketAddr>,
    socket_path: PathBuf,
    trust_domain: TrustDomain,
    invitations: Arc<Invitations>,
    workloads: watch::Receiver<Arc<Vec<Workload>>>,
    registered_workloads: watch::Receiver<Arc<BTreeSet<WorkloadName>>>,
    status: watch::Receiver<Arc<Status>>,
    sidecar_facts: watch::Sender<Arc<SidecarFacts>>,
    reload: Arc<Notify>,
    queries: AdminQueries,
    applications: Applications,
    replaced_sidecars: watch::Receiver<Arc<ReplacedSidecars>>,
    stop: watch::Sender<bool>,
    task_monitor: TaskMonitor,
    tasks: JoinSet<()>,
}

impl Control {
    /// Reads the sources, opens the authority and the listeners, and starts to serve in tasks of the current
    /// runtime.
    ///
    /// # Errors
    /// [`StartError`] names the component that cannot start. Rejected documents are reported at `/rejected` and are
    /// not errors, unless they leave the mesh's enforcement undefined.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let (sender, updates) = mpsc::channel(MAX_UPDATES);
        let mut feed = UpdateFeed::from_updates(updates);
        let source_watch = follow_sources(config.sources.clone(), sender, Arc::clone(&feed.reload));
        feed.tasks.spawn(feed.task_monitor.clone().run(ControlTask::Watcher, source_watch));
        Self::start_with(config, feed).await
    }

    /// Like [`Control::start`], with updates from `updates` instead of `config.sources`. The first update is
    /// awaited, and determines the trust domain. When the sender is dropped, the current objects stay in use.
    ///
    /// # Errors
    /// Returns the errors of [`Control::start`].
    pub async fn start_with_updates(
        config: Config,
        updates: mpsc::Receiver<RegistryUpdate>,
    ) -> Result<Self, StartError> {
        Self::start_with(config, UpdateFeed::from_updates(updates)).await
    }

    async fn start_with(config: Config, feed: UpdateFeed) -> Result<Self, StartError> {
        let UpdateFeed { mut updates, tasks, reload, stop, task_monitor } = feed;
        let first_update = updates.recv().await.ok_or(StartError::Registry)?;
        let possible_mesh_configs: Vec<RejectedDocument> =
            first_update.possible_mesh_config_rejections().cloned().collect();
        if !possible_mesh_configs.is_empty() {
            return Err(StartError::MeshConfig(possible_mesh_configs));
        }
        let (trust_domain, now) = (requested_trust_domain(&first_update), SystemTime::now());
        let revoked_workloads = RevocationFile::in_directory(config.shared_directory())
            .read()
            .map_err(StartError::Revoked)?;
        let opened_authority = config
            .authority_source()
            .open_or_create(&trust_domain, now)?
            .restore_trusted_intermediates(&config.intermediates_file(), now)
            .map_err(AuthorityError::Io)?;
        let authority = watch::Sender::new(Arc::new(opened_authority));
        let join_credentials = Arc::new(
            open_join_credentials(config.shared_directory(), now).map_err(StartError::Tokens)?,
        );
        let listen_error = |cause| StartError::Listen(config.listen, cause);
        let listener = leno_listen::bind(config.listen).map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let socket_path = config.socket_path();
        let admin_listener = admin::open_socket(&socket_path)
            .await
            .map_err(|cause| StartError::Admin { path: socket_path, cause })?;
        let page = match config.page {
            Some(page_address) => Some(
                Page::open(page_address, &config.data)
                    .await
                    .map_err(|cause| StartError::Page(page_address, cause))?,
            ),
            None => None,
        };
        let mut jwks_fetcher =
            JwksFetcher::new(config.jwks_ca.clone(), config.key_access.clone(), random_number());
        let key_updates = jwks_fetcher.fetch_first(&key_sources_in_update(&first_update)).await;
        let server_credential =
            ServerCredential::new(authority.subscribe(), config.certificate_lifetime, now)?;
        let opened = OpenedResources {
            directory: DataDirectory::new(config.data.clone()),
            config,
            authority,
            join_credentials,
            revoked_workloads: watch::Sender::new(revoked_workloads),
            listener,
            address,
            admin_listener,
            page,
            server_credential,
            jwks_fetcher,
            reload,
            stop,
            task_monitor,
        };
        Ok(opened.spawn_tasks(tasks, updates, first_update, key_updates))
    }

    /// Returns the listen address for proxies.
    #[must_use]
    pub fn listen_address(&self) -> SocketAddr {
        self.listen_address
    }

    /// Returns the address of the browser page, if it has one.
    #[must_use]
    pub fn page_address(&self) -> Option<SocketAddr> {
        self.page_address
    }

    /// Returns the path of the admin socket, for [`admin::query_admin`].
    #[must_use]
    pub fn socket_path(&self) -> &std::path::Path {
        &self.socket_path
    }

    /// Returns the trust domain of the mesh, fixed while it runs.
    #[must_use]
    pub fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    /// Returns the query channel of the state task.
    pub(crate) fn queries(&self) -> AdminQueries {
        self.queries.clone()
    }

    /// Returns a receiver of the current authority.
    #[must_use]
    pub fn watch_authority(&self) -> watch::Receiver<Arc<Authority>> {
        self.invitations.authority.clone()
    }

    /// Returns the roots that members use to verify each other.
    #[must_use]
    pub fn roots(&self) -> Roots {
        self.invitations.authority.borrow().roots()
    }

    /// Creates a join bundle for a new proxy of this workload, with a new one-time token.
    ///
    /// # Errors
    /// Returns [`InviteError`] if the workload does not exist, or the token cannot be stored.
    pub fn mint_bundle(&self, workload: &WorkloadName) -> Result<JoinBundle, InviteError> {
        self.invitations.create_bundle(workload, None, SystemTime::now())
    }

    /// Returns a receiver of all workloads, in order of their names.
    #[must_use]
    pub fn watch_workloads(&self) -> watch::Receiver<Arc<Vec<Workload>>> {
        self.workloads.clone()
    }

    /// Returns a receiver of the status. It is not notified if only the ages of changes differ.
    #[must_use]
    pub fn watch_status(&self) -> watch::Receiver<Arc<Status>> {
        self.status.clone()
    }

    /// Returns a receiver of facts about sidecars.
    #[must_use]
    pub fn sidecar_facts(&self) -> watch::Receiver<Arc<SidecarFacts>> {
        self.sidecar_facts.subscribe()
    }

    /// Returns the table in which this machine's supervisor reports its applications.
    #[must_use]
    pub fn applications(&self) -> &Applications {
        &self.applications
    }

    /// Returns a receiver of workloads without a connected sidecar for which a replaced sidecar tries to connect. The
    /// replaced sidecar may join again with a new token.
    #[must_use]
    pub fn watch_replaced(&self) -> watch::Receiver<Arc<ReplacedSidecars>> {
        self.replaced_sidecars.clone()
    }

    /// Waits until the sidecar of a workload is connected and has opened every port.
    ///
    /// # Errors
    /// Returns [`Stopped`] if the control plane stops first.
    pub async fn wait_until_registered(&self, workload: &WorkloadName) -> Result<(), Stopped> {
        let mut registered_workloads = self.registered_workloads.clone();
        let registered_workload =
            registered_workloads.wait_for(|names| names.contains(workload)).await;
        registered_workload.map(drop).map_err(|_| Stopped)
    }

    /// Reads the files of the registries again now, even if they seem unchanged.
    pub fn reload_files(&self) {
        self.reload.notify_one();
    }

    /// Waits until a task ends unexpectedly, and returns its name; pends forever otherwise. The control plane
    /// is then incomplete: shut it down and restart it.
    pub async fn wait_until_ended(&self) -> EndedUnexpectedly {
        self.task_monitor.wait_until_ended().await
    }

    /// Notifies every proxy, waits for them for a bounded time, and stops. Proxies keep their last good
    /// configuration.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

/// The control plane has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the control plane has ended")]
pub struct Stopped;

/// The source of registry updates, and the components that must exist before the first update arrives.
struct UpdateFeed {
    updates: mpsc::Receiver<RegistryUpdate>,
    tasks: JoinSet<()>,
    reload: Arc<Notify>,
    stop: watch::Sender<bool>,
    task_monitor: TaskMonitor,
}

impl UpdateFeed {
    fn from_updates(updates: mpsc::Receiver<RegistryUpdate>) -> Self {
        let stop = watch::Sender::new(false);
        let task_monitor = TaskMonitor::new(stop.clone());
        Self { updates, tasks: JoinSet::new(), reload: Arc::default(), stop, task_monitor }
    }
}

/// The resources that were opened in the fallible steps of the start.
struct OpenedResources {
    config: Config,
    authority: watch::Sender<Arc<Authority>>,
    join_credentials: Arc<JoinCredentials>,
    revoked_workloads: watch::Sender<RevokedWorkloads>,
    /// The listener for proxies and other control planes, and its address.
    listener: TcpListener,
    address: SocketAddr,
    admin_listener: UnixListener,
    page: Option<Page>,
    directory: Arc<DataDirectory>,
    server_credential: ServerCredential,
    jwks_fetcher: JwksFetcher,
    reload: Arc<Notify>,
    stop: watch::Sender<bool>,
    task_monitor: TaskMonitor,
}

impl OpenedResources {
    /// Creates the context of the streams to other control planes.
    fn peer_stream_context(
        &self,
        events: EventQueue,
        addresses: PeerAddresses,
    ) -> PeerStreamContext {
        let (tls_configs, stop) =
            (self.server_credential.watch_client_config(), self.stop.subscribe());
        PeerStreamContext { tls_configs, events, addresses, stop }
    }

    /// Creates the state, spawns the tasks, and returns the running control plane.
    fn spawn_tasks(
        mut self,
        mut tasks: JoinSet<()>,
        updates: mpsc::Receiver<RegistryUpdate>,
        first_update: RegistryUpdate,
        key_updates: Vec<KeyUpdate>,
    ) -> Control {
        // The queues to the state task, the state, and the values that other tasks watch.
        let (events, proxy_events) = event_queue(self.config.limits.connections + MAX_PEER_STREAMS);
        let (queries, query_receiver) = mpsc::channel(MAX_QUERIES);
        let (key_update_sender, key_update_receiver) = mpsc::channel(MAX_KEY_UPDATES);
        let (final_query_sender, final_query_receiver) = oneshot::channel();
        let page_address = self.page.as_ref().map(Page::address);
        let state = self.create_control_state(first_update, key_updates);
        let (applications, replaced_sidecars) =
            (state.applications.clone(), state.replaced_rejections.subscribe());
        let (workloads, registered_workloads) =
            (state.outputs.workloads.subscribe(), state.outputs.registered_workloads.subscribe());
        let (status, sidecar_facts) =
            (state.outputs.status.subscribe(), state.outputs.sidecar_facts.clone());
        // The servers and clients of the state task.
        let metrics_exporter = self.metrics_exporter(&state, queries.clone(), final_query_sender);
        let invitations = Arc::new(self.create_invitations(workloads.clone()));
        let server = Arc::new(self.proxy_server(&state, events));
        let peer_streams =
            self.peer_stream_context(server.events.clone(), state.peers.peer_addresses());
        let explain_runner = ExplainRunner::with_explainer(self.config.explainer.clone());
        let operators = server.operators.clone();
        self.start_page(&mut tasks, &queries, explain_runner.clone(), operators.clone());
        let admin = self.admin_handler(&queries, &invitations, explain_runner, operators);
        let inbox = Inbox {
            updates,
            events: proxy_events,
            queries: query_receiver,
            authority: self.authority.subscribe(),
            revoked: self.revoked_workloads.subscribe(),
            key_updates: key_update_receiver,
            final_query: final_query_receiver,
            stop: self.stop.subscribe(),
        };
        let (key_sources, socket_path) =
            (state.outputs.key_sources.subscribe(), self.config.socket_path());
        // The tasks.
        let (stop, monitor) = (|| self.stop.subscribe(), || self.task_monitor.clone());
        tasks.spawn(monitor().run(ControlTask::State, run_state_task(state, inbox)));
        tasks.spawn(monitor().run(ControlTask::Push, metrics_exporter.export_metrics(stop())));
        let (peers, discovered) =
            (self.other_control_planes(), self.config.discovered_peers.clone());
        tasks.spawn(monitor().run(ControlTask::Peers, follow_all(peers, discovered, peer_streams)));
        let accept_loop =
            accept_connections(self.listener, server, stop(), self.config.times.drain_timeout);
        tasks.spawn(monitor().run(ControlTask::Listener, accept_loop));
        let admin_loop = admin::serve(self.admin_listener, socket_path.clone(), admin, stop());
        tasks.spawn(monitor().run(ControlTask::Admin, admin_loop));
        let renewal = self.server_credential.renew_until_closed();
        tasks.spawn(monitor().run(ControlTask::Certificate, renewal));
        let fetch_loop = self.jwks_fetcher.fetch_until_closed(key_sources, key_update_sender);
        tasks.spawn(monitor().run(ControlTask::Keys, run_until_stopped(fetch_loop, stop())));
        let trust_domain = self.authority.borrow().trust_domain().clone();
        let revoked = self.revoked_workloads;
        let file_watch = follow_files(&self.config, self.authority, revoked, self.directory);
        tasks.spawn(monitor().run(ControlTask::Authority, run_until_stopped(file_watch, stop())));
        Control {
            listen_address: self.address,
            page_address,
            socket_path,
            trust_domain,
            invitations,
            workloads,
            registered_workloads,
            status,
            sidecar_facts,
            reload: self.reload,
            queries,
            applications,
            replaced_sidecars,
            stop: self.stop,
            task_monitor: self.task_monitor,
            tasks,
        }
    }

    /// Creates the server for proxies and other control planes.
    fn proxy_server(&self, state: &ControlState, events: EventQueue) -> ProxyServer {
        ProxyServer {
            limits: self.config.limits,
            tls_configs: self.server_credential.watch_server_config(),
            events,
            budgets: Budgets::default(),
            verified_connections: Arc::clone(&state.verified_connections),
            connection_counters: Arc::clone(&state.connection_counters),
            local_sidecars: state.outputs.local_sidecars.clone(),
            trust_domain: self.trust_domain(),
            report_interval: self.config.report_interval,
            operators: OperatorSessions::new(random_number()),
        }
    }

    /// Creates the metrics exporter.
    fn metrics_exporter(
        &self,
        state: &ControlState,
        queries: AdminQueries,
        final_query: oneshot::Sender<(AdminQuery, oneshot::Sender<AdminResponse>)>,
    ) -> MetricsExporter {
        MetricsExporter {
            resource_identity: self.resource_identity(),
            exporter: Exporter::new(DirectDialer, self.config.jwks_ca.clone()),
            connection_counters: Arc::clone(&state.connection_counters),
            queries,
            final_query,
            destination: state.outputs.metrics_destination.subscribe(),
            seed: random_number(),
        }
    }

    /// Returns the resource attributes that identify the control plane to collectors.
    fn resource_identity(&self) -> ResourceIdentity {
        let ServiceAccount { namespace, name } = control_id(&self.trust_domain()).account;
        let (namespace, instance) = match &self.config.pod {
            Some(pod) => (pod.namespace.clone(), pod.to_string()),
            None => (namespace, format!("{}:{}", machine_name(), self.address.port())),
        };
        ResourceIdentity { service: name.to_string(), namespace: namespace.to_string(), instance }
    }

    /// Creates the request handler of the admin socket.
    fn admin_handler(
        &self,
        queries: &AdminQueries,
        invitations: &Arc<Invitations>,
        explain_runner: ExplainRunner,
        operators: OperatorSessions,
    ) -> Arc<AdminHandler> {
        Arc::new(AdminHandler {
            queries: queries.clone(),
            directory: Arc::clone(&self.directory),
            invitations: Arc::clone(invitations),
            reload: Arc::clone(&self.reload),
            operators,
            explain_runner,
            query_share: QueryShare::new(admin::QUERY_PAUSE_FACTOR),
        })
    }

    /// Starts the browser page, if configured.
    fn start_page(
        &mut self,
        tasks: &mut JoinSet<()>,
        queries: &AdminQueries,
        explain_runner: ExplainRunner,
        operators: OperatorSessions,
    ) {
        let Some(page) = self.page.take() else { return };
        let directory = Arc::clone(&self.directory);
        let resources = PageResources { explain_runner, taps: operators.taps, directory };
        let page_task = page.serve(queries.clone(), resources, self.stop.subscribe());
        tasks.spawn(self.task_monitor.clone().run(ControlTask::Page, page_task));
    }

    fn create_control_state(
        &self,
        first_update: RegistryUpdate,
        key_updates: Vec<KeyUpdate>,
    ) -> ControlState {
        let now = Instant::now();
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Proxies store the number of their last change on disk, so the numbers must continue after those of the
        // previous control plane.
        let first_change = u64::try_from(since_epoch.as_micros()).unwrap_or_default();
        let times = self.config.times;
        let lifetime = self.config.certificate_lifetime;
        let (authority, join_credentials) =
            (self.authority.subscribe(), Arc::clone(&self.join_credentials));
        let ca_generation = self.authority.borrow().ca_generation();
        ControlState {
            times,
            limits: self.config.limits,
            mesh: Mesh::default(),
            connected_proxies: ConnectedProxies::new(times, ChangeId(first_change)),
            presence: Presence::default(),
            startup_grace: StartupGrace::new(now, times.startup_grace),
            certifier: Certifier::new(authority, join_credentials, lifetime)
                .with_reviewer(self.config.reviewer.clone()),
            waiting_joins: Vec::new(),
            diagnostics: Diagnostics::default(),
            jwks_fetches: JwksFetches::new(self.config.key_access.shows_failure_causes),
            verified_connections: Arc::<VerifiedConnections>::default(),
            connection_counters: Arc::<ConnectionCounters>::default(),
            outputs: StateOutputs::default(),
            peers: Peers::default(),
            last_stream_check: now,
            queues: QueueLengths::default(),
            history: History::default(),
            report_interval: self.config.report_interval,
            history_start: now,
            unfinished_responses: VecDeque::new(),
            log_limits: LogLimits::default(),
            page_url: self.page.as_ref().map(Page::url),
            live_url: self.page.as_ref().map(Page::live_url),
            applications: Applications::default(),
            replaced_rejections: ReplacedRejections::default(),
            supervised: self.config.supervised,
            kubernetes: self.config.kubernetes,
        }
        .with_first_update(
            first_update,
            key_updates,
            &self.trust_domain(),
            ca_generation,
            self.revoked_workloads.borrow().clone(),
        )
    }

    fn trust_domain(&self) -> TrustDomain {
        self.authority.borrow().trust_domain().clone()
    }

    /// Returns the configured addresses of control planes without this one's own addresses.
    fn other_control_planes(&self) -> Vec<SocketAddr> {
        let own_addresses = [Some(self.address), Some(self.config.listen), self.config.advertise];
        let other_addresses =
            self.config.peers.iter().filter(|peer| !own_addresses.contains(&Some(**peer)));
        other_addresses.copied().collect()
    }

    fn create_invitations(&self, workloads: watch::Receiver<Arc<Vec<Workload>>>) -> Invitations {
        let listen_address = Some(self.address).filter(|address| !address.ip().is_unspecified());
        Invitations {
            tokens: Arc::clone(&self.join_credentials.tokens),
            authority: self.authority.subscribe(),
            trust_domain: self.trust_domain(),
            control_addresses: self
                .config
                .advertise
                .or(listen_address)
                .into_iter()
                .chain(self.other_control_planes())
                .collect(),
            token_lifetime: self.config.token_lifetime,
            workloads,
        }
    }
}

/// Returns a random number from the system, as for hash map keys.
fn random_number() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Returns the host name of the machine; `localhost` if it cannot be read.
fn machine_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| "localhost".to_owned(), |name| name.trim().to_owned())
}

/// Runs `work` until it completes or the control plane shuts down.
async fn run_until_stopped(work: impl Future<Output = ()>, mut stop: watch::Receiver<bool>) {
    tokio::select! {
        () = work => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

/// Maximum streams to other control planes. Like connections, each has a reserved slot in the event queue, so
/// none waits for one.
const MAX_PEER_STREAMS: usize = 1024;

/// Maximum queued operator queries to the state task.
const MAX_QUERIES: usize = 16;

/// Maximum queued JWKS updates to the state task; fetches wait for a slot.
const MAX_KEY_UPDATES: usize = 16;
