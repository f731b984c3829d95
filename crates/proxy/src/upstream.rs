//! Holds the upstreams of one data thread: service endpoints, reached over links (connections between two sidecars
//! that carry many streams) or pooled connections, and the local application. Requests check out connections here,
//! after an endpoint has been picked.

pub(crate) use attempt_target::AttemptTarget;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_model::{Endpoint, FailureSide, Protocol, Reason, Weight};
use leno_telemetry::Count;
use leno_traffic::balance::{EndpointLatency, Load};

use crate::application_ports::{MAX_START_WAIT, PortStates};
use crate::http2::client::{Http2Checkout, Http2Pool};
use crate::link::LinkHandle;
use crate::worker::Worker;

mod attempt_target;
pub(crate) mod circuit_breaker;
pub(crate) mod cluster;
pub(crate) mod connect;
mod health_check;
pub(crate) mod outlier_monitor;
pub(crate) mod pick;
pub(crate) mod pool;
pub(crate) mod priorities;
mod unresponsive;

pub(crate) use connect::{ConnectWait, connect_wait_for};
pub(crate) use pool::{Http1Pool, Http1Upstream};

/// One endpoint, with this thread's state: links, pooled connections, load, backoff.
pub(crate) struct Upstream {
    pub(crate) endpoint: Arc<Endpoint>,
    /// The number of requests in flight.
    in_flight: Cell<u32>,
    /// The latency statistics of the endpoint, from the requests of this thread.
    latency: Cell<EndpointLatency>,
    /// The time to which latency samples are relative.
    created_at: Instant,
    /// The time when this endpoint was last picked from several endpoints; `None` if it was the only one.
    picked_at: Cell<Option<Instant>>,
    /// The number of consecutive failures, which determines the backoff.
    consecutive_failures: Cell<u32>,
    /// The end of the backoff, which may have passed; `None` if the last attempt did not fail.
    avoided_until: Cell<Option<Instant>>,
    /// True after a connection attempt or a ping timed out. Requests avoid the endpoint until a connection
    /// attempt that no request waits for succeeds; see [`Self::probe_unresponsive`].
    is_unresponsive: Cell<bool>,
    /// The longest connect timeout of any policy. Shared connection attempts take at least this long.
    pub(crate) connect_timeout: Cell<Option<Duration>>,
    /// The index of the endpoint in the outlier detector; [`outlier_monitor::NO_SLOT`] if there is no detector.
    pub(crate) detector_slot: Cell<usize>,
    links: RefCell<Vec<LinkHandle>>,
    /// Links with a peer that does not respond: new requests avoid them until the peer responds again.
    suspended_links: RefCell<Vec<LinkHandle>>,
    /// The connection attempt shared by requests.
    connect_attempt: RefCell<Option<Rc<connect::ConnectAttempt>>>,
    /// Connections to a peer that does not support links.
    http1_pool: Http1Pool,
    /// True if the peer supports HTTP/1.1 only: it selected `http/1.1` or no protocol in ALPN, or it has no
    /// sidecar and its application uses HTTP/1.1.
    is_http1_only: Cell<bool>,
    /// Connections to a peer that selected `h2`.
    http2_pool: Http2Pool,
}

/// A connection checked out for one request.
pub(crate) enum Checkout {
    /// A link on which a stream may be opened.
    Link(LinkHandle),
    /// An exclusive HTTP/1.1 connection.
    Http1(Box<Http1Upstream>),
    /// An HTTP/2 connection on which a stream may be opened.
    Http2(Http2Checkout),
}

/// The local application, or a server outside the mesh, at one address.
pub(crate) struct Application {
    address: SocketAddr,
    protocol: ApplicationProtocol,
    /// True for a server outside the mesh: the proxy does not monitor its ports.
    is_external: bool,
    http1_pool: Http1Pool,
    http2_pool: Http2Pool,
}

/// The protocol of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ApplicationProtocol {
    Http1,
    Http2,
}

