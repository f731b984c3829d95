//! Reports the progress of changes, from their cause to the last proxy that applied them.

use leno_discovery::ChangeId;

use super::{Report, to_milliseconds};
use crate::publish::{ConfigPush, RecordedChange};
use crate::status::ChangeReport;

impl Report<'_> {
    /// Returns the progress of a change; `None` if its number is unknown or no longer recorded.
    pub(crate) fn change_report(&self, id: ChangeId) -> Option<ChangeReport> {
        self.connected_proxies
            .change_log
            .find_change(id)
            .map(|recorded_change| self.report_change(recorded_change))
    }

    /// Returns the newest changes, newest first.
    pub(crate) fn newest_changes(&self) -> Vec<ChangeReport> {
        let newest_first =
            self.connected_proxies.change_log.newest_first().take(MAX_LISTED_CHANGES);
        newest_first.map(|recorded_change| self.report_change(recorded_change)).collect()
    }

    fn report_change(&self, recorded_change: &RecordedChange) -> ChangeReport {
        let RecordedChange { id, cause, noticed_at, processed_at } = recorded_change;
        let push = self.connected_proxies.pushes.push_for_change(*id);
        let milliseconds_after =
            |at: tokio::time::Instant| to_milliseconds(at.duration_since(*noticed_at));
        // The last acknowledgment is final once all proxies have applied the push.
        let completed_push = push.filter(|push| push.waiting_proxies.is_empty());
        let is_pending = self
            .connected_proxies
            .pushes
            .latest_progress()
            .is_none_or(|latest| latest.change < *id);
        ChangeReport {
            id: id.0,
            cause: cause.to_string(),
            age_ms: to_milliseconds(self.now.duration_since(*noticed_at)),
            processed_after_ms: milliseconds_after(*processed_at),
            sent_after_ms: push.map(|push| milliseconds_after(push.sent_at)),
            applied_after_ms: completed_push
                .and_then(|push| push.last_applied)
                .map(milliseconds_after),
            // A change that is not sent yet counts itself.
            push_size: push.map_or(1, |push| {
                self.connected_proxies.change_log.count_between(push.previous_change, push.change)
            }),
            affected: push.map_or(0, |push| push.affected_count),
            recipients: push.map_or(0, |push| push.recipient_count),
            applied: push
                .map_or(0, |push| push.recipient_count.saturating_sub(push.waiting_proxies.len())),
            rejected: push.map_or(0, |push| push.rejected),
            bytes: push.map_or(0, |push| push.bytes),
            waiting: push.map(|push| self.waiting_workloads(push)).unwrap_or_default(),
            expired: push.is_none() && !is_pending,
        }
    }

    /// Returns the workloads of the first [`MAX_LISTED_PROXIES`] proxies that have not applied a push.
    fn waiting_workloads(&self, push: &ConfigPush) -> Vec<String> {
        let proxies = self.connected_proxies.proxies();
        let waiting_proxies =
            proxies.filter(|(connection, _)| push.waiting_proxies.contains(connection));
        let names = waiting_proxies.map(|(_, proxy)| proxy.workload.to_string());
        names.take(MAX_LISTED_PROXIES).collect()
    }
}

/// Maximum changes in a listing.
const MAX_LISTED_CHANGES: usize = 64;

/// Maximum waiting proxies listed for a change.
const MAX_LISTED_PROXIES: usize = 16;
