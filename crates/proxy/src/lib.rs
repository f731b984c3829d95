//! The data plane: the sidecar and gateway proxy.
//!
//! This file defines [`Proxy`], which assembles the modules and starts the threads. The path of a request is
//! `listen` → `connection` → `tls` → `http::server` → `http::exchange` → `upstream`.

mod access_log;
mod admin;
mod application_metrics;
mod application_ports;
mod buffers;
mod check_service;
mod conditions;
mod config;
mod config_store;
mod connection;
mod connections;
mod control_address;
mod control_client;
mod control_loop;
mod control_outage;
mod dial;
mod dns;
mod dns_proxy;
mod drain;
mod ejected;
mod endpoint_wait;
mod error;
mod export;
mod first_bytes;
mod gateway;
mod gateway_tls;
mod handshake;
mod health;
mod http;
mod http2;
mod idle;
mod io;
mod join_credential;
mod link;
mod listen;
mod listeners;
mod live_requests;
mod management_server;
mod max_wait;
mod observability;
mod open_listeners;
mod outside;
mod plaintext;
mod probes;
mod record;
mod redirect;
mod rejected_clients;
mod renew;
mod request_trace;
mod rule_matches;
mod session;
mod silent_client;
mod snapshot_store;
mod splice;
mod state;
mod subscriptions;
mod task_pool;
mod tcp;
#[cfg(test)]
mod tests;
mod tls;
mod traffic_report;
pub mod untrusted;
mod upstream;
mod virtual_addresses;
mod worker;

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime};

use leno_discovery::ProxyRequest;
use leno_telemetry::{Count, DroppedLines, Gauge, Telemetry, lines_dropped};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::LocalSet;

pub use application_metrics::ApplicationMetrics;
pub use application_ports::{ApplicationPorts, PortState, PortStates};
pub use config::{
    AccessLogSource, AccountToken, Config, DNS_PROXY_PORT, DnsProxy, FIREWALL_MARK, INBOUND_PORT,
    Interception, IpVersions, Limits, OUTBOUND_PORT, OnExpiry, TrustedRoots,
};
pub use control_address::{ControlAddress, InvalidAddress};
pub use dns_proxy::{ClusterDomain, InvalidDomain};
pub use probes::{Probes, ProbesError};

use crate::admin::{Admin, ScrapeState};
use crate::config_store::{ConfigStore, ResourceRequest};
use crate::connections::Connections;
use crate::control_client::ControlClient;
use crate::control_outage::FatalFailure;
use crate::drain::Phase;
use crate::ejected::EjectedEndpoints;
use crate::export::TelemetryExporter;
use crate::health::HealthServer;
use crate::listen::ListenerCommand;
use crate::listeners::Listeners;
use crate::management_server::run_until_deadline;
pub use crate::open_listeners::ListenerStates;
use crate::open_listeners::OpenListeners;
use crate::request_trace::{TraceEntry, TraceQueues, TraceReceivers};
use crate::state::StateDir;
use crate::worker::{Worker, WorkerParts};

/// A proxy with bound admin and health addresses; [`Proxy::run`] serves requests.
pub struct Proxy {
    config: Arc<Config>,
    admin_listener: TcpListener,
    /// `None` without `--health`.
    health_listener: Option<TcpListener>,
    state_dir: StateDir,
    open_listeners: OpenListeners,
    application_ports: ApplicationPorts,
    telemetry: Arc<Telemetry>,
    phase: watch::Sender<Phase>,
}

/// An error that ends a proxy or keeps it from starting.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The admin address cannot be bound (`--admin`).
    #[error(
        "cannot serve the admin endpoint at {address}: {cause}; use --admin with a free address"
    )]
    Admin {
        /// The configured address.
        address: SocketAddr,
        /// The error of the operating system.
        cause: std::io::Error,
    },
    /// The health address cannot be bound (`--health`).
    #[error("cannot serve health at {address}: {cause}; use --health with a free address")]
    Health {
        /// The configured address.
        address: SocketAddr,
        /// The error of the operating system.
        cause: std::io::Error,
    },
    /// The state directory cannot be created, locked or read (`--state`).
    #[error("cannot use the state directory {path}: {cause}; choose another one with --state")]
    State {
        /// The configured directory.
        path: std::path::PathBuf,
        /// The error of the operating system.
        cause: std::io::Error,
    },
    /// A data thread cannot be started.
    #[error("cannot start a data thread: {0}")]
    Thread(std::io::Error),
    /// The certificate expired, and the proxy is configured to exit then (`--on-expiry fail`).
    #[error("the certificate has expired, and no control plane renewed it in time: join again")]
    Expired,
    /// Every control plane rejected the join, or there is no token, and there is no configuration of a previous
    /// run.
    #[error(transparent)]
    Rejected(Box<dyn std::error::Error + Send + Sync>),
}

