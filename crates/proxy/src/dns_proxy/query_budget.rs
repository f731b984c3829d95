//! Limits the rate of queries to the control plane for new names, without I/O.

use std::time::Duration;

use leno_model::ServiceName;
use tokio::time::Instant;

/// A token bucket for control plane queries. Most new names under the cluster domain do not exist, but result
/// from the application's search list.
pub(super) struct QueryBudget {
    /// The number of new names that may be queried now.
    tokens: u32,
    /// The time up to which tokens were added.
    refilled_at: Instant,
    /// The last permitted name: queries for both IP versions of a name count once.
    last_name: Option<ServiceName>,
}

impl QueryBudget {
    pub(super) fn new(now: Instant) -> Self {
        Self { tokens: MAX_TOKENS, refilled_at: now, last_name: None }
    }

    /// Takes a token for a query of a new name; a further query of the last permitted name needs none. Returns false if
    /// no token remains.
    pub(super) fn try_withdraw(&mut self, name: &ServiceName, now: Instant) -> bool {
        if self.last_name.as_ref() == Some(name) {
            return true;
        }
        let elapsed_intervals = now.saturating_duration_since(self.refilled_at).as_millis()
            / TOKEN_INTERVAL.as_millis();
        let new_tokens = u32::try_from(elapsed_intervals).unwrap_or(MAX_TOKENS).min(MAX_TOKENS);
        self.tokens = (self.tokens + new_tokens).min(MAX_TOKENS);
        // The unused fraction of an interval counts towards the next token, unless the bucket is full.
        self.refilled_at = if self.tokens == MAX_TOKENS {
            now
        } else {
            self.refilled_at + TOKEN_INTERVAL * new_tokens
        };
        let Some(tokens) = self.tokens.checked_sub(1) else { return false };
        self.tokens = tokens;
        self.last_name = Some(name.clone());
        true
    }
}

/// The initial and maximum number of tokens: enough for the queries of an application at startup.
pub(super) const MAX_TOKENS: u32 = 50;
/// The interval at which a token is added.
const TOKEN_INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_permitted_and_then_ten_queries_per_second() {
        let started = Instant::now();
        let mut budget = QueryBudget::new(started);
        let mut permitted_count = |range: std::ops::Range<u32>, now| {
            let name = |index: &u32| format!("shop/s{index}").parse().unwrap();
            range.filter(|index| budget.try_withdraw(&name(index), now)).count()
        };
        assert_eq!(permitted_count(0..100, started), 50);
        // The second query for the same name, for the other IP version, is free.
        assert_eq!(permitted_count(49..50, started), 1);
        assert_eq!(permitted_count(100..200, started + Duration::from_millis(1050)), 10);
        assert_eq!(permitted_count(200..300, started + Duration::from_millis(1100)), 1);
        assert_eq!(permitted_count(300..400, started + Duration::from_secs(3600)), 50);
    }
}
