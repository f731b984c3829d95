//! The table of half-open connections: their states by source, evictions and turns, without I/O.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::source::ConnectionSource;

/// Bounds on the half-open connections of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HalfOpenLimits {
    /// Maximum connections that wait for their peer.
    pub waiting: usize,
    /// Maximum connections of one source that wait for their peer.
    pub waiting_per_source: usize,
    /// Maximum half-open connections in any state, including those that wait for a turn.
    pub half_open: usize,
    /// Maximum concurrent turns.
    pub turns: usize,
}

impl HalfOpenLimits {
    /// Returns limits of `waiting` connections that wait for their peer, half of them of one source, for a
    /// listener with at most `connections`. Half-open connections are at most half of `connections`, and at
    /// most four times `waiting`, because each one that waits for a turn holds a ClientHello.
    #[must_use]
    pub fn new(waiting: usize, connections: usize) -> Self {
        let max_half_open = (connections / 2).max(1);
        let waiting = waiting.clamp(1, max_half_open);
        let half_open = max_half_open.min(waiting.saturating_mul(QUEUE_FACTOR));
        Self { waiting, waiting_per_source: waiting.div_ceil(2), half_open, turns: MAX_TURNS }
    }
}

/// The number of a half-open connection; lower numbers are older.
pub(crate) type HalfOpenId = u64;

/// The half-open connections of a listener. No method waits. If a method returns a [`HalfOpenId`], the state of that
/// connection has changed, and the caller must wake its task.
#[derive(Debug)]
pub(crate) struct HalfOpenTable {
    limits: HalfOpenLimits,
    entries: BTreeMap<HalfOpenId, HalfOpenEntry>,
    sources: BTreeMap<ConnectionSource, SourceEntry>,
    /// Sources by the number of connections that wait for their peer. Among sources with equal numbers, the source
    /// whose connection has waited longest is last.
    sources_by_waiting: BTreeSet<(usize, Reverse<u64>, ConnectionSource)>,
    /// Sources by the number of their half-open connections.
    sources_by_half_open: BTreeSet<(usize, ConnectionSource)>,
    /// Sources with connections that wait for a turn, in the order in which they get one.
    turn_order: VecDeque<ConnectionSource>,
    /// The number of half-open connections, without evicted ones.
    half_open_count: usize,
    /// The number of connections that wait for their peer.
    waiting_count: usize,
    /// The number of connections with a turn.
    running_count: usize,
    /// The last number assigned to a connection or to the start of a wait.
    last_sequence_number: u64,
}

/// A half-open connection in the table.
#[derive(Debug)]
struct HalfOpenEntry {
    source: ConnectionSource,
    state: HalfOpenState,
    /// The sequence number at which the connection started to wait for its peer in this phase. It stays until
    /// the phase ends, so that a peer that sends single bytes does not become younger.
    waiting_since: Option<u64>,
}

/// The state of a half-open connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HalfOpenState {
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

/// The half-open connections of one source.
#[derive(Debug, Default)]
struct SourceEntry {
    /// The number of half-open connections, without evicted ones.
    half_open_count: usize,
    /// The connections that wait for their peer, each with its `waiting_since`.
    waiting: BTreeSet<(u64, HalfOpenId)>,
    /// The connections that wait for a turn. The newest and the oldest connection get turns alternately, so that a
    /// new connection does not wait behind all others, and no connection waits forever.
    queued_connections: VecDeque<HalfOpenId>,
    /// True if the next turn is for the oldest queued connection.
    oldest_is_next: bool,
}

impl HalfOpenTable {
    pub(crate) fn new(limits: HalfOpenLimits) -> Self {
        Self {
            limits,
            entries: BTreeMap::new(),
            sources: BTreeMap::new(),
            sources_by_waiting: BTreeSet::new(),
            sources_by_half_open: BTreeSet::new(),
            turn_order: VecDeque::new(),
            half_open_count: 0,
            waiting_count: 0,
            running_count: 0,
            last_sequence_number: 0,
        }
    }

