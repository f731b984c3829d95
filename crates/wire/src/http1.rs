//! HTTP/1.1 heads and bodies: parsed in place, rejected if ambiguous, forwarded as splices.
//!
//! RFC 9110 and RFC 9112 are applied strictly: a message that two readers could interpret differently is
//! [`Malformed`], never repaired, because a repaired message is a smuggling vector. Heads are kept as [`ByteSpan`]s
//! of the received bytes, so a reused head allocates nothing.

mod block;
mod body;
mod chunk_extension;
mod field;
mod malformed;
mod repair;
mod request;
mod response;
mod scan;
mod span;
mod target;
mod write;

pub use body::{
    BodyDecoder, CHUNK_END, DecodedPiece, LAST_CHUNK, MAX_CHUNK_EXTENSION_BYTES, TRAILERS_FOLLOW,
    write_chunk_size,
};
pub use field::{FieldName, HeaderField};
pub use malformed::Malformed;
pub use repair::{RepairedHead, repair_response};
pub use request::RequestHead;
pub use response::{RequestKind, ResponseHead};
pub use span::ByteSpan;
pub use target::{RequestTarget, origin_form, parse_target, split_authority};
pub use write::{
    ConnectionHeader, Framing, RequestEdits, ResponseEdits, write_request, write_response,
};

/// The HTTP versions with this syntax.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Http1Version {
    /// HTTP/1.0: closes by default, has no chunks.
    Http10,
    /// HTTP/1.1: persists by default.
    #[default]
    Http11,
}

/// The framing of a body (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyLength {
    /// There is no body.
    #[default]
    Empty,
    /// The value of `Content-Length`.
    Known(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// All bytes until the connection closes (responses only).
    UntilClose,
}

/// The result of parsing a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The head is complete, with this length, including its final empty line.
    Complete(usize),
    /// Valid so far, but incomplete.
    Partial,
}

/// The maximum size of a request head, a response head or a trailer section: generous for applications, and a
/// bound for the memory that a slow client can occupy.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;

/// The maximum number of fields in one head or trailer section.
pub const MAX_FIELDS: usize = 256;
