//! When something that ended is started again: soon, then later and later, never too late.

use std::time::Duration;

/// Counts failures in a row.
#[derive(Debug, Clone, Default)]
pub(super) struct Restarts {
    failures: u32,
}

impl Restarts {
    /// How long to wait after something ended that had lived for `lived`.
    pub(super) fn after(&mut self, lived: Duration) -> Duration {
        if lived >= HEALTHY {
            self.failures = 0;
        }
        let delay = DELAY_MIN.saturating_mul(1 << self.failures.min(DOUBLINGS_MAX));
        self.failures = self.failures.saturating_add(1);
        delay.min(DELAY_MAX)
    }

    /// The number of failures in a row.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// Forgets the failures: what is started next is something else.
    pub(super) fn forget(&mut self) {
        self.failures = 0;
    }
}

/// What lived so long was healthy: its end is a first failure.
const HEALTHY: Duration = Duration::from_secs(30);
const DELAY_MIN: Duration = Duration::from_millis(100);
const DELAY_MAX: Duration = Duration::from_secs(5);
/// Enough to pass the longest delay.
const DOUBLINGS_MAX: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_bound_and_begin_again_after_health() {
        let mut restarts = Restarts::default();
        let brief = Duration::from_millis(1);
        let delays: Vec<u128> = (0..9).map(|_| restarts.after(brief).as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
        assert_eq!(restarts.after(Duration::from_secs(30)).as_millis(), 100);
        assert_eq!(restarts.after(brief).as_millis(), 200);
        restarts.forget();
        assert_eq!(restarts.after(brief).as_millis(), 100);
    }
}
