//! Limits the work of the control plane for each client, in units of cost.
//!
//! A budget has two buckets: the reading bucket for messages of the client, and the work bucket for the mesh
//! state task, the single task that owns the state of the control plane. Each piece of work adds its cost to a
//! bucket, and the level falls at a fixed rate. While the reading bucket is full, no messages of the client are
//! read; they wait in its socket. While the work bucket is full, messages are read, and changes of the client's
//! subscriptions are merged until the state task takes them. A budget belongs to an identity, so a new connection
//! does not renew it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The budget of one client. One unit is about a microsecond of one core.
#[derive(Debug)]
pub struct Budget(Mutex<Buckets>);

/// The two buckets of a budget.
#[derive(Debug)]
struct Buckets {
    reading_bucket: Bucket,
    work_bucket: Bucket,
    /// The start of the current period of excessive reading; the period ends when the level falls to half of
    /// the burst. `None` outside such a period.
    exceeded_since: Option<Instant>,
}

/// A leaky bucket: its level rises by the cost of each piece of work and falls at a fixed rate.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    /// The units that have been added and not drained yet.
    level: u64,
    /// The time of the last update of the level.
    updated_at: Instant,
}

impl Budget {
    /// Creates an unspent budget.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        let empty_bucket = Bucket { level: 0, updated_at: now };
        Self(Mutex::new(Buckets {
            reading_bucket: empty_bucket,
            work_bucket: empty_bucket,
            exceeded_since: None,
        }))
    }

    /// Adds the cost of reading a message.
    pub fn charge_reading(&self, units: u64, now: Instant) {
        let mut buckets = self.lock(now);
        buckets.reading_bucket.add_cost(units);
        if buckets.reading_bucket.level > BURST_UNITS {
            buckets.exceeded_since.get_or_insert(now);
        }
    }

    /// Refunds the cost of reading a message that the control plane requested.
    pub fn refund_reading(&self, units: u64, now: Instant) {
        let mut buckets = self.lock(now);
        buckets.reading_bucket.level = buckets.reading_bucket.level.saturating_sub(units);
    }

    /// Adds the cost of the state task's work. The resulting pause is bounded, regardless of the cost.
    pub fn charge_work(&self, units: u64, now: Instant) {
        self.lock(now).work_bucket.add_cost(units);
    }

    /// Returns the time at which messages of the client are read again; `None` if they may be read now.
    #[must_use]
    pub fn next_read_at(&self, now: Instant) -> Option<Instant> {
        self.lock(now).reading_bucket.ready_at(now)
    }

    /// Returns the time at which the state task works for the client again; `None` if it may do so now.
    #[must_use]
    pub fn next_work_at(&self, now: Instant) -> Option<Instant> {
        self.lock(now).work_bucket.ready_at(now)
    }

    /// True if the client has exceeded its budget for too long to be a burst.
    #[must_use]
    pub fn is_abused(&self, now: Instant) -> bool {
        let exceeded_since = self.lock(now).exceeded_since;
        exceeded_since.is_some_and(|start| now.duration_since(start) >= ABUSE_AFTER)
    }

    fn is_unspent(&self, now: Instant) -> bool {
        let buckets = self.lock(now);
        buckets.reading_bucket.level == 0 && buckets.work_bucket.level == 0
    }

    /// Locks and updates the buckets. A thread that panicked while it held the lock left no half-written state.
    fn lock(&self, now: Instant) -> MutexGuard<'_, Buckets> {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.reading_bucket.drain_elapsed(now);
        buckets.work_bucket.drain_elapsed(now);
        if buckets.reading_bucket.level <= BURST_UNITS / 2 {
            buckets.exceeded_since = None;
        }
        buckets
    }
}

impl Bucket {
    fn add_cost(&mut self, units: u64) {
        self.level = self.level.saturating_add(units).min(BURST_UNITS + MAX_DEBT_UNITS);
    }

    fn drain_elapsed(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.updated_at);
        let elapsed_micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        let drained_units = elapsed_micros.saturating_mul(UNITS_PER_SECOND) / 1_000_000;
        // Otherwise `updated_at` stays, so that the elapsed fraction of a unit counts in the next call.
        if drained_units > 0 {
            self.level = self.level.saturating_sub(drained_units);
            self.updated_at = now;
        }
    }

    /// Returns the time at which the level falls to the burst; `None` if it is not above.
    fn ready_at(&self, now: Instant) -> Option<Instant> {
        let excess_units = self.level.saturating_sub(BURST_UNITS);
        // At least a millisecond, the resolution of timers.
        let wait = Duration::from_micros(excess_units.saturating_mul(1_000_000) / UNITS_PER_SECOND);
        (excess_units > 0).then(|| now + wait.max(Duration::from_millis(1)))
    }
}

