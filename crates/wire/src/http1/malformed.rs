//! Why a message was refused: the rule and where it is written.

use thiserror::Error;

/// A message that breaks a rule of HTTP/1.1, or a bound of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Malformed {
    /// The head or trailer section exceeds [`HEAD_BYTES_MAX`](super::HEAD_BYTES_MAX).
    #[error("the head is longer than 65536 bytes (RFC 9110 §5.4)")]
    HeadTooLarge,
    /// The section has more than [`FIELDS_MAX`](super::FIELDS_MAX) fields.
    #[error("the head has more than 256 fields (RFC 9110 §5.4)")]
    TooManyFields,
    /// `Connection` names more fields than we are ready to look up.
    #[error("Connection names more than 16 fields (RFC 9110 §7.6.1)")]
    TooManyConnectionOptions,
    /// A line ends in something else than CR LF, or a CR or LF stands alone.
    #[error("a line does not end in CR LF (RFC 9112 §2.2)")]
    LineEnd,
    /// The first line is not `method SP target SP version`.
    #[error("the request line is not `method target HTTP/1.1` (RFC 9112 §3)")]
    RequestLine,
    /// The method is empty or not a token.
    #[error("the method is not a token (RFC 9110 §9.1)")]
    Method,
    /// The request target has a byte that no target may have.
    #[error("the request target has a forbidden character (RFC 9112 §3.2)")]
    TargetCharacter,
    /// The request target has none of the forms its method allows.
    #[error("the request target has the wrong form for its method (RFC 9112 §3.2)")]
    TargetForm,
    /// A host and port that are not one.
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
    /// There is white space between a field name and its colon.
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
    #[error("Host is given more than once (RFC 9112 §3.2)")]
    HostRepeated,
    /// `Content-Length` is not a plain decimal number that fits.
    #[error("Content-Length is not a plain decimal number (RFC 9110 §8.6)")]
    ContentLength,
    /// There is more than one `Content-Length`.
    #[error("Content-Length is given more than once (RFC 9112 §6.3)")]
    ContentLengthRepeated,
    /// Both lengths are given: the classic smuggling vector.
    #[error("Content-Length together with Transfer-Encoding (RFC 9112 §6.3)")]
    TwoLengths,
    /// `Transfer-Encoding` is anything but one `chunked`.
    #[error("Transfer-Encoding is not exactly `chunked` (RFC 9112 §6.1)")]
    TransferEncoding,
    /// `Transfer-Encoding` in a message of HTTP/1.0.
    #[error("Transfer-Encoding in HTTP/1.0 (RFC 9112 §6.1)")]
    TransferEncodingInHttp10,
    /// A body is announced where there can be none (CONNECT, 1xx, 204).
    #[error("a body is announced where none is allowed (RFC 9110 §8.6, RFC 9112 §6.1)")]
    BodyForbidden,
    /// `Connection` has an option that is no token, or names a field that must be forwarded.
    #[error("Connection names what it must not (RFC 9110 §7.6.1)")]
    ConnectionOption,
    /// A chunk size is not one to sixteen hexadecimal digits.
    #[error("a chunk size is not a hexadecimal number that fits (RFC 9112 §7.1)")]
    ChunkSize,
    /// A chunk extension is not one, or those of a body exceed
    /// [`CHUNK_EXTENSION_BYTES_MAX`](super::CHUNK_EXTENSION_BYTES_MAX).
    #[error(
        "a chunk extension is malformed, or those of the body exceed 16384 bytes (RFC 9112 §7.1.1)"
    )]
    ChunkExtension,
    /// The data of a chunk is not followed by CR LF.
    #[error("the data of a chunk does not end in CR LF (RFC 9112 §7.1)")]
    ChunkEnd,
    /// A trailer field that only a head may carry.
    #[error("a trailer field concerns framing or routing (RFC 9110 §6.5.1)")]
    TrailerField,
    /// The input ended before the body did.
    #[error("the connection closed before the body was complete (RFC 9112 §8)")]
    BodyTruncated,
}

impl Malformed {
    /// The status that tells a client about it (RFC 9110 §15.5.1, RFC 6585 §5). What claims to
    /// be another version gets 400 as well: whether it is HTTP at all is not known.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::HeadTooLarge | Self::TooManyFields => 431,
            _ => 400,
        }
    }
}
