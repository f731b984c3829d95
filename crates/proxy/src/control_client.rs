//! Joins the mesh, follows one control plane after another, and applies and stores the configuration that it sends.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use leno_discovery::condition::kind;
use leno_discovery::{
    ConfigUpdate, DiscoveryError, Hello, InboundListener, JoinError, ProxyCondition, ProxyReport,
    ProxyRequest, Query, ResourceKey, ResourceRejection, Subscriber, TrafficReport,
};
use leno_identity::{
    Credential, PrivateKey, TlsError, client_config, control_id, join_client_config,
};
use leno_model::{ObjectKey, Protocol, ServiceName, Tap};
use leno_telemetry::{Count, Level, MetricsShard, Telemetry};
use leno_traffic::{InvalidPattern, backoff};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::StartError;
use crate::config::Config;
use crate::config_store::ConfigStore;
use crate::control_address::{ControlAddress, ReachedAddresses};
use crate::control_outage::{ControlOutage, FatalFailure, Serving};
use crate::dial::dial_address;
use crate::join_credential::{JoinCredential, JoinCredentialError};
use crate::renew;
use crate::snapshot_store::SnapshotStore;
use crate::state::StateDir;
use crate::subscriptions::{SubscriptionTable, Subscriptions};
use crate::traffic_report::TrafficReporter;

/// The shared state of the tasks of the control thread.
pub(crate) struct ControlClient {
    pub(crate) config: Arc<Config>,
    pub(crate) config_store: Arc<ConfigStore>,
    pub(crate) state_dir: StateDir,
    /// The addresses at which each control plane was last reached.
    pub(crate) reached_addresses: ReachedAddresses,
    pub(crate) snapshot_store: SnapshotStore,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) metrics: MetricsShard,
    /// The traffic counts reported to the control plane.
    pub(crate) traffic_reporter: RefCell<TrafficReporter>,
    /// The subscribed services: requested and not idle.
    pub(crate) subscribed_services: RefCell<Subscriptions<ServiceName>>,
    /// The subscribed address entries.
    pub(crate) subscribed_addresses: RefCell<Subscriptions<IpAddr>>,
    /// The subscribed DNS names.
    pub(crate) subscribed_names: RefCell<Subscriptions<ServiceName>>,
    /// The tables in which entries were evicted since the last sweep, the periodic removal of unused subscriptions by
    /// [`run_subscriptions`](crate::control_loop::run_subscriptions).
    recently_evicted: RefCell<BTreeSet<SubscriptionTable>>,
    /// True while the stream to a control plane is open.
    pub(crate) is_connected: Cell<bool>,
    /// The current inbound listeners; each hello and status report contains them.
    pub(crate) inbound_listeners: RefCell<Vec<InboundListener>>,
    /// The addresses of listeners for tools or for the whole application, by listener name.
    pub(crate) reported_addresses: RefCell<BTreeMap<String, SocketAddr>>,
    /// True once the proxy shuts down: it no longer reports its listeners.
    pub(crate) is_withdrawn: Cell<bool>,
    /// The address of the admin endpoint, which the hello reports.
    pub(crate) admin_address: SocketAddr,
    /// The queue of operators' queries for the admin task; `None` if queries are not supported.
    query_queue: Option<mpsc::Sender<Query>>,
    /// The current failures of control planes; decides which of them are logged.
    pub(crate) outage: ControlOutage,
    /// The failure that ends the proxy, if there is one.
    pub(crate) fatal_failure: FatalFailure,
    /// A random number for choices that must differ between proxies.
    pub(crate) seed: u64,
}

