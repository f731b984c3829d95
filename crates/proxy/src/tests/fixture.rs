//! A mesh of two sidecars: the client's, and the server's with an application.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use leno_discovery::{ChangeId, ConfigUpdate};
use leno_identity::{
    Authority, CertificateBundle, CertificateRequest, CertificateSubject, Credential, PrivateKey,
};
use leno_model::{
    Access, AccessLog, AddressEntry, ClientAuthorization, Concurrency, Endpoint, EndpointId,
    InboundPolicy, Observability, PortCheck, PortConfig, PortLimits, Protocol, RateLimits,
    ServiceAccount, ServiceConfig, ServiceName, ServicePolicyKind, ServicePolicyName, Snapshot,
    SpiffeId, TrustDomain, Upgrades, WorkloadConfig, WorkloadName, WorkloadPort,
};
use leno_telemetry::{SeriesSummary, Telemetry};
use socket2::{Domain, SockRef, Socket, Type};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;

use crate::config::{Config, Limits};
use crate::config_store::ConfigStore;
use crate::connection;
use crate::connections::Connections;
use crate::drain::Phase;
use crate::live_requests::MatchedRequest;
use crate::request_trace::{TraceEntry, TraceQueues, TraceReceivers};
use crate::session::ListenerKind;
use crate::virtual_addresses::VirtualAddresses;
use crate::worker::{Worker, WorkerParts};

mod application;
mod client;
pub(crate) mod frames;
mod peer;
mod short;
pub(crate) mod single_stream;

pub(crate) use application::Application;
pub(crate) use client::{Client, End, ReceivedMessage};
pub(crate) use peer::{Peer, tls_accept, tls_connect, tls_connect_small_buffer};
pub(crate) use short::ShortConnectionServer;

/// The port of the service that all tests call.
pub(crate) const PORT: u16 = 9080;
/// The trust domain of all certificates, unless a test uses another one.
pub(crate) const DOMAIN: &str = "cluster.local";
/// A minimal request.
pub(crate) const GET: &str = "GET /ratings/1 HTTP/1.1\r\nhost: x\r\n\r\n";
/// A minimal response.
pub(crate) const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Runs a test on one thread, as a data thread runs, and fails it if it hangs.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(LocalSet::new().run_until(async {
        tokio::time::timeout(MAX_WAIT, test).await.expect("the test hangs");
    }));
}

/// Yields until `condition` is true; the sockets are polled each time.
pub(crate) async fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::task::yield_now().await;
    }
}

/// Yields until `value` has not changed for [`SETTLED_TURNS`] turns of the event loop, and returns it.
pub(crate) async fn wait_until_stable(value: impl Fn() -> usize) -> usize {
    let (mut previous, mut unchanged_turns) = (value(), 0);
    while unchanged_turns < SETTLED_TURNS {
        tokio::task::yield_now().await;
        let current = value();
        unchanged_turns = if current == previous { unchanged_turns + 1 } else { 0 };
        previous = current;
    }
    previous
}

/// The options of a test mesh.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) access: Access,
    pub(crate) protocol: Protocol,
    pub(crate) limits: Limits,
    /// The protocols that connections may be upgraded to.
    pub(crate) upgrades: Upgrades,
    /// The observability settings.
    pub(crate) observability: Observability,
}

impl Default for Setup {
    fn default() -> Self {
        let limits = Limits {
            discovery_timeout: Duration::from_millis(100),
            connect_timeout: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(5),
            ..Limits::default()
        };
        let observability =
            Observability { access_log: Some(AccessLog::json()), ..Observability::default() };
        let upgrades = Upgrades::default();
        Self { access: Access::AllowAll, protocol: Protocol::Http, limits, upgrades, observability }
    }
}

/// The client's sidecar, the server's sidecar, and their shared parts.
pub(crate) struct Mesh {
    pub(crate) setup: Setup,
    pub(crate) directory: TempDir,
    pub(crate) authority: Authority,
    pub(crate) client: Sidecar,
    pub(crate) server: Sidecar,
    /// The client's outbound listener for the service.
    pub(crate) listener: SocketAddr,
    /// The server's inbound listener.
    pub(crate) inbound: SocketAddr,
}

