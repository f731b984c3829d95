//! Describes one connection, or one stream of a link, as a session: how it arrived, its peer, and the decisions and
//! metric series that are cached for its requests.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_model::{EndpointId, Reason, Scheme, ServiceName, SpiffeId};
use leno_telemetry::RequestLabels;
use leno_traffic::{ConnectionOrigin, ConnectionPermit, Denial, PolicyDecision, SessionTransport};

use crate::config_store::ConfigSnapshot;
use crate::http::exchange::PinnedConnections;
use crate::record::{ExchangeSeries, MetricsSubject};
use crate::upstream::Application;
use crate::worker::Worker;

/// The origin of a connection (the application, a sidecar or an external client) and its destination.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ListenerKind {
    /// From another sidecar, to a port of the application.
    Inbound { port: u16 },
    /// From the application, through the outbound listener of one service.
    Outbound { service: ServiceName, port: u16 },
    /// From the application, to a service that it named itself.
    Service { service: ServiceName, port: u16 },
    /// From the application, as its HTTP proxy.
    HttpProxy,
    /// From the application, to this address: a service, a workload, or a destination outside the mesh.
    Address(SocketAddr),
    /// From the application, to one workload by its own address.
    Pinned { address: SocketAddr, id: EndpointId },
    /// From an external client, to a port of the gateway.
    Gateway { port: u16 },
}

/// An external client's connection to a gateway.
pub(crate) struct GatewayConnection {
    /// The port of the gateway.
    pub(crate) port: u16,
    pub(crate) scheme: Scheme,
    /// The server name of the client's TLS session, if any.
    pub(crate) server_name: Option<String>,
}

/// A connection or one stream of a link, with its peer.
pub(crate) struct Session {
    pub(crate) worker: Rc<Worker>,
    pub(crate) listener_kind: ListenerKind,
    /// The verified identity of the peer; `None` on the application's own connections.
    pub(crate) identity: Option<Rc<SpiffeId>>,
    /// The expiry of the peer's certificate: later requests of the peer are rejected. `None` without a
    /// certificate.
    pub(crate) expires: Option<Instant>,
    /// The socket address of the peer.
    pub(crate) peer: SocketAddr,
    /// The transport of inbound connections.
    pub(crate) transport: SessionTransport,
    /// True if HTTP/2 was detected at a port without a declared protocol: the application gets HTTP/2.
    pub(crate) detected_http2: bool,
    /// The `Host` of the service behind an outbound listener: the client knows only the listener's address.
    pub(crate) host: Option<Rc<str>>,
    /// The gateway connection of an external client.
    pub(crate) gateway_connection: Option<Box<GatewayConnection>>,
    /// The server outside the mesh that received the last request.
    pub(crate) external_server: RefCell<Option<Rc<Application>>>,
    /// True if one client uses this connection alone and sends its requests in sequence over HTTP/1.1.
    pub(crate) is_exclusive: Cell<bool>,
    /// True if another sidecar opened the connection for the requests of one client.
    pub(crate) is_dedicated: bool,
    /// True if the connection was read as HTTP but its port now carries TCP: no further request is accepted.
    pub(crate) is_outdated: Cell<bool>,
    /// Upstream connections that serve only this client, because their servers authenticate the connection. Not related
    /// to [`ListenerKind::Pinned`].
    pub(crate) pinned: PinnedConnections,
    /// The metric series of the session's exchanges; at most [`MAX_CACHED_SERIES`].
    cached_series: RefCell<Vec<Rc<ExchangeSeries>>>,
    /// The last allow decision for the peer; evaluated again when the access rules change.
    cached_permit: RefCell<Option<ConnectionPermit>>,
    /// The reasons of dry-run denials that were already logged.
    logged_denials: RefCell<Vec<Reason>>,
}

