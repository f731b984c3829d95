//! Writes the frames that this side sends to the output of a link.

use bytes::{BufMut, BytesMut};

use super::frame::{self, FrameHeader, FrameKind, HEADER_BYTES};
use super::stream::{FrameViolation, StreamState};
use super::{
    GoAwayCode, LAST_STREAM_NUMBER, Link, OpenError, ResetCode, Role, StreamClosed, StreamId,
    StreamKind,
};

impl Link {
    /// Opens a stream with the head that `write_head` appends to the output; `write_head` must not modify the existing
    /// output. If `end_stream` is true, this side sends nothing more on the stream.
    ///
    /// # Errors
    ///
    /// The link is full, going away or broken, or the head is too large. Nothing is written.
    pub fn open_stream(
        &mut self,
        kind: StreamKind,
        end_stream: bool,
        write_head: impl FnOnce(&mut BytesMut),
    ) -> Result<StreamId, OpenError> {
        if self.fatal_error.is_some() || self.role == Role::Acceptor {
            return Err(OpenError::Broken);
        }
        if self.is_going_away() {
            return Err(OpenError::GoingAway);
        }
        if self.vacant_stream_count() == 0 {
            return Err(OpenError::Full);
        }
        let number =
            self.last_stream.number().checked_add(1).filter(|number| *number <= LAST_STREAM_NUMBER);
        let stream = StreamId(number.ok_or(OpenError::GoingAway)?);
        let mut state = StreamState::new(kind, &self.own_limits, &self.peer_limits);
        let header = FrameHeader::new(FrameKind::Open, stream, 0)
            .with_flag(frame::END, end_stream)
            .with_flag(frame::TCP, kind == StreamKind::Tcp);
        let length = self.write_section(header, write_head).ok_or(OpenError::TooLarge)?;
        let accept_result = state.send_direction.accept_head(length, false, end_stream);
        accept_result.expect("a section within max_head fits the allowance of a new stream");
        self.last_stream = stream;
        self.streams.insert(stream, state);
        if stream.number() == LAST_STREAM_NUMBER {
            self.go_away(GoAwayCode::StreamIdsExhausted);
        }
        Ok(stream)
    }

    /// Sends the response head that `write_head` appends to the output. Any number of `interim` (1xx) heads
    /// within the section allowance may precede the final one.
    ///
    /// A head that is too large or out of order resets the stream.
    ///
    /// # Errors
    ///
    /// The stream accepts no more heads, or was just reset.
    pub fn send_head(
        &mut self,
        stream: StreamId,
        interim: bool,
        end_stream: bool,
        write_head: impl FnOnce(&mut BytesMut),
    ) -> Result<(), StreamClosed> {
        self.check_sendable(stream)?;
        let header = FrameHeader::new(FrameKind::Head, stream, 0)
            .with_flag(frame::END, end_stream)
            .with_flag(frame::INTERIM, interim);
        self.send_section(header, write_head, |state, length| {
            state.send_direction.accept_head(length, interim, end_stream)?;
            Ok(!interim)
        })
    }

    /// Sends the head of a rejection by this sidecar, which `write_head` appends to the output. For peers that support
    /// rejection reasons, a flag distinguishes it from a head of the application.
    ///
    /// # Errors
    ///
    /// The same as for [`send_head`](Self::send_head).
    pub fn send_rejection(
        &mut self,
        stream: StreamId,
        end_stream: bool,
        write_head: impl FnOnce(&mut BytesMut),
    ) -> Result<(), StreamClosed> {
        self.check_sendable(stream)?;
        let header = FrameHeader::new(FrameKind::Head, stream, 0)
            .with_flag(frame::END, end_stream)
            .with_flag(frame::REJECTED, self.peer_reads_reasons);
        self.send_section(header, write_head, |state, length| {
            state.send_direction.accept_head(length, false, end_stream)?;
            Ok(true)
        })
    }

