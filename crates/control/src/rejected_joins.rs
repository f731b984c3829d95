//! Records recently rejected joins and streams by the workload name that the client sent, so that operators can find
//! out why a sidecar is missing.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leno_model::WorkloadName;
use leno_telemetry::RecentTable;
use tokio::time::Instant;

use crate::status::RejectedJoinStatus;

/// Rejected joins of the last minute. Clients are unauthenticated before they join, and may send any name. The names of
/// existing workloads and all other names therefore have separate bounds.
#[derive(Debug, Default)]
pub(crate) struct RejectedJoins {
    existing_workloads: Mutex<RejectedJoinTable>,
    unknown_names: Mutex<RejectedJoinTable>,
}

type RejectedJoinTable = RecentTable<WorkloadName, RejectedJoin, MAX_JOINS>;

/// The rejected joins of one workload name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RejectedJoin {
    count: u64,
    last_rejection: Instant,
    /// The reason for the last rejection.
    reason: String,
}

impl RejectedJoins {
    /// Records a rejected join. `exists` is true if the mesh has the workload.
    pub(crate) fn record_rejection(
        &self,
        workload: &WorkloadName,
        exists: bool,
        reason: &str,
        now: Instant,
    ) {
        let mut table =
            lock_table(if exists { &self.existing_workloads } else { &self.unknown_names });
        let count = table.get(workload).map_or(0, |join| join.count).saturating_add(1);
        let join = RejectedJoin { count, last_rejection: now, reason: reason.to_owned() };
        table.insert(workload.clone(), join);
    }

    /// Removes a workload that has joined.
    pub(crate) fn remove_joined(&self, workload: &WorkloadName) {
        for table in [&self.existing_workloads, &self.unknown_names] {
            lock_table(table).remove(workload);
        }
    }

    /// Returns the rejected joins of the last minute.
    pub(crate) fn recent_rejections(&self, now: Instant) -> Vec<RejectedJoinStatus> {
        let mut statuses = Vec::new();
        for (table, exists) in [(&self.existing_workloads, true), (&self.unknown_names, false)] {
            for (workload, join) in lock_table(table).iter() {
                let age = now.saturating_duration_since(join.last_rejection);
                if age < REPORT_PERIOD {
                    statuses.push(RejectedJoinStatus {
                        workload: workload.to_string(),
                        exists,
                        count: join.count,
                        age_seconds: age.as_secs(),
                        reason: join.reason.clone(),
                    });
                }
            }
        }
        statuses
    }
}

fn lock_table(table: &Mutex<RejectedJoinTable>) -> MutexGuard<'_, RejectedJoinTable> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maximum workload names in each of the two tables.
const MAX_JOINS: usize = 64;
/// The time for which a rejected join is reported. A sidecar that still tries to join is rejected again within seconds.
const REPORT_PERIOD: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rejected_joins_are_bounded_and_removed_after_a_join_or_a_minute() {
        let joins = RejectedJoins::default();
        let name = |number: usize| format!("shop/w-{number}").parse::<WorkloadName>().unwrap();
        let start = Instant::now();
        joins.record_rejection(&name(0), true, "used already", start);
        for number in 0..1000 {
            let at = start + Duration::from_millis(number as u64);
            joins.record_rejection(&name(number), false, "no Workload", at);
        }
        let statuses = joins.recent_rejections(start);
        assert_eq!(statuses.len(), 1 + MAX_JOINS);
        assert_eq!((statuses[0].workload.as_str(), statuses[0].exists), ("shop/w-0", true));
        joins.record_rejection(&name(0), true, "used already", start);
        assert_eq!(joins.recent_rejections(start)[0].count, 2);
        joins.remove_joined(&name(0));
        assert!(joins.recent_rejections(start).iter().all(|status| !status.exists));
        assert!(joins.recent_rejections(start + REPORT_PERIOD * 2).is_empty());
    }
}
