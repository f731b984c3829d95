//! Lists the open connections for the admin endpoint, and counts open connections and links.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Mutex;
use std::time::Instant;

use leno_telemetry::{ConnectionSide, Gauge, MetricsShard};
use slab::Slab;

/// The open connections of all threads.
#[derive(Default)]
pub(crate) struct Connections(Mutex<Slab<OpenConnection>>);

/// One open connection.
#[derive(Debug, Clone)]
pub(crate) struct OpenConnection {
    /// `inbound` or `outbound`.
    pub(crate) direction: &'static str,
    /// `http`, `http2`, `link` or `tcp`.
    pub(crate) protocol: &'static str,
    pub(crate) peer: SocketAddr,
    /// The verified identity of the peer; empty on plaintext connections.
    pub(crate) identity: String,
    /// The destination: an application port, `SERVICE:PORT`, an external address or `HTTP proxy`.
    pub(crate) target: String,
    /// The time when the connection was opened.
    pub(crate) opened_at: Instant,
}

impl Connections {
    /// Lists a connection until the guard is dropped.
    pub(crate) fn list(
        self: &std::sync::Arc<Self>,
        connection: OpenConnection,
    ) -> ConnectionListing {
        let key = self.lock().insert(connection);
        ConnectionListing { connections: self.clone(), key }
    }

    /// Returns the number of open connections, and at most `limit` of them.
    pub(crate) fn snapshot(&self, limit: usize) -> (usize, Vec<OpenConnection>) {
        let connections = self.lock();
        (
            connections.len(),
            connections.iter().take(limit).map(|(_, connection)| connection.clone()).collect(),
        )
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Slab<OpenConnection>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Keeps a connection in the list until dropped.
pub(crate) struct ConnectionListing {
    connections: std::sync::Arc<Connections>,
    /// The key of the connection in the list.
    key: usize,
}

impl ConnectionListing {
    /// Records that the connection continues in another protocol.
    pub(crate) fn set_protocol(&self, protocol: &'static str) {
        if let Some(connection) = self.connections.lock().get_mut(self.key) {
            connection.protocol = protocol;
        }
    }
}

impl Drop for ConnectionListing {
    fn drop(&mut self) {
        self.connections.lock().try_remove(self.key);
    }
}

/// Counts a connection or link as open until it is dropped.
pub(crate) struct OpenCounter {
    metrics: Rc<MetricsShard>,
    resource: CountedResource,
}

/// The gauge that an [`OpenCounter`] decrements when it is dropped.
enum CountedResource {
    Connection(ConnectionSide),
    Link(Gauge),
}

impl OpenCounter {
    /// Counts a connection opened on this side.
    pub(crate) fn for_connection(metrics: &Rc<MetricsShard>, side: ConnectionSide) -> Self {
        metrics.count_connection_opened(side);
        Self { metrics: metrics.clone(), resource: CountedResource::Connection(side) }
    }

    /// Counts a link opened on this side.
    pub(crate) fn for_link(metrics: &Rc<MetricsShard>, side: ConnectionSide) -> Self {
        let gauge = match side {
            ConnectionSide::Downstream => Gauge::LinksDownstream,
            ConnectionSide::Upstream => Gauge::LinksUpstream,
        };
        metrics.increment(gauge, 1);
        Self { metrics: metrics.clone(), resource: CountedResource::Link(gauge) }
    }
}

impl Drop for OpenCounter {
    fn drop(&mut self) {
        match self.resource {
            CountedResource::Connection(side) => self.metrics.count_connection_closed(side),
            CountedResource::Link(gauge) => self.metrics.decrement(gauge, 1),
        }
    }
}
