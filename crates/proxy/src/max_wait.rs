//! Timeouts that create no timer for futures that are ready at once, and the idle timeout of byte streams.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::timeout;

/// Polls `poll` for at most `max_wait`. Returns `None` if it is still pending then.
pub(crate) async fn poll_within<T>(
    max_wait: Duration,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Option<T> {
    match poll_fn(|cx| Poll::Ready(poll(cx))).await {
        Poll::Ready(output) => Some(output),
        // Boxed: an inline timer would enlarge every future that may have to wait.
        Poll::Pending => Box::pin(timeout(max_wait, poll_fn(poll))).await.ok(),
    }
}

/// Awaits `future` for at most `max_wait`. Returns `None` if it is still pending then.
pub(crate) async fn wait_within<F: Future>(max_wait: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_within(max_wait, |cx| future.as_mut().poll(cx)).await
}

/// Resolves when neither byte counter has changed for `idle_timeout`. The counters are sampled once per `idle_timeout`,
/// so the future may resolve up to `idle_timeout` late.
pub(crate) async fn wait_for_silence(
    idle_timeout: Duration,
    sent_bytes: &Cell<u64>,
    received_bytes: &Cell<u64>,
) {
    let mut previous_counts = None;
    loop {
        let current_counts = Some((sent_bytes.get(), received_bytes.get()));
        if std::mem::replace(&mut previous_counts, current_counts) == current_counts {
            return;
        }
        tokio::time::sleep(idle_timeout).await;
    }
}
