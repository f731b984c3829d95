//! Buffering of bodies while they are forwarded, so that they can be sent again.

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
    is_lost: Cell<bool>,
    is_whole: Cell<bool>,
    /// The body is buffered until the end of the request, whether or not it is sent again.
    is_needed: Cell<bool>,
    /// The index of the next piece to send.
    next: Cell<usize>,
}

impl ReplayBuffer {
    /// True if a part of the body is no longer available.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.get()
    }

    /// Buffers the body to the end of the request, for mirrored copies.
    pub(crate) fn keep_to_end(&self) {
        self.is_needed.set(true);
    }

    /// Stops buffering, as the request will not be sent again. Pieces that are still to be sent remain until
    /// then.
    pub(crate) fn release(&self) {
        if self.is_needed.get() {
            return;
        }
        self.is_lost.set(true);
        self.drop_sent();
    }

    fn is_at_end(&self) -> bool {
        self.next.get() == self.pieces.borrow().len()
    }

    fn drop_sent(&self) {
        if self.is_lost.get() && self.is_at_end() {
            self.pieces.take();
            self.next.set(0);
        }
    }

    /// Waits for the complete body; `None` if it cannot be buffered. The caller runs in the task that reads the
    /// body, and is polled whenever more of it arrives.
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

/// A source with its first pieces buffered, up to [`KEPT_BYTES_MAX`].
pub(crate) struct ReplaySource<'a> {
    source: BodySource<'a>,
    hold: Rc<ReplayBuffer>,
    bytes: usize,
}

impl<'a> ReplaySource<'a> {
    /// Buffers the pieces of a source in `hold`.
    pub(crate) fn new(source: BodySource<'a>, hold: Rc<ReplayBuffer>) -> Self {
        #[cfg(test)]
        HOLDS.with_borrow_mut(|holds| holds.push(Rc::downgrade(&hold)));
        Self { source, hold, bytes: 0 }
    }

    /// Starts again at the first byte; permitted only while no part is lost.
    pub(crate) fn restart(&mut self) {
        debug_assert!(!self.hold.is_lost(), "a request with lost bytes cannot be replayed");
        self.hold.next.set(0);
    }

    /// Skips the buffered pieces, which have been sent by another attempt.
    pub(crate) fn skip_buffered(&mut self) {
        self.hold.next.set(self.hold.pieces.borrow().len());
    }

    /// Returns all pieces, if they are the complete body.
    pub(crate) fn whole_body(&self) -> Option<Vec<BodyPiece>> {
        self.hold.whole_body()
    }

    /// True if the whole body has been taken.
    pub(crate) fn is_complete(&self) -> bool {
        self.hold.is_at_end() && self.source.is_complete()
    }

    /// True if no piece follows those taken, and none is missing.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.hold.is_at_end() && self.source.is_exhausted()
    }

    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<BodyPiece>, ReadError>> {
        let next = self.hold.next.get();
        let kept = self.hold.pieces.borrow().get(next).cloned();
        if let Some(piece) = kept {
            self.hold.next.set(next + 1);
            self.hold.drop_sent();
            return Poll::Ready(Ok(Some(piece)));
        }
        let next = ready!(self.source.poll_next(cx))?;
        if let Some(piece) = next.as_ref().filter(|_| !self.hold.is_lost()) {
            let mut pieces = self.hold.pieces.borrow_mut();
            let (BodyPiece::Data(bytes) | BodyPiece::Trailers(bytes)) = piece;
            self.bytes = self.bytes.saturating_add(bytes.len());
            if self.bytes > KEPT_BYTES_MAX || pieces.len() == KEPT_PIECES_MAX {
                self.hold.is_lost.set(true);
                *pieces = Vec::new();
                self.hold.next.set(0);
            } else {
                pieces.push(piece.clone());
                self.hold.next.set(pieces.len());
            }
        }
        self.hold.is_whole.set(self.source.is_exhausted());
        Poll::Ready(Ok(next))
    }
}

#[cfg(test)]
thread_local! {
    static HOLDS: RefCell<Vec<std::rc::Weak<ReplayBuffer>>> = const { RefCell::new(Vec::new()) };
}

/// Returns the number of buffered pieces of all requests of this thread.
#[cfg(test)]
pub(crate) fn pieces_kept() -> usize {
    let pieces =
        |hold: &std::rc::Weak<ReplayBuffer>| hold.upgrade().map(|it| it.pieces.borrow().len());
    HOLDS.with_borrow(|holds| holds.iter().filter_map(pieces).sum())
}

/// The maximum size of a body that is buffered for another attempt.
const KEPT_BYTES_MAX: usize = 64 * 1024;
/// The maximum number of its pieces: each keeps its read buffer alive.
const KEPT_PIECES_MAX: usize = 64;
