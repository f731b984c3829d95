//! Storage of the latest applied snapshot in the state directory, for the next start of the proxy. Another
//! thread writes it, so that the control thread does not wait for the disk.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use leno_discovery::ConfigUpdate;
use tokio::sync::Notify;

use crate::state::StateDir;

/// The latest applied snapshot, and its state on disk.
#[derive(Default)]
pub(crate) struct SnapshotStore {
    /// The snapshot to write next. A newer one replaces it if it is not written yet.
    latest: RefCell<Option<ConfigUpdate>>,
    /// The snapshot written last, to write it again if its file is removed.
    stored: RefCell<Option<ConfigUpdate>>,
    /// Notified when a snapshot is queued, or when the store ends.
    has_work: Notify,
    /// True once the proxy ends.
    is_ending: Cell<bool>,
    /// Notified when the store ends, to shorten the pause after a write.
    ending: Notify,
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
        self.ending.notify_one();
    }

    /// Writes snapshots, the first at once and then at most one per `MIN_WRITE_INTERVAL`, until
    /// [`Self::finish`]. Failed writes and removed files are retried every `RETRY_INTERVAL`. `report_attempt`
    /// runs after each attempt, with the problem if there is one.
    pub(crate) async fn run(&self, state: StateDir, report_attempt: impl Fn(Option<String>)) {
        loop {
            report_attempt(state.last_write_error());
            let Some(next_snapshot) = self.latest.take() else {
                if self.is_ending.get() {
                    return;
                }
                let has_failed = state.last_write_error().is_some();
                tokio::select! {
                    () = self.has_work.notified() => {}
                    () = state.wait_for_failure(), if !has_failed => {}
                    () = tokio::time::sleep(RETRY_INTERVAL) => {
                        self.rewrite_missing(&state, has_failed).await;
                    }
                }
                continue;
            };
            self.stored.replace(Some(next_snapshot.clone()));
            let state = state.clone();
            let write_task = tokio::task::spawn_blocking(move || {
                state.store_config(&next_snapshot.to_bytes());
            });
            if write_task.await.is_err() {
                tracing::error!("writing the configuration to disk panicked");
            }
            if !self.is_ending.get() {
                tokio::select! {
                    () = tokio::time::sleep(MIN_WRITE_INTERVAL) => {}
                    () = self.ending.notified() => {}
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
