//! One request and its response on one connection, concurrently.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::request::Request;
use super::response::{Received, Receiving};
use crate::error_kind::ErrorKind;
use crate::world::{ReadBuffers, Surroundings};

/// One request and its response on one connection. The response may arrive before the end of the request, as
/// rejections do.
pub(super) struct Exchange<'a, S> {
    stream: &'a mut S,
    unsent: &'a [u8],
    /// True if the server reads no more of the request; it may still respond.
    refused: bool,
    receiving: &'a mut Receiving,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Exchange<'a, S> {
    pub(super) fn new(
        stream: &'a mut S,
        request: &'a Request,
        receiving: &'a mut Receiving,
    ) -> Self {
        receiving.begin_response(request.answers);
        Self { stream, unsent: &request.bytes, refused: false, receiving }
    }

    /// Writes as much as possible, and reads until the response is complete.
    pub(super) fn poll<W>(
        &mut self,
        context: &mut Context<'_>,
        around: &Surroundings<W>,
    ) -> Poll<Result<Received, ErrorKind>> {
        while !self.unsent.is_empty() && !self.refused {
            match Pin::new(&mut *self.stream).poll_write(context, self.unsent) {
                Poll::Ready(Ok(written)) if written > 0 => {
                    around.meter.count_sent(written);
                    self.unsent = self.unsent.get(written..).unwrap_or_default();
                }
                Poll::Ready(_) => self.refused = true,
                Poll::Pending => break,
            }
        }
        let read_buffers = &mut *around.read_buffers.borrow_mut();
        loop {
            let read = ready!(self.poll_read(context, read_buffers));
            let received = match read {
                Ok(0) => Some(self.receiving.finish_at_close()?),
                Ok(read) => {
                    around.meter.count_received(read);
                    self.receiving
                        .parse_bytes(&mut read_buffers.head, &read_buffers.buffer[..read])?
                }
                Err(error) => return Poll::Ready(Err(ErrorKind::of_transfer(&error))),
            };
            if let Some(received) = received {
                let reusable = received.reusable && self.unsent.is_empty();
                return Poll::Ready(Ok(Received { reusable, ..received }));
            }
        }
    }

    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        read_buffers: &mut ReadBuffers,
    ) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(&mut read_buffers.buffer);
        ready!(Pin::new(&mut *self.stream).poll_read(context, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }
}