impl From<Protocol> for ApplicationProtocol {
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
            created_at: now,
            picked_at: Cell::new(None),
            consecutive_failures: Cell::new(0),
            avoided_until: Cell::new(None),
            is_unresponsive: Cell::new(false),
            connect_timeout: Cell::new(None),
            detector_slot: Cell::new(outlier_monitor::NO_SLOT),
            links: RefCell::default(),
            suspended_links: RefCell::default(),
            connect_attempt: RefCell::default(),
            http1_pool: Http1Pool::default(),
            is_http1_only: Cell::new(false),
            http2_pool: Http2Pool::default(),
        }
    }

    /// Returns a link or connection to the endpoint. Opens a new one if necessary, within the limit `wait`; the
    /// latency measurement of `timed_attempt` excludes this time.
    pub(crate) async fn acquire(
        self: &Rc<Self>,
        worker: &Rc<Worker>,
        timed_attempt: Option<&TimedAttempt>,
        wait: impl Into<ConnectWait>,
    ) -> Result<Checkout, Reason> {
        if let Some(link) = self.find_open_link() {
            worker.metrics.add(Count::CheckoutReused, 1);
            return Ok(Checkout::Link(link));
        }
        if self.is_http1_only.get()
            && let Some(connection) = self.http1_pool.take_recent()
        {
            worker.metrics.add(Count::CheckoutReused, 1);
            return Ok(Checkout::Http1(connection));
        }
        if let Some(checkout) = self.http2_pool.acquire_ready() {
            worker.metrics.add(Count::CheckoutReused, 1);
            return Ok(Checkout::Http2(checkout));
        }
        let wait = wait.into();
        let result = if self.is_unmeshed() {
            let protocol = connect::declared_protocol(self, worker);
            Box::pin(connect::acquire_plaintext(self, worker, protocol, wait)).await
        } else {
            worker.metrics.add(Count::CheckoutOpened, 1);
            connect::acquire_connection(self, worker, wait).await
        };
        if let Some(timed_attempt) = timed_attempt {
            timed_attempt.mark_connected();
        }
        result
    }

    /// Returns an HTTP/2 connection to an endpoint without a sidecar, for a request of an HTTP/2 client.
    async fn acquire_http2(
        self: &Rc<Self>,
        worker: &Rc<Worker>,
        wait: ConnectWait,
    ) -> Result<Checkout, Reason> {
        match self.http2_pool.acquire_ready() {
            Some(checkout) => {
                worker.metrics.add(Count::CheckoutReused, 1);
                Ok(Checkout::Http2(checkout))
            }
            None => {
                connect::acquire_plaintext(self, worker, ApplicationProtocol::Http2, wait).await
            }
        }
    }

    /// True if the endpoint has no sidecar: requests go directly to the application, in plaintext.
    pub(crate) fn is_unmeshed(&self) -> bool {
        self.endpoint.account.is_none()
    }

    /// True if requests use HTTP/1.1 connections, because the peer supports neither links nor HTTP/2.
    pub(crate) fn uses_http1(&self) -> bool {
        self.is_http1_only.get()
    }

    /// Counts a request as in flight until the guard is dropped.
    pub(crate) fn start_request(self: &Rc<Self>) -> InFlight {
        self.in_flight.set(self.in_flight.get() + 1);
        InFlight(self.clone())
    }

    /// Counts a request as in flight, and measures its latency since the pick if there were several endpoints.
    pub(crate) fn start_timed_attempt(self: &Rc<Self>) -> TimedAttempt {
        let stage = Cell::new(AttemptStage::Sending);
        TimedAttempt { in_flight: self.start_request(), started_at: self.picked_at.clone(), stage }
    }

    /// Returns the load of the endpoint, as this thread sees it. `latency_time`: the current time; `None` if
    /// the balancer ignores latency.
    pub(crate) fn load(&self, weight: Option<Weight>, latency_time: Option<Instant>) -> Load {
        let in_flight = self.in_flight.get();
        match latency_time {
            None => Load { effective_requests: in_flight, latency_log2: None, weight },
            Some(now) => {
                let (latency, age) = (self.latency.get(), self.age_at(now));
                let failures = u32::from(latency.failure_count(age));
                Load {
                    effective_requests: in_flight + failures,
                    latency_log2: latency.latency_log2(age),
                    weight,
                }
            }
        }
    }

    /// Records the time at which this endpoint was picked from several endpoints. `None`, for the only endpoint
    /// of a port, disables the latency measurement.
    pub(crate) fn record_pick(&self, time: Option<Instant>) {
        self.picked_at.set(time);
    }

    /// Resets the latency statistics when the endpoint returns to service.
    pub(crate) fn reset_latency(&self) {
        self.latency.set(EndpointLatency::default());
    }

    /// Returns the time since this state was created, which is the clock of the latency statistics.
    fn age_at(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.created_at)
    }

    /// True if the endpoint is not in backoff. After the backoff, one request tests if the endpoint is
    /// reachable again. Until this attempt ends, further requests use other endpoints.
    pub(crate) fn is_usable(&self, now: Instant) -> bool {
        self.avoided_until.get().is_none_or(|until| {
            until <= now && !self.is_unresponsive.get() && self.connect_attempt.borrow().is_none()
        })
    }

    /// Tries to connect to an unresponsive endpoint after its backoff, independently of requests.
    #[inline(never)]
    pub(crate) fn probe_unresponsive(self: &Rc<Self>, worker: &Rc<Worker>, now: Instant) {
        let is_due = self.avoided_until.get().is_some_and(|until| until <= now);
        if is_due && self.is_unresponsive.get() && self.connect_attempt.borrow().is_none() {
            connect::start_probe(self, worker);
        }
    }

    /// Starts a backoff after a failure to reach the endpoint or its application: requests prefer other
    /// endpoints until it ends.
    fn back_off(&self, worker: &Worker) {
        // Concurrent failures count as one.
        let now = Instant::now();
        if self.avoided_until.get().is_none_or(|until| until <= now) {
            let failures = self.consecutive_failures.get().saturating_add(1);
            self.consecutive_failures.set(failures);
            let backoff = leno_traffic::backoff::backoff_delay(failures, worker.random_number());
            self.avoided_until.set(Some(now + backoff));
            worker.metrics.add(Count::EndpointBackoffs, 1);
        }
    }

    /// Ends the backoff and resets the failure count, after a success.
    fn clear_failures(&self) {
        self.consecutive_failures.set(0);
        self.avoided_until.set(None);
        self.is_unresponsive.set(false);
    }

    /// Accepts no more requests; those in flight finish.
    pub(crate) fn retire(&self) {
        for link in self.links.borrow().iter().chain(self.suspended_links.borrow().iter()) {
            link.retire();
        }
        self.http1_pool.clear();
        self.http2_pool.clear();
    }

    /// Returns the time limit of a connection attempt that requests share. Each request has a limit of its own,
    /// which may be shorter.
    fn shared_connect_timeout(&self, worker: &Worker) -> Duration {
        let default_limit = worker.config.limits.connect_timeout;
        self.connect_timeout.get().map_or(default_limit, |longest| longest.max(default_limit))
    }

    /// Extends the limit of connection attempts to that of a request.
    fn extend_connect_timeout(&self, wait: ConnectWait) {
        if let ConnectWait::Limited(limit) = wait {
            self.connect_timeout.set(self.connect_timeout.get().max(Some(limit)));
        }
    }

    /// Returns the time limit of a request's wait for a connection.
    fn connect_timeout_for(&self, worker: &Worker, wait: ConnectWait) -> Duration {
        let default_limit = worker.config.limits.connect_timeout;
        match wait {
            ConnectWait::Full => default_limit,
            ConnectWait::Short => default_limit.min(SHORT_WAIT),
            ConnectWait::Limited(limit) => limit,
        }
    }

    /// Returns the first link with room for another stream; `None` if there is none. Removes broken links.
    fn find_open_link(&self) -> Option<LinkHandle> {
        let mut links = self.links.borrow_mut();
        links.retain(|link| !link.is_broken());
        links
            .iter()
            .find(|link| link.is_open() && link.stream_count() < MAX_STREAMS_PER_LINK)
            .cloned()
    }

    fn add_link(&self, link: LinkHandle) {
        self.links.borrow_mut().push(link);
    }
}