impl Proxy {
    /// Locks the state directory, and binds the admin and health addresses.
    ///
    /// # Errors
    /// [`StartError`] if the state directory or an address is in use or cannot be used.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let state_dir = StateDir::open(&config.state)
            .map_err(|cause| StartError::State { path: config.state.clone(), cause })?;
        let admin_listener = bind_admin(config.admin, &state_dir)
            .await
            .map_err(|cause| StartError::Admin { address: config.admin, cause })?;
        let health_listener = match config.health {
            Some(address) => {
                let bind_result = TcpListener::bind(address).await;
                Some(bind_result.map_err(|cause| StartError::Health { address, cause })?)
            }
            None => None,
        };
        Ok(Self {
            config: Arc::new(config),
            admin_listener,
            health_listener,
            state_dir,
            open_listeners: OpenListeners::new(),
            application_ports: ApplicationPorts::default(),
            telemetry: Telemetry::new(),
            phase: watch::Sender::new(Phase::Serving),
        })
    }

    /// Returns a function that starts the drain delay. During the delay the proxy continues to serve, but is
    /// not ready, and HTTP/1.1 clients receive `Connection: close` with their next response.
    pub fn drain_starter(&self) -> impl Fn() + use<> {
        let phase = self.phase.clone();
        move || {
            phase.send_if_modified(|phase| {
                let is_serving = *phase == Phase::Serving;
                if is_serving {
                    *phase = Phase::Leaving;
                }
                is_serving
            });
        }
    }

    /// Returns the address of the admin endpoint.
    ///
    /// # Errors
    /// If the kernel does not return the socket's address.
    pub fn admin_address(&self) -> std::io::Result<SocketAddr> {
        self.admin_listener.local_addr()
    }

    /// Returns the bound health address; `None` if no health address is configured.
    #[must_use]
    pub fn health_address(&self) -> Option<SocketAddr> {
        self.health_listener.as_ref()?.local_addr().ok()
    }

    /// Subscribes to the states of the listeners; `None` until the first configuration is applied.
    #[must_use]
    pub fn open_listeners(&self) -> watch::Receiver<Option<Arc<ListenerStates>>> {
        self.open_listeners.subscribe()
    }

    /// Sets the states of the application's ports, as a supervisor reports them. Without them all ports are
    /// open.
    #[must_use]
    pub fn with_application(mut self, application_ports: ApplicationPorts) -> Self {
        self.application_ports = application_ports;
        self
    }

    /// Returns a function that counts the requests in progress, without the requests that wait until the
    /// application listens.
    pub fn requests_in_flight(&self) -> impl Fn() -> u64 + use<> {
        let (telemetry, application_ports) =
            (Arc::clone(&self.telemetry), self.application_ports.clone());
        move || {
            // In this order, a request that starts to wait between the two reads counts as in progress.
            let waiting_count = application_ports.waiting_count();
            telemetry.gauge(Gauge::RequestsInFlight).saturating_sub(waiting_count)
        }
    }

    /// Serves until `stop` resolves, then drains. Must be called on a current-thread runtime, which becomes the
    /// control thread; requests run on data threads.
    ///
    /// # Errors
    /// [`StartError`] if a data thread cannot be started, or if the certificate has expired and the proxy is
    /// configured to exit then.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), StartError> {
        let telemetry = Arc::clone(&self.telemetry);
        let (config_store, resource_receiver) = self.create_config_store();
        let connections = Arc::new(Connections::default());
        let ejected_endpoints = Arc::new(EjectedEndpoints::default());
        let phase = self.phase.clone();
        // The data threads.
        let (trace_queues, trace_receivers) = TraceQueues::new();
        let (queues, threads) = spawn_threads(self.config.cores.max(1), |index| WorkerParts {
            config: self.config.clone(),
            config_store: config_store.clone(),
            connections: connections.clone(),
            ejected_endpoints: ejected_endpoints.clone(),
            phase: phase.subscribe(),
            trace_queues: trace_queues.clone(),
            metrics: telemetry.new_shard(),
            seed: random_seed(index),
        })?;
        // The data threads keep the only senders, so the queues end with them.
        drop(trace_queues);
        let admin = Admin {
            config: self.config.clone(),
            metrics: telemetry.new_shard(),
            scrape_state: ScrapeState::default(),
            connectivity_permit: tokio::sync::Semaphore::new(1),
            telemetry: telemetry.clone(),
            config_store: config_store.clone(),
            connections,
            ejected_endpoints,
            open_listeners: self.open_listeners.clone(),
            is_gateway: matches!(self.config.interception, Interception::Gateway { .. }),
            were_ports_open: false.into(),
            phase: phase.subscribe(),
        };
        let (config, metrics) = (self.config.clone(), telemetry.new_shard());
        let exporter = TelemetryExporter::new(config, config_store.clone(), metrics);
        let admin_address = self.admin_address().map_err(StartError::Thread)?;
        let (config, dir, seed) = (self.config.clone(), self.state_dir.clone(), random_seed(0));
        let control_client =
            ControlClient::new(config, telemetry, config_store, dir, admin_address, seed);
        let (query_sender, query_receiver) = mpsc::channel(admin::MAX_QUEUED_QUERIES);
        let control_client = Rc::new(control_client.with_queries(query_sender));
        // The tasks of the control thread.
        let tasks = LocalSet::new();
        let admin = Rc::new(admin);
        tasks.spawn_local(admin::serve_queries(query_receiver, Rc::clone(&admin)));
        let servers = start_management(&tasks, self.admin_listener, self.health_listener, admin);
        let TraceReceivers { log, spans, taps } = trace_receivers;
        let (metrics_end_sender, export_tasks) = start_telemetry(&tasks, exporter, log, spans);
        let snapshot_task = tasks.spawn_local(run_snapshot_store(control_client.clone()));
        tasks.spawn_local(poll_dropped_lines(control_client.clone()));
        let (client, dir) = (control_client.clone(), self.state_dir.clone());
        let listeners = self.open_listeners;
        let control_requests =
            start_control(&tasks, client, resource_receiver, queues, listeners, dir);
        tasks.spawn_local(live_requests::send_tapped_requests(taps, control_requests.clone()));
        let failure = tasks.run_until(wait_for_stop(stop, &control_client.fatal_failure)).await;
        tracing::info!("draining");
        // A successor may read the stored files as soon as it gets the directory.
        control_client.snapshot_store.finish();
        match tasks.run_until(tokio::time::timeout(MAX_SNAPSHOT_WRITE, snapshot_task)).await {
            Ok(_) => self.state_dir.release(),
            Err(_) => tracing::warn!("{SLOW_DISK_WARNING}"),
        }
        tasks.run_until(withdraw_listeners(&control_client, &control_requests)).await;
        phase.send_replace(Phase::Draining);
        tasks.run_until(join_threads(threads)).await;
        // The data threads have dropped their senders: the queues end after the last entries are exported.
        drop(metrics_end_sender);
        phase.send_replace(Phase::Stopped);
        let final_exports = tokio::time::timeout(MAX_FINAL_EXPORT, wait_for_tasks(export_tasks));
        let servers_end = wait_for_tasks(servers);
        drop(tasks.run_until(async { tokio::join!(final_exports, servers_end) }).await);
        failure.map_or(Ok(()), Err)
    }
}

