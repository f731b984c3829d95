//! How many questions about new names there may be. No IO.

use std::time::Duration;

use leno_model::ServiceName;
use tokio::time::Instant;

/// Questions that may still be asked: some at once, and then so many in a second. Most names that
/// are looked up under the cluster's domain are those of others, which the search list makes so.
pub(super) struct Allowance {
    left: u32,
    since: Instant,
    /// What was asked about last: one look-up for each version of IP is one question.
    last: Option<ServiceName>,
}

impl Allowance {
    pub(super) fn new(now: Instant) -> Self {
        Self { left: BURST, since: now, last: None }
    }

    /// Whether it may be asked now about a name that nobody asked about before.
    pub(super) fn permits(&mut self, name: &ServiceName, now: Instant) -> bool {
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

/// As many at once as an application that starts asks for.
pub(super) const BURST: u32 = 50;
/// From then on.
const EVERY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_are_asked_at_once_and_then_ten_in_a_second() {
        let began = Instant::now();
        let mut allowance = Allowance::new(began);
        let mut asked = |range: std::ops::Range<u32>, now| {
            let name = |index: &u32| format!("shop/s{index}").parse().unwrap();
            range.filter(|index| allowance.permits(&name(index), now)).count()
        };
        assert_eq!(asked(0..100, began), 50);
        // The same once more: over the other version of IP.
        assert_eq!(asked(49..50, began), 1);
        assert_eq!(asked(100..200, began + Duration::from_millis(1050)), 10);
        assert_eq!(asked(200..300, began + Duration::from_millis(1100)), 1);
        assert_eq!(asked(300..400, began + Duration::from_secs(3600)), 50);
    }
}
