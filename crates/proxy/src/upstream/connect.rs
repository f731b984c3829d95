//! Connection establishment: limited in time, and shared by the requests that wait for the same endpoint.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use leno_identity::{reason_of, server_name, session_peer};
use leno_model::{Endpoint, EndpointId, FailureSide, Protocol, Reason, SpiffeId};
use leno_telemetry::{ConnectionSide, Count, MetricsShard};
use leno_traffic::retry;
use leno_wire::link::Role;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::cluster::UpstreamCluster;
use super::{ApplicationProtocol, Checkout, Http1Upstream, Upstream};
use crate::config::Config;
use crate::config_store::ConfigStore;
use crate::connections::OpenCounter;
use crate::dial::{dial_address, dial_reason};
use crate::http2::client::greet_new;
use crate::io::{ByteStream, Io};
use crate::link::LinkHandle;
use crate::tls::{ALPN_ALONE, ALPN_HTTP2, ALPN_LINK, AlpnOffer, TlsConfigs, expiry_instant};
use crate::worker::Worker;

/// The time limit of a request's wait for a connection to an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectWait {
    /// The full connect timeout.
    Whole,
    /// A shorter time, because there are other endpoints to try. The connection attempt continues.
    Short,
    /// The `connectTimeout` of the applicable policies. The connection attempt continues for other requests.
    Limited(Duration),
}

impl ConnectWait {
    /// Returns the wait under the policies of a port, which may limit it.
    pub(crate) fn for_cluster(
        cluster: Option<&UpstreamCluster>,
        otherwise: impl FnOnce() -> Self,
    ) -> Self {
        cluster.and_then(UpstreamCluster::connect_timeout).map_or_else(otherwise, Self::Limited)
    }
}

/// Returns the wait of an attempt for a connection, by the number of retries and of endpoints.
pub(crate) fn wait_for(retries: u32, endpoints: usize) -> ConnectWait {
    let number = usize::try_from(retries).unwrap_or(usize::MAX);
    match endpoints > 1 && number < retry::unsent_max(endpoints - 1) {
        true => ConnectWait::Short,
        false => ConnectWait::Whole,
    }
}

/// One attempt to connect to an endpoint. It continues if the request that started it is gone.
#[derive(Default)]
pub(crate) struct ConnectAttempt {
    outcome: Cell<Option<Result<(), Reason>>>,
    /// The first connection to a foreign peer, for the first request that takes it.
    foreign: RefCell<Option<Http1Upstream>>,
    done: Notify,
}

impl ConnectAttempt {
    async fn wait_for_end(&self) -> Result<(), Reason> {
        loop {
            let done = self.done.notified();
            if let Some(outcome) = self.outcome.get() {
                return outcome;
            }
            done.await;
        }
    }
}

/// Checks out a connection to `upstream`, which several requests may be waiting for: within the connect
/// timeout, plus the same time for the greeting.
pub(crate) async fn acquire_connection(
    upstream: &Rc<Upstream>,
    worker: &Rc<Worker>,
    wait: ConnectWait,
) -> Result<Checkout, Reason> {
    upstream.extend_wait(wait);
    let mut checked_out = pin!(acquire_retrying(upstream, worker));
    let max_wait = upstream.connect_timeout_for(worker, wait);
    if wait != ConnectWait::Whole {
        if let Ok(checked_out) = tokio::time::timeout(max_wait, &mut checked_out).await {
            return checked_out;
        }
        // Without an attempt, or with a full connection, the endpoint is busy, not unresponsive.
        if upstream.attempt.borrow().is_some() && !upstream.http2.is_open() {
            upstream.mark_unresponsive(worker);
            return Err(Reason::ConnectTimeout);
        }
    }
    let max_wait = max_wait.saturating_mul(2);
    // Connecting has a limit of its own: after this wait the endpoint is busy.
    tokio::time::timeout(max_wait, checked_out).await.unwrap_or(Err(Reason::UpstreamRefused))
}

