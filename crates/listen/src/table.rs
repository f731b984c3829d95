//! Decides which pending connections are evicted and which get turns, by the source of each connection. This
//! table is a state machine without I/O; `admission` wakes the tasks of the connections.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::source::ConnectionSource;

/// Bounds on the pending connections of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingLimits {
    /// Maximum connections that wait for their peer.
    pub waiting: usize,
    /// Maximum connections of one source that wait for their peer.
    pub waiting_per_source: usize,
    /// Maximum pending connections in any state, including those that wait for a turn.
    pub pending: usize,
    /// Maximum concurrent turns.
    pub turns: usize,
}

impl PendingLimits {
    /// Returns limits for a listener with at most `connections` connections: at most `waiting` connections wait
    /// for their peer, and at most half of these have one source. The number of pending connections is at most
    /// half of `connections`. It is also at most four times `waiting`, because each connection that waits for a
    /// turn holds a ClientHello in memory.
    #[must_use]
    pub fn new(waiting: usize, connections: usize) -> Self {
        let max_pending = (connections / 2).max(1);
        let waiting = waiting.clamp(1, max_pending);
        let pending = max_pending.min(waiting.saturating_mul(QUEUE_FACTOR));
        Self { waiting, waiting_per_source: waiting.div_ceil(2), pending, turns: MAX_TURNS }
    }
}

/// The number of a pending connection; lower numbers are older.
pub(crate) type PendingId = u64;

/// The pending connections of a listener. No method waits. If a method returns a [`PendingId`], the state of that
/// connection has changed, and the caller must wake its task.
#[derive(Debug)]
pub(crate) struct PendingTable {
    limits: PendingLimits,
    /// The admitted connections until they are removed, including evicted ones.
    entries: BTreeMap<PendingId, PendingEntry>,
    /// The pending connections by source; sources without one are absent.
    sources: BTreeMap<ConnectionSource, SourceEntry>,
    /// Sources by the number of connections that wait for their peer. Among sources with equal numbers, the source
    /// whose connection has waited longest is last.
    sources_by_waiting: BTreeSet<(usize, Reverse<u64>, ConnectionSource)>,
    /// Sources by the number of their pending connections.
    sources_by_pending: BTreeSet<(usize, ConnectionSource)>,
    /// Sources with connections that wait for a turn, in the order in which they get one.
    turn_order: VecDeque<ConnectionSource>,
    /// The number of pending connections, without evicted ones.
    pending_count: usize,
    /// The number of connections that wait for their peer.
    waiting_count: usize,
    /// The number of connections with a turn.
    running_count: usize,
    /// The last number assigned to a connection or to the start of a wait.
    last_sequence_number: u64,
}

/// A pending connection in the table.
#[derive(Debug)]
struct PendingEntry {
    source: ConnectionSource,
    state: PendingState,
    /// The sequence number at which the connection started to wait for its peer; `None` if no bytes are awaited. The
    /// number stays the same until all awaited bytes have arrived, so that a peer cannot delay its eviction by sending
    /// single bytes.
    waiting_since: Option<u64>,
}

/// The state of a pending connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PendingState {
    /// This process is working on the connection, or does so when its task runs next.
    Served,
    /// The connection waits for bytes of its peer.
    Waiting,
    /// The connection waits for a turn.
    Queued,
    /// The connection has a turn.
    Running,
    /// The connection was evicted to make room for another one. Its task closes it.
    Evicted,
}

/// The pending connections of one source.
#[derive(Debug, Default)]
struct SourceEntry {
    /// The number of pending connections, without evicted ones.
    pending_count: usize,
    /// The connections that wait for their peer, each with its `waiting_since`.
    waiting: BTreeSet<(u64, PendingId)>,
    /// The connections that wait for a turn. The newest and the oldest connection get turns alternately, so that a
    /// new connection does not wait behind all others, and no connection waits forever.
    queued_connections: VecDeque<PendingId>,
    /// True if the next turn is for the oldest queued connection.
    oldest_is_next: bool,
}

impl PendingTable {
    pub(crate) fn new(limits: PendingLimits) -> Self {
        Self {
            limits,
            entries: BTreeMap::new(),
            sources: BTreeMap::new(),
            sources_by_waiting: BTreeSet::new(),
            sources_by_pending: BTreeSet::new(),
            turn_order: VecDeque::new(),
            pending_count: 0,
            waiting_count: 0,
            running_count: 0,
            last_sequence_number: 0,
        }
    }

