//! An unauthenticated stream: counts as half-open until its first message is complete.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use leno_listen::HalfOpen;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that waits for its peer until the first message is complete; then it is this side's turn to verify
/// the message.
#[derive(Debug)]
pub(crate) struct UnverifiedStream<S> {
    stream: S,
    half_open: Arc<HalfOpen>,
    first: FirstMessage,
}

impl<S> UnverifiedStream<S> {
    pub(crate) fn new(stream: S, half_open: Arc<HalfOpen>) -> Self {
        Self { stream, half_open, first: FirstMessage::default() }
    }
}

/// The received part of the first message: a length of 4 bytes, big-endian, and as many bytes.
#[derive(Debug, Default)]
struct FirstMessage {
    head: u32,
    seen: u64,
}

impl FirstMessage {
    fn read(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if self.seen < HEAD_BYTES {
                self.head = self.head << 8 | u32::from(*byte);
            }
            self.seen += 1;
        }
    }

    fn is_whole(&self) -> bool {
        self.seen >= HEAD_BYTES + u64::from(self.head)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for UnverifiedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if self.first.is_whole() {
            return polled;
        }
        match polled {
            Poll::Ready(Ok(())) => {
                let read = buffer.filled().get(before..).unwrap_or_default();
                self.first.read(read);
                if self.first.is_whole() {
                    self.half_open.mark_busy();
                }
                Poll::Ready(self.half_open.record_progress().map_err(io::Error::from))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.half_open.poll_waiting(cx).map_err(io::Error::from),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for UnverifiedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The length prefix of a message.
const HEAD_BYTES: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_whole_with_its_last_byte_however_it_comes() {
        let message = [&[0, 0, 1, 44][..], &[7; 300]].concat();
        for size in [1, 3, 4, 5, 303, 304] {
            let mut first = FirstMessage::default();
            for (index, piece) in message.chunks(size).enumerate() {
                assert!(!first.is_whole(), "{size}: after {index} pieces");
                first.read(piece);
            }
            assert!(first.is_whole(), "{size}");
        }
    }
}