impl Drop for Upstream {
    /// A link that was opened for requests of a retired endpoint ends with the last of these requests.
    fn drop(&mut self) {
        self.retire();
    }
}

impl Application {
    pub(crate) fn new(address: SocketAddr, protocol: ApplicationProtocol) -> Self {
        let (http1_pool, http2_pool) = (Http1Pool::default(), Http2Pool::default());
        Self { address, protocol, is_external: false, http1_pool, http2_pool }
    }

    /// Creates the state of a server outside the mesh, which gets HTTP/1.1.
    pub(crate) fn external(address: SocketAddr) -> Self {
        Self { is_external: true, ..Self::new(address, ApplicationProtocol::Http1) }
    }

    /// True if the application is at this address.
    pub(crate) fn is_at(&self, address: SocketAddr) -> bool {
        self.address == address
    }

    /// Keeps idle connections only while the port is open, so that an application that is about to stop gets no
    /// further request over them.
    pub(crate) fn apply_port_states(&self, port_states: &PortStates) {
        self.http1_pool.set_open(port_states.is_open(self.address.port()));
    }

    /// True for the same server with the same protocol.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.address, self.protocol) == (other.address, other.protocol)
            && self.is_external == other.is_external
    }

    /// Returns a connection to the application, idle or new.
    pub(crate) async fn acquire(&self, worker: &Rc<Worker>) -> Result<Checkout, Reason> {
        if self.protocol == ApplicationProtocol::Http2 {
            self.await_port(worker).await?;
            let max_wait = worker.config.limits.connect_timeout;
            let checkout = self.http2_pool.acquire_within(self.address, worker, max_wait).await;
            // `UpstreamRefused` would be retried at another endpoint, but there is only one application.
            return checkout.map(Checkout::Http2).map_err(|reason| match reason {
                Reason::UpstreamRefused => Reason::ConnectTimeout,
                reason => reason,
            });
        }
        if let Some(connection) = self.http1_pool.take_recent() {
            worker.metrics.add(Count::CheckoutReused, 1);
            return Ok(Checkout::Http1(connection));
        }
        worker.metrics.add(Count::CheckoutOpened, 1);
        Ok(Checkout::Http1(Box::new(self.connect_exclusive(worker).await?)))
    }

    /// Returns a connection that no other client uses; with HTTP/2, a stream on a shared connection.
    async fn acquire_exclusive(&self, worker: &Rc<Worker>) -> Result<Checkout, Reason> {
        if self.protocol == ApplicationProtocol::Http2 {
            return self.acquire(worker).await;
        }
        worker.metrics.add(Count::CheckoutOpened, 1);
        Ok(Checkout::Http1(Box::new(self.connect_exclusive(worker).await?)))
    }

    /// Waits for an application that is starting, and rejects a port that another process holds.
    async fn await_port(&self, worker: &Worker) -> Result<(), Reason> {
        let application_ports = &worker.config_store.application_ports;
        if self.is_external || !application_ports.may_be_closed() {
            return Ok(());
        }
        Box::pin(application_ports.wait_for_port(self.address.port(), MAX_START_WAIT)).await
    }

    /// Opens an HTTP/1.1 connection that is not shared with other requests.
    pub(crate) async fn connect_exclusive(
        &self,
        worker: &Rc<Worker>,
    ) -> Result<Http1Upstream, Reason> {
        self.await_port(worker).await?;
        let max_wait = worker.config.limits.connect_timeout;
        let mut connection = connect::connect_application(self.address, worker, max_wait).await?;
        connection.reader.is_tolerant = !self.is_external;
        Ok(connection)
    }
}

