//! The query of a request: its parameters, and what their escapes stand for.

use std::borrow::Cow;

/// The first value of a query parameter, still encoded; empty for a parameter without `=`.
pub(crate) fn parameter<'q>(query: &'q str, name: &str) -> Option<&'q str> {
    query.split('&').find_map(|pair| {
        let (encoded, value) = pair.split_once('=').unwrap_or((pair, ""));
        percent_decoded(encoded).eq(name.bytes()).then_some(value)
    })
}

/// The text that the escapes stand for; `None` when it is not UTF-8, and then nothing matches.
pub(crate) fn decoded_text(encoded: &str) -> Option<Cow<'_, str>> {
    if !encoded.contains('%') {
        return Some(Cow::Borrowed(encoded));
    }
    String::from_utf8(percent_decoded(encoded).collect()).ok().map(Cow::Owned)
}

/// RFC 3986, section 2.1: `%` and two hexadecimal digits are one byte.
pub fn percent_decoded(encoded: &str) -> impl Iterator<Item = u8> + '_ {
    let mut rest = encoded.as_bytes();
    std::iter::from_fn(move || match *rest {
        [b'%', high, low, ref after @ ..] if hex(high).is_some() && hex(low).is_some() => {
            rest = after;
            Some(hex(high)? << 4 | hex(low)?)
        }
        [byte, ref after @ ..] => {
            rest = after;
            Some(byte)
        }
        [] => None,
    })
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|d| u8::try_from(d).ok())
}
