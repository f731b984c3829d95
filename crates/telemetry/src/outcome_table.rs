//! Counts of outcomes that are not known in advance.

use std::sync::OnceLock;

use crate::cell::{Cell, cell_array};
use crate::grpc::GrpcStatus;
use crate::status::{CLASSES, StatusClass};

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OutcomeKey {
    pub(crate) class: StatusClass,
    /// Empty if the application responded.
    pub(crate) reason: &'static str,
    /// The status of a gRPC call.
    pub(crate) grpc: Option<GrpcStatus>,
}

impl OutcomeKey {
    /// True if neither the mesh, nor the application, nor the call failed.
    pub(crate) fn is_success(self) -> bool {
        self.reason.is_empty()
            && self.class != StatusClass::Failed
            && !self.grpc.is_some_and(GrpcStatus::is_failure)
    }
}

/// A bounded table of counts by outcome. A row is assigned when its outcome first occurs; later ones are found
/// by comparing a few short words. One writer, any number of readers.
#[derive(Debug)]
pub(crate) struct OutcomeTable {
    /// Absent until the first reason: most series never fail.
    rows: OnceLock<Box<[OnceLock<OutcomeRow>]>>,
    /// Outcomes counted after all rows were assigned, by class.
    overflow: [Cell; CLASSES],
}

impl OutcomeTable {
    pub(crate) fn new() -> Self {
        Self { rows: OnceLock::new(), overflow: cell_array() }
    }

    pub(crate) fn add(&self, ending: OutcomeKey) {
        let empty = || (0..ROWS_MAX).map(|_| OnceLock::new()).collect();
        for place in self.rows.get_or_init(empty) {
            let row = place.get_or_init(|| OutcomeRow { ending, count: Cell::default() });
            if row.ending == ending {
                row.count.add(1);
                return;
            }
        }
        self.overflow[ending.class as usize].add(1);
    }

    /// All outcomes that occurred, with their counts.
    pub(crate) fn read(&self) -> impl Iterator<Item = (OutcomeKey, u64)> + '_ {
        let rows = self.rows.get().into_iter().flatten();
        let taken = rows.map_while(|place| place.get()).map(|row| (row.ending, row.count.read()));
        let ending = |class| OutcomeKey { class, reason: SPILLED, grpc: None };
        let overflow = StatusClass::ALL.iter().zip(&self.overflow);
        let overflow = overflow.map(move |(class, cell)| (ending(*class), cell.read()));
        taken.chain(overflow).filter(|(_, count)| *count > 0)
    }
}

#[derive(Debug)]
struct OutcomeRow {
    ending: OutcomeKey,
    count: Cell,
}

/// More than the number of reasons; `other` in the metrics would show that this is too small.
const ROWS_MAX: usize = 48;

/// The reason of outcomes without a row.
const SPILLED: &str = "other";

#[cfg(test)]
mod tests {
    use super::*;

    fn test_ending(class: StatusClass, reason: &'static str) -> OutcomeKey {
        OutcomeKey { class, reason, grpc: None }
    }

    #[test]
    fn counts_each_class_and_reason_apart() {
        let tally = OutcomeTable::new();
        assert_eq!(tally.read().count(), 0);
        let unavailable = Some(GrpcStatus::Unavailable);
        tally.add(test_ending(StatusClass::Refused, "denied"));
        tally.add(test_ending(StatusClass::Failed, "denied"));
        tally.add(test_ending(StatusClass::Refused, "denied"));
        tally.add(test_ending(StatusClass::Refused, "no-route"));
        tally.add(OutcomeKey { grpc: unavailable, ..test_ending(StatusClass::Refused, "denied") });
        let found: Vec<_> = tally.read().collect();
        assert_eq!(
            found,
            [
                (test_ending(StatusClass::Refused, "denied"), 2),
                (test_ending(StatusClass::Failed, "denied"), 1),
                (test_ending(StatusClass::Refused, "no-route"), 1),
                (
                    OutcomeKey { grpc: unavailable, ..test_ending(StatusClass::Refused, "denied") },
                    1
                ),
            ]
        );
    }

    #[test]
    fn outcomes_beyond_the_table_are_counted_as_overflow() {
        let tally = OutcomeTable::new();
        for n in 0..ROWS_MAX + 5 {
            tally.add(test_ending(StatusClass::None, format!("reason-{n}").leak()));
        }
        assert_eq!(tally.read().count(), ROWS_MAX + 1);
        assert_eq!(tally.read().last(), Some((test_ending(StatusClass::None, "other"), 5)));
    }
}