    /// Adds a connection. Returns its number, and the connection that is evicted for it, if the table is full.
    pub(crate) fn admit(&mut self, source: ConnectionSource) -> (HalfOpenId, Option<HalfOpenId>) {
        let evicted = match self.len() >= self.limits.half_open {
            true => self.evict_from_largest_source(),
            false => None,
        };
        let id = self.next_sequence_number();
        self.entries.insert(
            id,
            HalfOpenEntry { source, state: HalfOpenState::Served, waiting_since: None },
        );
        self.half_open_count += 1;
        self.update_source(source, |source_entry| source_entry.half_open_count += 1);
        (id, evicted)
    }

    /// Returns the state of a connection; `None` after the connection was removed.
    pub(crate) fn connection_state(&self, id: HalfOpenId) -> Option<HalfOpenState> {
        self.entries.get(&id).map(|entry| entry.state)
    }

    /// Marks a connection as waiting for its peer. Returns the evicted connection if a limit is exceeded; it may
    /// be this one.
    pub(crate) fn start_waiting(&mut self, id: HalfOpenId) -> Option<HalfOpenId> {
        let sequence_number = self.next_sequence_number();
        let entry =
            self.entries.get_mut(&id).filter(|entry| entry.state == HalfOpenState::Served)?;
        let (source, waiting_since) =
            (entry.source, *entry.waiting_since.get_or_insert(sequence_number));
        entry.state = HalfOpenState::Waiting;
        self.waiting_count += 1;
        self.update_source(source, |source_entry| {
            _ = source_entry.waiting.insert((waiting_since, id))
        });
        let source_waiting =
            self.sources.get(&source).map_or(0, |source_entry| source_entry.waiting.len());
        let source_over_limit = if source_waiting > self.limits.waiting_per_source {
            source
        } else if self.waiting_count > self.limits.waiting {
            self.sources_by_waiting.last().map(|(_, _, source)| *source)?
        } else {
            return None;
        };
        self.evict_oldest_waiting(source_over_limit)
    }