impl ControlClient {
    /// Creates the state before the first configuration; `admin_address` is the address of the admin endpoint.
    pub(crate) fn new(
        config: Arc<Config>,
        telemetry: Arc<Telemetry>,
        config_store: Arc<ConfigStore>,
        state_dir: StateDir,
        admin_address: SocketAddr,
        seed: u64,
    ) -> Self {
        Self {
            outage: ControlOutage::new(config.control.len()),
            config,
            config_store,
            reached_addresses: ReachedAddresses::new(state_dir.clone()),
            state_dir,
            snapshot_store: SnapshotStore::default(),
            metrics: telemetry.new_shard(),
            traffic_reporter: RefCell::new(TrafficReporter::from_telemetry(telemetry.clone())),
            telemetry,
            subscribed_services: RefCell::default(),
            subscribed_addresses: RefCell::default(),
            subscribed_names: RefCell::default(),
            recently_evicted: RefCell::default(),
            is_connected: Cell::new(false),
            inbound_listeners: RefCell::default(),
            reported_addresses: RefCell::default(),
            is_withdrawn: Cell::new(false),
            admin_address,
            query_queue: None,
            fatal_failure: FatalFailure::default(),
            seed,
        }
    }

    /// Sets the queue for queries of operators, which another task answers.
    pub(crate) fn with_queries(mut self, query_queue: mpsc::Sender<Query>) -> Self {
        self.query_queue = Some(query_queue);
        self
    }

    /// Returns the state reported to operators.
    pub(crate) fn status_report(&self) -> ProxyReport {
        ProxyReport {
            conditions: self.current_conditions(),
            addresses: self.reported_addresses.borrow().clone(),
        }
    }

    /// Returns the current conditions. A detection delay ends when the service declares a protocol.
    fn current_conditions(&self) -> Vec<ProxyCondition> {
        let mut conditions = self.config_store.conditions.active_conditions(Instant::now());
        let config = self.config_store.current_config();
        let is_detected = |subject: &str| {
            let (service, port) = subject.rsplit_once(':')?;
            let service = config.as_ref()?.compiled.service(&service.parse().ok()?)?;
            Some(service.ports.get(&port.parse().ok()?)?.protocol == Protocol::Detect)
        };
        conditions.retain(|condition| {
            condition.kind != kind::DETECTION_DELAYED
                || is_detected(&condition.subject) == Some(true)
        });
        conditions
    }

    /// Stores the addresses of listeners for tools and for the whole application. Listeners of single services
    /// or ports are not reported.
    pub(crate) fn set_reported_addresses(&self, open_listeners: &BTreeMap<String, SocketAddr>) {
        let is_reported = |name: &str| {
            !["listener-", "inbound-", "own-", "gateway-"].iter().any(|kind| name.starts_with(kind))
        };
        let reported_listeners = open_listeners.iter().filter(|(name, _)| is_reported(name));
        let addresses = reported_listeners.map(|(name, address)| (name.clone(), *address));
        let health = self.config.health.map(|address| ("health".to_owned(), address));
        self.reported_addresses.replace(addresses.chain(health).collect());
    }

    /// Counts evictions, and reports the table as a condition until no entry was evicted between two sweeps.
    pub(crate) fn record_evictions(&self, table: SubscriptionTable, count: usize) {
        if count == 0 {
            return;
        }
        self.metrics.add(table.eviction_counter(), count as u64);
        self.config_store.conditions.set_condition(
            kind::TABLE_FULL,
            table.subject(),
            table.condition_reason(),
        );
        if self.recently_evicted.borrow_mut().insert(table) {
            let (table, reason) = (table.subject(), table.condition_reason());
            tracing::warn!(table, reason, "a table is full: its oldest entries are evicted");
        }
    }

    /// Clears the conditions of tables without evictions since the last sweep.
    pub(crate) fn clear_eviction_conditions(&self) {
        let evicted = self.recently_evicted.take();
        let conditions =
            evicted.iter().map(|table| (table.subject().to_owned(), table.condition_reason()));
        self.config_store.conditions.replace_kind(kind::TABLE_FULL, conditions);
    }

