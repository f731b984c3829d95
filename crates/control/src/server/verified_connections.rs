//! Stores the connections of proxies and other control planes with a verified certificate, and limits their number
//! per identity.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leno_discovery::{ConnectionId, ServeError};
use leno_identity::VerifiedPeer;
use leno_listen::PendingConnection;
use leno_model::{SpiffeId, WorkloadName};
use tokio::sync::Notify;

use super::ConnectionError;
use crate::admin_address::ConnectionAddresses;

/// The connections with a verified certificate, from the end of the TLS handshake until they are closed.
#[derive(Debug, Default)]
pub(crate) struct VerifiedConnections(Mutex<ConnectionTable>);

#[derive(Debug, Default)]
struct ConnectionTable {
    connections: BTreeMap<ConnectionId, VerifiedConnection>,
    /// The connections of each identity, the oldest first.
    by_identity: BTreeMap<PeerIdentity, VecDeque<ConnectionId>>,
}

/// The account and the workload in a certificate. Certificates of control planes name no workload.
type PeerIdentity = (SpiffeId, Option<WorkloadName>);

#[derive(Debug)]
struct VerifiedConnection {
    peer: VerifiedPeer,
    connection_addresses: ConnectionAddresses,
    pending_connection: Arc<PendingConnection>,
    /// True after the state task has accepted the `Hello` of the peer. The connection is pending until then.
    is_authenticated: bool,
    /// Notified when newer connections of the same identity replace this one.
    replaced: Arc<Notify>,
}

impl VerifiedConnections {
    /// Returns the peer of a connection, and the addresses of both ends; `None` after the connection has ended.
    pub(crate) fn peer(
        &self,
        connection: ConnectionId,
    ) -> Option<(VerifiedPeer, ConnectionAddresses)> {
        self.lock()
            .connections
            .get(&connection)
            .map(|verified| (verified.peer.clone(), verified.connection_addresses))
    }

    /// Marks the peer of a connection as authenticated, so that the connection is no longer pending.
    pub(crate) fn mark_authenticated(&self, connection: ConnectionId) {
        if let Some(verified_connection) = self.lock().connections.get_mut(&connection) {
            verified_connection.is_authenticated = true;
            verified_connection.pending_connection.mark_established();
        }
    }

    /// Adds a connection of this peer. If its identity is at the limit, one connection is ended: the oldest
    /// that is still pending, or else the oldest of all.
    pub(super) fn add_connection(
        self: &Arc<Self>,
        connection: ConnectionId,
        peer: VerifiedPeer,
        connection_addresses: ConnectionAddresses,
        pending_connection: Arc<PendingConnection>,
    ) -> ConnectionEntry {
        let replaced = Arc::new(Notify::new());
        let identity = (peer.id.clone(), peer.workload.clone());
        let verified_connection = VerifiedConnection {
            peer,
            connection_addresses,
            pending_connection,
            is_authenticated: false,
            replaced: Arc::clone(&replaced),
        };
        let mut table = self.lock();
        let ConnectionTable { connections, by_identity } = &mut *table;
        connections.insert(connection, verified_connection);
        let own_connections = by_identity.entry(identity.clone()).or_default();
        if own_connections.len() >= MAX_CONNECTIONS_PER_IDENTITY {
            let is_pending = |candidate: &ConnectionId| {
                connections.get(candidate).is_some_and(|candidate| !candidate.is_authenticated)
            };
            let oldest_index = own_connections.iter().position(is_pending).unwrap_or(0);
            if let Some(oldest_connection) =
                own_connections.remove(oldest_index).and_then(|oldest| connections.get(&oldest))
            {
                oldest_connection.replaced.notify_one();
            }
        }
        own_connections.push_back(connection);
        drop(table);
        ConnectionEntry { verified_connections: Arc::clone(self), connection, identity, replaced }
    }

    /// Locks the table. A thread that panicked with the lock left no inconsistent state.
    fn lock(&self) -> MutexGuard<'_, ConnectionTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The entry of a connection in the table. Dropping this value removes the entry.
pub(super) struct ConnectionEntry {
    verified_connections: Arc<VerifiedConnections>,
    connection: ConnectionId,
    identity: PeerIdentity,
    replaced: Arc<Notify>,
}

impl ConnectionEntry {
    /// Runs `serving`, which serves the connection. Returns [`ConnectionError::Replaced`] if newer connections of the same
    /// identity replace the connection first.
    pub(super) async fn serve_until_replaced(
        self,
        serving: impl Future<Output = Result<(), ServeError>>,
    ) -> Result<(), ConnectionError> {
        tokio::select! {
            result = serving => Ok(result?),
            () = self.replaced.notified() => Err(ConnectionError::Replaced),
        }
    }
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        let mut table = self.verified_connections.lock();
        table.connections.remove(&self.connection);
        if let Some(own_connections) = table.by_identity.get_mut(&self.identity) {
            own_connections.retain(|connection| *connection != self.connection);
            if own_connections.is_empty() {
                table.by_identity.remove(&self.identity);
            }
        }
    }
}

/// Maximum connections of one workload, or of all other control planes together. Each proxy and control plane has one
/// connection, and briefly a second one when it reconnects.
const MAX_CONNECTIONS_PER_IDENTITY: usize = 32;
