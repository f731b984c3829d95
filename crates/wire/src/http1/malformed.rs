//! Defines the errors of the HTTP/1.1 parser, with their RFC sections.

use thiserror::Error;

/// A violation of HTTP/1.1, or of an implementation limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Malformed {
    /// The head or trailer section exceeds [`MAX_HEAD_BYTES`](super::MAX_HEAD_BYTES).
    #[error("the head is longer than 65536 bytes (RFC 9110 §5.4)")]
    HeadTooLarge,
    /// The section has more than [`MAX_FIELDS`](super::MAX_FIELDS) fields.
    #[error("the head has more than 256 fields (RFC 9110 §5.4)")]
    TooManyFields,
    /// `Connection` lists too many fields.
    #[error("Connection names more than 16 fields (RFC 9110 §7.6.1)")]
    TooManyConnectionOptions,
    /// A line does not end in CR LF, or contains a bare CR or LF.
    #[error("a line does not end in CR LF (RFC 9112 §2.2)")]
    LineEnd,
    /// The first line is not `method SP target SP version`.
    #[error("the request line is not `method target HTTP/1.1` (RFC 9112 §3)")]
    RequestLine,
    /// The method is empty or not a token.
    #[error("the method is not a token (RFC 9110 §9.1)")]
    Method,
    /// The request target has an invalid character.
    #[error("the request target has a forbidden character (RFC 9112 §3.2)")]
    TargetCharacter,
    /// The request target has none of the forms that its method allows.
    #[error("the request target has the wrong form for its method (RFC 9112 §3.2)")]
    TargetForm,
    /// An invalid host and port.
    #[error("the host or port is invalid (RFC 9110 §4.2, RFC 3986 §3.2)")]
    Authority,
    /// Neither HTTP/1.0 nor HTTP/1.1.
    #[error("the version is neither HTTP/1.0 nor HTTP/1.1 (RFC 9112 §2.3)")]
    Version,
    /// The first line is not `version SP status SP reason`.
    #[error("the status line is not `HTTP/1.1 status reason` (RFC 9112 §4)")]
    StatusLine,
    /// A field name is empty or not a token.
    #[error("a field name is not a token (RFC 9110 §5.1)")]
    FieldName,
    /// White space between a field name and its colon.
    #[error("white space before the colon of a field (RFC 9112 §5.1)")]
    SpaceBeforeColon,
    /// A line begins with white space: a folded field.
    #[error("a field is folded over several lines (RFC 9112 §5.2)")]
    FoldedField,
    /// A field value or reason has a control character.
    #[error("a control character in a field value (RFC 9110 §5.5)")]
    FieldValue,
    /// An HTTP/1.1 request has no `Host`.
    #[error("Host is missing (RFC 9112 §3.2)")]
    HostMissing,
    /// A request has more than one `Host`.
    #[error("Host is present more than once (RFC 9112 §3.2)")]
    HostRepeated,
    /// `Content-Length` is not a plain decimal number, or exceeds 64 bits.
    #[error("Content-Length is not a plain decimal number (RFC 9110 §8.6)")]
    ContentLength,
    /// There is more than one `Content-Length`.
    #[error("Content-Length is present more than once (RFC 9112 §6.3)")]
    ContentLengthRepeated,
    /// Both `Content-Length` and `Transfer-Encoding`: the classic smuggling vector.
    #[error("Content-Length together with Transfer-Encoding (RFC 9112 §6.3)")]
    TwoLengths,
    /// `Transfer-Encoding` is not a single `chunked`.
    #[error("Transfer-Encoding is not exactly `chunked` (RFC 9112 §6.1)")]
    TransferEncoding,
    /// `Transfer-Encoding` in an HTTP/1.0 message.
    #[error("Transfer-Encoding in HTTP/1.0 (RFC 9112 §6.1)")]
    TransferEncodingInHttp10,
    /// A body is announced where none is allowed (CONNECT, 1xx, 204).
    #[error("a body is announced where none is allowed (RFC 9110 §8.6, RFC 9112 §6.1)")]
    BodyForbidden,
    /// `Connection` has an option that is not a token, or lists a field that must be forwarded.
    #[error("Connection has an invalid option (RFC 9110 §7.6.1)")]
    ConnectionOption,
    /// A chunk size is not one to sixteen hexadecimal digits.
    #[error("a chunk size is not a hexadecimal number that fits (RFC 9112 §7.1)")]
    ChunkSize,
    /// A chunk extension is malformed, or those of a body exceed
    /// [`MAX_CHUNK_EXTENSION_BYTES`](super::MAX_CHUNK_EXTENSION_BYTES).
    #[error(
        "a chunk extension is malformed, or those of the body exceed 16384 bytes (RFC 9112 §7.1.1)"
    )]
    ChunkExtension,
    /// The data of a chunk is not followed by CR LF.
    #[error("the data of a chunk does not end in CR LF (RFC 9112 §7.1)")]
    ChunkEnd,
    /// A trailer field that is allowed only in heads.
    #[error("a trailer field concerns framing or routing (RFC 9110 §6.5.1)")]
    TrailerField,
    /// The input ended before the body did.
    #[error("the connection closed before the body was complete (RFC 9112 §8)")]
    BodyTruncated,
}

impl Malformed {
    /// Returns the status for a client that sent the malformed request (RFC 9110 §15.5.1, RFC 6585 §5). An unknown
    /// version results in 400, not 505, because the message may not be HTTP.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::HeadTooLarge | Self::TooManyFields => 431,
            _ => 400,
        }
    }
}
