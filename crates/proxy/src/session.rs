//! A connection's standing: by which entrance it came, and who is at its other end.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_model::{EndpointId, Reason, Scheme, ServiceName, SpiffeId};
use leno_telemetry::RequestLabels;
use leno_traffic::{Carrier, ConnectionPermit, Denial, Origin, Ruling};

use crate::http::exchange::Pins;
use crate::record::{Series, Subject};
use crate::upstream::Application;
use crate::worker::Worker;
use crate::world::Scene;

/// By which entrance a connection came.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Entrance {
    /// From another sidecar, for the application's port.
    Inbound { port: u16 },
    /// From the application, through a door to one service: it knows the door's address only.
    Door { service: ServiceName, port: u16 },
    /// From the application, to a service that it named itself.
    Service { service: ServiceName, port: u16 },
    /// From the application, as its HTTP proxy.
    HttpProxy,
    /// From the application, to this address: a service, a workload, or nothing of the mesh.
    Address(SocketAddr),
    /// From the application, to one workload at its own address.
    Pinned { at: SocketAddr, id: EndpointId },
    /// From a stranger, to a port of the gateway.
    Gateway { port: u16 },
}

/// What is known of a stranger's connection to a gateway.
pub(crate) struct Edge {
    /// The port of the gateway.
    pub(crate) port: u16,
    /// What is spoken there; whom the client asked for in its session, if that is TLS.
    pub(crate) scheme: Scheme,
    pub(crate) server_name: Option<String>,
}

/// A connection, or one stream of a link, and what is known about its peer.
pub(crate) struct Session {
    pub(crate) worker: Rc<Worker>,
    pub(crate) entrance: Entrance,
    /// The verified identity of the peer; none on the application's own connections.
    pub(crate) identity: Option<Rc<SpiffeId>>,
    /// When that identity ends: nothing new is taken from the peer after it.
    pub(crate) expires: Option<Instant>,
    pub(crate) peer: SocketAddr,
    /// What it is carried in, where peers come in.
    pub(crate) carrier: Carrier,
    /// HTTP/2 was detected in it, at a port without a declared protocol: the application gets HTTP/2.
    pub(crate) found_http2: bool,
    /// The `Host` of the service behind a door: its client knows the door's address only.
    pub(crate) host: Option<Rc<str>>,
    /// What is known of it where strangers come in.
    pub(crate) edge: Option<Box<Edge>>,
    /// The server outside that its last request went to.
    pub(crate) outside: RefCell<Option<Rc<Application>>>,
    /// One client has this connection to itself: its requests come one after another over HTTP/1.1.
    pub(crate) is_exclusive: Cell<bool>,
    /// Another sidecar opened the connection for the requests of one client.
    pub(crate) is_private: bool,
    /// The connection was read as HTTP, and its port carries TCP now: it takes no further request.
    pub(crate) is_outdated: Cell<bool>,
    /// Connections that serve this client alone, since their servers authenticate them.
    pub(crate) pinned: Pins,
    /// What its exchanges were counted under, so that they are not looked up each time.
    series: RefCell<Vec<Rc<Series>>>,
    /// Given by the access rules of one world; asked for again when they change.
    permit: RefCell<Option<ConnectionPermit>>,
    /// The denials that the log was told of and that were not enforced.
    told: RefCell<Vec<Reason>>,
}

impl Session {
    pub(crate) fn new(
        worker: Rc<Worker>,
        entrance: Entrance,
        identity: Option<Rc<SpiffeId>>,
        peer: SocketAddr,
    ) -> Self {
        let host = match &entrance {
            Entrance::Door { service: ServiceName { namespace, name }, port } => {
                Some(format!("{name}.{namespace}:{port}").into())
            }
            Entrance::Inbound { .. }
            | Entrance::Service { .. }
            | Entrance::HttpProxy
            | Entrance::Address(_)
            | Entrance::Gateway { .. }
            | Entrance::Pinned { .. } => None,
        };
        let (series, permit) = (RefCell::default(), RefCell::default());
        let told = RefCell::default();
        let (expires, edge, carrier) = (None, None, Carrier::Clear);
        let outside = RefCell::default();
        Self {
            outside,
            worker,
            entrance,
            identity,
            expires,
            peer,
            carrier,
            found_http2: false,
            host,
            edge,
            is_exclusive: Cell::new(false),
            is_private: false,
            is_outdated: Cell::new(false),
            pinned: Pins::default(),
            series,
            permit,
            told,
        }
    }

    /// A stranger's connection to a gateway.
    pub(crate) fn at_the_edge(worker: Rc<Worker>, edge: Edge, peer: SocketAddr) -> Self {
        let entrance = Entrance::Gateway { port: edge.port };
        Self { edge: Some(Box::new(edge)), ..Self::new(worker, entrance, None, peer) }
    }

