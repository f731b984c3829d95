//! The table of half-open connections: their states, the shares of sources, evictions and turns, without IO.

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

/// The half-open connections of a listener. No method waits; a returned `HalfOpenId` is that of a connection
/// whose state has changed: its task must be woken.
#[derive(Debug)]
pub(crate) struct HalfOpenTable {
    limits: HalfOpenLimits,
    entries: BTreeMap<HalfOpenId, HalfOpenEntry>,
    shares: BTreeMap<ConnectionSource, SourceShare>,
    /// Sources by the number of connections that wait for their peer; among equal ones, the source with the
    /// oldest connection is last.
    by_waiting: BTreeSet<(usize, Reverse<u64>, ConnectionSource)>,
    /// Sources by the number of their half-open connections.
    by_count: BTreeSet<(usize, ConnectionSource)>,
    /// Sources with connections that wait for a turn, in the order in which they get one.
    rotation: VecDeque<ConnectionSource>,
    /// The number of half-open connections, without evicted ones.
    half_open: usize,
    /// The number of connections that wait for their peer.
    waiting: usize,
    /// The number of connections with a turn.
    running: usize,
    /// The last number given to a connection or to the start of a wait.
    last_sequence_number: u64,
}

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
    /// This process is working on the connection, or will do so next.
    Served,
    /// The connection waits for bytes of its peer.
    Waiting,
    /// The connection waits for a turn.
    Queued,
    /// The connection has a turn.
    Running,
    /// The connection had to make room for others: its task closes it.
    Evicted,
}

/// The half-open connections of one source.
#[derive(Debug, Default)]
struct SourceShare {
    count: usize,
    waiting: BTreeSet<(u64, HalfOpenId)>,
    /// The connections that wait for a turn. The newest and the oldest get turns alternately: a new connection
    /// does not wait behind all others, and none waits forever.
    queued: VecDeque<HalfOpenId>,
    oldest_is_next: bool,
}

impl HalfOpenTable {
    pub(crate) fn new(limits: HalfOpenLimits) -> Self {
        Self {
            limits,
            entries: BTreeMap::new(),
            shares: BTreeMap::new(),
            by_waiting: BTreeSet::new(),
            by_count: BTreeSet::new(),
            rotation: VecDeque::new(),
            half_open: 0,
            waiting: 0,
            running: 0,
            last_sequence_number: 0,
        }
    }