    /// Adds a connection and returns its number. If the table is full, also returns the connection that is evicted.
    pub(crate) fn admit(&mut self, source: ConnectionSource) -> (PendingId, Option<PendingId>) {
        let evicted_id = match self.len() >= self.limits.pending {
            true => self.evict_from_largest_source(),
            false => None,
        };
        let id = self.next_sequence_number();
        self.entries
            .insert(id, PendingEntry { source, state: PendingState::Served, waiting_since: None });
        self.pending_count += 1;
        self.update_source(source, |source_entry| source_entry.pending_count += 1);
        (id, evicted_id)
    }

    /// Returns the state of a connection; `None` after the connection was removed.
    pub(crate) fn connection_state(&self, id: PendingId) -> Option<PendingState> {
        self.entries.get(&id).map(|entry| entry.state)
    }

    /// Marks a connection as waiting for its peer. Returns the evicted connection if a limit is exceeded; it may
    /// be this one.
    pub(crate) fn start_waiting(&mut self, id: PendingId) -> Option<PendingId> {
        let sequence_number = self.next_sequence_number();
        let entry =
            self.entries.get_mut(&id).filter(|entry| entry.state == PendingState::Served)?;
        let (source, waiting_since) =
            (entry.source, *entry.waiting_since.get_or_insert(sequence_number));
        entry.state = PendingState::Waiting;
        self.waiting_count += 1;
        self.update_source(source, |source_entry| {
            _ = source_entry.waiting.insert((waiting_since, id))
        });
        let source_waiting_count =
            self.sources.get(&source).map_or(0, |source_entry| source_entry.waiting.len());
        let source_over_limit = if source_waiting_count > self.limits.waiting_per_source {
            source
        } else if self.waiting_count > self.limits.waiting {
            self.sources_by_waiting.last().map(|(_, _, source)| *source)?
        } else {
            return None;
        };
        self.evict_oldest_waiting(source_over_limit)
    }

