//! The end of a client's direction, which its streams outlive: requests that are whole get their answers (RFC 9112 §9.6).

use std::cell::{Cell, RefCell};
use std::io;
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;

use crate::io::Io;

/// The streams of one connection, and the end of its client's direction. To the codec this end breaks all streams, so it
/// is held back until they are over and their output is written.
#[derive(Default)]
pub(super) struct HalfClose {
    streams: Cell<usize>,
    has_ended: Cell<bool>,
    /// Wakes the streams when the client's direction ends: a request that is not whole then never will be.
    ended: Notify,
    /// The last read found no stream, and the codec has had time to hand over those that it keeps.
    is_quiet: Cell<bool>,
    /// The last write waits for the client.
    is_blocked: Cell<bool>,
    connection: RefCell<Option<Waker>>,
}

impl HalfClose {
    pub(super) fn streams(&self) -> usize {
        self.streams.get()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.get()
    }

    /// Wakes its task once, when the client's direction ends; never resolves.
    pub(super) async fn wake(&self) -> std::convert::Infallible {
        self.ended.notified().await;
        std::future::pending().await
    }

    pub(super) fn open(&self) {
        self.is_quiet.set(false);
        self.streams.set(self.streams.get() + 1);
    }

    pub(super) fn close(&self) {
        self.streams.set(self.streams.get() - 1);
        if self.has_ended.get()
            && let Some(connection) = self.connection.take()
        {
            connection.wake();
        }
    }

    /// Resolves when the codec may learn of the end.
    pub(super) fn poll_end(&self, io: &Io, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.has_ended.replace(true) {
            self.ended.notify_waiters();
        }
        if self.streams.get() == 0 && !self.is_blocked.get() {
            if self.is_quiet.replace(true) {
                return Poll::Ready(Ok(()));
            }
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        *self.connection.borrow_mut() = Some(cx.waker().clone());
        io.poll_gone_after_end(cx).map(|()| Err(io::ErrorKind::ConnectionReset.into()))
    }

    pub(super) fn note_write(&self, is_blocked: bool, cx: &Context<'_>) {
        if self.is_blocked.replace(is_blocked) && !is_blocked && self.has_ended.get() {
            cx.waker().wake_by_ref();
        }
    }
}