impl Session {
    pub(crate) fn new(
        worker: Rc<Worker>,
        listener_kind: ListenerKind,
        identity: Option<Rc<SpiffeId>>,
        peer: SocketAddr,
    ) -> Self {
        let host = match &listener_kind {
            ListenerKind::Outbound { service: ServiceName { namespace, name }, port } => {
                Some(format!("{name}.{namespace}:{port}").into())
            }
            ListenerKind::Inbound { .. }
            | ListenerKind::Service { .. }
            | ListenerKind::HttpProxy
            | ListenerKind::Address(_)
            | ListenerKind::Gateway { .. }
            | ListenerKind::Pinned { .. } => None,
        };
        let (cached_series, cached_permit) = (RefCell::default(), RefCell::default());
        let logged_denials = RefCell::default();
        let (expires, gateway_connection, transport) = (None, None, SessionTransport::Plaintext);
        let external_server = RefCell::default();
        Self {
            external_server,
            worker,
            listener_kind,
            identity,
            expires,
            peer,
            transport,
            detected_http2: false,
            host,
            gateway_connection,
            is_exclusive: Cell::new(false),
            is_dedicated: false,
            is_outdated: Cell::new(false),
            pinned: PinnedConnections::default(),
            cached_series,
            cached_permit,
            logged_denials,
        }
    }

    /// Creates the session of an external client's connection to a gateway.
    pub(crate) fn for_gateway(
        worker: Rc<Worker>,
        gateway_connection: GatewayConnection,
        peer: SocketAddr,
    ) -> Self {
        let listener_kind = ListenerKind::Gateway { port: gateway_connection.port };
        Self {
            gateway_connection: Some(Box::new(gateway_connection)),
            ..Self::new(worker, listener_kind, None, peer)
        }
    }

    /// Creates a session for the same peer after HTTP was detected on its connection. `http2`: the detected
    /// version is HTTP/2.
    pub(crate) fn for_detected_http(&self, http2: bool) -> Self {
        let (worker, listener_kind) = (self.worker.clone(), self.listener_kind.clone());
        let (expires, transport) = (self.expires, self.transport.clone());
        let session = Self::new(worker, listener_kind, self.identity.clone(), self.peer);
        Self { expires, transport, detected_http2: http2, ..session }
    }

    /// Returns the idle timeout before the next request; it ends no later than the peer's certificate expires.
    pub(crate) fn idle_timeout(&self) -> Duration {
        let limits = &self.worker.config.limits;
        let idle_timeout = if self.gateway_connection.is_some() {
            limits.idle_external_client
        } else {
            limits.idle_connection
        };
        self.expires.map_or(idle_timeout, |expiry| {
            idle_timeout.min(expiry.saturating_duration_since(Instant::now()))
        })
    }

    /// Resolves when this idle connection is evicted for another one. Only external clients are evicted, at a
    /// gateway or at ports that allow clients outside the mesh.
    pub(crate) async fn wait_for_eviction(&self) {
        match self.gateway_connection.is_some() || (self.is_inbound() && self.identity.is_none()) {
            // Boxed, so that other connections need no memory for it.
            true => Box::pin(self.worker.idle_clients.wait_for_eviction()).await,
            false => std::future::pending().await,
        }
    }

    /// True if the certificate of the peer has expired.
    pub(crate) fn is_expired(&self) -> bool {
        self.expires.is_some_and(|expiry| expiry <= Instant::now())
    }

    pub(crate) fn is_inbound(&self) -> bool {
        matches!(self.listener_kind, ListenerKind::Inbound { .. })
    }

    /// Returns the application port of inbound connections; 0 on the application's own connections.
    fn inbound_port(&self) -> u16 {
        match self.listener_kind {
            ListenerKind::Inbound { port } => port,
            ListenerKind::Outbound { .. }
            | ListenerKind::Service { .. }
            | ListenerKind::HttpProxy
            | ListenerKind::Address(_)
            | ListenerKind::Gateway { .. }
            | ListenerKind::Pinned { .. } => 0,
        }
    }

