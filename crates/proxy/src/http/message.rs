//! Reads and writes HTTP/1.1 messages on a connection, with a buffer for each direction.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use leno_wire::http1::{
    MAX_HEAD_BYTES, Malformed, ParseProgress, RequestHead, RequestKind, ResponseHead,
    repair_response,
};
use leno_wire::link::ResetCode;

use crate::buffers::{self, BufferSize};
use crate::io::Io;
use crate::max_wait::poll_within;

/// The read half, with the bytes received after the last message.
pub(crate) struct MessageReader {
    pub(crate) io: Io,
    pub(crate) buffer: BytesMut,
    /// True if the peer is an application without its own sidecar: its responses are parsed as leniently as
    /// RFC 9112 allows.
    pub(crate) is_tolerant: bool,
}

/// The write half, with pending output.
pub(crate) struct MessageWriter {
    pub(crate) io: Io,
    buffer: BytesMut,
    /// The time after which a peer that takes no pending output counts as stalled.
    stall_timeout: Duration,
}

/// The reason why a head or a body could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("the connection failed")]
    Io(#[from] io::Error),
    #[error("the peer closed the connection within a message")]
    Ended,
    #[error("the peer stopped within a body")]
    Stalled,
    #[error("the peer reset the stream: {0:?}")]
    Reset(ResetCode),
    #[error("the peer violated the HTTP/2 protocol")]
    Protocol,
    #[error("the peer uses HTTP/2")]
    SpeaksHttp2,
    #[error("the length of a body differs from the declared length")]
    LengthMismatch,
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl MessageReader {
    pub(crate) fn new(io: Io) -> Self {
        Self { io, buffer: BytesMut::new(), is_tolerant: false }
    }

    /// Waits for the first byte of the next message. Returns false after a clean end of the connection.
    pub(crate) async fn wait_for_message(&mut self) -> Result<bool, ReadError> {
        loop {
            // RFC 9112 §2.2: empty lines before a request are ignored.
            while self.buffer.starts_with(b"\r\n") {
                self.buffer.advance(2);
            }
            // A single CR may begin another empty line.
            if !self.buffer.is_empty() && *self.buffer != b"\r"[..] {
                return Ok(true);
            }
            if self.read_more().await? == 0 {
                return Ok(false);
            }
        }
    }

    /// Reads more bytes, and returns their number: 0 at the end of the connection's input.
    pub(crate) async fn read_more(&mut self) -> io::Result<usize> {
        poll_fn(|cx| self.poll_more(cx)).await
    }

    /// Reads more bytes if some are available, and returns their number: 0 at the end of the connection's input.
    pub(crate) fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.io.poll_read(cx, &mut self.buffer)
    }

    /// Reads one complete request head. The head's spans refer to the returned bytes.
    pub(crate) async fn read_request(
        &mut self,
        head: &mut RequestHead,
    ) -> Result<Bytes, ReadError> {
        loop {
            match head.parse(&self.buffer)? {
                ParseProgress::Complete(length) => {
                    return Ok(self.buffer.split_to(length).freeze());
                }
                ParseProgress::Partial => self.read_more_head().await?,
            }
        }
    }

    /// Reads until a request head is complete or malformed. It stays in the buffer, for
    /// [`MessageReader::read_request`]; `head` is used for parsing only.
    pub(crate) async fn buffer_request(&mut self, head: &mut RequestHead) {
        if !matches!(self.wait_for_message().await, Ok(true)) {
            return;
        }
        while let Ok(ParseProgress::Partial) = head.parse(&self.buffer) {
            if self.read_more_head().await.is_err() {
                return;
            }
        }
    }

    /// Reads one complete response head. The head's spans refer to the returned bytes.
    pub(crate) async fn read_response(
        &mut self,
        head: &mut ResponseHead,
        request_kind: RequestKind,
    ) -> Result<Bytes, ReadError> {
        loop {
            match head.parse(&self.buffer, request_kind) {
                Ok(ParseProgress::Complete(length)) => {
                    return Ok(self.buffer.split_to(length).freeze());
                }
                _ if begins_http2(&self.buffer) => return Err(ReadError::SpeaksHttp2),
                Ok(ParseProgress::Partial) => self.read_more_head().await?,
                Err(malformed) => match self.parse_leniently(head, request_kind) {
                    Some(bytes) => return Ok(bytes),
                    None if self.is_tolerant && self.may_be_repaired() => {
                        self.read_more_head().await.map_err(|_| malformed)?;
                    }
                    None => return Err(malformed.into()),
                },
            }
        }
    }

    /// Parses a head with deviations that RFC 9112 allows recipients to accept, and returns its repaired bytes.
    /// `None` if the peer is not tolerated, or the head cannot be repaired.
    #[cold]
    fn parse_leniently(
        &mut self,
        head: &mut ResponseHead,
        request_kind: RequestKind,
    ) -> Option<Bytes> {
        if !self.is_tolerant {
            return None;
        }
        let repaired_head = repair_response(&self.buffer)?;
        let expected_result = Ok(ParseProgress::Complete(repaired_head.head.len()));
        if head.parse(&repaired_head.head, request_kind) != expected_result {
            return None;
        }
        self.buffer.advance(repaired_head.received_bytes);
        Some(repaired_head.head.into())
    }

    /// True if more bytes may make an invalid head acceptable. Never true for a response that does not begin as
    /// HTTP/1: a server of another protocol may send nothing else.
    #[cold]
    fn may_be_repaired(&self) -> bool {
        let contains =
            |pattern: &[u8]| self.buffer.windows(pattern.len()).any(|window| window == pattern);
        let received_start = &self.buffer[..self.buffer.len().min(HTTP1_START.len())];
        HTTP1_START.starts_with(received_start)
            && !contains(b"\n\n")
            && !contains(b"\n\r\n")
            && self.buffer.len() <= MAX_HEAD_BYTES
    }

    /// Reads more bytes of an incomplete head.
    async fn read_more_head(&mut self) -> Result<(), ReadError> {
        // The parser rejects oversized heads; this bounds the loop.
        if self.buffer.len() > MAX_HEAD_BYTES + HEAD_MARGIN_BYTES {
            return Err(Malformed::HeadTooLarge.into());
        }
        if self.read_more().await? == 0 { Err(ReadError::Ended) } else { Ok(()) }
    }
}