/// One sidecar without a control plane: tests set its configuration.
pub(crate) struct Sidecar {
    pub(crate) worker: Rc<Worker>,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) phase: watch::Sender<Phase>,
    pub(crate) log: mpsc::Receiver<Arc<TraceEntry>>,
    pub(crate) spans: mpsc::Receiver<Arc<TraceEntry>>,
    pub(crate) taps: mpsc::Receiver<MatchedRequest>,
    /// The observability settings, added to every configuration.
    observability: Observability,
    /// The port of its application.
    pub(crate) port: u16,
    /// The entries of requested addresses, added to every configuration.
    pub(crate) addresses: RefCell<BTreeMap<IpAddr, Arc<AddressEntry>>>,
}

impl Mesh {
    /// Creates a mesh that allows all members, with `application` behind the server's sidecar.
    pub(crate) async fn permissive(application: SocketAddr) -> Self {
        Self::new(application, Setup::default()).await
    }

    /// Creates a mesh in which the server enforces `access`.
    pub(crate) async fn with_access(application: SocketAddr, access: Access) -> Self {
        Self::new(application, Setup { access, ..Setup::default() }).await
    }

    pub(crate) async fn new(application: SocketAddr, setup: Setup) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = test_authority(directory.path(), DOMAIN);
        let (server, inbound) = start_sidecar(
            &authority,
            directory.path(),
            "ratings-1",
            "ratings",
            application,
            &setup,
        )
        .await;
        let client = Sidecar::new("productpage", directory.path(), &setup);
        client.set_credential(test_credential(&authority, "productpage"));
        let listener = client
            .open_listener(ListenerKind::Outbound { service: test_service(), port: PORT })
            .await;
        let mesh = Self { setup, directory, authority, client, server, listener, inbound };
        mesh.route_to(&[mesh.server_endpoint()]);
        mesh
    }

    /// Starts another server of the same service.
    pub(crate) async fn start_server(
        &self,
        workload: &str,
        application: SocketAddr,
    ) -> (Sidecar, Endpoint) {
        let directory = self.directory.path();
        let (sidecar, inbound) = start_sidecar(
            &self.authority,
            directory,
            workload,
            "ratings",
            application,
            &self.setup,
        )
        .await;
        (sidecar, meshed_endpoint(workload, inbound, "ratings"))
    }

    /// Starts another server of the same service with other options.
    pub(crate) async fn start_server_with(
        &self,
        workload: &str,
        application: SocketAddr,
        setup: &Setup,
    ) -> (Sidecar, Endpoint) {
        let directory = self.directory.path();
        let (sidecar, inbound) =
            start_sidecar(&self.authority, directory, workload, "ratings", application, setup)
                .await;
        (sidecar, meshed_endpoint(workload, inbound, "ratings"))
    }

    /// Replaces the check services and limits of the server.
    pub(crate) fn set_checks(&self, checks: Vec<PortCheck>, limits: Vec<PortLimits>) {
        self.set_checks_with_services(checks, limits, Vec::new());
    }

    /// Replaces the check services, limits and services in the server's configuration.
    pub(crate) fn set_checks_with_services(
        &self,
        checks: Vec<PortCheck>,
        limits: Vec<PortLimits>,
        services: Vec<ServiceConfig>,
    ) {
        let access = self.setup.access.clone();
        let workload_config = serving_config(&self.server, self.setup.protocol, access);
        let port = self.server.port;
        let (checks, limits) = ([(port, checks)].into(), [(port, limits)].into());
        self.server.apply_config(
            WorkloadConfig { request_checks: checks, limits, ..workload_config },
            services,
        );
    }

    /// Replaces the check services and the inbound policy of the server.
    pub(crate) fn set_checks_and_policy(&self, checks: Vec<PortCheck>, inbound: InboundPolicy) {
        let access = self.setup.access.clone();
        let workload_config = serving_config(&self.server, self.setup.protocol, access);
        let checks = [(self.server.port, checks)].into();
        self.server.apply_config(
            WorkloadConfig { request_checks: checks, inbound, ..workload_config },
            Vec::new(),
        );
    }

    /// Applies `change` to a server configuration without policies.
    pub(crate) fn change_server_config(&self, change: &dyn Fn(WorkloadConfig) -> WorkloadConfig) {
        let access = self.setup.access.clone();
        let workload_config = serving_config(&self.server, self.setup.protocol, access);
        self.server.apply_config(change(workload_config), Vec::new());
    }

    /// Returns the endpoint of the server.
    pub(crate) fn server_endpoint(&self) -> Endpoint {
        meshed_endpoint("ratings-1", self.inbound, "ratings")
    }

    /// Replaces the endpoints of the service in the client's configuration.
    pub(crate) fn route_to(&self, endpoints: &[Endpoint]) {
        self.set_client_services(vec![service_config(self.setup.protocol, endpoints)]);
    }

    /// Replaces all services of the client's configuration.
    pub(crate) fn set_client_services(&self, services: Vec<ServiceConfig>) {
        self.client.apply_config(proxy_config("productpage", Access::AllowAll), services);
    }

    /// Replaces the authorization of the server.
    pub(crate) fn set_access(&self, access: Access) {
        self.set_access_and_policy(access, InboundPolicy::default());
    }

    /// Replaces the authorization of the server and its inbound policy.
    pub(crate) fn set_access_and_policy(&self, access: Access, inbound: InboundPolicy) {
        let workload_config = serving_config(&self.server, self.setup.protocol, access);
        self.server.apply_config(WorkloadConfig { inbound, ..workload_config }, Vec::new());
    }
}

