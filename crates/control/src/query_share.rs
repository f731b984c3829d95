//! The share of the mesh owner's time that one listener may use, regardless of the number of its clients.
//!
//! The owner receives one query at a time, in order of arrival, followed by a pause in proportion to its
//! duration. A connection has one query at a time, so that clients take turns.

use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep_until};

/// The share of one listener.
#[derive(Debug)]
pub(crate) struct QueryShare {
    next: Mutex<Instant>,
    pause: u32,
}

impl QueryShare {
    /// Creates a share with a pause of so many times a query's duration: with 1 the listener uses at most half
    /// of the time, with 4 a fifth.
    pub(crate) fn new(pause: u32) -> Self {
        Self { next: Mutex::new(Instant::now()), pause }
    }

    /// Waits for the turn to send one query. Dropping it ends the turn.
    pub(crate) async fn acquire_turn(&self) -> ShareTurn<'_> {
        let next = self.next.lock().await;
        sleep_until(*next).await;
        ShareTurn { next, began: Instant::now(), pause: self.pause }
    }
}

/// The time of one query and its response.
#[derive(Debug)]
pub(crate) struct ShareTurn<'a> {
    next: MutexGuard<'a, Instant>,
    began: Instant,
    pause: u32,
}

impl Drop for ShareTurn<'_> {
    /// A client that disconnects early pays as well. An idle listener accumulates a burst.
    fn drop(&mut self) {
        let now = Instant::now();
        let work = now.duration_since(self.began);
        let earliest = self.began.checked_sub(BURST).unwrap_or(self.began);
        let next = (*self.next).max(earliest) + work * (self.pause + 1);
        *self.next = next.min(now + PAUSE_MAX);
    }
}

/// The time that an idle listener accumulates: a browser that opens the page sends several queries at once.
const BURST: Duration = Duration::from_secs(1);
/// The longest pause: an owner that is slow for another reason must not delay clients.
const PAUSE_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::task::JoinSet;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn clients_take_turns_and_leave_the_owner_most_of_its_time() {
        const WORK: Duration = Duration::from_millis(10);
        let share = Arc::new(QueryShare::new(4));
        let began = Instant::now();
        let mut clients = JoinSet::new();
        // One client queries continuously on 15 connections, another one once.
        for _ in 0..15 {
            let share = Arc::clone(&share);
            clients.spawn(async move {
                loop {
                    let _turn = share.acquire_turn().await;
                    sleep(WORK).await;
                }
            });
        }
        sleep(Duration::from_millis(1)).await;
        let turn = share.acquire_turn().await;
        let waited = began.elapsed();
        drop(turn);
        assert!(waited <= 15 * 5 * WORK + WORK, "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_that_is_given_up_is_paid_for() {
        let share = QueryShare::new(4);
        let turn = share.acquire_turn().await;
        sleep(Duration::from_millis(100)).await;
        drop(turn);
        let began = Instant::now();
        drop(share.acquire_turn().await);
        assert_eq!(began.elapsed(), Duration::from_millis(400));
    }
}
