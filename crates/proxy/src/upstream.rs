//! Where requests go: endpoints of services over links, and the application behind the sidecar.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_model::{Endpoint, EndpointId, Protocol, Reason, Side, Weight};
use leno_telemetry::Count;
use leno_traffic::balance::{Latency, Load};

use crate::application_ports::{PortStates, START_PATIENCE};
use crate::http2::client::{Http2Lease, Http2Pool};
use crate::link::LinkHandle;
use crate::worker::Worker;

mod check;
pub(crate) mod connect;
pub(crate) mod gate;
pub(crate) mod pick;
pub(crate) mod pool;
pub(crate) mod priorities;
mod silence;
pub(crate) mod ward;
pub(crate) mod watch;

pub(crate) use connect::{Wait, wait_for};
pub(crate) use pool::{Http1Upstream, Pool};

/// One endpoint as one thread knows it: its links, its pooled connections, its load.
pub(crate) struct Upstream {
    pub(crate) endpoint: Arc<Endpoint>,
    in_flight: Cell<u32>,
    /// How long its answers take.
    latency: Cell<Latency>,
    /// What times are counted from.
    created: Instant,
    /// When it was chosen last among several.
    picked: Cell<Option<Instant>>,
    failures: Cell<u32>,
    avoided_until: Cell<Option<Instant>>,
    /// It did not answer a connection or a ping in time: requests stay away until a probe connects. Only while it is avoided.
    is_unresponsive: Cell<bool>,
    /// The longest time that policies gave connecting to it. An attempt takes as long, where that is longer than for all.
    pub(crate) connect_timeout: Cell<Option<Duration>>,
    /// Its place in the ward that watches over it.
    pub(crate) slot: Cell<usize>,
    links: RefCell<Vec<LinkHandle>>,
    /// Links with a silent peer: no new request goes there, and they return when the peer is heard again.
    suspended: RefCell<Vec<LinkHandle>>,
    /// The connection attempt that requests share.
    attempt: RefCell<Option<Rc<connect::Attempt>>>,
    /// Connections to a peer that does not speak the link protocol.
    foreign: Pool,
    /// Such a peer answered `http/1.1` in ALPN, or nothing.
    is_foreign: Cell<bool>,
    /// Connections to a peer that answered `h2`.
    http2: Http2Pool,
}

/// A way to send one request.
pub(crate) enum Lease {
    /// A stream may be opened on this link.
    Link(LinkHandle),
    /// An HTTP/1.1 connection of one's own.
    Http1(Box<Http1Upstream>),
    /// A stream may be opened on this connection of HTTP/2.
    Http2(Http2Lease),
}

/// The application behind a sidecar, at one of its addresses.
pub(crate) struct Application {
    address: SocketAddr,
    speaks: Speaks,
    /// It is none of this sidecar's: nothing is known of its ports.
    is_outside: bool,
    pool: Pool,
    http2: Http2Pool,
}

/// What an application speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Speaks {
    Http1,
    Http2,
}

impl From<Protocol> for Speaks {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Http2 | Protocol::Grpc => Self::Http2,
            Protocol::Http | Protocol::Tcp | Protocol::Detect => Self::Http1,
        }
    }
}

impl Upstream {
    pub(crate) fn new(endpoint: Arc<Endpoint>) -> Self {
        let now = Instant::now();
        Self {
            endpoint,
            in_flight: Cell::new(0),
            latency: Cell::default(),
            created: now,
            picked: Cell::new(None),
            failures: Cell::new(0),
            avoided_until: Cell::new(None),
            is_unresponsive: Cell::new(false),
            connect_timeout: Cell::new(None),
            slot: Cell::new(watch::NOWHERE),
            links: RefCell::default(),
            suspended: RefCell::default(),
            attempt: RefCell::default(),
            foreign: Pool::default(),
            is_foreign: Cell::new(false),
            http2: Http2Pool::default(),
        }
    }

