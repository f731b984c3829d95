//! Holds the state of one data thread: its connections, upstreams, cached configurations and metrics. Each data thread
//! has its own single-threaded runtime.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use leno_identity::JwtKeys;
use leno_listen::{ConnectionAdmission, PendingLimits};
use leno_model::{Endpoint, EndpointId, ServiceName};
use leno_telemetry::{Gauge, LogLimits, MetricsShard, PermittedLine};
use leno_traffic::traffic_policy::PortTrafficPolicy;
use leno_traffic::{CompiledPort, RetryBudget};
use leno_wire::http1::{RequestHead, ResponseHead};
use leno_wire::link::LinkError;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::{Notify, Semaphore, watch};

use crate::check_service::CheckServices;
use crate::config::Config;
use crate::config_store::{ConfigSnapshot, ConfigStore};
use crate::connections::Connections;
use crate::drain::Phase;
use crate::ejected::EjectedEndpoints;
use crate::http::object_pool::ObjectPool;
use crate::idle::IdleClients;
use crate::live_requests::ThreadObservability;
use crate::request_trace::TraceQueues;
use crate::task_pool::TaskPool;
use crate::tls::TlsConfigs;
use crate::upstream::cluster::{PortSlowStart, UpstreamCluster};
use crate::upstream::{Application, ApplicationProtocol, Upstream};

/// The state of one data thread. Other threads share only the configuration store, the list of connections, the
/// list of ejected endpoints, and the metrics, which they read.
pub(crate) struct Worker {
    pub(crate) config: Arc<Config>,
    pub(crate) config_store: Arc<ConfigStore>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) phase: watch::Receiver<Phase>,
    /// The queues for traces, log entries and taps.
    pub(crate) trace_queues: TraceQueues,
    /// The cached observability configuration; `None` if none is active.
    observability: RefCell<Option<Rc<ThreadObservability>>>,
    /// The version of the cached observability configuration.
    observability_version: Cell<u64>,
    pub(crate) tls: TlsConfigs,
    /// Limits the connections of this thread whose handshake or first request is not complete.
    pub(crate) admission: Arc<ConnectionAdmission>,
    /// Permits for connections to the application, since one link may carry many streams that need a connection
    /// each.
    pub(crate) application_permits: Arc<Semaphore>,
    /// Permits for queries of names outside the mesh that wait for the system resolver.
    pub(crate) name_queries: Semaphore,
    /// The log lines that each peer may cause, by its identity or address.
    pub(crate) log_limits: LogLimits<String>,
    /// The metrics of this thread.
    pub(crate) metrics: Rc<MetricsShard>,
    /// Pools of parsed heads, which keep their allocations.
    pub(crate) request_heads: ObjectPool<RequestHead>,
    pub(crate) response_heads: ObjectPool<ResponseHead>,
    /// The idle tasks for link streams.
    pub(crate) task_pool: TaskPool,
    /// The check services of this thread.
    pub(crate) check_services: CheckServices,
    /// The parsed keys of token issuers.
    jwt_keys: RefCell<Vec<ParsedKeys>>,
    /// The ejected endpoints of all threads, for the admin endpoint.
    pub(crate) ejected_endpoints: Arc<EjectedEndpoints>,
    upstreams: RefCell<FxHashMap<EndpointId, Rc<Upstream>>>,
    /// Cluster states, by the memory address of their traffic policy.
    clusters: RefCell<FxHashMap<usize, Rc<UpstreamCluster>>>,
    /// The slow-start endpoints of each service port that has a slow-start policy. They outlive the cluster
    /// state, which is replaced whenever any policy of the port changes.
    slow_start_endpoints: RefCell<FxHashMap<(ServiceName, u16), PortSlowStart>>,
    applications: RefCell<FxHashMap<(SocketAddr, ApplicationProtocol), Rc<Application>>>,
    /// The retry budgets of services with retry rules.
    retry_budgets: RefCell<FxHashMap<ServiceName, RetryBudget>>,
    /// The idle connections of external clients, which may be closed for new connections.
    pub(crate) idle_clients: IdleClients,
    /// The number of mirrored requests in progress.
    pub(crate) mirrors_in_flight: Rc<Cell<usize>>,
    /// The configuration version for which removed endpoints were last retired.
    retired_version: Cell<u64>,
    /// The number of requests and byte streams in progress.
    exchanges_in_progress: Cell<usize>,
    /// Notified when no exchange is in progress.
    exchanges_ended: Notify,
    /// The state of the pseudo-random number generator.
    random_state: Cell<u64>,
}