    /// Reports the number of recently dropped log lines as a condition; 0 clears the condition.
    pub(crate) fn report_dropped_lines(&self, lines: u64) {
        let (kind, subject) = (kind::LOG_LINES_DROPPED, "log");
        match lines {
            0 => self.config_store.conditions.clear_condition(kind, subject),
            _ => {
                // `leno status` puts "its sidecar drops log" before this reason.
                let reason = format!("lines that its output did not accept: {lines}");
                self.config_store.conditions.set_condition(kind, subject, reason);
            }
        }
    }

    /// Reports `problem`, the last error of the state directory, as a condition; `None` clears the condition.
    /// Also retries to write a certificate that is not on disk.
    pub(crate) fn report_state_problem(&self, problem: Option<String>) {
        if self.state_dir.lacks_certificate()
            && let Some(credential) = self.config_store.credential()
        {
            self.state_dir.record_certificate_write(&credential.save(self.state_dir.path()));
        }
        let (kind, directory) =
            (kind::STATE_UNWRITABLE, self.state_dir.path().display().to_string());
        match problem {
            Some(problem) => self.config_store.conditions.set_condition(kind, &directory, problem),
            None => self.config_store.conditions.clear_condition(kind, &directory),
        }
    }
}

/// Follows one control plane after another until the proxy ends. Returns early if no control plane is
/// configured, or after a fatal failure.
pub(crate) async fn follow_control(
    control_client: Rc<ControlClient>,
    mut request_receiver: mpsc::Receiver<ProxyRequest>,
) {
    let mut subscriber = apply_stored_config(&control_client);
    let mut failed_attempts = 0_u32;
    // Sidecars spread over the control planes: each starts with a random control plane, and stays connected to
    // it while it is available.
    let mut control_planes = control_client.config.control.clone();
    let first_position =
        usize::try_from(control_client.seed % control_planes.len().max(1) as u64).unwrap_or(0);
    control_planes.rotate_left(first_position);
    loop {
        for (position, control) in control_planes.iter().enumerate() {
            let start_time = Instant::now();
            let error =
                follow_stream(&control_client, control, &mut subscriber, &mut request_receiver)
                    .await;
            control_client.is_connected.set(false);
            control_client.telemetry.set_level(Level::ControlConnected, 0);
            let was_stable =
                matches!(error, ControlError::Stream(_)) && start_time.elapsed() > STABLE_AGE;
            if was_stable {
                control_client.outage.record_stable();
            }
            let serving = match control_client.config_store.current_config() {
                Some(_) => Serving::Configuration,
                None => Serving::NoConfiguration,
            };
            if control_client.outage.record_failure(position, control, &error, serving) {
                return control_client
                    .fatal_failure
                    .report_cause(StartError::Rejected(error.into()));
            }
            failed_attempts = if was_stable { 0 } else { failed_attempts.saturating_add(1) };
            let failed_connection =
                if was_stable { FailedConnection::Stream } else { FailedConnection::Attempt };
            // The rotation gives each attempt another random number.
            let random = control_client.seed.rotate_left(failed_attempts);
            tokio::time::sleep(retry_delay(
                failed_connection,
                failed_attempts,
                control_planes.len(),
                random,
            ))
            .await;
        }
        if control_planes.is_empty() {
            return tracing::warn!(
                "no control plane is configured; using the stored configuration"
            );
        }
    }
}

/// Applies the snapshot that the previous run stored, and subscribes to its resources. Returns the subscriber that
/// continues from it, or an empty one if the snapshot is missing or unusable.
fn apply_stored_config(control_client: &ControlClient) -> Subscriber {
    let subscriber = control_client.state_dir.stored_subscriber();
    let Some(update) = subscriber.current_update() else { return subscriber };
    if update.snapshot.config.workload != control_client.config.workload {
        tracing::warn!("the stored configuration is of another workload; waiting for a new one");
        return Subscriber::new();
    }
    if let Err(error) = control_client.config_store.apply_update(update) {
        tracing::warn!(%error, "the stored configuration is unusable; waiting for a new one");
        return Subscriber::new();
    }
    control_client.snapshot_store.set_stored(update.clone());
    // Services that were used before are likely to be used again; unused ones become idle and are dropped.
    // Names without a service are not subscribed: most are mistyped, and a new query requests them again.
    control_client
        .subscribed_services
        .borrow_mut()
        .extend(update.snapshot.services.keys().cloned());
    control_client
        .subscribed_addresses
        .borrow_mut()
        .extend(update.snapshot.addresses.keys().copied());
    control_client.subscribed_names.borrow_mut().extend(update.snapshot.names.keys().cloned());
    subscriber
}

