//! Connections of proxies and other control planes with a verified certificate, and the limit of connections
//! per identity.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leno_discovery::{ConnectionId, ServeError};
use leno_identity::VerifiedPeer;
use leno_listen::HalfOpen;
use leno_model::{SpiffeId, WorkloadName};
use tokio::sync::Notify;

use super::ConnectionError;
use crate::admin_address::ConnectionAddresses;

/// The connections of members and of other control planes, each with the peer that its certificate names.
#[derive(Debug, Default)]
pub(crate) struct PendingConnections(Mutex<ConnectionTable>);

#[derive(Debug, Default)]
struct ConnectionTable {
    connections: BTreeMap<ConnectionId, MemberConnection>,
    /// The connections of each identity, the oldest first.
    by_identity: BTreeMap<MemberIdentity, VecDeque<ConnectionId>>,
}

/// A workload under its account. Certificates of control planes name no workload.
type MemberIdentity = (SpiffeId, Option<WorkloadName>);

#[derive(Debug)]
struct MemberConnection {
    peer: VerifiedPeer,
    connection_addresses: ConnectionAddresses,
    half_open: Arc<HalfOpen>,
    is_authenticated: bool,
    replaced: Arc<Notify>,
}

impl PendingConnections {
    /// Returns the peer of a connection, and both its addresses.
    pub(crate) fn peer(
        &self,
        connection: ConnectionId,
    ) -> Option<(VerifiedPeer, ConnectionAddresses)> {
        self.lock()
            .connections
            .get(&connection)
            .map(|member| (member.peer.clone(), member.connection_addresses))
    }

    /// Marks a connection as no longer half-open: its peer is authenticated.
    pub(crate) fn mark_authenticated(&self, connection: ConnectionId) {
        if let Some(member) = self.lock().connections.get_mut(&connection) {
            member.is_authenticated = true;
            member.half_open.mark_complete();
        }
    }

    /// Adds a connection of this peer. If its identity is at the limit, one connection is ended: the oldest
    /// that is still half-open, or else the oldest of all.
    pub(super) fn add_connection(
        self: &Arc<Self>,
        connection: ConnectionId,
        peer: VerifiedPeer,
        connection_addresses: ConnectionAddresses,
        half_open: Arc<HalfOpen>,
    ) -> PendingConnection {
        let replaced = Arc::new(Notify::new());
        let identity = (peer.id.clone(), peer.workload.clone());
        let member = MemberConnection {
            peer,
            connection_addresses,
            half_open,
            is_authenticated: false,
            replaced: Arc::clone(&replaced),
        };
        let mut table = self.lock();
        let ConnectionTable { connections, by_identity } = &mut *table;
        connections.insert(connection, member);
        let own_connections = by_identity.entry(identity.clone()).or_default();
        if own_connections.len() >= MAX_CONNECTIONS_PER_IDENTITY {
            let is_half_open = |candidate: &ConnectionId| {
                connections.get(candidate).is_some_and(|member| !member.is_authenticated)
            };
            let oldest_index = own_connections.iter().position(is_half_open).unwrap_or(0);
            if let Some(member) =
                own_connections.remove(oldest_index).and_then(|oldest| connections.get(&oldest))
            {
                member.replaced.notify_one();
            }
        }
        own_connections.push_back(connection);
        drop(table);
        PendingConnection { pending_connections: Arc::clone(self), connection, identity, replaced }
    }

    /// Locks the table. A thread that panicked with the lock left no inconsistent state.
    fn lock(&self) -> MutexGuard<'_, ConnectionTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a connection registered until dropped.
pub(super) struct PendingConnection {
    pending_connections: Arc<PendingConnections>,
    connection: ConnectionId,
    identity: MemberIdentity,
    replaced: Arc<Notify>,
}

impl PendingConnection {
    /// Serves the connection until newer connections of the same identity replace it.
    pub(super) async fn serve_until_replaced(
        self,
        serving: impl Future<Output = Result<(), ServeError>>,
    ) -> Result<(), ConnectionError> {
        tokio::select! {
            serving = serving => Ok(serving?),
            () = self.replaced.notified() => Err(ConnectionError::Replaced),
        }
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        let mut table = self.pending_connections.lock();
        table.connections.remove(&self.connection);
        if let Some(own_connections) = table.by_identity.get_mut(&self.identity) {
            own_connections.retain(|connection| *connection != self.connection);
            if own_connections.is_empty() {
                table.by_identity.remove(&self.identity);
            }
        }
    }
}

/// Maximum connections of one workload, or of all other control planes: each has one, and briefly a second one
/// when it reconnects.
const MAX_CONNECTIONS_PER_IDENTITY: usize = 32;
