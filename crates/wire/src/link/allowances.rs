//! Limits the useless frames of a peer: frames that cost work and have no effect. The limits are counts, not rates,
//! because the link has no clock; a timer restores them.
//!
//! The opener counts its own early resets in the same way as the acceptor, so that it replaces the link before the
//! acceptor closes it.

use super::{LinkError, LinkLimits, Role};

/// The allowances of one link. Useless frames reduce them, and useful frames restore them up to their initial value.
#[derive(Debug)]
pub(super) struct FrameAllowances {
    /// The number of useless frames that may still arrive.
    useless_frames_left: u32,
    /// The initial and maximum value of `useless_frames_left`.
    useless_frame_allowance: u32,
    /// The number of streams that were reset before a response, reduced by one for every response; never negative.
    early_resets: u32,
    /// The value of `early_resets` at which another reset by the peer breaks the link.
    early_reset_allowance: u32,
    /// The number of DATA bytes that may still arrive for streams that this side has reset or never accepted.
    late_bytes_left: u64,
}

impl FrameAllowances {
    pub(super) fn new(limits: &LinkLimits) -> Self {
        // Until the peer receives a GOAWAY or a reset of this side, it may have several frames in flight for each of
        // its streams. Those frames must not exhaust the allowance.
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

    /// Counts the end of a stream. Frames of the peer for this stream may still be in flight, so the allowance grows by
    /// their number.
    pub(super) fn record_stream_end(&mut self) {
        self.restore_useless_frames(CROSSING_FRAMES_PER_STREAM);
    }

    /// Counts, for the acceptor, a stream that the peer reset before the response.
    ///
    /// # Errors
    /// The allowance is exhausted.
    pub(super) fn record_peer_early_reset(&mut self) -> Result<(), LinkError> {
        if self.early_resets >= self.early_reset_allowance {
            return Err(LinkError::Flood { kind: "streams opened and reset" });
        }
        self.record_own_early_reset();
        Ok(())
    }

    /// Counts, for the opener, a stream that this side reset before the response. There is no limit: the acceptor
    /// enforces it.
    pub(super) fn record_own_early_reset(&mut self) {
        self.early_resets = self.early_resets.saturating_add(1);
    }

    /// Counts a response, which makes up for one early reset.
    pub(super) fn record_response(&mut self) {
        self.early_resets = self.early_resets.saturating_sub(1);
    }

    /// True if the opener has spent half of the acceptor's allowance for early resets. The other half is for resets of
    /// the streams that are still open, and for responses that only the opener counted: a response that crosses with a
    /// reset does not count for both sides.
    pub(super) fn is_early_reset_allowance_half_spent(&self) -> bool {
        self.early_resets >= self.early_reset_allowance.div_ceil(2)
    }

    /// Permits late DATA for a stream that this side has reset or never accepted. `bytes` is the unused credit of the
    /// peer.
    pub(super) fn expect_late_data(&mut self, bytes: u32) {
        self.late_bytes_left = self.late_bytes_left.saturating_add(u64::from(bytes));
    }

    /// Counts `length` bytes of DATA for a closed stream.
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
        // The opener does not know when the acceptor restores this allowance, so it assumes that it does not.
        if role == Role::Acceptor {
            self.early_resets = 0;
        }
    }

    fn restore_useless_frames(&mut self, count: u32) {
        self.useless_frames_left =
            self.useless_frames_left.saturating_add(count).min(self.useless_frame_allowance);
    }
}

/// The maximum number of frames that a peer may have in flight for a stream when it ends: a head, trailers, a reset,
/// and credits.
const CROSSING_FRAMES_PER_STREAM: u32 = 8;