/// Connects to a control plane, and serves the stream until it ends. Returns the cause of the end.
async fn follow_stream(
    control_client: &Rc<ControlClient>,
    control: &ControlAddress,
    subscriber: &mut Subscriber,
    request_receiver: &mut mpsc::Receiver<ProxyRequest>,
) -> ControlError {
    let credential = match ensure_credential(control_client, control).await {
        Ok(credential) => credential,
        Err(error) => return error,
    };
    let stream = match connect_control(control_client, control, &credential).await {
        Ok(stream) => stream,
        Err(error) => return error,
    };
    control_client.is_connected.set(true);
    control_client.outage.record_connected(control);
    control_client.telemetry.set_level(Level::ControlConnected, 1);
    control_client.metrics.add(Count::ControlConnects, 1);
    let hello = Hello {
        workload: control_client.config.workload.clone(),
        listeners: control_client.inbound_listeners.borrow().clone(),
        admin: Some(control_client.admin_address),
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        services: control_client.subscribed_services.borrow().keys().cloned().collect(),
        addresses: control_client.subscribed_addresses.borrow().keys().copied().collect(),
        dns_names: control_client.subscribed_names.borrow().keys().cloned().collect(),
        session: session_number(SystemTime::now()),
        ca_generation: credential.ca_generation(),
        process: control_client.seed,
        report: control_client.status_report(),
        answers_queries: control_client.query_queue.is_some(),
    };
    let mut handler = StreamHandler { control_client };
    control_client.traffic_reporter.borrow_mut().start_stream(Instant::now());
    let stream_end = leno_discovery::follow_control_plane(
        stream,
        hello,
        subscriber,
        request_receiver,
        &mut handler,
    );
    let error = stream_end.await;
    // Taps end with the stream; those still active are requested again.
    control_client.config_store.observability.replace_taps(&[]);
    ControlError::Stream(error)
}

/// The handler of one stream: receives configuration, sends traffic counts and tapped requests.
struct StreamHandler<'a> {
    control_client: &'a ControlClient,
}

impl leno_discovery::UpdateHandler for StreamHandler<'_> {
    fn apply_update(&mut self, update: ConfigUpdate) -> Result<(), Vec<ResourceRejection>> {
        apply_update(self.control_client, update)
    }

    fn take_traffic(&mut self) -> Option<TrafficReport> {
        self.control_client.traffic_reporter.borrow_mut().take_report(Instant::now())
    }

    fn set_taps(&mut self, taps: &[Tap]) {
        self.control_client.config_store.observability.replace_taps(taps);
    }

    fn handle_query(&mut self, query: Query) {
        let path = query.path.clone();
        let queue_result =
            self.control_client.query_queue.as_ref().map(|queue| queue.try_send(query));
        if !matches!(queue_result, Some(Ok(()))) {
            tracing::debug!(path, "dropping a query of the control plane");
        }
    }
}

/// Connects to a control plane with mutual TLS.
async fn connect_control(
    control_client: &ControlClient,
    control: &ControlAddress,
    credential: &Credential,
) -> Result<TlsStream<TcpStream>, ControlError> {
    let expected_id = control_id(&control_client.config.trust_domain);
    let config = client_config(credential, &expected_id, &[leno_discovery::ALPN])?;
    connect_tls(control_client, control, config).await
}

