//! Connections reserved for one client, because their server authenticates the connection (NTLM, Negotiate).

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
    pins: RefCell<Vec<PinnedConnection>>,
    is_used: Cell<bool>,
}

struct PinnedConnection {
    attempt_target: AttemptTarget,
    connection: Box<Http1Upstream>,
}

impl PinnedConnections {
    /// True if the client has any.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.get()
    }

    fn add_pin(&self, pin: PinnedConnection) {
        let mut pins = self.pins.borrow_mut();
        if pins.len() >= PINS_MAX {
            pins.remove(0);
        }
        pins.push(pin);
        self.is_used.set(true);
    }

    /// Removes the pins that `choose` accepts, and returns the first result.
    fn take_where<T>(
        &self,
        mut choose: impl FnMut(&PinnedConnection) -> Option<T>,
    ) -> Option<(T, PinnedConnection)> {
        let mut pins = self.pins.borrow_mut();
        pins.retain(|pin| pin.connection.is_usable());
        let found = pins.iter().enumerate().find_map(|(at, pin)| Some((at, choose(pin)?)));
        let taken = found.map(|(at, chosen)| (chosen, pins.remove(at)));
        self.is_used.set(!pins.is_empty());
        taken
    }
}

impl Exchange<'_, '_> {
    /// True for a request that authenticates its connection, and for each one of a client that has such a connection.
    #[inline]
    pub(super) fn is_private(&self) -> bool {
        self.session.pinned.is_used() || self.request.head.authenticates_connection
    }

    /// Returns the destination of a request that authenticates its connection, or of a client with such a
    /// connection, and that connection.
    #[cold]
    #[inline(never)]
    pub(super) fn private_destination(
        &mut self,
        resolved_route: &ResolvedRoute,
        avoid: Option<&EndpointId>,
    ) -> Result<(AttemptTarget, Option<Box<Http1Upstream>>), Reason> {
        // Streams of one link or HTTP/2 connection may belong to different clients, and so may the requests of
        // a proxy.
        if !self.session.is_exclusive.get() || self.may_be_pooled() {
            return Ok((self.pick_destination(resolved_route, avoid)?, None));
        }
        let pinned =
            self.session.pinned.take_where(|pin| self.leads_there(pin, resolved_route, avoid));
        self.progress.pins = pinned.is_some() || self.request.head.authenticates_connection;
        match pinned {
            Some((attempt_target, PinnedConnection { connection, .. })) => {
                Ok((attempt_target, Some(connection)))
            }
            None => Ok((self.pick_destination(resolved_route, avoid)?, None)),
        }
    }

    /// True for a request from a proxy, which may send the requests of several users over one connection. On a
    /// connection that another sidecar opened for one client, that sidecar has made this check.
    fn may_be_pooled(&self) -> bool {
        let request = self.request;
        let is_marked = |name: &str| request.head.find(&request.bytes, name).next().is_some();
        !self.session.is_private && MARKS_OF_PROXIES.iter().any(|name| is_marked(name))
    }

    /// Returns the destination, if a pinned connection is a permitted route for the request.
    fn leads_there(
        &self,
        pin: &PinnedConnection,
        resolved_route: &ResolvedRoute,
        avoid: Option<&EndpointId>,
    ) -> Option<AttemptTarget> {
        match (&resolved_route.destination, &pin.attempt_target) {
            (Destination::Application(there), AttemptTarget::Application(pinned)) => {
                there.is_same(pinned).then(|| AttemptTarget::Application(there.clone()))
            }
            (Destination::Endpoints(priorities), AttemptTarget::Upstream(pinned)) => {
                let (worker, cluster) = (&self.session.worker, resolved_route.cluster.as_deref());
                let endpoints = priorities.serving_endpoints(worker, cluster, avoid);
                let endpoint = endpoints.iter().find(|it| it.is_same_place(&pinned.endpoint))?;
                session_endpoint(worker, endpoint, cluster, avoid).map(AttemptTarget::Upstream)
            }
            _ => None,
        }
    }

    /// Returns a connection for this client only.
    pub(super) async fn checkout_private(
        &self,
        attempt_target: &AttemptTarget,
        connection: Option<Box<Http1Upstream>>,
    ) -> Result<Checkout, Reason> {
        let worker = &self.session.worker;
        match connection {
            Some(connection) => {
                worker.shard.add(Count::CheckoutReused, 1);
                Ok(Checkout::Http1(connection))
            }
            None => {
                let wait = self.wait_alone();
                attempt_target.checkout_alone(worker, self.timed_attempt.as_ref(), wait).await
            }
        }
    }

    /// Returns the wait for a connection that no other request waits for.
    pub(crate) fn wait_alone(&self) -> ConnectWait {
        ConnectWait::for_cluster(
            self.outcome_guard.as_ref().map(OutcomeGuard::upstream_cluster),
            || ConnectWait::Whole,
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
        connection.reused = true;
        self.session
            .pinned
            .add_pin(PinnedConnection { attempt_target: attempt_target.clone(), connection });
    }
}

/// Headers that proxies add to the requests of their clients.
const MARKS_OF_PROXIES: [&str; 3] = ["via", "forwarded", "x-forwarded-for"];
/// The maximum number of servers that one client of the HTTP proxy may use in turn over one connection.
const PINS_MAX: usize = 4;