async fn acquire_retrying(
    upstream: &Rc<Upstream>,
    worker: &Rc<Worker>,
) -> Result<Checkout, Reason> {
    let mut attempts = 0;
    while attempts < ATTEMPTS_MAX {
        if let Some(checkout) = upstream.http2.wait_for_room().await {
            return Ok(Checkout::Http2(checkout));
        }
        let attempt = join_attempt(upstream, worker);
        let outcome = tokio::select! {
            biased;
            outcome = attempt.wait_for_end() => outcome,
            Some(checkout) = upstream.http2.room_on_open() => return Ok(Checkout::Http2(checkout)),
        };
        // Even after a failed attempt, a suspended link may have resumed.
        if let Some(link) = upstream.open_link() {
            return Ok(Checkout::Link(link));
        }
        if let Err(reason) = outcome {
            // The peer may accept only a few connections.
            let checkout = upstream.http2.room_on_open().await.ok_or(reason)?;
            return Ok(Checkout::Http2(checkout));
        }
        if let Some(checkout) = upstream.http2.acquire_ready() {
            return Ok(Checkout::Http2(checkout));
        }
        if let Some(connection) = attempt.foreign.take() {
            return Ok(Checkout::Http1(Box::new(connection)));
        }
        // If other requests took the room of a connection that is still open, there is progress.
        if !upstream.http2.is_open() {
            attempts += 1;
        }
    }
    Err(Reason::UpstreamRefused)
}

/// Returns an exclusive HTTP/1.1 connection to a peer that normally uses HTTP/2.
pub(crate) async fn foreign_http1(
    upstream: &Upstream,
    worker: &Worker,
    wait: ConnectWait,
) -> Result<Checkout, Reason> {
    if let Some(connection) = upstream.foreign.take_recent() {
        worker.shard.add(Count::CheckoutReused, 1);
        return Ok(Checkout::Http1(connection));
    }
    worker.shard.add(Count::CheckoutOpened, 1);
    let shaken = open_tls(upstream, worker, AlpnOffer::Http1);
    let max_wait = upstream.connect_timeout_for(worker, wait);
    let shaken = tokio::time::timeout(max_wait, shaken).await;
    let (tls, expires) = shaken.map_err(|_| Reason::ConnectTimeout)??;
    Ok(Checkout::Http1(Box::new(own_connection(tls, expires, worker))))
}

/// Returns an HTTP/1.1 connection for one client, or a shared one if the peer has no such connections.
pub(crate) async fn acquire_exclusive(
    upstream: &Rc<Upstream>,
    worker: &Rc<Worker>,
    wait: ConnectWait,
) -> Result<Checkout, Reason> {
    if upstream.is_plain() {
        return match declared_protocol(upstream, worker) {
            ApplicationProtocol::Http1 => {
                let connected = plain_bytes(upstream, worker, wait).await;
                connected.map(|mut connection| {
                    // No other proxy normalizes its responses.
                    connection.reader.is_tolerant = true;
                    Checkout::Http1(Box::new(connection))
                })
            }
            ApplicationProtocol::Http2 => {
                acquire_plaintext(upstream, worker, ApplicationProtocol::Http2, wait).await
            }
        };
    }
    worker.shard.add(Count::CheckoutOpened, 1);
    let shaken = open_tls(upstream, worker, AlpnOffer::Exclusive);
    let max_wait = upstream.connect_timeout_for(worker, wait);
    let shaken = tokio::time::timeout(max_wait, shaken).await;
    let shaken = shaken.unwrap_or(Err(Reason::ConnectTimeout));
    record_outcome(upstream, worker, shaken.as_ref().map(drop).map_err(|reason| *reason));
    let (tls, expires) = shaken?;
    let spoken = tls.get_ref().1.alpn_protocol();
    if spoken == Some(ALPN_LINK) {
        return upstream.acquire(worker, None, wait).await;
    }
    let marks_rejections = spoken == Some(ALPN_ALONE);
    let mut connection = Box::new(own_connection(tls, expires, worker));
    connection.marks_rejections = marks_rejections;
    Ok(Checkout::Http1(connection))
}