    /// A link or connection to the endpoint, made if there is none: `wait` counts only then. The time of an attempt (`timed`)
    /// excludes that wait.
    pub(crate) async fn lease(
        self: &Rc<Self>,
        worker: &Rc<Worker>,
        timed: Option<&Timed>,
        wait: impl Into<Wait>,
    ) -> Result<Lease, Reason> {
        if let Some(link) = self.open_link() {
            worker.shard.add(Count::LeaseReused, 1);
            return Ok(Lease::Link(link));
        }
        if self.is_foreign.get()
            && let Some(connection) = self.foreign.take()
        {
            worker.shard.add(Count::LeaseReused, 1);
            return Ok(Lease::Http1(connection));
        }
        if let Some(lease) = self.http2.ready() {
            worker.shard.add(Count::LeaseReused, 1);
            return Ok(Lease::Http2(lease));
        }
        let wait = wait.into();
        let leased = if self.is_plain() {
            let spoken = connect::speaks(self, worker);
            Box::pin(connect::plainly(self, worker, (spoken, wait))).await
        } else {
            worker.shard.add(Count::LeaseOpened, 1);
            connect::endpoint(self, worker, wait).await
        };
        if let Some(timed) = timed {
            timed.connected();
        }
        leased
    }

    /// The same, at an endpoint without a sidecar, for a request of a client of HTTP/2: the application is spoken to in
    /// the same.
    async fn lease_http2(
        self: &Rc<Self>,
        worker: &Rc<Worker>,
        wait: Wait,
    ) -> Result<Lease, Reason> {
        match self.http2.ready() {
            Some(lease) => {
                worker.shard.add(Count::LeaseReused, 1);
                Ok(Lease::Http2(lease))
            }
            None => connect::plainly(self, worker, (Speaks::Http2, wait)).await,
        }
    }

    /// True when it has no sidecar: requests go to the application itself, in plaintext.
    pub(crate) fn is_plain(&self) -> bool {
        self.endpoint.account.is_none()
    }

    /// Whether it answered that it speaks HTTP/1.1 and no link.
    pub(crate) fn is_foreign(&self) -> bool {
        self.is_foreign.get()
    }

    /// Marks a request as under way here until the guard is dropped.
    pub(crate) fn enter(self: &Rc<Self>) -> InFlight {
        self.in_flight.set(self.in_flight.get() + 1);
        InFlight(self.clone())
    }

    /// The same, and measures how long its answer takes since it was chosen, if it was among several.
    pub(crate) fn time(self: &Rc<Self>) -> Timed {
        let stage = Cell::new(Stage::Asking);
        Timed { in_flight: self.enter(), began: self.picked.clone(), stage }
    }

    /// Its load, as this thread sees it. `times`: the time, where counts how long its answers take.
    pub(crate) fn load(&self, weight: Option<Weight>, times: Option<Instant>) -> Load {
        let in_flight = self.in_flight.get();
        match times {
            None => Load { under_way: in_flight, step: None, weight },
            Some(now) => {
                let (latency, now) = (self.latency.get(), self.age(now));
                let failures = u32::from(latency.failures(now));
                Load { under_way: in_flight + failures, step: latency.step(now), weight }
            }
        }
    }

    /// It was chosen at this time among several, or because there is no other: then there is nothing to
    /// learn.
    pub(crate) fn choose(&self, at: Option<Instant>) {
        self.picked.set(at);
    }