    /// Sends as much of `data` as the credit allows, and returns the number of bytes. If that is less than all bytes,
    /// `end_stream` has no effect: send the other bytes at the next [`LinkEvent::Credit`](super::LinkEvent::Credit).
    ///
    /// # Errors
    ///
    /// The stream accepts no more data, or was just reset because the data precedes the response head.
    pub fn send_data(
        &mut self,
        stream: StreamId,
        data: &[u8],
        end_stream: bool,
    ) -> Result<usize, StreamClosed> {
        let state = self.streams.get_mut(&stream).ok_or(StreamClosed)?;
        let available_credit = usize::try_from(state.send_credit).unwrap_or(usize::MAX);
        let (accepted_data, remaining_data) =
            data.split_at_checked(available_credit).unwrap_or((data, &[]));
        let end_stream = end_stream && remaining_data.is_empty();
        match state.send_direction.accept_data(end_stream) {
            Ok(()) => {}
            Err(FrameViolation::Ended) => return Err(StreamClosed),
            Err(FrameViolation::Order | FrameViolation::Sections) => {
                self.reset_stream(stream, ResetCode::Failed);
                return Err(StreamClosed);
            }
        }
        let spent_credit = u32::try_from(accepted_data.len()).unwrap_or(u32::MAX);
        state.send_credit = state.send_credit.saturating_sub(spent_credit);
        let is_response = spent_credit > 0 && self.role == Role::Acceptor;
        let starts_response = is_response && !std::mem::replace(&mut state.has_response, true);
        self.write_data(stream, accepted_data, end_stream);
        if starts_response {
            self.allowances.record_response();
        }
        if end_stream {
            self.remove_if_ended(stream);
        }
        Ok(accepted_data.len())
    }

    /// Sends the trailer section of a body, in HTTP/1.1 format; this ends the direction.
    ///
    /// A section that is too large or out of order resets the stream.
    ///
    /// # Errors
    ///
    /// The stream accepts no more trailers, or was just reset.
    pub fn send_trailers(&mut self, stream: StreamId, trailers: &[u8]) -> Result<(), StreamClosed> {
        self.check_sendable(stream)?;
        let header = FrameHeader::new(FrameKind::Trailers, stream, 0);
        let write_payload = |output: &mut BytesMut| output.put_slice(trailers);
        self.send_section(header, write_payload, |state, length| {
            state.send_direction.accept_trailers(length)?;
            Ok(false)
        })
    }

    /// Resets the stream in both directions. Does nothing if the stream is already closed.
    ///
    /// The acceptor closes a link whose opener resets too many streams before their responses, for whatever cause. The
    /// opener therefore sends GOAWAY at half of that allowance: open new streams on another link.
    pub fn reset_stream(&mut self, stream: StreamId, code: ResetCode) {
        self.reset_with_reason(stream, code, "");
    }

    /// Resets the stream as [`Self::reset_stream`] does, and sends `reason` to peers that support reasons.
    pub fn reset_with_reason(&mut self, stream: StreamId, code: ResetCode, reason: &str) {
        if let Some(state) = self.streams.remove(&stream) {
            if !state.receive_direction.is_ended() {
                self.allowances.expect_late_data(state.granted_credit);
            }
            self.allowances.record_stream_end();
            let reason = if self.peer_reads_reasons { reason } else { "" };
            frame::write_reset(&mut self.output, stream, code as u8, reason);
            if self.role == Role::Opener && !state.has_response {
                self.record_own_early_reset();
            }
        }
    }

    /// Counts a reset of the opener before the response, and ends the creation of streams at half of the allowance.
    /// Streams opened before the GOAWAY may still be reset.
    fn record_own_early_reset(&mut self) {
        self.allowances.record_own_early_reset();
        if self.allowances.is_early_reset_allowance_half_spent() {
            self.go_away(GoAwayCode::StreamIdsExhausted);
        }
    }

