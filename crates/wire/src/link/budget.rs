//! What a peer may ask for without using it: counted, because there is no clock here.
//!
//! The opener keeps the same account of what it resets itself, so as not to be taken for hostile.

use super::{Limits, LinkError, Role};

/// Allowances that misuse spends and work done earns back, never above their start.
#[derive(Debug)]
pub(super) struct Budget {
    idle_frames: u32,
    idle_frames_max: u32,
    /// Streams that were reset unanswered, less those answered since.
    churn: u32,
    churn_max: u32,
    late_bytes: u64,
}

impl Budget {
    pub(super) fn new(limits: &Limits) -> Self {
        // A peer that has not yet heard of our GOAWAY or resets may have a frame or two on the way
        // for each of its streams: never hold that against it.
        let crossing = limits.streams_max.saturating_mul(CROSSING_PER_STREAM);
        let idle_frames_max = limits.idle_frames_max.max(crossing);
        let churn_max = limits.churn_max.max(limits.streams_max);
        Self { idle_frames: idle_frames_max, idle_frames_max, churn: 0, churn_max, late_bytes: 0 }
    }

    /// A frame that did nothing.
    pub(super) fn idle_frame(&mut self) -> Result<(), LinkError> {
        self.idle_frames = self
            .idle_frames
            .checked_sub(1)
            .ok_or(LinkError::Flood { what: "frames that do nothing" })?;
        Ok(())
    }

    /// A frame that did something.
    pub(super) fn useful_frame(&mut self) {
        self.earn_idle_frames(1);
    }

    /// A stream is over: some frames for it may still be on the way.
    pub(super) fn stream_over(&mut self) {
        self.earn_idle_frames(CROSSING_PER_STREAM);
    }

    /// The opener reset a stream that was not answered, which the acceptor puts up with so often.
    ///
    /// # Errors
    /// The allowance for that is spent.
    pub(super) fn churned(&mut self) -> Result<(), LinkError> {
        if self.churn >= self.churn_max {
            return Err(LinkError::Flood { what: "streams opened and reset" });
        }
        self.count_churn();
        Ok(())
    }

    /// The same in the account that the opener keeps.
    pub(super) fn count_churn(&mut self) {
        self.churn = self.churn.saturating_add(1);
    }

    /// A stream of the opener was answered.
    pub(super) fn answered(&mut self) {
        self.churn = self.churn.saturating_sub(1);
    }

    /// Whether half of what the acceptor puts up with is spent. The other half is for the streams
    /// that are still open, and for answers that earned nothing because they crossed with resets.
    pub(super) fn is_worn(&self) -> bool {
        self.churn >= self.churn_max.div_ceil(2)
    }

    /// This side dropped a stream on which the peer may still have sent so many bytes.
    pub(super) fn expect_late(&mut self, bytes: u32) {
        self.late_bytes = self.late_bytes.saturating_add(u64::from(bytes));
    }

    /// DATA for a stream that is over.
    pub(super) fn late_data(&mut self, length: u32) -> Result<(), LinkError> {
        if length == 0 {
            return self.idle_frame();
        }
        self.late_bytes = self
            .late_bytes
            .checked_sub(u64::from(length))
            .ok_or(LinkError::Flood { what: "data for streams that are over" })?;
        Ok(())
    }

    /// Time has passed, says whoever has a clock.
    pub(super) fn renew(&mut self, role: Role) {
        self.idle_frames = self.idle_frames_max;
        // When the acceptor does that is not known to the opener.
        if role == Role::Acceptor {
            self.churn = 0;
        }
    }

    fn earn_idle_frames(&mut self, count: u32) {
        self.idle_frames = self.idle_frames.saturating_add(count).min(self.idle_frames_max);
    }
}

/// Frames that may cross with the end of a stream: a head, trailers, a reset, credits.
const CROSSING_PER_STREAM: u32 = 8;
