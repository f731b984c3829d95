//! Retry budget: the limit of retries to one service.

use std::time::{Duration, Instant};

use leno_model::RetryRule;

/// The retry budget of one service in one thread.
///
/// Each request adds a fraction of a retry, and each retry takes one. Retries are thus limited to
/// [`SHARE_PERCENT`] of the requests, plus a few that time restores: services with few requests can be retried,
/// and a failing service is not overloaded by retries.
#[derive(Debug, Clone)]
pub struct RetryBudget {
    /// In hundredths of a retry.
    balance: u32,
    /// The time up to which the balance was refilled.
    paid_until: Instant,
}

impl RetryBudget {
    /// Creates a budget at the floor.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { balance: FLOOR_RETRIES * RETRY, paid_until: now }
    }

    /// Records a request.
    pub fn deposit(&mut self) {
        let most = BALANCE_RETRIES_MAX * RETRY;
        self.balance = self.balance.saturating_add(SHARE_PERCENT).min(most);
    }

    /// Takes one retry, if available.
    #[must_use]
    pub fn withdraw(&mut self, now: Instant) -> bool {
        self.refill(now);
        match self.balance.checked_sub(RETRY) {
            Some(left) => {
                self.balance = left;
                true
            }
            None => false,
        }
    }

    /// Refills the budget for the elapsed time, up to the floor.
    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.paid_until);
        let periods = passed.as_nanos() / FLOOR_PERIOD.as_nanos();
        let Ok(periods @ 1..) = u32::try_from(periods) else {
            return;
        };
        self.paid_until = now;
        let floor = FLOOR_RETRIES * RETRY;
        if self.balance < floor {
            let paid = self.balance.saturating_add(periods.saturating_mul(RETRY));
            self.balance = paid.min(floor);
        }
    }
}

/// Retries per hundred requests.
pub const SHARE_PERCENT: u32 = 20;
/// The floor that time restores, for services with few requests: all retries of one request.
pub const FLOOR_RETRIES: u32 = RetryRule::ATTEMPTS_MAX as u32;
/// The time to restore one retry below the floor.
pub const FLOOR_PERIOD: Duration = Duration::from_secs(1);
/// The maximum balance: an hour without failures does not pay for a retry storm.
pub const BALANCE_RETRIES_MAX: u32 = 100;
/// One retry, in the unit of the balance.
const RETRY: u32 = 100;

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a budget requires a start time")]
mod tests {
    use super::*;

    /// The number of allowed retries.
    fn withdraw_times(budget: &mut RetryBudget, retries: usize, now: Instant) -> usize {
        (0..retries).filter(|_| budget.withdraw(now)).count()
    }

    #[test]
    fn retries_are_a_fifth_of_the_requests_beside_the_floor() {
        let now = Instant::now();
        let mut budget = RetryBudget::new(now);
        assert_eq!(withdraw_times(&mut budget, 20, now), 10);
        for _ in 0..50 {
            budget.deposit();
        }
        assert_eq!(withdraw_times(&mut budget, 50, now), 10);
        // A total failure: every request is retried as often as possible.
        let retried: usize = (0..1_000)
            .map(|_| {
                budget.deposit();
                withdraw_times(&mut budget, 3, now)
            })
            .sum();
        assert_eq!(retried, 200);
    }

    #[test]
    fn the_floor_comes_back_with_time_and_savings_are_bounded() {
        let mut now = Instant::now();
        let mut budget = RetryBudget::new(now);
        assert_eq!(withdraw_times(&mut budget, 10, now), 10);
        now += FLOOR_PERIOD;
        assert_eq!(withdraw_times(&mut budget, 3, now), 1);
        now += FLOOR_PERIOD * 1_000_000;
        assert_eq!(withdraw_times(&mut budget, 20, now), 10);
        for _ in 0..100_000 {
            budget.deposit();
        }
        now += FLOOR_PERIOD * 10;
        assert_eq!(withdraw_times(&mut budget, 1_000, now), 100);
    }
}
