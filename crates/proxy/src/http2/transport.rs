//! Adapts a connection to the HTTP/2 codec. The codec first reads the bytes that were read before the protocol
//! was known and, after an `h2c` upgrade, a frame with the client's first request.

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
    early_bytes: BytesMut,
    /// The frame of an `h2c` upgrade, which the client did not send; `None` without an upgrade, and after the
    /// codec has read it.
    insertion: Option<Box<InsertedFrame>>,
    /// The state of a client connection that may be half-closed; `None` on connections to servers.
    half_close: Option<Rc<HalfClose>>,
}

/// A frame to insert, and the number of client bytes that precede it.
struct InsertedFrame {
    /// The client's preface and the header of its first frame, as far as they have arrived.
    start_bytes: Vec<u8>,
    /// The number of client bytes before the frame that have not arrived.
    remaining_bytes: usize,
    frame: Bytes,
}

impl Transport {
    pub(super) fn new(io: Io, early_bytes: BytesMut) -> Self {
        Self { io, early_bytes, insertion: None, half_close: None }
    }

    /// Returns a transport that inserts `frame` after the preface and the first frame of the client.
    pub(super) fn with_frame(io: Io, early_bytes: BytesMut, frame: Bytes) -> Self {
        let start_bytes = Vec::with_capacity(START_BYTES);
        let insertion = InsertedFrame { start_bytes, remaining_bytes: START_BYTES, frame };
        Self { io, early_bytes, insertion: Some(Box::new(insertion)), half_close: None }
    }

    /// Returns the transport for a client connection; its streams are counted in `half_close`.
    pub(super) fn for_client(self, half_close: Rc<HalfClose>) -> Self {
        Self { half_close: Some(half_close), ..self }
    }

    /// Reads bytes of the peer: first the early bytes, then bytes from the connection.
    fn poll_peer(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.early_bytes.is_empty() {
            let filled_before = buffer.filled().len();
            ready!(self.io.with_stream(|stream| stream.poll_read(cx, buffer)))?;
            return match &self.half_close {
                Some(half_close) if buffer.filled().len() == filled_before => {
                    half_close.poll_end(&self.io, cx)
                }
                _ => Poll::Ready(Ok(())),
            };
        }
        let length = self.early_bytes.len().min(buffer.remaining());
        buffer.put_slice(self.early_bytes.get(..length).unwrap_or_default());
        self.early_bytes.advance(length);
        Poll::Ready(Ok(()))
    }

    /// Records if the last write was blocked.
    fn record_write(&self, is_blocked: bool, cx: &Context<'_>) {
        if let Some(half_close) = &self.half_close {
            half_close.record_write(is_blocked, cx);
        }
    }

    /// Reads bytes of the client up to the insertion, then the inserted frame.
    fn poll_with_insertion(
        &mut self,
        mut insertion: Box<InsertedFrame>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if insertion.remaining_bytes == 0 {
            let length = insertion.frame.len().min(buffer.remaining());
            buffer.put_slice(&insertion.frame.split_to(length));
            self.insertion = Some(insertion).filter(|insertion| !insertion.frame.is_empty());
            return Poll::Ready(Ok(()));
        }
        let max_bytes = insertion.remaining_bytes.min(buffer.remaining());
        let mut part_buffer = ReadBuf::new(buffer.initialize_unfilled_to(max_bytes));
        let poll_result = self.poll_peer(cx, &mut part_buffer);
        let inspect_result = insertion.inspect_bytes(part_buffer.filled());
        let read_bytes = part_buffer.filled().len();
        buffer.advance(read_bytes);
        self.insertion = Some(insertion);
        inspect_result?;
        poll_result
    }
}

impl InsertedFrame {
    /// Counts bytes of the client before the insertion.
    ///
    /// # Errors
    /// The client does not start with SETTINGS (RFC 9113 §3.4). The codec would accept this, and respond to the
    /// inserted request although the client's settings are unknown.
    fn inspect_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.remaining_bytes = self.remaining_bytes.saturating_sub(bytes.len());
        if self.start_bytes.len() < START_BYTES {
            self.start_bytes.extend_from_slice(bytes);
            if let Some([high, middle, low, frame_type, ..]) = self.start_bytes.get(PREFACE_BYTES..)
                && self.remaining_bytes == 0
            {
                if *frame_type != SETTINGS_FRAME_TYPE {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                self.remaining_bytes = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
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
        let transport = self.get_mut();
        match transport.insertion.take() {
            None => transport.poll_peer(cx, buffer),
            Some(insertion) => transport.poll_with_insertion(insertion, cx, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let write_result = self.io.with_stream(|stream| stream.poll_write(cx, bytes));
        self.record_write(write_result.is_pending(), cx);
        write_result
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flush_result = self.io.with_stream(|stream| stream.poll_flush(cx));
        self.record_write(flush_result.is_pending(), cx);
        flush_result
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.with_stream(|stream| stream.poll_shutdown(cx))
    }
}

/// The type of a SETTINGS frame (RFC 9113 §6.5).
const SETTINGS_FRAME_TYPE: u8 = 4;
/// The length of the client connection preface (RFC 9113 §3.4).
const PREFACE_BYTES: usize = 24;
/// The length of the preface together with the header of the first frame, which contains that frame's length.
const START_BYTES: usize = PREFACE_BYTES + 9;