impl Proxy {
    /// Creates the configuration store: it contains the virtual addresses of the previous run and the access
    /// log of the start options, but no configuration. Requests for resources arrive at the returned queue.
    fn create_config_store(&self) -> (Arc<ConfigStore>, mpsc::Receiver<ResourceRequest>) {
        let (config_store, resource_receiver) = ConfigStore::with_application(
            self.application_ports.clone(),
            self.state_dir.stored_virtual_addresses(),
            Instant::now(),
        );
        if let AccessLogSource::Own(log) = &self.config.access_log {
            config_store.observability.set_log_override(log.clone());
        }
        (config_store, resource_receiver)
    }
}

/// Binds the admin endpoint. With port 0 the address of the previous run is tried first: scrapers may be
/// configured with it.
async fn bind_admin(address: SocketAddr, state_dir: &StateDir) -> std::io::Result<TcpListener> {
    let previous = state_dir
        .stored_address(ADMIN_LISTENER)
        .filter(|previous| address.port() == 0 && previous.ip() == address.ip());
    if let Some(previous) = previous {
        match TcpListener::bind(previous).await {
            Ok(listener) => return Ok(listener),
            Err(error) => tracing::warn!(
                address = %previous, %error,
                "the admin endpoint's address of the last run is not available: using another one"
            ),
        }
    }
    let listener = TcpListener::bind(address).await?;
    if address.port() == 0 {
        state_dir.store_address(ADMIN_LISTENER, listener.local_addr()?);
    }
    Ok(listener)
}

