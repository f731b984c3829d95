//! Walking over received bytes: character classes, a cursor, and the end of a section.

use memchr::{memchr, memmem, memrchr};

use super::{HEAD_BYTES_MAX, Malformed, Parsed, Span};

/// A position in the bytes of one head.
pub(super) struct Cursor<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Cursor<'a> {
    #[inline]
    pub(super) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    #[inline]
    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Steps over `expected` if that is what comes next.
    #[inline]
    pub(super) fn skip(&mut self, expected: &[u8]) -> bool {
        let found = self.rest().starts_with(expected);
        if found {
            self.advance(expected.len());
        }
        found
    }

    /// Steps over the longest run of bytes of `class`.
    #[inline]
    pub(super) fn run(&mut self, class: u8) -> Span {
        let rest = self.rest();
        let length = rest.iter().position(|byte| !is(*byte, class)).unwrap_or(rest.len());
        self.advance(length)
    }

    /// Steps over a field value and the white space around it; the span is the value alone.
    #[inline]
    pub(super) fn value(&mut self) -> Span {
        self.run(BLANK);
        let rest = self.rest();
        let length = value_length(rest);
        let value = rest.get(..length).unwrap_or_default();
        let trimmed =
            value.iter().rposition(|byte| !is(*byte, BLANK)).map_or(0, |at| at.saturating_add(1));
        let start = self.at;
        self.advance(length);
        Span::new(start, start.saturating_add(trimmed))
    }

    /// Steps over CR LF; `otherwise` is the fault when another kind of byte stands there.
    #[inline]
    pub(super) fn line_end(&mut self, otherwise: Malformed) -> Result<(), Malformed> {
        if self.skip(b"\r\n") {
            return Ok(());
        }
        match self.peek() {
            Some(b'\r' | b'\n') | None => Err(Malformed::LineEnd),
            Some(_) => Err(otherwise),
        }
    }

    #[inline]
    fn advance(&mut self, length: usize) -> Span {
        let start = self.at;
        self.at = start.saturating_add(length);
        Span::new(start, self.at)
    }
}

/// Lets `read` take the section at the start of `bytes` up to and including its empty line.
///
/// A head usually arrives whole, so a short one is read at once, and only if that fails a search
/// tells a broken one from an unfinished one. A long one is searched first: a slow sender makes us
/// look again with every packet, and a search costs a tenth of a reading.
#[inline]
pub(super) fn section<'a>(
    bytes: &'a [u8],
    read: impl FnOnce(&mut Cursor<'a>) -> Result<(), Malformed>,
) -> Result<Parsed, Malformed> {
    let within = bytes.get(..HEAD_BYTES_MAX).unwrap_or(bytes);
    let eager = within.len() <= EAGER_BYTES_MAX;
    if !eager && !is_whole(within)? {
        return Ok(Parsed::Partial);
    }
    let mut cursor = Cursor { bytes: within, at: 0 };
    match read(&mut cursor) {
        Ok(()) => Ok(Parsed::Complete(cursor.at)),
        Err(_) if eager && !is_whole(within)? => Ok(Parsed::Partial),
        Err(fault) => Err(fault),
    }
}

/// Whether the empty line that ends a section is there. Line ends that are not CR LF are noticed
/// here, because a section that has them might never be found whole.
fn is_whole(bytes: &[u8]) -> Result<bool, Malformed> {
    if memmem::find(bytes, b"\r\n\r\n").is_some() {
        return Ok(true);
    }
    if bytes.len() >= HEAD_BYTES_MAX {
        return Err(Malformed::HeadTooLarge);
    }
    let bare = |at: usize| at.checked_sub(1).and_then(|before| bytes.get(before)) != Some(&b'\r');
    if memchr(b'\n', bytes).is_some_and(bare) || memrchr(b'\n', bytes).is_some_and(bare) {
        return Err(Malformed::LineEnd);
    }
    Ok(false)
}

/// Whether `byte` belongs to `class`.
#[inline]
pub(super) fn is(byte: u8, class: u8) -> bool {
    CLASSES.get(usize::from(byte)).is_some_and(|classes| classes & class != 0)
}

/// How many bytes at the start are `field-vchar`, SP or HTAB (RFC 9110 §5.5). Eight are tested at
/// once, because values are most of a head.
#[inline]
fn value_length(bytes: &[u8]) -> usize {
    let mut length = 0_usize;
    loop {
        let rest = bytes.get(length..).unwrap_or_default();
        let (words, tail) = rest.as_chunks::<8>();
        let run = run_without_controls(words);
        let run = run.unwrap_or_else(|| {
            let good = tail.iter().take_while(|byte| !byte.is_ascii_control()).count();
            words.as_flattened().len().saturating_add(good)
        });
        length = length.saturating_add(run);
        if bytes.get(length) != Some(&b'\t') {
            return length;
        }
        length = length.saturating_add(1);
    }
}

/// Where the first control character is, if there is one.
///
/// Subtracting 32 from each byte borrows from its high bit if it was less, and so does taking 1
/// from its difference to DEL if there was none. A borrow may disturb later bytes, never the first.
#[inline]
fn run_without_controls(words: &[[u8; 8]]) -> Option<usize> {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x80 * EACH;
    words.iter().enumerate().find_map(|(index, word)| {
        let word = u64::from_le_bytes(*word);
        let low = word.wrapping_sub(0x20 * EACH) & !word;
        let delete = word ^ (0x7f * EACH);
        let delete = delete.wrapping_sub(EACH) & !delete;
        let found = (low | delete) & HIGH;
        let byte = found.trailing_zeros() as usize / 8;
        (found != 0).then(|| index.saturating_mul(8).saturating_add(byte))
    })
}

/// `tchar` (RFC 9110 §5.6.2).
pub(super) const TOKEN: u8 = 1;
/// What we accept in a request target: visible ASCII without `"`, `#`, `<` and `>`. RFC 3986 also
/// forbids ``\ ^ ` { | }``, but browsers send them bare in queries.
pub(super) const TARGET: u8 = 2;
/// `reg-name` (RFC 3986 §3.2.2).
pub(super) const HOST: u8 = 4;
/// SP and HTAB.
pub(super) const BLANK: u8 = 8;

/// Longer than nearly every head; sent byte by byte, it costs us less than its packets cost the
/// kernel.
const EAGER_BYTES_MAX: usize = 4 * 1024;

static CLASSES: [u8; 256] = classes();

#[expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "evaluated at compile time, where a mistake stops the build"
)]
const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0_u8;
    loop {
        table[byte as usize] = classify(byte);
        if byte == u8::MAX {
            return table;
        }
        byte += 1;
    }
}

const fn classify(byte: u8) -> u8 {
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
    if matches!(byte, b' ' | b'\t') {
        classes |= BLANK;
    }
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_end_at_the_first_control_character_wherever_it_is() {
        for length in 0..40 {
            for at in 0..=length {
                for byte in u8::MIN..=u8::MAX {
                    let mut bytes = vec![b'\xff'; length];
                    bytes.iter_mut().step_by(3).for_each(|other| *other = b' ');
                    if let Some(place) = bytes.get_mut(at) {
                        *place = byte;
                    }
                    let control = byte != b'\t' && byte.is_ascii_control();
                    let expected = if control { at } else { length };
                    assert_eq!(value_length(&bytes), expected, "{byte} at {at} of {length}");
                }
            }
        }
    }
}
