//! Decodes query parameters, and enumerates the names and values that applications may read in them. Applications
//! differ: for example, some read `role[]=a` as the parameter `role`.

use std::borrow::Cow;

use crate::variant::{decoded_layers, folded_case, is_blank};

/// Returns the first value of a query parameter, still encoded; empty for a parameter without `=`, and `None` if there
/// is no parameter of this name.
pub(crate) fn find_parameter<'q>(query: &'q str, name: &str) -> Option<&'q str> {
    query.split('&').find_map(|pair| {
        let (encoded, value) = pair.split_once('=').unwrap_or((pair, ""));
        form_decoded(encoded).eq(name.bytes()).then_some(value)
    })
}

/// Returns the encoded names and values of all parameters that an application may read in a query. Some applications
/// accept `;` as a separator, so the parameters are returned for both separators.
pub(crate) fn all_parameters(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let with_semicolons = query.contains(';').then(|| query.split(['&', ';']));
    let pairs = query.split('&').chain(with_semicolons.into_iter().flatten());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// Returns the parameters of a query that an application may read under this name, as sent. Both `&` and `;` separate
/// parameters.
pub fn similar_parameters<'q>(query: &'q str, name: &str) -> impl Iterator<Item = &'q str> {
    let normalized = normalize_rule_parameter(name);
    query.split(['&', ';']).filter(move |pair| {
        may_be_named(pair.split_once('=').map_or(pair, |(name, _)| name), &normalized)
    })
}

/// True if applications may read the encoded parameter name as this [normalized](normalize_parameter_name) name: in
/// another case, as a list (`role[]`, `role[0]`) or map (`role[x]`), in or after brackets, after blanks or `!`, and
/// with `.`, a blank or an unclosed `[` instead of `_`. The normalized name may also be a map element.
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
        // Rack reads the text before any bracket as the name.
        || name.split(['[', ']']).next() == Some(normalized)
        || name.split_once('[').is_some_and(|(list_name, key)| {
            list_name == normalized || !key.contains(']') && flatten_name(&name).eq(flatten_name(normalized))
        })
}

/// Returns a name with `_` instead of the brackets of map keys, because ASP.NET and dot-aware parsers read `a[b]` like
/// `a.b`.
fn flatten_name(name: &str) -> impl Iterator<Item = u8> + '_ {
    name.bytes().filter(|byte| *byte != b']').map(|byte| if byte == b'[' { b'_' } else { byte })
}

/// True if applications may read a normalized name as this map element. Applications handle text after a `]`
/// differently: Rack reads it as a further key, qs ignores it, and PHP ends the name there. Spring ignores quotes
/// around a key.
fn may_be_map_element(name: &str, normalized: &str) -> bool {
    // Each list of words corresponds to one way of reading text after a `]`.
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

/// Joins the words of a name with `_`, as ASP.NET and dot-aware parsers do. List indexes at the end are omitted.
fn join_words(words: &[(&str, bool)]) -> String {
    let is_index = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
    let word_count = words.iter().rposition(|(word, _)| !is_index(word)).map_or(0, |last| last + 1);
    let words = words.iter().take(word_count).map(|(word, _)| *word);
    words.collect::<Vec<_>>().join("_")
}

/// Normalizes the parameter name of a rule. Dots denote a map element: `a.b` is `a[b]`.
pub(crate) fn normalize_rule_parameter(name: &str) -> String {
    match name.split_once('.') {
        Some((map, keys)) if !name.contains('[') => {
            normalize_parameter_name(&format!("{map}[{}]", keys.replace('.', "][")))
        }
        _ => normalize_parameter_name(name),
    }
}

/// Normalizes an encoded parameter name in the way of the most lenient application.
pub(crate) fn normalize_parameter_name(encoded: &str) -> String {
    let decoded = decode_fully(encoded, Plus::Space);
    let before_nul = decoded.split('\0').next().unwrap_or_default();
    // Spring's binder reads `!role` as the default of `role`. Rack and qs drop brackets before a name.
    let trimmed = before_nul.trim_start_matches(|c| is_blank(c) || matches!(c, '!' | '[' | ']'));
    let mut name = folded_case(trimmed).replace([' ', '.'], "_");
    // A list element has the name of the list.
    while let Some((list, index)) = name.strip_suffix(']').and_then(|name| name.rsplit_once('[')) {
        // PHP reads a blank as an empty index.
        let is_index = |c: char| c.is_ascii_digit() || c == '_' || is_blank(c);
        if list.is_empty() || !index.chars().all(is_index) {
            break;
        }
        let list_length = list.len();
        name.truncate(list_length);
    }
    // The whole name may be in brackets: `[role]`.
    if !name.contains('[') {
        name.truncate(name.trim_end_matches(']').len());
    }
    name
}

/// Returns all values that an application may read in an encoded value: as sent, decoded once, and decoded fully with
/// both interpretations of `+`.
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

/// The character that a plus sign stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Plus {
    /// A plus sign, as in paths.
    Literal,
    /// A space, as in forms.
    Space,
}

/// Decodes repeated percent-encoding, up to the number of layers that applications decode.
fn decode_fully(encoded: &str, plus: Plus) -> String {
    let encoded = match plus {
        Plus::Space if encoded.contains('+') => Cow::Owned(encoded.replace('+', " ")),
        Plus::Space | Plus::Literal => Cow::Borrowed(encoded),
    };
    String::from_utf8_lossy(&decoded_layers(&encoded).0).into_owned()
}

/// Decodes a value as in a form; `None` if the result is not UTF-8, so that no rule matches.
pub(crate) fn decoded_text(encoded: &str) -> Option<Cow<'_, str>> {
    if !encoded.contains(['%', '+']) {
        return Some(Cow::Borrowed(encoded));
    }
    String::from_utf8(form_decoded(encoded).collect()).ok().map(Cow::Owned)
}

/// Decodes `%` and two hexadecimal digits as one byte (RFC 3986 §2.1).
pub(crate) fn percent_decoded(encoded: &str) -> impl Iterator<Item = u8> + '_ {
    decode_bytes::<b'+'>(encoded)
}

/// Decodes a query, in which forms encode a space as `+` (WHATWG URL, *application/x-www-form-urlencoded
/// parsing*).
pub(crate) fn form_decoded(encoded: &str) -> impl Iterator<Item = u8> + '_ {
    decode_bytes::<b' '>(encoded)
}

/// Decodes percent-encoding; a `+` is decoded as the byte `PLUS`.
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

/// Returns the value of a hexadecimal digit.
fn hex_value(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}
