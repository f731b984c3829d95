//! Counts the bytes that HTTP/2 connections send and receive.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::environment::ByteCounters;

/// A stream that counts its received and sent bytes.
#[derive(Debug)]
pub(super) struct MeteredStream<S> {
    stream: S,
    byte_counters: Rc<ByteCounters>,
}

impl<S> MeteredStream<S> {
    pub(super) fn new(stream: S, byte_counters: Rc<ByteCounters>) -> Self {
        Self { stream, byte_counters }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MeteredStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled_before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.byte_counters.count_received(buffer.filled().len().saturating_sub(filled_before));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MeteredStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written_bytes = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.byte_counters.count_sent(written_bytes);
        Poll::Ready(Ok(written_bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written_bytes =
            ready!(Pin::new(&mut self.stream).poll_write_vectored(context, slices))?;
        self.byte_counters.count_sent(written_bytes);
        Poll::Ready(Ok(written_bytes))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
