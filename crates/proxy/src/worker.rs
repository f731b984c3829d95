//! One data thread: a single-threaded runtime, its connections, its upstreams, its counters.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use leno_identity::JwtKeys;
use leno_listen::{Admission, Bounds};
use leno_model::{Endpoint, EndpointId, ServiceName};
use leno_telemetry::{Gauge, LogLimits, PermittedLine, Shard};
use leno_traffic::treatment::PortTreatment;
use leno_traffic::{PortPlan, RetryBudget};
use leno_wire::http1::{RequestHead, ResponseHead};
use leno_wire::link::LinkError;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::{Notify, Semaphore, watch};

use crate::config::Config;
use crate::connections::Connections;
use crate::crew::Crew;
use crate::decider::Deciders;
use crate::drain::Phase;
use crate::http::spare::Spare;
use crate::idle::IdleStrangers;
use crate::removed::RemovedEndpoints;
use crate::seen::Outlets;
use crate::tapped::ThreadView;
use crate::tls::TlsConfigs;
use crate::upstream::ward::{PortNewcomers, Ward};
use crate::upstream::{Application, Speaks, Upstream};
use crate::world::{Scene, World};

/// One data thread. Everything in it is single-threaded but the world and the counters' readers.
pub(crate) struct Worker {
    pub(crate) config: Arc<Config>,
    pub(crate) world: Arc<World>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) phase: watch::Receiver<Phase>,
    /// Where goes what operators see of single requests.
    pub(crate) outlets: Outlets,
    /// What they see, as of this version of it.
    view: RefCell<Option<Rc<ThreadView>>>,
    view_version: Cell<u64>,
    pub(crate) tls: TlsConfigs,
    /// The half-open connections of this thread.
    pub(crate) half_open: Arc<Admission>,
    /// Room for connections to the application: a link's streams are many to one connection.
    pub(crate) places: Arc<Semaphore>,
    /// Queries for names outside the mesh that wait for the resolver of the machine.
    pub(crate) name_queries: Semaphore,
    /// The log lines that each peer may cause: by its identity, or its address.
    pub(crate) logs: LogLimits<String>,
    /// This thread's counters.
    pub(crate) shard: Rc<Shard>,
    /// Heads that were parsed into before, with the room they have.
    pub(crate) request_heads: Spare<RequestHead>,
    pub(crate) response_heads: Spare<ResponseHead>,
    /// Tasks that wait for a stream to serve.
    pub(crate) crew: Crew,
    /// Who decides in place of this sidecar, as this thread knows them.
    pub(crate) deciders: Deciders,
    /// Keys of issuers, by the text that they were read from.
    jwt_keys: RefCell<Vec<ReadKeys>>,
    /// What policies have removed, over all threads.
    pub(crate) removed: Arc<RemovedEndpoints>,
    upstreams: RefCell<FxHashMap<EndpointId, Rc<Upstream>>>,
    /// What is watched over, by the address of what is said about it.
    wards: RefCell<FxHashMap<usize, Rc<Ward>>>,
    /// Who is new at ports where a policy asks: longer than a ward, which ends with every edit of
    /// another policy.
    newcomers: RefCell<FxHashMap<(ServiceName, u16), PortNewcomers>>,
    applications: RefCell<FxHashMap<(SocketAddr, Speaks), Rc<Application>>>,
    /// What may be spent on retries; of services whose rules retry.
    budgets: RefCell<FxHashMap<ServiceName, RetryBudget>>,
    /// The connections that make room for new ones.
    pub(crate) idle: IdleStrangers,
    /// Copies of requests under way.
    pub(crate) mirrors: Rc<Cell<usize>>,
    /// The version of the world that `upstreams` was last swept against.
    swept: Cell<u64>,
    exchanges: Cell<usize>,
    quiet: Notify,
    draws: Cell<u64>,
}

/// The keys that a text says; none when none of them can verify.
struct ReadKeys {
    text: Arc<str>,
    keys: Option<Rc<JwtKeys>>,
}

/// Parts of a worker that somebody else made.
pub(crate) struct Parts {
    pub(crate) config: Arc<Config>,
    pub(crate) world: Arc<World>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) removed: Arc<RemovedEndpoints>,
    pub(crate) phase: watch::Receiver<Phase>,
    pub(crate) outlets: Outlets,
    pub(crate) shard: Shard,
    /// Seeds this thread's random draws.
    pub(crate) seed: u64,
}

impl Worker {
    pub(crate) fn new(parts: Parts) -> Rc<Self> {
        let Parts { config, world, connections, removed, phase, outlets, shard, seed } = parts;
        Rc::new(Self {
            half_open: Admission::new(Bounds::new(
                config.limits.handshakes_max,
                config.limits.connections_max,
            )),
            jwt_keys: RefCell::default(),
            deciders: Deciders::new(config.collector_roots.clone()),
            places: Arc::new(Semaphore::new(config.limits.connections_max.max(1))),
            name_queries: Semaphore::new(NAME_QUERIES_MAX),
            config,
            world,
            connections,
            phase,
            outlets,
            view: RefCell::default(),
            view_version: Cell::new(0),
            tls: TlsConfigs::default(),
            logs: LogLimits::default(),
            shard: Rc::new(shard),
            request_heads: Spare::default(),
            response_heads: Spare::default(),
            crew: Crew::default(),
            removed,
            upstreams: RefCell::default(),
            wards: RefCell::default(),
            newcomers: RefCell::default(),
            applications: RefCell::default(),
            budgets: RefCell::default(),
            idle: IdleStrangers::default(),
            mirrors: Rc::default(),
            swept: Cell::new(0),
            exchanges: Cell::new(0),
            quiet: Notify::new(),
            draws: Cell::new(seed | 1),
        })
    }