/// Waits until `stop` resolves, or until a failure ends the proxy.
async fn wait_for_stop(stop: impl Future<Output = ()>, fatal: &FatalFailure) -> Option<StartError> {
    tokio::select! {
        () = stop => None,
        failure = fatal.wait() => Some(failure),
    }
}

/// Starts the export tasks of the access log, spans and metrics, and returns their handles. The tasks of the
/// access log and spans end with the data threads; the metrics task ends when the returned sender is dropped.
fn start_telemetry(
    tasks: &LocalSet,
    exporter: TelemetryExporter,
    log_entries: mpsc::Receiver<Arc<TraceEntry>>,
    span_entries: mpsc::Receiver<Arc<TraceEntry>>,
) -> (oneshot::Sender<()>, [tokio::task::JoinHandle<()>; 3]) {
    let exporter = Rc::new(exporter);
    let (metrics_end_sender, metrics_end) = oneshot::channel();
    let (start_time, seed) = (SystemTime::now(), random_seed(0));
    let export_tasks = [
        tasks.spawn_local(access_log::write_entries(log_entries, exporter.clone())),
        tasks.spawn_local(export::export_spans(exporter.clone(), span_entries)),
        tasks.spawn_local(export::push_metrics(exporter, start_time, seed, metrics_end)),
    ];
    (metrics_end_sender, export_tasks)
}

/// Starts the management servers, which are the admin endpoint and, if it is configured, the health server. Returns
/// their tasks, which end shortly after [`Phase::Stopped`].
fn start_management(
    tasks: &LocalSet,
    admin_listener: TcpListener,
    health_listener: Option<TcpListener>,
    admin: Rc<Admin>,
) -> Vec<tokio::task::JoinHandle<()>> {
    let health_task = health_listener.map(|listener| {
        let health_server = HealthServer::new(admin.config.clone(), admin.clone());
        let phase = admin.phase.clone();
        tasks.spawn_local(run_until_deadline(phase, health_server.serve(listener)))
    });
    let phase = admin.phase.clone();
    let admin_task =
        tasks.spawn_local(run_until_deadline(phase, admin::serve(admin_listener, admin)));
    health_task.into_iter().chain([admin_task]).collect()
}

/// Waits until all tasks have ended.
async fn wait_for_tasks(tasks: impl IntoIterator<Item = tokio::task::JoinHandle<()>>) {
    for task in tasks {
        task.await.ok();
    }
}

/// Waits for the data threads to end.
async fn join_threads(threads: Vec<JoinHandle<()>>) {
    let panicked_count = tokio::task::spawn_blocking(move || {
        threads.into_iter().map(JoinHandle::join).filter(Result::is_err).count()
    });
    if panicked_count.await.is_ok_and(|count| count > 0) {
        tracing::error!("a data thread panicked");
    }
}

/// Starts the control thread's tasks: control stream, subscriptions, listeners, certificate renewal and DNS.
/// Returns the queue of requests to the control plane.
fn start_control(
    tasks: &LocalSet,
    control_client: Rc<ControlClient>,
    resource_receiver: mpsc::Receiver<ResourceRequest>,
    command_queues: Vec<mpsc::Sender<ListenerCommand>>,
    open_listeners: OpenListeners,
    state_dir: StateDir,
) -> mpsc::Sender<ProxyRequest> {
    if let Some(credential) =
        state_dir.stored_credential(&control_client.config.workload, SystemTime::now())
    {
        renew::replace_credential(&control_client, credential);
    }
    let (control_requests, request_receiver) = mpsc::channel(MAX_QUEUED_REQUESTS);
    let listeners = Listeners::new(command_queues, state_dir);
    if let Interception::Redirect { dns: Some(dns_address), .. } =
        control_client.config.interception
    {
        tasks.spawn_local(dns::serve(control_client.clone(), dns_address));
    }
    if let Some(dns_proxy) = &control_client.config.dns_proxy {
        dns_proxy::serve(tasks, &control_client, dns_proxy);
    }
    tasks.spawn_local(control_client::follow_control(control_client.clone(), request_receiver));
    tasks.spawn_local(control_loop::run_subscriptions(
        control_client.clone(),
        resource_receiver,
        control_requests.clone(),
    ));
    tasks.spawn_local(renew::run_renewal(control_client.clone(), control_requests.clone()));
    tasks.spawn_local(control_loop::reconcile_listeners(
        control_client,
        listeners,
        control_requests.clone(),
        open_listeners,
    ));
    control_requests
}

