//! A connection as the HTTP/2 codec wants it, with what was read of it already in front.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::io::Io;

/// A connection, and what was read of it before its protocol was known.
pub(super) struct Transport {
    io: Io,
    early: BytesMut,
}

impl Transport {
    pub(super) fn new(io: Io, early: BytesMut) -> Self {
        Self { io, early }
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.early.is_empty() {
            return this.io.with(|stream| stream.poll_read(cx, buffer));
        }
        let length = this.early.len().min(buffer.remaining());
        buffer.put_slice(this.early.get(..length).unwrap_or_default());
        this.early.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.io.with(|stream| stream.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.with(|stream| stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.with(|stream| stream.poll_shutdown(cx))
    }
}