/// Connects over TCP and TLS within the handshake timeout, and records the address that was reached.
async fn connect_tls(
    control_client: &ControlClient,
    control: &ControlAddress,
    config: Arc<ClientConfig>,
) -> Result<TlsStream<TcpStream>, ControlError> {
    let connect = async {
        let tcp = connect_tcp(control_client, control).await?;
        let address = tcp.peer_addr()?;
        let name = ServerName::IpAddress(address.ip().into());
        let tls = TlsConnector::from(config).connect(name, tcp).await?;
        // The certificate proves that this is a control plane.
        control_client.reached_addresses.record_reached(control, address);
        Ok::<_, std::io::Error>(tls)
    };
    let max_wait = control_client.config.limits.handshake_timeout;
    Ok(tokio::time::timeout(max_wait, connect).await.map_err(|_| ControlError::Timeout)??)
}

/// Connects over TCP to the first address of a control plane that accepts.
async fn connect_tcp(
    control_client: &ControlClient,
    control: &ControlAddress,
) -> std::io::Result<TcpStream> {
    let mut last_error =
        std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    for address in control_client.reached_addresses.find_addresses(control).await? {
        let dialing = dial_address(address, &control_client.config.interception);
        match tokio::time::timeout(control_client.config.limits.connect_timeout, dialing).await {
            Ok(Ok(tcp)) => return Ok(tcp),
            Ok(Err(error)) => last_error = error,
            Err(_) => last_error = std::io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last_error)
}

/// Returns the current credential. Without a valid certificate, the proxy first joins the mesh with its token.
pub(crate) async fn ensure_credential(
    control_client: &ControlClient,
    control: &ControlAddress,
) -> Result<Arc<Credential>, ControlError> {
    let now = SystemTime::now();
    if let Some(credential) =
        control_client.config_store.credential().filter(|credential| !credential.is_expired(now))
    {
        return Ok(credential);
    }
    let join_credential = JoinCredential::read(&control_client.config)?;
    let expected_id = control_id(&join_credential.trust_domain);
    let config =
        join_client_config(&join_credential.roots, &expected_id, &[leno_discovery::JOIN_ALPN])?;
    let key = PrivateKey::generate();
    let is_one_time = control_client.config.account_token.is_none();
    let stream = connect_tls(control_client, control, config)
        .await
        .map_err(|error| error.into_join_error(is_one_time))?;
    let workload = &control_client.config.workload;
    let issued =
        leno_discovery::join(stream, &join_credential.token, workload, &key.certificate_request())
            .await?;
    let credential = renew::accept_issued(control_client, key, issued)?;
    join_credential.remove_token();
    tracing::info!(id = %credential.id(), "joined the mesh");
    Ok(credential)
}

/// Applies an update, or returns the resources that cannot be applied.
fn apply_update(
    control_client: &ControlClient,
    update: ConfigUpdate,
) -> Result<(), Vec<ResourceRejection>> {
    if let Err(error) = control_client.config_store.apply_update(&update) {
        control_client.metrics.add(Count::ConfigUpdatesRejected, 1);
        return Err(rejected_resources(&update, &error));
    }
    control_client.metrics.add(Count::ConfigUpdatesApplied, 1);
    control_client
        .telemetry
        .set_level(Level::ConfigServices, update.snapshot.services.len() as u64);
    control_client.snapshot_store.queue_snapshot(update);
    Ok(())
}

/// Returns the resources to reject for a pattern that cannot be compiled: the services whose routes contain it,
/// or the workload configuration.
fn rejected_resources(update: &ConfigUpdate, error: &InvalidPattern) -> Vec<ResourceRejection> {
    let Some(ObjectKey::HttpRoute(route) | ObjectKey::GrpcRoute(route)) = error.object.as_deref()
    else {
        return vec![ResourceRejection::new(ResourceKey::Workload, error.to_string())];
    };
    let services = update.snapshot.services.values();
    let has_route = |service: &&Arc<leno_model::ServiceConfig>| {
        service.ports.values().any(|port| port.rules.iter().any(|rule| rule.route == *route))
    };
    services
        .filter(has_route)
        .map(|service| {
            ResourceRejection::new(ResourceKey::Service(service.name.clone()), error.to_string())
        })
        .collect()
}

/// Returns the session number of a stream: microseconds since the Unix epoch. The number increases with each
/// stream, also over restarts, unless the clock is set back.
fn session_number(now: SystemTime) -> u64 {
    let elapsed = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the pause before the next attempt. The backoff increases once all configured control planes have
/// failed. Proxies that lost their streams at the same time spread their attempts over [`RECONNECT_SPREAD`];
/// they serve their current configuration meanwhile.
fn retry_delay(
    failed_connection: FailedConnection,
    failed_attempts: u32,
    control_plane_count: usize,
    random: u64,
) -> Duration {
    match failed_connection {
        FailedConnection::Stream => {
            // Divides by 2^64: the delay is a random fraction of the spread.
            let delay_ns = (u128::from(random) * RECONNECT_SPREAD.as_nanos()) >> 64;
            Duration::from_nanos(u64::try_from(delay_ns).unwrap_or(u64::MAX))
        }
        FailedConnection::Attempt => {
            let control_plane_count = u32::try_from(control_plane_count.max(1)).unwrap_or(u32::MAX);
            let completed_rounds = failed_attempts.saturating_sub(1) / control_plane_count;
            backoff::backoff_delay(completed_rounds + 1, random).min(MAX_RECONNECT_DELAY)
        }
    }
}

/// The kind of connection that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FailedConnection {
    /// An established stream.
    Stream,
    /// A connection attempt.
    Attempt,
}

/// The cause of the end of a stream, or of a failed attempt.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    #[error("it cannot be reached: {0}")]
    Io(#[from] std::io::Error),
    #[error(
        "{cause}: the token is for another mesh, or another server uses the address of the control plane"
    )]
    Untrusted {
        cause: std::io::Error,
        /// True for a one-time token, which cannot change by itself.
        is_final: bool,
    },
    #[error("it did not respond in time")]
    Timeout,
    #[error("cannot configure TLS: {0}")]
    Tls(#[from] TlsError),
    #[error(transparent)]
    JoinCredential(#[from] JoinCredentialError),
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error("the certificate that it issued is not usable: {0}")]
    Certificate(#[from] renew::RenewalError),
    #[error(transparent)]
    Stream(DiscoveryError),
}

/// The age after which a stream counts as stable: its failure resets the backoff.
const STABLE_AGE: Duration = Duration::from_secs(30);
/// The time over which proxies spread their reconnects after they lost stable streams, perhaps all at once. Traffic
/// continues meanwhile; a control plane completes 1600 handshakes in about this time.
const RECONNECT_SPREAD: Duration = Duration::from_secs(1);
/// The maximum pause between attempts, so that proxies reconnect within seconds once a control plane is available
/// again.
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_control_planes_are_tried_before_backoff_increases() {
        let max_delay = |failed_attempts, control_planes| {
            retry_delay(FailedConnection::Attempt, failed_attempts, control_planes, u64::MAX)
        };
        assert!(
            [1, 2, 3]
                .iter()
                .all(|failed_attempts| max_delay(*failed_attempts, 3) <= backoff::MIN_DELAY)
        );
        assert!(max_delay(4, 3) > backoff::MIN_DELAY && max_delay(2, 1) > backoff::MIN_DELAY);
        assert!(max_delay(30_000, 3) <= MAX_RECONNECT_DELAY);
    }

    #[test]
    fn reconnects_after_lost_stable_streams_are_spread_over_time() {
        let delays = [0, u64::MAX / 2, u64::MAX]
            .map(|random| retry_delay(FailedConnection::Stream, 0, 3, random));
        assert_eq!(delays[0], Duration::ZERO);
        assert!(delays[1] > RECONNECT_SPREAD * 2 / 5 && delays[1] < RECONNECT_SPREAD * 3 / 5);
        assert!(delays[2] > RECONNECT_SPREAD * 9 / 10 && delays[2] <= RECONNECT_SPREAD);
    }
}
