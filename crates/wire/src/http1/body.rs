//! Decodes the framing of received bodies, and writes the framing of chunked bodies.

use std::ops::Range;

use bytes::BytesMut;

use super::chunk_extension::{ChunkExtensionParser, ExtensionProgress};
use super::cursor::{Cursor, parse_section};
use super::field::read_field_line;
use super::{BodyLength, FieldKind, MAX_FIELDS, Malformed, ParseProgress};

/// Finds the content of one body in the bytes of a connection, without copying it.
#[derive(Clone, Debug)]
pub struct BodyDecoder {
    state: DecoderState,
    /// The number of bytes of chunk extensions that this body may still contain.
    extension_bytes_left: usize,
}

/// The result of one call of [`BodyDecoder::decode`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecodedPiece {
    /// The number of bytes to skip, framing and content. If this is 0 and `complete` is false, more input is needed.
    pub consumed: usize,
    /// The position of the content within the consumed bytes; may be empty.
    pub data: Range<usize>,
    /// The raw trailer section, including its final CR LF, if the body has one.
    pub trailers: Option<Range<usize>>,
    /// True if the body ends with the consumed bytes.
    pub complete: bool,
}

/// The element of the body that the next byte belongs to.
#[derive(Clone, Copy, Debug)]
enum DecoderState {
    /// In a body with `Content-Length`: the number of bytes still to come.
    ContentLength(u64),
    UntilClose,
    ChunkSize,
    /// After the size of a chunk, in the same line.
    ChunkExtension {
        size: u64,
        extension: ChunkExtensionParser,
    },
    /// In the data of a chunk: the number of bytes still to come.
    ChunkData(u64),
    /// Before the CR LF after the data of a chunk.
    ChunkEnd,
    /// After the chunk of size 0.
    Trailers,
    Complete,
}

impl BodyDecoder {
    /// Creates a decoder at the start of a body.
    #[must_use]
    pub fn new(length: BodyLength) -> Self {
        let state = match length {
            BodyLength::Empty | BodyLength::ContentLength(0) => DecoderState::Complete,
            BodyLength::ContentLength(length) => DecoderState::ContentLength(length),
            BodyLength::Chunked => DecoderState::ChunkSize,
            BodyLength::UntilClose => DecoderState::UntilClose,
        };
        Self { state, extension_bytes_left: MAX_CHUNK_EXTENSION_BYTES }
    }

