//! The retry budget: how many retries a service may be made to bear.

use std::time::{Duration, Instant};

use leno_model::RetryRule;

/// What may be spent on retries of requests to one service, as one thread counts it.
///
/// Every request pays in a part of a retry, every retry takes one out. So retries are no more than
/// [`SHARE_PERCENT`] of the requests, beside the few that come back with time: a service that is
/// asked seldom may be asked again, and one that fails altogether is not asked many times more.
#[derive(Debug, Clone)]
pub struct RetryBudget {
    /// In hundredths of a retry.
    balance: u32,
    /// Until when time has been paid for.
    paid_until: Instant,
}

impl RetryBudget {
    /// A budget that has as much as time gives.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { balance: FLOOR_RETRIES * RETRY, paid_until: now }
    }

    /// A request was made.
    pub fn deposit(&mut self) {
        let most = BALANCE_RETRIES_MAX * RETRY;
        self.balance = self.balance.saturating_add(SHARE_PERCENT).min(most);
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

    /// Pays for the time that has passed, as long as there is less than the floor.
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

/// Retries for each hundred requests.
pub const SHARE_PERCENT: u32 = 20;
/// What is there for a service that is asked seldom, and comes back with time: all the retries that one
/// request may have.
pub const FLOOR_RETRIES: u32 = RetryRule::ATTEMPTS_MAX as u32;
/// How long it takes for one of these to come back.
pub const FLOOR_PERIOD: Duration = Duration::from_secs(1);
/// The most that can be saved up: a good hour does not pay for a storm.
pub const BALANCE_RETRIES_MAX: u32 = 100;
/// A retry, in the unit of the balance.
const RETRY: u32 = 100;

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a budget needs some moment to begin at")]
mod tests {
    use super::*;

    /// How many of so many retries are allowed.
    fn spend(budget: &mut RetryBudget, retries: usize, now: Instant) -> usize {
        (0..retries).filter(|_| budget.withdraw(now)).count()
    }

    #[test]
    fn retries_are_a_fifth_of_the_requests_beside_the_floor() {
        let now = Instant::now();
        let mut budget = RetryBudget::new(now);
        assert_eq!(spend(&mut budget, 20, now), 10);
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
    fn the_floor_comes_back_with_time_and_savings_are_bounded() {
        let mut now = Instant::now();
        let mut budget = RetryBudget::new(now);
        assert_eq!(spend(&mut budget, 10, now), 10);
        now += FLOOR_PERIOD;
        assert_eq!(spend(&mut budget, 3, now), 1);
        now += FLOOR_PERIOD * 1_000_000;
        assert_eq!(spend(&mut budget, 20, now), 10);
        for _ in 0..100_000 {
            budget.deposit();
        }
        now += FLOOR_PERIOD * 10;
        assert_eq!(spend(&mut budget, 1_000, now), 100);
    }
}
