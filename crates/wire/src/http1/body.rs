//! Body framing and decoding.

use std::ops::Range;

use bytes::BytesMut;

use super::chunk_extension::{ChunkExtension, Progress};
use super::field::read_field_line;
use super::scan::{Cursor, parse_section};
use super::{BodyLength, FieldName, MAX_FIELDS, Malformed, Parsed};

/// Finds the content of one body in the bytes of a connection, without copying it.
#[derive(Clone, Debug)]
pub struct BodyDecoder {
    state: DecoderState,
    /// The remaining allowance for chunk extensions of this body.
    extension_bytes_left: usize,
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
    /// True at the end of the body: bytes after the consumed ones are not part of the body.
    pub complete: bool,
}

#[derive(Clone, Copy, Debug)]
enum DecoderState {
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
            BodyLength::Empty | BodyLength::Known(0) => DecoderState::Complete,
            BodyLength::Known(length) => DecoderState::Known(length),
            BodyLength::Chunked => DecoderState::ChunkSize,
            BodyLength::UntilClose => DecoderState::UntilClose,
        };
        Self { state, extension_bytes_left: MAX_CHUNK_EXTENSION_BYTES }
    }

    /// Finds the next piece of content at the start of `bytes`: all available bytes of a plain body, at most
    /// one chunk of a chunked one. Unconsumed bytes must be passed again: at most a chunk size, or a trailer
    /// section of [`MAX_HEAD_BYTES`](super::MAX_HEAD_BYTES).
    ///
    /// # Errors
    /// The framing is invalid; the connection is no longer usable.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<DecodedPiece, Malformed> {
        match self.state {
            DecoderState::Known(remaining) => Ok(self.decode_plain(remaining, bytes.len())),
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

    /// Ends the input: the connection was closed.
    ///
    /// # Errors
    /// The body is incomplete, and does not end with the connection.
    pub fn end_of_input(&mut self) -> Result<(), Malformed> {
        match self.state {
            DecoderState::UntilClose | DecoderState::Complete => {
                self.state = DecoderState::Complete;
                Ok(())
            }
            _ => Err(Malformed::BodyTruncated),
        }
    }

    fn decode_plain(&mut self, remaining: u64, available_bytes: usize) -> DecodedPiece {
        let (length, remaining) = split_available(remaining, available_bytes);
        self.state =
            if remaining == 0 { DecoderState::Complete } else { DecoderState::Known(remaining) };
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
                    if length > CHUNK_END.len() {
                        let end = piece.consumed.saturating_add(length);
                        piece.trailers = Some(piece.consumed..end);
                    }
                    length
                }
                DecoderState::ChunkData(_)
                | DecoderState::Complete
                | DecoderState::Known(_)
                | DecoderState::UntilClose => 0,
            };
            piece.consumed = piece.consumed.saturating_add(step_bytes);
            piece.complete = self.is_complete();
            if step_bytes == 0 || piece.complete {
                return Ok(piece);
            }
        }
    }

    /// Returns the length of a chunk size line, or 0 if it is incomplete (RFC 9112 §7.1).
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
                    Ok(index.saturating_add(CHUNK_END.len()))
                }
                (b'\r', None) => Ok(0),
                (b'\r' | b'\n', _) => Err(Malformed::LineEnd),
                (b';' | b' ' | b'\t', _) => {
                    let extension = ChunkExtension::default();
                    self.state = DecoderState::ChunkExtension { size, extension };
                    Ok(index)
                }
                _ => Err(Malformed::ChunkSize),
            };
        }
        Ok(0)
    }

    /// Returns the length of the part of `bytes` that belongs to a chunk extension (RFC 9112 §7.1.1).
    #[cold]
    fn read_chunk_extension(
        &mut self,
        size: u64,
        mut extension: ChunkExtension,
        bytes: &[u8],
    ) -> Result<usize, Malformed> {
        let (length, progress) = extension.read(bytes)?;
        let remaining = self.extension_bytes_left.checked_sub(length);
        self.extension_bytes_left = remaining.ok_or(Malformed::ChunkExtension)?;
        self.state = match progress {
            Progress::Incomplete => DecoderState::ChunkExtension { size, extension },
            Progress::Complete => DecoderState::after_chunk_size(size),
        };
        Ok(length)
    }

    /// Returns the length of the CR LF after the data of a chunk, or 0 if it is incomplete.
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

    /// Returns the length of the trailer section with its final CR LF, or 0 if it is incomplete.
    fn read_trailers(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let length = match bytes {
            [] | [b'\r'] => 0,
            [b'\r', b'\n', ..] => CHUNK_END.len(),
            _ => match parse_section(bytes, check_trailers)? {
                Parsed::Complete(length) => length,
                Parsed::Partial => 0,
            },
        };
        if length > 0 {
            self.state = DecoderState::Complete;
        }
        Ok(length)
    }
}

impl DecoderState {
    /// Returns the state after the size line of a chunk.
    fn after_chunk_size(size: u64) -> Self {
        if size == 0 { Self::Trailers } else { Self::ChunkData(size) }
    }
}

/// Appends the size line of a chunk; its data and [`CHUNK_END`] follow. Zero would end the body, so nothing is
/// written for it.
pub fn write_chunk_size(length: usize, output: &mut BytesMut) {
    let mut line = *b"0000000000000000\r\n";
    let mut remaining_length = length;
    let mut digit_count = 0_usize;
    for digit in line.iter_mut().rev().skip(CHUNK_END.len()) {
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

/// The end of the data of every chunk.
pub const CHUNK_END: &[u8] = b"\r\n";

/// The end of a chunked body without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// The end of a chunked body with trailers; a raw trailer section follows.
pub const TRAILERS_FOLLOW: &[u8] = b"0\r\n";

/// Splits `remaining` into the available part and the rest.
fn split_available(remaining: u64, available_bytes: usize) -> (usize, u64) {
    let length = usize::try_from(remaining).unwrap_or(usize::MAX).min(available_bytes);
    (length, remaining.saturating_sub(length as u64))
}

/// Skips a valid trailer section. Framing and routing fields are not allowed here (RFC 9110 §6.5.1): a reader
/// that merges them would find another length.
fn check_trailers(cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
    let mut count = 0_usize;
    while !cursor.skip(CHUNK_END) {
        if count >= MAX_FIELDS {
            return Err(Malformed::TooManyFields);
        }
        if read_field_line(cursor)?.kind != FieldName::Other {
            return Err(Malformed::TrailerField);
        }
        count = count.saturating_add(1);
    }
    Ok(())
}

/// The maximum total length of a body's chunk extensions: a peer could send them endlessly without content.
pub const MAX_CHUNK_EXTENSION_BYTES: usize = 16 * 1024;

/// The maximum number of digits of a chunk size: sixteen hexadecimal digits are 64 bits.
const MAX_CHUNK_SIZE_DIGITS: usize = 16;

const HEX: &[u8; 16] = b"0123456789abcdef";

#[cfg(test)]
mod tests;
