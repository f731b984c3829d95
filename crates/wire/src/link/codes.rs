//! Defines the codes in RESET and GOAWAY, and the errors of a [`Link`](super::Link).

use super::{StreamId, VERSION};

/// The reason for a stream reset. One byte on the wire; an unknown byte is read as [`ResetCode::Failed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ResetCode {
    /// The sender of the reset no longer needs the response.
    Cancelled = 1,
    /// The stream was never processed: it is safe to retry elsewhere.
    Refused = 2,
    /// The request failed while it was processed; its effects are unknown.
    Failed = 3,
    /// A head, a trailer section or the body exceeds what the sender of the reset accepts.
    TooLarge = 4,
    /// The unread bytes of the stream exceed its receiver's limit.
    FlowControl = 5,
    /// The sender of the reset waited longer than its timeout.
    TimedOut = 6,
    /// The response is complete, and the sender of the reset does not need the rest of the request.
    Enough = 7,
    /// A policy denied the TCP connection. For HTTP, the response has a status code instead.
    Denied = 8,
    /// The application of the reset's sender accepts no connection. No bytes reached it.
    Unreachable = 9,
    /// NO_ERROR. This and the following codes are the HTTP/2 error codes (RFC 9113 §7) with which an HTTP/2 client or
    /// server reset its stream. A peer that does not support them reads [`Failed`](Self::Failed).
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
    /// REFUSED_STREAM, after the response had started.
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
    /// Every code, in the order of the specification.
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

    /// Returns the code for an HTTP/2 error code; `Failed` if RFC 9113 does not define the error code.
    #[must_use]
    pub fn from_http2(code: u32) -> Self {
        let byte = u8::try_from(code).ok().and_then(|code| code.checked_add(FIRST_HTTP2_CODE));
        byte.filter(|byte| *byte >= FIRST_HTTP2_CODE).map_or(Self::Failed, Self::from_wire)
    }

    /// Returns the HTTP/2 error code; `None` for codes of the link itself.
    #[must_use]
    pub fn to_http2(self) -> Option<u32> {
        (self as u8).checked_sub(FIRST_HTTP2_CODE).map(u32::from)
    }

    /// True if the stream had no effect, and may be retried elsewhere.
    #[must_use]
    pub const fn is_retry_safe(self) -> bool {
        matches!(self, Self::Refused | Self::Unreachable)
    }

    pub(super) fn from_wire(byte: u8) -> Self {
        Self::ALL.iter().copied().find(|code| *code as u8 == byte).unwrap_or(Self::Failed)
    }
}

/// The reason that a side gives in GOAWAY for ending the creation of streams. One byte on the wire; an unknown byte is
/// read as [`GoAwayCode::Internal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum GoAwayCode {
    /// The sidecar shuts down or replaces its certificate; open streams finish.
    Drain = 1,
    /// The link was idle.
    Idle = 2,
    /// All stream numbers, or half of the acceptor's allowance for early resets, are used; a new link starts with all
    /// of them.
    StreamIdsExhausted = 3,
    /// The peer violated the protocol. The link closes at once.
    Protocol = 4,
    /// The peer exceeded its credit. The link closes at once.
    FlowControl = 5,
    /// The peer sent too many useless frames. The link closes at once.
    Flood = 6,
    /// The peer has another protocol version. The link closes at once.
    Version = 7,
    /// The sender failed. The link closes at once.
    Internal = 8,
}

impl GoAwayCode {
    /// Every code, in the order of the specification.
    pub const ALL: &'static [Self] = &[
        Self::Drain,
        Self::Idle,
        Self::StreamIdsExhausted,
        Self::Protocol,
        Self::FlowControl,
        Self::Flood,
        Self::Version,
        Self::Internal,
    ];

    /// True if open streams finish; otherwise the link closes at once.
    #[must_use]
    pub const fn is_graceful(self) -> bool {
        matches!(self, Self::Drain | Self::Idle | Self::StreamIdsExhausted)
    }

    pub(super) fn from_wire(byte: u8) -> Self {
        Self::ALL.iter().copied().find(|code| *code as u8 == byte).unwrap_or(Self::Internal)
    }
}

/// A protocol violation by the peer: write the output in [`Link::output`](super::Link::output) and close.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The peer's HELLO has another version.
    #[error(
        "link: the peer uses version {peer_version}, this sidecar version {VERSION}; run releases that share a \
         version"
    )]
    Version {
        /// The peer's version.
        peer_version: u16,
    },
    /// The first frame is not HELLO, or a HELLO is repeated or has values out of range.
    #[error("link: HELLO {fault}; the peer must be a Leno sidecar with ALPN leno/1")]
    Hello {
        /// The fault, as the predicate of the error message.
        fault: &'static str,
    },
    /// A frame exceeds the size limit of its kind.
    #[error("link: a frame of {length} bytes where at most {max} are allowed")]
    FrameTooLarge {
        /// The announced length of the payload.
        length: u32,
        /// The limit for this kind of frame.
        max: u32,
    },
    /// A frame with an invalid header or payload.
    #[error("link: malformed frame: {fault}")]
    Malformed {
        /// The fault, as the end of the error message.
        fault: &'static str,
    },
    /// A frame that the state of its stream or of the link does not allow.
    #[error("link: stream {stream}: {fault}")]
    Misplaced {
        /// The stream of the frame.
        stream: StreamId,
        /// The violated rule.
        fault: &'static str,
    },
    /// DATA beyond the granted credit, or credit beyond the window.
    #[error("link: stream {stream}: the peer exceeds its window")]
    FlowControl {
        /// The stream of the frame.
        stream: StreamId,
    },
    /// The peer opened more streams than allowed.
    #[error("link: the peer opened more than {max} streams at once")]
    StreamsExceeded {
        /// The limit in this side's HELLO.
        max: u32,
    },
    /// The peer sent too many useless frames.
    #[error("link: flood of {kind}")]
    Flood {
        /// The kind of frames or bytes that were too many.
        kind: &'static str,
    },
    /// The peer keeps sending requests and does not read the responses.
    #[error("link: {bytes} bytes are queued for a peer that does not read")]
    Stalled {
        /// The size of the pending output.
        bytes: usize,
    },
}

impl LinkError {
    /// Returns the GOAWAY code for this error.
    #[must_use]
    pub const fn go_away_code(&self) -> GoAwayCode {
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

/// The error of [`Link::open_stream`](super::Link::open_stream). Nothing was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The stream limit is reached: wait for a stream to finish or use another link.
    #[error("link: all streams are in use")]
    Full,
    /// One side sent GOAWAY: use another link.
    #[error("link: closing (GOAWAY)")]
    GoingAway,
    /// The head is larger than the peer accepts.
    #[error("link: the head is larger than the peer accepts")]
    TooLarge,
    /// The link failed earlier, or this side is the acceptor, which opens no streams.
    #[error("link: failed, or this side is not the opener")]
    Broken,
}

/// The stream accepts no more frames: this side ended it, either side reset it, or the link failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("link: the stream is closed")]
pub struct StreamClosed;

/// The code of the HTTP/2 error code 0; the other HTTP/2 error codes follow in order.
const FIRST_HTTP2_CODE: u8 = 0x20;