    /// It begins anew: what was learned of its answers is forgotten.
    pub(crate) fn forget_times(&self) {
        self.latency.set(Latency::default());
    }

    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.created)
    }

    /// Whether nothing recent speaks against it. While one request tries whether it can be connected to
    /// again, the others wait for what comes of it elsewhere.
    pub(crate) fn is_usable(&self, now: Instant) -> bool {
        self.avoided_until.get().is_none_or(|until| {
            until <= now && !self.is_unresponsive.get() && self.attempt.borrow().is_none()
        })
    }

    /// Tries to connect to an unresponsive endpoint when it is time, independently of requests.
    #[inline(never)]
    pub(crate) fn probe(self: &Rc<Self>, worker: &Rc<Worker>, now: Instant) {
        let is_due = self.avoided_until.get().is_some_and(|until| until <= now);
        if is_due && self.is_unresponsive.get() && self.attempt.borrow().is_none() {
            connect::probe(self, worker);
        }
    }

    /// It, or the application behind it, could not be reached: others are preferred for a while.
    fn avoid(&self, worker: &Worker) {
        // Requests that fail together are one failure.
        let now = Instant::now();
        if self.avoided_until.get().is_none_or(|until| until <= now) {
            let failures = self.failures.get().saturating_add(1);
            self.failures.set(failures);
            let pause = leno_traffic::backoff::delay(failures, worker.draw());
            self.avoided_until.set(Some(now + pause));
            worker.shard.add(Count::EndpointBackoffs, 1);
        }
    }

    /// It answered: nothing is held against it.
    fn welcome(&self) {
        self.failures.set(0);
        self.avoided_until.set(None);
        self.is_unresponsive.set(false);
    }

    /// Takes no more requests; those under way finish.
    pub(crate) fn retire(&self) {
        for link in self.links.borrow().iter().chain(self.suspended.borrow().iter()) {
            link.retire();
        }
        self.foreign.clear();
        self.http2.clear();
    }

    /// The time for a connection attempt that requests share; each of them waits for its own.
    fn patience(&self, worker: &Worker) -> Duration {
        let of_all = worker.config.limits.connect_timeout;
        self.connect_timeout.get().map_or(of_all, |longest| longest.max(of_all))
    }

    /// Lets connection attempts take as long as a request waits.
    fn allow(&self, wait: Wait) {
        if let Wait::Limited(limit) = wait {
            self.connect_timeout.set(self.connect_timeout.get().max(Some(limit)));
        }
    }

    /// The time for which a request waits for a connection to it.
    fn connect_timeout_for(&self, worker: &Worker, wait: Wait) -> Duration {
        let of_all = worker.config.limits.connect_timeout;
        match wait {
            Wait::Whole => of_all,
            Wait::Short => of_all.min(SHORT_WAIT),
            Wait::Limited(limit) => limit,
        }
    }

    fn open_link(&self) -> Option<LinkHandle> {
        let mut links = self.links.borrow_mut();
        links.retain(|link| !link.is_broken());
        links.iter().find(|link| link.is_open() && link.streams() < STREAMS_PER_LINK).cloned()
    }

    fn add_link(&self, link: LinkHandle) {
        self.links.borrow_mut().push(link);
    }
}

impl Drop for Upstream {
    /// A link that was opened for requests of a retired endpoint ends with the last of them.
    fn drop(&mut self) {
        self.retire();
    }
}

impl Application {
    pub(crate) fn new(address: SocketAddr, speaks: Speaks) -> Self {
        let (pool, http2) = (Pool::default(), Http2Pool::default());
        Self { address, speaks, is_outside: false, pool, http2 }
    }

    /// A server outside the mesh, which speaks HTTP/1.1.
    pub(crate) fn outside(address: SocketAddr) -> Self {
        Self { is_outside: true, ..Self::new(address, Speaks::Http1) }
    }

    /// True when the application is at this address.
    pub(crate) fn is_at(&self, address: SocketAddr) -> bool {
        self.address == address
    }

    /// Keeps idle connections only while its port is open: an application that is about to be stopped gets no
    /// further request over one of them.
    pub(crate) fn follow(&self, states: &PortStates) {
        self.pool.set_open(states.is_open(self.address.port()));
    }