/// Starts a sidecar for `application`.
async fn start_sidecar(
    authority: &Authority,
    directory: &Path,
    workload: &str,
    account: &str,
    application: SocketAddr,
    setup: &Setup,
) -> (Sidecar, SocketAddr) {
    let mut sidecar = Sidecar::new(workload, directory, setup);
    sidecar.port = application.port();
    sidecar.set_credential(test_credential(authority, account));
    sidecar
        .apply_config(serving_config(&sidecar, setup.protocol, setup.access.clone()), Vec::new());
    let inbound = sidecar.open_listener(ListenerKind::Inbound { port: sidecar.port }).await;
    (sidecar, inbound)
}

pub(crate) fn serving_config(
    sidecar: &Sidecar,
    protocol: Protocol,
    access: Access,
) -> WorkloadConfig {
    let port = sidecar.port;
    WorkloadConfig {
        ports: vec![WorkloadPort { name: None, port, protocol }],
        port_services: BTreeMap::from([(port, test_service())]),
        ..proxy_config("ratings", access)
    }
}

impl Sidecar {
    pub(crate) fn new(name: &str, directory: &Path, setup: &Setup) -> Self {
        let mut config = Config::for_sidecar(
            workload_name(name),
            TrustDomain::new(DOMAIN).unwrap(),
            directory.to_owned(),
        );
        config.limits = setup.limits.clone();
        config.upgrades = setup.upgrades.clone();
        let (config_store, _) = ConfigStore::new(VirtualAddresses::default(), Instant::now());
        let telemetry = Telemetry::new();
        let (phase, phase_receiver) = watch::channel(Phase::Serving);
        let (trace_queues, trace_receivers) = TraceQueues::new();
        let worker = Worker::new(WorkerParts {
            config: Arc::new(config),
            config_store,
            connections: Arc::new(Connections::default()),
            ejected_endpoints: Arc::default(),
            phase: phase_receiver,
            trace_queues,
            metrics: telemetry.new_shard(),
            seed: 7,
        });
        let TraceReceivers { log, spans, taps } = trace_receivers;
        let observability = setup.observability.clone();
        Self {
            worker,
            telemetry,
            phase,
            log,
            spans,
            taps,
            observability,
            port: 0,
            addresses: RefCell::default(),
        }
    }

