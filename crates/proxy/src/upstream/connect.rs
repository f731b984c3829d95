//! Opens connections to endpoints and to the local application: TCP, TLS, and the handshake of a link or of
//! HTTP/2, with time limits. Requests that wait for the same endpoint share one connection attempt.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use leno_identity::{handshake_failure_reason, server_name, session_peer};
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
use crate::http2::client::connect_and_handshake;
use crate::io::{ByteStream, Io};
use crate::link::LinkHandle;
use crate::tls::{ALPN_EXCLUSIVE, ALPN_HTTP2, ALPN_LINK, AlpnOffer, TlsConfigs, expiry_instant};
use crate::worker::Worker;

/// The time limit of a request's wait for a connection to an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectWait {
    /// The full connect timeout.
    Full,
    /// A shorter time, because the request can try another endpoint. The connection attempt continues for other
    /// requests.
    Short,
    /// The `connectTimeout` of the applicable policies. The connection attempt continues for other requests.
    Limited(Duration),
}

impl ConnectWait {
    /// Returns the `connectTimeout` of the policies of a port, or `default_wait` if there is none.
    pub(crate) fn for_cluster(
        cluster: Option<&UpstreamCluster>,
        default_wait: impl FnOnce() -> Self,
    ) -> Self {
        cluster.and_then(UpstreamCluster::connect_timeout).map_or_else(default_wait, Self::Limited)
    }
}

/// Returns the time limit of an attempt's wait for a connection: a short time if the request can be retried at
/// another endpoint.
pub(crate) fn connect_wait_for(retry_count: u32, endpoint_count: usize) -> ConnectWait {
    let retries = usize::try_from(retry_count).unwrap_or(usize::MAX);
    match endpoint_count > 1 && retries < retry::max_unsent_retries(endpoint_count - 1) {
        true => ConnectWait::Short,
        false => ConnectWait::Full,
    }
}

/// One attempt to connect to an endpoint. It continues after the request that started it has ended.
#[derive(Default)]
pub(crate) struct ConnectAttempt {
    /// The outcome; `None` while the attempt is in progress.
    outcome: Cell<Option<Result<(), Reason>>>,
    /// The connection to a peer that supports HTTP/1.1 only, for the first request that takes it.
    http1_connection: RefCell<Option<Http1Upstream>>,
    /// Notified when the outcome is known.
    outcome_ready: Notify,
}

impl ConnectAttempt {
    /// Waits until the attempt ends. Several requests may wait at the same time.
    async fn wait_for_outcome(&self) -> Result<(), Reason> {
        loop {
            // Created before the check, so that no notification is missed.
            let notification = self.outcome_ready.notified();
            if let Some(outcome) = self.outcome.get() {
                return outcome;
            }
            notification.await;
        }
    }
}

/// Checks out a connection to `upstream`, for which several requests may be waiting. The total wait is limited
/// to twice the connect timeout: once for connecting, and once for the protocol handshake.
pub(crate) async fn acquire_connection(
    upstream: &Rc<Upstream>,
    worker: &Rc<Worker>,
    wait: ConnectWait,
) -> Result<Checkout, Reason> {
    upstream.extend_connect_timeout(wait);
    let mut acquisition = pin!(acquire_from_attempts(upstream, worker));
    let max_wait = upstream.connect_timeout_for(worker, wait);
    if wait != ConnectWait::Full {
        if let Ok(result) = tokio::time::timeout(max_wait, &mut acquisition).await {
            return result;
        }
        // If no attempt is in progress, or a connection is open but has no room, the endpoint is busy rather
        // than unresponsive.
        if upstream.connect_attempt.borrow().is_some() && !upstream.http2_pool.is_open() {
            upstream.mark_unresponsive(worker);
            return Err(Reason::ConnectTimeout);
        }
    }
    let max_total_wait = max_wait.saturating_mul(2);
    // An unresponsive endpoint ends the connection attempt earlier. So if this wait times out, the endpoint is
    // busy.
    tokio::time::timeout(max_total_wait, acquisition).await.unwrap_or(Err(Reason::UpstreamRefused))
}

