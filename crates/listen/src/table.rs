//! The half-open connections of a listener: their states, shares, evictions and turns. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::source::ConnectionSource;

/// Bounds on the half-open connections of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HalfOpenLimits {
    /// Connections that wait for their peer at once.
    pub waiting: usize,
    /// The same of one source.
    pub waiting_of_source: usize,
    /// Half-open connections in any state, those that wait for a turn included.
    pub half_open: usize,
    /// Turns at once.
    pub turns: usize,
}

impl HalfOpenLimits {
    /// At most `waiting` connections that wait for their peer, half of them of one source, in a listener
    /// of `connections`: those that are half-open hold at most half of these, and are at most four times
    /// as many as those that wait, because each that waits for a turn holds a ClientHello.
    #[must_use]
    pub fn new(waiting: usize, connections: usize) -> Self {
        let most = (connections / 2).max(1);
        let waiting = waiting.clamp(1, most);
        let half_open = most.min(waiting.saturating_mul(QUEUE_FACTOR));
        Self { waiting, waiting_of_source: waiting.div_ceil(2), half_open, turns: TURNS }
    }
}

/// The number of one half-open connection. Lower ones are older.
pub(crate) type HalfOpenId = u64;

/// The half-open connections of a listener. No method waits; `HalfOpenId`s that are returned are those of
/// connections with a new state: their tasks have to be woken.
#[derive(Debug)]
pub(crate) struct HalfOpenTable {
    bounds: HalfOpenLimits,
    entries: BTreeMap<HalfOpenId, HalfOpenEntry>,
    shares: BTreeMap<ConnectionSource, SourceShare>,
    /// Sources by the number of connections that wait for their peer; among equals the one with the
    /// oldest is last.
    by_waiting: BTreeSet<(usize, Reverse<u64>, ConnectionSource)>,
    /// Sources by the number of their half-open connections.
    by_number: BTreeSet<(usize, ConnectionSource)>,
    /// Sources with connections that want a turn, in the order in which they get one.
    rotation: VecDeque<ConnectionSource>,
    half_open: usize,
    waiting: usize,
    turns: usize,
    next: u64,
}

#[derive(Debug)]
struct HalfOpenEntry {
    source: ConnectionSource,
    state: HalfOpenState,
    /// When it began to wait for its peer in this phase; kept until the phase ends, so that a peer that
    /// sends a byte at a time does not get younger.
    since: Option<u64>,
}

/// The state of a half-open connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HalfOpenState {
    /// This side works on it, or is about to look at it.
    Served,
    /// The peer has to send something.
    Waiting,
    /// There is work for a turn.
    Queued,
    /// It has a turn.
    Running,
    /// It had to make room: its task ends it.
    Evicted,
}

/// The half-open connections of one source.
#[derive(Debug, Default)]
struct SourceShare {
    number: usize,
    waiting: BTreeSet<(u64, HalfOpenId)>,
    /// The newest and the oldest get turns by turns: a new one does not wait behind all others, and none
    /// waits for ever.
    queued: VecDeque<HalfOpenId>,
    oldest_is_next: bool,
}

impl HalfOpenTable {
    pub(crate) fn new(bounds: HalfOpenLimits) -> Self {
        Self {
            bounds,
            entries: BTreeMap::new(),
            shares: BTreeMap::new(),
            by_waiting: BTreeSet::new(),
            by_number: BTreeSet::new(),
            rotation: VecDeque::new(),
            half_open: 0,
            waiting: 0,
            turns: 0,
            next: 0,
        }
    }

    /// One more, and the one that makes room for it.
    pub(crate) fn admit(&mut self, source: ConnectionSource) -> (HalfOpenId, Option<HalfOpenId>) {
        let evicted = match self.len() >= self.bounds.half_open {
            true => self.evict_of_most(),
            false => None,
        };
        let id = self.next_number();
        self.entries
            .insert(id, HalfOpenEntry { source, state: HalfOpenState::Served, since: None });
        self.half_open += 1;
        self.update_share(source, |share| share.number += 1);
        (id, evicted)
    }

    pub(crate) fn state_of(&self, id: HalfOpenId) -> Option<HalfOpenState> {
        self.entries.get(&id).map(|entry| entry.state)
    }

    /// Waits for its peer from now on, or still. Returns the one that makes room; that may be itself.
    pub(crate) fn start_waiting(&mut self, id: HalfOpenId) -> Option<HalfOpenId> {
        let number = self.next_number();
        let entry =
            self.entries.get_mut(&id).filter(|entry| entry.state == HalfOpenState::Served)?;
        let (source, since) = (entry.source, *entry.since.get_or_insert(number));
        entry.state = HalfOpenState::Waiting;
        self.waiting += 1;
        self.update_share(source, |share| _ = share.waiting.insert((since, id)));
        let of_source = self.shares.get(&source).map_or(0, |share| share.waiting.len());
        let crowded = if of_source > self.bounds.waiting_of_source {
            source
        } else if self.waiting > self.bounds.waiting {
            self.by_waiting.last().map(|(_, _, source)| *source)?
        } else {
            return None;
        };
        self.evict_waiting_of(crowded)
    }