    pub(crate) fn set_credential(&self, credential: Credential) {
        self.worker.config_store.replace_credential(credential);
    }

    /// Takes the receivers of this sidecar's log entries and spans.
    pub(crate) fn take_receivers(
        &mut self,
    ) -> (mpsc::Receiver<Arc<TraceEntry>>, mpsc::Receiver<Arc<TraceEntry>>) {
        let empty = || mpsc::channel(1).1;
        (std::mem::replace(&mut self.log, empty()), std::mem::replace(&mut self.spans, empty()))
    }

    /// Applies a configuration.
    pub(crate) fn apply_config(
        &self,
        workload_config: WorkloadConfig,
        services: Vec<ServiceConfig>,
    ) {
        let services = services
            .into_iter()
            .map(|service_config| (service_config.name.clone(), Arc::new(service_config)))
            .collect();
        let workload_config =
            WorkloadConfig { observability: self.observability.clone(), ..workload_config };
        let addresses = self.addresses.borrow().clone();
        let names = BTreeMap::new();
        let snapshot =
            Arc::new(Snapshot { config: Arc::new(workload_config), services, addresses, names });
        let absent_services = [("bookinfo", "absent"), ("other", "absent"), ("com", "example")];
        let absent_services =
            absent_services.map(|(namespace, name)| ServiceName::new(namespace, name).unwrap());
        let absent_services = BTreeSet::from(absent_services);
        let update = ConfigUpdate { snapshot, absent: absent_services, change: ChangeId(1) };
        self.worker.config_store.apply_update(&update).unwrap();
    }

    /// Opens a listener.
    pub(crate) async fn open_listener(&self, listener_kind: ListenerKind) -> SocketAddr {
        self.serve_listener(TcpListener::bind("127.0.0.1:0").await.unwrap(), listener_kind)
    }

    /// Opens a listener with sockets that are full after a few KiB.
    pub(crate) async fn open_small_buffer_listener(
        &self,
        listener_kind: ListenerKind,
    ) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        SockRef::from(&listener).set_send_buffer_size(4096).unwrap();
        self.serve_listener(listener, listener_kind)
    }

    fn serve_listener(&self, listener: TcpListener, listener_kind: ListenerKind) -> SocketAddr {
        let address = listener.local_addr().unwrap();
        let worker = self.worker.clone();
        tokio::task::spawn_local(async move {
            while let Ok((tcp, peer)) = listener.accept().await {
                let carried_requests =
                    connection::serve_connection(worker.clone(), listener_kind.clone(), tcp, peer);
                tokio::task::spawn_local(carried_requests);
            }
        });
        address
    }

    /// Returns the request counts of this sidecar by series.
    pub(crate) fn series_summaries(&self) -> Vec<SeriesSummary> {
        self.telemetry.series_summaries()
    }

    /// Returns the number of completed exchanges.
    pub(crate) fn ended_count(&self) -> u64 {
        self.series_summaries().iter().map(|series| series.requests).sum()
    }

    /// Returns the number of completed exchanges by reason.
    pub(crate) fn failure_counts(&self) -> BTreeMap<&'static str, u64> {
        let mut failures = BTreeMap::new();
        for failure in self.series_summaries().iter().flat_map(|series| &series.failures) {
            *failures.entry(failure.reason).or_default() += failure.requests;
        }
        failures
    }
}

pub(crate) fn test_service() -> ServiceName {
    ServiceName::new("bookinfo", "ratings").unwrap()
}

pub(crate) fn workload_name(name: &str) -> WorkloadName {
    WorkloadName::new("bookinfo", name).unwrap()
}

pub(crate) fn service_account(name: &str) -> ServiceAccount {
    ServiceAccount::new("bookinfo", name).unwrap()
}

pub(crate) fn meshed_endpoint(workload: &str, address: SocketAddr, account: &str) -> Endpoint {
    Endpoint {
        id: EndpointId { service: test_service(), port: PORT, workload: workload_name(workload) },
        address,
        account: Some(service_account(account)),
        tags: BTreeMap::new(),
        weight: None,
    }
}

