//! Computes the delay before a process is restarted: it doubles after each failure, up to `MAX_RESTART_DELAY`.

use std::time::Duration;

/// The restart back-off of one process.
#[derive(Debug, Clone, Default)]
pub(super) struct RestartBackoff {
    failure_count: u32,
}

impl RestartBackoff {
    /// Counts a failure, and returns the delay before the restart of a process that ran for `lifetime`. The exit of a
    /// healthy process resets the count first.
    pub(super) fn delay_after(&mut self, lifetime: Duration) -> Duration {
        if lifetime >= HEALTHY_LIFETIME {
            self.failure_count = 0;
        }
        let delay = MIN_RESTART_DELAY.saturating_mul(1 << self.failure_count.min(MAX_DOUBLINGS));
        self.failure_count = self.failure_count.saturating_add(1);
        delay.min(MAX_RESTART_DELAY)
    }

    /// Returns the number of consecutive failures.
    pub(super) fn failure_count(&self) -> u32 {
        self.failure_count
    }

    /// Resets the failures, because the next process has another command or environment.
    pub(super) fn reset_failures(&mut self) {
        self.failure_count = 0;
    }
}

/// The minimum lifetime of a healthy process; its exit counts as a first failure.
const HEALTHY_LIFETIME: Duration = Duration::from_secs(30);
/// The delay before the restart after a first failure.
const MIN_RESTART_DELAY: Duration = Duration::from_millis(100);
/// The maximum delay before a restart.
const MAX_RESTART_DELAY: Duration = Duration::from_secs(5);
/// The maximum number of doublings of the delay, enough to exceed `MAX_RESTART_DELAY`.
const MAX_DOUBLINGS: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_bound_and_restart_after_a_healthy_lifetime() {
        let mut restart_backoff = RestartBackoff::default();
        let short_lifetime = Duration::from_millis(1);
        let delays: Vec<u128> =
            (0..9).map(|_| restart_backoff.delay_after(short_lifetime).as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
        assert_eq!(restart_backoff.delay_after(Duration::from_secs(30)).as_millis(), 100);
        assert_eq!(restart_backoff.delay_after(short_lifetime).as_millis(), 200);
        restart_backoff.reset_failures();
        assert_eq!(restart_backoff.delay_after(short_lifetime).as_millis(), 100);
    }
}
