//! Reads received bytes: a cursor, the character classes of HTTP/1.1, and the search for the end of a section. A
//! section is a head or a trailer section; an empty line ends it.

use memchr::{memchr, memmem, memrchr};

use super::simd::{Block, count_before_control, count_common_name_bytes};
use super::{ByteSpan, MAX_HEAD_BYTES, Malformed, ParseProgress};

/// A position in the bytes of one section.
pub(super) struct Cursor<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) position: usize,
}

impl<'a> Cursor<'a> {
    #[inline]
    pub(super) fn remaining_bytes(&self) -> &'a [u8] {
        self.bytes.get(self.position..).unwrap_or_default()
    }

    #[inline]
    /// Returns the next byte without skipping it; `None` at the end.
    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.position).copied()
    }

    /// Skips `expected` if the remaining bytes start with it. Returns true if they do.
    #[inline]
    pub(super) fn skip(&mut self, expected: &[u8]) -> bool {
        let is_present = self.remaining_bytes().starts_with(expected);
        if is_present {
            self.skip_bytes(expected.len());
        }
        is_present
    }

    /// Skips the leading bytes of `class`. Returns their span.
    #[inline]
    pub(super) fn skip_run(&mut self, class: u8) -> ByteSpan {
        let length = run_length(self.remaining_bytes(), class);
        self.skip_bytes(length)
    }

    /// Skips the leading bytes of the class [`TOKEN`]. Returns their span. Faster than [`Self::skip_run`] for names of
    /// letters, digits and `-`.
    #[inline]
    pub(super) fn skip_token(&mut self) -> ByteSpan {
        let remaining_bytes = self.remaining_bytes();
        let mut length = count_leading_bytes(remaining_bytes, count_common_name_bytes);
        if remaining_bytes.get(length).is_some_and(|byte| is_in_class(*byte, TOKEN)) {
            length = length.saturating_add(run_length(
                remaining_bytes.get(length..).unwrap_or_default(),
                TOKEN,
            ));
        }
        self.skip_bytes(length)
    }

    /// Skips a field value and the white space around it. Returns the span of the value without the white space.
    #[inline]
    pub(super) fn skip_value(&mut self) -> ByteSpan {
        while self.peek().is_some_and(is_blank) {
            self.position = self.position.wrapping_add(1);
        }
        let remaining_bytes = self.remaining_bytes();
        let length = value_length(remaining_bytes);
        let mut trimmed = remaining_bytes.get(..length).unwrap_or_default();
        while let Some((last, trimmed_before)) = trimmed.split_last()
            && is_blank(*last)
        {
            trimmed = trimmed_before;
        }
        let start = self.position;
        self.skip_bytes(length);
        ByteSpan::new(start, start.wrapping_add(trimmed.len()))
    }

    /// Skips CR LF. Returns [`Malformed::LineEnd`] for a bare CR, a bare LF and the end of input, and `unexpected`
    /// for any other byte.
    #[inline]
    pub(super) fn skip_line_end(&mut self, unexpected: Malformed) -> Result<(), Malformed> {
        if self.skip(b"\r\n") {
            return Ok(());
        }
        match self.peek() {
            Some(b'\r' | b'\n') | None => Err(Malformed::LineEnd),
            Some(_) => Err(unexpected),
        }
    }

    #[inline]
    fn skip_bytes(&mut self, length: usize) -> ByteSpan {
        let start = self.position;
        // The new position is within the bytes, so the addition cannot overflow.
        self.position = start.wrapping_add(length);
        ByteSpan::new(start, self.position)
    }
}

/// Parses the section at the start of `bytes` with `read`, which reads up to and including the empty line.
///
/// A section usually arrives complete, so a short section is parsed at once. If parsing fails, a search for the empty
/// line distinguishes an invalid section from an incomplete one. For a long section, the search comes first: if the
/// sender is slow, every packet triggers another attempt, and a search costs a tenth of a parse.
#[inline]
pub(super) fn parse_section<'a>(
    bytes: &'a [u8],
    read: impl FnOnce(&mut Cursor<'a>) -> Result<(), Malformed>,
) -> Result<ParseProgress, Malformed> {
    let section = bytes.get(..MAX_HEAD_BYTES).unwrap_or(bytes);
    let is_short = section.len() <= MAX_EAGER_BYTES;
    if !is_short && !is_complete_section(section)? {
        return Ok(ParseProgress::Partial);
    }
    let mut cursor = Cursor { bytes: section, position: 0 };
    match read(&mut cursor) {
        Ok(()) => Ok(ParseProgress::Complete(cursor.position)),
        Err(_) if is_short && !is_complete_section(section)? => Ok(ParseProgress::Partial),
        Err(error) => Err(error),
    }
}

/// True if `bytes` contain the empty line that ends a section.
///
/// # Errors
/// The section is too large, or a line ends in LF alone: such a section might never contain CR LF CR LF.
fn is_complete_section(bytes: &[u8]) -> Result<bool, Malformed> {
    if memmem::find(bytes, b"\r\n\r\n").is_some() {
        return Ok(true);
    }
    if bytes.len() >= MAX_HEAD_BYTES {
        return Err(Malformed::HeadTooLarge);
    }
    let is_bare_line_feed =
        |index: usize| index.checked_sub(1).and_then(|before| bytes.get(before)) != Some(&b'\r');
    if memchr(b'\n', bytes).is_some_and(is_bare_line_feed)
        || memrchr(b'\n', bytes).is_some_and(is_bare_line_feed)
    {
        return Err(Malformed::LineEnd);
    }
    Ok(false)
}