    /// True for the same server by the same protocol.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.address, self.speaks) == (other.address, other.speaks)
            && self.is_outside == other.is_outside
    }

    /// A connection to the application, kept warm or new.
    pub(crate) async fn lease(&self, worker: &Rc<Worker>) -> Result<Lease, Reason> {
        if self.speaks == Speaks::Http2 {
            self.permit(worker).await?;
            let patience = worker.config.limits.connect_timeout;
            let leased = self.http2.lease(self.address, worker, patience).await;
            // A wait for room at the one application is not repeated.
            let leased = leased.map_err(|reason| match reason {
                Reason::UpstreamRefused => Reason::ConnectTimeout,
                reason => reason,
            });
            return leased.map(Lease::Http2);
        }
        if let Some(connection) = self.pool.take() {
            worker.shard.add(Count::LeaseReused, 1);
            return Ok(Lease::Http1(connection));
        }
        worker.shard.add(Count::LeaseOpened, 1);
        Ok(Lease::Http1(Box::new(self.connect(worker).await?)))
    }

    /// A connection that no other client uses; HTTP/2 has none.
    async fn lease_alone(&self, worker: &Rc<Worker>) -> Result<Lease, Reason> {
        if self.speaks == Speaks::Http2 {
            return self.lease(worker).await;
        }
        worker.shard.add(Count::LeaseOpened, 1);
        Ok(Lease::Http1(Box::new(self.connect(worker).await?)))
    }

    /// Waits for an application that starts, and rejects a port that another process holds.
    async fn permit(&self, worker: &Worker) -> Result<(), Reason> {
        let application = &worker.world.application;
        if self.is_outside || !application.may_be_closed() {
            return Ok(());
        }
        Box::pin(application.permit(self.address.port(), START_PATIENCE)).await
    }

    /// A connection of one's own, never shared with other requests.
    pub(crate) async fn connect(&self, worker: &Rc<Worker>) -> Result<Http1Upstream, Reason> {
        self.permit(worker).await?;
        let patience = worker.config.limits.connect_timeout;
        let mut connection = connect::application(self.address, worker, patience).await?;
        connection.reader.is_tolerant = !self.is_outside;
        Ok(connection)
    }
}

/// A request under way at an endpoint: its load, until dropped.
pub(crate) struct InFlight(Rc<Upstream>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
    }
}

/// An attempt at an endpoint, of which is measured how long the answer takes.
pub(crate) struct Timed {
    in_flight: InFlight,
    /// Nothing is measured where there is no other endpoint.
    began: Cell<Option<Instant>>,
    stage: Cell<Stage>,
}

/// How far an attempt has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It waits for a connection, or its client still sends: time that is not the endpoint's.
    Asking,
    /// All was sent.
    Waiting,
    /// The answer has begun, or there will be none.
    Over,
}

impl Timed {
    /// It waited for a connection. Connecting is not answering: who is connected to seldom would seem slow.
    pub(crate) fn connected(&self) {
        self.began.set(self.began.get().map(|_| Instant::now()));
    }

    /// All was sent at once.
    pub(crate) fn waits(&self) {
        self.stage.set(Stage::Waiting);
    }

    /// Its body was sent: that took as long as its client did.
    pub(crate) fn sent(&self) {
        self.connected();
        self.waits();
    }

    /// Its answer begins, with this status.
    pub(crate) fn answers(&self, status: u16) {
        self.stage.set(Stage::Over);
        match status {
            429 | 500.. => self.fails(),
            400..=499 => self.learn(Latency::refused),
            _ => self.learn(Latency::answered),
        }
    }

    /// It ended for this reason. Only where that is the endpoint's did it fail: nobody knows how it would have
    /// answered a client that went away, or what was never sent.
    pub(crate) fn ends(&self, reason: Reason) {
        if reason.side() == Side::Upstream && self.stage.get() != Stage::Over {
            if self.stage.replace(Stage::Over) == Stage::Asking {
                self.connected();
            }
            self.fails();
        }
    }

    /// It ended without an answer, or with one that says so. Where a policy watches, what failures mean
    /// is for that to say: they draw no requests away before it has seen enough of them.
    fn fails(&self) {
        match self.in_flight.0.slot.get() {
            watch::NOWHERE => self.learn(Latency::failed),
            _ => self.learn(Latency::peaked),
        }
    }

    fn learn(&self, learn: impl FnOnce(&mut Latency, Duration, Duration)) {
        let Some(began) = self.began.get() else { return };
        let (upstream, now) = (&*self.in_flight.0, Instant::now());
        let took = now.saturating_duration_since(began);
        let mut latency = upstream.latency.get();
        learn(&mut latency, took, upstream.age(now));
        upstream.latency.set(latency);
    }
}

impl Drop for Timed {
    /// Given up, it has taken so long at least.
    fn drop(&mut self) {
        if self.stage.get() == Stage::Waiting {
            self.learn(Latency::peaked);
        }
    }
}