/// The parsed keys of an issuer.
struct ParsedKeys {
    /// The JWKS document. Its memory address identifies the entry.
    jwks: Arc<str>,
    /// `None` if no key of the document can verify tokens.
    keys: Option<Rc<JwtKeys>>,
}

/// The arguments of [`Worker::new`]: the state shared with other threads, and the metrics and seed of this thread.
pub(crate) struct WorkerParts {
    pub(crate) config: Arc<Config>,
    pub(crate) config_store: Arc<ConfigStore>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) ejected_endpoints: Arc<EjectedEndpoints>,
    pub(crate) phase: watch::Receiver<Phase>,
    pub(crate) trace_queues: TraceQueues,
    pub(crate) metrics: MetricsShard,
    /// The seed of this thread's pseudo-random numbers.
    pub(crate) seed: u64,
}

impl Worker {
    pub(crate) fn new(parts: WorkerParts) -> Rc<Self> {
        let WorkerParts {
            config,
            config_store,
            connections,
            ejected_endpoints,
            phase,
            trace_queues,
            metrics,
            seed,
        } = parts;
        Rc::new(Self {
            admission: ConnectionAdmission::new(PendingLimits::new(
                config.limits.max_handshakes,
                config.limits.max_connections,
            )),
            jwt_keys: RefCell::default(),
            check_services: CheckServices::new(config.collector_ca.clone()),
            application_permits: Arc::new(Semaphore::new(config.limits.max_connections.max(1))),
            name_queries: Semaphore::new(MAX_NAME_QUERIES),
            config,
            config_store,
            connections,
            phase,
            trace_queues,
            observability: RefCell::default(),
            observability_version: Cell::new(0),
            tls: TlsConfigs::default(),
            log_limits: LogLimits::default(),
            metrics: Rc::new(metrics),
            request_heads: ObjectPool::default(),
            response_heads: ObjectPool::default(),
            task_pool: TaskPool::default(),
            ejected_endpoints,
            upstreams: RefCell::default(),
            clusters: RefCell::default(),
            slow_start_endpoints: RefCell::default(),
            applications: RefCell::default(),
            retry_budgets: RefCell::default(),
            idle_clients: IdleClients::default(),
            mirrors_in_flight: Rc::default(),
            retired_version: Cell::new(0),
            exchanges_in_progress: Cell::new(0),
            exchanges_ended: Notify::new(),
            // The generator would return only zeros from a state of 0.
            random_state: Cell::new(seed | 1),
        })
    }

    /// Permits a log line that a peer caused; `None` if the peer's address has reached its limit.
    pub(crate) fn permit_log_line(&self, peer: SocketAddr) -> Option<PermittedLine> {
        self.log_limits.permit_line(peer.ip().to_string(), Instant::now())
    }

    /// Logs a violation of the link protocol by a peer.
    pub(crate) fn log_protocol_violation(&self, peer: SocketAddr, error: LinkError) {
        if let Some(line) = self.permit_log_line(peer) {
            let suppressed = line.suppressed;
            tracing::warn!(%peer, %error, suppressed, "peer violated the link protocol");
        }
    }

