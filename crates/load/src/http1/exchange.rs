//! One request and its response on one connection, concurrently.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::request::SerializedRequest;
use super::response::{ReceivedResponse, ResponseReader};
use crate::environment::{ReadBuffers, ThreadContext};
use crate::error_kind::ErrorKind;

/// One request and its response on one connection. The response may arrive before the end of the request, as
/// rejections do.
pub(super) struct Http1Exchange<'a, S> {
    stream: &'a mut S,
    unsent: &'a [u8],
    /// True if the server reads no more of the request; it may still respond.
    write_failed: bool,
    response_reader: &'a mut ResponseReader,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Http1Exchange<'a, S> {
    pub(super) fn new(
        stream: &'a mut S,
        request: &'a SerializedRequest,
        response_reader: &'a mut ResponseReader,
    ) -> Self {
        response_reader.start_response(request.request_kind);
        Self { stream, unsent: &request.bytes, write_failed: false, response_reader }
    }

    /// Writes as much as possible, and reads until the response is complete.
    pub(super) fn poll<E>(
        &mut self,
        context: &mut Context<'_>,
        thread_context: &ThreadContext<E>,
    ) -> Poll<Result<ReceivedResponse, ErrorKind>> {
        while !self.unsent.is_empty() && !self.write_failed {
            match Pin::new(&mut *self.stream).poll_write(context, self.unsent) {
                Poll::Ready(Ok(written)) if written > 0 => {
                    thread_context.byte_counters.count_sent(written);
                    self.unsent = self.unsent.get(written..).unwrap_or_default();
                }
                Poll::Ready(_) => self.write_failed = true,
                Poll::Pending => break,
            }
        }
        let read_buffers = &mut *thread_context.read_buffers.borrow_mut();
        loop {
            let read = ready!(self.poll_read(context, read_buffers));
            let received = match read {
                Ok(0) => Some(self.response_reader.finish_at_close()?),
                Ok(read) => {
                    thread_context.byte_counters.count_received(read);
                    self.response_reader
                        .parse_bytes(&mut read_buffers.head, &read_buffers.buffer[..read])?
                }
                Err(error) => return Poll::Ready(Err(ErrorKind::from_transfer_error(&error))),
            };
            if let Some(received) = received {
                let reusable = received.reusable && self.unsent.is_empty();
                return Poll::Ready(Ok(ReceivedResponse { reusable, ..received }));
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