    /// Marks a connection as served, and its awaited bytes as received in part or completely. If the connection had a
    /// turn, the turn ends; returns the connection that gets the next turn, if any.
    pub(crate) fn record_peer_progress(
        &mut self,
        id: PendingId,
        progress: PeerProgress,
    ) -> Option<PendingId> {
        if self.connection_state(id) == Some(PendingState::Evicted) {
            return None;
        }
        let next_id = self.remove_from_list(id);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.state = PendingState::Served;
            if progress == PeerProgress::Complete {
                entry.waiting_since = None;
            }
        }
        next_id
    }

    /// Requests a turn for a connection, which may get it at once.
    pub(crate) fn join_queue(&mut self, id: PendingId) {
        if self.connection_state(id) != Some(PendingState::Served) {
            return;
        }
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let source = entry.source;
        if self.running_count < self.limits.turns {
            entry.state = PendingState::Running;
            self.running_count += 1;
            return;
        }
        entry.state = PendingState::Queued;
        if let Some(source_entry) = self.sources.get_mut(&source) {
            source_entry.queued_connections.push_back(id);
            if source_entry.queued_connections.len() == 1 {
                self.turn_order.push_back(source);
            }
        }
    }

    /// Removes a connection that is no longer pending. If it had a turn, returns the connection that gets the
    /// next turn, if any.
    pub(crate) fn remove(&mut self, id: PendingId) -> Option<PendingId> {
        let next_id = self.remove_from_list(id);
        if let Some(entry) = self.entries.remove(&id)
            && entry.state != PendingState::Evicted
        {
            self.pending_count -= 1;
            self.update_source(entry.source, |source_entry| source_entry.pending_count -= 1);
        }
        next_id
    }

    /// Returns the number of pending connections, without evicted ones.
    pub(crate) fn len(&self) -> usize {
        self.pending_count
    }

    /// Removes a connection from the list of its state. If it had a turn, returns the connection that gets the
    /// next turn, if any.
    fn remove_from_list(&mut self, id: PendingId) -> Option<PendingId> {
        let entry = self.entries.get(&id)?;
        let (source, waiting_since) = (entry.source, entry.waiting_since);
        match entry.state {
            PendingState::Served | PendingState::Evicted => None,
            PendingState::Waiting => {
                self.waiting_count -= 1;
                // A connection in this state always has the number: `start_waiting` sets both.
                let key = (waiting_since.unwrap_or_default(), id);
                self.update_source(source, |source_entry| _ = source_entry.waiting.remove(&key));
                None
            }
            PendingState::Queued => {
                if let Some(source_entry) = self.sources.get_mut(&source) {
                    source_entry.queued_connections.retain(|queued_id| *queued_id != id);
                    if source_entry.queued_connections.is_empty() {
                        self.turn_order.retain(|other| *other != source);
                    }
                }
                None
            }
            PendingState::Running => {
                self.running_count -= 1;
                self.grant_turn()
            }
        }
    }

    /// Gives a turn to the newest or the oldest queued connection of the next source.
    fn grant_turn(&mut self) -> Option<PendingId> {
        let source = self.turn_order.pop_front()?;
        let source_entry = self.sources.get_mut(&source)?;
        let takes_oldest = source_entry.oldest_is_next;
        source_entry.oldest_is_next = !takes_oldest;
        let id = match takes_oldest {
            true => source_entry.queued_connections.pop_front()?,
            false => source_entry.queued_connections.pop_back()?,
        };
        if !source_entry.queued_connections.is_empty() {
            self.turn_order.push_back(source);
        }
        self.entries.get_mut(&id)?.state = PendingState::Running;
        self.running_count += 1;
        Some(id)
    }

    /// Evicts a connection of the source with the most pending connections: the oldest that waits for its
    /// peer, or else the oldest that waits for a turn.
    fn evict_from_largest_source(&mut self) -> Option<PendingId> {
        let (_, source) = *self.sources_by_pending.last()?;
        let oldest_queued = self
            .sources
            .get(&source)
            .and_then(|source_entry| source_entry.queued_connections.front().copied());
        self.evict_oldest_waiting(source).or_else(|| self.evict(oldest_queued?))
    }

    /// Evicts the source's connection that has waited longest for its peer. Returns `None` if no connection waits.
    fn evict_oldest_waiting(&mut self, source: ConnectionSource) -> Option<PendingId> {
        let (_, oldest_id) = *self.sources.get(&source)?.waiting.first()?;
        self.evict(oldest_id)
    }

    /// Marks a connection as evicted. Returns its number, so that the caller wakes its task.
    fn evict(&mut self, id: PendingId) -> Option<PendingId> {
        // The evicted connection had no turn, so no other connection gets one.
        self.remove_from_list(id);
        let entry = self.entries.get_mut(&id)?;
        entry.state = PendingState::Evicted;
        let source = entry.source;
        self.pending_count -= 1;
        self.update_source(source, |source_entry| source_entry.pending_count -= 1);
        Some(id)
    }

    /// Changes the entry of a source, and updates the sorted sets of sources.
    fn update_source(&mut self, source: ConnectionSource, change: impl FnOnce(&mut SourceEntry)) {
        let source_entry = self.sources.entry(source).or_default();
        let longest_wait = |source_entry: &SourceEntry| {
            source_entry.waiting.first().map(|(waiting_since, _)| Reverse(*waiting_since))
        };
        if let Some(waiting_since) = longest_wait(source_entry) {
            self.sources_by_waiting.remove(&(source_entry.waiting.len(), waiting_since, source));
        }
        self.sources_by_pending.remove(&(source_entry.pending_count, source));
        change(source_entry);
        if let Some(waiting_since) = longest_wait(source_entry) {
            self.sources_by_waiting.insert((source_entry.waiting.len(), waiting_since, source));
        }
        match source_entry.pending_count {
            0 => drop(self.sources.remove(&source)),
            count => drop(self.sources_by_pending.insert((count, source))),
        }
    }

    /// Returns the next number for a connection or for the start of a wait.
    fn next_sequence_number(&mut self) -> u64 {
        self.last_sequence_number += 1;
        self.last_sequence_number
    }
}

/// The part of the awaited bytes, such as a ClientHello, that the peer has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerProgress {
    /// A part has arrived, and more bytes are awaited.
    Partial,
    /// All awaited bytes have arrived.
    Complete,
}

/// The ratio of the limit on all pending connections to the limit on those that wait for their peer. It leaves room for
/// connections that wait for a turn, because all clients of a restarted server reconnect at once.
const QUEUE_FACTOR: usize = 4;
/// Maximum handshakes that a thread computes in a row. Requests in progress wait meanwhile; each handshake takes a
/// fraction of a millisecond.
const MAX_TURNS: usize = 4;

#[cfg(test)]
mod tests;
