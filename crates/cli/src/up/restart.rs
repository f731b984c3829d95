//! Restart back-off of processes: delays double after each failure, up to a bound.

use std::time::Duration;

/// Counts consecutive failures.
#[derive(Debug, Clone, Default)]
pub(super) struct Restarts {
    failures: u32,
}

impl Restarts {
    /// Returns the delay before the restart of a process that ran for `lived`.
    pub(super) fn delay_after(&mut self, lived: Duration) -> Duration {
        if lived >= HEALTHY {
            self.failures = 0;
        }
        let delay = DELAY_MIN.saturating_mul(1 << self.failures.min(DOUBLINGS_MAX));
        self.failures = self.failures.saturating_add(1);
        delay.min(DELAY_MAX)
    }

    /// Returns the number of consecutive failures.
    pub(super) fn failure_count(&self) -> u32 {
        self.failures
    }

    /// Resets the failures, when the next process is a different one.
    pub(super) fn reset_failures(&mut self) {
        self.failures = 0;
    }
}

/// A process that ran for this time was healthy: its exit counts as a first failure.
const HEALTHY: Duration = Duration::from_secs(30);
const DELAY_MIN: Duration = Duration::from_millis(100);
const DELAY_MAX: Duration = Duration::from_secs(5);
/// Enough to exceed the longest delay.
const DOUBLINGS_MAX: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_bound_and_begin_again_after_health() {
        let mut restarts = Restarts::default();
        let brief = Duration::from_millis(1);
        let delays: Vec<u128> = (0..9).map(|_| restarts.delay_after(brief).as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
        assert_eq!(restarts.delay_after(Duration::from_secs(30)).as_millis(), 100);
        assert_eq!(restarts.delay_after(brief).as_millis(), 200);
        restarts.reset_failures();
        assert_eq!(restarts.delay_after(brief).as_millis(), 100);
    }
}
