//! Joins and streams that were rejected, by the workload that they named: operators see no sidecar there, and look for
//! the cause.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leno_model::WorkloadName;
use leno_telemetry::RecentTable;
use tokio::time::Instant;

use crate::status::RejectedJoinStatus;

/// The rejected joins of the last minutes. Clients prove nothing before they have joined, so that a name here proves
/// nothing either; names of workloads that exist and of others are bounded apart.
#[derive(Debug, Default)]
pub(crate) struct RejectedJoins {
    of_workloads: Mutex<Table>,
    of_others: Mutex<Table>,
}

type Table = RecentTable<WorkloadName, RejectedJoin, JOINS_MAX>;

#[derive(Debug, Clone, PartialEq, Eq)]
struct RejectedJoin {
    count: u64,
    last: Instant,
    reason: String,
}

impl RejectedJoins {
    /// Counts a rejected join. `exists`: of a workload of the mesh.
    pub(crate) fn note(&self, workload: &WorkloadName, exists: bool, reason: &str, now: Instant) {
        let mut table = lock(if exists { &self.of_workloads } else { &self.of_others });
        let count = table.get(workload).map_or(0, |join| join.count).saturating_add(1);
        let join = RejectedJoin { count, last: now, reason: reason.to_owned() };
        table.insert(workload.clone(), join);
    }

    /// The workload has joined.
    pub(crate) fn joined(&self, workload: &WorkloadName) {
        for table in [&self.of_workloads, &self.of_others] {
            lock(table).remove(workload);
        }
    }

    /// Those of the last minutes.
    pub(crate) fn status(&self, now: Instant) -> Vec<RejectedJoinStatus> {
        let mut found = Vec::new();
        for (table, exists) in [(&self.of_workloads, true), (&self.of_others, false)] {
            for (workload, join) in lock(table).iter() {
                let age = now.saturating_duration_since(join.last);
                if age < SHOWN_FOR {
                    found.push(RejectedJoinStatus {
                        workload: workload.to_string(),
                        exists,
                        count: join.count,
                        age_seconds: age.as_secs(),
                        reason: join.reason.clone(),
                    });
                }
            }
        }
        found
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The most names in each table.
const JOINS_MAX: usize = 64;
/// A sidecar without a certificate tries again within seconds: after this time it has stopped.
const SHOWN_FOR: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rejected_joins_are_bounded_and_end_with_a_join_or_in_time() {
        let joins = RejectedJoins::default();
        let name = |number: usize| format!("shop/w-{number}").parse::<WorkloadName>().unwrap();
        let began = Instant::now();
        joins.note(&name(0), true, "used already", began);
        for number in 0..1000 {
            let at = began + Duration::from_millis(number as u64);
            joins.note(&name(number), false, "no Workload", at);
        }
        let found = joins.status(began);
        assert_eq!(found.len(), 1 + JOINS_MAX);
        assert_eq!((found[0].workload.as_str(), found[0].exists), ("shop/w-0", true));
        joins.note(&name(0), true, "used already", began);
        assert_eq!(joins.status(began)[0].count, 2);
        joins.joined(&name(0));
        assert!(joins.status(began).iter().all(|it| !it.exists));
        assert!(joins.status(began + SHOWN_FOR * 2).is_empty());
    }
}
