//! The change log: recent changes, and the push that sent each of them.

use std::collections::VecDeque;
use std::fmt;

use leno_discovery::ChangeId;
use leno_model::{Change, KeySource, ObjectKey, WorkloadName};
use tokio::time::Instant;

/// The cause of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    /// One object was written or removed.
    Object(ObjectKey, Edit),
    /// Several objects at once: their number, and the first of them.
    Objects(usize, ObjectKey, Edit),
    /// The sidecar of this workload reported its listeners, or changed them.
    Listens(WorkloadName),
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
pub(crate) enum Edit {
    /// Added or changed.
    Written,
    /// Removed.
    Removed,
}

impl Edit {
    pub(crate) fn from_change(change: &Change) -> Self {
        match change {
            Change::Upsert(_) => Self::Written,
            Change::Remove(_) => Self::Removed,
        }
    }
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Written => "is new or changed",
            Self::Removed => "was removed",
        })
    }
}

impl fmt::Display for Cause {
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
            Self::Listens(workload) => {
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
pub(crate) struct Noted {
    pub(crate) id: ChangeId,
    pub(crate) cause: Cause,
    /// The time at which its source noticed it: for files, the first file system event.
    pub(crate) noticed: Instant,
    /// The time at which the mesh owner processed it.
    pub(crate) seen: Instant,
}

/// Recent changes.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    noted: VecDeque<Noted>,
}

impl Journal {
    /// Adds a change; evicts the oldest at the limit.
    pub(crate) fn record_change(&mut self, noted: Noted) {
        if self.noted.len() == NOTED_MAX {
            self.noted.pop_front();
        }
        self.noted.push_back(noted);
    }

    /// Returns a change by its number.
    pub(crate) fn find(&self, id: ChangeId) -> Option<&Noted> {
        let at = self.noted.binary_search_by(|noted| noted.id.cmp(&id)).ok()?;
        self.noted.get(at)
    }

    /// Returns the changes, newest first.
    pub(crate) fn newest_first(&self) -> impl Iterator<Item = &Noted> {
        self.noted.iter().rev()
    }

    /// Returns the number of recorded changes after one and up to another: a push contains the changes since
    /// the previous push.
    pub(crate) fn count_between(&self, after: ChangeId, until: ChangeId) -> usize {
        let first = self.noted.partition_point(|noted| noted.id <= after);
        let end = self.noted.partition_point(|noted| noted.id <= until);
        end.saturating_sub(first)
    }
}

/// Maximum changes kept: ten seconds of a burst, a day of an ordinary mesh.
const NOTED_MAX: usize = 2048;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_oldest_changes_are_forgotten_and_the_others_found() {
        let mut journal = Journal::default();
        let start = Instant::now();
        let workload: WorkloadName = "shop/cart-1".parse().unwrap();
        for id in 0..NOTED_MAX as u64 + 10 {
            // Numbers have gaps: responses to subscriptions use some.
            let seen = start + Duration::from_millis(id);
            let cause = Cause::Listens(workload.clone());
            journal.record_change(Noted { id: ChangeId(3 * id), cause, noticed: start, seen });
        }
        assert_eq!(journal.find(ChangeId(27)), None, "forgotten");
        assert_eq!(journal.find(ChangeId(31)), None, "never was");
        let found = journal.find(ChangeId(30)).unwrap();
        let key = || ObjectKey::MeshConfig;
        for (cause, text) in [
            (Cause::Object(key(), Edit::Removed), "MeshConfig was removed"),
            (Cause::Object(key(), Edit::Written), "MeshConfig is new or changed"),
            (
                Cause::Objects(2, key(), Edit::Removed),
                "MeshConfig was removed, and 1 other object with it",
            ),
        ] {
            assert_eq!(cause.to_string(), text);
        }
        assert_eq!(found.cause.to_string(), "the sidecar of shop/cart-1 reported its listeners");
        assert_eq!(journal.newest_first().count(), NOTED_MAX);
        assert_eq!(journal.count_between(ChangeId(30), ChangeId(60)), 10);
    }
}
