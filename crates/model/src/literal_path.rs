//! Literal paths in two forms: routes match paths as encoded in requests (`/a%20b`), and deny rules match decoded paths
//! (`/a b`), so that no other encoding of a path evades them.

use std::fmt::Write as _;

use crate::definition::{Remedy, TextProblem, TextSchema};

/// A normalized path of characters that are valid in a request.
pub const LITERAL_PATH: TextSchema = TextSchema::new(MAX_PATH_BYTES, check_literal_path);

/// A normalized path in decoded form, without escapes and parameters. Spaces and non-ASCII letters are allowed.
pub const DECODED_PATH: TextSchema = TextSchema::new(MAX_PATH_BYTES, check_decoded_path);

fn check_literal_path(path: &str) -> Result<(), TextProblem> {
    check_normalization(path)?;
    if !path.to_ascii_lowercase().contains("%2f") && has_path_characters(path) {
        return Ok(());
    }
    let encoded = percent_encode(path);
    let remedy = match encoded != path && encoded.len() <= MAX_PATH_BYTES {
        true => Remedy::Replacement(encoded),
        false => Remedy::Hint(EXAMPLE_HINT.into()),
    };
    Err(TextProblem { problem: "has characters that are not valid in a path".into(), remedy })
}

fn check_decoded_path(path: &str) -> Result<(), TextProblem> {
    check_normalization(path)?;
    if path.contains(';') || has_escapes(path) {
        let decoded = percent_decode(path).filter(|decoded| may_be_decoded(decoded));
        return Err(TextProblem {
            problem: "has escapes or parameters, but deny rules match decoded paths".into(),
            remedy: decoded.map_or(Remedy::Hint(REGEX_HINT.into()), Remedy::Replacement),
        });
    }
    match may_be_decoded(path) {
        true => Ok(()),
        false => {
            let problem = "has characters that are not valid in a decoded path";
            Err(TextProblem::new(problem, REGEX_HINT))
        }
    }
}

fn check_normalization(path: &str) -> Result<(), TextProblem> {
    match normalization_problem(path) {
        None => Ok(()),
        Some(problem) => Err(TextProblem::new(problem, EXAMPLE_HINT)),
    }
}

/// Returns the reason that a path is not normalized; `None` if it is.
fn normalization_problem(path: &str) -> Option<&'static str> {
    if !path.starts_with('/') {
        Some("does not start with `/`")
    } else if path.len() > MAX_PATH_BYTES {
        Some("is longer than 1024 bytes")
    } else if path.contains("//")
        || path.split('/').any(|segment| segment == "." || segment == "..")
    {
        Some("is not normalized: it has an empty, `.` or `..` element")
    } else {
        None
    }
}

/// True if all characters are RFC 3986 `pchar` or `/`, and each percent sign precedes two hexadecimal digits.
fn has_path_characters(path: &str) -> bool {
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        let is_valid = match byte {
            b'%' => (0..2).all(|_| bytes.next().is_some_and(|b| b.is_ascii_hexdigit())),
            _ => is_path_byte(byte),
        };
        if !is_valid {
            return false;
        }
    }
    true
}

/// True for `/` and the bytes of an RFC 3986 `pchar` other than escapes.
fn is_path_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(&byte)
}

/// Percent-encodes the bytes that are invalid in a path. `?` and `#` are left as they are, because their author probably
/// means the query or fragment.
fn percent_encode(path: &str) -> String {
    let mut encoded = String::with_capacity(path.len());
    for (index, byte) in path.bytes().enumerate() {
        let is_escape = byte == b'%' && path.get(index..index + 3).is_some_and(has_path_characters);
        if is_path_byte(byte) || is_escape || matches!(byte, b'?' | b'#') {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("writing to a String never fails");
        }
    }
    encoded
}

/// True if applications may decode an escape in the path.
fn has_escapes(path: &str) -> bool {
    path.match_indices('%').any(|(index, _)| {
        let following = path.get(index + 1..).unwrap_or_default();
        let begins_with_hex_digits = |text: &str, count: usize| {
            text.get(..count)
                .is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
        };
        begins_with_hex_digits(following, 2)
            || following
                .strip_prefix(['u', 'U'])
                .is_some_and(|following| begins_with_hex_digits(following, 4))
    })
}

