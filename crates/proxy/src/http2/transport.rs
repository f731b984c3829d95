//! The transport of the HTTP/2 codec: a connection, preceded by the bytes already read from it.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::half_close::HalfClose;
use crate::io::Io;

/// A connection, and the bytes that were read before its protocol was known.
pub(super) struct Transport {
    io: Io,
    early: BytesMut,
    /// A frame to insert that the client did not send.
    splice: Option<Box<InsertedFrame>>,
    /// The streams of a client, which may outlive its own direction.
    half_close: Option<Rc<HalfClose>>,
}

/// A frame to insert, and the number of client bytes that precede it.
struct InsertedFrame {
    /// The client's preface and the header of its first frame, as far as they have arrived.
    opening: Vec<u8>,
    left: usize,
    frame: Bytes,
}

impl Transport {
    pub(super) fn new(io: Io, early: BytesMut) -> Self {
        Self { io, early, splice: None, half_close: None }
    }

    /// Returns a transport that inserts `frame` after the preface and the first frame of the client.
    pub(super) fn with_frame(io: Io, early: BytesMut, frame: Bytes) -> Self {
        let opening = Vec::with_capacity(OPENING_BYTES);
        let splice = InsertedFrame { opening, left: OPENING_BYTES, frame };
        Self { io, early, splice: Some(Box::new(splice)), half_close: None }
    }

    /// Returns the transport for a client connection; its streams are counted in `half_close`.
    pub(super) fn for_client(self, half_close: Rc<HalfClose>) -> Self {
        Self { half_close: Some(half_close), ..self }
    }

    fn poll_client(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.early.is_empty() {
            let before = buffer.filled().len();
            ready!(self.io.with_stream(|stream| stream.poll_read(cx, buffer)))?;
            return match &self.half_close {
                Some(half_close) if buffer.filled().len() == before => {
                    half_close.poll_end(&self.io, cx)
                }
                _ => Poll::Ready(Ok(())),
            };
        }
        let length = self.early.len().min(buffer.remaining());
        buffer.put_slice(self.early.get(..length).unwrap_or_default());
        self.early.advance(length);
        Poll::Ready(Ok(()))
    }

    fn record_write(&self, is_blocked: bool, cx: &Context<'_>) {
        if let Some(half_close) = &self.half_close {
            half_close.note_write(is_blocked, cx);
        }
    }

    fn poll_spliced(
        &mut self,
        mut splice: Box<InsertedFrame>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if splice.left == 0 {
            let length = splice.frame.len().min(buffer.remaining());
            buffer.put_slice(&splice.frame.split_to(length));
            self.splice = Some(splice).filter(|splice| !splice.frame.is_empty());
            return Poll::Ready(Ok(()));
        }
        let length = splice.left.min(buffer.remaining());
        let mut room = ReadBuf::new(buffer.initialize_unfilled_to(length));
        let read = self.poll_client(cx, &mut room);
        let passed = splice.inspect(room.filled());
        let length = room.filled().len();
        buffer.advance(length);
        self.splice = Some(splice);
        passed?;
        read
    }
}

impl InsertedFrame {
    /// # Errors
    /// The client does not start with SETTINGS (RFC 9113 §3.4). The codec would not object, and the request
    /// would get a response without them.
    fn inspect(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.left = self.left.saturating_sub(bytes.len());
        if self.opening.len() < OPENING_BYTES {
            self.opening.extend_from_slice(bytes);
            if let Some([high, middle, low, kind, ..]) = self.opening.get(PREFACE_BYTES..)
                && self.left == 0
            {
                if *kind != SETTINGS {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                self.left = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
            }
        }
        Ok(())
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match this.splice.take() {
            None => this.poll_client(cx, buffer),
            Some(splice) => this.poll_spliced(splice, cx, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.io.with_stream(|stream| stream.poll_write(cx, bytes));
        self.record_write(written.is_pending(), cx);
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.io.with_stream(|stream| stream.poll_flush(cx));
        self.record_write(flushed.is_pending(), cx);
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.with_stream(|stream| stream.poll_shutdown(cx))
    }
}

const SETTINGS: u8 = 4;
/// The length of the client connection preface (RFC 9113 §3.4).
const PREFACE_BYTES: usize = 24;
/// The same with the header of the next frame, which contains its length.
const OPENING_BYTES: usize = PREFACE_BYTES + 9;
