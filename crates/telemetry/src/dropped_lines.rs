//! The condition that log lines were dropped. It begins with the first dropped line and ends a minute after the
//! last one.

use std::time::{Duration, Instant};

/// The dropped lines of a process, computed from readings of its counter.
#[derive(Debug, Default, Clone, Copy)]
pub struct DroppedLines {
    /// The counter at the last reading.
    last_counter: u64,
    /// The counter before the first line of the condition.
    counter_before: u64,
    /// The time of the last reading that had a dropped line; `None` while there is no condition.
    last_dropped: Option<Instant>,
}

impl DroppedLines {
    /// Takes a reading of the counter, and returns the number of lines dropped since the condition began; 0 if
    /// there is no condition.
    pub fn read(&mut self, counter: u64, now: Instant) -> u64 {
        if self
            .last_dropped
            .is_some_and(|last| now.saturating_duration_since(last) >= CONDITION_DURATION)
        {
            self.last_dropped = None;
        }
        if counter > self.last_counter {
            if self.last_dropped.is_none() {
                self.counter_before = self.last_counter;
            }
            self.last_dropped = Some(now);
        }
        self.last_counter = counter;
        if self.last_dropped.is_some() { counter.saturating_sub(self.counter_before) } else { 0 }
    }
}

/// The duration of the condition after the last dropped line: long enough to notice it in `leno status`.
const CONDITION_DURATION: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_condition_lasts_for_a_minute_after_the_last_dropped_line() {
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
            let count = lines.read(counter, start + Duration::from_secs(seconds));
            assert_eq!(count, expected, "after {seconds} s");
        }
    }
}
