//! The retry budget: how many retries a service may be made to bear.

use std::time::{Duration, Instant};

/// What may be spent on retries of requests to one service, as one thread counts it.
///
/// Every request pays in a part of a retry, every retry takes one out. So retries are no more than
/// [`SHARE_PERCENT`] of the requests, beside those that come back with time: a service that is asked
/// seldom may be asked again, and one that is asked often and fails altogether is not asked many
/// times more.
#[derive(Debug, Clone)]
pub struct RetryBudget {
    /// In hundredths of a retry.
    balance: u32,
    /// Until when time has been paid for.
    paid_until: Instant,
}

impl RetryBudget {
    /// A budget that is full.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { balance: FULL, paid_until: now }
    }

    /// A request was made.
    pub fn deposit(&mut self) {
        self.balance = self.balance.saturating_add(SHARE_PERCENT).min(FULL);
    }

    /// Takes a retry out, if there is one.
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

    /// Pays for the time that has passed.
    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.paid_until);
        let periods = passed.as_nanos() / RETRY_PERIOD.as_nanos();
        let Ok(periods @ 1..) = u32::try_from(periods) else {
            return;
        };
        self.paid_until += RETRY_PERIOD * periods;
        self.balance = self.balance.saturating_add(periods.saturating_mul(RETRY)).min(FULL);
    }
}

/// Retries for each hundred requests.
pub const SHARE_PERCENT: u32 = 20;
/// How long it takes for a retry to come back: ten each second, as the Gateway API's default of `minRetryRate`
/// has it (GEP-3388).
pub const RETRY_PERIOD: Duration = Duration::from_millis(100);
/// What is there from the start, and the most that can be saved up: what comes back in the ten seconds over
/// which the Gateway API's budgets count. A good hour does not pay for a storm.
pub const BALANCE_RETRIES_MAX: u32 = 100;
/// A retry, in the unit of the balance.
const RETRY: u32 = 100;
const FULL: u32 = BALANCE_RETRIES_MAX * RETRY;

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a budget needs some moment to begin at")]
mod tests {
    use super::*;

    /// How many of so many retries are allowed.
    fn spend(budget: &mut RetryBudget, retries: usize, now: Instant) -> usize {
        (0..retries).filter(|_| budget.withdraw(now)).count()
    }

    #[test]
    fn retries_are_a_fifth_of_the_requests_beside_what_was_there() {
        let now = Instant::now();
        let mut budget = RetryBudget::new(now);
        assert_eq!(spend(&mut budget, 200, now), 100);
        for _ in 0..50 {
            budget.deposit();
        }
        assert_eq!(spend(&mut budget, 50, now), 10);
        // Every request is tried again as often as may be: a total failure.
        let retried: usize = (0..1_000)
            .map(|_| {
                budget.deposit();
                spend(&mut budget, 3, now)
            })
            .sum();
        assert_eq!(retried, 200);
    }

    #[test]
    fn retries_come_back_with_time_and_savings_are_bounded() {
        let mut now = Instant::now();
        let mut budget = RetryBudget::new(now);
        assert_eq!(spend(&mut budget, 100, now), 100);
        now += RETRY_PERIOD;
        assert_eq!(spend(&mut budget, 3, now), 1);
        // However often it is looked at.
        let mut back = 0;
        for _ in 0..50 {
            now += Duration::from_millis(60);
            back += spend(&mut budget, 20, now);
        }
        assert_eq!(back, 30);
        for _ in 0..100_000 {
            budget.deposit();
        }
        now += RETRY_PERIOD * 1_000_000;
        assert_eq!(spend(&mut budget, 1_000, now), 100);
    }
}