fn own_connection(tls: TlsStream<TcpStream>, expires: Instant, worker: &Worker) -> Http1Upstream {
    let io = Io::new(ByteStream::Client(Box::new(tls)));
    let counted = OpenCounter::for_connection(&worker.shard, ConnectionSide::Upstream);
    let max_wait = worker.config.limits.body_stall_timeout;
    Http1Upstream::new(io, max_wait, counted).expiring_at(expires)
}

/// Checks out a connection to an endpoint without a sidecar, for this protocol.
pub(crate) async fn acquire_plaintext(
    upstream: &Rc<Upstream>,
    worker: &Rc<Worker>,
    spoken: ApplicationProtocol,
    wait: ConnectWait,
) -> Result<Checkout, Reason> {
    let address = upstream.endpoint.address;
    let max_wait = upstream.connect_timeout_for(worker, wait);
    let checked_out = match spoken {
        ApplicationProtocol::Http2 => {
            upstream.http2.acquire_within(address, worker, max_wait).await.map(Checkout::Http2)
        }
        ApplicationProtocol::Http1 => {
            worker.shard.add(Count::CheckoutOpened, 1);
            upstream.is_foreign.set(true);
            let connected = connect_application(address, worker, max_wait).await;
            connected.map(|mut connection| {
                // No other proxy normalizes its responses.
                connection.reader.is_tolerant = true;
                Checkout::Http1(Box::new(connection))
            })
        }
    };
    record_outcome(upstream, worker, checked_out.as_ref().map(drop).map_err(|reason| *reason));
    checked_out
}

/// Returns an exclusive connection to an endpoint without a sidecar, for opaque bytes.
pub(crate) async fn plain_bytes(
    upstream: &Rc<Upstream>,
    worker: &Rc<Worker>,
    wait: ConnectWait,
) -> Result<Http1Upstream, Reason> {
    worker.shard.add(Count::CheckoutOpened, 1);
    let max_wait = upstream.connect_timeout_for(worker, wait);
    let connected = connect_application(upstream.endpoint.address, worker, max_wait).await;
    record_outcome(upstream, worker, connected.as_ref().map(drop).map_err(|reason| *reason));
    connected
}

/// Returns the protocol that the service of an endpoint without a sidecar declares.
pub(crate) fn declared_protocol(upstream: &Upstream, worker: &Worker) -> ApplicationProtocol {
    let EndpointId { service, port, .. } = &upstream.endpoint.id;
    let Some(config) = worker.config_store.current_config() else {
        return ApplicationProtocol::Http1;
    };
    let plan = config.plans.service(service).and_then(|plan| plan.ports.get(port));
    let gateway = config.plans.gateway.as_ref();
    match plan.map_or(Protocol::Detect, |port| port.protocol) {
        // A gateway route for gRPC to a port without a declared protocol implies HTTP/2.
        Protocol::Detect if gateway.is_some_and(|it| it.takes_calls(service, *port)) => {
            ApplicationProtocol::Http2
        }
        protocol => protocol.into(),
    }
}

/// Updates the endpoint with the outcome of a connection attempt.
fn record_outcome(upstream: &Upstream, worker: &Worker, outcome: Result<(), Reason>) {
    match outcome {
        Ok(()) => upstream.clear_failures(),
        // A lack of capacity on either side says nothing about the endpoint's health.
        Err(Reason::TooManyConnections | Reason::UpstreamRefused) => {}
        Err(Reason::ConnectTimeout) => upstream.mark_unresponsive(worker),
        Err(_) => upstream.back_off(worker),
    }
    worker.shard.add(count_of(outcome), 1);
}

