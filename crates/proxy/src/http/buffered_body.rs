//! Bodies with a buffered prefix, which a check service inspects before the whole body is forwarded.

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
    /// The received data, coalesced: small pieces would each keep their read buffer alive.
    blocks: Vec<BytesMut>,
    bytes: usize,
    trailers: Option<Bytes>,
    is_whole: bool,
    room: BufferReservation,
}

/// The point up to which a body is buffered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BufferTarget {
    /// This many bytes, or the whole body.
    Filled(usize),
    /// The whole body, or more than this many bytes.
    Known(usize),
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
    /// Returns an empty prefix of a body of this client. `taken`: the memory used by all buffered bodies of
    /// this thread.
    pub(crate) fn new(taken: Rc<BufferMemory>, client: IpAddr) -> Self {
        let room = BufferReservation::new(taken, client);
        Self { blocks: Vec::new(), bytes: 0, trailers: None, is_whole: false, room }
    }

    /// The number of buffered bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Continues to read. Cancel-safe.
    pub(crate) async fn read(
        &mut self,
        source: &mut BodySource<'_>,
        until: BufferTarget,
    ) -> Result<(), BufferingError> {
        let (BufferTarget::Filled(most) | BufferTarget::Known(most)) = until;
        while !self.is_whole && self.bytes <= most {
            let at_once = poll_fn(|cx| Poll::Ready(source.poll_next(cx))).await;
            let next = match at_once {
                Poll::Ready(next) => next,
                Poll::Pending if self.bytes == most && until == BufferTarget::Filled(most) => break,
                Poll::Pending => poll_fn(|cx| source.poll_next(cx)).await,
            };
            self.take_piece(next?, source.is_exhausted())?;
        }
        Ok(())
    }

    fn take_piece(
        &mut self,
        piece: Option<BodyPiece>,
        is_last: bool,
    ) -> Result<(), BufferingError> {
        self.is_whole = is_last || piece.is_none();
        match piece {
            None => {}
            Some(BodyPiece::Trailers(section)) => {
                self.room.reserve(section.len())?;
                self.trailers = Some(Bytes::copy_from_slice(&section));
                self.is_whole = true;
            }
            Some(BodyPiece::Data(data)) => {
                self.room.reserve(data.len())?;
                self.bytes += data.len();
                self.append_data(&data);
            }
        }
        Ok(())
    }

    fn append_data(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            let room = self.blocks.last().map_or(0, |block| BLOCK_BYTES - block.len());
            if room == 0 {
                self.blocks.push(BytesMut::with_capacity(data.len().min(BLOCK_BYTES)));
                continue;
            }
            let (now, later) = data.split_at(room.min(data.len()));
            if let Some(block) = self.blocks.last_mut() {
                block.extend_from_slice(now);
            }
            data = later;
        }
    }

    /// Returns an excerpt of at most `bytes_max` bytes.
    pub(crate) fn excerpt(&self, bytes_max: usize) -> BufferedExcerpt {
        let mut bytes = Vec::with_capacity(self.bytes.min(bytes_max));
        for block in &self.blocks {
            let (shown, _) = block.split_at(block.len().min(bytes_max - bytes.len()));
            bytes.extend_from_slice(shown);
        }
        let is_partial = !self.is_whole || self.bytes > bytes_max;
        BufferedExcerpt { bytes: bytes.into(), is_partial }
    }

    /// Returns the body that consists of this prefix and the rest of `source`.
    pub(crate) fn followed_by(self, source: BodySource<'_>) -> PrefixedSource<'_> {
        let data = self.blocks.into_iter().map(|block| BodyPiece::Data(block.freeze()));
        let pieces = data.chain(self.trailers.map(BodyPiece::Trailers)).collect();
        PrefixedSource { pieces, room: self.room, source }
    }
}

/// A source with a buffered prefix.
pub(crate) struct PrefixedSource<'a> {
    pieces: VecDeque<BodyPiece>,
    room: BufferReservation,
    source: BodySource<'a>,
}

impl PrefixedSource<'_> {
    /// True if the whole body has been taken.
    pub(crate) fn is_complete(&self) -> bool {
        self.pieces.is_empty() && self.source.is_complete()
    }

    /// True if no piece follows those taken, and none is missing.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.pieces.is_empty() && self.source.is_exhausted()
    }

    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<BodyPiece>, ReadError>> {
        let Some(piece) = self.pieces.pop_front() else { return self.source.poll_next(cx) };
        let (BodyPiece::Data(bytes) | BodyPiece::Trailers(bytes)) = &piece;
        self.room.release(bytes.len());
        Poll::Ready(Ok(Some(piece)))
    }
}

/// The size of a block: that of a read. Forwarded data is written in such pieces.
const BLOCK_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests;
