//! Stores the most recent changes of the mesh with their causes and times, for operators.

use std::collections::VecDeque;
use std::fmt;

use leno_discovery::ChangeId;
use leno_model::{Change, KeySource, ObjectKey, WorkloadName};
use tokio::time::Instant;

/// The cause of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChangeCause {
    /// One object was written or removed.
    ObjectChanged(ObjectKey, ObjectEdit),
    /// Several objects at once: their number, and the first of them.
    ObjectsChanged(usize, ObjectKey, ObjectEdit),
    /// The sidecar of this workload reported its listeners, or changed them.
    ListenersChanged(WorkloadName),
    /// The keys of this JWKS endpoint changed.
    KeysChanged(KeySource),
    /// The signing authority or the roots changed.
    AuthorityChanged,
    /// Workloads were revoked by `leno revoke`, or reinstated.
    RevocationsChanged,
    /// The sidecar of this workload disconnected, or withdrew its listeners.
    ListenersWithdrawn(WorkloadName),
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
            Self::ObjectChanged(key, edit) => write!(f, "{key} {edit}"),
            Self::ObjectsChanged(count, first_object, edit) => match count.saturating_sub(1) {
                0 => write!(f, "{first_object} {edit}"),
                1 => write!(f, "{first_object} {edit}, and 1 other object with it"),
                other_count => {
                    write!(f, "{first_object} {edit}, and {other_count} other objects with it")
                }
            },
            Self::ListenersChanged(workload) => {
                write!(f, "the sidecar of {workload} reported its listeners")
            }
            Self::KeysChanged(source) => write!(f, "the keys of an issuer changed at {source}"),
            Self::AuthorityChanged => f.write_str("the authority, or its trust roots, changed"),
            Self::RevocationsChanged => f.write_str("workloads were revoked or reinstated"),
            Self::ListenersWithdrawn(workload) => {
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
    /// The time at which the source of the change noticed it: for files, the first file system event.
    pub(crate) noticed_at: Instant,
    /// The time at which the state task processed the change.
    pub(crate) processed_at: Instant,
}

/// The most recent changes, oldest first; at most [`MAX_CHANGES`].
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

    /// Returns the change with this number; `None` if it was evicted or not recorded.
    pub(crate) fn find_change(&self, id: ChangeId) -> Option<&RecordedChange> {
        let index =
            self.changes.binary_search_by(|recorded_change| recorded_change.id.cmp(&id)).ok()?;
        self.changes.get(index)
    }

    /// Returns the changes, newest first.
    pub(crate) fn newest_first(&self) -> impl Iterator<Item = &RecordedChange> {
        self.changes.iter().rev()
    }

    /// Returns the number of recorded changes with a number above `after` and at most `until`. A push contains
    /// the changes since the previous push.
    pub(crate) fn count_between(&self, after: ChangeId, until: ChangeId) -> usize {
        let start_index =
            self.changes.partition_point(|recorded_change| recorded_change.id <= after);
        let end_index = self.changes.partition_point(|recorded_change| recorded_change.id <= until);
        end_index.saturating_sub(start_index)
    }
}

/// Maximum recorded changes. They cover about ten seconds of a burst, or a day of an ordinary mesh.
const MAX_CHANGES: usize = 2048;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_log_evicts_the_oldest_changes_and_finds_the_others_by_number() {
        let mut change_log = ChangeLog::default();
        let start = Instant::now();
        let workload: WorkloadName = "shop/cart-1".parse().unwrap();
        for id in 0..MAX_CHANGES as u64 + 10 {
            // Numbers have gaps: responses to subscriptions use some.
            let processed_at = start + Duration::from_millis(id);
            let cause = ChangeCause::ListenersChanged(workload.clone());
            change_log.record_change(RecordedChange {
                id: ChangeId(3 * id),
                cause,
                noticed_at: start,
                processed_at,
            });
        }
        assert_eq!(change_log.find_change(ChangeId(27)), None, "evicted");
        assert_eq!(change_log.find_change(ChangeId(31)), None, "no change has this number");
        let change = change_log.find_change(ChangeId(30)).unwrap();
        let key = || ObjectKey::MeshConfig;
        for (cause, text) in [
            (ChangeCause::ObjectChanged(key(), ObjectEdit::Removed), "MeshConfig was removed"),
            (
                ChangeCause::ObjectChanged(key(), ObjectEdit::Written),
                "MeshConfig is new or changed",
            ),
            (
                ChangeCause::ObjectsChanged(2, key(), ObjectEdit::Removed),
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
