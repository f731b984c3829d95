//! Computes the condition that log lines were dropped, which operators see in `leno status`. The condition begins
//! with the first dropped line and ends a minute after the last dropped line.

use std::time::{Duration, Instant};

/// Computes the number of recently dropped lines of a process from readings of its counter.
#[derive(Debug, Default, Clone, Copy)]
pub struct DroppedLines {
    /// The value of the counter at the last reading.
    last_count: u64,
    /// The value of the counter before the first dropped line of the condition.
    count_before_condition: u64,
    /// The time of the last reading with a further dropped line; `None` while there is no condition.
    last_drop_time: Option<Instant>,
}

impl DroppedLines {
    /// Records a reading of the counter, and returns the number of lines that were dropped since the condition
    /// began. Returns 0 if there is no condition.
    pub fn record_count(&mut self, dropped_count: u64, now: Instant) -> u64 {
        if self
            .last_drop_time
            .is_some_and(|last| now.saturating_duration_since(last) >= CONDITION_DURATION)
        {
            self.last_drop_time = None;
        }
        if dropped_count > self.last_count {
            if self.last_drop_time.is_none() {
                self.count_before_condition = self.last_count;
            }
            self.last_drop_time = Some(now);
        }
        self.last_count = dropped_count;
        if self.last_drop_time.is_some() {
            dropped_count.saturating_sub(self.count_before_condition)
        } else {
            0
        }
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
        let mut dropped_lines = DroppedLines::default();
        for (seconds, dropped_count, expected) in [
            (0, 0, 0),
            (2, 5, 5),
            (4, 5, 5),
            (60, 7, 7),
            (119, 7, 7),
            (120, 7, 0),
            (200, 7, 0),
            (202, 8, 1),
        ] {
            let count =
                dropped_lines.record_count(dropped_count, start + Duration::from_secs(seconds));
            assert_eq!(count, expected, "after {seconds} s");
        }
    }
}