/// Returns the decoded path without parameters; `None` if it is not valid UTF-8, not normalized, or has escapes even
/// after decoding.
fn percent_decode(path: &str) -> Option<String> {
    let mut bytes: Vec<u8> = Vec::with_capacity(path.len());
    let mut remaining = path.as_bytes();
    while let Some((byte, following)) = remaining.split_first() {
        let escaped_byte = following.get(..2).and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            (*byte == b'%').then(|| u8::from_str_radix(digits, 16).ok()).flatten()
        });
        bytes.push(escaped_byte.unwrap_or(*byte));
        remaining =
            if escaped_byte.is_some() { following.get(2..).unwrap_or_default() } else { following };
    }
    let text = String::from_utf8(bytes).ok()?;
    let elements = text.split('/').map(|element| element.split(';').next().unwrap_or_default());
    let decoded = elements.collect::<Vec<_>>().join("/");
    (normalization_problem(&decoded).is_none() && !has_escapes(&decoded)).then_some(decoded)
}

/// True if a decoded path may have these characters. A `?` begins the query and a `#` the fragment; a backslash
/// counts as a slash, and a `;` begins parameters.
fn may_be_decoded(path: &str) -> bool {
    !path.contains(|c: char| c.is_control() || matches!(c, '?' | '#' | '\\' | ';'))
}

/// The hint for an invalid path.
const EXAMPLE_HINT: &str = "use a path such as \"/ratings\"";
/// The hint for a path that only an expression can match.
const REGEX_HINT: &str = "write a regular expression with `type: RegularExpression`";
/// Maximum length of a path.
const MAX_PATH_BYTES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the replacement that the problem of an invalid path proposes.
    fn proposal(schema: &TextSchema, path: &str) -> Option<String> {
        match (schema.check)(path).unwrap_err().remedy {
            Remedy::Replacement(text) => Some(text),
            Remedy::Hint(_) => None,
        }
    }

    #[test]
    fn encoded_and_decoded_paths_are_converted_into_each_other() {
        for (encoded, decoded) in [
            ("/admin%20x", "/admin x"),
            ("/stra%C3%9Fe", "/straße"),
            ("/%E6%97%A5%E6%9C%AC/x", "/日本/x"),
            ("/100%25", "/100%"),
            ("/a%22b%7Cc", "/a\"b|c"),
            ("/[x]", "/[x]"),
        ] {
            assert_eq!((DECODED_PATH.check)(decoded), Ok(()), "{decoded}");
            if encoded == decoded {
                continue;
            }
            assert_eq!((LITERAL_PATH.check)(encoded), Ok(()), "{encoded}");
            assert_eq!(proposal(&LITERAL_PATH, decoded).as_deref(), Some(encoded), "{decoded}");
            assert_eq!(proposal(&DECODED_PATH, encoded).as_deref(), Some(decoded), "{encoded}");
        }
    }

    #[test]
    fn ambiguous_denied_paths_are_rejected() {
        for (path, expected) in [
            ("/%61", Some("/a")),
            ("/a;b=c/d", Some("/a/d")),
            ("/a%3Bb", Some("/a")),
            ("/a%2fb", Some("/a/b")),
            ("/%2561", None),
            ("/%u0061", None),
            ("/a%3Fb", None),
            ("/a?b", None),
            ("/a#b", None),
            ("/a\\b", None),
            ("/a%00", None),
            ("/%2e%2e/a", None),
            ("/a%2f%2fb", None),
            ("/%ff", None),
        ] {
            assert_eq!(proposal(&DECODED_PATH, path).as_deref(), expected, "{path}");
            let problem = (DECODED_PATH.check)(path).unwrap_err();
            let has_hint = expected.is_some() || problem.remedy == Remedy::Hint(REGEX_HINT.into());
            assert!(has_hint, "{path}: {problem:?}");
        }
    }
}