    /// Records that `bytes` received DATA bytes left this side's memory, so that the peer may send the same number
    /// again. Sends CREDIT once half a window is recorded.
    pub fn record_consumed(&mut self, stream: StreamId, bytes: u32) {
        let window = self.own_limits.window;
        let Some(state) = self.streams.get_mut(&stream) else {
            return;
        };
        if state.receive_direction.is_ended() {
            return;
        }
        let outstanding_bytes = window.saturating_sub(state.granted_credit);
        debug_assert!(
            bytes <= outstanding_bytes.saturating_sub(state.unacknowledged_bytes),
            "consumed more than was received"
        );
        state.unacknowledged_bytes =
            state.unacknowledged_bytes.saturating_add(bytes).min(outstanding_bytes);
        if state.unacknowledged_bytes >= window.div_ceil(2) {
            let acknowledged_bytes = std::mem::take(&mut state.unacknowledged_bytes);
            state.granted_credit = state.granted_credit.saturating_add(acknowledged_bytes);
            frame::write_credit(&mut self.output, stream, acknowledged_bytes);
        }
    }

    /// Succeeds if the stream is open and this side has not ended its direction.
    fn check_sendable(&self, stream: StreamId) -> Result<(), StreamClosed> {
        match self.streams.get(&stream) {
            Some(state) if !state.send_direction.is_ended() => Ok(()),
            _ => Err(StreamClosed),
        }
    }

    /// Sends a head or trailers on an open stream. `accept` applies the rules of the send direction to the length of the
    /// section, and returns true if the frame starts the response.
    fn send_section(
        &mut self,
        header: FrameHeader,
        write_payload: impl FnOnce(&mut BytesMut),
        accept: impl FnOnce(&mut StreamState, u32) -> Result<bool, FrameViolation>,
    ) -> Result<(), StreamClosed> {
        let stream = header.stream;
        let frame_start = self.output.len();
        let Some(length) = self.write_section(header, write_payload) else {
            self.reset_stream(stream, ResetCode::TooLarge);
            return Err(StreamClosed);
        };
        let state = self.streams.get_mut(&stream).ok_or(StreamClosed)?;
        match accept(state, length) {
            Ok(is_response) => {
                let starts_response =
                    is_response && !std::mem::replace(&mut state.has_response, true);
                if starts_response {
                    self.allowances.record_response();
                }
                self.remove_if_ended(stream);
                Ok(())
            }
            Err(violation) => {
                self.output.truncate(frame_start);
                let code = match violation {
                    FrameViolation::Sections => ResetCode::TooLarge,
                    FrameViolation::Ended | FrameViolation::Order => ResetCode::Failed,
                };
                self.reset_stream(stream, code);
                Err(StreamClosed)
            }
        }
    }

    /// Writes a frame with the payload that `write_payload` appends, and sets the length in its header. Returns the
    /// length; `None`, with the output unchanged, if the payload exceeds the peer's limit.
    fn write_section(
        &mut self,
        header: FrameHeader,
        write_payload: impl FnOnce(&mut BytesMut),
    ) -> Option<u32> {
        let frame_start = self.output.len();
        self.output.put_bytes(0, HEADER_BYTES);
        let payload_start = self.output.len();
        write_payload(&mut self.output);
        let length = self.output.len().checked_sub(payload_start);
        debug_assert!(length.is_some(), "a head writer removed earlier frames");
        let length = length.and_then(|length| u32::try_from(length).ok());
        let length = length.filter(|length| *length <= self.peer_limits.max_head);
        let header_bytes = self.output.get_mut(frame_start..payload_start);
        let (Some(length), Some(header_bytes)) = (length, header_bytes) else {
            self.output.truncate(frame_start);
            return None;
        };
        header_bytes.copy_from_slice(&FrameHeader { length, ..header }.encode());
        Some(length)
    }

    /// Writes as many DATA frames as the peer's frame limit requires.
    fn write_data(&mut self, stream: StreamId, data: &[u8], end_stream: bool) {
        let max_frame = usize::try_from(self.peer_limits.max_frame).unwrap_or(usize::MAX);
        let mut unsent_data = data;
        while !unsent_data.is_empty() || end_stream {
            let (chunk, remaining_data) =
                unsent_data.split_at_checked(max_frame).unwrap_or((unsent_data, &[]));
            let is_last = remaining_data.is_empty();
            let length = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
            let header = FrameHeader::new(FrameKind::Data, stream, length)
                .with_flag(frame::END, end_stream && is_last);
            self.output.put_slice(&header.encode());
            self.output.put_slice(chunk);
            if is_last {
                return;
            }
            unsent_data = remaining_data;
        }
    }
}