/// The budgets of all clients, by identity.
#[derive(Debug, Default)]
pub struct Budgets(Mutex<BTreeMap<String, Arc<Budget>>>);

impl Budgets {
    /// Returns the budget of a client, shared by its connections. A budget that is not fully recovered is kept
    /// after the client's connections end. A new budget over `MAX_BUDGETS` lasts only as long as its
    /// connection.
    #[must_use]
    pub fn for_identity(&self, identity: &str, now: Instant) -> Arc<Budget> {
        let mut budgets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(budget) = budgets.get(identity) {
            return Arc::clone(budget);
        }
        if budgets.len() >= MAX_BUDGETS {
            budgets.retain(|_, budget| Arc::strong_count(budget) > 1 || !budget.is_unspent(now));
        }
        let budget = Arc::new(Budget::new(now));
        if budgets.len() < MAX_BUDGETS {
            budgets.insert(identity.to_owned(), Arc::clone(&budget));
        }
        budget
    }
}

/// The rate of each bucket: on average a client may use a twentieth of a core.
const UNITS_PER_SECOND: u64 = 50_000;

/// The size of each bucket: more than a sidecar with thousands of services needs at its start.
const BURST_UNITS: u64 = 1_000_000;

/// The maximum overflow of a bucket: five seconds of waiting, which is shorter than the keepalive timeout of a
/// stream.
const MAX_DEBT_UNITS: u64 = 5 * UNITS_PER_SECOND;

/// The time over its budget after which a client is disconnected.
const ABUSE_AFTER: Duration = Duration::from_secs(120);

/// The maximum number of budgets, which is more than the clients of a control plane.
const MAX_BUDGETS: usize = 32_768;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_beyond_the_burst_delay_work_in_proportion() {
        let start = Instant::now();
        let budget = Budget::new(start);
        budget.charge_work(BURST_UNITS, start);
        assert_eq!(budget.next_work_at(start), None);
        budget.charge_work(UNITS_PER_SECOND, start);
        assert_eq!(budget.next_work_at(start), Some(start + Duration::from_secs(1)));
        assert_eq!(budget.next_read_at(start), None, "it is read meanwhile");
        let later = start + Duration::from_secs(1);
        assert_eq!(budget.next_work_at(later), None);
        // The wait is bounded regardless of the cost.
        budget.charge_reading(u64::MAX, later);
        assert_eq!(budget.next_read_at(later), Some(later + Duration::from_secs(5)));
    }

    #[test]
    fn a_client_abuses_its_budget_only_if_it_never_recovers() {
        let start = Instant::now();
        let budget = Budget::new(start);
        let mut now = start;
        while now < start + ABUSE_AFTER {
            assert!(!budget.is_abused(now));
            budget.charge_reading(2 * UNITS_PER_SECOND, now);
            now += Duration::from_secs(1);
        }
        let exceeded = start + ABUSE_AFTER + Duration::from_secs(30);
        while now < exceeded {
            budget.charge_reading(2 * UNITS_PER_SECOND, now);
            now += Duration::from_secs(1);
        }
        assert!(budget.is_abused(now));
        // The level falls to half of the burst.
        now += Duration::from_secs(16);
        assert!(!budget.is_abused(now));
    }

    #[test]
    fn a_new_connection_does_not_renew_the_budget_of_an_identity() {
        let start = Instant::now();
        let budgets = Budgets::default();
        budgets.for_identity("one", start).charge_work(u64::MAX, start);
        assert!(budgets.for_identity("one", start).next_work_at(start).is_some());
        assert!(budgets.for_identity("other", start).next_work_at(start).is_none());
    }

    #[test]
    fn the_table_of_budgets_is_bounded_and_drops_unspent_ones() {
        let start = Instant::now();
        let budgets = Budgets::default();
        budgets.for_identity("spender", start).charge_work(1_000, start);
        for number in 0..MAX_BUDGETS + 10 {
            drop(budgets.for_identity(&number.to_string(), start));
        }
        assert!(budgets.0.lock().unwrap().len() <= MAX_BUDGETS);
        assert!(!budgets.for_identity("spender", start).is_unspent(start));
    }
}
