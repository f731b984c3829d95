//! Authenticated peers of connections, and the connection limit of each identity.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leno_discovery::{ConnectionId, ServeError};
use leno_identity::VerifiedPeer;
use leno_listen::HalfOpen;
use leno_model::{SpiffeId, WorkloadName};
use tokio::sync::Notify;

use super::ConnectionError;
use crate::admin_address::ConnectionAddresses;

/// The peer of each stream, by its certificate.
#[derive(Debug, Default)]
pub(crate) struct PendingConnections(Mutex<ConnectionTable>);

#[derive(Debug, Default)]
struct ConnectionTable {
    here: BTreeMap<ConnectionId, MemberConnection>,
    /// The connections of each identity, the oldest first.
    shares: BTreeMap<MemberIdentity, VecDeque<ConnectionId>>,
}

/// A workload under its account. Certificates of control planes name no workload.
type MemberIdentity = (SpiffeId, Option<WorkloadName>);

#[derive(Debug)]
struct MemberConnection {
    peer: VerifiedPeer,
    connection_addresses: ConnectionAddresses,
    half_open: Arc<HalfOpen>,
    is_proven: bool,
    ended: Arc<Notify>,
}

impl PendingConnections {
    /// Returns the peer of a connection, and both its addresses.
    pub(crate) fn peer(
        &self,
        connection: ConnectionId,
    ) -> Option<(VerifiedPeer, ConnectionAddresses)> {
        self.lock().here.get(&connection).map(|here| (here.peer.clone(), here.connection_addresses))
    }

    /// Marks a connection as no longer half-open: its peer is authenticated.
    pub(crate) fn mark_authenticated(&self, connection: ConnectionId) {
        if let Some(here) = self.lock().here.get_mut(&connection) {
            here.is_proven = true;
            here.half_open.mark_complete();
        }
    }

    /// Adds a connection of this peer. If its identity is at the limit, the oldest connection that is still
    /// half-open ends, or else the oldest.
    pub(super) fn add_connection(
        self: &Arc<Self>,
        connection: ConnectionId,
        peer: VerifiedPeer,
        connection_addresses: ConnectionAddresses,
        half_open: Arc<HalfOpen>,
    ) -> PendingConnection {
        let ended = Arc::new(Notify::new());
        let identity = (peer.id.clone(), peer.workload.clone());
        let here = MemberConnection {
            peer,
            connection_addresses,
            half_open,
            is_proven: false,
            ended: Arc::clone(&ended),
        };
        let mut locked = self.lock();
        let ConnectionTable { here: all, shares } = &mut *locked;
        all.insert(connection, here);
        let share = shares.entry(identity.clone()).or_default();
        if share.len() >= OF_IDENTITY_MAX {
            let is_half_open = |it: &ConnectionId| all.get(it).is_some_and(|here| !here.is_proven);
            let oldest = share.iter().position(is_half_open).unwrap_or(0);
            if let Some(here) = share.remove(oldest).and_then(|oldest| all.get(&oldest)) {
                here.ended.notify_one();
            }
        }
        share.push_back(connection);
        drop(locked);
        PendingConnection { pending_connections: Arc::clone(self), connection, identity, ended }
    }

    /// A thread that panicked while it held the lock left no inconsistent state.
    fn lock(&self) -> MutexGuard<'_, ConnectionTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a stream registered until dropped.
pub(super) struct PendingConnection {
    pending_connections: Arc<PendingConnections>,
    connection: ConnectionId,
    identity: MemberIdentity,
    ended: Arc<Notify>,
}

impl PendingConnection {
    /// Serves the stream until newer ones of the same identity replace it.
    pub(super) async fn within_share(
        self,
        served: impl Future<Output = Result<(), ServeError>>,
    ) -> Result<(), ConnectionError> {
        tokio::select! {
            served = served => Ok(served?),
            () = self.ended.notified() => Err(ConnectionError::Crowd),
        }
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        let mut inner = self.pending_connections.lock();
        inner.here.remove(&self.connection);
        if let Some(share) = inner.shares.get_mut(&self.identity) {
            share.retain(|connection| *connection != self.connection);
            if share.is_empty() {
                inner.shares.remove(&self.identity);
            }
        }
    }
}

/// Maximum connections of one workload, or of all other control planes: each has one, and briefly a second one
/// when it reconnects.
const OF_IDENTITY_MAX: usize = 32;
