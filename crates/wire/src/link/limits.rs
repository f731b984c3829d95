//! Limits of one side of a link, with their defaults and permitted ranges.

/// The limits of this side for its peer and for its own memory.
///
/// The first four are sent to the peer in HELLO. [`Link::new`](super::Link::new) clamps values to their ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkLimits {
    /// The maximum number of open streams.
    pub streams_max: u32,
    /// The maximum number of DATA bytes in flight, per stream and direction.
    pub window: u32,
    /// The maximum size of one head or trailer section in bytes. The sections of one stream and direction
    /// together, with [`SECTION_COST`] for each, are limited to [`SECTIONS_PER_DIRECTION`] times this.
    pub head_max: u32,
    /// The maximum payload of one DATA frame.
    pub frame_max: u32,
    /// The size of pending output from which the link reports congestion.
    pub output_max: usize,
    /// The size of pending output beyond which the peer counts as stalled.
    pub output_limit: usize,
    /// The allowance for useless frames (redundant PINGs, empty DATA, late frames) of a peer.
    pub idle_frames_max: u32,
    /// The allowance for streams that a peer opens and resets before a response.
    pub churn_max: u32,
    /// Indicates support for the mark of requests from HTTP/2 clients, for ports without a declared protocol.
    /// It is a bit of HELLO, which older releases ignore and do not set.
    pub reads_http2_mark: bool,
}

impl LinkLimits {
    /// Returns the maximum length of an accepted frame, including its header: an input buffer of this size
    /// suffices.
    #[must_use]
    pub fn input_max(&self) -> usize {
        let payload = self.head_max.max(self.frame_max);
        usize::try_from(payload).unwrap_or(usize::MAX).saturating_add(super::frame::HEADER_BYTES)
    }

    pub(super) fn within_range(self) -> Self {
        Self {
            streams_max: self.streams_max.clamp(STREAMS_LEAST, STREAMS_MOST),
            window: self.window.clamp(WINDOW_LEAST, WINDOW_MOST),
            head_max: self.head_max.clamp(HEAD_LEAST, HEAD_MOST),
            frame_max: self.frame_max.clamp(FRAME_LEAST, FRAME_MOST),
            ..self
        }
    }

    /// Returns the minimum limits: assumed for a peer until its HELLO arrives.
    pub(super) const fn minimum() -> Self {
        Self {
            streams_max: STREAMS_LEAST,
            window: WINDOW_LEAST,
            head_max: HEAD_LEAST,
            frame_max: FRAME_LEAST,
            output_max: MAX_OUTPUT,
            output_limit: OUTPUT_LIMIT,
            idle_frames_max: MAX_IDLE_FRAMES,
            churn_max: MAX_CHURN,
            reads_http2_mark: false,
        }
    }

    /// True if a peer may send these limits in its HELLO.
    pub(super) fn is_within_range(&self) -> bool {
        self.streams_max >= STREAMS_LEAST
            && (WINDOW_LEAST..=WINDOW_MOST).contains(&self.window)
            && (HEAD_LEAST..=HEAD_MOST).contains(&self.head_max)
            && (FRAME_LEAST..=FRAME_MOST).contains(&self.frame_max)
    }
}

impl Default for LinkLimits {
    fn default() -> Self {
        Self {
            streams_max: MAX_STREAMS,
            window: WINDOW,
            head_max: MAX_HEAD,
            frame_max: MAX_FRAME,
            output_max: MAX_OUTPUT,
            output_limit: OUTPUT_LIMIT,
            idle_frames_max: MAX_IDLE_FRAMES,
            churn_max: MAX_CHURN,
            reads_http2_mark: true,
        }
    }
}

/// The default stream limit: five times the requests in flight of one busy core, and still a small table.
pub const MAX_STREAMS: u32 = 1024;
/// The minimum stream limit.
pub const STREAMS_LEAST: u32 = 64;
/// The maximum stream limit.
pub const STREAMS_MOST: u32 = 65_536;
/// The default window: a body of this size needs no additional credit.
pub const WINDOW: u32 = 64 * 1024;
/// The minimum window: one full DATA frame.
pub const WINDOW_LEAST: u32 = 16 * 1024;
/// The maximum window.
pub const WINDOW_MOST: u32 = 16 * 1024 * 1024;
/// The default head limit: the 64 KiB of HTTP/1.1, plus fields that sidecars add.
pub const MAX_HEAD: u32 = 66 * 1024;
/// The minimum head limit, so that a head that passes one sidecar passes the next.
pub const HEAD_LEAST: u32 = 66 * 1024;
/// The maximum head limit.
pub const HEAD_MOST: u32 = 1024 * 1024;
/// The default DATA payload: one TLS record, so that streams are interleaved.
pub const MAX_FRAME: u32 = 16 * 1024;
/// The minimum DATA payload limit.
pub const FRAME_LEAST: u32 = 16 * 1024;
/// The maximum DATA payload limit.
pub const FRAME_MOST: u32 = 1024 * 1024;
/// The default congestion threshold: sixteen TLS records, a large write for the kernel.
pub const MAX_OUTPUT: usize = 256 * 1024;
/// The default stall threshold: far beyond the pending output of a well-behaved sender.
pub const OUTPUT_LIMIT: usize = 8 * 1024 * 1024;
/// The default allowance for useless frames: more than a well-behaved peer sends.
pub const MAX_IDLE_FRAMES: u32 = 8192;
/// The default allowance for streams reset before a response: four times the streams of a full link.
pub const MAX_CHURN: u32 = 4096;
/// The limit for the sections of one stream in one direction, as a multiple of `head_max`.
pub const SECTIONS_PER_DIRECTION: u32 = 2;
/// The cost of each section in addition to its bytes.
pub const SECTION_COST: u32 = 64;
