//! Normalizes texts in the way of the most lenient application: decodes escapes, folds case and trims path elements.

use std::borrow::Cow;

/// The handling of path element parameters: `;` and the following text of the element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parameters {
    /// Parameters are removed.
    Dropped,
    /// Parameters are retained.
    Kept,
}

/// A normalized path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NormalizedPath {
    pub(crate) text: String,
    /// True if the path has a `.` or `..` element.
    pub(crate) has_dot_segments: bool,
}

/// Normalizes a decoded path. Backslashes are converted to slashes. Empty elements, blanks around elements, and dots at
/// the end of elements are removed. Case is folded, and a NUL ends the path.
pub(crate) fn normalize_path(decoded: &str, parameters: Parameters) -> NormalizedPath {
    let decoded = decoded.split('\0').next().unwrap_or_default();
    let mut normalized =
        NormalizedPath { text: String::with_capacity(decoded.len()), has_dot_segments: false };
    for element in decoded.split(is_separator) {
        let element = match parameters {
            Parameters::Dropped => element.split(';').next().unwrap_or_default(),
            Parameters::Kept => element,
        };
        let element = without_stream(element).trim_matches(is_blank);
        normalized.has_dot_segments |= matches!(element, "." | "..");
        let element = element.trim_end_matches(|c| c == '.' || is_blank(c));
        if element.is_empty() {
            continue;
        }
        if !normalized.text.is_empty() || decoded.starts_with(is_separator) {
            normalized.text.push('/');
        }
        fold_case(element, &mut normalized.text);
    }
    if normalized.text.is_empty() {
        normalized.text.push('/');
    }
    normalized
}

/// Returns an element without its NTFS stream name: `::$DATA` for a file, `:$I30:$INDEX_ALLOCATION` for a directory.
fn without_stream(element: &str) -> &str {
    let (name, stream) = element.split_once(':').unwrap_or((element, ""));
    if stream.starts_with('$') || stream.contains(":$") { name } else { element }
}

/// Normalizes the path of a rule in the same way as the path of a request.
pub(crate) fn normalize_rule_path(path: &str, parameters: Parameters) -> String {
    let bytes = decoded_throughout(path).unwrap_or_else(|| path.as_bytes().to_vec());
    normalize_path(&String::from_utf8_lossy(&bytes), parameters).text
}

/// Folds the case of a text; allocates only if the text changes.
pub(crate) fn folded_case(text: &str) -> Cow<'_, str> {
    let has_no_case = |byte: u8| byte.is_ascii() && !byte.is_ascii_uppercase();
    if text.bytes().all(has_no_case) {
        return Cow::Borrowed(text);
    }
    let mut folded = String::with_capacity(text.len());
    fold_case(text, &mut folded);
    Cow::Owned(folded)
}

/// True if a text equals a case-folded text, ignoring case.
pub(crate) fn is_equal_folded(text: &str, folded: &str) -> bool {
    match text.is_ascii() {
        true => text.eq_ignore_ascii_case(folded),
        false => *folded_case(text) == *folded,
    }
}

/// Appends a text with folded case. As in Java, whose comparison is the most lenient, letters are equal if their upper
/// cases or their lower cases are equal. Letters are converted to lower case first, because the lower case of `ẞ` is
/// `ß`, whose upper case is `SS`.
fn fold_case(text: &str, output: &mut String) {
    for c in text.chars() {
        match c {
            '\0'..='\x7f' => output.push(c.to_ascii_lowercase()),
            // The lower case of `İ` is two characters in Unicode and one in Java.
            '\u{130}' => output.push('i'),
            _ => output
                .extend(c.to_lowercase().flat_map(char::to_uppercase).flat_map(char::to_lowercase)),
        }
    }
}

/// Decodes a text until no escape remains; `None` if there are too many layers of escapes, because it is unknown how
/// many layers an application decodes.
pub(crate) fn decoded_throughout(text: &str) -> Option<Vec<u8>> {
    let (decoded, is_complete) = decoded_layers(text);
    is_complete.then_some(decoded)
}

/// Decodes as many layers of escapes as applications decode. The second value is true if no escape remains.
pub(crate) fn decoded_layers(text: &str) -> (Vec<u8>, bool) {
    let mut bytes = text.as_bytes().to_vec();
    // The additional pass detects remaining escapes. An escape is longer than its character, so an unchanged length
    // means that there was no escape.
    for _ in 0..=MAX_ESCAPE_LAYERS {
        let decoded = decoded_once(&bytes);
        if decoded.len() == bytes.len() {
            return (decoded, true);
        }
        bytes = decoded;
    }
    (bytes, false)
}

/// Decodes one layer of escapes: `%xx`, `%uxxxx` as in IIS, and overlong UTF-8. Invalid escapes stay unchanged.
pub(crate) fn decoded_once(bytes: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut remaining = bytes;
    while let [byte, following @ ..] = remaining {
        remaining = following;
        let escape: &[u8] = if *byte == b'%' { following } else { &[] };
        if let Some((c, remainder)) = unicode_escape(escape) {
            decoded.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            remaining = remainder;
        } else if let Some((escaped, remainder)) = byte_escape(escape) {
            decoded.push(escaped);
            remaining = remainder;
        } else if let Some((c, remainder)) = decode_overlong(*byte, following) {
            decoded.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            remaining = remainder;
        } else {
            decoded.push(*byte);
        }
    }
    decoded
}

