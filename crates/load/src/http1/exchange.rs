//! Writes one request and reads its response on one connection, at the same time.

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
    unsent_bytes: &'a [u8],
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
        Self { stream, unsent_bytes: &request.bytes, write_failed: false, response_reader }
    }

    /// Writes as much as possible, and reads until the response is complete.
    pub(super) fn poll<E>(
        &mut self,
        context: &mut Context<'_>,
        thread_context: &ThreadContext<E>,
    ) -> Poll<Result<ReceivedResponse, ErrorKind>> {
        while !self.unsent_bytes.is_empty() && !self.write_failed {
            match Pin::new(&mut *self.stream).poll_write(context, self.unsent_bytes) {
                Poll::Ready(Ok(written)) if written > 0 => {
                    thread_context.byte_counters.count_sent(written);
                    self.unsent_bytes = self.unsent_bytes.get(written..).unwrap_or_default();
                }
                Poll::Ready(_) => self.write_failed = true,
                Poll::Pending => break,
            }
        }
        let read_buffers = &mut *thread_context.read_buffers.borrow_mut();
        loop {
            let read_result = ready!(self.poll_read(context, read_buffers));
            let response = match read_result {
                Ok(0) => Some(self.response_reader.finish_at_close()?),
                Ok(read_bytes) => {
                    thread_context.byte_counters.count_received(read_bytes);
                    self.response_reader.parse_bytes(
                        &mut read_buffers.response_head,
                        &read_buffers.read_buffer[..read_bytes],
                    )?
                }
                Err(error) => return Poll::Ready(Err(ErrorKind::from_transfer_error(&error))),
            };
            if let Some(response) = response {
                let can_reuse_connection =
                    response.can_reuse_connection && self.unsent_bytes.is_empty();
                return Poll::Ready(Ok(ReceivedResponse { can_reuse_connection, ..response }));
            }
        }
    }

    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        read_buffers: &mut ReadBuffers,
    ) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(&mut read_buffers.read_buffer);
        ready!(Pin::new(&mut *self.stream).poll_read(context, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }
}
