//! Sending of frames on a link.

use bytes::{BufMut, BytesMut};

use super::frame::{self, FrameHeader, FrameKind, HEADER_BYTES};
use super::stream::{FrameViolation, StreamState};
use super::{
    GoAwayCode, Link, OpenError, ResetCode, Role, STREAM_LAST, StreamClosed, StreamId, StreamKind,
};

impl Link {
    /// Opens a stream with the head that `write_head` appends to the output; it must not modify the existing
    /// output. With `end` this direction is complete.
    ///
    /// # Errors
    ///
    /// Nothing is written: the link is full, going away or broken, or the head is too large.
    pub fn open_stream(
        &mut self,
        kind: StreamKind,
        end: bool,
        write_head: impl FnOnce(&mut BytesMut),
    ) -> Result<StreamId, OpenError> {
        if self.failure.is_some() || self.role == Role::Acceptor {
            return Err(OpenError::Broken);
        }
        if self.is_going_away() {
            return Err(OpenError::GoingAway);
        }
        if self.vacant_streams() == 0 {
            return Err(OpenError::Full);
        }
        let number =
            self.last_stream.number().checked_add(1).filter(|number| *number <= STREAM_LAST);
        let id = StreamId(number.ok_or(OpenError::GoingAway)?);
        let mut stream = StreamState::new(kind, &self.own_limits, &self.peer_limits);
        let header = FrameHeader::new(FrameKind::Open, id, 0)
            .with_flag(frame::END, end)
            .with_flag(frame::TCP, kind == StreamKind::Tcp);
        let length = self.write_section(header, write_head).ok_or(OpenError::TooLarge)?;
        let checked = stream.sending.check_head(length, false, end);
        checked.expect("a section within head_max fits the allowance of a new stream");
        self.last_stream = id;
        self.streams.insert(id, stream);
        if id.number() == STREAM_LAST {
            self.go_away(GoAwayCode::StreamIdsExhausted);
        }
        Ok(id)
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
        end: bool,
        write_head: impl FnOnce(&mut BytesMut),
    ) -> Result<(), StreamClosed> {
        self.check_sendable(stream)?;
        let header = FrameHeader::new(FrameKind::Head, stream, 0)
            .with_flag(frame::END, end)
            .with_flag(frame::INTERIM, interim);
        self.send_section(header, write_head, |state, length| {
            state.sending.check_head(length, interim, end)?;
            Ok(!interim)
        })
    }

    /// Sends the final head of a rejection by this sidecar, which `write_head` appends to the output. It is
    /// marked for peers that support reasons.
    ///
    /// # Errors
    ///
    /// As [`send_head`](Self::send_head).
    pub fn send_rejection(
        &mut self,
        stream: StreamId,
        end: bool,
        write_head: impl FnOnce(&mut BytesMut),
    ) -> Result<(), StreamClosed> {
        self.check_sendable(stream)?;
        let header = FrameHeader::new(FrameKind::Head, stream, 0)
            .with_flag(frame::END, end)
            .with_flag(frame::REJECTED, self.peer_reads_reasons);
        self.send_section(header, write_head, |state, length| {
            state.sending.check_head(length, false, end)?;
            Ok(true)
        })
    }

    /// Sends as much of `data` as the credit allows and returns the number of bytes. `end` takes effect after
    /// all bytes were accepted; otherwise continue at the next [`LinkEvent::Credit`](super::LinkEvent::Credit).
    ///
    /// # Errors
    ///
    /// The stream accepts no more data; or data precedes the response head, which resets the stream.
    pub fn send_data(
        &mut self,
        stream: StreamId,
        data: &[u8],
        end: bool,
    ) -> Result<usize, StreamClosed> {
        let state = self.streams.get_mut(&stream).ok_or(StreamClosed)?;
        let granted = usize::try_from(state.credit).unwrap_or(usize::MAX);
        let (accepted, remaining) = data.split_at_checked(granted).unwrap_or((data, &[]));
        let end = end && remaining.is_empty();
        match state.sending.check_data(end) {
            Ok(()) => {}
            Err(FrameViolation::Ended) => return Err(StreamClosed),
            Err(FrameViolation::Order | FrameViolation::Sections) => {
                self.reset_stream(stream, ResetCode::Failed);
                return Err(StreamClosed);
            }
        }
        let spent = u32::try_from(accepted.len()).unwrap_or(u32::MAX);
        state.credit = state.credit.saturating_sub(spent);
        let is_response = spent > 0 && self.role == Role::Acceptor;
        let starts_response = is_response && !std::mem::replace(&mut state.has_response, true);
        self.write_data(stream, accepted, end);
        if starts_response {
            self.budget.record_response();
        }
        if end {
            self.remove_if_ended(stream);
        }
        Ok(accepted.len())
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
        let write = |output: &mut BytesMut| output.put_slice(trailers);
        self.send_section(header, write, |state, length| {
            state.sending.check_trailers(length)?;
            Ok(false)
        })
    }

    /// Resets the stream in both directions. Does nothing if it is already gone.
    ///
    /// The acceptor treats an opener with too many unanswered resets as hostile, regardless of their cause.
    /// This end therefore sends GOAWAY at half of the allowance: use another link then.
    pub fn reset_stream(&mut self, stream: StreamId, code: ResetCode) {
        self.reset_with_reason(stream, code, "");
    }