    /// Returns the address and transport of the client.
    pub(crate) fn origin(&self) -> ConnectionOrigin {
        ConnectionOrigin { address: self.peer.ip(), transport: self.transport.clone() }
    }

    /// Returns the authorization decision of `config` for the peer, cached per connection and configuration,
    /// for a request that began at `start_time`. A peer is denied after its certificate has expired.
    pub(crate) fn authorize_peer(
        &self,
        config: &ConfigSnapshot,
        start_time: Instant,
    ) -> Result<ConnectionPermit, Denial> {
        let access = &config.compiled.access;
        // A peer sends no request after its certificate has expired. The grace period is for requests that it sent
        // before.
        if self.expires.is_some_and(|expiry| expiry + EXPIRY_GRACE <= start_time) {
            return Err(Denial::without_policy(Reason::ExpiredPeer));
        }
        let mut cached_permit = self.cached_permit.borrow_mut();
        if let Some(permit) = cached_permit.as_ref().filter(|permit| access.is_current(permit)) {
            return Ok(permit.clone());
        }
        let permit = access.authorize_connection_from(
            self.identity.as_deref(),
            self.inbound_port(),
            Some(self.origin()),
        )?;
        *cached_permit = Some(permit.clone());
        Ok(permit)
    }

    /// Logs a denial that is not enforced: once per connection and reason.
    pub(crate) fn log_dry_run_denial(&self, reason: Reason, decision: Option<&PolicyDecision>) {
        let mut logged_denials = self.logged_denials.borrow_mut();
        if logged_denials.contains(&reason) {
            return;
        }
        logged_denials.push(reason);
        let identity = self.identity.as_deref().map(ToString::to_string).unwrap_or_default();
        let policy = decision.map(ToString::to_string).unwrap_or_default();
        let source = match identity.is_empty() {
            true => self.peer.ip().to_string(),
            false => identity.clone(),
        };
        let line = self.worker.log_limits.permit_line(source, Instant::now());
        if let Some(suppressed) = line.map(|line| line.suppressed) {
            tracing::info!(peer = %self.peer, identity, reason = reason.label(), policy, suppressed,
                "dry run: the traffic is allowed, but default policy deny would reject it");
        }
    }

    /// Returns the metric series of `subject`; creates and caches it if necessary.
    #[inline]
    pub(crate) fn series_for(&self, subject: &MetricsSubject) -> Rc<ExchangeSeries> {
        let mut cached_series = self.cached_series.borrow_mut();
        if let Some(series) = cached_series.iter().find(|series| series.subject == *subject) {
            return series.clone();
        }
        let series = Rc::new(self.new_series(subject));
        if cached_series.len() >= MAX_CACHED_SERIES {
            cached_series.clear();
        }
        cached_series.push(series.clone());
        series
    }

    #[cold]
    fn new_series(&self, subject: &MetricsSubject) -> ExchangeSeries {
        let labels = self.request_labels(subject);
        let id = self.worker.metrics.series_id(&labels);
        ExchangeSeries { subject: subject.clone(), labels, id }
    }

    fn request_labels(&self, subject: &MetricsSubject) -> RequestLabels {
        let MetricsSubject { protocol, service, port, route } = subject;
        let account = self.identity.as_ref().map(|identity| &identity.account);
        RequestLabels {
            direction: if self.is_inbound() { "inbound" } else { "outbound" },
            service: service.as_ref().map(ToString::to_string).unwrap_or_default(),
            port: *port,
            route: route.as_ref().map(ToString::to_string).unwrap_or_default(),
            peer: account.map(ToString::to_string).unwrap_or_default(),
            protocol,
        }
    }
}

/// The time after the expiry of its certificate for which a peer may still send requests in flight.
const EXPIRY_GRACE: Duration = Duration::from_secs(20);
/// The maximum number of series cached by one session: more than a route usually has backends.
const MAX_CACHED_SERIES: usize = 8;
