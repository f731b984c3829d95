//! Rate limit of control plane queries for new names. No IO.

use std::time::Duration;

use leno_model::ServiceName;
use tokio::time::Instant;

/// A token bucket of control plane queries. Most names that are queried under the cluster's domain do not
/// exist, and result from the search list.
pub(super) struct QueryBudget {
    left: u32,
    since: Instant,
    /// The last permitted name: the queries for both IP versions count once.
    last: Option<ServiceName>,
}

impl QueryBudget {
    pub(super) fn new(now: Instant) -> Self {
        Self { left: BURST, since: now, last: None }
    }

    /// True if a query for a new name is permitted now.
    pub(super) fn try_withdraw(&mut self, name: &ServiceName, now: Instant) -> bool {
        if self.last.as_ref() == Some(name) {
            return true;
        }
        let earned = now.saturating_duration_since(self.since).as_millis() / EVERY.as_millis();
        let earned = u32::try_from(earned).unwrap_or(BURST).min(BURST);
        self.left = (self.left + earned).min(BURST);
        self.since = if self.left == BURST { now } else { self.since + EVERY * earned };
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        self.last = Some(name.clone());
        true
    }
}

/// The initial tokens: enough for the queries of an application at startup.
pub(super) const BURST: u32 = 50;
/// The interval of further tokens.
const EVERY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_are_asked_at_once_and_then_ten_in_a_second() {
        let began = Instant::now();
        let mut allowance = QueryBudget::new(began);
        let mut asked = |range: std::ops::Range<u32>, now| {
            let name = |index: &u32| format!("shop/s{index}").parse().unwrap();
            range.filter(|index| allowance.try_withdraw(&name(index), now)).count()
        };
        assert_eq!(asked(0..100, began), 50);
        // The second query for the same name, for the other IP version, is free.
        assert_eq!(asked(49..50, began), 1);
        assert_eq!(asked(100..200, began + Duration::from_millis(1050)), 10);
        assert_eq!(asked(200..300, began + Duration::from_millis(1100)), 1);
        assert_eq!(asked(300..400, began + Duration::from_secs(3600)), 50);
    }
}
