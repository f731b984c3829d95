//! Reads and writes the eight-byte frame header, and the payloads of HELLO, RESET, CREDIT and GOAWAY.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{LinkError, LinkLimits, Role, StreamId, VERSION};

/// The frame type, which is the low half of the fourth byte of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum FrameKind {
    Hello = 1,
    Open = 2,
    Head = 3,
    Data = 4,
    Trailers = 5,
    Reset = 6,
    Credit = 7,
    GoAway = 8,
    Ping = 9,
    Pong = 10,
}

/// The eight-byte frame header: 24 bits of length, 4 bits of flags, 4 bits of kind, and 32
/// bits of stream number, big-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHeader {
    /// The length of the payload, without the header.
    pub(super) length: u32,
    pub(super) kind: FrameKind,
    pub(super) flags: u8,
    pub(super) stream: StreamId,
}

impl FrameHeader {
    pub(super) fn new(kind: FrameKind, stream: StreamId, length: u32) -> Self {
        Self { length, kind, flags: 0, stream }
    }

    pub(super) fn with_flag(mut self, flag: u8, is_set: bool) -> Self {
        if is_set {
            self.flags |= flag;
        }
        self
    }

    pub(super) fn has_flag(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let [_, length_0, length_1, length_2] = self.length.to_be_bytes();
        let [id_0, id_1, id_2, id_3] = self.stream.number().to_be_bytes();
        [length_0, length_1, length_2, self.flags | self.kind as u8, id_0, id_1, id_2, id_3]
    }

    /// Reads the header at the start of `input` without consuming it; `None` if it is incomplete.
    pub(super) fn peek(input: &[u8]) -> Result<Option<Self>, LinkError> {
        let Some(&[length_0, length_1, length_2, kind_and_flags, id_0, id_1, id_2, id_3]) =
            input.first_chunk::<HEADER_BYTES>()
        else {
            return Ok(None);
        };
        let kind = FrameKind::from_wire(kind_and_flags & KIND_BITS)?;
        let flags = kind_and_flags & !KIND_BITS;
        if flags & !kind.valid_flags() != 0 {
            return Err(LinkError::Malformed { fault: "a flag that its kind does not define" });
        }
        let stream = StreamId(u32::from_be_bytes([id_0, id_1, id_2, id_3]));
        if (stream.number() == 0) != kind.is_link_level() {
            return Err(LinkError::Malformed { fault: "an unexpected or missing stream number" });
        }
        Ok(Some(Self {
            length: u32::from_be_bytes([0, length_0, length_1, length_2]),
            kind,
            flags,
            stream,
        }))
    }

    /// Checks the payload length against the limits of the frame's kind, before any of the payload is buffered.
    pub(super) fn check_length(self, limits: &LinkLimits) -> Result<(), LinkError> {
        let (min_length, max_length) = match self.kind {
            FrameKind::Hello => (HELLO_BYTES, MAX_HELLO_BYTES),
            FrameKind::Open | FrameKind::Head | FrameKind::Trailers => (0, limits.max_head),
            FrameKind::Data => (0, limits.max_frame),
            FrameKind::Reset => (RESET_BYTES, MAX_RESET_BYTES),
            FrameKind::Credit => (CREDIT_BYTES, CREDIT_BYTES),
            FrameKind::GoAway => (GO_AWAY_BYTES, GO_AWAY_BYTES),
            FrameKind::Ping | FrameKind::Pong => (0, 0),
        };
        if self.length > max_length {
            return Err(LinkError::FrameTooLarge { length: self.length, max: max_length });
        }
        if self.length < min_length {
            return Err(LinkError::Malformed { fault: "a payload shorter than its kind needs" });
        }
        Ok(())
    }
}

impl FrameKind {
    fn from_wire(nibble: u8) -> Result<Self, LinkError> {
        Ok(match nibble {
            1 => Self::Hello,
            2 => Self::Open,
            3 => Self::Head,
            4 => Self::Data,
            5 => Self::Trailers,
            6 => Self::Reset,
            7 => Self::Credit,
            8 => Self::GoAway,
            9 => Self::Ping,
            10 => Self::Pong,
            _ => {
                return Err(LinkError::Malformed {
                    fault: "a kind that version 1 does not define",
                });
            }
        })
    }

    const fn valid_flags(self) -> u8 {
        match self {
            Self::Open => END | TCP,
            Self::Head => END | INTERIM | REJECTED,
            Self::Data => END,
            _ => 0,
        }
    }

    /// True if frames of this kind concern the whole link: their stream number is 0.
    const fn is_link_level(self) -> bool {
        matches!(self, Self::Hello | Self::GoAway | Self::Ping | Self::Pong)
    }
}

pub(super) fn write_hello(output: &mut BytesMut, role: Role, limits: &LinkLimits) {
    output.put_slice(&FrameHeader::new(FrameKind::Hello, StreamId::NONE, HELLO_BYTES).encode());
    output.put_u16(VERSION);
    output.put_u8(role_byte(role));
    output.put_u8(READS_REASONS | if limits.reads_http2_mark { READS_HTTP2_MARK } else { 0 });
    output.put_u32(limits.max_streams);
    output.put_u32(limits.window);
    output.put_u32(limits.max_head);
    output.put_u32(limits.max_frame);
}

