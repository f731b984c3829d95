//! Limits the retries of requests to one service by a budget, which requests refill.

use std::time::{Duration, Instant};

use leno_model::RetryRule;

/// The retry budget of one service in one thread.
///
/// Each request adds a fraction of a retry to the balance, and each retry subtracts one. Retries are thus limited to
/// [`SHARE_PERCENT`] of the requests, plus one retry per [`FLOOR_PERIOD`] while the balance is below the floor of
/// [`FLOOR_RETRIES`]. A failing service is not overloaded by retries, and requests to a service with few requests can
/// be retried.
#[derive(Debug, Clone)]
pub struct RetryBudget {
    /// The available retries, in hundredths of a retry.
    balance: u32,
    /// The time up to which the balance was refilled.
    refilled_at: Instant,
}

impl RetryBudget {
    /// Creates a budget with [`FLOOR_RETRIES`].
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { balance: FLOOR_RETRIES * RETRY, refilled_at: now }
    }

    /// Adds the share of one request to the balance.
    pub fn record_request(&mut self) {
        let max_balance = MAX_BALANCE_RETRIES * RETRY;
        self.balance = self.balance.saturating_add(SHARE_PERCENT).min(max_balance);
    }

    /// Subtracts one retry from the balance. Returns true if the retry is allowed, and false if no retry is available.
    #[must_use]
    pub fn withdraw_retry(&mut self, now: Instant) -> bool {
        self.refill(now);
        match self.balance.checked_sub(RETRY) {
            Some(remaining) => {
                self.balance = remaining;
                true
            }
            None => false,
        }
    }

    /// Adds the retries for the elapsed time, up to the floor.
    fn refill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.refilled_at);
        let periods = elapsed.as_nanos() / FLOOR_PERIOD.as_nanos();
        let Ok(periods @ 1..) = u32::try_from(periods) else {
            return;
        };
        // The rest of the elapsed time, less than one period, is counted at a later refill.
        self.refilled_at += FLOOR_PERIOD.saturating_mul(periods);
        let floor_balance = FLOOR_RETRIES * RETRY;
        if self.balance < floor_balance {
            let refilled_balance = self.balance.saturating_add(periods.saturating_mul(RETRY));
            self.balance = refilled_balance.min(floor_balance);
        }
    }
}

/// The number of retries that a hundred requests add; that of Linkerd's default retry budget.
pub const SHARE_PERCENT: u32 = 20;
/// The floor: the balance in retries that is restored over time. It suffices for all retries of one request.
pub const FLOOR_RETRIES: u32 = RetryRule::MAX_ATTEMPTS as u32;
/// The time to restore one retry below the floor.
pub const FLOOR_PERIOD: Duration = Duration::from_secs(1);
/// The maximum balance in retries. It prevents a retry storm after a long time without failures.
pub const MAX_BALANCE_RETRIES: u32 = 100;
/// One retry, in the unit of the balance.
const RETRY: u32 = 100;

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a budget requires a start time")]
mod tests {
    use super::*;

    /// Withdraws this number of retries, and returns the number of allowed retries.
    fn withdraw_retries(budget: &mut RetryBudget, retries: usize, now: Instant) -> usize {
        (0..retries).filter(|_| budget.withdraw_retry(now)).count()
    }

    #[test]
    fn retries_are_a_fifth_of_the_requests_above_the_floor() {
        let now = Instant::now();
        let mut budget = RetryBudget::new(now);
        assert_eq!(withdraw_retries(&mut budget, 20, now), 10);
        for _ in 0..50 {
            budget.record_request();
        }
        assert_eq!(withdraw_retries(&mut budget, 50, now), 10);
        // A total failure: every request is retried as often as possible.
        let retry_count: usize = (0..1_000)
            .map(|_| {
                budget.record_request();
                withdraw_retries(&mut budget, 3, now)
            })
            .sum();
        assert_eq!(retry_count, 200);
    }

    #[test]
    fn the_floor_is_restored_over_time_and_the_balance_is_bounded() {
        let mut now = Instant::now();
        let mut budget = RetryBudget::new(now);
        assert_eq!(withdraw_retries(&mut budget, 10, now), 10);
        now += FLOOR_PERIOD;
        assert_eq!(withdraw_retries(&mut budget, 3, now), 1);
        // Withdrawals do not delay the floor: five periods in four steps are five retries.
        now += FLOOR_PERIOD * 10;
        assert_eq!(withdraw_retries(&mut budget, 20, now), 10);
        for expected in [1, 1, 1, 2] {
            now += FLOOR_PERIOD + FLOOR_PERIOD / 4;
            assert_eq!(withdraw_retries(&mut budget, 3, now), expected);
        }
        now += FLOOR_PERIOD * 1_000_000;
        assert_eq!(withdraw_retries(&mut budget, 20, now), 10);
        for _ in 0..100_000 {
            budget.record_request();
        }
        now += FLOOR_PERIOD * 10;
        assert_eq!(withdraw_retries(&mut budget, 1_000, now), 100);
    }
}