/// Returns the attempt in progress, or starts one.
fn join_attempt(upstream: &Rc<Upstream>, worker: &Rc<Worker>) -> Rc<ConnectAttempt> {
    // A peer without links needs a connection for each request; only the first attempt is shared.
    if !upstream.is_foreign.get()
        && let Some(attempt) = upstream.attempt.borrow().as_ref()
    {
        return attempt.clone();
    }
    let attempt = Rc::new(ConnectAttempt::default());
    *upstream.attempt.borrow_mut() = Some(attempt.clone());
    let (upstream, worker, shared) = (upstream.clone(), worker.clone(), attempt.clone());
    tokio::task::spawn_local(async move {
        let outcome = open_connection(&upstream, &worker, &shared).await;
        if let Err(reason) = outcome {
            tracing::debug!(endpoint = %upstream.endpoint.address, reason = reason.label(), "connect");
        }
        record_outcome(&upstream, &worker, outcome);
        shared.outcome.set(Some(outcome));
        upstream.attempt.borrow_mut().take();
        shared.done.notify_waiters();
    });
    attempt
}

/// Tries to connect to an endpoint that no request waits for.
pub(super) fn start_probe(upstream: &Rc<Upstream>, worker: &Rc<Worker>) {
    if !upstream.is_plain() {
        drop(join_attempt(upstream, worker));
        return;
    }
    *upstream.attempt.borrow_mut() = Some(Rc::default());
    let (upstream, worker) = (upstream.clone(), worker.clone());
    tokio::task::spawn_local(async move {
        let connected =
            connect_application(upstream.endpoint.address, &worker, upstream.max_wait(&worker));
        let outcome = connected.await.map(drop);
        record_outcome(&upstream, &worker, outcome);
        upstream.attempt.borrow_mut().take();
    });
}

async fn open_connection(
    upstream: &Rc<Upstream>,
    worker: &Rc<Worker>,
    attempt: &ConnectAttempt,
) -> Result<(), Reason> {
    let (tls, expires) =
        in_time(upstream, worker, open_tls(upstream, worker, AlpnOffer::All)).await??;
    let max_wait = upstream.max_wait(worker);
    let spoken = tls.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
    let io = Io::new(ByteStream::Client(Box::new(tls)));
    let counted = OpenCounter::for_connection(&worker.shard, ConnectionSide::Upstream);
    let speaks_http1 = !matches!(spoken.as_deref(), Some(ALPN_LINK | ALPN_HTTP2));
    upstream.is_foreign.set(speaks_http1);
    if speaks_http1 {
        let max_wait = worker.config.limits.body_stall_timeout;
        let connection = Http1Upstream::new(io, max_wait, counted).expiring_at(expires);
        *attempt.foreign.borrow_mut() = Some(connection);
        return Ok(());
    }
    if spoken.as_deref() == Some(ALPN_HTTP2) {
        return Box::pin(reach_http2(upstream, worker, (io, counted), expires)).await;
    }
    let link = LinkHandle::new(Role::Opener);
    let (driven, shard, owner) = (link.clone(), worker.shard.clone(), Rc::downgrade(worker));
    let address = upstream.endpoint.address;
    observe_silence(&link, upstream, worker);
    let suspended_at = Rc::downgrade(upstream);
    let idle = worker.config.limits.idle_connection;
    tokio::task::spawn_local(async move {
        let _counted = (counted, OpenCounter::for_link(&shard, ConnectionSide::Upstream));
        // Only the opener opens streams; the state machine rejects streams from the other side.
        let mut driving = pin!(driven.clone().drive(io, idle, |_| {}));
        let ended = tokio::select! {
            ended = &mut driving => Some(ended),
            // The peer's identity is valid until its certificate expires.
            () = tokio::time::sleep_until(expires.into()) => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                driven.retire();
                driving.await
            }
        };
        if let Some(upstream) = suspended_at.upgrade() {
            upstream.remove_link(&driven);
        }
        if let (Err(error), Some(worker)) = (ended, owner.upgrade()) {
            worker.log_misuse(address, error);
        }
    });
    // In TLS 1.3 the server verifies our certificate after we have verified its; its first frame confirms ours.
    let greeted = match tokio::time::timeout(max_wait, link.wait_ready()).await {
        Ok(greeted) => greeted.map_err(|_| Reason::UpstreamHandshakeFailed),
        Err(_) => Err(Reason::ConnectTimeout),
    };
    match greeted {
        Ok(()) => upstream.add_link(link),
        Err(_) => link.abandon(),
    }
    greeted
}

