//! Tracks pushes until all their recipients have acknowledged them, and measures convergence times: the time from
//! a change until the last affected proxy has applied it.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use leno_discovery::{ChangeId, ConnectionId};
use leno_telemetry::Histogram;
use tokio::time::Instant;

/// A push: changes that were sent together, and the progress of the proxies that must apply them.
#[derive(Debug, Clone)]
pub(crate) struct ConfigPush {
    /// The newest change before this push.
    pub(crate) previous_change: ChangeId,
    /// The newest change of this push.
    pub(crate) change: ChangeId,
    pub(crate) sent_at: Instant,
    /// The number of proxies that the changes may affect.
    pub(crate) affected_count: usize,
    /// The number of affected proxies that received an update.
    pub(crate) recipient_count: usize,
    /// The number of bytes of the updates that were applied.
    pub(crate) bytes: u64,
    /// The number of NACKs.
    pub(crate) rejected: u64,
    /// Proxies that have not applied the update yet.
    pub(crate) waiting_proxies: BTreeSet<ConnectionId>,
    /// The time of the last acknowledgment so far.
    pub(crate) last_applied: Option<Instant>,
    /// The times at which the changes of the push were processed.
    change_times: Vec<Instant>,
}

/// The proxies of a push, when it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SentPush {
    pub(crate) sent_at: Instant,
    /// The number of proxies that the changes may affect.
    pub(crate) affected_count: usize,
    /// The number of proxies that received an update.
    pub(crate) recipient_count: usize,
    /// The proxies that have not applied the changes yet.
    pub(crate) waiting_proxies: BTreeSet<ConnectionId>,
}

/// The progress of the push with the newest change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PushProgress {
    pub(crate) change: ChangeId,
    pub(crate) processed_at: Instant,
    /// The number of proxies that had not applied the change when it had been sent to all of them.
    pub(crate) recipient_count: usize,
    /// The number of these proxies that have applied the change since, or disconnected.
    pub(crate) applied: usize,
    /// The time from the change until all proxies had applied it; `None` while some have not.
    pub(crate) convergence_time: Option<Duration>,
}

/// Recent pushes, including those in progress, and convergence times.
#[derive(Debug, Default)]
pub(crate) struct ConfigPushes {
    /// The recent pushes, the oldest first.
    recent_pushes: VecDeque<ConfigPush>,
    /// The number of recent pushes with outstanding acknowledgments.
    unacknowledged_pushes: usize,
    /// The newest change of the last push.
    newest_change: ChangeId,
    /// The progress of the last push; `None` before the first one.
    latest_progress: Option<PushProgress>,
    /// The times from a change until all affected proxies had applied it.
    convergence_times: Histogram,
}

impl ConfigPushes {
    /// Records a sent push of the changes that were processed at `change_times`, up to `change`.
    pub(crate) fn begin_push(
        &mut self,
        change: ChangeId,
        change_times: Vec<Instant>,
        sent_push: SentPush,
    ) {
        let Some(last_change_time) = change_times.last().copied() else {
            return;
        };
        let SentPush { sent_at, affected_count, recipient_count, waiting_proxies } = sent_push;
        self.latest_progress = Some(PushProgress {
            change,
            processed_at: last_change_time,
            recipient_count: waiting_proxies.len(),
            applied: 0,
            convergence_time: waiting_proxies.is_empty().then_some(Duration::ZERO),
        });
        let previous_change = std::mem::replace(&mut self.newest_change, change);
        self.unacknowledged_pushes += usize::from(!waiting_proxies.is_empty());
        self.recent_pushes.push_back(ConfigPush {
            previous_change,
            change,
            sent_at,
            affected_count,
            recipient_count,
            bytes: 0,
            rejected: 0,
            waiting_proxies,
            last_applied: None,
            change_times,
        });
        while self.unacknowledged_pushes > MAX_UNACKNOWLEDGED_PUSHES
            || self.recent_pushes.len() > MAX_PUSHES
        {
            // The waiting proxies of a dropped push are still reported as out of sync.
            let Some(oldest) = self.recent_pushes.pop_front() else { break };
            self.unacknowledged_pushes -= usize::from(!oldest.waiting_proxies.is_empty());
        }
    }

    /// Removes a connection from the waiting proxies of all pushes: it has acknowledged all updates, with this
    /// number of bytes, or has ended.
    pub(crate) fn remove_waiting_proxy(
        &mut self,
        connection: ConnectionId,
        bytes: u64,
        now: Instant,
    ) {
        if self.unacknowledged_pushes == 0 {
            return;
        }
        let mut uncounted_bytes = bytes;
        // If an acknowledgment covers several pushes, its bytes count for the newest one.
        for push in self.recent_pushes.iter_mut().rev() {
            if !push.waiting_proxies.remove(&connection) {
                continue;
            }
            push.bytes += std::mem::take(&mut uncounted_bytes);
            push.last_applied = Some(now);
            let is_complete = push.waiting_proxies.is_empty();
            if is_complete {
                self.unacknowledged_pushes -= 1;
                for change_time in &push.change_times {
                    self.convergence_times.record(now.duration_since(*change_time));
                }
                push.change_times = Vec::new();
            }
            if let Some(latest) = &mut self.latest_progress
                && latest.change == push.change
            {
                latest.applied += 1;
                if is_complete {
                    latest.convergence_time = Some(now.duration_since(latest.processed_at));
                }
            }
        }
    }