    /// The same peer, in a part of its connection in which HTTP was found. `http2`: the version of it.
    pub(crate) fn inner(&self, http2: bool) -> Self {
        let (worker, entrance) = (self.worker.clone(), self.entrance.clone());
        let (expires, carrier) = (self.expires, self.carrier.clone());
        let session = Self::new(worker, entrance, self.identity.clone(), self.peer);
        Self { expires, carrier, found_http2: http2, ..session }
    }

    /// How long its next request is waited for.
    pub(crate) fn patience(&self) -> Duration {
        let limits = &self.worker.config.limits;
        let idle = if self.edge.is_some() { limits.idle_stranger } else { limits.idle_connection };
        self.expires.map_or(idle, |at| idle.min(at.saturating_duration_since(Instant::now())))
    }

    /// Resolves when this connection, on which nothing is asked, is to make room for another: only
    /// strangers are sent away, at a gateway or where clients come in that are not of the mesh.
    pub(crate) async fn shed(&self) {
        match self.edge.is_some() || (self.is_inbound() && self.identity.is_none()) {
            // Boxed: the others need no room for it.
            true => Box::pin(self.worker.idle.wait()).await,
            false => std::future::pending().await,
        }
    }

    /// Whether the peer's certificate has expired.
    pub(crate) fn is_expired(&self) -> bool {
        self.expires.is_some_and(|at| at <= Instant::now())
    }

    pub(crate) fn is_inbound(&self) -> bool {
        matches!(self.entrance, Entrance::Inbound { .. })
    }

    /// The port of the application that peers come for; 0 on the application's own connections.
    fn port(&self) -> u16 {
        match self.entrance {
            Entrance::Inbound { port } => port,
            Entrance::Door { .. }
            | Entrance::Service { .. }
            | Entrance::HttpProxy
            | Entrance::Address(_)
            | Entrance::Gateway { .. }
            | Entrance::Pinned { .. } => 0,
        }
    }

    /// Where it comes from, and how.
    pub(crate) fn origin(&self) -> Origin {
        Origin { address: self.peer.ip(), carrier: self.carrier.clone() }
    }

    /// What `scene` says about the peer, looked up once per connection and world, for what began `at`.
    pub(crate) fn permit(&self, scene: &Scene, at: Instant) -> Result<ConnectionPermit, Denial> {
        let access = &scene.plans.access;
        // Polite peers have been told long before.
        if self.expires.is_some_and(|expires| expires + EXPIRY_SLACK <= at) {
            return Err(Denial::unnamed(Reason::ExpiredPeer));
        }
        let mut held = self.permit.borrow_mut();
        if let Some(permit) = held.as_ref().filter(|permit| access.is_current(permit)) {
            return Ok(permit.clone());
        }
        let permit = access.visit((self.identity.as_deref(), self.port()), Some(self.origin()))?;
        *held = Some(permit.clone());
        Ok(permit)
    }

    /// Tells the log of a denial that is not enforced: once for a connection and reason.
    pub(crate) fn tell_audited(&self, reason: Reason, others: Option<&Ruling>) {
        let mut told = self.told.borrow_mut();
        if told.contains(&reason) {
            return;
        }
        told.push(reason);
        let identity = self.identity.as_deref().map(ToString::to_string).unwrap_or_default();
        let policy = others.map(ToString::to_string).unwrap_or_default();
        let source = match identity.is_empty() {
            true => self.peer.ip().to_string(),
            false => identity.clone(),
        };
        let line = self.worker.logs.permit(source, Instant::now());
        if let Some(suppressed) = line.map(|line| line.suppressed) {
            tracing::info!(peer = %self.peer, identity, reason = reason.label(), policy, suppressed,
                "audit: let in, strict mode would deny it");
        }
    }

    /// The series that `subject` is counted under, made or looked up when it is new.
    #[inline]
    pub(crate) fn series(&self, subject: &Subject) -> Rc<Series> {
        let mut known = self.series.borrow_mut();
        if let Some(series) = known.iter().find(|series| series.subject == *subject) {
            return series.clone();
        }
        let series = Rc::new(self.new_series(subject));
        if known.len() >= SERIES_MAX {
            known.clear();
        }
        known.push(series.clone());
        series
    }

    #[cold]
    fn new_series(&self, subject: &Subject) -> Series {
        let labels = self.labels(subject);
        let id = self.worker.shard.series(&labels);
        Series { subject: subject.clone(), labels, id }
    }

    fn labels(&self, subject: &Subject) -> RequestLabels {
        let Subject { protocol, service, port, route } = subject;
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

/// How long after its certificate's end a peer may still send what was on the way.
const EXPIRY_SLACK: Duration = Duration::from_secs(20);
/// Series remembered by one session: more than the backends that a route usually has.
const SERIES_MAX: usize = 8;
