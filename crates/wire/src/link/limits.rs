//! What one side of a link accepts: every number with a name and its permitted range.

/// What this side accepts from its peer and allows itself to hold.
///
/// The first four are told to the peer in HELLO. [`Link::new`](super::Link::new) moves a value that
/// is out of range to the nearest one within.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Streams open at once.
    pub streams_max: u32,
    /// DATA bytes that a sender may have on the way, per stream and direction.
    pub window: u32,
    /// Bytes of one head or trailer section. Sections of one stream and direction together, with
    /// [`SECTION_COST`] for each, stay within [`SECTIONS_PER_DIRECTION`] times this.
    pub head_max: u32,
    /// Payload bytes of one DATA frame.
    pub frame_max: u32,
    /// From this much unwritten output on the link says that it is congested.
    pub output_max: usize,
    /// With more unwritten output than this the peer is taken for one that does not read.
    pub output_limit: usize,
    /// Frames without use (needless PINGs, empty DATA, late frames) that a peer has to its credit.
    pub idle_frames_max: u32,
    /// Streams that a peer may open and reset before they were answered, on credit.
    pub churn_max: u32,
    /// This side reads the mark of requests of HTTP/2 clients, for ports without a declared protocol. It is a bit of
    /// HELLO, which releases without it ignore and do not set.
    pub reads_http2_mark: bool,
}

impl Limits {
    /// The longest frame this side accepts, header included: an input buffer of this size suffices.
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

    /// What every peer accepts: assumed of it until its HELLO arrives.
    pub(super) const fn least() -> Self {
        Self {
            streams_max: STREAMS_LEAST,
            window: WINDOW_LEAST,
            head_max: HEAD_LEAST,
            frame_max: FRAME_LEAST,
            output_max: OUTPUT_MAX,
            output_limit: OUTPUT_LIMIT,
            idle_frames_max: IDLE_FRAMES_MAX,
            churn_max: CHURN_MAX,
            reads_http2_mark: false,
        }
    }

    /// Whether a peer may state these in its HELLO.
    pub(super) fn is_within_range(&self) -> bool {
        self.streams_max >= STREAMS_LEAST
            && (WINDOW_LEAST..=WINDOW_MOST).contains(&self.window)
            && (HEAD_LEAST..=HEAD_MOST).contains(&self.head_max)
            && (FRAME_LEAST..=FRAME_MOST).contains(&self.frame_max)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            streams_max: STREAMS_MAX,
            window: WINDOW,
            head_max: HEAD_MAX,
            frame_max: FRAME_MAX,
            output_max: OUTPUT_MAX,
            output_limit: OUTPUT_LIMIT,
            idle_frames_max: IDLE_FRAMES_MAX,
            churn_max: CHURN_MAX,
            reads_http2_mark: true,
        }
    }
}

/// Default streams at once: five times what one busy core has in flight, and still a small table.
pub const STREAMS_MAX: u32 = 1024;
/// Every side accepts at least so many streams.
pub const STREAMS_LEAST: u32 = 64;
/// No side accepts more streams than this.
pub const STREAMS_MOST: u32 = 65_536;
/// Default window: a body of this size crosses without waiting for credit.
pub const WINDOW: u32 = 64 * 1024;
/// Every side grants at least this window: one full DATA frame.
pub const WINDOW_LEAST: u32 = 16 * 1024;
/// No side grants a larger window than this.
pub const WINDOW_MOST: u32 = 16 * 1024 * 1024;
/// Default size of a head: the 64 KiB that HTTP/1.1 is allowed, and what sidecars add to it.
pub const HEAD_MAX: u32 = 66 * 1024;
/// Every side accepts a head of this size, so that one which passed one sidecar passes the next.
pub const HEAD_LEAST: u32 = 66 * 1024;
/// No side accepts a larger head than this.
pub const HEAD_MOST: u32 = 1024 * 1024;
/// Default payload of a DATA frame: one TLS record, so that streams take turns.
pub const FRAME_MAX: u32 = 16 * 1024;
/// Every side accepts a DATA payload of this size.
pub const FRAME_LEAST: u32 = 16 * 1024;
/// No side accepts a larger DATA payload than this.
pub const FRAME_MOST: u32 = 1024 * 1024;
/// Default for congestion: sixteen TLS records, a large write for the kernel.
pub const OUTPUT_MAX: usize = 256 * 1024;
/// Default for a peer that does not read: far beyond what a well-behaved sender piles up.
pub const OUTPUT_LIMIT: usize = 8 * 1024 * 1024;
/// Default for frames without use: more than crossing frames and misfortune explain.
pub const IDLE_FRAMES_MAX: u32 = 8192;
/// Default for streams opened and reset unanswered: every stream of a full link, four times over.
pub const CHURN_MAX: u32 = 4096;
/// How many times `head_max` the sections of one stream take in one direction.
pub const SECTIONS_PER_DIRECTION: u32 = 2;
/// What each section counts for beyond its bytes.
pub const SECTION_COST: u32 = 64;