/// Acquires a connection: joins shared connection attempts, one after another, until one yields a connection
/// with room for this request. Fails with the reason of a failed attempt, unless an open connection gets room.
async fn acquire_from_attempts(
    upstream: &Rc<Upstream>,
    worker: &Rc<Worker>,
) -> Result<Checkout, Reason> {
    let mut joined_attempts = 0;
    while joined_attempts < MAX_JOINED_ATTEMPTS {
        if let Some(checkout) = upstream.http2_pool.wait_for_room().await {
            return Ok(Checkout::Http2(checkout));
        }
        let attempt = join_attempt(upstream, worker);
        let outcome = tokio::select! {
            biased;
            outcome = attempt.wait_for_outcome() => outcome,
            Some(checkout) = upstream.http2_pool.wait_for_room_on_open() => {
                return Ok(Checkout::Http2(checkout));
            }
        };
        // Even after a failed attempt, a suspended link may have resumed.
        if let Some(link) = upstream.find_open_link() {
            return Ok(Checkout::Link(link));
        }
        if let Err(reason) = outcome {
            // The peer may accept only a few connections, so this request waits for one of the open
            // connections.
            let checkout = upstream.http2_pool.wait_for_room_on_open().await.ok_or(reason)?;
            return Ok(Checkout::Http2(checkout));
        }
        if let Some(checkout) = upstream.http2_pool.acquire_ready() {
            return Ok(Checkout::Http2(checkout));
        }
        if let Some(connection) = attempt.http1_connection.take() {
            return Ok(Checkout::Http1(Box::new(connection)));
        }
        // While a connection is open, its room went to other requests: this attempt is not counted.
        if !upstream.http2_pool.is_open() {
            joined_attempts += 1;
        }
    }
    Err(Reason::UpstreamRefused)
}

/// Returns an exclusive HTTP/1.1 connection to a peer that normally uses HTTP/2.
pub(crate) async fn acquire_tls_http1(
    upstream: &Upstream,
    worker: &Worker,
    wait: ConnectWait,
) -> Result<Checkout, Reason> {
    if let Some(connection) = upstream.http1_pool.take_recent() {
        worker.metrics.add(Count::CheckoutReused, 1);
        return Ok(Checkout::Http1(connection));
    }
    worker.metrics.add(Count::CheckoutOpened, 1);
    let handshake = open_tls(upstream, worker, AlpnOffer::Http1);
    let max_wait = upstream.connect_timeout_for(worker, wait);
    let timed_handshake = tokio::time::timeout(max_wait, handshake).await;
    let (tls, expires_at) = timed_handshake.map_err(|_| Reason::ConnectTimeout)??;
    Ok(Checkout::Http1(Box::new(exclusive_connection(tls, expires_at, worker))))
}