/// Reads a HELLO. Returns the peer's limits, and true if the peer supports rejection reasons. Ignores bytes after those
/// of version 1, which are reserved for later releases.
pub(super) fn read_hello(
    mut payload: Bytes,
    own_role: Role,
) -> Result<(LinkLimits, bool), LinkError> {
    let too_short = |_| LinkError::Hello { fault: "is too short" };
    let version = payload.try_get_u16().map_err(too_short)?;
    if version != VERSION {
        return Err(LinkError::Version { peer_version: version });
    }
    let role = payload.try_get_u8().map_err(too_short)?;
    let peer_role = match own_role {
        Role::Opener => Role::Acceptor,
        Role::Acceptor => Role::Opener,
    };
    if role != role_byte(peer_role) {
        return Err(LinkError::Hello { fault: "claims the role of this side" });
    }
    let features = payload.try_get_u8().map_err(too_short)?;
    let limits = LinkLimits {
        max_streams: payload.try_get_u32().map_err(too_short)?,
        window: payload.try_get_u32().map_err(too_short)?,
        max_head: payload.try_get_u32().map_err(too_short)?,
        max_frame: payload.try_get_u32().map_err(too_short)?,
        reads_http2_mark: features & READS_HTTP2_MARK != 0,
        ..LinkLimits::minimum()
    };
    if limits.is_within_range() {
        Ok((limits, features & READS_REASONS != 0))
    } else {
        Err(LinkError::Hello { fault: "has a limit out of range" })
    }
}

pub(super) fn write_reset(output: &mut BytesMut, stream: StreamId, code: u8, reason: &str) {
    let max_reason_bytes = usize::try_from(MAX_RESET_BYTES - RESET_BYTES).unwrap_or(usize::MAX);
    // A reason that does not fit is omitted: it is only informative.
    let reason = Some(reason.as_bytes())
        .filter(|reason| reason.len() <= max_reason_bytes)
        .unwrap_or_default();
    let length = u32::try_from(reason.len()).unwrap_or_default().saturating_add(RESET_BYTES);
    output.put_slice(&FrameHeader::new(FrameKind::Reset, stream, length).encode());
    output.put_u8(code);
    output.put_slice(reason);
}

pub(super) fn write_credit(output: &mut BytesMut, stream: StreamId, bytes: u32) {
    output.put_slice(&FrameHeader::new(FrameKind::Credit, stream, CREDIT_BYTES).encode());
    output.put_u32(bytes);
}

pub(super) fn write_go_away(output: &mut BytesMut, last_stream: u32, code: u8) {
    output.put_slice(&FrameHeader::new(FrameKind::GoAway, StreamId::NONE, GO_AWAY_BYTES).encode());
    output.put_u32(last_stream);
    output.put_u8(code);
}

pub(super) fn write_empty(output: &mut BytesMut, kind: FrameKind) {
    output.put_slice(&FrameHeader::new(kind, StreamId::NONE, 0).encode());
}

const fn role_byte(role: Role) -> u8 {
    match role {
        Role::Opener => 1,
        Role::Acceptor => 2,
    }
}

/// The length of every frame header.
pub(super) const HEADER_BYTES: usize = 8;
/// A flag: the sender sends nothing more on the stream.
pub(super) const END: u8 = 0x10;
/// A flag of HEAD: the head is 1xx, and another head follows.
pub(super) const INTERIM: u8 = 0x20;
/// A flag of HEAD: the acceptor generated the head to reject the request.
pub(super) const REJECTED: u8 = 0x80;
/// A flag of OPEN: the stream carries a TCP connection, not a request.
pub(super) const TCP: u8 = 0x40;

/// The bits of the kind in the fourth byte of the header; the other bits are flags.
const KIND_BITS: u8 = 0x0f;
/// A feature bit of HELLO: its sender supports REJECTED, and reasons in RESET.
const READS_REASONS: u8 = 0x01;
/// A feature bit of HELLO: its sender supports the mark of requests from HTTP/2 clients.
const READS_HTTP2_MARK: u8 = 0x02;
/// The payload of HELLO in version 1.
pub(super) const HELLO_BYTES: u32 = 20;
/// The maximum payload of HELLO, with room for the fields of later releases.
pub(super) const MAX_HELLO_BYTES: u32 = 256;
/// The minimum payload of RESET: the code, without the reason that may follow it.
pub(super) const RESET_BYTES: u32 = 1;
/// The maximum payload of RESET: the code, and a reason of at most 64 bytes.
pub(super) const MAX_RESET_BYTES: u32 = 65;
/// The payload of CREDIT: a number of bytes.
pub(super) const CREDIT_BYTES: u32 = 4;
/// The payload of GOAWAY: the last stream and the code.
pub(super) const GO_AWAY_BYTES: u32 = 5;