/// Performs the HTTP/2 handshake on a session, or on another one if the peer ends it before any stream.
async fn reach_http2(
    upstream: &Upstream,
    worker: &Worker,
    session: (Io, OpenCounter),
    expires: Instant,
) -> Result<(), Reason> {
    let (session, expires_at) = (Cell::new(Some(session)), Cell::new(expires));
    let connect = async || -> Result<_, Reason> {
        if let Some(session) = session.take() {
            return Ok(session);
        }
        let (tls, expires) = open_tls(upstream, worker, AlpnOffer::All).await?;
        if tls.get_ref().1.alpn_protocol() != Some(ALPN_HTTP2) {
            return Err(Reason::UpstreamHandshakeFailed);
        }
        expires_at.set(expires);
        let counted = OpenCounter::for_connection(&worker.shard, ConnectionSide::Upstream);
        Ok((Io::new(ByteStream::Client(Box::new(tls))), counted))
    };
    let greeted = tokio::time::timeout(upstream.max_wait(worker), greet_new(connect)).await;
    let greeted = greeted.map_err(|_| Reason::ConnectTimeout)?;
    let send = greeted.map_err(|_| Reason::UpstreamHandshakeFailed)?;
    upstream.http2.add_connection(send, Some(expires_at.get()));
    Ok(())
}

/// Suspends the link at its endpoint while its peer does not respond.
fn observe_silence(link: &LinkHandle, upstream: &Rc<Upstream>, worker: &Rc<Worker>) {
    let (upstream, worker) = (Rc::downgrade(upstream), Rc::downgrade(worker));
    link.on_silence(move |link, is_silent| {
        let (Some(upstream), Some(worker)) = (upstream.upgrade(), worker.upgrade()) else {
            return link.retire();
        };
        let endpoint = upstream.endpoint.address;
        if is_silent {
            tracing::debug!(%endpoint, "link does not respond");
            upstream.suspend_link(link, &worker);
        } else {
            tracing::debug!(%endpoint, "link responds again");
            upstream.resume_link(link);
        }
    });
}

/// Waits for a step of a shared connection attempt, up to the longest limit of its requests.
async fn in_time<T>(
    upstream: &Upstream,
    worker: &Worker,
    step: impl Future<Output = T>,
) -> Result<T, Reason> {
    let (mut step, began) = (pin!(step), tokio::time::Instant::now());
    loop {
        let max_wait = upstream.max_wait(worker);
        match tokio::time::timeout_at(began + max_wait, step.as_mut()).await {
            Ok(done) => return Ok(done),
            // A request with a longer limit has joined meanwhile.
            Err(_) if upstream.max_wait(worker) > max_wait => {}
            Err(_) => return Err(Reason::ConnectTimeout),
        }
    }
}

/// The dependencies of a TLS session to an endpoint.
pub(crate) struct TlsContext<'a> {
    pub(crate) config: &'a Config,
    pub(crate) config_store: &'a ConfigStore,
    pub(crate) tls: &'a TlsConfigs,
    pub(crate) shard: &'a MetricsShard,
}

