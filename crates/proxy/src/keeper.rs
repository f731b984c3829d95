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

    /// Lets [`Self::run`] write what is left, and return.
    pub(crate) fn end(&self) {
        self.ending.set(true);
        self.told.notify_one();
        self.ended.notify_one();
    }

    /// Writes worlds, the first at once and then at most one every `PAUSE`, until it is ended.
    pub(crate) async fn run(&self, state: StateDir) {
        loop {
            let Some(update) = self.latest.take() else {
                if self.ending.get() {
                    return;
                }
                self.told.notified().await;
                continue;
            };
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

/// Between two writes: each costs a flush of the disk, which on small machines is a flash card.
const PAUSE: Duration = Duration::from_millis(500);
