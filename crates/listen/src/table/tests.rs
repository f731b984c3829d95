//! Evictions and turns of the table in examples, and its invariants after many random steps.

use std::net::IpAddr;

use proptest::prelude::*;

use super::*;

const LIMITS: PendingLimits =
    PendingLimits { waiting: 4, waiting_per_source: 3, pending: 8, turns: 2 };

fn source(number: u8) -> ConnectionSource {
    IpAddr::from([10, 0, 0, number]).into()
}

fn add_waiting(table: &mut PendingTable, number: u8) -> (PendingId, Option<PendingId>) {
    let (id, evicted) = table.admit(source(number));
    assert_eq!(evicted, None);
    let evicted = table.start_waiting(id);
    (id, evicted)
}

#[test]
fn the_oldest_connection_of_a_source_is_evicted_for_its_next_one() {
    let mut table = PendingTable::new(LIMITS);
    let first: Vec<PendingId> = (0..3).map(|_| add_waiting(&mut table, 1).0).collect();
    let (_, evicted) = add_waiting(&mut table, 1);
    assert_eq!(evicted, Some(first[0]));
    assert_eq!(table.connection_state(first[0]), Some(PendingState::Evicted));
    // A connection with progress is not evicted, and counts as new when it waits again.
    table.record_peer_progress(first[1], PeerProgress::Complete);
    table.start_waiting(first[1]);
    assert_eq!(add_waiting(&mut table, 1).1, Some(first[2]));
}

#[test]
fn a_client_that_sends_single_bytes_keeps_its_age() {
    let mut table = PendingTable::new(LIMITS);
    let (slow, _) = add_waiting(&mut table, 1);
    let others = [add_waiting(&mut table, 1).0, add_waiting(&mut table, 1).0];
    table.record_peer_progress(slow, PeerProgress::Partial);
    assert_eq!(table.start_waiting(slow), None);
    assert_eq!(add_waiting(&mut table, 1).1, Some(slow));
    assert_eq!(table.connection_state(others[0]), Some(PendingState::Waiting));
}

#[test]
fn a_connection_of_the_largest_source_is_evicted_for_another_source() {
    let mut table = PendingTable::new(LIMITS);
    let many: Vec<PendingId> = (0..3).map(|_| add_waiting(&mut table, 1).0).collect();
    let (other, evicted) = add_waiting(&mut table, 2);
    assert_eq!(evicted, None);
    assert_eq!(add_waiting(&mut table, 3).1, Some(many[0]));
    assert_eq!(add_waiting(&mut table, 4).1, Some(many[1]));
    // All have one: the oldest is evicted.
    assert_eq!(add_waiting(&mut table, 5).1, Some(many[2]));
    assert_eq!(add_waiting(&mut table, 6).1, Some(other));
}

#[test]
fn turns_rotate_among_sources_and_the_newest_is_first() {
    let mut table = PendingTable::new(LIMITS);
    let admit_queued = |table: &mut PendingTable, number| {
        let (id, _) = table.admit(source(number));
        table.join_queue(id);
        id
    };
    let running = [admit_queued(&mut table, 1), admit_queued(&mut table, 1)];
    let many = [admit_queued(&mut table, 1), admit_queued(&mut table, 1)];
    let other = admit_queued(&mut table, 2);
    assert_eq!(table.record_peer_progress(running[0], PeerProgress::Partial), Some(many[1]));
    assert_eq!(table.record_peer_progress(running[1], PeerProgress::Complete), Some(other));
    assert_eq!(table.remove(many[1]), Some(many[0]), "the turn of a closed connection passes on");
    assert_eq!(table.remove(other), None);
}

#[test]
fn connections_queued_for_a_turn_are_limited_as_well() {
    let mut table = PendingTable::new(LIMITS);
    let ids: Vec<PendingId> = (0..8).map(|_| table.admit(source(1)).0).collect();
    ids.iter().for_each(|id| table.join_queue(*id));
    let (newest, evicted) = table.admit(source(2));
    assert_eq!(evicted, Some(ids[2]), "the first two have a turn");
    assert_eq!((table.len(), table.connection_state(newest)), (8, Some(PendingState::Served)));
}

