//! Buffers a prefix of a body, which a check service inspects before the whole body is forwarded.

mod memory;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};

pub(crate) use self::memory::BufferMemory;
use self::memory::BufferReservation;
use super::body::{BodyPiece, BodySource};
use super::message::ReadError;

/// The buffered prefix of a body.
pub(crate) struct BufferedPrefix {
    /// The received data, copied into blocks. Otherwise each small piece would keep its whole read buffer
    /// alive.
    blocks: Vec<BytesMut>,
    /// The number of data bytes in all blocks.
    byte_count: usize,
    /// The raw trailer section; `None` until it arrives.
    trailers: Option<Bytes>,
    /// True if the body was read to its end.
    is_whole: bool,
    /// The reserved memory for the data and the trailer section.
    reservation: BufferReservation,
}

/// The point up to which a body is buffered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BufferTarget {
    /// This many bytes, or the whole body if it is shorter.
    Prefix(usize),
    /// The whole body; reading stops once the body is longer than this many bytes.
    WholeBody(usize),
}

/// The first bytes of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BufferedExcerpt {
    pub(crate) bytes: Bytes,
    /// True if the body may be longer.
    pub(crate) is_partial: bool,
}

/// The reason why buffering stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BufferingError {
    /// The body is incomplete or malformed.
    #[error(transparent)]
    Broken(#[from] ReadError),
    /// The memory limit of all buffered bodies, or of this client's, is reached.
    #[error("the limit of buffered body bytes is reached")]
    OutOfMemory,
}

impl BufferedPrefix {
    /// Returns an empty prefix of a body of this client. `memory`: the memory used by all buffered bodies of
    /// this thread.
    pub(crate) fn new(memory: Rc<BufferMemory>, client: IpAddr) -> Self {
        let reservation = BufferReservation::new(memory, client);
        Self { blocks: Vec::new(), byte_count: 0, trailers: None, is_whole: false, reservation }
    }

    /// Returns the number of buffered data bytes.
    pub(crate) fn len(&self) -> usize {
        self.byte_count
    }

    /// Reads from `source` until the target is reached. Cancel-safe: a later call continues.
    ///
    /// # Errors
    /// The body is malformed or incomplete, or the memory limit is reached.
    pub(crate) async fn read(
        &mut self,
        source: &mut BodySource<'_>,
        target: BufferTarget,
    ) -> Result<(), BufferingError> {
        let (BufferTarget::Prefix(max_bytes) | BufferTarget::WholeBody(max_bytes)) = target;
        // After exactly `max_bytes`, one more read reveals if the body is longer. A prefix does not wait for that
        // read, because it already has its length.
        while !self.is_whole && self.byte_count <= max_bytes {
            let available_piece = poll_fn(|cx| Poll::Ready(source.poll_next(cx))).await;
            let next_piece = match available_piece {
                Poll::Ready(next_piece) => next_piece,
                Poll::Pending
                    if self.byte_count == max_bytes
                        && target == BufferTarget::Prefix(max_bytes) =>
                {
                    break;
                }
                Poll::Pending => poll_fn(|cx| source.poll_next(cx)).await,
            };
            self.append_piece(next_piece?, source.is_exhausted())?;
        }
        Ok(())
    }

    /// Adds a piece; `None` stands for the end of the body. `is_last`: no other piece follows.
    fn append_piece(
        &mut self,
        piece: Option<BodyPiece>,
        is_last: bool,
    ) -> Result<(), BufferingError> {
        self.is_whole = is_last || piece.is_none();
        match piece {
            None => {}
            Some(BodyPiece::Trailers(section)) => {
                self.reservation.reserve(section.len())?;
                self.trailers = Some(Bytes::copy_from_slice(&section));
                self.is_whole = true;
            }
            Some(BodyPiece::Data(data)) => {
                self.reservation.reserve(data.len())?;
                self.byte_count += data.len();
                self.append_data(&data);
            }
        }
        Ok(())
    }

    /// Copies data into blocks of at most [`BLOCK_BYTES`].
    fn append_data(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            let room = self.blocks.last().map_or(0, |block| BLOCK_BYTES - block.len());
            if room == 0 {
                self.blocks.push(BytesMut::with_capacity(data.len().min(BLOCK_BYTES)));
                continue;
            }
            let (fitting_data, remaining_data) = data.split_at(room.min(data.len()));
            if let Some(block) = self.blocks.last_mut() {
                block.extend_from_slice(fitting_data);
            }
            data = remaining_data;
        }
    }

    /// Returns an excerpt of at most `max_bytes` bytes.
    pub(crate) fn excerpt(&self, max_bytes: usize) -> BufferedExcerpt {
        let mut bytes = Vec::with_capacity(self.byte_count.min(max_bytes));
        for block in &self.blocks {
            let (excerpt_bytes, _) = block.split_at(block.len().min(max_bytes - bytes.len()));
            bytes.extend_from_slice(excerpt_bytes);
        }
        let is_partial = !self.is_whole || self.byte_count > max_bytes;
        BufferedExcerpt { bytes: bytes.into(), is_partial }
    }

    /// Returns the body that consists of this prefix and the rest of `source`.
    pub(crate) fn into_source(self, source: BodySource<'_>) -> PrefixedSource<'_> {
        let data_pieces = self.blocks.into_iter().map(|block| BodyPiece::Data(block.freeze()));
        let pieces = data_pieces.chain(self.trailers.map(BodyPiece::Trailers)).collect();
        PrefixedSource { pieces, reservation: self.reservation, source }
    }
}

/// A source with a buffered prefix.
pub(crate) struct PrefixedSource<'a> {
    /// The pieces of the prefix that were not taken yet.
    pieces: VecDeque<BodyPiece>,
    reservation: BufferReservation,
    source: BodySource<'a>,
}

impl PrefixedSource<'_> {
    /// True if the whole body has been taken.
    pub(crate) fn is_complete(&self) -> bool {
        self.pieces.is_empty() && self.source.is_complete()
    }

    /// True if no piece follows those already taken, and the body is not truncated.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.pieces.is_empty() && self.source.is_exhausted()
    }

    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<BodyPiece>, ReadError>> {
        let Some(piece) = self.pieces.pop_front() else { return self.source.poll_next(cx) };
        let (BodyPiece::Data(bytes) | BodyPiece::Trailers(bytes)) = &piece;
        self.reservation.release(bytes.len());
        Poll::Ready(Ok(Some(piece)))
    }
}

/// The maximum size of a block, equal to the size of a read; buffered data is forwarded in pieces of this size.
const BLOCK_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests;