    /// Finds the next piece of content at the start of `bytes`: all available bytes of a body that is not chunked, at
    /// most one chunk of a chunked body. Pass unconsumed bytes again, with more bytes after them. They are part of a
    /// chunk size line, or of a trailer section of at most [`MAX_HEAD_BYTES`](super::MAX_HEAD_BYTES).
    ///
    /// # Errors
    /// The framing is invalid; the connection is no longer usable.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<DecodedPiece, Malformed> {
        match self.state {
            DecoderState::ContentLength(remaining) => {
                Ok(self.decode_unchunked(remaining, bytes.len()))
            }
            DecoderState::UntilClose => Ok(DecodedPiece {
                consumed: bytes.len(),
                data: 0..bytes.len(),
                ..DecodedPiece::default()
            }),
            DecoderState::Complete => {
                Ok(DecodedPiece { complete: true, ..DecodedPiece::default() })
            }
            DecoderState::ChunkSize
            | DecoderState::ChunkExtension { .. }
            | DecoderState::ChunkData(_)
            | DecoderState::ChunkEnd
            | DecoderState::Trailers => self.decode_chunk(bytes),
        }
    }

    /// True if the whole body has been read.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        matches!(self.state, DecoderState::Complete)
    }

    /// Records that the connection was closed: no more input arrives.
    ///
    /// # Errors
    /// The body is incomplete, and is not of [`BodyLength::UntilClose`].
    pub fn end_of_input(&mut self) -> Result<(), Malformed> {
        match self.state {
            DecoderState::UntilClose | DecoderState::Complete => {
                self.state = DecoderState::Complete;
                Ok(())
            }
            _ => Err(Malformed::BodyTruncated),
        }
    }

    /// Decodes the available bytes of a body with `Content-Length`.
    fn decode_unchunked(&mut self, remaining: u64, available_bytes: usize) -> DecodedPiece {
        let (length, remaining) = split_available(remaining, available_bytes);
        self.state = if remaining == 0 {
            DecoderState::Complete
        } else {
            DecoderState::ContentLength(remaining)
        };
        DecodedPiece { consumed: length, data: 0..length, trailers: None, complete: remaining == 0 }
    }

    /// Decodes at most one chunk of content, with all available framing around it.
    fn decode_chunk(&mut self, bytes: &[u8]) -> Result<DecodedPiece, Malformed> {
        let mut piece = DecodedPiece::default();
        loop {
            let remaining_bytes = bytes.get(piece.consumed..).unwrap_or_default();
            let step_bytes = match self.state {
                DecoderState::ChunkSize => self.read_chunk_size(remaining_bytes)?,
                DecoderState::ChunkExtension { size, extension } => {
                    self.read_chunk_extension(size, extension, remaining_bytes)?
                }
                DecoderState::ChunkEnd => self.read_chunk_end(remaining_bytes)?,
                DecoderState::ChunkData(remaining) if piece.data.is_empty() => {
                    let (length, remaining) = split_available(remaining, remaining_bytes.len());
                    self.state = if remaining == 0 {
                        DecoderState::ChunkEnd
                    } else {
                        DecoderState::ChunkData(remaining)
                    };
                    piece.data = piece.consumed..piece.consumed.saturating_add(length);
                    length
                }
                DecoderState::Trailers => {
                    let length = self.read_trailers(remaining_bytes)?;
                    if length > CRLF.len() {
                        let end = piece.consumed.saturating_add(length);
                        piece.trailers = Some(piece.consumed..end);
                    }
                    length
                }
                // A piece has the content of at most one chunk, and nothing follows a complete body.
                DecoderState::ChunkData(_)
                | DecoderState::Complete
                | DecoderState::ContentLength(_)
                | DecoderState::UntilClose => 0,
            };
            piece.consumed = piece.consumed.saturating_add(step_bytes);
            piece.complete = self.is_complete();
            if step_bytes == 0 || piece.complete {
                return Ok(piece);
            }
        }
    }

    /// Reads a chunk size line (RFC 9112 §7.1). Returns its length, or 0 if it is incomplete. For a line with
    /// extensions, returns the length of the size alone.
    fn read_chunk_size(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let mut size = 0_u64;
        for (index, byte) in bytes.iter().enumerate() {
            if let Some(digit) = char::from(*byte).to_digit(16) {
                if index >= MAX_CHUNK_SIZE_DIGITS {
                    return Err(Malformed::ChunkSize);
                }
                size = size.wrapping_shl(4) | u64::from(digit);
                continue;
            }
            return match (byte, bytes.get(index.saturating_add(1))) {
                _ if index == 0 => Err(Malformed::ChunkSize),
                (b'\r', Some(b'\n')) => {
                    self.state = DecoderState::after_chunk_size(size);
                    Ok(index.saturating_add(CRLF.len()))
                }
                (b'\r', None) => Ok(0),
                (b'\r' | b'\n', _) => Err(Malformed::LineEnd),
                (b';' | b' ' | b'\t', _) => {
                    let extension = ChunkExtensionParser::default();
                    self.state = DecoderState::ChunkExtension { size, extension };
                    Ok(index)
                }
                _ => Err(Malformed::ChunkSize),
            };
        }
        Ok(0)
    }

    /// Reads the leading bytes that belong to a chunk extension (RFC 9112 §7.1.1). Returns their number.
    #[cold]
    fn read_chunk_extension(
        &mut self,
        size: u64,
        mut extension: ChunkExtensionParser,
        bytes: &[u8],
    ) -> Result<usize, Malformed> {
        let (length, progress) = extension.read(bytes)?;
        let extension_bytes_left = self.extension_bytes_left.checked_sub(length);
        self.extension_bytes_left = extension_bytes_left.ok_or(Malformed::ChunkExtension)?;
        self.state = match progress {
            ExtensionProgress::Incomplete => DecoderState::ChunkExtension { size, extension },
            ExtensionProgress::Complete => DecoderState::after_chunk_size(size),
        };
        Ok(length)
    }

    /// Reads the CR LF after the data of a chunk. Returns its length, or 0 if it is incomplete.
    fn read_chunk_end(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        match bytes {
            [] | [b'\r'] => Ok(0),
            [b'\r', b'\n', ..] => {
                self.state = DecoderState::ChunkSize;
                Ok(CHUNK_END.len())
            }
            _ => Err(Malformed::ChunkEnd),
        }
    }

    /// Reads the trailer section with its final CR LF. Returns its length, or 0 if it is incomplete.
    fn read_trailers(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let length = match bytes {
            [] | [b'\r'] => 0,
            [b'\r', b'\n', ..] => CRLF.len(),
            _ => match parse_section(bytes, check_trailers)? {
                ParseProgress::Complete(length) => length,
                ParseProgress::Partial => 0,
            },
        };
        if length > 0 {
            self.state = DecoderState::Complete;
        }
        Ok(length)
    }
}