/// Counts a request as load of its endpoint until dropped.
pub(crate) struct InFlight(Rc<Upstream>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
    }
}

/// An attempt at an endpoint, with its latency measurement.
pub(crate) struct TimedAttempt {
    in_flight: InFlight,
    /// The start of the latency measurement; `None` if the endpoint was the only one.
    started_at: Cell<Option<Instant>>,
    stage: Cell<AttemptStage>,
}

/// The progress of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AttemptStage {
    /// The attempt waits for a connection, or the client is still sending the request: the endpoint does not
    /// cause this delay.
    Sending,
    /// The whole request was sent.
    Waiting,
    /// The response has started, or the attempt failed.
    Done,
}

impl TimedAttempt {
    /// Restarts the measurement when the connection is ready. The time for connecting does not count, because
    /// otherwise rarely used endpoints would appear slow.
    pub(crate) fn mark_connected(&self) {
        self.started_at.set(self.started_at.get().map(|_| Instant::now()));
    }

    /// Records that the request was sent together with its whole body.
    pub(crate) fn mark_waiting(&self) {
        self.stage.set(AttemptStage::Waiting);
    }

    /// Records that the body was sent, and restarts the measurement: until now, the time depended on the
    /// client.
    pub(crate) fn mark_sent(&self) {
        self.mark_connected();
        self.mark_waiting();
    }

