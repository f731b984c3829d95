//! Why a stream or a link ended: codes on the wire and errors to the caller.

use super::{StreamId, VERSION};

/// Why one stream was cut off. One byte on the wire; an unknown byte reads as [`ResetCode::Failed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ResetCode {
    /// The sender of the reset no longer wants the answer.
    Cancelled = 1,
    /// The stream was never looked at: it is safe to try it elsewhere.
    Refused = 2,
    /// Something broke half-way; what took effect is unknown.
    Failed = 3,
    /// A head, a trailer section or the body exceeds what the sender of the reset accepts.
    TooLarge = 4,
    /// The stream holds more bytes unread than its receiver is willing to keep.
    FlowControl = 5,
    /// A time limit passed.
    TimedOut = 6,
    /// The answer is complete and the rest of the request is not wanted.
    Enough = 7,
    /// A policy does not allow it. For TCP, which has no status to say so.
    Denied = 8,
    /// The application behind the sender of the reset takes no connection. Nothing reached it.
    Unreachable = 9,
    /// Codes of HTTP/2 (RFC 9113 §7) by which a stream of HTTP/2 was reset at either end. A peer that does not know them reads
    /// [`Failed`](Self::Failed).
    Http2NoError = 0x20,
    /// PROTOCOL_ERROR.
    Http2ProtocolError = 0x21,
    /// INTERNAL_ERROR.
    Http2InternalError = 0x22,
    /// FLOW_CONTROL_ERROR.
    Http2FlowControlError = 0x23,
    /// SETTINGS_TIMEOUT.
    Http2SettingsTimeout = 0x24,
    /// STREAM_CLOSED.
    Http2StreamClosed = 0x25,
    /// FRAME_SIZE_ERROR.
    Http2FrameSizeError = 0x26,
    /// REFUSED_STREAM, after the response had begun.
    Http2RefusedStream = 0x27,
    /// CANCEL.
    Http2Cancel = 0x28,
    /// COMPRESSION_ERROR.
    Http2CompressionError = 0x29,
    /// CONNECT_ERROR.
    Http2ConnectError = 0x2a,
    /// ENHANCE_YOUR_CALM.
    Http2EnhanceYourCalm = 0x2b,
    /// INADEQUATE_SECURITY.
    Http2InadequateSecurity = 0x2c,
    /// HTTP_1_1_REQUIRED.
    Http2Http11Required = 0x2d,
}

impl ResetCode {
    /// Every code, in the order of the document.
    pub const ALL: &'static [Self] = &[
        Self::Cancelled,
        Self::Refused,
        Self::Failed,
        Self::TooLarge,
        Self::FlowControl,
        Self::TimedOut,
        Self::Enough,
        Self::Denied,
        Self::Unreachable,
        Self::Http2NoError,
        Self::Http2ProtocolError,
        Self::Http2InternalError,
        Self::Http2FlowControlError,
        Self::Http2SettingsTimeout,
        Self::Http2StreamClosed,
        Self::Http2FrameSizeError,
        Self::Http2RefusedStream,
        Self::Http2Cancel,
        Self::Http2CompressionError,
        Self::Http2ConnectError,
        Self::Http2EnhanceYourCalm,
        Self::Http2InadequateSecurity,
        Self::Http2Http11Required,
    ];

    /// The code for a stream that was reset by this code of HTTP/2; `Failed` for one that RFC 9113 does not define.
    #[must_use]
    pub fn of_http2(code: u32) -> Self {
        let byte = u8::try_from(code).ok().and_then(|code| code.checked_add(HTTP2_CODES));
        byte.filter(|byte| *byte >= HTTP2_CODES).map_or(Self::Failed, Self::from_wire)
    }

    /// The code of HTTP/2 that this one stands for.
    #[must_use]
    pub fn to_http2(self) -> Option<u32> {
        (self as u8).checked_sub(HTTP2_CODES).map(u32::from)
    }

    /// Whether nothing of the stream can have taken effect, so that it may be tried elsewhere.
    #[must_use]
    pub const fn is_retry_safe(self) -> bool {
        matches!(self, Self::Refused | Self::Unreachable)
    }

    pub(super) fn from_wire(byte: u8) -> Self {
        Self::ALL.iter().copied().find(|code| *code as u8 == byte).unwrap_or(Self::Failed)
    }
}