    /// Resets the stream as [`Self::reset_stream`] does, and sends `reason` to peers that support reasons.
    pub fn reset_with_reason(&mut self, stream: StreamId, code: ResetCode, reason: &str) {
        if let Some(state) = self.streams.remove(&stream) {
            if !state.receiving.is_ended() {
                self.budget.expect_late_data(state.granted);
            }
            self.budget.record_stream_end();
            let reason = if self.peer_reads_reasons { reason } else { "" };
            frame::write_reset(&mut self.output, stream, code as u8, reason);
            if self.role == Role::Opener && !state.has_response {
                self.count_early_reset();
            }
        }
    }

    /// Counts a reset before the response, as the acceptor does.
    fn count_early_reset(&mut self) {
        // The acceptor judges resets beyond the allowance: streams opened before the GOAWAY may still be reset.
        self.budget.count_early_reset();
        if self.budget.is_half_spent() {
            self.go_away(GoAwayCode::StreamIdsExhausted);
        }
    }

    /// Acknowledges bytes that left this side's memory, so that the peer may send as many again. CREDIT is sent
    /// once half a window is unacknowledged.
    pub fn record_consumed(&mut self, stream: StreamId, bytes: u32) {
        let window = self.own_limits.window;
        let Some(state) = self.streams.get_mut(&stream) else {
            return;
        };
        if state.receiving.is_ended() {
            return;
        }
        let outstanding = window.saturating_sub(state.granted);
        debug_assert!(
            bytes <= outstanding.saturating_sub(state.unacknowledged),
            "consumed more than was received"
        );
        state.unacknowledged = state.unacknowledged.saturating_add(bytes).min(outstanding);
        if state.unacknowledged >= window.div_ceil(2) {
            let unacknowledged = std::mem::take(&mut state.unacknowledged);
            state.granted = state.granted.saturating_add(unacknowledged);
            frame::write_credit(&mut self.output, stream, unacknowledged);
        }
    }

    fn check_sendable(&self, stream: StreamId) -> Result<(), StreamClosed> {
        match self.streams.get(&stream) {
            Some(state) if !state.sending.is_ended() => Ok(()),
            _ => Err(StreamClosed),
        }
    }

    /// Writes a head or trailers to an open stream; `check` applies the rules of its direction and returns
    /// true if the frame starts the response.
    fn send_section(
        &mut self,
        header: FrameHeader,
        write: impl FnOnce(&mut BytesMut),
        check: impl FnOnce(&mut StreamState, u32) -> Result<bool, FrameViolation>,
    ) -> Result<(), StreamClosed> {
        let stream = header.stream;
        let start = self.output.len();
        let Some(length) = self.write_section(header, write) else {
            self.reset_stream(stream, ResetCode::TooLarge);
            return Err(StreamClosed);
        };
        let state = self.streams.get_mut(&stream).ok_or(StreamClosed)?;
        match check(state, length) {
            Ok(is_response) => {
                let starts_response =
                    is_response && !std::mem::replace(&mut state.has_response, true);
                if starts_response {
                    self.budget.record_response();
                }
                self.remove_if_ended(stream);
                Ok(())
            }
            Err(violation) => {
                self.output.truncate(start);
                let code = match violation {
                    FrameViolation::Sections => ResetCode::TooLarge,
                    FrameViolation::Ended | FrameViolation::Order => ResetCode::Failed,
                };
                self.reset_stream(stream, code);
                Err(StreamClosed)
            }
        }
    }

    /// Writes a frame with the payload that `write` appends, and then its length. Returns `None`, with the output
    /// unchanged, if the payload exceeds the peer's limit.
    fn write_section(
        &mut self,
        header: FrameHeader,
        write: impl FnOnce(&mut BytesMut),
    ) -> Option<u32> {
        let start = self.output.len();
        self.output.put_bytes(0, HEADER_BYTES);
        let payload = self.output.len();
        write(&mut self.output);
        let length = self.output.len().checked_sub(payload);
        debug_assert!(length.is_some(), "a head writer removed earlier frames");
        let length = length.and_then(|length| u32::try_from(length).ok());
        let length = length.filter(|length| *length <= self.peer_limits.head_max);
        let header_bytes = self.output.get_mut(start..payload);
        let (Some(length), Some(header_bytes)) = (length, header_bytes) else {
            self.output.truncate(start);
            return None;
        };
        header_bytes.copy_from_slice(&FrameHeader { length, ..header }.encode());
        Some(length)
    }

    fn write_data(&mut self, stream: StreamId, data: &[u8], end: bool) {
        let frame_max = usize::try_from(self.peer_limits.frame_max).unwrap_or(usize::MAX);
        let mut unsent = data;
        while !unsent.is_empty() || end {
            let (chunk, remaining) = unsent.split_at_checked(frame_max).unwrap_or((unsent, &[]));
            let is_last = remaining.is_empty();
            let length = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
            let header = FrameHeader::new(FrameKind::Data, stream, length)
                .with_flag(frame::END, end && is_last);
            self.output.put_slice(&header.encode());
            self.output.put_slice(chunk);
            if is_last {
                return;
            }
            unsent = remaining;
        }
    }
}
