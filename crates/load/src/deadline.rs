//! A request timeout without cost unless a timer fires.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};

/// A deadline that moves with every request. The runtime's timer is reset only when it fires: once per elapsed
/// timeout instead of once per request.
#[derive(Debug)]
pub(crate) struct Deadline {
    at: Instant,
    timer: Pin<Box<Sleep>>,
}

impl Deadline {
    pub(crate) fn new(at: Instant) -> Self {
        Self { at, timer: Box::pin(sleep_until(at)) }
    }

    /// Moves the deadline; only ever later.
    pub(crate) fn set(&mut self, at: Instant) {
        debug_assert!(at >= self.at, "a deadline moves only to a later time");
        self.at = at;
    }

    /// Returns ready once the deadline has passed.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.timer.as_mut().poll(context).is_ready() {
            if self.at <= self.timer.deadline() {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(self.at);
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
            deadline.set(start + second * moves);
        }
        poll_fn(|context| deadline.poll(context)).await;
        assert_eq!(Instant::now(), start + second * 5);
        deadline.set(start + second * 6);
        poll_fn(|context| deadline.poll(context)).await;
        assert_eq!(Instant::now(), start + second * 6);
    }
}
