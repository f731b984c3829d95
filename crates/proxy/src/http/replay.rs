//! A body that is kept while it passes, so that it can be sent once more.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use super::body::{Piece, Source};
use super::message::ReadError;

/// A source whose first pieces stay in our hands, up to [`KEPT_BYTES_MAX`].
pub(crate) struct Kept<'a> {
    source: Source<'a>,
    pieces: Vec<Piece>,
    /// Which of the pieces comes next.
    next: usize,
    bytes: usize,
    is_lost: Rc<Cell<bool>>,
}

impl<'a> Kept<'a> {
    /// Keeps what comes from a source. `is_lost` tells when that is no longer all of it.
    pub(crate) fn new(source: Source<'a>, is_lost: Rc<Cell<bool>>) -> Self {
        Self { source, pieces: Vec::new(), next: 0, bytes: 0, is_lost }
    }

    /// Begins anew with the first byte; only while nothing is lost.
    pub(crate) fn rewind(&mut self) {
        debug_assert!(!self.is_lost.get(), "what is lost cannot be sent again");
        self.next = 0;
    }

    /// All pieces, when they are all that there is.
    pub(crate) fn whole(&self) -> Option<&[Piece]> {
        (self.source.is_exhausted() && !self.is_lost.get()).then_some(&self.pieces)
    }

    /// Whether all of it has been taken.
    pub(crate) fn is_complete(&self) -> bool {
        self.next == self.pieces.len() && self.source.is_complete()
    }

    /// Whether no piece follows those taken, and none is missing.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.next == self.pieces.len() && self.source.is_exhausted()
    }

    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Piece>, ReadError>> {
        if let Some(piece) = self.pieces.get(self.next) {
            self.next += 1;
            return Poll::Ready(Ok(Some(piece.clone())));
        }
        let next = ready!(self.source.poll_next(cx))?;
        if let Some(piece) = next.as_ref().filter(|_| !self.is_lost.get()) {
            let (Piece::Data(bytes) | Piece::Trailers(bytes)) = piece;
            self.bytes = self.bytes.saturating_add(bytes.len());
            if self.bytes > KEPT_BYTES_MAX || self.pieces.len() == KEPT_PIECES_MAX {
                self.is_lost.set(true);
                (self.pieces, self.next) = (Vec::new(), 0);
            } else {
                self.pieces.push(piece.clone());
                self.next = self.pieces.len();
            }
        }
        Poll::Ready(Ok(next))
    }
}

/// The most of a body that is kept for another attempt.
const KEPT_BYTES_MAX: usize = 64 * 1024;
/// The most pieces of it: each holds the buffer that it arrived in.
const KEPT_PIECES_MAX: usize = 64;