/// Polls the counters of dropped log lines until the proxy ends, and reports drops as a condition.
async fn poll_dropped_lines(control_client: Rc<ControlClient>) {
    let mut dropped_lines = DroppedLines::default();
    loop {
        tokio::time::sleep(DROPPED_LINES_POLL_INTERVAL).await;
        let total_count =
            lines_dropped() + control_client.telemetry.count(Count::AccessLogLinesDropped);
        control_client
            .report_dropped_lines(dropped_lines.record_count(total_count, Instant::now()));
    }
}

/// Writes snapshots to the state directory, and reports write errors as a condition.
async fn run_snapshot_store(control_client: Rc<ControlClient>) {
    let report_problem = |problem| control_client.report_state_problem(problem);
    control_client.snapshot_store.run(control_client.state_dir.clone(), report_problem).await;
}

/// Withdraws all listeners from the control plane, so that other proxies send no new requests to this one; requests in
/// progress are still served. Hellos of later streams contain no listeners either.
async fn withdraw_listeners(
    control_client: &ControlClient,
    control_requests: &mpsc::Sender<ProxyRequest>,
) {
    control_client.is_withdrawn.set(true);
    control_client.inbound_listeners.borrow_mut().clear();
    let send_report = async {
        let report = control_client.status_report();
        control_requests.send(ProxyRequest::Listeners(Vec::new(), report)).await.ok()?;
        // All slots of the queue are free after the task of the stream has taken every request.
        control_requests.reserve_many(MAX_QUEUED_REQUESTS).await.ok().map(drop)?;
        // Lets the task of the stream write the request that it has taken.
        tokio::task::yield_now().await;
        Some(())
    };
    if !matches!(tokio::time::timeout(MAX_WITHDRAWAL, send_report).await, Ok(Some(()))) {
        tracing::debug!("the final report was not sent to the control plane");
    }
}

/// The command queue of each data thread, and the threads.
type DataThreads = (Vec<mpsc::Sender<ListenerCommand>>, Vec<JoinHandle<()>>);

/// Starts `count` data threads. `build_parts` returns the arguments of [`Worker::new`] for the index of a thread.
fn spawn_threads(
    count: usize,
    build_parts: impl Fn(usize) -> WorkerParts,
) -> Result<DataThreads, StartError> {
    let (mut command_queues, mut threads) = (Vec::new(), Vec::new());
    for thread_index in 0..count {
        let (command_sender, command_receiver) = mpsc::channel(MAX_QUEUED_COMMANDS);
        command_queues.push(command_sender);
        threads.push(
            start_worker(thread_index, build_parts(thread_index), command_receiver)
                .map_err(StartError::Thread)?,
        );
    }
    Ok((command_queues, threads))
}

/// Starts one data thread.
fn start_worker(
    thread_index: usize,
    parts: WorkerParts,
    commands: mpsc::Receiver<ListenerCommand>,
) -> std::io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name(format!("data-{thread_index}")).spawn(move || {
        let worker = Worker::new(parts);
        runtime.block_on(listen::run_data_thread(worker, commands));
    })
}

/// Returns a seed for choices that must differ between threads and processes, but need not be secret. The multiplier,
/// 2^64 divided by the golden ratio, spreads similar numbers over all bits.
fn random_seed(thread_index: usize) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let entropy = now.as_nanos() as u64 ^ u64::from(std::process::id()) << 32;
    entropy.wrapping_add(thread_index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// The warning if the last snapshot is not written within [`MAX_SNAPSHOT_WRITE`].
const SLOW_DISK_WARNING: &str =
    "slow disk: the next process can use the state directory only after this one has exited";

/// The name of the admin endpoint among the listeners in the state directory.
const ADMIN_LISTENER: &str = "admin";
/// The maximum time to write the last snapshot at shutdown.
const MAX_SNAPSHOT_WRITE: std::time::Duration = std::time::Duration::from_secs(2);
/// The maximum time to export the last entries at shutdown.
const MAX_FINAL_EXPORT: std::time::Duration = std::time::Duration::from_secs(2);
/// The maximum time to withdraw the listeners: an unreachable control plane must not delay the shutdown.
const MAX_WITHDRAWAL: std::time::Duration = std::time::Duration::from_millis(250);
/// The polling period of the counters of dropped log lines.
const DROPPED_LINES_POLL_INTERVAL: std::time::Duration = std::time::Duration::from_secs(2);
/// The maximum number of queued commands for a data thread; further commands wait.
const MAX_QUEUED_COMMANDS: usize = 256;
/// The maximum number of queued requests for the control plane.
const MAX_QUEUED_REQUESTS: usize = 64;
