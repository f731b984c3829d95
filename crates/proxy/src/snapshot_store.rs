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
    /// Notified when a snapshot is queued, or when the store ends.
    has_work: Notify,
    is_ending: Cell<bool>,
    /// Notified when the store ends, to shorten the pause after a write.
    finished: Notify,
}

impl SnapshotStore {
    /// Queues a snapshot to be written.
    pub(crate) fn queue_snapshot(&self, update: ConfigUpdate) {
        self.latest.replace(Some(update));
        self.has_work.notify_one();
    }

    /// Records a snapshot that was read from disk.
    pub(crate) fn set_stored(&self, update: ConfigUpdate) {
        self.stored.replace(Some(update));
    }

    /// Ends [`Self::run`] after it has written the last snapshot.
    pub(crate) fn finish(&self) {
        self.is_ending.set(true);
        self.has_work.notify_one();
        self.finished.notify_one();
    }

    /// Writes snapshots, the first at once and then at most one per `MIN_WRITE_INTERVAL`, until
    /// [`Self::finish`]. Failed writes and removed files are retried every `RETRY_INTERVAL`. `report_attempt`
    /// runs after each attempt, with the problem if there is one.
    pub(crate) async fn run(&self, state: StateDir, report_attempt: impl Fn(Option<String>)) {
        loop {
            report_attempt(state.write_problem());
            let Some(update) = self.latest.take() else {
                if self.is_ending.get() {
                    return;
                }
                let has_failed = state.write_problem().is_some();
                tokio::select! {
                    () = self.has_work.notified() => {}
                    () = state.wait_for_failure(), if !has_failed => {}
                    () = tokio::time::sleep(RETRY_INTERVAL) => {
                        self.rewrite_missing(&state, has_failed).await;
                    }
                }
                continue;
            };
            self.stored.replace(Some(update.clone()));
            let state = state.clone();
            let write = tokio::task::spawn_blocking(move || {
                state.store_config(&update.to_bytes());
            });
            if write.await.is_err() {
                tracing::error!("writing the configuration to disk panicked");
            }
            if !self.is_ending.get() {
                tokio::select! {
                    () = tokio::time::sleep(MIN_WRITE_INTERVAL) => {}
                    () = self.finished.notified() => {}
                }
            }
        }
    }
}

impl SnapshotStore {
    /// Writes files that could not be written before, and files that were removed.
    async fn rewrite_missing(&self, state: &StateDir, has_failed: bool) {
        let stored = self.stored.borrow().clone();
        let is_damaged = state.is_damaged(stored.is_some());
        if !has_failed && !is_damaged {
            return;
        }
        let state = state.clone();
        let written = tokio::task::spawn_blocking(move || {
            if is_damaged {
                state.restore_files(stored.map(|update| update.to_bytes()).as_deref());
            }
            state.retry_writes();
        });
        if written.await.is_err() {
            tracing::error!("restoring the state directory panicked");
        }
    }
}

/// The interval of retries on a full or read-only disk, and of checks for removed files.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// The pause between two writes: each flushes the disk, which on small machines is a flash card.
const MIN_WRITE_INTERVAL: Duration = Duration::from_millis(500);