/// Returns an HTTP/1.1 connection for one client. If the peer supports only links, or is an application that
/// declares HTTP/2, the connection is shared with other requests.
pub(crate) async fn acquire_exclusive(
    upstream: &Rc<Upstream>,
    worker: &Rc<Worker>,
    wait: ConnectWait,
) -> Result<Checkout, Reason> {
    if upstream.is_unmeshed() {
        return match declared_protocol(upstream, worker) {
            ApplicationProtocol::Http1 => {
                let result = connect_opaque(upstream, worker, wait).await;
                result.map(|mut connection| {
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
    worker.metrics.add(Count::CheckoutOpened, 1);
    let handshake = open_tls(upstream, worker, AlpnOffer::Exclusive);
    let max_wait = upstream.connect_timeout_for(worker, wait);
    let timed_handshake = tokio::time::timeout(max_wait, handshake).await;
    let handshake_result = timed_handshake.unwrap_or(Err(Reason::ConnectTimeout));
    record_outcome(upstream, worker, handshake_result.as_ref().map(drop).map_err(|reason| *reason));
    let (tls, expires_at) = handshake_result?;
    let alpn = tls.get_ref().1.alpn_protocol();
    if alpn == Some(ALPN_LINK) {
        return upstream.acquire(worker, None, wait).await;
    }
    let marks_rejections = alpn == Some(ALPN_EXCLUSIVE);
    let mut connection = Box::new(exclusive_connection(tls, expires_at, worker));
    connection.marks_rejections = marks_rejections;
    Ok(Checkout::Http1(connection))
}

/// Returns an HTTP/1.1 connection over a TLS session, valid until `expires_at`.
fn exclusive_connection(
    tls: TlsStream<TcpStream>,
    expires_at: Instant,
    worker: &Worker,
) -> Http1Upstream {
    let io = Io::new(ByteStream::Client(Box::new(tls)));
    let open_counter = OpenCounter::for_connection(&worker.metrics, ConnectionSide::Upstream);
    let stall_timeout = worker.config.limits.body_stall_timeout;
    Http1Upstream::new(io, stall_timeout, open_counter).expiring_at(expires_at)
}

/// Checks out a connection to an endpoint without a sidecar, for this protocol.
pub(crate) async fn acquire_plaintext(
    upstream: &Rc<Upstream>,
    worker: &Rc<Worker>,
    protocol: ApplicationProtocol,
    wait: ConnectWait,
) -> Result<Checkout, Reason> {
    let address = upstream.endpoint.address;
    let max_wait = upstream.connect_timeout_for(worker, wait);
    let result = match protocol {
        ApplicationProtocol::Http2 => {
            upstream.http2_pool.acquire_within(address, worker, max_wait).await.map(Checkout::Http2)
        }
        ApplicationProtocol::Http1 => {
            worker.metrics.add(Count::CheckoutOpened, 1);
            upstream.is_http1_only.set(true);
            let result = connect_application(address, worker, max_wait).await;
            result.map(|mut connection| {
                // No other proxy normalizes its responses.
                connection.reader.is_tolerant = true;
                Checkout::Http1(Box::new(connection))
            })
        }
    };
    record_outcome(upstream, worker, result.as_ref().map(drop).map_err(|reason| *reason));
    result
}

/// Returns an exclusive connection to an endpoint without a sidecar, for opaque bytes.
pub(crate) async fn connect_opaque(
    upstream: &Rc<Upstream>,
    worker: &Rc<Worker>,
    wait: ConnectWait,
) -> Result<Http1Upstream, Reason> {
    worker.metrics.add(Count::CheckoutOpened, 1);
    let max_wait = upstream.connect_timeout_for(worker, wait);
    let result = connect_application(upstream.endpoint.address, worker, max_wait).await;
    record_outcome(upstream, worker, result.as_ref().map(drop).map_err(|reason| *reason));
    result
}

/// Returns the protocol that the service of an endpoint without a sidecar declares.
pub(crate) fn declared_protocol(upstream: &Upstream, worker: &Worker) -> ApplicationProtocol {
    let EndpointId { service, port, .. } = &upstream.endpoint.id;
    let Some(config) = worker.config_store.current_config() else {
        return ApplicationProtocol::Http1;
    };
    let compiled_port = config
        .compiled
        .service(service)
        .and_then(|compiled_service| compiled_service.ports.get(port));
    let gateway = config.compiled.gateway.as_ref();
    match compiled_port.map_or(Protocol::Detect, |port| port.protocol) {
        // A gateway route for gRPC to a port without a declared protocol implies HTTP/2.
        Protocol::Detect
            if gateway.is_some_and(|gateway| gateway.forwards_grpc_to(service, *port)) =>
        {
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
    worker.metrics.add(outcome_counter(outcome), 1);
}

/// Returns the attempt in progress, or starts one.
fn join_attempt(upstream: &Rc<Upstream>, worker: &Rc<Worker>) -> Rc<ConnectAttempt> {
    // A peer that supports HTTP/1.1 only needs a connection for each request, so only the first attempt, before
    // this is known, is shared.
    if !upstream.is_http1_only.get()
        && let Some(attempt) = upstream.connect_attempt.borrow().as_ref()
    {
        return attempt.clone();
    }
    let attempt = Rc::new(ConnectAttempt::default());
    *upstream.connect_attempt.borrow_mut() = Some(attempt.clone());
    let (upstream, worker, shared_attempt) = (upstream.clone(), worker.clone(), attempt.clone());
    tokio::task::spawn_local(async move {
        let outcome = open_connection(&upstream, &worker, &shared_attempt).await;
        if let Err(reason) = outcome {
            tracing::debug!(endpoint = %upstream.endpoint.address, reason = reason.label(), "connect");
        }
        record_outcome(&upstream, &worker, outcome);
        shared_attempt.outcome.set(Some(outcome));
        upstream.connect_attempt.borrow_mut().take();
        shared_attempt.outcome_ready.notify_waiters();
    });
    attempt
}

/// Tries to connect to an unresponsive endpoint, although no request waits for it.
pub(super) fn start_probe(upstream: &Rc<Upstream>, worker: &Rc<Worker>) {
    if !upstream.is_unmeshed() {
        drop(join_attempt(upstream, worker));
        return;
    }
    // Marks the probe as in progress; no request waits for this attempt.
    *upstream.connect_attempt.borrow_mut() = Some(Rc::default());
    let (upstream, worker) = (upstream.clone(), worker.clone());
    tokio::task::spawn_local(async move {
        let connecting = connect_application(
            upstream.endpoint.address,
            &worker,
            upstream.shared_connect_timeout(&worker),
        );
        let outcome = connecting.await.map(drop);
        record_outcome(&upstream, &worker, outcome);
        upstream.connect_attempt.borrow_mut().take();
    });
}

/// Opens a connection for a shared attempt, and adds it to the endpoint: a link, HTTP/2, or HTTP/1.1.
async fn open_connection(
    upstream: &Rc<Upstream>,
    worker: &Rc<Worker>,
    attempt: &ConnectAttempt,
) -> Result<(), Reason> {
    let (tls, expires_at) =
        await_connect_step(upstream, worker, open_tls(upstream, worker, AlpnOffer::All)).await??;
    let max_wait = upstream.shared_connect_timeout(worker);
    let alpn = tls.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
    let io = Io::new(ByteStream::Client(Box::new(tls)));
    let open_counter = OpenCounter::for_connection(&worker.metrics, ConnectionSide::Upstream);
    let is_http1 = !matches!(alpn.as_deref(), Some(ALPN_LINK | ALPN_HTTP2));
    upstream.is_http1_only.set(is_http1);
    if is_http1 {
        let stall_timeout = worker.config.limits.body_stall_timeout;
        let connection =
            Http1Upstream::new(io, stall_timeout, open_counter).expiring_at(expires_at);
        *attempt.http1_connection.borrow_mut() = Some(connection);
        return Ok(());
    }
    if alpn.as_deref() == Some(ALPN_HTTP2) {
        return Box::pin(handshake_http2(upstream, worker, (io, open_counter), expires_at)).await;
    }
    let link = LinkHandle::new(Role::Opener);
    let (driven_link, metrics, weak_worker) =
        (link.clone(), worker.metrics.clone(), Rc::downgrade(worker));
    let address = upstream.endpoint.address;
    install_silence_handler(&link, upstream, worker);
    let weak_upstream = Rc::downgrade(upstream);
    let idle_timeout = worker.config.limits.idle_connection;
    tokio::task::spawn_local(async move {
        let _open_counters =
            (open_counter, OpenCounter::for_link(&metrics, ConnectionSide::Upstream));
        // The handler of incoming streams is never called: the link's state machine rejects streams that the
        // peer opens.
        let mut driver = pin!(driven_link.clone().drive(io, idle_timeout, |_| {}));
        let early_end = tokio::select! {
            link_end = &mut driver => Some(link_end),
            // The peer's identity is valid until its certificate expires.
            () = tokio::time::sleep_until(expires_at.into()) => None,
        };
        let link_end = match early_end {
            Some(link_end) => link_end,
            None => {
                driven_link.retire();
                driver.await
            }
        };
        if let Some(upstream) = weak_upstream.upgrade() {
            upstream.remove_suspended_link(&driven_link);
        }
        if let (Err(error), Some(worker)) = (link_end, weak_worker.upgrade()) {
            worker.log_protocol_violation(address, error);
        }
    });
    // In TLS 1.3 the server verifies our certificate after we have verified the server's: the first frame from
    // the server confirms that it accepts our certificate.
    let readiness = match tokio::time::timeout(max_wait, link.wait_ready()).await {
        Ok(readiness) => readiness.map_err(|_| Reason::UpstreamHandshakeFailed),
        Err(_) => Err(Reason::ConnectTimeout),
    };
    match readiness {
        Ok(()) => upstream.add_link(link),
        Err(_) => link.abandon(),
    }
    readiness
}

/// Performs the HTTP/2 handshake on a TLS session, or on a new session if the peer closes it before any stream.
async fn handshake_http2(
    upstream: &Upstream,
    worker: &Worker,
    session: (Io, OpenCounter),
    expires_at: Instant,
) -> Result<(), Reason> {
    let (unused_session, session_expires_at) = (Cell::new(Some(session)), Cell::new(expires_at));
    let connect = async || -> Result<_, Reason> {
        if let Some(session) = unused_session.take() {
            return Ok(session);
        }
        let (tls, expires_at) = open_tls(upstream, worker, AlpnOffer::All).await?;
        if tls.get_ref().1.alpn_protocol() != Some(ALPN_HTTP2) {
            return Err(Reason::UpstreamHandshakeFailed);
        }
        session_expires_at.set(expires_at);
        let open_counter = OpenCounter::for_connection(&worker.metrics, ConnectionSide::Upstream);
        Ok((Io::new(ByteStream::Client(Box::new(tls))), open_counter))
    };
    let max_wait = upstream.shared_connect_timeout(worker);
    let timed_result = tokio::time::timeout(max_wait, connect_and_handshake(connect)).await;
    let handshake_result = timed_result.map_err(|_| Reason::ConnectTimeout)?;
    let sender = handshake_result.map_err(|_| Reason::UpstreamHandshakeFailed)?;
    upstream.http2_pool.add_connection(sender, Some(session_expires_at.get()));
    Ok(())
}

/// Installs a handler that suspends the link at its endpoint while the peer does not respond.
fn install_silence_handler(link: &LinkHandle, upstream: &Rc<Upstream>, worker: &Rc<Worker>) {
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
async fn await_connect_step<T>(
    upstream: &Upstream,
    worker: &Worker,
    step: impl Future<Output = T>,
) -> Result<T, Reason> {
    let (mut step, start) = (pin!(step), tokio::time::Instant::now());
    loop {
        let max_wait = upstream.shared_connect_timeout(worker);
        match tokio::time::timeout_at(start + max_wait, step.as_mut()).await {
            Ok(output) => return Ok(output),
            // A request with a longer limit has joined meanwhile.
            Err(_) if upstream.shared_connect_timeout(worker) > max_wait => {}
            Err(_) => return Err(Reason::ConnectTimeout),
        }
    }
}

/// The dependencies of a TLS session to an endpoint.
pub(crate) struct TlsContext<'a> {
    pub(crate) config: &'a Config,
    pub(crate) config_store: &'a ConfigStore,
    pub(crate) tls: &'a TlsConfigs,
    pub(crate) metrics: &'a MetricsShard,
}

/// Opens a TLS session. Returns the session with the expiration of the peer's certificate.
async fn open_tls(
    upstream: &Upstream,
    worker: &Worker,
    alpn_offer: AlpnOffer,
) -> Result<(TlsStream<TcpStream>, Instant), Reason> {
    let Worker { config, config_store, tls, metrics, .. } = worker;
    open_tls_to(&upstream.endpoint, &TlsContext { config, config_store, tls, metrics }, alpn_offer)
        .await
}

/// Opens a TLS session with the dependencies in `context`. Returns the session with the expiration of the
/// peer's certificate.
pub(crate) async fn open_tls_to(
    endpoint: &Endpoint,
    context: &TlsContext<'_>,
    alpn_offer: AlpnOffer,
) -> Result<(TlsStream<TcpStream>, Instant), Reason> {
    let credential = context.config_store.credential().ok_or(Reason::UpstreamHandshakeFailed)?;
    // An endpoint without a sidecar has no identity to verify, so no TLS session is possible.
    let account = endpoint.account.clone().ok_or(Reason::UpstreamHandshakeFailed)?;
    let expected_peer = SpiffeId { trust_domain: credential.id().trust_domain.clone(), account };
    let tls_config = context.tls.client_config(&credential, expected_peer, alpn_offer)?;
    let tls_server_name =
        server_name(&endpoint.id.service).map_err(|_| Reason::UpstreamHandshakeFailed)?;
    // A connection of the workload to its own address would not be redirected to the sidecar.
    let address = context.config_store.own_listener(endpoint).unwrap_or(endpoint.address);
    let tcp = connect_tcp(address, context.config).await?;
    let handshake_result = TlsConnector::from(tls_config).connect(tls_server_name, tcp).await;
    let counter = if handshake_result.is_ok() {
        Count::UpstreamHandshake
    } else {
        Count::UpstreamHandshakeFailed
    };
    context.metrics.add(counter, 1);
    let tls = handshake_result
        .map_err(|error| handshake_failure_reason(&error, FailureSide::Upstream))?;
    // TLS does not verify the peer of a resumed session again, so its certificate may have expired since.
    match session_peer(tls.get_ref().1.peer_certificates(), SystemTime::now()) {
        Ok(Some(peer)) => Ok((tls, expiry_instant(peer.not_after))),
        Ok(None) | Err(_) => Err(Reason::WrongIdentity),
    }
}

/// Returns the counter of connection attempts with this outcome.
fn outcome_counter(outcome: Result<(), Reason>) -> Count {
    match outcome {
        Ok(()) => Count::UpstreamConnected,
        Err(Reason::ConnectTimeout) => Count::UpstreamConnectTimeout,
        Err(_) => Count::UpstreamConnectFailed,
    }
}

/// True if the endpoint's sidecar responded, but its application accepts no connection, or does not support the
/// request's protocol.
pub(super) const fn is_application_failure(reason: Reason) -> bool {
    matches!(reason, Reason::ConnectFailed | Reason::PortTaken | Reason::ProtocolMismatch)
}

/// Opens a connection to the local application, or to an unmeshed one, within `max_wait`.
pub(crate) async fn connect_application(
    address: SocketAddr,
    worker: &Worker,
    max_wait: Duration,
) -> Result<Http1Upstream, Reason> {
    let acquire_result = worker.application_permits.clone().try_acquire_owned();
    let permit = acquire_result.map_err(|_| Reason::TooManyConnections)?;
    // Unlike in `connect_tcp`, a lack of file descriptors is reported as `ConnectFailed`: the client's sidecar
    // may then retry at another endpoint.
    let tcp = tokio::time::timeout(max_wait, dial_address(address, &worker.config.interception))
        .await
        .map_err(|_| Reason::ConnectTimeout)?
        .map_err(|_| Reason::ConnectFailed)?;
    let open_counter = OpenCounter::for_connection(&worker.metrics, ConnectionSide::Upstream);
    let stall_timeout = worker.config.limits.body_stall_timeout;
    let io = Io::new(ByteStream::Plain(tcp));
    let connection = Http1Upstream::new(io, stall_timeout, open_counter);
    Ok(connection.with_permit(permit))
}

/// Opens a TCP connection, with the interception settings of the proxy.
pub(crate) async fn connect_tcp(address: SocketAddr, config: &Config) -> Result<TcpStream, Reason> {
    dial_address(address, &config.interception).await.map_err(|error| dial_reason(&error))
}

/// The maximum number of attempts that one request joins at an endpoint that closes each connection
/// immediately.
const MAX_JOINED_ATTEMPTS: usize = 12;
