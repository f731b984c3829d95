//! An HTTP/1.1 connection's two halves: what has been read and what is to be written.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use leno_wire::http1::{
    Answers, HEAD_BYTES_MAX, Malformed, Parsed, RequestHead, ResponseHead, mend_response,
};
use leno_wire::link::ResetCode;

use crate::buffers::{self, Size};
use crate::io::Io;
use crate::patience::within;

/// The reading half, with what arrived beyond the last message.
pub(crate) struct Reader {
    pub(crate) io: Io,
    pub(crate) buffer: BytesMut,
    /// The peer is an application without another sidecar: its responses are read as tolerantly as RFC 9112 allows.
    pub(crate) is_tolerant: bool,
}

/// The writing half, with what was produced and not yet written.
pub(crate) struct Writer {
    pub(crate) io: Io,
    buffer: BytesMut,
    /// How long the peer may take nothing of what waits for it.
    patience: Duration,
}

/// Why a head could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("the connection broke")]
    Io(#[from] io::Error),
    #[error("the peer ended the connection inside a message")]
    Ended,
    #[error("the peer stopped in the middle of a body")]
    Stalled,
    #[error("the peer reset the stream: {0:?}")]
    Reset(ResetCode),
    #[error("the peer broke a rule of HTTP/2")]
    Protocol,
    #[error("a body is not as long as its head declared")]
    LengthMismatch,
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl Reader {
    pub(crate) fn new(io: Io) -> Self {
        Self { io, buffer: BytesMut::new(), is_tolerant: false }
    }

    /// Waits for the first byte of the next message. False: an orderly end instead.
    pub(crate) async fn wait(&mut self) -> Result<bool, ReadError> {
        loop {
            // RFC 9112 §2.2: empty lines before a request are ignored; nobody has begun one yet.
            while self.buffer.starts_with(b"\r\n") {
                self.buffer.advance(2);
            }
            if !self.buffer.is_empty() && *self.buffer != b"\r"[..] {
                return Ok(true);
            }
            if self.more().await? == 0 {
                return Ok(false);
            }
        }
    }

    /// Reads more. 0 is the end.
    pub(crate) async fn more(&mut self) -> io::Result<usize> {
        poll_fn(|cx| self.poll_more(cx)).await
    }

    pub(crate) fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.io.poll_read(cx, &mut self.buffer)
    }

    /// Reads one request head, whole. The head's spans refer to the returned bytes.
    pub(crate) async fn request(&mut self, head: &mut RequestHead) -> Result<Bytes, ReadError> {
        loop {
            match head.parse(&self.buffer)? {
                Parsed::Complete(length) => return Ok(self.buffer.split_to(length).freeze()),
                Parsed::Partial => self.more_of_head().await?,
            }
        }
    }

    /// Reads until a request head is whole or cannot become one. It stays in the buffer, for
    /// [`Reader::request`]; `head` is for parsing only.
    pub(crate) async fn whole_request(&mut self, head: &mut RequestHead) {
        if !matches!(self.wait().await, Ok(true)) {
            return;
        }
        while let Ok(Parsed::Partial) = head.parse(&self.buffer) {
            if self.more_of_head().await.is_err() {
                return;
            }
        }
    }

    /// Reads one response head, whole. The head's spans refer to the returned bytes.
    pub(crate) async fn response(
        &mut self,
        head: &mut ResponseHead,
        answers: Answers,
    ) -> Result<Bytes, ReadError> {
        loop {
            match head.parse(&self.buffer, answers) {
                Ok(Parsed::Complete(length)) => return Ok(self.buffer.split_to(length).freeze()),
                Ok(Parsed::Partial) => self.more_of_head().await?,
                Err(malformed) => match self.mend(head, answers) {
                    Some(bytes) => return Ok(bytes),
                    None if self.is_tolerant && self.may_be_mended() => {
                        self.more_of_head().await.map_err(|_| malformed)?;
                    }
                    None => return Err(malformed.into()),
                },
            }
        }
    }

    /// Reads a head that breaks the rules in a way that recipients may read.
    #[cold]
    fn mend(&mut self, head: &mut ResponseHead, answers: Answers) -> Option<Bytes> {
        let mended = Some(&self.buffer).filter(|_| self.is_tolerant);
        let mended = mended.and_then(|bytes| mend_response(bytes))?;
        let whole = Ok(Parsed::Complete(mended.head.len()));
        if head.parse(&mended.head, answers) != whole {
            return None;
        }
        self.buffer.advance(mended.length);
        Some(mended.head.into())
    }

    /// True when more bytes may make a head that can be mended of one that is malformed so far. What does not begin as
    /// HTTP/1 never does: a server of another protocol may say nothing more.
    #[cold]
    fn may_be_mended(&self) -> bool {
        let ends = |end: &[u8]| self.buffer.windows(end.len()).any(|window| window == end);
        let start = &self.buffer[..self.buffer.len().min(HTTP1_START.len())];
        HTTP1_START.starts_with(start)
            && !ends(b"\n\n")
            && !ends(b"\n\r\n")
            && self.buffer.len() <= HEAD_BYTES_MAX
    }

    async fn more_of_head(&mut self) -> Result<(), ReadError> {
        // The parser refuses a head that is too large; this guards our own loop.
        if self.buffer.len() > HEAD_BYTES_MAX + HEAD_SLACK {
            return Err(Malformed::HeadTooLarge.into());
        }
        if self.more().await? == 0 { Err(ReadError::Ended) } else { Ok(()) }
    }
}

impl Writer {
    /// `patience`: how long the peer may take nothing of what waits for it.
    pub(crate) fn new(io: Io, patience: Duration) -> Self {
        Self { io, buffer: BytesMut::new(), patience }
    }

    /// Where the next bytes go.
    pub(crate) fn room(&mut self) -> &mut BytesMut {
        buffers::furnish(&mut self.buffer, Size::Message);
        &mut self.buffer
    }

    /// Whether so much waits that the producer must wait too.
    pub(crate) fn is_full(&self) -> bool {
        self.buffer.len() >= WRITE_BYTES_MAX
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Writes all that waits, for as long as the peer takes some of it now and then.
    ///
    /// # Errors
    /// `TimedOut` when it takes nothing any more.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        loop {
            let before = self.buffer.len();
            match within(self.patience, |cx| self.poll_flush(cx)).await {
                Some(flushed) => return flushed,
                None if self.buffer.len() < before => {}
                None => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.buffer.is_empty() || self.io.is_unflushed() {
            ready!(self.io.poll_write_all(cx, &mut self.buffer))?;
            buffers::give(&mut self.buffer, Size::Message);
        }
        Poll::Ready(Ok(()))
    }
}

/// The first bytes of each response of HTTP/1.
const HTTP1_START: &[u8] = b"HTTP/1.";

/// Room beyond the largest head for what the same read brought along.
const HEAD_SLACK: usize = 32 * 1024;
/// What may wait in a writer before its producer is made to wait: with one more piece and a head the
/// buffer still does not double beyond 64 KiB.
const WRITE_BYTES_MAX: usize = 40 * 1024;
