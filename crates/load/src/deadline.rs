//! Keeps the deadline of a request. Consecutive requests share one timer of the runtime, so that a request costs no
//! timer update.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};

/// A deadline that moves with every request. The runtime's timer is reset only when it fires: once per elapsed
/// timeout instead of once per request.
#[derive(Debug)]
pub(crate) struct Deadline {
    deadline_at: Instant,
    timer: Pin<Box<Sleep>>,
}

impl Deadline {
    pub(crate) fn new(deadline_at: Instant) -> Self {
        Self { deadline_at, timer: Box::pin(sleep_until(deadline_at)) }
    }

    /// Moves the deadline to a later time.
    pub(crate) fn postpone(&mut self, deadline_at: Instant) {
        debug_assert!(deadline_at >= self.deadline_at, "a deadline moves only to a later time");
        self.deadline_at = deadline_at;
    }

    /// Returns ready once the deadline has passed.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.timer.as_mut().poll(context).is_ready() {
            if self.deadline_at <= self.timer.deadline() {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(self.deadline_at);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_deadline_passes_at_the_time_it_was_last_moved_to() {
        let second = Duration::from_secs(1);
        let start = Instant::now();
        let mut deadline = Deadline::new(start + second);
        for moves in 2..=5 {
            deadline.postpone(start + second * moves);
        }
        poll_fn(|context| deadline.poll(context)).await;
        assert_eq!(Instant::now(), start + second * 5);
        deadline.postpone(start + second * 6);
        poll_fn(|context| deadline.poll(context)).await;
        assert_eq!(Instant::now(), start + second * 6);
    }
}
