//! Timeouts. Futures that are ready at once cost no timer.

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
        Poll::Ready(resolved) => Some(resolved),
        // Boxed: an inline timer would enlarge every future that may have to wait.
        Poll::Pending => Box::pin(timeout(limit, poll_fn(poll))).await.ok(),
    }
}

/// Awaits `future` for at most `limit`; returns `None` after the limit.
pub(crate) async fn finished_within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_within(limit, |cx| future.as_mut().poll(cx)).await
}

/// Resolves after an idle time of `max_wait` in both directions, at the latest after almost twice that.
pub(crate) async fn wait_for_silence(max_wait: Duration, forth: &Cell<u64>, back: &Cell<u64>) {
    let mut before = None;
    loop {
        let now = Some((forth.get(), back.get()));
        if std::mem::replace(&mut before, now) == now {
            return;
        }
        tokio::time::sleep(max_wait).await;
    }
}
