//! The change log: recent changes, and the push that sent each of them.

use std::collections::VecDeque;
use std::fmt;

use leno_discovery::ChangeId;
use leno_model::{Change, KeySource, ObjectKey, WorkloadName};
use tokio::time::Instant;

/// The cause of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChangeCause {
    /// One object was written or removed.
    Object(ObjectKey, ObjectEdit),
    /// Several objects at once: their number, and the first of them.
    Objects(usize, ObjectKey, ObjectEdit),
    /// The sidecar of this workload reported its listeners, or changed them.
    ListenersChanged(WorkloadName),
    /// The keys of this JWKS endpoint changed.
    Keys(KeySource),
    /// The signing authority or the roots changed.
    Authority,
    /// Workloads were revoked by `leno revoke`, or reinstated.
    Revoked,
    /// The sidecar of this workload disconnected, or withdrew its listeners.
    Gone(WorkloadName),
}

/// An edit of an object, in a file or in the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObjectEdit {
    /// Added or changed.
    Written,
    /// Removed.
    Removed,
}

impl ObjectEdit {
    pub(crate) fn from_change(change: &Change) -> Self {
        match change {
            Change::Upsert(_) => Self::Written,
            Change::Remove(_) => Self::Removed,
        }
    }
}

impl fmt::Display for ObjectEdit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Written => "is new or changed",
            Self::Removed => "was removed",
        })
    }
}

impl fmt::Display for ChangeCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(key, edit) => write!(f, "{key} {edit}"),
            Self::Objects(count, first, edit) => match count.saturating_sub(1) {
                0 => write!(f, "{first} {edit}"),
                1 => write!(f, "{first} {edit}, and 1 other object with it"),
                others => {
                    write!(f, "{first} {edit}, and {others} other objects with it")
                }
            },
            Self::ListenersChanged(workload) => {
                write!(f, "the sidecar of {workload} reported its listeners")
            }
            Self::Keys(source) => write!(f, "the keys of an issuer changed at {source}"),
            Self::Authority => f.write_str("the authority, or its trust roots, changed"),
            Self::Revoked => f.write_str("workloads were revoked or reinstated"),
            Self::Gone(workload) => {
                write!(f, "the sidecar of {workload} disconnected or closed its listeners")
            }
        }
    }
}

/// A recorded change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordedChange {
    pub(crate) id: ChangeId,
    pub(crate) cause: ChangeCause,
    /// The time at which its source noticed it: for files, the first file system event.
    pub(crate) noticed: Instant,
    /// The time at which the mesh owner processed it.
    pub(crate) seen: Instant,
}

/// Recent changes.
#[derive(Debug, Default)]
pub(crate) struct ChangeLog {
    changes: VecDeque<RecordedChange>,
}

impl ChangeLog {
    /// Adds a change; evicts the oldest at the limit.
    pub(crate) fn record_change(&mut self, recorded_change: RecordedChange) {
        if self.changes.len() == MAX_CHANGES {
            self.changes.pop_front();
        }
        self.changes.push_back(recorded_change);
    }

    /// Returns a change by its number.
    pub(crate) fn find(&self, id: ChangeId) -> Option<&RecordedChange> {
        let index =
            self.changes.binary_search_by(|recorded_change| recorded_change.id.cmp(&id)).ok()?;
        self.changes.get(index)
    }

    /// Returns the changes, newest first.
    pub(crate) fn newest_first(&self) -> impl Iterator<Item = &RecordedChange> {
        self.changes.iter().rev()
    }

    /// Returns the number of recorded changes after one and up to another: a push contains the changes since
    /// the previous push.
    pub(crate) fn count_between(&self, after: ChangeId, until: ChangeId) -> usize {
        let first = self.changes.partition_point(|recorded_change| recorded_change.id <= after);
        let end = self.changes.partition_point(|recorded_change| recorded_change.id <= until);
        end.saturating_sub(first)
    }
}

/// Maximum changes kept: ten seconds of a burst, a day of an ordinary mesh.
const MAX_CHANGES: usize = 2048;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_oldest_changes_are_forgotten_and_the_others_found() {
        let mut change_log = ChangeLog::default();
        let start = Instant::now();
        let workload: WorkloadName = "shop/cart-1".parse().unwrap();
        for id in 0..MAX_CHANGES as u64 + 10 {
            // Numbers have gaps: responses to subscriptions use some.
            let seen = start + Duration::from_millis(id);
            let cause = ChangeCause::ListenersChanged(workload.clone());
            change_log.record_change(RecordedChange {
                id: ChangeId(3 * id),
                cause,
                noticed: start,
                seen,
            });
        }
        assert_eq!(change_log.find(ChangeId(27)), None, "evicted");
        assert_eq!(change_log.find(ChangeId(31)), None, "no change has this number");
        let change = change_log.find(ChangeId(30)).unwrap();
        let key = || ObjectKey::MeshConfig;
        for (cause, text) in [
            (ChangeCause::Object(key(), ObjectEdit::Removed), "MeshConfig was removed"),
            (ChangeCause::Object(key(), ObjectEdit::Written), "MeshConfig is new or changed"),
            (
                ChangeCause::Objects(2, key(), ObjectEdit::Removed),
                "MeshConfig was removed, and 1 other object with it",
            ),
        ] {
            assert_eq!(cause.to_string(), text);
        }
        assert_eq!(change.cause.to_string(), "the sidecar of shop/cart-1 reported its listeners");
        assert_eq!(change_log.newest_first().count(), MAX_CHANGES);
        assert_eq!(change_log.count_between(ChangeId(30), ChangeId(60)), 10);
    }
}
