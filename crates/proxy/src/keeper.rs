//! Keeps the last good world on disk, beside the thread that applies worlds: the newest, not each.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use leno_discovery::Update;
use tokio::sync::Notify;

use crate::state::StateDir;

/// Keeps the last good world on disk.
#[derive(Default)]
pub(crate) struct Keeper {
    /// What is to be written; one that was never written is no loss when a newer one came.
    latest: RefCell<Option<Update>>,
    /// The world that is on disk, for the case that its file is removed.
    stored: RefCell<Option<Update>>,
    told: Notify,
    ending: Cell<bool>,
    ended: Notify,
}

impl Keeper {
    /// Has a world written soon.
    pub(crate) fn keep(&self, update: Update) {
        self.latest.replace(Some(update));
        self.told.notify_one();
    }

    /// Takes note of a world that was read from disk.
    pub(crate) fn note_stored(&self, update: Update) {
        self.stored.replace(Some(update));
    }

    /// Lets [`Self::run`] write what is left, and return.
    pub(crate) fn end(&self) {
        self.ending.set(true);
        self.told.notify_one();
        self.ended.notify_one();
    }

    /// Writes worlds, the first at once and then at most one every `PAUSE`, until it is ended. What the disk did not
    /// take is written again every `AGAIN`, as are files that were removed. `note` runs after each attempt, with the problem if there is one.
    pub(crate) async fn run(&self, state: StateDir, note: impl Fn(Option<String>)) {
        loop {
            note(state.problem());
            let Some(update) = self.latest.take() else {
                if self.ending.get() {
                    return;
                }
                let fails = state.problem().is_some();
                tokio::select! {
                    () = self.told.notified() => {}
                    () = state.failed(), if !fails => {}
                    () = tokio::time::sleep(AGAIN) => self.tend(&state, fails).await,
                }
                continue;
            };
            self.stored.replace(Some(update.clone()));
            let state = state.clone();
            let written = tokio::task::spawn_blocking(move || {
                state.keep_world(&update.to_bytes());
            });
            if written.await.is_err() {
                tracing::error!("writing the world to disk panicked");
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

impl Keeper {
    /// Writes files that the disk did not take, and files that were removed.
    async fn tend(&self, state: &StateDir, fails: bool) {
        let stored = self.stored.borrow().clone();
        let is_damaged = state.is_damaged(stored.is_some());
        if !fails && !is_damaged {
            return;
        }
        let state = state.clone();
        let written = tokio::task::spawn_blocking(move || {
            if is_damaged {
                state.restore(stored.map(|update| update.to_bytes()).as_deref());
            }
            state.write_again();
        });
        if written.await.is_err() {
            tracing::error!("writing the state again panicked");
        }
    }
}

/// The pause before a disk that is full, or read-only, is tried again, and between two looks for removed files.
const AGAIN: Duration = Duration::from_secs(5);
/// Between two writes: each costs a flush of the disk, which on small machines is a flash card.
const PAUSE: Duration = Duration::from_millis(500);
