//! Sends one request or gRPC call on a stream, and reads its response.

use std::io;

use bytes::Bytes;
use h2::RecvStream;
use h2::client::SendRequest;
use http::HeaderMap;

use super::request::{GRPC_PREFIX_BYTES, Http2Request, ResponseKind};
use crate::error_kind::{ErrorKind, GRPC_UNKNOWN};
use crate::report::ResponseStatus;

impl Http2Request {
    /// Sends the request and reads its response to the end.
    pub(super) async fn send_request(
        &self,
        sender: SendRequest<Bytes>,
    ) -> Result<ResponseStatus, ErrorKind> {
        let mut sender = sender.ready().await.map_err(|error| classify_error(&error))?;
        let (response, mut request_stream) = sender
            .send_request(self.head.clone(), self.body.is_empty())
            .map_err(|error| classify_error(&error))?;
        if !self.body.is_empty() {
            // The server may reject the rest and respond.
            drop(request_stream.send_data(self.body.clone(), true));
        }
        let (response_head, mut response_body) =
            response.await.map_err(|error| classify_error(&error))?.into_parts();
        let status = response_head.status.as_u16();
        let mut grpc_message = GrpcMessage::default();
        while let Some(bytes) = response_body.data().await {
            let bytes = bytes.map_err(|error| classify_error(&error))?;
            grpc_message.record_bytes(&bytes);
            // Fails only if more bytes are released than were received.
            drop(response_body.flow_control().release_capacity(bytes.len()));
        }
        let grpc_status = match self.response_kind {
            ResponseKind::Grpc if response_head.status.is_success() => Some(
                read_grpc_status(&mut response_body, &response_head.headers, &grpc_message).await?,
            ),
            ResponseKind::Grpc | ResponseKind::Plain => None,
        };
        Ok(ResponseStatus { status, grpc: grpc_status })
    }
}

/// Returns the gRPC status of a call: from the trailers, or from the head of a trailers-only response. A call with status
/// OK must have exactly one complete message.
async fn read_grpc_status(
    body: &mut RecvStream,
    head: &HeaderMap,
    message: &GrpcMessage,
) -> Result<u8, ErrorKind> {
    let trailers = body.trailers().await.map_err(|error| classify_error(&error))?;
    let status = trailers.as_ref().unwrap_or(head).get(GRPC_STATUS_HEADER);
    let text = status.and_then(|status| status.to_str().ok()).ok_or(ErrorKind::Malformed)?;
    let code: u32 = text.parse().map_err(|_| ErrorKind::Malformed)?;
    if code == 0 && !message.is_complete() {
        return Err(ErrorKind::Malformed);
    }
    Ok(u8::try_from(code).unwrap_or(GRPC_UNKNOWN))
}

/// The progress of a received gRPC message. Its prefix states the length, and its content is ignored.
#[derive(Debug, Default)]
struct GrpcMessage {
    prefix: [u8; GRPC_PREFIX_BYTES],
    received_bytes: u64,
}

impl GrpcMessage {
    fn record_bytes(&mut self, bytes: &[u8]) {
        let prefix_bytes = usize::try_from(self.received_bytes)
            .unwrap_or(GRPC_PREFIX_BYTES)
            .min(GRPC_PREFIX_BYTES);
        for (slot, byte) in self.prefix[prefix_bytes..].iter_mut().zip(bytes) {
            *slot = *byte;
        }
        self.received_bytes += bytes.len() as u64;
    }

    /// True if exactly one complete message was received.
    fn is_complete(&self) -> bool {
        let [_, length @ ..] = self.prefix;
        self.received_bytes == GRPC_PREFIX_BYTES as u64 + u64::from(u32::from_be_bytes(length))
    }
}

/// Classifies an error of a connection or a stream.
pub(super) fn classify_error(error: &h2::Error) -> ErrorKind {
    if let Some(error) = error.get_io() {
        // `h2` reports the end of a connection as a broken pipe without an OS error.
        let is_end_of_connection =
            error.kind() == io::ErrorKind::BrokenPipe && error.raw_os_error().is_none();
        return if is_end_of_connection {
            ErrorKind::Closed
        } else {
            ErrorKind::from_transfer_error(error)
        };
    }
    match (error.is_remote(), error.is_library()) {
        (true, _) if error.is_go_away() => ErrorKind::Closed,
        (true, _) => ErrorKind::Reset,
        // Closed by the client because of a protocol error of the server.
        (false, true) => ErrorKind::Malformed,
        (false, false) => ErrorKind::Other,
    }
}

const GRPC_STATUS_HEADER: &str = "grpc-status";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_complete_after_its_last_byte_and_no_further_one() {
        let frame = b"\0\0\0\0\x03abc";
        for pieces in [1, 2, 3, 8] {
            let mut message = GrpcMessage::default();
            for piece in frame.chunks(pieces) {
                assert!(!message.is_complete());
                message.record_bytes(piece);
            }
            assert!(message.is_complete());
            message.record_bytes(b"x");
            assert!(!message.is_complete());
        }
    }
}
