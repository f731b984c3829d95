//! Stores the latest applied snapshot in the state directory, for the next start of the proxy. Another thread writes
//! it, so that the control thread does not wait for the disk.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use leno_discovery::ConfigUpdate;
use tokio::sync::Notify;

use crate::state::StateDir;

/// The latest applied snapshot, and the snapshot on disk.
#[derive(Default)]
pub(crate) struct SnapshotStore {
    /// The snapshot to write next; a newer snapshot replaces it. `None` if no snapshot is pending.
    pending_snapshot: RefCell<Option<ConfigUpdate>>,
    /// The snapshot written last, to write it again if the file is removed.
    stored_snapshot: RefCell<Option<ConfigUpdate>>,
    /// Notified when a snapshot is queued, or when the store ends.
    work_notified: Notify,
    /// True once the proxy ends.
    is_ending: Cell<bool>,
    /// Notified when the store ends, to shorten the pause after a write.
    end_notified: Notify,
}

impl SnapshotStore {
    /// Queues a snapshot to be written.
    pub(crate) fn queue_snapshot(&self, update: ConfigUpdate) {
        self.pending_snapshot.replace(Some(update));
        self.work_notified.notify_one();
    }

    /// Sets the snapshot that was read from disk at the start.
    pub(crate) fn set_stored(&self, update: ConfigUpdate) {
        self.stored_snapshot.replace(Some(update));
    }

    /// Ends [`Self::run`] after it has written the last snapshot.
    pub(crate) fn finish(&self) {
        self.is_ending.set(true);
        self.work_notified.notify_one();
        self.end_notified.notify_one();
    }

    /// Writes snapshots, the first at once and then at most one per `MIN_WRITE_INTERVAL`, until
    /// [`Self::finish`]. Failed writes and removed files are retried every `RETRY_INTERVAL`. `report_attempt`
    /// is called after each attempt with the error of the last failed write; `None` if all files are written.
    pub(crate) async fn run(&self, state_dir: StateDir, report_attempt: impl Fn(Option<String>)) {
        loop {
            report_attempt(state_dir.last_write_error());
            let Some(snapshot) = self.pending_snapshot.take() else {
                if self.is_ending.get() {
                    return;
                }
                let has_failed = state_dir.last_write_error().is_some();
                tokio::select! {
                    () = self.work_notified.notified() => {}
                    () = state_dir.wait_for_write_failure(), if !has_failed => {}
                    () = tokio::time::sleep(RETRY_INTERVAL) => {
                        self.rewrite_missing(&state_dir, has_failed).await;
                    }
                }
                continue;
            };
            self.stored_snapshot.replace(Some(snapshot.clone()));
            let state_dir = state_dir.clone();
            let write_task = tokio::task::spawn_blocking(move || {
                state_dir.store_snapshot(&snapshot.to_bytes());
            });
            if write_task.await.is_err() {
                tracing::error!("writing the configuration to disk panicked");
            }
            if !self.is_ending.get() {
                tokio::select! {
                    () = tokio::time::sleep(MIN_WRITE_INTERVAL) => {}
                    () = self.end_notified.notified() => {}
                }
            }
        }
    }
}

impl SnapshotStore {
    /// Writes files that could not be written before, and files that were removed.
    async fn rewrite_missing(&self, state_dir: &StateDir, has_failed: bool) {
        let stored_snapshot = self.stored_snapshot.borrow().clone();
        let is_damaged = state_dir.is_damaged(stored_snapshot.is_some());
        if !has_failed && !is_damaged {
            return;
        }
        let state_dir = state_dir.clone();
        let write_task = tokio::task::spawn_blocking(move || {
            if is_damaged {
                state_dir.restore_files(stored_snapshot.map(|update| update.to_bytes()).as_deref());
            }
            state_dir.retry_writes();
        });
        if write_task.await.is_err() {
            tracing::error!("restoring the state directory panicked");
        }
    }
}

/// The interval of retries on a full or read-only disk, and of checks for removed files.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// The minimum pause between two writes: each write flushes the disk, which may be a flash card.
const MIN_WRITE_INTERVAL: Duration = Duration::from_millis(500);
