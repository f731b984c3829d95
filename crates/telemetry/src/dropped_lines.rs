//! The condition of dropped log lines: it begins with the first dropped line and ends a minute after the last
//! one.

use std::time::{Duration, Instant};

/// The dropped lines of a process, computed from readings of its counter.
#[derive(Debug, Default, Clone, Copy)]
pub struct DroppedLines {
    /// The counter at the last reading.
    counter: u64,
    /// The counter before the first line of the condition.
    before: u64,
    last: Option<Instant>,
}

impl DroppedLines {
    /// Takes a reading, and returns the number of lines dropped since the condition began; 0 without one.
    pub fn read(&mut self, counter: u64, now: Instant) -> u64 {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) >= DROPPED_FOR) {
            self.last = None;
        }
        if counter > self.counter {
            if self.last.is_none() {
                self.before = self.counter;
            }
            self.last = Some(now);
        }
        self.counter = counter;
        if self.last.is_some() { counter.saturating_sub(self.before) } else { 0 }
    }
}

/// The duration of the condition after the last dropped line: long enough to notice it in `leno status`.
const DROPPED_FOR: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_lasts_for_a_minute_after_its_last_line() {
        let start = Instant::now();
        let mut lines = DroppedLines::default();
        for (seconds, counter, expected) in [
            (0, 0, 0),
            (2, 5, 5),
            (4, 5, 5),
            (60, 7, 7),
            (119, 7, 7),
            (120, 7, 0),
            (200, 7, 0),
            (202, 8, 1),
        ] {
            let found = lines.read(counter, start + Duration::from_secs(seconds));
            assert_eq!(found, expected, "after {seconds} s");
        }
    }
}
