//! Snapshot store: writes the latest applied snapshot to disk, without blocking the thread that applies
//! snapshots.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use leno_discovery::ConfigUpdate;
use tokio::sync::Notify;

use crate::state::StateDir;

/// Writes the latest applied snapshot to disk.
#[derive(Default)]
pub(crate) struct SnapshotStore {
    /// The snapshot to write next. One that a newer snapshot replaces before it is written is not needed.
    latest: RefCell<Option<ConfigUpdate>>,
    /// The snapshot on disk, in case its file is removed.
    stored: RefCell<Option<ConfigUpdate>>,
    reported: Notify,
    ending: Cell<bool>,
    ended: Notify,
}

impl SnapshotStore {
    /// Queues a snapshot to be written.
    pub(crate) fn queue_snapshot(&self, update: ConfigUpdate) {
        self.latest.replace(Some(update));
        self.reported.notify_one();
    }

    /// Records a snapshot that was read from disk.
    pub(crate) fn note_stored(&self, update: ConfigUpdate) {
        self.stored.replace(Some(update));
    }

    /// Ends [`Self::run`] after it has written the last snapshot.
    pub(crate) fn finish(&self) {
        self.ending.set(true);
        self.reported.notify_one();
        self.ended.notify_one();
    }

    /// Writes snapshots, the first at once and then at most one per `PAUSE`, until [`Self::finish`]. Failed writes
    /// and removed files are retried every `AGAIN`. `note` runs after each attempt, with the problem if there
    /// is one.
    pub(crate) async fn run(&self, state: StateDir, note: impl Fn(Option<String>)) {
        loop {
            note(state.write_problem());
            let Some(update) = self.latest.take() else {
                if self.ending.get() {
                    return;
                }
                let fails = state.write_problem().is_some();
                tokio::select! {
                    () = self.reported.notified() => {}
                    () = state.wait_for_failure(), if !fails => {}
                    () = tokio::time::sleep(AGAIN) => self.rewrite_missing(&state, fails).await,
                }
                continue;
            };
            self.stored.replace(Some(update.clone()));
            let state = state.clone();
            let written = tokio::task::spawn_blocking(move || {
                state.store_config(&update.to_bytes());
            });
            if written.await.is_err() {
                tracing::error!("writing the configuration to disk panicked");
            }
            if !self.ending.get() {
                tokio::select! {
                    () = tokio::time::sleep(PAUSE) => {}
                    () = self.ended.notified() => {}
                }
            }
        }
    }
}

impl SnapshotStore {
    /// Writes files that could not be written before, and files that were removed.
    async fn rewrite_missing(&self, state: &StateDir, fails: bool) {
        let stored = self.stored.borrow().clone();
        let is_damaged = state.is_damaged(stored.is_some());
        if !fails && !is_damaged {
            return;
        }
        let state = state.clone();
        let written = tokio::task::spawn_blocking(move || {
            if is_damaged {
                state.restore_files(stored.map(|update| update.to_bytes()).as_deref());
            }
            state.write_again();
        });
        if written.await.is_err() {
            tracing::error!("restoring the state directory panicked");
        }
    }
}

/// The pause before a full or read-only disk is retried, and between two checks for removed files.
const AGAIN: Duration = Duration::from_secs(5);
/// The pause between two writes: each flushes the disk, which on small machines is a flash card.
const PAUSE: Duration = Duration::from_millis(500);
