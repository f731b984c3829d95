//! Progress of changes: from their cause to the last proxy that applied them.

use leno_discovery::ChangeId;

use super::{Report, to_milliseconds};
use crate::publish::{Noted, Round};
use crate::status::ChangeReport;

impl Report<'_> {
    /// Returns a change by its number; `None` if it is not known, or no longer kept.
    pub(crate) fn change_report(&self, id: ChangeId) -> Option<ChangeReport> {
        self.connected.journal.find(id).map(|noted| self.report_change(noted))
    }

    /// Returns the newest changes, newest first.
    pub(crate) fn newest_changes(&self) -> Vec<ChangeReport> {
        let newest = self.connected.journal.newest_first().take(LISTED_MAX);
        newest.map(|noted| self.report_change(noted)).collect()
    }

    fn report_change(&self, noted: &Noted) -> ChangeReport {
        let Noted { id, cause, noticed, seen } = noted;
        let round = self.connected.rounds.push_for_change(*id);
        let after = |at: tokio::time::Instant| to_milliseconds(at.duration_since(*noticed));
        // There is no last acknowledgment until all proxies have applied it.
        let applied = round.filter(|round| round.waiting.is_empty());
        let pending =
            self.connected.rounds.latest_progress().is_none_or(|latest| latest.change < *id);
        ChangeReport {
            id: id.0,
            cause: cause.to_string(),
            age_ms: to_milliseconds(self.now.duration_since(*noticed)),
            seen_after_ms: after(*seen),
            sent_after_ms: round.map(|round| after(round.sent)),
            applied_after_ms: applied.and_then(|round| round.last_applied).map(after),
            together: round
                .map_or(1, |round| self.connected.journal.count_between(round.after, round.change)),
            concerned: round.map_or(0, |round| round.concerned),
            recipients: round.map_or(0, |round| round.recipients),
            applied: round.map_or(0, |round| round.recipients.saturating_sub(round.waiting.len())),
            refused: round.map_or(0, |round| round.refused),
            bytes: round.map_or(0, |round| round.bytes),
            waiting: round.map(|round| self.waiting_proxies(round)).unwrap_or_default(),
            forgotten: round.is_none() && !pending,
        }
    }

    fn waiting_proxies(&self, round: &Round) -> Vec<String> {
        let proxies = self.connected.proxies();
        let waiting = proxies.filter(|(connection, _)| round.waiting.contains(connection));
        let names = waiting.map(|(_, proxy)| proxy.workload.to_string());
        names.take(WAITING_MAX).collect()
    }
}

/// Maximum changes in a listing.
const LISTED_MAX: usize = 64;

/// Maximum workloads listed for a change.
const WAITING_MAX: usize = 16;
