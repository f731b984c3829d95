//! HTTP/1.1 heads and bodies: parsed in place, refused when in doubt, written back as splices.
//!
//! RFC 9110 and RFC 9112 are read strictly: what two readers could understand differently is
//! [`Malformed`], never repaired, because a repaired message is a smuggled one. Heads are kept as
//! [`Span`]s of the received bytes, so a reused head allocates nothing.

mod block;
mod body;
mod chunk_extension;
mod field;
mod malformed;
mod mend;
mod request;
mod response;
mod scan;
mod span;
mod target;
mod write;

pub use body::{
    BodyDecoder, CHUNK_END, CHUNK_EXTENSION_BYTES_MAX, LAST_CHUNK, Piece, TRAILERS_FOLLOW,
    write_chunk_size,
};
pub use field::{Field, FieldName};
pub use malformed::Malformed;
pub use mend::{Mended, mend_response};
pub use request::RequestHead;
pub use response::{Answers, ResponseHead};
pub use span::Span;
pub use target::{Target, origin_form, split_authority, target};
pub use write::{Connection, Framing, RequestEdits, ResponseEdits, write_request, write_response};

/// The versions of HTTP that share this syntax.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0: closes by default, knows no chunks.
    Http10,
    /// HTTP/1.1: persists by default.
    #[default]
    Http11,
}

/// How the end of a body is found (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyLength {
    /// There is no body.
    #[default]
    Empty,
    /// `Content-Length` says so.
    Known(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// Everything until the connection closes (responses only).
    UntilClose,
}

/// What a parse of a head came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The head is whole and takes this many bytes, its final empty line included.
    Complete(usize),
    /// Nothing is wrong yet, but more bytes are needed.
    Partial,
}

/// The most bytes of a request head, a response head or a trailer section: what an operator
/// expects of a generous server, and what a slow stranger can make us hold.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;

/// The most fields in one head or trailer section.
pub const FIELDS_MAX: usize = 256;
