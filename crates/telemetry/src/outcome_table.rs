//! Counts failures of requests and rejected connections by outcome, in a table of bounded size.

use std::sync::OnceLock;

use crate::cell::{SingleWriterCell, cell_array};
use crate::grpc::GrpcStatus;
use crate::status::{CLASS_COUNT, StatusClass};

/// The outcome of a request or connection, by which it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OutcomeKey {
    pub(crate) class: StatusClass,
    /// The failure reason; empty if the application responded.
    pub(crate) reason: &'static str,
    /// The status of a gRPC call; `None` for other requests.
    pub(crate) grpc: Option<GrpcStatus>,
}

impl OutcomeKey {
    /// True unless there is a failure reason, a status of 5xx, or a gRPC status that is a failure of the
    /// server.
    pub(crate) fn is_success(self) -> bool {
        self.reason.is_empty()
            && self.class != StatusClass::ServerError
            && !self.grpc.is_some_and(GrpcStatus::is_failure)
    }
}

/// A bounded table of counts by outcome, with one writer and any number of readers. A row is assigned when an
/// outcome first occurs.
#[derive(Debug)]
pub(crate) struct OutcomeTable {
    /// The rows, in the order in which their outcomes first occurred. Not allocated before the first outcome,
    /// since most series never fail.
    rows: OnceLock<Box<[OnceLock<OutcomeRow>]>>,
    /// The counts of outcomes without a row, by class: all rows were already assigned.
    overflow: [SingleWriterCell; CLASS_COUNT],
}

impl OutcomeTable {
    pub(crate) fn new() -> Self {
        Self { rows: OnceLock::new(), overflow: cell_array() }
    }

    /// Counts an outcome. Only one thread may call this: the one that owns the shard with this table.
    pub(crate) fn add(&self, outcome: OutcomeKey) {
        let new_rows = || (0..MAX_ROWS).map(|_| OnceLock::new()).collect();
        for slot in self.rows.get_or_init(new_rows) {
            let row =
                slot.get_or_init(|| OutcomeRow { outcome, count: SingleWriterCell::default() });
            if row.outcome == outcome {
                row.count.add(1);
                return;
            }
        }
        self.overflow[outcome.class as usize].add(1);
    }

    /// Returns all outcomes that occurred, with their counts.
    pub(crate) fn read(&self) -> impl Iterator<Item = (OutcomeKey, u64)> + '_ {
        let rows = self.rows.get().into_iter().flatten();
        let assigned_counts =
            rows.map_while(|slot| slot.get()).map(|row| (row.outcome, row.count.read()));
        let overflow_outcome = |class| OutcomeKey { class, reason: OVERFLOW_REASON, grpc: None };
        let overflow_cells = StatusClass::ALL.iter().zip(&self.overflow);
        let overflow_counts =
            overflow_cells.map(move |(class, cell)| (overflow_outcome(*class), cell.read()));
        assigned_counts.chain(overflow_counts).filter(|(_, count)| *count > 0)
    }
}

/// The count of one outcome.
#[derive(Debug)]
struct OutcomeRow {
    outcome: OutcomeKey,
    count: SingleWriterCell,
}

/// The maximum number of rows: more than the number of reasons. Further outcomes have the reason `other` in the
/// metrics.
const MAX_ROWS: usize = 48;

/// The reason of outcomes without a row.
const OVERFLOW_REASON: &str = "other";

#[cfg(test)]
mod tests {
    use super::*;

    fn test_outcome(class: StatusClass, reason: &'static str) -> OutcomeKey {
        OutcomeKey { class, reason, grpc: None }
    }

    #[test]
    fn each_class_and_reason_is_counted_separately() {
        let table = OutcomeTable::new();
        assert_eq!(table.read().count(), 0);
        let unavailable = Some(GrpcStatus::Unavailable);
        table.add(test_outcome(StatusClass::ClientError, "denied"));
        table.add(test_outcome(StatusClass::ServerError, "denied"));
        table.add(test_outcome(StatusClass::ClientError, "denied"));
        table.add(test_outcome(StatusClass::ClientError, "no-route"));
        table.add(OutcomeKey {
            grpc: unavailable,
            ..test_outcome(StatusClass::ClientError, "denied")
        });
        let counts: Vec<_> = table.read().collect();
        assert_eq!(
            counts,
            [
                (test_outcome(StatusClass::ClientError, "denied"), 2),
                (test_outcome(StatusClass::ServerError, "denied"), 1),
                (test_outcome(StatusClass::ClientError, "no-route"), 1),
                (
                    OutcomeKey {
                        grpc: unavailable,
                        ..test_outcome(StatusClass::ClientError, "denied")
                    },
                    1
                ),
            ]
        );
    }

    #[test]
    fn outcomes_beyond_the_table_are_counted_as_overflow() {
        let table = OutcomeTable::new();
        for number in 0..MAX_ROWS + 5 {
            table.add(test_outcome(StatusClass::None, format!("reason-{number}").leak()));
        }
        assert_eq!(table.read().count(), MAX_ROWS + 1);
        assert_eq!(table.read().last(), Some((test_outcome(StatusClass::None, "other"), 5)));
    }
}