/// True for SP and HTAB.
#[inline]
pub(super) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// True if `byte` belongs to one of the classes in `class`: [`TOKEN`], [`TARGET`] or [`HOST`].
#[inline]
pub(super) fn is_in_class(byte: u8, class: u8) -> bool {
    byte_classes(byte) & class != 0
}

#[inline]
fn byte_classes(byte: u8) -> u8 {
    CLASSES.get(usize::from(byte)).copied().unwrap_or_default()
}

/// Returns the number of leading bytes of `class`.
#[inline]
pub(super) fn run_length(bytes: &[u8], class: u8) -> usize {
    let mut length = 0_usize;
    // Eight bytes are tested at once, as long as all of them match.
    for chunk in bytes.chunks_exact(8) {
        if chunk.iter().fold(class, |common, byte| common & byte_classes(*byte)) == 0 {
            break;
        }
        length = length.wrapping_add(8);
    }
    let remaining_bytes = bytes.get(length..).unwrap_or_default();
    length.wrapping_add(
        remaining_bytes
            .iter()
            .position(|byte| !is_in_class(*byte, class))
            .unwrap_or(remaining_bytes.len()),
    )
}

/// Returns the number of leading `field-vchar`, SP or HTAB bytes (RFC 9110 §5.5).
#[inline]
fn value_length(bytes: &[u8]) -> usize {
    let mut length = 0_usize;
    loop {
        let remaining_bytes = bytes.get(length..).unwrap_or_default();
        length = length.wrapping_add(count_leading_bytes(remaining_bytes, count_before_control));
        if bytes.get(length) != Some(&b'\t') {
            return length;
        }
        length = length.saturating_add(1);
    }
}

/// Returns the number of leading bytes that `count_leading` counts, which returns the number in one block.
#[inline]
fn count_leading_bytes(bytes: &[u8], count_leading: impl Fn(&Block) -> usize) -> usize {
    let mut length = 0_usize;
    let mut remaining_bytes = bytes;
    while let Some((block, remaining_blocks)) = remaining_bytes.split_first_chunk::<16>() {
        let count = count_leading(block);
        length = length.wrapping_add(count);
        if count < 16 {
            return length;
        }
        remaining_bytes = remaining_blocks;
    }
    let mut last_block = [0; 16];
    last_block.iter_mut().zip(remaining_bytes).for_each(|(slot, byte)| *slot = *byte);
    length.wrapping_add(count_leading(&last_block).min(remaining_bytes.len()))
}

/// The class bit of the characters of a token, `tchar` (RFC 9110 §5.6.2).
pub(super) const TOKEN: u8 = 1;
/// The class bit of the characters accepted in a request target: visible ASCII without `"`, `#`, `<` and `>`. RFC 3986
/// also forbids ``\ ^ ` { | }``, but browsers send them unescaped in queries.
pub(super) const TARGET: u8 = 2;
/// The class bit of the characters of a host name, `reg-name` (RFC 3986 §3.2.2).
pub(super) const HOST: u8 = 4;

/// The length up to which a section is parsed without a search for its end, in bytes; nearly all heads are shorter.
/// Repeated parsing of a head that is sent byte by byte costs the sidecar less than its packets cost the kernel.
const MAX_EAGER_BYTES: usize = 4 * 1024;

/// The class bits of each byte.
static CLASSES: [u8; 256] = class_table();

#[expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "evaluated at compile time, where a mistake stops the build"
)]
const fn class_table() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0_u8;
    loop {
        table[byte as usize] = classify_byte(byte);
        if byte == u8::MAX {
            return table;
        }
        byte += 1;
    }
}

const fn classify_byte(byte: u8) -> u8 {
    let alphanumeric = byte.is_ascii_alphanumeric();
    let mut classes = 0;
    if alphanumeric
        || matches!(byte, b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-')
        || matches!(byte, b'.' | b'^' | b'_' | b'`' | b'|' | b'~')
    {
        classes |= TOKEN;
    }
    if byte.is_ascii_graphic() && !matches!(byte, b'"' | b'#' | b'<' | b'>') {
        classes |= TARGET;
    }
    if alphanumeric
        || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'%' | b'!' | b'$' | b'&' | b'\'')
        || matches!(byte, b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=')
    {
        classes |= HOST;
    }
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_ends_at_the_first_byte_of_another_class_at_any_offset() {
        for length in 0..40 {
            for position in 0..=length {
                for byte in u8::MIN..=u8::MAX {
                    let mut bytes = vec![b'x'; length];
                    bytes.iter_mut().step_by(7).for_each(|other| *other = b'_');
                    bytes.iter_mut().step_by(3).for_each(|other| *other = b'-');
                    if let Some(target_byte) = bytes.get_mut(position) {
                        *target_byte = byte;
                    }
                    let expected = if is_in_class(byte, TOKEN) { length } else { position };
                    let span = Cursor { bytes: &bytes, position: 0 }.skip_token();
                    assert_eq!(
                        span,
                        ByteSpan::new(0, expected),
                        "{byte} at {position} of {length}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_value_ends_at_the_first_control_character_at_any_offset() {
        for length in 0..40 {
            for position in 0..=length {
                for byte in u8::MIN..=u8::MAX {
                    let mut bytes = vec![b'\xff'; length];
                    bytes.iter_mut().step_by(3).for_each(|other| *other = b' ');
                    if let Some(target_byte) = bytes.get_mut(position) {
                        *target_byte = byte;
                    }
                    let is_control = byte != b'\t' && byte.is_ascii_control();
                    let expected = if is_control { position } else { length };
                    assert_eq!(value_length(&bytes), expected, "{byte} at {position} of {length}");
                }
            }
        }
    }
}
