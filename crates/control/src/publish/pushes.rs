//! Pushes: the time from a change until the last affected proxy has applied it.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use leno_discovery::{ChangeId, ConnectionId};
use leno_telemetry::Histogram;
use tokio::time::Instant;

/// Changes that were sent together, and their progress.
#[derive(Debug, Clone)]
pub(crate) struct ConfigPush {
    /// The newest change before this push.
    pub(crate) after: ChangeId,
    /// The newest change of this push.
    pub(crate) change: ChangeId,
    pub(crate) sent: Instant,
    /// Proxies that may be affected, and those that received an update.
    pub(crate) affected_proxies: usize,
    pub(crate) recipients: usize,
    /// Bytes of the updates that were applied.
    pub(crate) bytes: u64,
    pub(crate) rejected: u64,
    /// Proxies that have not applied the update yet.
    pub(crate) waiting: BTreeSet<ConnectionId>,
    /// The time of the last acknowledgment so far.
    pub(crate) last_applied: Option<Instant>,
    /// The time at which each of its changes was seen.
    seen: Vec<Instant>,
}

/// The proxies of a push, when it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SentPush {
    pub(crate) at: Instant,
    pub(crate) affected_proxies: usize,
    pub(crate) recipients: usize,
    pub(crate) waiting: BTreeSet<ConnectionId>,
}

/// The progress of the newest change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PushProgress {
    pub(crate) change: ChangeId,
    pub(crate) seen: Instant,
    /// Affected proxies, and those of them that have applied it.
    pub(crate) affected_proxies: usize,
    pub(crate) applied: usize,
    /// The time until all had applied it; `None` while some have not.
    pub(crate) converged: Option<Duration>,
}

/// Recent pushes, including those in progress, and convergence times.
#[derive(Debug, Default)]
pub(crate) struct ConfigPushes {
    recent: VecDeque<ConfigPush>,
    /// Pushes with outstanding acknowledgments.
    unacknowledged: usize,
    newest: ChangeId,
    latest: Option<PushProgress>,
    convergence: Histogram,
}

impl ConfigPushes {
    /// Starts a push of the changes seen at `seen`, up to `change`.
    pub(crate) fn begin_push(&mut self, change: ChangeId, seen: Vec<Instant>, sent: SentPush) {
        let Some(last) = seen.last().copied() else {
            return;
        };
        let SentPush { at, affected_proxies, recipients, waiting } = sent;
        self.latest = Some(PushProgress {
            change,
            seen: last,
            affected_proxies: waiting.len(),
            applied: 0,
            converged: waiting.is_empty().then_some(Duration::ZERO),
        });
        let after = std::mem::replace(&mut self.newest, change);
        self.unacknowledged += usize::from(!waiting.is_empty());
        self.recent.push_back(ConfigPush {
            after,
            change,
            sent: at,
            affected_proxies,
            recipients,
            bytes: 0,
            rejected: 0,
            waiting,
            last_applied: None,
            seen,
        });
        while self.unacknowledged > MAX_OPEN_PUSHES || self.recent.len() > MAX_PUSHES {
            // Some proxy does not acknowledge; its own status shows that.
            let Some(oldest) = self.recent.pop_front() else { break };
            self.unacknowledged -= usize::from(!oldest.waiting.is_empty());
        }
    }

    /// Handles an acknowledgment of all updates, with their bytes, or a disconnect.
    pub(crate) fn settle_connection(&mut self, connection: ConnectionId, bytes: u64, now: Instant) {
        if self.unacknowledged == 0 {
            return;
        }
        let mut bytes = bytes;
        // The newest push first: an acknowledgment of several counts its bytes there.
        for push in self.recent.iter_mut().rev() {
            if !push.waiting.remove(&connection) {
                continue;
            }
            push.bytes += std::mem::take(&mut bytes);
            push.last_applied = Some(now);
            let is_complete = push.waiting.is_empty();
            if is_complete {
                self.unacknowledged -= 1;
                for seen in &push.seen {
                    self.convergence.record(now.duration_since(*seen));
                }
                push.seen = Vec::new();
            }
            if let Some(latest) = &mut self.latest
                && latest.change == push.change
            {
                latest.applied += 1;
                if is_complete {
                    latest.converged = Some(now.duration_since(latest.seen));
                }
            }
        }
    }