    /// Permits a log line that a peer caused, by the peer's address.
    pub(crate) fn log_line(&self, peer: SocketAddr) -> Option<PermittedLine> {
        self.logs.permit(peer.ip().to_string(), Instant::now())
    }

    /// Logs that a peer broke the protocol of links.
    pub(crate) fn log_misuse(&self, peer: SocketAddr, error: LinkError) {
        if let Some(line) = self.log_line(peer) {
            let suppressed = line.suppressed;
            tracing::warn!(%peer, %error, suppressed, "a peer broke the link protocol");
        }
    }

    /// A pseudo-random number (xorshift64*): fast, seeded, for choices and not for secrets.
    pub(crate) fn draw(&self) -> u64 {
        let mut x = self.draws.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.draws.set(x);
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// What operators see of single requests; `None` when that is nothing.
    pub(crate) fn view(&self) -> Option<Rc<ThreadView>> {
        let version = self.world.sights.version();
        if self.view_version.replace(version) != version {
            let view = self.world.sights.view();
            self.view.replace(view.map(|view| Rc::new(ThreadView::new(view, self.account()))));
        }
        self.view.borrow().clone()
    }

    /// The keys that a text says, read once; `None` when none of them can verify.
    pub(crate) fn jwt_keys(&self, text: &Arc<str>) -> Option<Rc<JwtKeys>> {
        let mut known = self.jwt_keys.borrow_mut();
        if let Some(known) = known.iter().find(|known| Arc::ptr_eq(&known.text, text)) {
            return known.keys.clone();
        }
        let keys = JwtKeys::parse(text).map(Rc::new);
        if let Err(error) = &keys {
            tracing::warn!(%error, "the keys of an issuer cannot be used; its tokens are refused");
        }
        if known.len() >= JWT_KEYS_MAX {
            known.clear();
        }
        let keys = keys.ok();
        known.push(ReadKeys { text: text.clone(), keys: keys.clone() });
        keys
    }

    /// The account of the workload; nothing before the first world.
    fn account(&self) -> String {
        let scene = self.world.scene();
        scene.map(|scene| scene.plans.snapshot.plan.account.to_string()).unwrap_or_default()
    }

    /// What this thread knows of an endpoint: its connections and its load.
    pub(crate) fn upstream(self: &Rc<Self>, endpoint: &Arc<Endpoint>) -> Rc<Upstream> {
        let known = self.upstreams.borrow().get(&endpoint.id).cloned();
        let same = |known: &&Rc<Upstream>| {
            Arc::ptr_eq(&known.endpoint, endpoint) || known.endpoint.is_same_place(endpoint)
        };
        if let Some(upstream) = known.as_ref().filter(same) {
            return upstream.clone();
        }
        let upstream = Rc::new(Upstream::new(endpoint.clone()));
        // A request that holds an older world goes there by itself, and closes behind it.
        if known.is_some_and(|known| self.world.is_current(&known.endpoint)) {
            return upstream;
        }
        let replaced = self.upstreams.borrow_mut().insert(endpoint.id.clone(), upstream.clone());
        if let Some(replaced) = replaced {
            replaced.retire();
        }
        upstream
    }

    /// The ward of a port under the policies of one way to it; `None` without a policy for attempts.
    pub(crate) fn ward(
        self: &Rc<Self>,
        treatment: Option<&Arc<PortTreatment>>,
        (plan, version): (&PortPlan, u64),
    ) -> Option<Rc<Ward>> {
        let treatment = treatment.filter(|it| it.is_watchful())?;
        let key = Ward::key(treatment);
        let known = self.wards.borrow().get(&key).filter(|ward| ward.is_for(treatment)).cloned();
        let ward = match known {
            Some(ward) => ward,
            None => {
                let newcomers = self.newcomers_of(treatment, plan);
                let known = self.wards.borrow();
                let ward = Ward::new(self, treatment, newcomers, known.values());
                drop(known);
                self.wards.borrow_mut().insert(key, ward.clone());
                ward
            }
        };
        ward.attend(self, &plan.endpoints, version);
        Some(ward)
    }

    /// Who is new at a port. Where nobody is, nobody can be.
    fn newcomers_of(&self, treatment: &PortTreatment, plan: &PortPlan) -> PortNewcomers {
        let Some(first) = plan.endpoints.first().filter(|_| warms_up(treatment)) else {
            return Rc::default();
        };
        let port = (first.id.service.clone(), first.id.port);
        self.newcomers.borrow_mut().entry(port).or_default().clone()
    }

    /// The application behind this sidecar, at one of its addresses.
    pub(crate) fn application(&self, address: SocketAddr, speaks: Speaks) -> Rc<Application> {
        let mut applications = self.applications.borrow_mut();
        let application = applications.entry((address, speaks));
        let new = || {
            let application = Application::new(address, speaks);
            application.follow(&self.world.application.states());
            Rc::new(application)
        };
        application.or_insert_with(new).clone()
    }

    /// Keeps the pools of the application in step with its ports; never ends.
    pub(crate) async fn follow_ports(&self) {
        let mut states = self.world.application.subscribe();
        loop {
            let now = Arc::clone(&states.borrow_and_update());
            for application in self.applications.borrow().values() {
                application.follow(&now);
            }
            if states.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Lets go of endpoints that the world no longer knows: their requests finish, then they close.
    pub(crate) fn sweep(&self, scene: &Scene) {
        if self.swept.replace(scene.version) == scene.version {
            return;
        }
        self.sweep_wards(scene);
        let mut upstreams = self.upstreams.borrow_mut();
        let services = &scene.plans.snapshot.services;
        let pinned: FxHashSet<&EndpointId> = scene.pinned().map(|endpoint| &endpoint.id).collect();
        upstreams.retain(|id, upstream| {
            let known = services.get(&id.service).and_then(|view| view.ports.get(&id.port));
            let kept = known.is_some_and(|port| port.endpoints.iter().any(|e| e.id == *id))
                || pinned.contains(id);
            if !kept {
                upstream.retire();
            }
            kept
        });
        self.budgets.borrow_mut().retain(|service, _| services.contains_key(service));
    }

    /// Does something with the retry budget of a service.
    pub(crate) fn with_budget<T>(
        &self,
        service: &ServiceName,
        now: impl FnOnce() -> Instant,
        spend: impl FnOnce(&mut RetryBudget) -> T,
    ) -> T {
        let mut budgets = self.budgets.borrow_mut();
        if let Some(budget) = budgets.get_mut(service) {
            return spend(budget);
        }
        spend(budgets.entry(service.clone()).or_insert_with(|| RetryBudget::new(now())))
    }

    /// Lets go of what nothing is said about any more.
    fn sweep_wards(&self, scene: &Scene) {
        self.newcomers.borrow_mut().retain(|(service, port), _| {
            let plan = scene.plans.services.get(service).and_then(|plan| plan.ports.get(port));
            let own = plan.and_then(|plan| plan.treatment.as_deref());
            let mut forwarded = scene.plans.forwarded();
            own.is_some_and(warms_up)
                || forwarded
                    .any(|it| it.port == *port && it.service == *service && warms_up(&it.treatment))
        });
        let mut wards = self.wards.borrow_mut();
        if wards.is_empty() {
            return;
        }
        let treatments: Vec<_> = scene.plans.treatments().collect();
        let before = wards.len();
        wards.retain(|_, ward| treatments.iter().any(|treatment| ward.is_for(treatment)));
        if wards.len() < before {
            // Said again with the next request, where it is still said.
            let upstreams = self.upstreams.borrow();
            upstreams.values().for_each(|upstream| upstream.connect_timeout.set(None));
        }
    }

    /// Every link is told that no more streams will come; idle ones close.
    pub(crate) fn retire_upstreams(&self) {
        for upstream in self.upstreams.borrow().values() {
            upstream.retire();
        }
    }

    /// True when no new connections are taken.
    pub(crate) fn is_draining(&self) -> bool {
        *self.phase.borrow() == Phase::Draining
    }

    /// True when the connections that are open take no request after the next one.
    pub(crate) fn is_leaving(&self) -> bool {
        *self.phase.borrow() != Phase::Serving
    }

    /// Marks an exchange as under way until the guard is dropped.
    pub(crate) fn enter(self: &Rc<Self>) -> Underway {
        self.exchanges.set(self.exchanges.get() + 1);
        self.shard.raise(Gauge::RequestsInFlight, 1);
        Underway(self.clone())
    }

    /// Resolves when no exchange is under way.
    pub(crate) async fn quiet(&self) {
        while self.exchanges.get() > 0 {
            self.quiet.notified().await;
        }
    }
}

/// An exchange under way; draining waits for it.
pub(crate) struct Underway(Rc<Worker>);

impl Drop for Underway {
    fn drop(&mut self) {
        let left = self.0.exchanges.get() - 1;
        self.0.exchanges.set(left);
        self.0.shard.lower(Gauge::RequestsInFlight, 1);
        if left == 0 {
            self.0.quiet.notify_one();
        }
    }
}

/// More sets of keys than policies of a workload name.
const JWT_KEYS_MAX: usize = 32;

/// Whether a policy lets newcomers of a port have less than the others.
fn warms_up(treatment: &PortTreatment) -> bool {
    treatment.balancing.as_ref().is_some_and(|balancing| balancing.rule.warm_up.is_some())
}

/// Queries that wait for the resolver of the machine at once; each takes a thread.
const NAME_QUERIES_MAX: usize = 16;
