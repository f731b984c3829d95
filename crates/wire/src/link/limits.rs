//! Defines the limits of one side of a link, with their defaults and permitted ranges.

/// The limits that one side sets for its peer and for its own memory.
///
/// HELLO sends the first four, and `reads_http2_mark`, to the peer. [`Link::new`](super::Link::new) clamps values to
/// their ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkLimits {
    /// The maximum number of open streams.
    pub max_streams: u32,
    /// The maximum number of DATA bytes in flight, per stream and direction.
    pub window: u32,
    /// The maximum size of one head or trailer section, in bytes. The sum of all sections of one stream in one
    /// direction, with [`SECTION_COST`] for each, is limited to [`SECTIONS_PER_DIRECTION`] times this value.
    pub max_head: u32,
    /// The maximum payload of one DATA frame, in bytes.
    pub max_frame: u32,
    /// The size of the pending output, in bytes, from which the link reports congestion.
    pub congestion_threshold: usize,
    /// The size of the pending output, in bytes, above which the link closes because the peer does not read.
    pub stall_threshold: usize,
    /// The number of useless frames (redundant PINGs, empty DATA, late frames) that a peer may send.
    pub max_useless_frames: u32,
    /// The number of streams that a peer may open and reset before the response.
    pub max_early_resets: u32,
    /// True if this side supports the mark that distinguishes requests from HTTP/2 clients at ports without a declared
    /// protocol. HELLO has a bit for it, which older releases ignore and do not set.
    pub reads_http2_mark: bool,
}

impl LinkLimits {
    /// Returns the maximum length of an accepted frame, including its header: an input buffer of this size
    /// suffices.
    #[must_use]
    pub fn max_input_bytes(&self) -> usize {
        let payload = self.max_head.max(self.max_frame);
        usize::try_from(payload).unwrap_or(usize::MAX).saturating_add(super::frame::HEADER_BYTES)
    }

    /// Returns the limits, each clamped to its range.
    pub(super) fn clamp_to_ranges(self) -> Self {
        Self {
            max_streams: self.max_streams.clamp(SMALLEST_MAX_STREAMS, LARGEST_MAX_STREAMS),
            window: self.window.clamp(MIN_WINDOW, MAX_WINDOW),
            max_head: self.max_head.clamp(SMALLEST_MAX_HEAD, LARGEST_MAX_HEAD),
            max_frame: self.max_frame.clamp(SMALLEST_MAX_FRAME, LARGEST_MAX_FRAME),
            ..self
        }
    }

    /// Returns the minimum limits: assumed for a peer until its HELLO arrives.
    pub(super) const fn minimum() -> Self {
        Self {
            max_streams: SMALLEST_MAX_STREAMS,
            window: MIN_WINDOW,
            max_head: SMALLEST_MAX_HEAD,
            max_frame: SMALLEST_MAX_FRAME,
            congestion_threshold: CONGESTION_THRESHOLD,
            stall_threshold: STALL_THRESHOLD,
            max_useless_frames: MAX_USELESS_FRAMES,
            max_early_resets: MAX_EARLY_RESETS,
            reads_http2_mark: false,
        }
    }

    /// True if a peer may send these limits in its HELLO. There is no upper limit for `max_streams`.
    pub(super) fn is_within_range(&self) -> bool {
        self.max_streams >= SMALLEST_MAX_STREAMS
            && (MIN_WINDOW..=MAX_WINDOW).contains(&self.window)
            && (SMALLEST_MAX_HEAD..=LARGEST_MAX_HEAD).contains(&self.max_head)
            && (SMALLEST_MAX_FRAME..=LARGEST_MAX_FRAME).contains(&self.max_frame)
    }
}

impl Default for LinkLimits {
    fn default() -> Self {
        Self {
            max_streams: MAX_STREAMS,
            window: WINDOW,
            max_head: MAX_HEAD,
            max_frame: MAX_FRAME,
            congestion_threshold: CONGESTION_THRESHOLD,
            stall_threshold: STALL_THRESHOLD,
            max_useless_frames: MAX_USELESS_FRAMES,
            max_early_resets: MAX_EARLY_RESETS,
            reads_http2_mark: true,
        }
    }
}

/// The default stream limit: five times the concurrent requests of one busy core, and still little memory.
pub const MAX_STREAMS: u32 = 1024;
/// The minimum stream limit.
pub const SMALLEST_MAX_STREAMS: u32 = 64;
/// The maximum stream limit.
pub const LARGEST_MAX_STREAMS: u32 = 65_536;
/// The default window, in bytes: a body up to this size needs no CREDIT.
pub const WINDOW: u32 = 64 * 1024;
/// The minimum window: one full DATA frame.
pub const MIN_WINDOW: u32 = 16 * 1024;
/// The maximum window, in bytes.
pub const MAX_WINDOW: u32 = 16 * 1024 * 1024;
/// The default head limit: the 64 KiB of HTTP/1.1, plus fields that sidecars add.
pub const MAX_HEAD: u32 = 66 * 1024;
/// The minimum head limit, so that a head that passes one sidecar passes the next.
pub const SMALLEST_MAX_HEAD: u32 = 66 * 1024;
/// The maximum head limit, in bytes.
pub const LARGEST_MAX_HEAD: u32 = 1024 * 1024;
/// The default DATA payload: one TLS record, so that streams are interleaved.
pub const MAX_FRAME: u32 = 16 * 1024;
/// The minimum DATA payload limit, in bytes.
pub const SMALLEST_MAX_FRAME: u32 = 16 * 1024;
/// The maximum DATA payload limit, in bytes.
pub const LARGEST_MAX_FRAME: u32 = 1024 * 1024;
/// The default congestion threshold: sixteen TLS records, a large write for the kernel.
pub const CONGESTION_THRESHOLD: usize = 256 * 1024;
/// The default stall threshold: far beyond the pending output of a well-behaved sender.
pub const STALL_THRESHOLD: usize = 8 * 1024 * 1024;
/// The default allowance for useless frames: more than a well-behaved peer sends.
pub const MAX_USELESS_FRAMES: u32 = 8192;
/// The default allowance for streams reset before a response: four times the streams of a full link.
pub const MAX_EARLY_RESETS: u32 = 4096;
/// The limit for the sections of one stream in one direction, as a multiple of `max_head`.
pub const SECTIONS_PER_DIRECTION: u32 = 2;
/// The cost of each section in addition to its bytes, which bounds the number of short sections.
pub const SECTION_COST: u32 = 64;