    /// Records the status of the response.
    pub(crate) fn record_response(&self, status: u16) {
        self.stage.set(AttemptStage::Done);
        match status {
            429 | 500.. => self.count_failure(),
            400..=499 => self.update_latency(EndpointLatency::record_rejection),
            _ => self.update_latency(EndpointLatency::record_response),
        }
    }

    /// Records the end of the attempt without a response. Only upstream reasons count as failures: a
    /// disconnected client or an unsent request reveals nothing about the endpoint.
    pub(crate) fn record_failure(&self, reason: Reason) {
        if reason.side() == FailureSide::Upstream && self.stage.get() != AttemptStage::Done {
            if self.stage.replace(AttemptStage::Done) == AttemptStage::Sending {
                self.mark_connected();
            }
            self.count_failure();
        }
    }

    /// Records a failure, which moves load to other endpoints. With outlier detection, the policy decides about
    /// failures, so only the elapsed time is recorded.
    fn count_failure(&self) {
        match self.in_flight.0.detector_slot.get() {
            outlier_monitor::NO_SLOT => self.update_latency(EndpointLatency::record_failure),
            _ => self.update_latency(EndpointLatency::record_pending),
        }
    }

    fn update_latency(&self, record_sample: impl FnOnce(&mut EndpointLatency, Duration, Duration)) {
        let Some(start) = self.started_at.get() else { return };
        let (upstream, now) = (&*self.in_flight.0, Instant::now());
        let elapsed = now.saturating_duration_since(start);
        let mut latency = upstream.latency.get();
        record_sample(&mut latency, elapsed, upstream.age_at(now));
        upstream.latency.set(latency);
    }
}

impl Drop for TimedAttempt {
    /// Without a response, the elapsed time is a lower bound of the latency.
    fn drop(&mut self) {
        if self.stage.get() == AttemptStage::Waiting {
            self.update_latency(EndpointLatency::record_pending);
        }
    }
}

/// The maximum time that a request waits for a connection to an endpoint before it tries another one.
const SHORT_WAIT: Duration = Duration::from_secs(1);
/// The maximum number of streams on one link; then another link is opened. It is below the peer's limit of
/// 1024.
const MAX_STREAMS_PER_LINK: usize = 1000;
