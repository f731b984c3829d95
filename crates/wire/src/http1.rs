//! Parses, checks and rewrites HTTP/1.1 heads and bodies.
//!
//! RFC 9110 and RFC 9112 are applied strictly: a message that two recipients could interpret differently is
//! [`Malformed`], because such messages allow request smuggling. There is one exception: [`repair_response`] repairs
//! response heads of the local application that a client without a mesh would accept.
//!
//! Heads are parsed in place, as [`ByteSpan`]s of the received bytes, so that a reused head allocates nothing.
//! [`write_request`] and [`write_response`] forward a head by copying spans of the received bytes, with edits
//! between them.

mod body;
mod chunk_extension;
mod cursor;
mod field;
mod malformed;
mod repair;
mod request;
mod response;
mod simd;
mod span;
mod target;
mod write;

pub use body::{
    BodyDecoder, CHUNK_END, DecodedPiece, LAST_CHUNK, LAST_CHUNK_BEFORE_TRAILERS,
    MAX_CHUNK_EXTENSION_BYTES, write_chunk_size,
};
pub use field::{FieldKind, HeaderField};
pub use malformed::Malformed;
pub use repair::{RepairedHead, repair_response};
pub use request::RequestHead;
pub use response::{RequestKind, ResponseHead};
pub use span::ByteSpan;
pub use target::{RequestTarget, origin_form, parse_target, split_authority};
pub use write::{
    ConnectionHeader, FramingPolicy, RequestEdits, ResponseEdits, write_request, write_response,
};

/// The version in the first line of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Http1Version {
    /// HTTP/1.0: connections close after one message by default, and there is no chunked coding.
    Http10,
    /// HTTP/1.1: connections persist by default.
    #[default]
    Http11,
}

/// The length of a body, as its head declares it (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyLength {
    /// The message has no body.
    #[default]
    Empty,
    /// The number of bytes in `Content-Length`.
    ContentLength(u64),
    /// The body is sent in chunks, until the chunk of size 0: `Transfer-Encoding: chunked`.
    Chunked,
    /// All bytes until the connection closes (responses only).
    UntilClose,
}

/// The progress of parsing a head or a trailer section whose received bytes are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseProgress {
    /// The section is complete. Contains its length in bytes, including the final empty line.
    Complete(usize),
    /// More bytes are needed.
    Partial,
}

/// The maximum size of a request head, a response head or a trailer section, in bytes. Applications rarely need more
/// than 16 KiB; the limit bounds the memory that a client occupies by sending its head slowly.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;

/// The maximum number of fields in one head or trailer section.
pub const MAX_FIELDS: usize = 256;