/// Why a link takes no new streams. One byte on the wire; an unknown byte reads as
/// [`GoAwayCode::Internal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum GoAwayCode {
    /// The sidecar is going down or replaces its certificate; open streams finish.
    Drain = 1,
    /// Nobody used the link for a while.
    Idle = 2,
    /// All stream numbers, or half of the resets that the acceptor puts up with, were used; a new
    /// link starts from one.
    Exhausted = 3,
    /// The peer broke a rule of the framing. The link closes at once.
    Protocol = 4,
    /// The peer sent more than it was granted. The link closes at once.
    FlowControl = 5,
    /// The peer made work without using it. The link closes at once.
    Flood = 6,
    /// The peer speaks another version. The link closes at once.
    Version = 7,
    /// The sender failed. The link closes at once.
    Internal = 8,
}

impl GoAwayCode {
    /// Every code, in the order of the document.
    pub const ALL: &'static [Self] = &[
        Self::Drain,
        Self::Idle,
        Self::Exhausted,
        Self::Protocol,
        Self::FlowControl,
        Self::Flood,
        Self::Version,
        Self::Internal,
    ];

    /// Whether open streams finish; otherwise the link closes at once.
    #[must_use]
    pub const fn is_graceful(self) -> bool {
        matches!(self, Self::Drain | Self::Idle | Self::Exhausted)
    }

    pub(super) fn from_wire(byte: u8) -> Self {
        Self::ALL.iter().copied().find(|code| *code as u8 == byte).unwrap_or(Self::Internal)
    }
}

/// The peer broke the protocol: write what [`Link::output`](super::Link::output) holds and close.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The peer's HELLO names another version.
    #[error(
        "link: the peer speaks version {theirs}, this sidecar speaks {VERSION}; \
         run releases that share a version"
    )]
    Version {
        /// What the peer said.
        theirs: u16,
    },
    /// The first frame is no HELLO, or a HELLO is repeated or states values out of range.
    #[error("link: HELLO {fault}; the peer must be a Leno sidecar with ALPN leno/1")]
    Hello {
        /// What is wrong with it.
        fault: &'static str,
    },
    /// A frame announces more bytes than its kind may have.
    #[error("link: a frame of {length} bytes where at most {max} are allowed")]
    FrameTooLarge {
        /// The announced length of the payload.
        length: u32,
        /// The limit for this kind of frame.
        max: u32,
    },
    /// A frame that cannot be read.
    #[error("link: malformed frame: {fault}")]
    Malformed {
        /// What is wrong with it.
        fault: &'static str,
    },
    /// A frame that the state of its stream or of the link does not allow.
    #[error("link: stream {stream}: {fault}")]
    Misplaced {
        /// The stream that the frame named.
        stream: StreamId,
        /// The rule that was broken.
        fault: &'static str,
    },
    /// More DATA than was granted, or more credit than the window.
    #[error("link: stream {stream}: the peer exceeds its window")]
    FlowControl {
        /// The stream in question.
        stream: StreamId,
    },
    /// The peer opened more streams than it was told it may.
    #[error("link: the peer opened more than {max} streams at once")]
    StreamsExceeded {
        /// What this side said in its HELLO.
        max: u32,
    },
    /// The peer makes work without using it.
    #[error("link: flood of {what}")]
    Flood {
        /// What there was too much of.
        what: &'static str,
    },
    /// The peer keeps asking and does not read the answers.
    #[error("link: {bytes} bytes wait for a peer that does not read")]
    Stalled {
        /// How much output had piled up.
        bytes: usize,
    },
}

impl LinkError {
    /// The code that the GOAWAY for this error carries.
    #[must_use]
    pub const fn code(&self) -> GoAwayCode {
        match self {
            Self::Version { .. } => GoAwayCode::Version,
            Self::FlowControl { .. } => GoAwayCode::FlowControl,
            Self::Flood { .. } | Self::Stalled { .. } => GoAwayCode::Flood,
            Self::Hello { .. }
            | Self::FrameTooLarge { .. }
            | Self::Malformed { .. }
            | Self::Misplaced { .. }
            | Self::StreamsExceeded { .. } => GoAwayCode::Protocol,
        }
    }
}

/// Why no stream was opened. Nothing was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// As many streams are open as both sides allow: wait for one to finish or use another link.
    #[error("link: all streams are in use")]
    Full,
    /// One side said GOAWAY: use another link.
    #[error("link: going away")]
    GoingAway,
    /// The head is larger than the peer accepts.
    #[error("link: the head is larger than the peer accepts")]
    TooLarge,
    /// The link failed earlier, or it is the acceptor's end, which opens nothing.
    #[error("link: broken or not the opener's end")]
    Broken,
}

/// Nothing can be sent on this stream any more: this side ended it, either side reset it, or the
/// link failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("link: the stream takes no more")]
pub struct Gone;

/// The first code of HTTP/2 among those of streams.
const HTTP2_CODES: u8 = 0x20;