    /// Marks a connection as served: the peer has sent a part, or all, of the awaited bytes. Returns the
    /// connection that gets its turn, if any.
    pub(crate) fn record_phase(&mut self, id: HalfOpenId, phase: PeerPhase) -> Option<HalfOpenId> {
        if self.connection_state(id) == Some(HalfOpenState::Evicted) {
            return None;
        }
        let next_turn = self.remove_from_list(id);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.state = HalfOpenState::Served;
            if phase == PeerPhase::Ended {
                entry.waiting_since = None;
            }
        }
        next_turn
    }

    /// Requests a turn for a connection, which may get it at once.
    pub(crate) fn join_queue(&mut self, id: HalfOpenId) {
        if self.connection_state(id) != Some(HalfOpenState::Served) {
            return;
        }
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let source = entry.source;
        if self.running_count < self.limits.turns {
            entry.state = HalfOpenState::Running;
            self.running_count += 1;
            return;
        }
        entry.state = HalfOpenState::Queued;
        if let Some(source_entry) = self.sources.get_mut(&source) {
            source_entry.queued_connections.push_back(id);
            if source_entry.queued_connections.len() == 1 {
                self.turn_order.push_back(source);
            }
        }
    }

    /// Removes a connection that is no longer half-open. Returns the connection that gets its turn, if any.
    pub(crate) fn remove(&mut self, id: HalfOpenId) -> Option<HalfOpenId> {
        let next_turn = self.remove_from_list(id);
        if let Some(entry) = self.entries.remove(&id)
            && entry.state != HalfOpenState::Evicted
        {
            self.half_open_count -= 1;
            self.update_source(entry.source, |source_entry| source_entry.half_open_count -= 1);
        }
        next_turn
    }

    /// Returns the number of half-open connections, without evicted ones.
    pub(crate) fn len(&self) -> usize {
        self.half_open_count
    }

    /// Removes a connection from the list of its state. Returns the connection that gets its turn, if any.
    fn remove_from_list(&mut self, id: HalfOpenId) -> Option<HalfOpenId> {
        let entry = self.entries.get(&id)?;
        let (source, waiting_since) = (entry.source, entry.waiting_since);
        match entry.state {
            HalfOpenState::Served | HalfOpenState::Evicted => None,
            HalfOpenState::Waiting => {
                self.waiting_count -= 1;
                let key = (waiting_since.unwrap_or_default(), id);
                self.update_source(source, |source_entry| _ = source_entry.waiting.remove(&key));
                None
            }
            HalfOpenState::Queued => {
                if let Some(source_entry) = self.sources.get_mut(&source) {
                    source_entry.queued_connections.retain(|queued_id| *queued_id != id);
                    if source_entry.queued_connections.is_empty() {
                        self.turn_order.retain(|other| *other != source);
                    }
                }
                None
            }
            HalfOpenState::Running => {
                self.running_count -= 1;
                self.grant_turn()
            }
        }
    }

    /// Gives a turn to the newest or the oldest queued connection of the next source.
    fn grant_turn(&mut self) -> Option<HalfOpenId> {
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
        self.entries.get_mut(&id)?.state = HalfOpenState::Running;
        self.running_count += 1;
        Some(id)
    }

    /// Evicts a connection of the source with the most half-open connections: the oldest that waits for its
    /// peer, or else the oldest that waits for a turn.
    fn evict_from_largest_source(&mut self) -> Option<HalfOpenId> {
        let (_, source) = *self.sources_by_half_open.last()?;
        let oldest_queued = self
            .sources
            .get(&source)
            .and_then(|source_entry| source_entry.queued_connections.front().copied());
        self.evict_oldest_waiting(source).or_else(|| self.evict(oldest_queued?))
    }

    /// Evicts the source's connection that has waited longest for its peer. Returns `None` if no connection waits.
    fn evict_oldest_waiting(&mut self, source: ConnectionSource) -> Option<HalfOpenId> {
        let (_, oldest_id) = *self.sources.get(&source)?.waiting.first()?;
        self.evict(oldest_id)
    }

    /// Marks a connection as evicted. Returns its number, so that the caller wakes its task.
    fn evict(&mut self, id: HalfOpenId) -> Option<HalfOpenId> {
        // The evicted connection had no turn, so no other connection gets one.
        self.remove_from_list(id);
        let entry = self.entries.get_mut(&id)?;
        entry.state = HalfOpenState::Evicted;
        let source = entry.source;
        self.half_open_count -= 1;
        self.update_source(source, |source_entry| source_entry.half_open_count -= 1);
        Some(id)
    }

    /// Changes the entry of a source, and updates the sorted sets of sources.
    fn update_source(&mut self, source: ConnectionSource, change: impl FnOnce(&mut SourceEntry)) {
        let source_entry = self.sources.entry(source).or_default();
        let oldest_wait = |source_entry: &SourceEntry| {
            source_entry.waiting.first().map(|(waiting_since, _)| Reverse(*waiting_since))
        };
        if let Some(waiting_since) = oldest_wait(source_entry) {
            self.sources_by_waiting.remove(&(source_entry.waiting.len(), waiting_since, source));
        }
        self.sources_by_half_open.remove(&(source_entry.half_open_count, source));
        change(source_entry);
        if let Some(waiting_since) = oldest_wait(source_entry) {
            self.sources_by_waiting.insert((source_entry.waiting.len(), waiting_since, source));
        }
        match source_entry.half_open_count {
            0 => drop(self.sources.remove(&source)),
            count => drop(self.sources_by_half_open.insert((count, source))),
        }
    }

    /// Returns the next number for a connection or for the start of a wait.
    fn next_sequence_number(&mut self) -> u64 {
        self.last_sequence_number += 1;
        self.last_sequence_number
    }
}

/// The state of the awaited phase after the peer has sent bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerPhase {
    /// More bytes of the same phase are awaited.
    Continues,
    /// All bytes of the phase have arrived.
    Ended,
}

/// The ratio of half-open connections to connections that may wait for their peer. After a server restarts, all its
/// clients reconnect at once.
const QUEUE_FACTOR: usize = 4;
/// Maximum handshakes that a thread computes in a row. Each takes a fraction of a millisecond, and requests in
/// progress wait meanwhile.
const MAX_TURNS: usize = 4;

#[cfg(test)]
mod tests;
