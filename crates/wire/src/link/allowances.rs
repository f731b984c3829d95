//! Allowances for useless frames of a peer, by count, because the link has no clock.
//!
//! The opener counts its own resets in the same way, so that the acceptor does not treat it as hostile.

use super::{LinkError, LinkLimits, Role};

/// Allowances that useless frames spend and useful frames restore, never above their initial value.
#[derive(Debug)]
pub(super) struct FrameAllowances {
    /// The remaining allowance for useless frames, which are frames without effect.
    useless_frames_left: u32,
    /// The initial and maximum value of `useless_frames_left`.
    useless_frame_allowance: u32,
    /// The number of streams that were reset before a response, reduced by one for every response; never negative.
    early_resets: u32,
    /// The maximum of `early_resets`.
    early_reset_allowance: u32,
    /// DATA bytes that may still arrive for streams that this side dropped.
    late_bytes_left: u64,
}

impl FrameAllowances {
    pub(super) fn new(limits: &LinkLimits) -> Self {
        // A peer that has not yet received the GOAWAY or resets of this end may have a frame or two in flight for
        // each of its streams; these must not count against it.
        let crossing_frames = limits.max_streams.saturating_mul(CROSSING_FRAMES_PER_STREAM);
        let useless_frame_allowance = limits.max_useless_frames.max(crossing_frames);
        let early_reset_allowance = limits.max_early_resets.max(limits.max_streams);
        Self {
            useless_frames_left: useless_frame_allowance,
            useless_frame_allowance,
            early_resets: 0,
            early_reset_allowance,
            late_bytes_left: 0,
        }
    }

    /// Counts a useless frame.
    ///
    /// # Errors
    /// The allowance is exhausted.
    pub(super) fn record_useless_frame(&mut self) -> Result<(), LinkError> {
        self.useless_frames_left = self
            .useless_frames_left
            .checked_sub(1)
            .ok_or(LinkError::Flood { kind: "frames without effect" })?;
        Ok(())
    }

    /// Counts a useful frame.
    pub(super) fn record_useful_frame(&mut self) {
        self.restore_useless_frames(1);
    }

    /// Counts the end of a stream: some frames for it may still be in flight.
    pub(super) fn record_stream_end(&mut self) {
        self.restore_useless_frames(CROSSING_FRAMES_PER_STREAM);
    }

    /// Counts a stream that the opener reset before the response; the acceptor tolerates a limited number.
    ///
    /// # Errors
    /// The allowance is exhausted.
    pub(super) fn record_early_reset(&mut self) -> Result<(), LinkError> {
        if self.early_resets >= self.early_reset_allowance {
            return Err(LinkError::Flood { kind: "streams opened and reset" });
        }
        self.count_early_reset();
        Ok(())
    }

    /// Counts a stream that the opener itself reset before the response.
    pub(super) fn count_early_reset(&mut self) {
        self.early_resets = self.early_resets.saturating_add(1);
    }

    /// Counts the response on a stream of the opener.
    pub(super) fn record_response(&mut self) {
        self.early_resets = self.early_resets.saturating_sub(1);
    }

    /// True if half of the acceptor's allowance is spent. The other half is for streams that are still open,
    /// and for responses that restored nothing because they crossed with resets.
    pub(super) fn is_half_spent(&self) -> bool {
        self.early_resets >= self.early_reset_allowance.div_ceil(2)
    }

    /// Permits `bytes` late DATA bytes for a stream that this side dropped.
    pub(super) fn expect_late_data(&mut self, bytes: u32) {
        self.late_bytes_left = self.late_bytes_left.saturating_add(u64::from(bytes));
    }

    /// Counts DATA for a closed stream.
    ///
    /// # Errors
    /// The allowance is exhausted.
    pub(super) fn record_late_data(&mut self, length: u32) -> Result<(), LinkError> {
        if length == 0 {
            return self.record_useless_frame();
        }
        self.late_bytes_left = self
            .late_bytes_left
            .checked_sub(u64::from(length))
            .ok_or(LinkError::Flood { kind: "data for closed streams" })?;
        Ok(())
    }

    /// Restores the allowances; called by a timer.
    pub(super) fn renew_allowances(&mut self, role: Role) {
        self.useless_frames_left = self.useless_frame_allowance;
        // The opener does not know when the acceptor does this.
        if role == Role::Acceptor {
            self.early_resets = 0;
        }
    }

    fn restore_useless_frames(&mut self, count: u32) {
        self.useless_frames_left =
            self.useless_frames_left.saturating_add(count).min(self.useless_frame_allowance);
    }
}

/// The number of frames that may cross with the end of a stream: a head, trailers, a reset, credits.
const CROSSING_FRAMES_PER_STREAM: u32 = 8;
