//! Query parameters and their decoding.

use std::borrow::Cow;

use crate::variant::{decoded_layers, folded_case, is_blank};

/// Returns the first value of a query parameter, still encoded; empty for a parameter without `=`.
pub(crate) fn find_parameter<'q>(query: &'q str, name: &str) -> Option<&'q str> {
    query.split('&').find_map(|pair| {
        let (encoded, value) = pair.split_once('=').unwrap_or((pair, ""));
        form_decoded(encoded).eq(name.bytes()).then_some(value)
    })
}

/// Returns all parameters that an application may read in a query, encoded: some accept `;` as a separator.
pub(crate) fn all_parameters(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let with_semicolons = query.contains(';').then(|| query.split(['&', ';']));
    let pairs = query.split('&').chain(with_semicolons.into_iter().flatten());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// Returns the parameters of a query that an application may read under this name, as sent, with either
/// separator.
pub fn similar_parameters<'q>(query: &'q str, name: &str) -> impl Iterator<Item = &'q str> {
    let normalized = normalize_rule_parameter(name);
    query.split(['&', ';']).filter(move |pair| {
        may_be_named(pair.split_once('=').map_or(pair, |(name, _)| name), &normalized)
    })
}

/// True if applications may read the encoded parameter name as this [normalized](normalize_parameter_name) one:
/// without case, as a list (`role[]`, `role[0]`) or map (`role[x]`), in or after brackets, after blanks or `!`,
/// and with `.`, a blank or an unclosed `[` for `_`. If the rule names a map element, it may have any of these
/// forms.
pub(crate) fn may_be_named(encoded: &str, normalized: &str) -> bool {
    let is_map_element = normalized.contains('[') && normalized.ends_with(']');
    if encoded.len() < normalized.len() && !is_map_element {
        return false;
    }
    if encoded == normalized {
        return true;
    }
    let name = normalize_parameter_name(encoded);
    if is_map_element {
        return may_be_map_element(&name, normalized);
    }
    name == normalized
        // Rack ends the first word of a name at any bracket.
        || name.split(['[', ']']).next() == Some(normalized)
        || name.split_once('[').is_some_and(|(list, key)| {
            list == normalized || !key.contains(']') && flatten_name(&name).eq(flatten_name(normalized))
        })
}

/// Returns a name with `_` before each map key: ASP.NET and dot-aware parsers read `a[b]` and `a.b` alike.
fn flatten_name(name: &str) -> impl Iterator<Item = u8> + '_ {
    name.bytes().filter(|byte| *byte != b']').map(|byte| if byte == b'[' { b'_' } else { byte })
}

/// True if applications may read a normalized name as this map element. The text after a `]` is a further key in
/// Rack, and no part of the name in qs; PHP ends the name there. Spring drops quotes around a key.
fn may_be_map_element(name: &str, normalized: &str) -> bool {
    let rack_words = split_name(name);
    let php_words: Vec<_> =
        rack_words.iter().copied().take_while(|(_, is_after_bracket)| !is_after_bracket).collect();
    let qs_words: Vec<_> =
        rack_words.iter().copied().filter(|(_, is_after_bracket)| !is_after_bracket).collect();
    let expected = join_words(&split_name(normalized));
    [rack_words, php_words, qs_words].iter().any(|words| join_words(words) == expected)
}

/// Returns the words of a name between brackets, each with true if it follows a `]`.
fn split_name(name: &str) -> Vec<(&str, bool)> {
    let mut follows_bracket = false;
    let words = name.split_inclusive(['[', ']']).map(|part| {
        let word = part.trim_end_matches(['[', ']']);
        let is_after_bracket = std::mem::replace(&mut follows_bracket, part.ends_with(']'));
        (word.trim_matches(['\'', '"']), is_after_bracket)
    });
    words.filter(|(word, _)| !word.is_empty()).collect()
}

/// Joins the words of a name as ASP.NET and dot-aware parsers do, without the indexes at its end.
fn join_words(words: &[(&str, bool)]) -> String {
    let is_index = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
    let length = words.iter().rposition(|(word, _)| !is_index(word)).map_or(0, |last| last + 1);
    let words = words.iter().take(length).map(|(word, _)| *word);
    words.collect::<Vec<_>>().join("_")
}

