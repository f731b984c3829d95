//! Serves half-closed client connections: after a client has closed its sending direction, its complete
//! requests still get their responses (RFC 9112 §9.6).

use std::cell::{Cell, RefCell};
use std::io;
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;

use crate::io::Io;

/// The number of open streams of one connection, and the state of its client's sending direction. The codec
/// would fail all streams at the end of its input. So the end is withheld from the codec until all streams have
/// ended and their output is written.
#[derive(Default)]
pub(super) struct HalfClose {
    /// The number of open streams.
    open_streams: Cell<usize>,
    /// True if the client has closed its sending direction.
    has_ended: Cell<bool>,
    /// Notified when the client closes its sending direction: an incomplete request can no longer be completed.
    end_notify: Notify,
    /// True if the last read found no open stream, and the codec has had time to deliver queued streams.
    is_quiet: Cell<bool>,
    /// True if the last write was blocked by the client.
    is_blocked: Cell<bool>,
    /// The waker of the connection's reader.
    reader_waker: RefCell<Option<Waker>>,
}

impl HalfClose {
    /// Returns the number of open streams.
    pub(super) fn stream_count(&self) -> usize {
        self.open_streams.get()
    }

    /// True if the client has closed its sending direction.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.get()
    }

    /// Wakes the task of the caller once, when the client closes its sending direction; never resolves.
    pub(super) async fn wake_on_end(&self) -> std::convert::Infallible {
        self.end_notify.notified().await;
        std::future::pending().await
    }

    /// Records that a stream was opened.
    pub(super) fn stream_opened(&self) {
        self.is_quiet.set(false);
        self.open_streams.set(self.open_streams.get() + 1);
    }

    /// Records that a stream has ended. Wakes the connection's reader if the client has closed its sending
    /// direction.
    pub(super) fn stream_closed(&self) {
        self.open_streams.set(self.open_streams.get() - 1);
        if self.has_ended.get()
            && let Some(reader_waker) = self.reader_waker.take()
        {
            reader_waker.wake();
        }
    }

    /// Records the end of the client's sending direction, and resolves when it may be reported to the codec.
    pub(super) fn poll_end(&self, io: &Io, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.has_ended.replace(true) {
            self.end_notify.notify_waiters();
        }
        if self.open_streams.get() == 0 && !self.is_blocked.get() {
            if self.is_quiet.replace(true) {
                return Poll::Ready(Ok(()));
            }
            // Polled once more, after the codec has delivered the streams that it has already read.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        *self.reader_waker.borrow_mut() = Some(cx.waker().clone());
        io.poll_gone_after_end(cx).map(|()| Err(io::ErrorKind::ConnectionReset.into()))
    }

    /// Records if the last write was blocked. Wakes the reader when writes continue after the client has closed
    /// its sending direction.
    pub(super) fn record_write(&self, is_blocked: bool, cx: &Context<'_>) {
        if self.is_blocked.replace(is_blocked) && !is_blocked && self.has_ended.get() {
            cx.waker().wake_by_ref();
        }
    }
}
