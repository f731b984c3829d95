//! Wraps the stream of a client that is not authenticated yet. The connection counts as waiting for its peer until the
//! client's first message is complete.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use leno_listen::PendingConnection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that marks its connection as waiting for the peer until the first message is complete. After that, this
/// process verifies the message.
#[derive(Debug)]
pub(crate) struct UnverifiedStream<S> {
    stream: S,
    pending_connection: Arc<PendingConnection>,
    first_message: FirstMessage,
}

impl<S> UnverifiedStream<S> {
    pub(crate) fn new(stream: S, pending_connection: Arc<PendingConnection>) -> Self {
        Self { stream, pending_connection, first_message: FirstMessage::default() }
    }
}

/// The progress of the first message: a length of 4 bytes, big-endian, and as many bytes.
#[derive(Debug, Default)]
struct FirstMessage {
    /// The length of the message without its prefix, as far as the prefix was received.
    length: u32,
    /// The number of received bytes, including the prefix.
    received_bytes: u64,
}

impl FirstMessage {
    fn record_bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if self.received_bytes < LENGTH_BYTES {
                self.length = self.length << 8 | u32::from(*byte);
            }
            self.received_bytes += 1;
        }
    }

    fn is_complete(&self) -> bool {
        self.received_bytes >= LENGTH_BYTES + u64::from(self.length)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for UnverifiedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled_before = buffer.filled().len();
        let poll_result = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if self.first_message.is_complete() {
            return poll_result;
        }
        match poll_result {
            Poll::Ready(Ok(())) => {
                let new_bytes = buffer.filled().get(filled_before..).unwrap_or_default();
                self.first_message.record_bytes(new_bytes);
                if self.first_message.is_complete() {
                    self.pending_connection.mark_served();
                }
                Poll::Ready(self.pending_connection.record_progress().map_err(io::Error::from))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                self.pending_connection.poll_start_waiting(cx).map_err(io::Error::from)
            }
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

/// The length of a message's length prefix in bytes.
const LENGTH_BYTES: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_complete_with_its_last_byte() {
        let message = [&[0, 0, 1, 44][..], &[7; 300]].concat();
        for chunk_bytes in [1, 3, 4, 5, 303, 304] {
            let mut first_message = FirstMessage::default();
            for (index, chunk) in message.chunks(chunk_bytes).enumerate() {
                assert!(!first_message.is_complete(), "{chunk_bytes}: after {index} chunks");
                first_message.record_bytes(chunk);
            }
            assert!(first_message.is_complete(), "{chunk_bytes}");
        }
    }
}
