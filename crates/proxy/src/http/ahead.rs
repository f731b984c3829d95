//! A body whose beginning is read ahead, for somebody who decides by it, and that then goes on whole.

mod room;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};

use self::room::Room;
pub(crate) use self::room::Taken;
use super::body::{Piece, Source};
use super::message::ReadError;

/// What was read ahead of a body.
pub(crate) struct Beginning {
    /// What arrived, put together: small pieces would each hold the buffer that they arrived in.
    blocks: Vec<BytesMut>,
    bytes: usize,
    trailers: Option<Bytes>,
    is_whole: bool,
    room: Room,
}

/// How far a body is read ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// There is this much, or all.
    Filled(usize),
    /// There is all, or more than this.
    Known(usize),
}

/// The first bytes of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Excerpt {
    pub(crate) bytes: Bytes,
    /// Whether they may not be all.
    pub(crate) is_partial: bool,
}

/// Why nothing is read ahead any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unread {
    /// The body broke.
    #[error(transparent)]
    Broken(#[from] ReadError),
    /// Bodies have taken what memory there is for them, or for those of this client.
    #[error("too much was read ahead of bodies")]
    NoRoom,
}

impl Beginning {
    /// Nothing yet of what this client sends. `taken`: what all of this thread have read ahead.
    pub(crate) fn new(taken: Rc<Taken>, client: IpAddr) -> Self {
        let room = Room::new(taken, client);
        Self { blocks: Vec::new(), bytes: 0, trailers: None, is_whole: false, room }
    }

    /// How much there is.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Reads on. Whoever gives up waiting loses nothing.
    pub(crate) async fn read(
        &mut self,
        source: &mut Source<'_>,
        until: Until,
    ) -> Result<(), Unread> {
        let (Until::Filled(most) | Until::Known(most)) = until;
        while !self.is_whole && self.bytes <= most {
            let at_once = poll_fn(|cx| Poll::Ready(source.poll_next(cx))).await;
            let next = match at_once {
                Poll::Ready(next) => next,
                Poll::Pending if self.bytes == most && until == Until::Filled(most) => break,
                Poll::Pending => poll_fn(|cx| source.poll_next(cx)).await,
            };
            self.take(next?, source.is_exhausted())?;
        }
        Ok(())
    }

    fn take(&mut self, piece: Option<Piece>, is_last: bool) -> Result<(), Unread> {
        self.is_whole = is_last || piece.is_none();
        match piece {
            None => {}
            Some(Piece::Trailers(section)) => {
                self.room.take(section.len())?;
                self.trailers = Some(Bytes::copy_from_slice(&section));
                self.is_whole = true;
            }
            Some(Piece::Data(data)) => {
                self.room.take(data.len())?;
                self.bytes += data.len();
                self.put(&data);
            }
        }
        Ok(())
    }

    fn put(&mut self, mut data: &[u8]) {
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

    /// As much of it as somebody may be shown.
    pub(crate) fn excerpt(&self, bytes_max: usize) -> Excerpt {
        let mut bytes = Vec::with_capacity(self.bytes.min(bytes_max));
        for block in &self.blocks {
            let (shown, _) = block.split_at(block.len().min(bytes_max - bytes.len()));
            bytes.extend_from_slice(shown);
        }
        let is_partial = !self.is_whole || self.bytes > bytes_max;
        Excerpt { bytes: bytes.into(), is_partial }
    }

    /// The body that begins so and goes on with `source`.
    pub(crate) fn followed_by(self, source: Source<'_>) -> Ahead<'_> {
        let data = self.blocks.into_iter().map(|block| Piece::Data(block.freeze()));
        let pieces = data.chain(self.trailers.map(Piece::Trailers)).collect();
        Ahead { pieces, room: self.room, source }
    }
}

/// A source of which something was read ahead.
pub(crate) struct Ahead<'a> {
    pieces: VecDeque<Piece>,
    room: Room,
    source: Source<'a>,
}

impl Ahead<'_> {
    /// Whether all of it has been taken.
    pub(crate) fn is_complete(&self) -> bool {
        self.pieces.is_empty() && self.source.is_complete()
    }

    /// Whether no piece follows those taken, and none is missing.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.pieces.is_empty() && self.source.is_exhausted()
    }

    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Piece>, ReadError>> {
        let Some(piece) = self.pieces.pop_front() else { return self.source.poll_next(cx) };
        let (Piece::Data(bytes) | Piece::Trailers(bytes)) = &piece;
        self.room.give(bytes.len());
        Poll::Ready(Ok(Some(piece)))
    }
}

/// What one block holds, as much as a read brings: what goes on is written in such pieces.
const BLOCK_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests;