impl DecoderState {
    /// Returns the state after the size line of a chunk; the chunk of size 0 is the last one.
    fn after_chunk_size(size: u64) -> Self {
        if size == 0 { Self::Trailers } else { Self::ChunkData(size) }
    }
}

/// Appends the size line of a chunk; the caller appends its data and [`CHUNK_END`]. Writes nothing if `length` is 0,
/// because a chunk of size 0 would end the body.
pub fn write_chunk_size(length: usize, output: &mut BytesMut) {
    let mut line = *b"0000000000000000\r\n";
    let mut remaining_length = length;
    let mut digit_count = 0_usize;
    for digit in line.iter_mut().rev().skip(CRLF.len()) {
        if remaining_length == 0 {
            break;
        }
        *digit = HEX.get(remaining_length & 15).copied().unwrap_or(b'0');
        remaining_length = remaining_length.wrapping_shr(4);
        digit_count = digit_count.saturating_add(1);
    }
    let start = MAX_CHUNK_SIZE_DIGITS.saturating_sub(digit_count);
    if digit_count > 0 {
        output.extend_from_slice(line.get(start..).unwrap_or_default());
    }
}

/// The bytes after the data of every chunk.
pub const CHUNK_END: &[u8] = CRLF;

/// The end of a line.
const CRLF: &[u8] = b"\r\n";

/// The end of a chunked body without trailers: the chunk of size 0 and an empty trailer section.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// The chunk of size 0 of a chunked body with trailers; the trailer section with its final empty line follows.
pub const LAST_CHUNK_BEFORE_TRAILERS: &[u8] = b"0\r\n";

/// Splits the number of remaining bytes of a body or chunk into the number of available bytes and the number of bytes
/// still to come.
fn split_available(remaining: u64, available_bytes: usize) -> (usize, u64) {
    let length = usize::try_from(remaining).unwrap_or(usize::MAX).min(available_bytes);
    (length, remaining.saturating_sub(length as u64))
}

/// Skips a valid trailer section. Fields that concern framing or routing are not allowed in it (RFC 9110 §6.5.1): a
/// recipient that merges trailers into the head could find another length or another host.
fn check_trailers(cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
    let mut field_count = 0_usize;
    while !cursor.skip(CRLF) {
        if field_count >= MAX_FIELDS {
            return Err(Malformed::TooManyFields);
        }
        if read_field_line(cursor)?.kind != FieldKind::Other {
            return Err(Malformed::TrailerField);
        }
        field_count = field_count.saturating_add(1);
    }
    Ok(())
}

/// The maximum total length of a body's chunk extensions, in bytes: without a limit, a peer could keep a connection
/// busy without sending content.
pub const MAX_CHUNK_EXTENSION_BYTES: usize = 16 * 1024;

/// The maximum number of digits of a chunk size: sixteen hexadecimal digits are 64 bits.
const MAX_CHUNK_SIZE_DIGITS: usize = 16;

/// The digits of chunk sizes.
const HEX: &[u8; 16] = b"0123456789abcdef";

#[cfg(test)]
mod tests;