/// Normalizes a parameter name of a rule; dots denote a map element (`a.b` is `a[b]`).
pub(crate) fn normalize_rule_parameter(name: &str) -> String {
    match name.split_once('.') {
        Some((map, keys)) if !name.contains('[') => {
            normalize_parameter_name(&format!("{map}[{}]", keys.replace('.', "][")))
        }
        _ => normalize_parameter_name(name),
    }
}

/// Normalizes a parameter name as the most lenient application reads it.
pub(crate) fn normalize_parameter_name(encoded: &str) -> String {
    let decoded = decode_fully(encoded, Plus::Space);
    let name = decoded.split('\0').next().unwrap_or_default();
    // Spring's binder reads `!role` as the default of `role`. Rack and qs drop brackets before a name.
    let name = name.trim_start_matches(|c| is_blank(c) || matches!(c, '!' | '[' | ']'));
    let mut name = folded_case(name).replace([' ', '.'], "_");
    // A list element has the name of the list.
    while let Some((list, index)) = name.strip_suffix(']').and_then(|name| name.rsplit_once('[')) {
        // PHP takes a blank for no index.
        let is_index = |c: char| c.is_ascii_digit() || c == '_' || is_blank(c);
        if list.is_empty() || !index.chars().all(is_index) {
            break;
        }
        let length = list.len();
        name.truncate(length);
    }
    // The whole name may be in brackets: `[role]`.
    if !name.contains('[') {
        name.truncate(name.trim_end_matches(']').len());
    }
    name
}

/// Returns all values that an application may read in an encoded parameter: as sent, and decoded in several
/// ways.
pub(crate) fn possible_values(encoded: &str) -> impl Iterator<Item = Cow<'_, str>> {
    let is_encoded = encoded.contains(['%', '+']);
    let readings = is_encoded.then(|| {
        let decoded_once =
            String::from_utf8_lossy(&percent_decoded(encoded).collect::<Vec<u8>>()).into();
        [decoded_once, decode_fully(encoded, Plus::Literal), decode_fully(encoded, Plus::Space)]
            .map(Cow::Owned)
    });
    std::iter::once(Cow::Borrowed(encoded)).chain(readings.into_iter().flatten())
}

/// The interpretation of a plus sign.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Plus {
    Literal,
    Space,
}

/// Decodes layers of escapes until none remains, but not more layers than applications decode.
fn decode_fully(encoded: &str, plus: Plus) -> String {
    let encoded = match plus {
        Plus::Space if encoded.contains('+') => Cow::Owned(encoded.replace('+', " ")),
        Plus::Space | Plus::Literal => Cow::Borrowed(encoded),
    };
    String::from_utf8_lossy(&decoded_layers(&encoded).0).into_owned()
}

/// Decodes a value; `None` if the result is not UTF-8: no rule then matches.
pub(crate) fn decoded_text(encoded: &str) -> Option<Cow<'_, str>> {
    if !encoded.contains(['%', '+']) {
        return Some(Cow::Borrowed(encoded));
    }
    String::from_utf8(form_decoded(encoded).collect()).ok().map(Cow::Owned)
}

/// Decodes `%` and two hexadecimal digits as one byte (RFC 3986, section 2.1).
pub(crate) fn percent_decoded(encoded: &str) -> impl Iterator<Item = u8> + '_ {
    decode_bytes::<b'+'>(encoded)
}

/// Decodes a query, in which forms encode a space as `+` (WHATWG URL, *application/x-www-form-urlencoded
/// parsing*).
pub(crate) fn form_decoded(encoded: &str) -> impl Iterator<Item = u8> + '_ {
    decode_bytes::<b' '>(encoded)
}

fn decode_bytes<const PLUS: u8>(encoded: &str) -> impl Iterator<Item = u8> + '_ {
    let mut remaining = encoded.as_bytes();
    std::iter::from_fn(move || match *remaining {
        [b'%', high, low, ref tail @ ..]
            if hex_value(high).is_some() && hex_value(low).is_some() =>
        {
            remaining = tail;
            Some(hex_value(high)? << 4 | hex_value(low)?)
        }
        [b'+', ref tail @ ..] => {
            remaining = tail;
            Some(PLUS)
        }
        [byte, ref tail @ ..] => {
            remaining = tail;
            Some(byte)
        }
        [] => None,
    })
}

fn hex_value(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}
