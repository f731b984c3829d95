//! The table by cases, and by many random steps against what must always hold.

use std::net::IpAddr;

use proptest::prelude::*;

use super::*;

const BOUNDS: HalfOpenLimits =
    HalfOpenLimits { waiting: 4, waiting_of_source: 3, half_open: 8, turns: 2 };

fn source(number: u8) -> ConnectionSource {
    IpAddr::from([10, 0, 0, number]).into()
}

fn add_waiting(table: &mut HalfOpenTable, number: u8) -> (HalfOpenId, Option<HalfOpenId>) {
    let (id, evicted) = table.admit(source(number));
    assert_eq!(evicted, None);
    let evicted = table.start_waiting(id);
    (id, evicted)
}

#[test]
fn the_oldest_of_a_source_makes_room_for_its_next() {
    let mut table = HalfOpenTable::new(BOUNDS);
    let first: Vec<HalfOpenId> = (0..3).map(|_| add_waiting(&mut table, 1).0).collect();
    let (_, evicted) = add_waiting(&mut table, 1);
    assert_eq!(evicted, Some(first[0]));
    assert_eq!(table.state_of(first[0]), Some(HalfOpenState::Evicted));
    // A connection that goes on is not evicted, and is a new one in its next phase.
    table.record_phase(first[1], PeerPhase::Ended);
    table.start_waiting(first[1]);
    assert_eq!(add_waiting(&mut table, 1).1, Some(first[2]));
}

#[test]
fn who_sends_a_byte_at_a_time_does_not_get_younger() {
    let mut table = HalfOpenTable::new(BOUNDS);
    let (slow, _) = add_waiting(&mut table, 1);
    let others = [add_waiting(&mut table, 1).0, add_waiting(&mut table, 1).0];
    table.record_phase(slow, PeerPhase::Continues);
    assert_eq!(table.start_waiting(slow), None);
    assert_eq!(add_waiting(&mut table, 1).1, Some(slow));
    assert_eq!(table.state_of(others[0]), Some(HalfOpenState::Waiting));
}

#[test]
fn the_source_with_most_makes_room_for_another() {
    let mut table = HalfOpenTable::new(BOUNDS);
    let crowd: Vec<HalfOpenId> = (0..3).map(|_| add_waiting(&mut table, 1).0).collect();
    let (other, evicted) = add_waiting(&mut table, 2);
    assert_eq!(evicted, None);
    assert_eq!(add_waiting(&mut table, 3).1, Some(crowd[0]));
    assert_eq!(add_waiting(&mut table, 4).1, Some(crowd[1]));
    // All have one: the oldest goes.
    assert_eq!(add_waiting(&mut table, 5).1, Some(crowd[2]));
    assert_eq!(add_waiting(&mut table, 6).1, Some(other));
}

#[test]
fn turns_go_round_among_sources_and_the_newest_is_first() {
    let mut table = HalfOpenTable::new(BOUNDS);
    let queued = |table: &mut HalfOpenTable, number| {
        let (id, _) = table.admit(source(number));
        table.join_queue(id);
        id
    };
    let running = [queued(&mut table, 1), queued(&mut table, 1)];
    let crowd = [queued(&mut table, 1), queued(&mut table, 1)];
    let other = queued(&mut table, 2);
    assert_eq!(table.record_phase(running[0], PeerPhase::Continues), Some(crowd[1]));
    assert_eq!(table.record_phase(running[1], PeerPhase::Ended), Some(other));
    assert_eq!(table.remove(crowd[1]), Some(crowd[0]), "a turn of one that ends is passed on");
    assert_eq!(table.remove(other), None);
}

#[test]
fn those_that_wait_for_a_turn_are_bounded_as_well() {
    let mut table = HalfOpenTable::new(BOUNDS);
    let ids: Vec<HalfOpenId> = (0..8).map(|_| table.admit(source(1)).0).collect();
    ids.iter().for_each(|id| table.join_queue(*id));
    let (newest, evicted) = table.admit(source(2));
    assert_eq!(evicted, Some(ids[2]), "the first two have a turn");
    assert_eq!((table.len(), table.state_of(newest)), (8, Some(HalfOpenState::Served)));
}

/// One step of a simulation, on the connection with this index among those that there are.
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
        3 => (index.clone(), any::<bool>()).prop_map(|(at, over)| Step::Serve(at, over)),
        3 => index.clone().prop_map(Step::Queue),
        2 => index.prop_map(Step::Remove),
    ];
    proptest::collection::vec(step, 0..400)
}

impl HalfOpenTable {
    /// The invariants after each step.
    fn check_invariants(&self) {
        let in_state = |state| self.entries.values().filter(|entry| entry.state == state).count();
        assert_eq!(self.waiting, in_state(HalfOpenState::Waiting));
        assert!(self.waiting <= self.bounds.waiting);
        assert_eq!(self.turns, in_state(HalfOpenState::Running));
        assert!(self.turns <= self.bounds.turns);
        assert_eq!(self.half_open, self.entries.len() - in_state(HalfOpenState::Evicted));
        let queued = in_state(HalfOpenState::Queued);
        assert!(queued == 0 || self.turns == self.bounds.turns, "a turn is free and nobody has it");
        assert_eq!(self.by_number.len(), self.shares.len());
        let counted: usize = self.shares.values().map(|share| share.queued.len()).sum();
        assert_eq!(counted, queued);
        assert_eq!(
            self.rotation.len(),
            self.shares.values().filter(|share| !share.queued.is_empty()).count()
        );
        for (source, share) in &self.shares {
            assert!(share.number > 0 && share.waiting.len() <= self.bounds.waiting_of_source);
            assert!(self.by_number.contains(&(share.number, *source)));
        }
    }
}

proptest! {
    #[test]
    fn shares_and_turns_hold_whatever_happens(steps in any_steps()) {
        let mut table = HalfOpenTable::new(BOUNDS);
        let mut ids: Vec<HalfOpenId> = Vec::new();
        for step in steps {
            let at = |index: usize| ids.get(index % ids.len().max(1)).copied();
            match step {
                Step::Admit(number) => {
                    let (id, evicted) = table.admit(source(number));
                    ids.push(id);
                    prop_assert!(evicted.is_none_or(|it| table.state_of(it) == Some(HalfOpenState::Evicted)));
                }
                Step::Wait(index) => {
                    let Some(id) = at(index) else { continue };
                    let is_alone = table.entries.values().all(|entry| {
                        entry.state != HalfOpenState::Waiting || entry.source != table.entries[&id].source
                    });
                    let evicted = table.start_waiting(id);
                    // A source that has no other half-open connection is not the one with most.
                    if is_alone && table.shares.len() < BOUNDS.waiting {
                        prop_assert_ne!(evicted, Some(id));
                    }
                }
                Step::Serve(index, over) => {
                    let Some(id) = at(index) else { continue };
                    table.record_phase(id, if over { PeerPhase::Ended } else { PeerPhase::Continues });
                }
                Step::Queue(index) => {
                    let Some(id) = at(index) else { continue };
                    table.join_queue(id);
                }
                Step::Remove(index) => {
                    let Some(id) = at(index) else { continue };
                    table.remove(id);
                    ids.retain(|it| *it != id);
                }
            }
            table.check_invariants();
        }
        for id in ids {
            table.remove(id);
            table.check_invariants();
        }
        prop_assert!(table.entries.is_empty() && table.shares.is_empty());
        prop_assert!(table.by_waiting.is_empty() && table.by_number.is_empty());
    }
}