    /// Counts a NACK for a proxy's last update.
    pub(crate) fn record_nack(&mut self, connection: ConnectionId) {
        let mut pushes = self.recent_pushes.iter_mut().rev();
        if let Some(push) = pushes.find(|push| push.waiting_proxies.contains(&connection)) {
            push.rejected += 1;
        }
    }

    /// Returns the push that sent a change; `None` if it is not among the recent ones.
    pub(crate) fn push_for_change(&self, id: ChangeId) -> Option<&ConfigPush> {
        let index = self.recent_pushes.partition_point(|push| push.change < id);
        self.recent_pushes.get(index).filter(|push| push.previous_change < id)
    }

    /// Returns the time of the oldest push that a proxy has not applied; `None` if it has applied all.
    pub(crate) fn unacknowledged_since(&self, connection: ConnectionId) -> Option<Instant> {
        let mut pushes = self.recent_pushes.iter();
        pushes.find(|push| push.waiting_proxies.contains(&connection)).map(|push| push.sent_at)
    }

    /// Returns the number of pushes with outstanding acknowledgments.
    pub(crate) fn unacknowledged_count(&self) -> usize {
        self.unacknowledged_pushes
    }

    /// Returns the progress of the newest change, if there was any.
    pub(crate) fn latest_progress(&self) -> Option<PushProgress> {
        self.latest_progress
    }

    /// Returns the convergence times of changes that affected proxies.
    pub(crate) fn convergence_times(&self) -> &Histogram {
        &self.convergence_times
    }
}

/// Maximum pushes with outstanding acknowledgments; beyond it, the oldest is abandoned.
const MAX_UNACKNOWLEDGED_PUSHES: usize = 64;

/// Maximum pushes kept for queries about a change.
const MAX_PUSHES: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn sent_to<const N: usize>(at: Instant, ids: [u64; N]) -> SentPush {
        SentPush {
            sent_at: at,
            affected_count: N + 1,
            recipient_count: N,
            waiting_proxies: ids.map(ConnectionId).into(),
        }
    }

    #[test]
    fn a_change_has_converged_when_the_last_proxy_applied_it() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut pushes = ConfigPushes::default();
        pushes.begin_push(ChangeId(1), vec![start], sent_to(start, [1, 2]));
        pushes.remove_waiting_proxy(ConnectionId(1), 100, at(5));
        let latest = pushes.latest_progress().unwrap();
        assert_eq!((latest.recipient_count, latest.applied, latest.convergence_time), (2, 1, None));
        pushes.remove_waiting_proxy(ConnectionId(1), 100, at(6));
        pushes.remove_waiting_proxy(ConnectionId(2), 20, at(9));
        let latest = pushes.latest_progress().unwrap();
        assert_eq!(latest.convergence_time, Some(Duration::from_millis(9)));
        assert_eq!((pushes.convergence_times().count(), pushes.unacknowledged_count()), (1, 0));
        let push = pushes.push_for_change(ChangeId(1)).unwrap();
        assert_eq!((push.bytes, push.recipient_count, push.affected_count), (120, 2, 3));
        assert_eq!(push.last_applied, Some(at(9)));
    }

    #[test]
    fn a_change_without_recipients_converges_at_once_and_is_not_recorded() {
        let mut pushes = ConfigPushes::default();
        let now = Instant::now();
        pushes.begin_push(ChangeId(1), vec![now], sent_to(now, []));
        assert_eq!(pushes.latest_progress().unwrap().convergence_time, Some(Duration::ZERO));
        assert_eq!((pushes.convergence_times().count(), pushes.unacknowledged_count()), (0, 0));
    }

    #[test]
    fn a_change_belongs_to_the_push_that_sent_it() {
        let mut pushes = ConfigPushes::default();
        let now = Instant::now();
        for change in [3, 7, 9] {
            pushes.begin_push(ChangeId(change), vec![now], sent_to(now, [1]));
        }
        let push_change = |id| pushes.push_for_change(ChangeId(id)).map(|push| push.change.0);
        assert_eq!(
            [1, 3, 4, 7, 9, 10].map(push_change),
            [Some(3), Some(3), Some(7), Some(7), Some(9), None]
        );
        // Updates that are applied together count with the newest, and so do rejections.
        pushes.record_nack(ConnectionId(1));
        pushes.remove_waiting_proxy(ConnectionId(1), 50, now);
        let bytes_and_rejections =
            |id| pushes.push_for_change(ChangeId(id)).map(|push| (push.bytes, push.rejected));
        assert_eq!([3, 9].map(bytes_and_rejections), [Some((0, 0)), Some((50, 1))]);
    }

    #[test]
    fn unacknowledged_pushes_are_bounded() {
        let mut pushes = ConfigPushes::default();
        let now = Instant::now();
        for change in 1..1000 {
            pushes.begin_push(ChangeId(change), vec![now], sent_to(now, [1]));
        }
        assert_eq!(
            (pushes.unacknowledged_count(), pushes.recent_pushes.len()),
            (MAX_UNACKNOWLEDGED_PUSHES, MAX_UNACKNOWLEDGED_PUSHES)
        );
        pushes.remove_waiting_proxy(ConnectionId(1), 1, now);
        assert_eq!(pushes.unacknowledged_count(), 0);
        for change in 1000..3000 {
            pushes.begin_push(ChangeId(change), vec![now], sent_to(now, []));
        }
        assert_eq!(pushes.recent_pushes.len(), MAX_PUSHES);
    }
}