    /// Is served: the peer has sent something, or all that it had to.
    pub(crate) fn record_phase(&mut self, id: HalfOpenId, phase: PeerPhase) -> Option<HalfOpenId> {
        if self.state_of(id) == Some(HalfOpenState::Evicted) {
            return None;
        }
        let granted = self.remove_from_list(id);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.state = HalfOpenState::Served;
            if phase == PeerPhase::Ended {
                entry.since = None;
            }
        }
        granted
    }

    /// Wants a turn; it may have it at once.
    pub(crate) fn join_queue(&mut self, id: HalfOpenId) {
        if self.state_of(id) != Some(HalfOpenState::Served) {
            return;
        }
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let source = entry.source;
        if self.turns < self.bounds.turns {
            entry.state = HalfOpenState::Running;
            self.turns += 1;
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

    /// Is no longer half-open. Returns the one that has its turn now.
    pub(crate) fn remove(&mut self, id: HalfOpenId) -> Option<HalfOpenId> {
        let granted = self.remove_from_list(id);
        if let Some(entry) = self.entries.remove(&id)
            && entry.state != HalfOpenState::Evicted
        {
            self.half_open -= 1;
            self.update_share(entry.source, |share| share.number -= 1);
        }
        granted
    }

    /// Half-open connections, without those that were evicted.
    pub(crate) fn len(&self) -> usize {
        self.half_open
    }

    /// Takes it out of the list that it is in. Returns the one that gets its turn.
    fn remove_from_list(&mut self, id: HalfOpenId) -> Option<HalfOpenId> {
        let entry = self.entries.get(&id)?;
        let (source, since) = (entry.source, entry.since);
        match entry.state {
            HalfOpenState::Served | HalfOpenState::Evicted => None,
            HalfOpenState::Waiting => {
                self.waiting -= 1;
                let key = (since.unwrap_or_default(), id);
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
                self.turns -= 1;
                self.grant_turn()
            }
        }
    }

    /// Gives a turn to the newest of the source that is next, or to its oldest.
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
        self.turns += 1;
        Some(id)
    }

    /// Evicts one of the source that has the most half-open connections: the oldest that waits for its
    /// peer, or else the oldest that waits for a turn.
    fn evict_of_most(&mut self) -> Option<HalfOpenId> {
        let (_, source) = *self.by_number.last()?;
        let queued = self.shares.get(&source).and_then(|share| share.queued.front().copied());
        self.evict_waiting_of(source).or_else(|| self.evict(queued?))
    }

    fn evict_waiting_of(&mut self, source: ConnectionSource) -> Option<HalfOpenId> {
        let (_, oldest) = *self.shares.get(&source)?.waiting.first()?;
        self.evict(oldest)
    }

    fn evict(&mut self, id: HalfOpenId) -> Option<HalfOpenId> {
        // Those that are evicted have no turn, so there is none to give to others.
        self.remove_from_list(id);
        let entry = self.entries.get_mut(&id)?;
        entry.state = HalfOpenState::Evicted;
        let source = entry.source;
        self.half_open -= 1;
        self.update_share(source, |share| share.number -= 1);
        Some(id)
    }

    /// Changes a share, and keeps the orders of shares up to date.
    fn update_share(&mut self, source: ConnectionSource, change: impl FnOnce(&mut SourceShare)) {
        let share = self.shares.entry(source).or_default();
        let oldest = |share: &SourceShare| share.waiting.first().map(|(since, _)| Reverse(*since));
        if let Some(oldest) = oldest(share) {
            self.by_waiting.remove(&(share.waiting.len(), oldest, source));
        }
        self.by_number.remove(&(share.number, source));
        change(share);
        if let Some(oldest) = oldest(share) {
            self.by_waiting.insert((share.waiting.len(), oldest, source));
        }
        match share.number {
            0 => drop(self.shares.remove(&source)),
            number => drop(self.by_number.insert((number, source))),
        }
    }

    fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// The phase of a connection after its peer has sent something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerPhase {
    Continues,
    Ended,
}

/// Half-open connections for each that may wait for its peer: honest clients come all at once when a server is
/// back.
const QUEUE_FACTOR: usize = 4;
/// Handshakes that are worked on before a thread looks at anything else: each takes a fraction of a
/// millisecond, and requests that are under way wait for it.
const TURNS: usize = 4;

#[cfg(test)]
mod tests;