    /// Adds a connection; returns its number, and the connection that makes room for it.
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
        self.half_open += 1;
        self.update_share(source, |share| share.count += 1);
        (id, evicted)
    }

    pub(crate) fn connection_state(&self, id: HalfOpenId) -> Option<HalfOpenState> {
        self.entries.get(&id).map(|entry| entry.state)
    }

    /// Marks a connection as waiting for its peer. Returns the one that makes room, possibly itself.
    pub(crate) fn start_waiting(&mut self, id: HalfOpenId) -> Option<HalfOpenId> {
        let sequence_number = self.next_sequence_number();
        let entry =
            self.entries.get_mut(&id).filter(|entry| entry.state == HalfOpenState::Served)?;
        let (source, waiting_since) =
            (entry.source, *entry.waiting_since.get_or_insert(sequence_number));
        entry.state = HalfOpenState::Waiting;
        self.waiting += 1;
        self.update_share(source, |share| _ = share.waiting.insert((waiting_since, id)));
        let source_waiting = self.shares.get(&source).map_or(0, |share| share.waiting.len());
        let source_over_limit = if source_waiting > self.limits.waiting_per_source {
            source
        } else if self.waiting > self.limits.waiting {
            self.by_waiting.last().map(|(_, _, source)| *source)?
        } else {
            return None;
        };
        self.evict_oldest_waiting(source_over_limit)
    }

    /// Marks a connection as served: the peer has sent a part, or all, of the awaited bytes. Returns the one
    /// that gets its turn.
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
        if self.running < self.limits.turns {
            entry.state = HalfOpenState::Running;
            self.running += 1;
            return;
        }
        entry.state = HalfOpenState::Queued;
        if let Some(share) = self.shares.get_mut(&source) {
            share.queued.push_back(id);
            if share.queued.len() == 1 {
                self.rotation.push_back(source);
            }
        }
    }

    /// Removes a connection that is no longer half-open. Returns the one that gets its turn.
    pub(crate) fn remove(&mut self, id: HalfOpenId) -> Option<HalfOpenId> {
        let next_turn = self.remove_from_list(id);
        if let Some(entry) = self.entries.remove(&id)
            && entry.state != HalfOpenState::Evicted
        {
            self.half_open -= 1;
            self.update_share(entry.source, |share| share.count -= 1);
        }
        next_turn
    }

    /// Returns the number of half-open connections, without evicted ones.
    pub(crate) fn len(&self) -> usize {
        self.half_open
    }

    /// Removes a connection from the list of its state. Returns the one that gets its turn.
    fn remove_from_list(&mut self, id: HalfOpenId) -> Option<HalfOpenId> {
        let entry = self.entries.get(&id)?;
        let (source, waiting_since) = (entry.source, entry.waiting_since);
        match entry.state {
            HalfOpenState::Served | HalfOpenState::Evicted => None,
            HalfOpenState::Waiting => {
                self.waiting -= 1;
                let key = (waiting_since.unwrap_or_default(), id);
                self.update_share(source, |share| _ = share.waiting.remove(&key));
                None
            }
            HalfOpenState::Queued => {
                if let Some(share) = self.shares.get_mut(&source) {
                    share.queued.retain(|queued| *queued != id);
                    if share.queued.is_empty() {
                        self.rotation.retain(|other| *other != source);
                    }
                }
                None
            }
            HalfOpenState::Running => {
                self.running -= 1;
                self.grant_turn()
            }
        }
    }

    /// Gives a turn to the newest or the oldest queued connection of the next source.
    fn grant_turn(&mut self) -> Option<HalfOpenId> {
        let source = self.rotation.pop_front()?;
        let share = self.shares.get_mut(&source)?;
        share.oldest_is_next = !share.oldest_is_next;
        let id = match share.oldest_is_next {
            true => share.queued.pop_back()?,
            false => share.queued.pop_front()?,
        };
        if !share.queued.is_empty() {
            self.rotation.push_back(source);
        }
        self.entries.get_mut(&id)?.state = HalfOpenState::Running;
        self.running += 1;
        Some(id)
    }

    /// Evicts a connection of the source with the most half-open connections: the oldest that waits for its
    /// peer, or else the oldest that waits for a turn.
    fn evict_from_largest_source(&mut self) -> Option<HalfOpenId> {
        let (_, source) = *self.by_count.last()?;
        let queued = self.shares.get(&source).and_then(|share| share.queued.front().copied());
        self.evict_oldest_waiting(source).or_else(|| self.evict(queued?))
    }

    fn evict_oldest_waiting(&mut self, source: ConnectionSource) -> Option<HalfOpenId> {
        let (_, oldest) = *self.shares.get(&source)?.waiting.first()?;
        self.evict(oldest)
    }

    fn evict(&mut self, id: HalfOpenId) -> Option<HalfOpenId> {
        // An evicted connection had no turn, so there is none to pass on.
        self.remove_from_list(id);
        let entry = self.entries.get_mut(&id)?;
        entry.state = HalfOpenState::Evicted;
        let source = entry.source;
        self.half_open -= 1;
        self.update_share(source, |share| share.count -= 1);
        Some(id)
    }

    /// Changes a share, and updates the orders of sources.
    fn update_share(&mut self, source: ConnectionSource, change: impl FnOnce(&mut SourceShare)) {
        let share = self.shares.entry(source).or_default();
        let oldest = |share: &SourceShare| {
            share.waiting.first().map(|(waiting_since, _)| Reverse(*waiting_since))
        };
        if let Some(oldest) = oldest(share) {
            self.by_waiting.remove(&(share.waiting.len(), oldest, source));
        }
        self.by_count.remove(&(share.count, source));
        change(share);
        if let Some(oldest) = oldest(share) {
            self.by_waiting.insert((share.waiting.len(), oldest, source));
        }
        match share.count {
            0 => drop(self.shares.remove(&source)),
            count => drop(self.by_count.insert((count, source))),
        }
    }

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

/// Maximum half-open connections for each one that may wait for its peer: all clients reconnect at once after a
/// restart of a server.
const QUEUE_FACTOR: usize = 4;
/// Maximum handshakes that a thread computes in a row: each takes a fraction of a millisecond, and requests in
/// progress wait for it.
const MAX_TURNS: usize = 4;

#[cfg(test)]
mod tests;