pub(crate) fn service_config(protocol: Protocol, endpoints: &[Endpoint]) -> ServiceConfig {
    let port = PortConfig {
        name: None,
        protocol,
        has_attached_routes: false,
        rules: Vec::new(),
        endpoints: endpoints.iter().cloned().map(Arc::new).collect(),
        tls_rules: Vec::new(),
        traffic_policy: leno_model::TrafficPolicy::default(),
        tags: None,
        tcp_rule: None,
    };
    let ports = BTreeMap::from([(PORT, port)]);
    ServiceConfig {
        name: test_service(),
        client_authorization: ClientAuthorization::Allowed,
        ports,
        waits_for_endpoint: false,
    }
}

pub(crate) fn proxy_config(name: &str, access: Access) -> WorkloadConfig {
    let domain = TrustDomain::new(DOMAIN).unwrap();
    WorkloadConfig::identity_only(
        workload_name(name),
        service_account(name),
        domain,
        Ipv4Addr::LOCALHOST.into(),
        access,
    )
}

pub(crate) fn test_authority(directory: &Path, domain: &str) -> Authority {
    let domain = TrustDomain::new(domain).unwrap();
    let directory = directory.join(domain.to_string());
    Authority::open_or_create(&directory, &domain, SystemTime::now()).unwrap()
}

/// Returns a certificate of `authority` for the account and workload of this name.
pub(crate) fn test_credential(authority: &Authority, name: &str) -> Credential {
    credential_from(authority, name, SystemTime::now())
}

/// Returns a certificate that was issued at `now`, for an hour.
pub(crate) fn credential_from(authority: &Authority, name: &str, now: SystemTime) -> Credential {
    let (key, issued) = issue_certificate(authority, name, now);
    Credential::new(key, issued).unwrap()
}

/// Returns a certificate of `authority` with trust roots that include `other_authority`.
pub(crate) fn credential_trusting(
    authority: &Authority,
    name: &str,
    other_authority: &Authority,
) -> Credential {
    let (key, issued) = issue_certificate(authority, name, SystemTime::now());
    let roots = issued.roots.merge_with(&other_authority.roots()).unwrap();
    let issued = CertificateBundle::new(issued.chain, roots).unwrap();
    Credential::new(key, issued).unwrap()
}

fn issue_certificate(
    authority: &Authority,
    name: &str,
    now: SystemTime,
) -> (PrivateKey, CertificateBundle) {
    let key = PrivateKey::generate();
    let request = CertificateRequest::from_der(&key.certificate_request()).unwrap();
    let id =
        SpiffeId { trust_domain: authority.trust_domain().clone(), account: service_account(name) };
    let workload = workload_name(name);
    let subject = CertificateSubject { id: &id, workload: Some(&workload), instance: None };
    let issued = authority.sign(&request, subject, Duration::from_secs(3600), now).unwrap();
    (key, issued)
}

/// Returns an address without a listener.
pub(crate) fn closed_port() -> SocketAddr {
    thread_local! {
        static HELD: RefCell<Vec<Socket>> = const { RefCell::new(Vec::new()) };
    }
    // The socket stays bound, so that the kernel does not assign the port again before the test has ended.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    HELD.with_borrow_mut(|held| held.push(socket));
    address
}

/// The time after which a wait in a test fails.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// The number of turns of the event loop after which no more events are pending.
const SETTLED_TURNS: usize = 3000;

/// Returns a policy that limits the application's concurrent requests.
pub(crate) fn concurrency_limit(name: &str, requests: u32) -> PortLimits {
    let policy = ServicePolicyName::new(ServicePolicyKind::RateLimit, "bookinfo", name).unwrap();
    let concurrency = Some(Concurrency { requests, ..Concurrency::default() });
    PortLimits { policy, limits: RateLimits { concurrency, ..RateLimits::default() } }
}