/// True for the first frame of an HTTP/2 server (RFC 9113 §3.4): SETTINGS without ACK, on stream 0, with
/// entries of six bytes (§6.5). The frame is so short that the first byte of its length is 0.
fn begins_http2(bytes: &[u8]) -> bool {
    let Some([0, high, low, SETTINGS_FRAME_TYPE, 0, 0, 0, 0, 0]) = bytes.first_chunk::<9>() else {
        return false;
    };
    u16::from_be_bytes([*high, *low]) % 6 == 0
}

impl MessageWriter {
    /// `stall_timeout`: the time after which a peer that takes no pending output counts as stalled.
    pub(crate) fn new(io: Io, stall_timeout: Duration) -> Self {
        Self { io, buffer: BytesMut::new(), stall_timeout }
    }

    /// Returns the buffer for further output.
    pub(crate) fn output_buffer(&mut self) -> &mut BytesMut {
        buffers::ensure_capacity(&mut self.buffer, BufferSize::Message);
        &mut self.buffer
    }

    /// True if the producer has to wait until pending output is written.
    pub(crate) fn is_full(&self) -> bool {
        self.buffer.len() >= MAX_WRITE_BYTES
    }

    /// True if no output is pending.
    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Writes all pending output, as long as the peer accepts some of it within the timeout.
    ///
    /// # Errors
    /// `TimedOut` if the peer accepts no more data.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        loop {
            let old_length = self.buffer.len();
            match poll_within(self.stall_timeout, |cx| self.poll_flush(cx)).await {
                Some(result) => return result,
                // The peer has taken some output, so the timeout starts again.
                None if self.buffer.len() < old_length => {}
                None => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.buffer.is_empty() || self.io.is_unflushed() {
            ready!(self.io.poll_write_all(cx, &mut self.buffer))?;
            buffers::return_buffer(&mut self.buffer, BufferSize::Message);
        }
        Poll::Ready(Ok(()))
    }
}

/// The first bytes of each HTTP/1 response.
const HTTP1_START: &[u8] = b"HTTP/1.";

/// The type of a SETTINGS frame (RFC 9113 §6.5).
const SETTINGS_FRAME_TYPE: u8 = 4;

/// Room beyond the largest head for other bytes of the same read.
const HEAD_MARGIN_BYTES: usize = 32 * 1024;
/// The amount of pending output at which the producer waits: with one more piece and a head the buffer does not
/// grow beyond 64 KiB.
const MAX_WRITE_BYTES: usize = 40 * 1024;
