//! Tallies: how often each of a few reasons occurred, without knowing them beforehand.

use std::sync::OnceLock;

use crate::cell::{Cell, cells};
use crate::status::{CLASSES, StatusClass};

/// A bounded table from status class and reason to a count. A row is taken when its reason first
/// occurs; later ones are found by comparing a few short words. One writer, any readers.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Absent until the first reason: most series never fail.
    rows: OnceLock<Box<[OnceLock<Row>]>>,
    /// What came when all rows were taken, by class.
    spilled: [Cell; CLASSES],
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self { rows: OnceLock::new(), spilled: cells() }
    }

    pub(crate) fn add(&self, class: StatusClass, reason: &'static str) {
        let empty = || (0..ROWS_MAX).map(|_| OnceLock::new()).collect();
        for place in self.rows.get_or_init(empty) {
            let row = place.get_or_init(|| Row { class, reason, count: Cell::default() });
            if row.class == class && row.reason == reason {
                row.count.add(1);
                return;
            }
        }
        self.spilled[class as usize].add(1);
    }

    /// Every class and reason that occurred, and how often.
    pub(crate) fn read(&self) -> impl Iterator<Item = (StatusClass, &'static str, u64)> + '_ {
        let rows = self.rows.get().into_iter().flatten();
        let taken = rows
            .map_while(|place| place.get())
            .map(|row| (row.class, row.reason, row.count.read()));
        let spilled = StatusClass::ALL
            .iter()
            .zip(&self.spilled)
            .map(|(class, cell)| (*class, SPILLED, cell.read()));
        taken.chain(spilled).filter(|(_, _, count)| *count > 0)
    }
}

#[derive(Debug)]
struct Row {
    class: StatusClass,
    reason: &'static str,
    count: Cell,
}

/// More than the closed list of reasons has; a spill would show that it outgrew this.
const ROWS_MAX: usize = 48;

/// The reason that spilled ones are shown under.
const SPILLED: &str = "other";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_each_class_and_reason_apart() {
        let tally = Tally::new();
        assert_eq!(tally.read().count(), 0);
        tally.add(StatusClass::Refused, "denied");
        tally.add(StatusClass::Failed, "denied");
        tally.add(StatusClass::Refused, "denied");
        tally.add(StatusClass::Refused, "no-route");
        let found: Vec<_> = tally.read().collect();
        assert_eq!(
            found,
            [
                (StatusClass::Refused, "denied", 2),
                (StatusClass::Failed, "denied", 1),
                (StatusClass::Refused, "no-route", 1),
            ]
        );
    }

    #[test]
    fn spills_what_does_not_fit_and_loses_nothing() {
        let tally = Tally::new();
        for n in 0..ROWS_MAX + 5 {
            tally.add(StatusClass::None, format!("reason-{n}").leak());
        }
        assert_eq!(tally.read().count(), ROWS_MAX + 1);
        assert_eq!(tally.read().last(), Some((StatusClass::None, "other", 5)));
    }
}