/// The time that a request waits for a connection to an endpoint before it tries another one.
const SHORT_WAIT: Duration = Duration::from_secs(1);
/// Streams on one link before another is opened; below the peer's limit of 1024.
const STREAMS_PER_LINK: usize = 1000;

/// What was picked for one attempt.
#[derive(Clone)]
pub(crate) enum Destined {
    /// The application behind this sidecar.
    Application(Rc<Application>),
    /// An endpoint of a service.
    Upstream(Rc<Upstream>),
}

impl Destined {
    /// Which endpoint it is; none for the application.
    pub(crate) fn endpoint(&self) -> Option<EndpointId> {
        match self {
            Self::Application(_) => None,
            Self::Upstream(upstream) => Some(upstream.endpoint.id.clone()),
        }
    }

    /// Where it is.
    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            Self::Application(application) => application.address,
            Self::Upstream(upstream) => upstream.endpoint.address,
        }
    }

    /// Marks a request as under way there until the guard is dropped, since it was picked.
    pub(crate) fn enter(&self) -> Option<Timed> {
        match self {
            Self::Application(_) => None,
            Self::Upstream(upstream) => Some(upstream.time()),
        }
    }

    /// Tells its ward that a request goes there.
    pub(crate) fn begin(&self, ward: &Rc<ward::Ward>) -> Result<Option<ward::Trial>, Reason> {
        match self {
            Self::Application(_) => Ok(None),
            Self::Upstream(upstream) => ward.begin(upstream, Some(|it| &it.requests)).map(Some),
        }
    }

    /// A way to send one request there. `found_http2`: its client speaks HTTP/2 to a port without a declared protocol.
    pub(crate) async fn lease(
        &self,
        worker: &Rc<Worker>,
        timed: Option<&Timed>,
        (found_http2, wait): (bool, impl Into<Wait>),
    ) -> Result<Lease, Reason> {
        match self {
            Self::Application(application) => application.lease(worker).await,
            // Boxed, so that the others need no room for it.
            Self::Upstream(upstream) if found_http2 && upstream.is_plain() => {
                let leased = Box::pin(upstream.lease_http2(worker, wait.into())).await;
                timed.into_iter().for_each(Timed::connected);
                leased
            }
            Self::Upstream(upstream) => upstream.lease(worker, timed, wait).await,
        }
    }

    /// Learns from how an attempt ended whether to prefer others.
    pub(crate) fn learn(&self, worker: &Worker, outcome: Result<(), Reason>) {
        let Self::Upstream(upstream) = self else { return };
        match outcome {
            Ok(()) => upstream.welcome(),
            Err(reason) if connect::is_of_application(reason) => upstream.avoid(worker),
            Err(_) => {}
        }
    }

    /// A connection of HTTP/1.1, for a request that its HTTP/2 has no words for.
    pub(crate) async fn lease_http1(
        &self,
        worker: &Rc<Worker>,
        (timed, wait): (Option<&Timed>, Wait),
    ) -> Result<Lease, Reason> {
        let leased = match self {
            Self::Application(_) => return Err(Reason::Unsupported),
            Self::Upstream(upstream) if upstream.is_plain() => return Err(Reason::Unsupported),
            Self::Upstream(upstream) => connect::foreign_http1(upstream, worker, wait).await,
        };
        if let Some(timed) = timed {
            timed.connected();
        }
        leased
    }

    /// A connection of HTTP/1.1 for the requests of one client alone, where the way there has such.
    pub(crate) async fn lease_alone(
        &self,
        worker: &Rc<Worker>,
        (timed, wait): (Option<&Timed>, Wait),
    ) -> Result<Lease, Reason> {
        let leased = match self {
            Self::Application(application) => application.lease_alone(worker).await,
            Self::Upstream(upstream) => connect::alone(upstream, worker, wait).await,
        };
        if let Some(timed) = timed {
            timed.connected();
        }
        leased
    }

    /// Takes a connection back that may serve another request.
    pub(crate) fn give_back(&self, connection: Box<Http1Upstream>) {
        let now = Instant::now();
        match self {
            Self::Application(application) => application.pool.put(connection, now),
            Self::Upstream(upstream) => upstream.foreign.put(connection, now),
        }
    }
}