/// A step of a simulation. An index selects a connection of the table.
#[derive(Debug, Clone)]
enum Step {
    Admit(u8),
    Wait(usize),
    Serve(usize, bool),
    Queue(usize),
    Remove(usize),
}

fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    let index = 0..32_usize;
    let step = prop_oneof![
        3 => prop_oneof![Just(1), Just(1), Just(1), 2..5_u8].prop_map(Step::Admit),
        3 => index.clone().prop_map(Step::Wait),
        3 => (index.clone(), any::<bool>()).prop_map(|(index, ended)| Step::Serve(index, ended)),
        3 => index.clone().prop_map(Step::Queue),
        2 => index.prop_map(Step::Remove),
    ];
    proptest::collection::vec(step, 0..400)
}

impl PendingTable {
    /// Checks the invariants.
    fn check_invariants(&self) {
        let in_state = |state| self.entries.values().filter(|entry| entry.state == state).count();
        assert_eq!(self.waiting_count, in_state(PendingState::Waiting));
        assert!(self.waiting_count <= self.limits.waiting);
        assert_eq!(self.running_count, in_state(PendingState::Running));
        assert!(self.running_count <= self.limits.turns);
        assert_eq!(self.pending_count, self.entries.len() - in_state(PendingState::Evicted));
        let queued_count = in_state(PendingState::Queued);
        assert!(
            queued_count == 0 || self.running_count == self.limits.turns,
            "a turn is free while connections are queued"
        );
        assert_eq!(self.sources_by_pending.len(), self.sources.len());
        let counted: usize =
            self.sources.values().map(|source_entry| source_entry.queued_connections.len()).sum();
        assert_eq!(counted, queued_count);
        assert_eq!(
            self.turn_order.len(),
            self.sources
                .values()
                .filter(|source_entry| !source_entry.queued_connections.is_empty())
                .count()
        );
        for (source, source_entry) in &self.sources {
            assert!(
                source_entry.pending_count > 0
                    && source_entry.waiting.len() <= self.limits.waiting_per_source
            );
            assert!(self.sources_by_pending.contains(&(source_entry.pending_count, *source)));
        }
    }
}

proptest! {
    #[test]
    fn invariants_hold_after_any_steps(steps in any_steps()) {
        let mut table = PendingTable::new(LIMITS);
        let mut ids: Vec<PendingId> = Vec::new();
        for step in steps {
            let id_at = |index: usize| ids.get(index % ids.len().max(1)).copied();
            match step {
                Step::Admit(number) => {
                    let (id, evicted) = table.admit(source(number));
                    ids.push(id);
                    prop_assert!(evicted.is_none_or(|id| table.connection_state(id) == Some(PendingState::Evicted)));
                }
                Step::Wait(index) => {
                    let Some(id) = id_at(index) else { continue };
                    let is_alone = table.entries.values().all(|entry| {
                        entry.state != PendingState::Waiting || entry.source != table.entries[&id].source
                    });
                    let evicted = table.start_waiting(id);
                    // A source with no other pending connection does not have the most.
                    if is_alone && table.sources.len() < LIMITS.waiting {
                        prop_assert_ne!(evicted, Some(id));
                    }
                }
                Step::Serve(index, has_ended) => {
                    let Some(id) = id_at(index) else { continue };
                    table.record_peer_progress(id, if has_ended { PeerProgress::Complete } else { PeerProgress::Partial });
                }
                Step::Queue(index) => {
                    let Some(id) = id_at(index) else { continue };
                    table.join_queue(id);
                }
                Step::Remove(index) => {
                    let Some(id) = id_at(index) else { continue };
                    table.remove(id);
                    ids.retain(|other| *other != id);
                }
            }
            table.check_invariants();
        }
        for id in ids {
            table.remove(id);
            table.check_invariants();
        }
        prop_assert!(table.entries.is_empty() && table.sources.is_empty());
        prop_assert!(table.sources_by_waiting.is_empty() && table.sources_by_pending.is_empty());
    }
}
