//! Pins upstream connections to one client, because their server authenticates the connection (NTLM,
//! Negotiate).

use std::cell::{Cell, RefCell};

use leno_model::{EndpointId, Reason};
use leno_telemetry::Count;

use super::Exchange;
use crate::http::route::{Destination, ResolvedRoute};
use crate::upstream::cluster::OutcomeGuard;
use crate::upstream::pick::session_endpoint;
use crate::upstream::{AttemptTarget, Checkout, ConnectWait, Http1Upstream};

/// The connections of one client, each to a different server, newest last.
#[derive(Default)]
pub(crate) struct PinnedConnections {
    connections: RefCell<Vec<PinnedConnection>>,
    /// True if `connections` is not empty.
    is_used: Cell<bool>,
}

/// A connection reserved for one client, and its server.
struct PinnedConnection {
    /// The server to which the connection leads.
    attempt_target: AttemptTarget,
    connection: Box<Http1Upstream>,
}

impl PinnedConnections {
    /// True if the client has any pinned connection.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.get()
    }

    /// Adds a connection, and closes the oldest one if there are too many.
    fn add_connection(&self, pinned_connection: PinnedConnection) {
        let mut connections = self.connections.borrow_mut();
        if connections.len() >= MAX_PINNED_CONNECTIONS {
            connections.remove(0);
        }
        connections.push(pinned_connection);
        self.is_used.set(true);
    }

    /// Removes the first usable connection for which `select` returns a result, and returns both. `None` if
    /// `select` accepts no connection.
    fn take_where<T>(
        &self,
        mut select: impl FnMut(&PinnedConnection) -> Option<T>,
    ) -> Option<(T, PinnedConnection)> {
        let mut connections = self.connections.borrow_mut();
        connections.retain(|pinned| pinned.connection.is_usable());
        let position = connections
            .iter()
            .enumerate()
            .find_map(|(index, connection)| Some((index, select(connection)?)));
        let selected = position.map(|(index, result)| (result, connections.remove(index)));
        self.is_used.set(!connections.is_empty());
        selected
    }
}

impl Exchange<'_, '_> {
    /// True for a request that authenticates its connection, and for each request of a client that has such a
    /// connection.
    #[inline]
    pub(super) fn needs_pinned_connection(&self) -> bool {
        self.session.pinned.is_used() || self.request.head.authenticates_connection
    }

    /// Returns the destination of a request that needs a pinned connection, and the client's pinned
    /// connection to that destination, if there is one.
    #[cold]
    #[inline(never)]
    pub(super) fn pinned_destination(
        &mut self,
        resolved_route: &ResolvedRoute,
        avoided_endpoint: Option<&EndpointId>,
    ) -> Result<(AttemptTarget, Option<Box<Http1Upstream>>), Reason> {
        // Streams of one link or HTTP/2 connection may belong to different clients, and so may the requests of
        // a proxy.
        if !self.session.is_exclusive.get() || self.is_from_proxy() {
            return Ok((self.pick_destination(resolved_route, avoided_endpoint)?, None));
        }
        let pinned = self
            .session
            .pinned
            .take_where(|pinned| self.pinned_target(pinned, resolved_route, avoided_endpoint));
        self.progress.is_pinned = pinned.is_some() || self.request.head.authenticates_connection;
        match pinned {
            Some((attempt_target, PinnedConnection { connection, .. })) => {
                Ok((attempt_target, Some(connection)))
            }
            None => Ok((self.pick_destination(resolved_route, avoided_endpoint)?, None)),
        }
    }

    /// True for a request from a proxy, which may send the requests of several users over one connection. On a
    /// connection that another sidecar opened for one client, that sidecar has made this check.
    fn is_from_proxy(&self) -> bool {
        let request = self.request;
        let has_header = |name: &str| request.head.find(&request.bytes, name).next().is_some();
        !self.session.is_dedicated && PROXY_HEADERS.iter().any(|name| has_header(name))
    }

    /// Returns the target of a pinned connection; `None` if the route of the request does not permit it.
    fn pinned_target(
        &self,
        pinned_connection: &PinnedConnection,
        resolved_route: &ResolvedRoute,
        avoided_endpoint: Option<&EndpointId>,
    ) -> Option<AttemptTarget> {
        match (&resolved_route.destination, &pinned_connection.attempt_target) {
            (Destination::Application(application), AttemptTarget::Application(pinned_to)) => {
                application
                    .is_same(pinned_to)
                    .then(|| AttemptTarget::Application(application.clone()))
            }
            (Destination::Endpoints(priorities), AttemptTarget::Upstream(pinned_to)) => {
                let (worker, cluster) = (&self.session.worker, resolved_route.cluster.as_deref());
                let endpoints = priorities.serving_endpoints(worker, cluster, avoided_endpoint);
                let endpoint = endpoints
                    .iter()
                    .find(|candidate| candidate.is_same_upstream(&pinned_to.endpoint))?;
                session_endpoint(worker, endpoint, cluster, avoided_endpoint)
                    .map(AttemptTarget::Upstream)
            }
            // The pinned connection is for another kind of destination than this request.
            _ => None,
        }
    }

    /// Returns a connection for this client only.
    pub(super) async fn acquire_pinned(
        &self,
        attempt_target: &AttemptTarget,
        connection: Option<Box<Http1Upstream>>,
    ) -> Result<Checkout, Reason> {
        let worker = &self.session.worker;
        match connection {
            Some(connection) => {
                worker.metrics.add(Count::CheckoutReused, 1);
                Ok(Checkout::Http1(connection))
            }
            None => {
                let wait = self.exclusive_wait();
                attempt_target.acquire_exclusive(worker, self.timed_attempt.as_ref(), wait).await
            }
        }
    }

    /// Returns the time limit for a connection that no other request waits for.
    pub(crate) fn exclusive_wait(&self) -> ConnectWait {
        ConnectWait::for_cluster(
            self.outcome_guard.as_ref().map(OutcomeGuard::upstream_cluster),
            || ConnectWait::Full,
        )
    }

    /// Keeps a connection for the next request of its client.
    #[cold]
    #[inline(never)]
    pub(crate) fn pin_connection(
        &self,
        attempt_target: &AttemptTarget,
        mut connection: Box<Http1Upstream>,
    ) {
        connection.is_reused = true;
        self.session.pinned.add_connection(PinnedConnection {
            attempt_target: attempt_target.clone(),
            connection,
        });
    }
}

/// Headers that proxies add to the requests of their clients.
const PROXY_HEADERS: [&str; 3] = ["via", "forwarded", "x-forwarded-for"];
/// The maximum number of pinned connections of one client: a client of the HTTP proxy may use several servers
/// in turn.
const MAX_PINNED_CONNECTIONS: usize = 4;
