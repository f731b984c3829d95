//! Body framing and decoding.

use std::ops::Range;

use bytes::BytesMut;

use super::chunk_extension::{ChunkExtension, Read};
use super::field::field_line;
use super::scan::{Cursor, parse_section};
use super::{BodyLength, FIELDS_MAX, FieldName, Malformed, Parsed};

/// Finds the content of one body in the bytes of a connection, without copying it.
#[derive(Clone, Debug)]
pub struct BodyDecoder {
    state: State,
    /// The remaining allowance for chunk extensions of this body.
    extensions_left: usize,
}

/// The result of one call of [`BodyDecoder::decode`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecodedPiece {
    /// The number of bytes to skip, framing and content. Zero without `complete`: more input is needed.
    pub consumed: usize,
    /// The content, within the consumed bytes; may be empty.
    pub data: Range<usize>,
    /// The raw trailer section, including its final CR LF, if the body has one.
    pub trailers: Option<Range<usize>>,
    /// The end of the body: bytes after the consumed ones are not part of it.
    pub complete: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Known(u64),
    UntilClose,
    ChunkSize,
    ChunkExtension { size: u64, extension: ChunkExtension },
    ChunkData(u64),
    ChunkEnd,
    Trailers,
    Complete,
}

impl BodyDecoder {
    /// Creates a decoder at the start of a body.
    #[must_use]
    pub fn new(length: BodyLength) -> Self {
        let state = match length {
            BodyLength::Empty | BodyLength::Known(0) => State::Complete,
            BodyLength::Known(length) => State::Known(length),
            BodyLength::Chunked => State::ChunkSize,
            BodyLength::UntilClose => State::UntilClose,
        };
        Self { state, extensions_left: CHUNK_EXTENSION_BYTES_MAX }
    }

    /// Finds the next piece of content at the start of `bytes`: all available bytes of a plain body, at most
    /// one chunk of a chunked one. Unconsumed bytes must be passed again: at most a chunk size, or a trailer
    /// section of [`HEAD_BYTES_MAX`](super::HEAD_BYTES_MAX).
    ///
    /// # Errors
    /// The framing is invalid; the connection is no longer usable.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<DecodedPiece, Malformed> {
        match self.state {
            State::Known(left) => Ok(self.decode_plain(left, bytes.len())),
            State::UntilClose => Ok(DecodedPiece {
                consumed: bytes.len(),
                data: 0..bytes.len(),
                ..DecodedPiece::default()
            }),
            State::Complete => Ok(DecodedPiece { complete: true, ..DecodedPiece::default() }),
            State::ChunkSize
            | State::ChunkExtension { .. }
            | State::ChunkData(_)
            | State::ChunkEnd
            | State::Trailers => self.decode_chunk(bytes),
        }
    }

    /// True if the whole body has been read.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        matches!(self.state, State::Complete)
    }

    /// Ends the input: the connection was closed.
    ///
    /// # Errors
    /// The body is incomplete, and does not end with the connection.
    pub fn end_of_input(&mut self) -> Result<(), Malformed> {
        match self.state {
            State::UntilClose | State::Complete => {
                self.state = State::Complete;
                Ok(())
            }
            _ => Err(Malformed::BodyTruncated),
        }
    }

    fn decode_plain(&mut self, left: u64, available: usize) -> DecodedPiece {
        let (take, left) = split_available(left, available);
        self.state = if left == 0 { State::Complete } else { State::Known(left) };
        DecodedPiece { consumed: take, data: 0..take, trailers: None, complete: left == 0 }
    }

    /// Decodes at most one chunk of content, with all available framing around it.
    fn decode_chunk(&mut self, bytes: &[u8]) -> Result<DecodedPiece, Malformed> {
        let mut piece = DecodedPiece::default();
        loop {
            let rest = bytes.get(piece.consumed..).unwrap_or_default();
            let step = match self.state {
                State::ChunkSize => self.chunk_size(rest)?,
                State::ChunkExtension { size, extension } => {
                    self.chunk_extension(size, extension, rest)?
                }
                State::ChunkEnd => self.chunk_end(rest)?,
                State::ChunkData(left) if piece.data.is_empty() => {
                    let (take, left) = split_available(left, rest.len());
                    self.state = if left == 0 { State::ChunkEnd } else { State::ChunkData(left) };
                    piece.data = piece.consumed..piece.consumed.saturating_add(take);
                    take
                }
                State::Trailers => {
                    let length = self.trailers_length(rest)?;
                    if length > CHUNK_END.len() {
                        let end = piece.consumed.saturating_add(length);
                        piece.trailers = Some(piece.consumed..end);
                    }
                    length
                }
                State::ChunkData(_) | State::Complete | State::Known(_) | State::UntilClose => 0,
            };
            piece.consumed = piece.consumed.saturating_add(step);
            piece.complete = self.is_complete();
            if step == 0 || piece.complete {
                return Ok(piece);
            }
        }
    }

    /// Returns the length of a chunk size line, or 0 if it is incomplete (RFC 9112 §7.1).
    fn chunk_size(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let mut size = 0_u64;
        for (at, byte) in bytes.iter().enumerate() {
            if let Some(digit) = char::from(*byte).to_digit(16) {
                if at >= CHUNK_SIZE_DIGITS_MAX {
                    return Err(Malformed::ChunkSize);
                }
                size = size.wrapping_shl(4) | u64::from(digit);
                continue;
            }
            return match (byte, bytes.get(at.saturating_add(1))) {
                _ if at == 0 => Err(Malformed::ChunkSize),
                (b'\r', Some(b'\n')) => {
                    self.state = State::of_chunk(size);
                    Ok(at.saturating_add(CHUNK_END.len()))
                }
                (b'\r', None) => Ok(0),
                (b'\r' | b'\n', _) => Err(Malformed::LineEnd),
                (b';' | b' ' | b'\t', _) => {
                    let extension = ChunkExtension::default();
                    self.state = State::ChunkExtension { size, extension };
                    Ok(at)
                }
                _ => Err(Malformed::ChunkSize),
            };
        }
        Ok(0)
    }

    /// Returns the length of the part of `bytes` that belongs to a chunk extension (RFC 9112 §7.1.1).
    #[cold]
    fn chunk_extension(
        &mut self,
        size: u64,
        mut extension: ChunkExtension,
        bytes: &[u8],
    ) -> Result<usize, Malformed> {
        let (length, read) = extension.read(bytes)?;
        let left = self.extensions_left.checked_sub(length);
        self.extensions_left = left.ok_or(Malformed::ChunkExtension)?;
        self.state = match read {
            Read::Part => State::ChunkExtension { size, extension },
            Read::Whole => State::of_chunk(size),
        };
        Ok(length)
    }

    /// Returns the length of the CR LF after the data of a chunk, or 0 if it is incomplete.
    fn chunk_end(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        match bytes {
            [] | [b'\r'] => Ok(0),
            [b'\r', b'\n', ..] => {
                self.state = State::ChunkSize;
                Ok(CHUNK_END.len())
            }
            _ => Err(Malformed::ChunkEnd),
        }
    }

    /// Returns the length of the trailer section with its final CR LF, or 0 if it is incomplete.
    fn trailers_length(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let length = match bytes {
            [] | [b'\r'] => 0,
            [b'\r', b'\n', ..] => CHUNK_END.len(),
            _ => match parse_section(bytes, check_trailers)? {
                Parsed::Complete(length) => length,
                Parsed::Partial => 0,
            },
        };
        if length > 0 {
            self.state = State::Complete;
        }
        Ok(length)
    }
}

