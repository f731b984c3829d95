//! Limits the share of the state task's time that one listener may use, regardless of the number of its clients.
//!
//! A listener sends its queries to the state task one at a time, in order of arrival. After each query it pauses, in
//! proportion to the query's duration. A connection has one query at a time, so that clients take turns.

use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep_until};

/// The share of the state task's time for one listener.
#[derive(Debug)]
pub(crate) struct QueryShare {
    /// The time at which the next query may be sent.
    free_at: Mutex<Instant>,
    /// The pause after a query, in multiples of its duration.
    pause_factor: u32,
}

impl QueryShare {
    /// Creates a share with a pause of `pause_factor` times a query's duration: with 1 the listener uses at
    /// most half of the time, with 4 a fifth.
    pub(crate) fn new(pause_factor: u32) -> Self {
        Self { free_at: Mutex::new(Instant::now()), pause_factor }
    }

    /// Waits until the listener may send its next query. The turn ends when the result is dropped.
    pub(crate) async fn acquire_turn(&self) -> ShareTurn<'_> {
        let free_at = self.free_at.lock().await;
        sleep_until(*free_at).await;
        ShareTurn { free_at, started_at: Instant::now(), pause_factor: self.pause_factor }
    }
}

/// The turn of one query, from its start until its response.
#[derive(Debug)]
pub(crate) struct ShareTurn<'a> {
    /// Held for the whole turn, so that other queries wait.
    free_at: MutexGuard<'a, Instant>,
    started_at: Instant,
    pause_factor: u32,
}

impl Drop for ShareTurn<'_> {
    /// Schedules the next query, even if the client disconnected early. An idle listener may send a burst.
    fn drop(&mut self) {
        let now = Instant::now();
        let query_time = now.duration_since(self.started_at);
        let earliest_start = self.started_at.checked_sub(MAX_BURST_TIME).unwrap_or(self.started_at);
        let next_free_at =
            (*self.free_at).max(earliest_start) + query_time * (self.pause_factor + 1);
        *self.free_at = next_free_at.min(now + MAX_PAUSE);
    }
}

/// The time that an idle listener accumulates for a burst. A browser that opens the page sends several queries at once.
const MAX_BURST_TIME: Duration = Duration::from_secs(1);
/// The maximum pause. Without it, a state task that is slow for another reason would delay clients even longer.
const MAX_PAUSE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::task::JoinSet;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn clients_take_turns_and_use_a_limited_share_of_the_time_of_the_state_task() {
        const WORK: Duration = Duration::from_millis(10);
        let share = Arc::new(QueryShare::new(4));
        let started_at = Instant::now();
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
        let waited = started_at.elapsed();
        drop(turn);
        assert!(waited <= 15 * 5 * WORK + WORK, "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_query_counts_as_well() {
        let share = QueryShare::new(4);
        let turn = share.acquire_turn().await;
        sleep(Duration::from_millis(100)).await;
        drop(turn);
        let started_at = Instant::now();
        drop(share.acquire_turn().await);
        assert_eq!(started_at.elapsed(), Duration::from_millis(400));
    }
}