    /// Returns a pseudo-random number (xorshift64*): fast and seeded, for choices but not for secrets.
    pub(crate) fn random_number(&self) -> u64 {
        let mut state = self.random_state.get();
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        self.random_state.set(state);
        state.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Returns this thread's observability configuration, renewed if the settings have changed; `None` if
    /// neither tracing, the access log nor a tap is active.
    pub(crate) fn observability_config(&self) -> Option<Rc<ThreadObservability>> {
        let version = self.config_store.observability.version();
        if self.observability_version.replace(version) != version {
            let settings = self.config_store.observability.active_settings();
            self.observability.replace(
                settings.map(|settings| {
                    Rc::new(ThreadObservability::new(settings, self.account_name()))
                }),
            );
        }
        self.observability.borrow().clone()
    }

    /// Returns the keys of a JWKS document, which is parsed once; `None` if no key can verify tokens.
    pub(crate) fn jwt_keys(&self, jwks: &Arc<str>) -> Option<Rc<JwtKeys>> {
        let mut cache = self.jwt_keys.borrow_mut();
        if let Some(cached) = cache.iter().find(|cached| Arc::ptr_eq(&cached.jwks, jwks)) {
            return cached.keys.clone();
        }
        let parse_result = JwtKeys::parse(jwks).map(Rc::new);
        if let Err(error) = &parse_result {
            tracing::warn!(%error, "invalid keys of an issuer; its tokens are rejected");
        }
        if cache.len() >= MAX_JWT_KEYS {
            cache.clear();
        }
        let keys = parse_result.ok();
        cache.push(ParsedKeys { jwks: jwks.clone(), keys: keys.clone() });
        keys
    }

    /// Returns the account of the workload; empty before the first configuration.
    fn account_name(&self) -> String {
        let config = self.config_store.current_config();
        config.map(|config| config.compiled.snapshot.config.account.to_string()).unwrap_or_default()
    }

    /// Returns this thread's state of an endpoint: its connections and its load.
    pub(crate) fn upstream_for(self: &Rc<Self>, endpoint: &Arc<Endpoint>) -> Rc<Upstream> {
        let existing = self.upstreams.borrow().get(&endpoint.id).cloned();
        let is_same = |existing: &&Rc<Upstream>| {
            Arc::ptr_eq(&existing.endpoint, endpoint)
                || existing.endpoint.is_same_upstream(endpoint)
        };
        if let Some(upstream) = existing.as_ref().filter(is_same) {
            return upstream.clone();
        }
        let upstream = Rc::new(Upstream::new(endpoint.clone()));
        // If the existing upstream is that of the current configuration, this request holds an older one: it gets a
        // separate upstream, which closes after the request.
        if existing.is_some_and(|existing| self.config_store.is_current(&existing.endpoint)) {
            return upstream;
        }
        let replaced = self.upstreams.borrow_mut().insert(endpoint.id.clone(), upstream.clone());
        if let Some(replaced) = replaced {
            replaced.retire();
        }
        upstream
    }

    /// Returns the cluster state of a port for a traffic policy, either the port's own or that of a route to
    /// it. Returns `None` if the policy does not observe attempts.
    pub(crate) fn cluster_for(
        self: &Rc<Self>,
        traffic_policy: Option<&Arc<PortTrafficPolicy>>,
        port: &CompiledPort,
        version: u64,
    ) -> Option<Rc<UpstreamCluster>> {
        let traffic_policy = traffic_policy.filter(|policy| policy.observes_attempts())?;
        let key = UpstreamCluster::policy_key(traffic_policy);
        let existing = self
            .clusters
            .borrow()
            .get(&key)
            .filter(|cluster| cluster.is_for(traffic_policy))
            .cloned();
        let cluster = match existing {
            Some(cluster) => cluster,
            None => {
                let slow_start_endpoints = self.port_slow_start(traffic_policy, port);
                let clusters = self.clusters.borrow();
                let cluster = UpstreamCluster::new(
                    self,
                    traffic_policy,
                    slow_start_endpoints,
                    clusters.values(),
                );
                drop(clusters);
                self.clusters.borrow_mut().insert(key, cluster.clone());
                cluster
            }
        };
        cluster.update_endpoints(self, &port.endpoints, version);
        Some(cluster)
    }

    /// Returns the slow-start endpoints of a port; empty if the port has no endpoints or no slow-start policy.
    fn port_slow_start(
        &self,
        traffic_policy: &PortTrafficPolicy,
        compiled_port: &CompiledPort,
    ) -> PortSlowStart {
        let Some(first) =
            compiled_port.endpoints.first().filter(|_| has_slow_start(traffic_policy))
        else {
            return Rc::default();
        };
        let key = (first.id.service.clone(), first.id.port);
        self.slow_start_endpoints.borrow_mut().entry(key).or_default().clone()
    }

    /// Returns this thread's state of the application at this address; creates it on first use.
    pub(crate) fn application_at(
        &self,
        address: SocketAddr,
        protocol: ApplicationProtocol,
    ) -> Rc<Application> {
        let mut applications = self.applications.borrow_mut();
        let entry = applications.entry((address, protocol));
        let create = || {
            let application = Application::new(address, protocol);
            application.apply_port_states(&self.config_store.application_ports.states());
            Rc::new(application)
        };
        entry.or_insert_with(create).clone()
    }

    /// Applies each change of the application's port states to its connection pools; never returns.
    pub(crate) async fn follow_port_states(&self) {
        let mut states = self.config_store.application_ports.subscribe();
        loop {
            let port_states = Arc::clone(&states.borrow_and_update());
            for application in self.applications.borrow().values() {
                application.apply_port_states(&port_states);
            }
            if states.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Retires the endpoints that the configuration no longer contains, once per version: their requests
    /// finish, then their connections close.
    pub(crate) fn retire_removed_endpoints(&self, config: &ConfigSnapshot) {
        if self.retired_version.replace(config.version) == config.version {
            return;
        }
        self.drop_obsolete_policies(config);
        let mut upstreams = self.upstreams.borrow_mut();
        let services = &config.compiled.snapshot.services;
        let pinned: FxHashSet<&EndpointId> =
            config.pinned_endpoints().map(|endpoint| &endpoint.id).collect();
        upstreams.retain(|id, upstream| {
            let port = services.get(&id.service).and_then(|service| service.ports.get(&id.port));
            let is_current = port
                .is_some_and(|port| port.endpoints.iter().any(|endpoint| endpoint.id == *id))
                || pinned.contains(id);
            if !is_current {
                upstream.retire();
            }
            is_current
        });
        self.retry_budgets.borrow_mut().retain(|service, _| services.contains_key(service));
    }

    /// Calls `spend` with the retry budget of a service, which is created at the time `now` if there is none.
    pub(crate) fn with_budget<T>(
        &self,
        service: &ServiceName,
        now: impl FnOnce() -> Instant,
        spend: impl FnOnce(&mut RetryBudget) -> T,
    ) -> T {
        let mut retry_budgets = self.retry_budgets.borrow_mut();
        if let Some(budget) = retry_budgets.get_mut(service) {
            return spend(budget);
        }
        spend(retry_budgets.entry(service.clone()).or_insert_with(|| RetryBudget::new(now())))
    }

    /// Drops slow-start and cluster states of policies that no longer exist.
    fn drop_obsolete_policies(&self, config: &ConfigSnapshot) {
        self.slow_start_endpoints.borrow_mut().retain(|(service, port), _| {
            let compiled_service = config.compiled.services.get(service);
            let compiled_port = compiled_service.and_then(|service| service.ports.get(port));
            let own_policy = compiled_port.and_then(|port| port.traffic_policy.as_deref());
            let mut forwarded_ports = config.compiled.forwarded_ports();
            own_policy.is_some_and(has_slow_start)
                || forwarded_ports.any(|policies| {
                    policies.port == *port
                        && policies.service == *service
                        && has_slow_start(&policies.traffic_policy)
                })
        });
        let mut clusters = self.clusters.borrow_mut();
        if clusters.is_empty() {
            return;
        }
        let traffic_policies: Vec<_> = config.compiled.traffic_policies().collect();
        let previous_count = clusters.len();
        clusters.retain(|_, cluster| {
            traffic_policies.iter().any(|traffic_policy| cluster.is_for(traffic_policy))
        });
        if clusters.len() < previous_count {
            // The next request sets the timeout again if a policy still has one.
            let upstreams = self.upstreams.borrow();
            upstreams.values().for_each(|upstream| upstream.connect_timeout.set(None));
        }
    }

    /// Retires every upstream: links send GOAWAY and open no more streams, and idle links close.
    pub(crate) fn retire_upstreams(&self) {
        for upstream in self.upstreams.borrow().values() {
            upstream.retire();
        }
    }

    /// True if the proxy is draining and accepts no new connections.
    pub(crate) fn is_draining(&self) -> bool {
        *self.phase.borrow() == Phase::Draining
    }

    /// True if the proxy is leaving or draining: open connections close after their next response.
    pub(crate) fn is_leaving(&self) -> bool {
        *self.phase.borrow() != Phase::Serving
    }

    /// Counts an exchange as in progress until the returned guard is dropped.
    pub(crate) fn start_exchange(self: &Rc<Self>) -> ExchangeGuard {
        self.exchanges_in_progress.set(self.exchanges_in_progress.get() + 1);
        self.metrics.increment(Gauge::RequestsInFlight, 1);
        ExchangeGuard(self.clone())
    }

    /// Resolves when no exchange is in progress.
    pub(crate) async fn wait_until_idle(&self) {
        while self.exchanges_in_progress.get() > 0 {
            self.exchanges_ended.notified().await;
        }
    }
}

/// An exchange in progress; draining waits for it.
pub(crate) struct ExchangeGuard(Rc<Worker>);

impl Drop for ExchangeGuard {
    fn drop(&mut self) {
        let remaining = self.0.exchanges_in_progress.get() - 1;
        self.0.exchanges_in_progress.set(remaining);
        self.0.metrics.decrement(Gauge::RequestsInFlight, 1);
        if remaining == 0 {
            self.0.exchanges_ended.notify_one();
        }
    }
}

/// The maximum number of cached JWKS documents: more than the policies of a workload use.
const MAX_JWT_KEYS: usize = 32;

/// True if a policy of the port has slow start.
fn has_slow_start(traffic_policy: &PortTrafficPolicy) -> bool {
    traffic_policy.balancing.as_ref().is_some_and(|balancing| balancing.rule.slow_start.is_some())
}

/// The maximum number of concurrent queries to the system resolver; each takes a thread.
const MAX_NAME_QUERIES: usize = 16;
