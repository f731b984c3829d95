//! Restart back-off of processes: delays double after each failure, up to a bound.

use std::time::Duration;

/// The restart back-off of one process: counts its consecutive failures.
#[derive(Debug, Clone, Default)]
pub(super) struct Restarts {
    failures: u32,
}

impl Restarts {
    /// Returns the delay before the restart of a process that ran for `lifetime`.
    pub(super) fn delay_after(&mut self, lifetime: Duration) -> Duration {
        if lifetime >= HEALTHY_LIFETIME {
            self.failures = 0;
        }
        let delay = MIN_RESTART_DELAY.saturating_mul(1 << self.failures.min(MAX_DOUBLINGS));
        self.failures = self.failures.saturating_add(1);
        delay.min(MAX_RESTART_DELAY)
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
const HEALTHY_LIFETIME: Duration = Duration::from_secs(30);
/// The delay before the restart after a first failure.
const MIN_RESTART_DELAY: Duration = Duration::from_millis(100);
/// The maximum delay before a restart.
const MAX_RESTART_DELAY: Duration = Duration::from_secs(5);
/// The maximum number of doublings, enough to exceed the longest delay.
const MAX_DOUBLINGS: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_bound_and_restart_after_a_healthy_lifetime() {
        let mut restarts = Restarts::default();
        let short_lifetime = Duration::from_millis(1);
        let delays: Vec<u128> =
            (0..9).map(|_| restarts.delay_after(short_lifetime).as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
        assert_eq!(restarts.delay_after(Duration::from_secs(30)).as_millis(), 100);
        assert_eq!(restarts.delay_after(short_lifetime).as_millis(), 200);
        restarts.reset_failures();
        assert_eq!(restarts.delay_after(short_lifetime).as_millis(), 100);
    }
}