/// Decodes an overlong character (RFC 3629 §3 and §10) of two to six bytes, as early UTF-8 decoders did. Returns the
/// character and the following bytes; `None` for other bytes.
fn decode_overlong(first: u8, following: &[u8]) -> Option<(char, &[u8])> {
    let (continuation_length, bits, minimum) = match first {
        0xC0..=0xC1 => (1, first & 0x1F, 0x80),
        0xE0 => (2, 0, 0x800),
        0xF0 => (3, 0, 0x1_0000),
        0xF8 => (4, 0, 0x20_0000),
        0xFC => (5, 0, 0x400_0000),
        _ => return None,
    };
    let (continuation, remainder) = following.split_at_checked(continuation_length)?;
    let mut number = u32::from(bits);
    for byte in continuation {
        let 0x80..=0xBF = byte else { return None };
        number = number << 6 | u32::from(byte & 0x3F);
    }
    Some((char::from_u32(number).filter(|_| number < minimum)?, remainder))
}

/// Decodes the two hexadecimal digits of `%xx`. Returns the byte and the following bytes; `None` for other text.
fn byte_escape(escape: &[u8]) -> Option<(u8, &[u8])> {
    let [high, low, remainder @ ..] = escape else { return None };
    Some((hex_digit(*high)? << 4 | hex_digit(*low)?, remainder))
}

/// Decodes `uxxxx` after a percent sign. Returns the character and the following bytes; `None` for other text.
fn unicode_escape(escape: &[u8]) -> Option<(char, &[u8])> {
    let [b'u' | b'U', digits @ ..] = escape else { return None };
    let (digits, remainder) = digits.split_at_checked(4)?;
    let mut number = 0;
    for digit in digits {
        number = number << 4 | u32::from(hex_digit(*digit)?);
    }
    Some((char::from_u32(number)?, remainder))
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// True for a slash or a backslash, which IIS and URL parsers read as a slash.
pub(crate) fn is_separator(c: char) -> bool {
    matches!(c, '/' | '\\')
}

/// True for a character that applications may ignore at the end of a text: frameworks trim blanks, `$` in many regular
/// expressions matches before a final line feed, and JavaScript trims a byte order mark.
pub(crate) fn is_blank(c: char) -> bool {
    c.is_whitespace() || c.is_control() || c == '\u{feff}'
}

/// The maximum number of escape layers. An application behind two proxies decodes at most three layers.
const MAX_ESCAPE_LAYERS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_variants_normalize_to_one_path() {
        for path in [
            "/admin/users",
            "/Admin/USERS",
            "/admin/users/",
            "//admin///users//",
            "/%61dmin/users",
            "/%2561dmin/users",
            "/%252561dmin/users",
            "/admin%2fusers",
            "/admin%252Fusers%252f",
            r"/admin\users",
            "/admin%5cusers",
            "/admin;a=b/users;c",
            "/admin%3ba/users%253bc",
            "/admin /users%20",
            "/admin./users..",
            "/admin/users%00.png",
            "/admin/users%0a",
            "/adm%u0069n/users",
            "/adm\u{131}n/uſers",
            "/adm\u{130}n/users",
            "/admin%c0%afusers",
            "/admin%e0%80%afusers",
            "/%e0%81%a1dmin/users",
            "/admin%f0%80%80%afusers",
            "/admin%f8%80%80%80%afusers",
            "/admin%fc%80%80%80%80%afusers",
            "/admin/users::$DATA",
            "/admin:$i30:$INDEX_ALLOCATION/users",
            "/admin::%24index_allocation/users",
        ] {
            assert_eq!(normalize_rule_path(path, Parameters::Dropped), "/admin/users", "{path}");
        }
        for (path, folded) in [
            ("/", "/"),
            ("", "/"),
            ("//", "/"),
            ("*", "*"),
            ("/a%2", "/a%2"),
            ("/ä", "/ä"),
            ("/%c3%84", "/ä"),
            ("/%e2%82%ac", "/€"),
            ("/users:delete", "/users:delete"),
        ] {
            assert_eq!(normalize_rule_path(path, Parameters::Dropped), folded, "{path}");
        }
        assert_eq!(normalize_rule_path("/A;B=c/d", Parameters::Kept), "/a;b=c/d");
    }

    #[test]
    fn dot_segments_are_detected_under_every_escape() {
        let has_dot_segments = |path: &str| {
            let decoded =
                decoded_throughout(path).expect("the number of layers is within the limit");
            normalize_path(&String::from_utf8_lossy(&decoded), Parameters::Dropped).has_dot_segments
        };
        for path in [
            "/a/../b",
            "/a/.",
            "/a/%252e%252e/b",
            "/a/..;x/b",
            "/a/%c0%ae./b",
            "/a/.. /b",
            "/a/%u002e/b",
        ] {
            assert!(has_dot_segments(path), "{path}");
        }
        for path in ["/a/...", "/a/.b", "/a..b", "/a/b."] {
            assert!(!has_dot_segments(path), "{path}");
        }
        assert_eq!(decoded_throughout("/%25252525252e"), None);
    }

    /// The lower case of `İ` is two characters, and an application that removes the second reads `i`.
    const DOTTED_I: char = '\u{130}';

    #[test]
    fn a_letter_and_its_upper_and_lower_case_are_equal() {
        for c in (char::MIN..=char::MAX).filter(|c| *c != DOTTED_I) {
            let folded = folded_case(&c.to_string()).into_owned();
            for other in [c.to_uppercase().collect::<String>(), c.to_lowercase().collect()] {
                assert_eq!(folded_case(&other), folded, "{c} and {other}");
            }
        }
        assert_eq!(folded_case("STRA\u{1e9e}E"), folded_case("stra\u{df}e"));
        assert_eq!(folded_case("\u{130}"), "i");
    }
}
