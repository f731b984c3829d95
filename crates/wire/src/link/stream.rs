//! Keeps the state of one stream: its number, its credit, and the order of frames in its two directions.

use std::fmt;
use std::hash::Hasher;

use super::limits::{SECTION_COST, SECTIONS_PER_DIRECTION};
use super::{LinkLimits, StreamKind};

/// The number of a stream on its link. The opener counts from one; numbers are not reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub(super) u32);

impl StreamId {
    /// No stream. As the last stream in GOAWAY: no stream was processed.
    pub const NONE: Self = Self(0);
    /// A number above every stream. As the last stream in GOAWAY: every stream that the peer opens is still processed.
    pub const ALL: Self = Self(u32::MAX);

    /// Returns the number that frames contain.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Hashes stream numbers with one multiplication.
///
/// A stronger hash is not needed, because stream numbers are consecutive and the peer cannot choose them. Callers may
/// use this hasher for their own maps, with `BuildHasherDefault`.
#[derive(Debug, Clone, Copy, Default)]
pub struct StreamIdHasher(u64);

impl Hasher for StreamIdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0.rotate_left(8) ^ u64::from(number)).wrapping_mul(GOLDEN_RATIO_MULTIPLIER);
    }
}

/// The state of one open stream.
#[derive(Debug)]
pub(super) struct StreamState {
    /// The direction that this side sends.
    pub(super) send_direction: StreamDirection,
    /// The direction that the peer sends.
    pub(super) receive_direction: StreamDirection,
    /// The number of DATA bytes that the peer still accepts.
    pub(super) send_credit: u32,
    /// The number of DATA bytes that this side still accepts.
    pub(super) granted_credit: u32,
    /// The number of consumed DATA bytes that no CREDIT has acknowledged yet.
    pub(super) unacknowledged_bytes: u32,
    /// True if the acceptor sent a final head or bytes, as far as this side knows.
    pub(super) has_response: bool,
}

impl StreamState {
    pub(super) fn new(kind: StreamKind, own_limits: &LinkLimits, peer_limits: &LinkLimits) -> Self {
        Self {
            send_direction: StreamDirection::new(kind, peer_limits.max_head),
            receive_direction: StreamDirection::new(kind, own_limits.max_head),
            send_credit: peer_limits.window,
            granted_credit: own_limits.window,
            unacknowledged_bytes: 0,
            has_response: false,
        }
    }

    /// True if this side may still send and has no credit.
    pub(super) fn is_starved(&self) -> bool {
        !self.send_direction.is_ended() && self.send_credit == 0
    }

    /// True if both directions have ended.
    pub(super) fn is_finished(&self) -> bool {
        self.send_direction.is_ended() && self.receive_direction.is_ended()
    }
}

/// One direction of a stream: its frame order, validated by both sender and receiver.
#[derive(Debug, Clone)]
pub(super) struct StreamDirection {
    message_phase: MessagePhase,
    kind: StreamKind,
    /// The number of bytes that heads and trailers of this direction may still have, with [`SECTION_COST`] for each.
    section_bytes_left: u32,
}

/// The section of a message that a direction expects next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessagePhase {
    Head,
    Body,
    Ended,
}

/// The reason for which a frame is not allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameViolation {
    /// The direction has ended.
    Ended,
    /// Another frame must come first, or this one is repeated.
    Order,
    /// The total size of this direction's sections is too large.
    Sections,
}

impl FrameViolation {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Ended => "a frame after the end of its direction",
            Self::Order => "a frame out of order",
            Self::Sections => "heads and trailers exceed their allowance",
        }
    }
}

impl StreamDirection {
    fn new(kind: StreamKind, max_head: u32) -> Self {
        let section_bytes_left = max_head.saturating_mul(SECTIONS_PER_DIRECTION);
        Self { message_phase: MessagePhase::Head, kind, section_bytes_left }
    }

    pub(super) fn is_ended(&self) -> bool {
        self.message_phase == MessagePhase::Ended
    }

    pub(super) fn is_tcp(&self) -> bool {
        self.kind == StreamKind::Tcp
    }

    /// Accepts a head of a request, a response or a TCP connection. Interim heads precede the final one, which advances
    /// the phase.
    pub(super) fn accept_head(
        &mut self,
        length: u32,
        interim: bool,
        end_stream: bool,
    ) -> Result<(), FrameViolation> {
        match self.message_phase {
            MessagePhase::Ended => return Err(FrameViolation::Ended),
            MessagePhase::Body => return Err(FrameViolation::Order),
            MessagePhase::Head if interim && (end_stream || self.is_tcp()) => {
                return Err(FrameViolation::Order);
            }
            MessagePhase::Head => {}
        }
        self.accept_section(length)?;
        if !interim {
            self.message_phase = if end_stream { MessagePhase::Ended } else { MessagePhase::Body };
        }
        Ok(())
    }

    /// Accepts bytes of the body. A TCP stream may start with them, because its acceptor may omit the head.
    pub(super) fn accept_data(&mut self, end_stream: bool) -> Result<(), FrameViolation> {
        match self.message_phase {
            MessagePhase::Ended => return Err(FrameViolation::Ended),
            MessagePhase::Head if !self.is_tcp() => return Err(FrameViolation::Order),
            MessagePhase::Head | MessagePhase::Body => {}
        }
        self.message_phase = if end_stream { MessagePhase::Ended } else { MessagePhase::Body };
        Ok(())
    }

    /// Accepts the trailer section, which ends the direction.
    pub(super) fn accept_trailers(&mut self, length: u32) -> Result<(), FrameViolation> {
        match self.message_phase {
            MessagePhase::Ended => return Err(FrameViolation::Ended),
            MessagePhase::Head => return Err(FrameViolation::Order),
            MessagePhase::Body if self.is_tcp() => return Err(FrameViolation::Order),
            MessagePhase::Body => {}
        }
        self.accept_section(length)?;
        self.message_phase = MessagePhase::Ended;
        Ok(())
    }

    /// Takes the cost of a section from the remaining allowance.
    fn accept_section(&mut self, length: u32) -> Result<(), FrameViolation> {
        let section_cost = length.saturating_add(SECTION_COST);
        self.section_bytes_left =
            self.section_bytes_left.checked_sub(section_cost).ok_or(FrameViolation::Sections)?;
        Ok(())
    }
}

/// 2^64 divided by the golden ratio: a multiplication by it gives adjacent numbers distant hashes.
const GOLDEN_RATIO_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
