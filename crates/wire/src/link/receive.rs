//! Converts received frames to events, and checks them against the rules of the link protocol.

use bytes::{Buf, Bytes, BytesMut};

use super::frame::{self, FrameHeader, FrameKind, HEADER_BYTES};
use super::stream::{FrameViolation, StreamState};
use super::{GoAwayCode, Link, LinkError, LinkEvent, ResetCode, Role, StreamId, StreamKind};

impl Link {
    /// Consumes complete frames of `input` up to the first event. Returns `None` if more bytes are needed.
    ///
    /// An input buffer of [`LinkLimits::max_input_bytes`](super::LinkLimits::max_input_bytes) always suffices.
    ///
    /// # Errors
    ///
    /// The peer violated the protocol, and all streams are closed. Write the output, which ends with a GOAWAY, and
    /// close the connection. Every later call returns the same error.
    pub fn receive(&mut self, input: &mut BytesMut) -> Result<Option<LinkEvent>, LinkError> {
        if let Some(error) = self.fatal_error {
            return Err(error);
        }
        let event = self.next_event(input);
        event.map_err(|error| self.fail_link(error))
    }

    /// Consumes frames up to the first event. First reports credit that the peer's HELLO granted.
    fn next_event(&mut self, input: &mut BytesMut) -> Result<Option<LinkEvent>, LinkError> {
        if let Some(event) = self.next_credit_event() {
            return Ok(Some(event));
        }
        let pending_bytes = self.output.len();
        if pending_bytes > self.own_limits.stall_threshold {
            return Err(LinkError::Stalled { bytes: pending_bytes });
        }
        while let Some((header, payload)) = self.next_frame(input)? {
            if let Some(event) = self.handle_frame(header, payload)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Consumes one frame; `None` if it is incomplete.
    fn next_frame(&self, input: &mut BytesMut) -> Result<Option<(FrameHeader, Bytes)>, LinkError> {
        let Some(header) = FrameHeader::peek(input)? else {
            return Ok(None);
        };
        if !self.hello_received && header.kind != FrameKind::Hello {
            return Err(LinkError::Hello { fault: "is not the first frame" });
        }
        header.check_length(&self.own_limits)?;
        let length = usize::try_from(header.length).unwrap_or(usize::MAX);
        if input.len() < length.saturating_add(HEADER_BYTES) {
            return Ok(None);
        }
        input.advance(HEADER_BYTES);
        let payload = if length == 0 { Bytes::new() } else { input.split_to(length).freeze() };
        Ok(Some((header, payload)))
    }

    fn handle_frame(
        &mut self,
        header: FrameHeader,
        payload: Bytes,
    ) -> Result<Option<LinkEvent>, LinkError> {
        match header.kind {
            FrameKind::Hello => self.handle_hello(payload).map(Some),
            FrameKind::Open => self.handle_open(header, payload),
            FrameKind::Head => self.handle_head(header, payload),
            FrameKind::Data => self.handle_data(header, payload),
            FrameKind::Trailers => self.handle_trailers(header, payload),
            FrameKind::Reset => self.handle_reset(header, payload),
            FrameKind::Credit => self.handle_credit(header, payload),
            FrameKind::GoAway => self.handle_go_away(payload).map(Some),
            FrameKind::Ping => self.handle_ping(),
            FrameKind::Pong => self.handle_pong(),
        }
    }

    fn handle_hello(&mut self, payload: Bytes) -> Result<LinkEvent, LinkError> {
        if self.hello_received {
            return Err(LinkError::Hello { fault: "came twice" });
        }
        let (peer_limits, reads_reasons) = frame::read_hello(payload, self.role)?;
        let added_credit = peer_limits.window.saturating_sub(self.peer_limits.window);
        self.hello_received = true;
        self.peer_limits = peer_limits;
        self.peer_reads_reasons = reads_reasons;
        for (stream, state) in &mut self.streams {
            if state.is_starved() && added_credit > 0 {
                self.credited_streams.push(*stream);
            }
            state.send_credit = state.send_credit.saturating_add(added_credit);
        }
        Ok(LinkEvent::Ready)
    }

    /// Returns the credit event of the next stream that was opened before the peer's HELLO and had no credit.
    fn next_credit_event(&mut self) -> Option<LinkEvent> {
        while let Some(stream) = self.credited_streams.pop() {
            if self.streams.contains_key(&stream) {
                return Some(LinkEvent::Credit { stream });
            }
        }
        None
    }

    fn handle_open(
        &mut self,
        header: FrameHeader,
        head: Bytes,
    ) -> Result<Option<LinkEvent>, LinkError> {
        let stream = header.stream;
        let misplaced = |fault| LinkError::Misplaced { stream, fault };
        if self.role == Role::Opener {
            return Err(misplaced("the acceptor opens no streams"));
        }
        if self.go_away_received.is_some() {
            return Err(misplaced("opened after GOAWAY"));
        }
        if stream == StreamId::ALL
            || self.last_stream.number().checked_add(1) != Some(stream.number())
        {
            return Err(misplaced("stream numbers must be consecutive"));
        }
        self.last_stream = stream;
        if self.go_away_sent.is_some_and(|last_accepted| stream > last_accepted) {
            // This side's GOAWAY informs the peer that the stream was never processed.
            self.allowances.expect_late_data(self.own_limits.window);
            self.allowances.record_useless_frame()?;
            return Ok(None);
        }
        let max_streams = self.own_limits.max_streams;
        if self.streams.len() >= usize::try_from(max_streams).unwrap_or(usize::MAX) {
            return Err(LinkError::StreamsExceeded { max: max_streams });
        }
        let is_tcp = header.has_flag(frame::TCP);
        let kind = if is_tcp { StreamKind::Tcp } else { StreamKind::Http };
        let end_stream = header.has_flag(frame::END);
        let mut state = StreamState::new(kind, &self.own_limits, &self.peer_limits);
        state
            .receive_direction
            .accept_head(header.length, false, end_stream)
            .map_err(|violation| misplaced(violation.as_str()))?;
        self.streams.insert(stream, state);
        self.allowances.record_useful_frame();
        Ok(Some(LinkEvent::Opened { stream, kind, head, end_stream }))
    }

    fn handle_head(
        &mut self,
        header: FrameHeader,
        head: Bytes,
    ) -> Result<Option<LinkEvent>, LinkError> {
        let stream = header.stream;
        if self.role == Role::Acceptor {
            return Err(LinkError::Misplaced {
                stream,
                fault: "the opener's head is part of OPEN",
            });
        }
        let interim = header.has_flag(frame::INTERIM);
        let rejected = header.has_flag(frame::REJECTED);
        let end_stream = header.has_flag(frame::END);
        let Some(state) = self.find_open_stream(stream)? else {
            return self.handle_late_frame();
        };
        convert_violation(
            stream,
            state.receive_direction.accept_head(header.length, interim, end_stream),
        )?;
        // Only the final head counts as a response.
        if !interim {
            state.has_response = true;
            self.allowances.record_response();
        } else if rejected {
            let fault = "a rejection is a final head";
            return Err(LinkError::Misplaced { stream, fault });
        }
        self.allowances.record_useful_frame();
        self.remove_if_ended(stream);
        Ok(Some(LinkEvent::Head { stream, head, interim, rejected, end_stream }))
    }

    fn handle_data(
        &mut self,
        header: FrameHeader,
        data: Bytes,
    ) -> Result<Option<LinkEvent>, LinkError> {
        let stream = header.stream;
        let end_stream = header.has_flag(frame::END);
        let is_opener = self.role == Role::Opener;
        let Some(state) = self.find_open_stream(stream)? else {
            self.allowances.record_late_data(header.length)?;
            return Ok(None);
        };
        convert_violation(stream, state.receive_direction.accept_data(end_stream))?;
        let remaining_credit = state.granted_credit.checked_sub(header.length);
        state.granted_credit = remaining_credit.ok_or(LinkError::FlowControl { stream })?;
        let is_response = is_opener && !data.is_empty();
        let starts_response = is_response && !std::mem::replace(&mut state.has_response, true);
        if data.is_empty() && !end_stream {
            self.allowances.record_useless_frame()?;
            return Ok(None);
        }
        self.allowances.record_useful_frame();
        if starts_response {
            self.allowances.record_response();
        }
        if end_stream {
            self.remove_if_ended(stream);
        }
        Ok(Some(LinkEvent::Data { stream, data, end_stream }))
    }

    fn handle_trailers(
        &mut self,
        header: FrameHeader,
        trailers: Bytes,
    ) -> Result<Option<LinkEvent>, LinkError> {
        let stream = header.stream;
        let Some(state) = self.find_open_stream(stream)? else {
            return self.handle_late_frame();
        };
        convert_violation(stream, state.receive_direction.accept_trailers(header.length))?;
        self.allowances.record_useful_frame();
        self.remove_if_ended(stream);
        Ok(Some(LinkEvent::Trailers { stream, trailers }))
    }

    fn handle_reset(
        &mut self,
        header: FrameHeader,
        mut payload: Bytes,
    ) -> Result<Option<LinkEvent>, LinkError> {
        let stream = header.stream;
        if self.find_open_stream(stream)?.is_none() {
            return self.handle_late_frame();
        }
        // The length was checked before, so the code is present.
        let code = ResetCode::from_wire(payload.try_get_u8().unwrap_or_default());
        let has_response = self.streams.remove(&stream).is_some_and(|state| state.has_response);
        if self.role == Role::Acceptor && !has_response {
            self.allowances.record_peer_early_reset()?;
        }
        self.allowances.record_stream_end();
        Ok(Some(LinkEvent::Reset { stream, code, reason: payload }))
    }

    fn handle_credit(
        &mut self,
        header: FrameHeader,
        mut payload: Bytes,
    ) -> Result<Option<LinkEvent>, LinkError> {
        let stream = header.stream;
        let window = self.peer_limits.window;
        let credit_bytes = payload.try_get_u32().unwrap_or_default();
        if credit_bytes == 0 {
            return Err(LinkError::Malformed { fault: "a credit of 0" });
        }
        let Some(state) = self.find_open_stream(stream)? else {
            return self.handle_late_frame();
        };
        let new_credit =
            state.send_credit.checked_add(credit_bytes).filter(|new_credit| *new_credit <= window);
        let was_starved = state.is_starved();
        state.send_credit = new_credit.ok_or(LinkError::FlowControl { stream })?;
        // A well-behaved peer sends CREDIT for at least half a window.
        if credit_bytes < window.div_ceil(2) {
            self.allowances.record_useless_frame()?;
        }
        Ok(was_starved.then_some(LinkEvent::Credit { stream }))
    }

    fn handle_go_away(&mut self, mut payload: Bytes) -> Result<LinkEvent, LinkError> {
        // The length was checked before, so both values are present.
        let last_stream = StreamId(payload.try_get_u32().unwrap_or_default());
        let code = GoAwayCode::from_wire(payload.try_get_u8().unwrap_or_default());
        match self.go_away_received {
            Some(previous_last_stream) if last_stream > previous_last_stream => {
                return Err(LinkError::Malformed {
                    fault: "GOAWAY with a higher last stream than before",
                });
            }
            Some(_) => self.allowances.record_useless_frame()?,
            None => {}
        }
        self.go_away_received = Some(last_stream);
        if self.role == Role::Opener {
            self.streams.retain(|stream, _| *stream <= last_stream);
        }
        Ok(LinkEvent::GoAway { last_stream, code })
    }

    /// Schedules one PONG for all PINGs that arrive before the output is taken.
    fn handle_ping(&mut self) -> Result<Option<LinkEvent>, LinkError> {
        if std::mem::replace(&mut self.pong_pending, true) {
            self.allowances.record_useless_frame()?;
        }
        Ok(None)
    }

    /// Reports the PONG, or sends the PING that was requested meanwhile.
    fn handle_pong(&mut self) -> Result<Option<LinkEvent>, LinkError> {
        if !std::mem::take(&mut self.ping_in_flight) {
            return self.handle_late_frame();
        }
        if std::mem::take(&mut self.ping_requested) {
            self.ping();
            return Ok(None);
        }
        Ok(Some(LinkEvent::Pong))
    }

    /// Returns the open stream of a frame; `None` if the stream has ended, so that the frame is late.
    fn find_open_stream(
        &mut self,
        stream: StreamId,
    ) -> Result<Option<&mut StreamState>, LinkError> {
        if stream > self.last_stream {
            return Err(LinkError::Misplaced { stream, fault: "never opened" });
        }
        Ok(self.streams.get_mut(&stream))
    }

    /// Counts and ignores a frame for a closed stream, or a PONG without a PING.
    fn handle_late_frame(&mut self) -> Result<Option<LinkEvent>, LinkError> {
        self.allowances.record_useless_frame()?;
        Ok(None)
    }
}

/// Converts a violation to the error of the link.
fn convert_violation(
    stream: StreamId,
    accept_result: Result<(), FrameViolation>,
) -> Result<(), LinkError> {
    accept_result.map_err(|violation| LinkError::Misplaced { stream, fault: violation.as_str() })
}