impl State {
    /// Returns the state after the size line of a chunk.
    fn of_chunk(size: u64) -> Self {
        if size == 0 { Self::Trailers } else { Self::ChunkData(size) }
    }
}

/// Appends the size line of a chunk; its data and [`CHUNK_END`] follow. Zero would end the body, so nothing is
/// written for it.
pub fn write_chunk_size(length: usize, out: &mut BytesMut) {
    let mut line = *b"0000000000000000\r\n";
    let mut rest = length;
    let mut digits = 0_usize;
    for place in line.iter_mut().rev().skip(CHUNK_END.len()) {
        if rest == 0 {
            break;
        }
        *place = HEX.get(rest & 15).copied().unwrap_or(b'0');
        rest = rest.wrapping_shr(4);
        digits = digits.saturating_add(1);
    }
    let start = CHUNK_SIZE_DIGITS_MAX.saturating_sub(digits);
    if digits > 0 {
        out.extend_from_slice(line.get(start..).unwrap_or_default());
    }
}

/// The end of the data of every chunk.
pub const CHUNK_END: &[u8] = b"\r\n";

/// The end of a chunked body without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// The end of a chunked body with trailers; a raw trailer section follows.
pub const TRAILERS_FOLLOW: &[u8] = b"0\r\n";

/// Splits `left` into the available part and the rest.
fn split_available(left: u64, available: usize) -> (usize, u64) {
    let take = usize::try_from(left).unwrap_or(usize::MAX).min(available);
    (take, left.saturating_sub(take as u64))
}

/// Skips a valid trailer section. Framing and routing fields are not allowed here (RFC 9110 §6.5.1): a reader
/// that merges them would find another length.
fn check_trailers(cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
    let mut count = 0_usize;
    while !cursor.skip(CHUNK_END) {
        if count >= FIELDS_MAX {
            return Err(Malformed::TooManyFields);
        }
        if field_line(cursor)?.kind != FieldName::Other {
            return Err(Malformed::TrailerField);
        }
        count = count.saturating_add(1);
    }
    Ok(())
}

/// The maximum total length of a body's chunk extensions: a peer could send them endlessly without content.
pub const CHUNK_EXTENSION_BYTES_MAX: usize = 16 * 1024;

/// Sixteen hexadecimal digits are 64 bits.
const CHUNK_SIZE_DIGITS_MAX: usize = 16;

const HEX: &[u8; 16] = b"0123456789abcdef";

#[cfg(test)]
mod tests;