    /// Counts a NACK for a proxy's last update.
    pub(crate) fn record_nack(&mut self, connection: ConnectionId) {
        let mut pushes = self.recent.iter_mut().rev();
        if let Some(push) = pushes.find(|push| push.waiting.contains(&connection)) {
            push.rejected += 1;
        }
    }

    /// Returns the push of a change, while it is kept.
    pub(crate) fn push_for_change(&self, id: ChangeId) -> Option<&ConfigPush> {
        let index = self.recent.partition_point(|push| push.change < id);
        self.recent.get(index).filter(|push| push.after < id)
    }

    /// Returns the time since which a proxy has not applied an update.
    pub(crate) fn awaited_since(&self, connection: ConnectionId) -> Option<Instant> {
        let mut pushes = self.recent.iter();
        pushes.find(|push| push.waiting.contains(&connection)).map(|push| push.sent)
    }

    /// Returns the number of pushes with outstanding acknowledgments.
    pub(crate) fn open_count(&self) -> usize {
        self.unacknowledged
    }

    /// Returns the progress of the newest change, if there was any.
    pub(crate) fn latest_progress(&self) -> Option<PushProgress> {
        self.latest
    }

    /// Returns the convergence times of changes that affected proxies.
    pub(crate) fn convergence_times(&self) -> &Histogram {
        &self.convergence
    }
}

/// Maximum pushes with outstanding acknowledgments; beyond it, the oldest is abandoned.
const MAX_OPEN_PUSHES: usize = 64;

/// Maximum pushes kept for queries about a change.
const MAX_PUSHES: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn sent_to<const N: usize>(at: Instant, ids: [u64; N]) -> SentPush {
        SentPush {
            at,
            affected_proxies: N + 1,
            recipients: N,
            waiting: ids.map(ConnectionId).into(),
        }
    }

    #[test]
    fn a_change_has_converged_when_the_last_proxy_applied_it() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut pushes = ConfigPushes::default();
        pushes.begin_push(ChangeId(1), vec![start], sent_to(start, [1, 2]));
        pushes.settle_connection(ConnectionId(1), 100, at(5));
        let latest = pushes.latest_progress().unwrap();
        assert_eq!((latest.affected_proxies, latest.applied, latest.converged), (2, 1, None));
        pushes.settle_connection(ConnectionId(1), 100, at(6));
        pushes.settle_connection(ConnectionId(2), 20, at(9));
        let latest = pushes.latest_progress().unwrap();
        assert_eq!(latest.converged, Some(Duration::from_millis(9)));
        assert_eq!((pushes.convergence_times().count(), pushes.open_count()), (1, 0));
        let push = pushes.push_for_change(ChangeId(1)).unwrap();
        assert_eq!((push.bytes, push.recipients, push.affected_proxies), (120, 2, 3));
        assert_eq!(push.last_applied, Some(at(9)));
    }

    #[test]
    fn a_change_without_recipients_converges_at_once_and_is_not_recorded() {
        let mut pushes = ConfigPushes::default();
        let now = Instant::now();
        pushes.begin_push(ChangeId(1), vec![now], sent_to(now, []));
        assert_eq!(pushes.latest_progress().unwrap().converged, Some(Duration::ZERO));
        assert_eq!((pushes.convergence_times().count(), pushes.open_count()), (0, 0));
    }

    #[test]
    fn a_change_belongs_to_the_push_that_sent_it() {
        let mut pushes = ConfigPushes::default();
        let now = Instant::now();
        for change in [3, 7, 9] {
            pushes.begin_push(ChangeId(change), vec![now], sent_to(now, [1]));
        }
        let of = |id| pushes.push_for_change(ChangeId(id)).map(|push| push.change.0);
        assert_eq!(
            [1, 3, 4, 7, 9, 10].map(of),
            [Some(3), Some(3), Some(7), Some(7), Some(9), None]
        );
        // Updates that are applied together count with the newest, and so do rejections.
        pushes.record_nack(ConnectionId(1));
        pushes.settle_connection(ConnectionId(1), 50, now);
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
        assert_eq!((pushes.open_count(), pushes.recent.len()), (MAX_OPEN_PUSHES, MAX_OPEN_PUSHES));
        pushes.settle_connection(ConnectionId(1), 1, now);
        assert_eq!(pushes.open_count(), 0);
        for change in 1000..3000 {
            pushes.begin_push(ChangeId(change), vec![now], sent_to(now, []));
        }
        assert_eq!(pushes.recent.len(), MAX_PUSHES);
    }
}