/// Opens a TLS session. Returns it with the expiration of the peer's certificate.
async fn open_tls(
    upstream: &Upstream,
    worker: &Worker,
    offer: AlpnOffer,
) -> Result<(TlsStream<TcpStream>, Instant), Reason> {
    let Worker { config, config_store, tls, shard, .. } = worker;
    open_tls_to(&upstream.endpoint, &TlsContext { config, config_store, tls, shard }, offer).await
}

/// Opens a TLS session with explicit dependencies.
pub(crate) async fn open_tls_to(
    endpoint: &Endpoint,
    way: &TlsContext<'_>,
    offer: AlpnOffer,
) -> Result<(TlsStream<TcpStream>, Instant), Reason> {
    let credential = way.config_store.credential().ok_or(Reason::UpstreamHandshakeFailed)?;
    // Without a sidecar there is no expected identity, and no session.
    let account = endpoint.account.clone().ok_or(Reason::UpstreamHandshakeFailed)?;
    let expected = SpiffeId { trust_domain: credential.id().trust_domain.clone(), account };
    let config = way.tls.client_config(&credential, expected, offer)?;
    let name = server_name(&endpoint.id.service).map_err(|_| Reason::UpstreamHandshakeFailed)?;
    let address = way.config_store.own_listener(endpoint).unwrap_or(endpoint.address);
    let tcp = connect_tcp(address, way.config).await?;
    let shaken = TlsConnector::from(config).connect(name, tcp).await;
    let count =
        if shaken.is_ok() { Count::UpstreamHandshake } else { Count::UpstreamHandshakeFailed };
    way.shard.add(count, 1);
    let tls = shaken.map_err(|error| reason_of(&error, FailureSide::Upstream))?;
    // A resumed session is not verified again: the certificate may have expired since.
    match session_peer(tls.get_ref().1.peer_certificates(), SystemTime::now()) {
        Ok(Some(peer)) => Ok((tls, expiry_instant(peer.not_after))),
        Ok(None) | Err(_) => Err(Reason::WrongIdentity),
    }
}

fn count_of(outcome: Result<(), Reason>) -> Count {
    match outcome {
        Ok(()) => Count::UpstreamConnected,
        Err(Reason::ConnectTimeout) => Count::UpstreamConnectTimeout,
        Err(_) => Count::UpstreamConnectFailed,
    }
}

/// True if a server's sidecar responds, but its application accepts no connection, or none of this protocol.
pub(super) const fn is_of_application(reason: Reason) -> bool {
    matches!(reason, Reason::ConnectFailed | Reason::PortTaken | Reason::ProtocolMismatch)
}

/// Opens a connection to the local application, or to an unmeshed one, within `max_wait`.
pub(crate) async fn connect_application(
    address: SocketAddr,
    worker: &Worker,
    max_wait: Duration,
) -> Result<Http1Upstream, Reason> {
    let place = worker.places.clone().try_acquire_owned();
    let place = place.map_err(|_| Reason::TooManyConnections)?;
    // A lack of file descriptors at a server's sidecar is not final either: the client's sidecar may know
    // another endpoint.
    let tcp = tokio::time::timeout(max_wait, dial_address(address, &worker.config.interception))
        .await
        .map_err(|_| Reason::ConnectTimeout)?
        .map_err(|_| Reason::ConnectFailed)?;
    let counted = OpenCounter::for_connection(&worker.shard, ConnectionSide::Upstream);
    let max_wait = worker.config.limits.body_stall_timeout;
    let connection = Http1Upstream::new(Io::new(ByteStream::Plain(tcp)), max_wait, counted);
    Ok(connection.with_permit(place))
}

pub(crate) async fn connect_tcp(address: SocketAddr, config: &Config) -> Result<TcpStream, Reason> {
    dial_address(address, &config.interception).await.map_err(|error| dial_reason(&error))
}

/// The maximum number of attempts that one request joins at an endpoint that closes each connection
/// immediately.
const ATTEMPTS_MAX: usize = 12;
