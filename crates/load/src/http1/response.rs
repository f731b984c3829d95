//! Parses responses incrementally. Only incomplete heads and framing are buffered.

use leno_wire::http1::{BodyDecoder, ParseProgress, RequestKind, ResponseHead};

use crate::error_kind::ErrorKind;

/// A complete response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReceivedResponse {
    pub(super) status: u16,
    /// True if the connection can be reused.
    pub(super) can_reuse_connection: bool,
}

/// A response in progress.
#[derive(Debug, Default)]
pub(super) struct ResponseReader {
    request_kind: RequestKind,
    /// The number of interim responses (1xx) before the final one.
    interim_count: u32,
    /// The final response; `None` until its head is complete.
    received_response: Option<ReceivedResponse>,
    /// The decoder of the final response's body; `None` until the head is complete.
    body_decoder: Option<BodyDecoder>,
    /// Bytes that could not be parsed yet. Bounded, since the parsers bound heads and framing.
    unparsed_bytes: Vec<u8>,
}

impl ResponseReader {
    /// Starts a new response.
    pub(super) fn start_response(&mut self, request_kind: RequestKind) {
        self.request_kind = request_kind;
        self.interim_count = 0;
        self.received_response = None;
        self.body_decoder = None;
        self.unparsed_bytes.clear();
    }

    /// Parses received bytes; returns the response when it is complete.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`].
    pub(super) fn parse_bytes(
        &mut self,
        head: &mut ResponseHead,
        bytes: &[u8],
    ) -> Result<Option<ReceivedResponse>, ErrorKind> {
        if self.unparsed_bytes.is_empty() {
            let consumed_bytes = self.consume_bytes(head, bytes)?;
            self.unparsed_bytes.extend_from_slice(bytes.get(consumed_bytes..).unwrap_or_default());
        } else {
            let mut joined_bytes = std::mem::take(&mut self.unparsed_bytes);
            joined_bytes.extend_from_slice(bytes);
            let consumed_bytes = self.consume_bytes(head, &joined_bytes)?;
            joined_bytes.drain(..consumed_bytes);
            self.unparsed_bytes = joined_bytes;
        }
        let is_complete = self.body_decoder.as_ref().is_some_and(BodyDecoder::is_complete);
        match self.received_response.filter(|_| is_complete) {
            // Unsolicited bytes: they are not the next response.
            Some(_) if !self.unparsed_bytes.is_empty() => Err(ErrorKind::Malformed),
            received_response => Ok(received_response),
        }
    }

    /// Handles the close of the connection.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] unless the close delimits the response.
    pub(super) fn finish_at_close(&mut self) -> Result<ReceivedResponse, ErrorKind> {
        let (Some(received_response), Some(body_decoder)) =
            (self.received_response, &mut self.body_decoder)
        else {
            return Err(ErrorKind::Closed);
        };
        body_decoder.end_of_input().map_err(|_| ErrorKind::Closed)?;
        Ok(received_response)
    }

    /// Parses as much as possible; returns the number of bytes consumed.
    fn consume_bytes(&mut self, head: &mut ResponseHead, bytes: &[u8]) -> Result<usize, ErrorKind> {
        let mut consumed_bytes = 0;
        while self.received_response.is_none() {
            let remaining_bytes = bytes.get(consumed_bytes..).unwrap_or_default();
            match head
                .parse(remaining_bytes, self.request_kind)
                .map_err(|_| ErrorKind::Malformed)?
            {
                ParseProgress::Partial => return Ok(consumed_bytes),
                ParseProgress::Complete(head_bytes) => consumed_bytes += head_bytes,
            }
            self.record_head(head)?;
        }
        let body_decoder =
            self.body_decoder.as_mut().expect("a response that was received has a body");
        while !body_decoder.is_complete() {
            let remaining_bytes = bytes.get(consumed_bytes..).unwrap_or_default();
            let piece = body_decoder.decode(remaining_bytes).map_err(|_| ErrorKind::Malformed)?;
            consumed_bytes += piece.consumed;
            if piece.consumed == 0 {
                break;
            }
        }
        Ok(consumed_bytes)
    }

    fn record_head(&mut self, head: &ResponseHead) -> Result<(), ErrorKind> {
        if head.is_interim() {
            self.interim_count += 1;
            return match self.interim_count <= MAX_INTERIM_RESPONSES {
                true => Ok(()),
                false => Err(ErrorKind::Malformed),
            };
        }
        if head.tunnel {
            // No upgrade was requested.
            return Err(ErrorKind::Malformed);
        }
        self.received_response =
            Some(ReceivedResponse { status: head.status, can_reuse_connection: head.keep_alive });
        self.body_decoder = Some(BodyDecoder::new(head.body));
        Ok(())
    }
}

/// The maximum number of interim responses before a response: a server may send 100 Continue and early hints.
const MAX_INTERIM_RESPONSES: u32 = 16;
