//! Incremental response parser: buffers only incomplete heads and framing.

use leno_wire::http1::{BodyDecoder, Parsed, RequestKind, ResponseHead};

use crate::error_kind::ErrorKind;

/// A complete response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReceivedResponse {
    pub(super) status: u16,
    /// True if the connection can be reused.
    pub(super) reusable: bool,
}

/// A response in progress.
#[derive(Debug, Default)]
pub(super) struct ResponseReader {
    request_kind: RequestKind,
    /// The number of preceding interim responses.
    interim_count: u32,
    received: Option<ReceivedResponse>,
    body: Option<BodyDecoder>,
    /// Bytes that could not be parsed yet. Bounded, since the parsers bound heads and framing.
    unparsed: Vec<u8>,
}

impl ResponseReader {
    /// Starts a new response.
    pub(super) fn start_response(&mut self, request_kind: RequestKind) {
        self.request_kind = request_kind;
        self.interim_count = 0;
        self.received = None;
        self.body = None;
        self.unparsed.clear();
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
        if self.unparsed.is_empty() {
            let consumed = self.consume_bytes(head, bytes)?;
            self.unparsed.extend_from_slice(bytes.get(consumed..).unwrap_or_default());
        } else {
            let mut joined = std::mem::take(&mut self.unparsed);
            joined.extend_from_slice(bytes);
            let consumed = self.consume_bytes(head, &joined)?;
            joined.drain(..consumed);
            self.unparsed = joined;
        }
        let complete = self.body.as_ref().is_some_and(BodyDecoder::is_complete);
        match self.received.filter(|_| complete) {
            // Unsolicited bytes: they are not the next response.
            Some(_) if !self.unparsed.is_empty() => Err(ErrorKind::Malformed),
            received => Ok(received),
        }
    }

    /// Handles the close of the connection.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] unless the close delimits the response.
    pub(super) fn finish_at_close(&mut self) -> Result<ReceivedResponse, ErrorKind> {
        let (Some(received), Some(body)) = (self.received, &mut self.body) else {
            return Err(ErrorKind::Closed);
        };
        body.end_of_input().map_err(|_| ErrorKind::Closed)?;
        Ok(received)
    }

    /// Parses as much as possible; returns the number of bytes consumed.
    fn consume_bytes(&mut self, head: &mut ResponseHead, bytes: &[u8]) -> Result<usize, ErrorKind> {
        let mut consumed = 0;
        while self.received.is_none() {
            let rest = bytes.get(consumed..).unwrap_or_default();
            match head.parse(rest, self.request_kind).map_err(|_| ErrorKind::Malformed)? {
                Parsed::Partial => return Ok(consumed),
                Parsed::Complete(length) => consumed += length,
            }
            self.record_head(head)?;
        }
        let body = self.body.as_mut().expect("a response that was received has a body");
        while !body.is_complete() {
            let rest = bytes.get(consumed..).unwrap_or_default();
            let piece = body.decode(rest).map_err(|_| ErrorKind::Malformed)?;
            consumed += piece.consumed;
            if piece.consumed == 0 {
                break;
            }
        }
        Ok(consumed)
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
        self.received = Some(ReceivedResponse { status: head.status, reusable: head.keep_alive });
        self.body = Some(BodyDecoder::new(head.body));
        Ok(())
    }
}

/// The maximum number of interim responses before a response: a server may send 100 Continue and early hints.
const MAX_INTERIM_RESPONSES: u32 = 16;
