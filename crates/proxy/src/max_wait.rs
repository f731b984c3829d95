//! Timeouts that create no timer for futures that are ready at once.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::timeout;

/// Polls `poll` for at most `limit`; returns `None` after the limit.
pub(crate) async fn poll_within<T>(
    limit: Duration,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Option<T> {
    match poll_fn(|cx| Poll::Ready(poll(cx))).await {
        Poll::Ready(output) => Some(output),
        // Boxed: an inline timer would enlarge every future that may have to wait.
        Poll::Pending => Box::pin(timeout(limit, poll_fn(poll))).await.ok(),
    }
}

/// Awaits `future` for at most `limit`; returns `None` after the limit.
pub(crate) async fn wait_within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_within(limit, |cx| future.as_mut().poll(cx)).await
}

/// Resolves when neither byte counter has changed for `max_wait`. It samples the counters once per `max_wait`,
/// so it may resolve up to `max_wait` late.
pub(crate) async fn wait_for_silence(max_wait: Duration, sent: &Cell<u64>, received: &Cell<u64>) {
    let mut previous = None;
    loop {
        let current = Some((sent.get(), received.get()));
        if std::mem::replace(&mut previous, current) == current {
            return;
        }
        tokio::time::sleep(max_wait).await;
    }
}
