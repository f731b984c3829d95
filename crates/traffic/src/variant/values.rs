//! Values that an application may read in a header or a parameter.

use super::lossy_text;
use super::normalized::{decoded_layers, is_blank};

/// True if one of the possible values of a joined header matches: all together, each one, each without its
/// parameters, and all of these without escapes, quotes, blanks around `=`, and invalid UTF-8. A header with
/// too many values always matches.
pub(crate) fn any_value(joined: &str, mut fits: impl FnMut(&str) -> bool) -> bool {
    let found = byte_kinds(joined);
    let is_written_plainly = found & ODD == 0 && found & (PAIRED | BLANK) != PAIRED | BLANK;
    has_too_many(joined)
        || split_values(joined, found).any(&mut fits)
        || !is_written_plainly && any_other_value(joined, &mut fits)
}

/// Does the same for a decoded text in which quotes are literal.
pub(crate) fn any_listed_value(text: &str, fits: impl FnMut(&str) -> bool) -> bool {
    has_too_many(text) || split_values(text, byte_kinds(text)).any(fits)
}

/// Returns the kinds of bytes in a text.
fn byte_kinds(text: &str) -> u8 {
    text.bytes().fold(0, |found, byte| found | KINDS[usize::from(byte)])
}

fn has_too_many(joined: &str) -> bool {
    joined.len() > VALUES_MAX
        && joined.bytes().filter(|byte| matches!(byte, b',' | b';')).count() > VALUES_MAX
}

/// Returns the values of a text with these kinds of bytes.
fn split_values(joined: &str, found: u8) -> impl Iterator<Item = &str> {
    let listed = joined.split(',').map(bare_value);
    let has_parameters = found & WITH_PARAMETERS != 0;
    let parts = has_parameters.then(|| joined.split([',', ';']).map(bare_value));
    [joined, bare_value(joined)].into_iter().chain(listed).chain(parts.into_iter().flatten())
}

/// Compares the values after cookie and quoted-string parsing, with and without decoding. Separate, so that the
/// usual value needs no stack space for it.
#[inline(never)]
fn any_other_value(joined: &str, fits: &mut impl FnMut(&str) -> bool) -> bool {
    let text = unquote(joined);
    let decoded = text.contains('%').then(|| unquote(&lossy_text(&decoded_layers(&text).0)));
    [Some(text), decoded].into_iter().flatten().any(|text| {
        // Python's cookie parser ends a cookie at a blank.
        let words = || text.split([',', ';', ' ']).filter(|word| word.contains('='));
        split_values(&text, WITH_PARAMETERS).any(&mut *fits) || words().any(&mut *fits)
    })
}

/// Returns a text without quotes, quoted-pair backslashes and octal escapes (Python writes `"\162"` for `r`),
/// and without blanks around `=`. An invalid UTF-8 byte may be a Latin-1 blank, which applications trim.
fn unquote(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let after = rest.get(c.len_utf8()..).unwrap_or_default();
        let escape = if c == '\\' { decode_octal(after) } else { None };
        rest = escape.map_or(after, |(_, left)| left);
        match (escape, c) {
            (Some((escaped, _)), _) => plain.push(escaped),
            (None, '"' | '\\') => {}
            (None, char::REPLACEMENT_CHARACTER) => plain.push(' '),
            (None, c) => plain.push(c),
        }
    }
    if plain.contains(" =") || plain.contains("= ") {
        return plain.split('=').map(str::trim).collect::<Vec<_>>().join("=");
    }
    plain
}

fn decode_octal(escape: &str) -> Option<(char, &str)> {
    let (digits, left) = escape.split_at_checked(3)?;
    let is_octal = digits.bytes().all(|digit| matches!(digit, b'0'..=b'7'));
    let byte = is_octal.then(|| u8::from_str_radix(digits, 8).ok())??;
    Some((char::from(byte), left))
}

/// Returns a value without quotes and surrounding blanks.
pub(crate) fn bare_value(value: &str) -> &str {
    value.trim_matches(is_blank).trim_matches('"').trim_matches(is_blank)
}

/// A quote, a backslash, an escape, or a non-ASCII byte.
const ODD: u8 = 1;
/// A semicolon.
const WITH_PARAMETERS: u8 = 2;
/// An equals sign.
const PAIRED: u8 = 4;
/// A blank or a tab.
const BLANK: u8 = 8;

const KINDS: [u8; 256] = {
    let mut kinds = [0; 256];
    kinds[b';' as usize] = WITH_PARAMETERS;
    kinds[b'=' as usize] = PAIRED;
    kinds[b' ' as usize] = BLANK;
    kinds[b'\t' as usize] = BLANK;
    kinds[b'%' as usize] = ODD;
    kinds[b'"' as usize] = ODD;
    kinds[b'\\' as usize] = ODD;
    let mut byte = 0x80;
    while byte < 256 {
        kinds[byte] = ODD;
        byte += 1;
    }
    kinds
};

/// The maximum number of values of a header or a parameter that are compared with a rule.
const VALUES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn may_be(joined: &str, value: &str) -> bool {
        any_value(joined, |it| it == value)
    }

    #[test]
    fn a_value_fits_as_parsers_of_cookies_read_it() {
        for joined in [
            "role=root",
            "a=1; role=root",
            "role=%72oot",
            "role=%72oot; x=%2525252541",
            r#"role="root""#,
            r#"role="ro\ot""#,
            r#"role="\162oot""#,
            "role = root",
            "a=1; role =root",
            "a=1 role=root",
            "a=1, role=root;q=1",
            "role=root\u{fffd}",
        ] {
            assert!(may_be(joined, "role=root"), "{joined}");
        }
        for joined in ["role=rooted", "a role", r#"role="\999oot""#, ""] {
            assert!(!may_be(joined, "role=root"), "{joined}");
        }
    }

    #[test]
    fn more_values_than_are_compared_fit() {
        assert!(!may_be(&"a,".repeat(VALUES_MAX), "root"));
        assert!(may_be(&"a,".repeat(VALUES_MAX + 1), "root"));
        assert!(any_listed_value(&"a,".repeat(VALUES_MAX + 1), |it| it == "root"));
    }
}
