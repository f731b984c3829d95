//! Buffers bodies while they are forwarded, so that they can be sent again: in a retry, in a mirrored copy,
//! or in a hedged attempt.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use super::body::{BodyPiece, BodySource};
use super::message::ReadError;

/// The buffered pieces of a body, shared with the code that sends it again.
#[derive(Default)]
pub(crate) struct ReplayBuffer {
    pieces: RefCell<Vec<BodyPiece>>,
    /// True if buffering has stopped, so that the body cannot be sent again: it is too large, or needs no other
    /// attempt.
    is_lost: Cell<bool>,
    /// True if the end of the body was reached.
    is_whole: Cell<bool>,
    /// True if the body is buffered until the end of the request, even if it is not sent again.
    is_retained: Cell<bool>,
    /// The index of the next piece to send.
    next_index: Cell<usize>,
}

impl ReplayBuffer {
    /// True if the body cannot be sent again from its first byte.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.get()
    }

    /// Buffers the body to the end of the request, for mirrored copies.
    pub(crate) fn retain_to_end(&self) {
        self.is_retained.set(true);
    }

    /// Stops buffering, because the request will not be sent again. Buffered pieces that are not sent yet
    /// remain until they are sent.
    pub(crate) fn release(&self) {
        if self.is_retained.get() {
            return;
        }
        self.is_lost.set(true);
        self.drop_sent_pieces();
    }

    fn is_at_end(&self) -> bool {
        self.next_index.get() == self.pieces.borrow().len()
    }

    /// Drops the pieces that were sent, if buffering has stopped.
    fn drop_sent_pieces(&self) {
        if self.is_lost.get() && self.is_at_end() {
            self.pieces.take();
            self.next_index.set(0);
        }
    }

    /// Waits for the complete body, and returns its pieces; `None` if the body is too large to buffer. No waker
    /// is registered: the caller must run in the task that reads the body, which is polled when more of it
    /// arrives.
    pub(crate) async fn wait_for_body(&self) -> Option<Vec<BodyPiece>> {
        poll_fn(|_| match (self.is_lost.get(), self.whole_body()) {
            (true, _) => Poll::Ready(None),
            (false, Some(pieces)) => Poll::Ready(Some(pieces)),
            (false, None) => Poll::Pending,
        })
        .await
    }

    /// Returns all pieces, if they are the complete body.
    pub(crate) fn whole_body(&self) -> Option<Vec<BodyPiece>> {
        (self.is_whole.get() && !self.is_lost.get()).then(|| self.pieces.borrow().clone())
    }
}

/// A source with its first pieces buffered, up to [`MAX_BUFFERED_BYTES`].
pub(crate) struct ReplaySource<'a> {
    source: BodySource<'a>,
    buffer: Rc<ReplayBuffer>,
    /// The number of bytes read from the source while it was buffered.
    byte_count: usize,
}

impl<'a> ReplaySource<'a> {
    /// Buffers the pieces of a source in `buffer`.
    pub(crate) fn new(source: BodySource<'a>, buffer: Rc<ReplayBuffer>) -> Self {
        #[cfg(test)]
        BUFFERS.with_borrow_mut(|buffers| buffers.push(Rc::downgrade(&buffer)));
        Self { source, buffer, byte_count: 0 }
    }

    /// Starts again at the first byte; permitted only if the body is not lost.
    pub(crate) fn rewind(&mut self) {
        debug_assert!(!self.buffer.is_lost(), "a request with lost bytes cannot be replayed");
        self.buffer.next_index.set(0);
    }

    /// Skips the buffered pieces, which have been sent by another attempt.
    pub(crate) fn skip_buffered(&mut self) {
        self.buffer.next_index.set(self.buffer.pieces.borrow().len());
    }

    /// Returns all pieces, if they are the complete body.
    pub(crate) fn whole_body(&self) -> Option<Vec<BodyPiece>> {
        self.buffer.whole_body()
    }

    /// True if the whole body has been taken.
    pub(crate) fn is_complete(&self) -> bool {
        self.buffer.is_at_end() && self.source.is_complete()
    }

    /// True if no piece follows those already taken, and the body is not truncated.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.buffer.is_at_end() && self.source.is_exhausted()
    }

    /// Returns the next piece: a buffered one, or the next of the source, which is then buffered.
    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<BodyPiece>, ReadError>> {
        let index = self.buffer.next_index.get();
        let buffered_piece = self.buffer.pieces.borrow().get(index).cloned();
        if let Some(piece) = buffered_piece {
            self.buffer.next_index.set(index + 1);
            self.buffer.drop_sent_pieces();
            return Poll::Ready(Ok(Some(piece)));
        }
        let next_piece = ready!(self.source.poll_next(cx))?;
        if let Some(piece) = next_piece.as_ref().filter(|_| !self.buffer.is_lost()) {
            let mut pieces = self.buffer.pieces.borrow_mut();
            let (BodyPiece::Data(bytes) | BodyPiece::Trailers(bytes)) = piece;
            self.byte_count = self.byte_count.saturating_add(bytes.len());
            if self.byte_count > MAX_BUFFERED_BYTES || pieces.len() == MAX_BUFFERED_PIECES {
                // All buffered pieces have been taken: they were kept only to be sent again.
                self.buffer.is_lost.set(true);
                *pieces = Vec::new();
                self.buffer.next_index.set(0);
            } else {
                pieces.push(piece.clone());
                self.buffer.next_index.set(pieces.len());
            }
        }
        self.buffer.is_whole.set(self.source.is_exhausted());
        Poll::Ready(Ok(next_piece))
    }
}

#[cfg(test)]
thread_local! {
    static BUFFERS: RefCell<Vec<std::rc::Weak<ReplayBuffer>>> = const { RefCell::new(Vec::new()) };
}

/// Returns the number of buffered pieces of all requests of this thread.
#[cfg(test)]
pub(crate) fn buffered_piece_count() -> usize {
    let piece_count = |buffer: &std::rc::Weak<ReplayBuffer>| {
        buffer.upgrade().map(|buffer| buffer.pieces.borrow().len())
    };
    BUFFERS.with_borrow(|buffers| buffers.iter().filter_map(piece_count).sum())
}

/// The maximum size of a body that is buffered for another attempt.
const MAX_BUFFERED_BYTES: usize = 64 * 1024;
/// The maximum number of buffered pieces of a body: each piece keeps its read buffer alive.
const MAX_BUFFERED_PIECES: usize = 64;
