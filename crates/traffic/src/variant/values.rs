//! Compares a rule with all values that an application may read in a header or a query parameter, such as the single
//! values of a list or a cookie without its quotes.

use super::lossy_text;
use super::normalized::{decoded_layers, is_blank};

/// True if one of the possible values of a joined header matches. These are the joined values, each single value, each
/// value without its parameters, and all of these without escapes, quotes, blanks around `=` and invalid UTF-8. A
/// header with too many values always matches.
pub(crate) fn any_value(joined: &str, mut is_match: impl FnMut(&str) -> bool) -> bool {
    let kinds = byte_kinds(joined);
    // A text with both an equals sign and a blank may have blanks around the equals sign.
    let is_written_plainly =
        kinds & CHANGED == 0 && kinds & (EQUALS_SIGN | BLANK) != EQUALS_SIGN | BLANK;
    has_too_many_values(joined)
        || split_values(joined, kinds).any(&mut is_match)
        || !is_written_plainly && any_decoded_value(joined, &mut is_match)
}

/// True if one of the possible values of a decoded text matches. Quotes in the text are literal.
pub(crate) fn any_listed_value(text: &str, is_match: impl FnMut(&str) -> bool) -> bool {
    has_too_many_values(text) || split_values(text, byte_kinds(text)).any(is_match)
}

/// Returns the kinds of bytes in a text.
fn byte_kinds(text: &str) -> u8 {
    text.bytes().fold(0, |kinds, byte| kinds | BYTE_KINDS[usize::from(byte)])
}

/// True if a text has more values than are compared with rules.
fn has_too_many_values(joined: &str) -> bool {
    joined.len() > MAX_COMPARED_VALUES
        && joined.bytes().filter(|byte| matches!(byte, b',' | b';')).count() > MAX_COMPARED_VALUES
}

/// Returns the values that an application may read in a text. `kinds` are the kinds of the text's bytes.
fn split_values(joined: &str, kinds: u8) -> impl Iterator<Item = &str> {
    let list_values = joined.split(',').map(bare_value);
    let has_parameters = kinds & SEMICOLON != 0;
    let parameter_values = has_parameters.then(|| joined.split([',', ';']).map(bare_value));
    [joined, bare_value(joined)]
        .into_iter()
        .chain(list_values)
        .chain(parameter_values.into_iter().flatten())
}

/// True if a value matches after cookie and quoted-string parsing, with or without decoding. This is a separate
/// function so that usual values do not need its stack space.
#[inline(never)]
fn any_decoded_value(joined: &str, is_match: &mut impl FnMut(&str) -> bool) -> bool {
    let text = unquote(joined);
    let decoded = text.contains('%').then(|| unquote(&lossy_text(&decoded_layers(&text).0)));
    [Some(text), decoded].into_iter().flatten().any(|text| {
        // Python's cookie parser ends a cookie at a blank.
        let words = || text.split([',', ';', ' ']).filter(|word| word.contains('='));
        split_values(&text, SEMICOLON).any(&mut *is_match) || words().any(&mut *is_match)
    })
}

/// Returns a text without quotes, quoted-pair backslashes and blanks around `=`. Octal escapes are decoded, because
/// Python writes `"\162"` for `r`. An invalid UTF-8 byte is read as a blank, because it may be one in Latin-1.
fn unquote(text: &str) -> String {
    let mut unquoted = String::with_capacity(text.len());
    let mut remaining = text;
    while let Some(c) = remaining.chars().next() {
        let following = remaining.get(c.len_utf8()..).unwrap_or_default();
        let escape = if c == '\\' { decode_octal(following) } else { None };
        remaining = escape.map_or(following, |(_, remainder)| remainder);
        match (escape, c) {
            (Some((escaped, _)), _) => unquoted.push(escaped),
            (None, '"' | '\\') => {}
            (None, char::REPLACEMENT_CHARACTER) => unquoted.push(' '),
            (None, c) => unquoted.push(c),
        }
    }
    if unquoted.contains(" =") || unquoted.contains("= ") {
        return unquoted.split('=').map(str::trim).collect::<Vec<_>>().join("=");
    }
    unquoted
}

/// Decodes an octal escape of three digits. Returns the character and the following text; `None` for other text.
fn decode_octal(escape: &str) -> Option<(char, &str)> {
    let (digits, remainder) = escape.split_at_checked(3)?;
    let is_octal = digits.bytes().all(|digit| matches!(digit, b'0'..=b'7'));
    let byte = is_octal.then(|| u8::from_str_radix(digits, 8).ok())??;
    Some((char::from(byte), remainder))
}

/// Returns a value without quotes and surrounding blanks.
pub(crate) fn bare_value(value: &str) -> &str {
    value.trim_matches(is_blank).trim_matches('"').trim_matches(is_blank)
}

/// The kind of bytes that decoding may change: quotes, backslashes, percent signs and non-ASCII bytes.
const CHANGED: u8 = 1;
/// The kind of a semicolon.
const SEMICOLON: u8 = 2;
/// The kind of an equals sign.
const EQUALS_SIGN: u8 = 4;
/// The kind of blanks and tabs.
const BLANK: u8 = 8;

/// The kind of each byte; 0 for other bytes.
const BYTE_KINDS: [u8; 256] = {
    let mut kinds = [0; 256];
    kinds[b';' as usize] = SEMICOLON;
    kinds[b'=' as usize] = EQUALS_SIGN;
    kinds[b' ' as usize] = BLANK;
    kinds[b'\t' as usize] = BLANK;
    kinds[b'%' as usize] = CHANGED;
    kinds[b'"' as usize] = CHANGED;
    kinds[b'\\' as usize] = CHANGED;
    let mut byte = 0x80;
    while byte < 256 {
        kinds[byte] = CHANGED;
        byte += 1;
    }
    kinds
};

/// The maximum number of values of a header or a parameter that are compared with a rule. It bounds the work for one
/// request. With more values, the condition always holds.
const MAX_COMPARED_VALUES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn may_have_value(joined: &str, value: &str) -> bool {
        any_value(joined, |candidate| candidate == value)
    }

    #[test]
    fn a_value_matches_as_cookie_parsers_read_it() {
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
            assert!(may_have_value(joined, "role=root"), "{joined}");
        }
        for joined in ["role=rooted", "a role", r#"role="\999oot""#, ""] {
            assert!(!may_have_value(joined, "role=root"), "{joined}");
        }
    }

    #[test]
    fn a_header_with_too_many_values_always_matches() {
        assert!(!may_have_value(&"a,".repeat(MAX_COMPARED_VALUES), "root"));
        assert!(may_have_value(&"a,".repeat(MAX_COMPARED_VALUES + 1), "root"));
        assert!(any_listed_value(&"a,".repeat(MAX_COMPARED_VALUES + 1), |candidate| candidate
            == "root"));
    }
}
