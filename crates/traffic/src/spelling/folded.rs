//! Texts as the most forgiving application reads them: escapes decoded, case folded, elements of paths trimmed.

use std::borrow::Cow;

/// What happens to the parameters of path elements: `;` and all that follows it in the element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parameters {
    Dropped,
    Kept,
}

/// A path as the most forgiving application reads it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FoldedPath {
    pub(crate) text: String,
    /// It has a `.` or `..` element.
    pub(crate) climbs: bool,
}

/// Folds a path whose escapes are decoded. Backslashes are slashes. Empty elements, blanks around an element and dots at
/// its end do not count, nor does case. A NUL ends the path.
pub(crate) fn folded_path(decoded: &str, parameters: Parameters) -> FoldedPath {
    let decoded = decoded.split('\0').next().unwrap_or_default();
    let mut folded = FoldedPath { text: String::with_capacity(decoded.len()), climbs: false };
    for element in decoded.split(is_separator) {
        let element = match parameters {
            Parameters::Dropped => element.split(';').next().unwrap_or_default(),
            Parameters::Kept => element,
        };
        let element = without_stream(element).trim_matches(is_blank);
        folded.climbs |= matches!(element, "." | "..");
        let element = element.trim_end_matches(|c| c == '.' || is_blank(c));
        if element.is_empty() {
            continue;
        }
        if !folded.text.is_empty() || decoded.starts_with(is_separator) {
            folded.text.push('/');
        }
        fold_case(element, &mut folded.text);
    }
    if folded.text.is_empty() {
        folded.text.push('/');
    }
    folded
}

/// An element without the stream of NTFS that it names: `::$DATA` of a file, `:$I30:$INDEX_ALLOCATION` of a directory.
fn without_stream(element: &str) -> &str {
    let (name, stream) = element.split_once(':').unwrap_or((element, ""));
    if stream.starts_with('$') || stream.contains(":$") { name } else { element }
}

/// A text of a rule about paths, folded as paths of requests are.
pub(crate) fn folded_rule(path: &str, parameters: Parameters) -> String {
    let bytes = decoded_throughout(path).unwrap_or_else(|| path.as_bytes().to_vec());
    folded_path(&String::from_utf8_lossy(&bytes), parameters).text
}

/// A text without case; nothing is allocated when it has none.
pub(crate) fn folded_case(text: &str) -> Cow<'_, str> {
    let has_no_case = |byte: u8| byte.is_ascii() && !byte.is_ascii_uppercase();
    if text.bytes().all(has_no_case) {
        return Cow::Borrowed(text);
    }
    let mut folded = String::with_capacity(text.len());
    fold_case(text, &mut folded);
    Cow::Owned(folded)
}

/// Whether two texts differ in case at most; the second has none.
pub(crate) fn is_equal_folded(text: &str, folded: &str) -> bool {
    match text.is_ascii() {
        true => text.eq_ignore_ascii_case(folded),
        false => *folded_case(text) == *folded,
    }
}

/// Letters are equal when either their upper or their lower cases are: Java compares so, and it equates the most. The lower
/// case comes first, because `ẞ` has no other upper case and `ß`, its lower case, has `SS`.
fn fold_case(text: &str, folded: &mut String) {
    for c in text.chars() {
        match c {
            '\0'..='\x7f' => folded.push(c.to_ascii_lowercase()),
            // Its lower case is two characters in Unicode and one in Java.
            '\u{130}' => folded.push('i'),
            _ => folded
                .extend(c.to_lowercase().flat_map(char::to_uppercase).flat_map(char::to_lowercase)),
        }
    }
}

/// The bytes that a text stands for when escapes are decoded until none is left. `None`: so many layers of them
/// that it is unknown where an application stops.
pub(crate) fn decoded_throughout(text: &str) -> Option<Vec<u8>> {
    let (decoded, is_whole) = decoded_layers(text);
    is_whole.then_some(decoded)
}

/// The bytes that as many layers of escapes stand for as applications decode, and whether no escape is left.
pub(crate) fn decoded_layers(text: &str) -> (Vec<u8>, bool) {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..=LAYERS_MAX {
        let decoded = decoded_once(&bytes);
        if decoded.len() == bytes.len() {
            return (decoded, true);
        }
        bytes = decoded;
    }
    (bytes, false)
}

/// One layer: `%xx`, `%uxxxx` as IIS reads it, and characters in more bytes than UTF-8 has for them.
pub(crate) fn decoded_once(bytes: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [byte, after @ ..] = rest {
        rest = after;
        let escape: &[u8] = if *byte == b'%' { after } else { &[] };
        if let Some((c, left)) = unicode_escape(escape) {
            decoded.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            rest = left;
        } else if let Some((escaped, left)) = byte_escape(escape) {
            decoded.push(escaped);
            rest = left;
        } else if let Some((c, left)) = overlong(*byte, after) {
            decoded.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            rest = left;
        } else {
            decoded.push(*byte);
        }
    }
    decoded
}

/// A character in more bytes than it takes (RFC 3629 §3 and §10): two to six bytes, as the first decoders of UTF-8 read
/// them.
fn overlong(first: u8, after: &[u8]) -> Option<(char, &[u8])> {
    let (followers, bits, least) = match first {
        0xC0..=0xC1 => (1, first & 0x1F, 0x80),
        0xE0 => (2, 0, 0x800),
        0xF0 => (3, 0, 0x1_0000),
        0xF8 => (4, 0, 0x20_0000),
        0xFC => (5, 0, 0x400_0000),
        _ => return None,
    };
    let (followers, left) = after.split_at_checked(followers)?;
    let mut number = u32::from(bits);
    for byte in followers {
        let 0x80..=0xBF = byte else { return None };
        number = number << 6 | u32::from(byte & 0x3F);
    }
    Some((char::from_u32(number).filter(|_| number < least)?, left))
}

fn byte_escape(escape: &[u8]) -> Option<(u8, &[u8])> {
    let [high, low, left @ ..] = escape else { return None };
    Some((digit(*high)? << 4 | digit(*low)?, left))
}

fn unicode_escape(escape: &[u8]) -> Option<(char, &[u8])> {
    let [b'u' | b'U', digits @ ..] = escape else { return None };
    let (digits, left) = digits.split_at_checked(4)?;
    let mut number = 0;
    for it in digits {
        number = number << 4 | u32::from(digit(*it)?);
    }
    Some((char::from_u32(number)?, left))
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// IIS and parsers of URLs take a backslash for a slash.
pub(crate) fn is_separator(c: char) -> bool {
    matches!(c, '/' | '\\')
}

/// Frameworks trim blanks, and `$` of many regular expressions matches before a last line feed. JavaScript trims a byte order
/// mark, too.
pub(crate) fn is_blank(c: char) -> bool {
    c.is_whitespace() || c.is_control() || c == '\u{feff}'
}

/// Escapes of escapes: an application behind two proxies decodes three times at most.
const LAYERS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_path_is_folded_to_one() {
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
            assert_eq!(folded_rule(path, Parameters::Dropped), "/admin/users", "{path}");
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
            assert_eq!(folded_rule(path, Parameters::Dropped), folded, "{path}");
        }
        assert_eq!(folded_rule("/A;B=c/d", Parameters::Kept), "/a;b=c/d");
    }

    #[test]
    fn a_path_that_climbs_is_known_under_all_its_escapes() {
        let climbs = |path: &str| {
            let decoded = decoded_throughout(path).expect("few layers");
            folded_path(&String::from_utf8_lossy(&decoded), Parameters::Dropped).climbs
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
            assert!(climbs(path), "{path}");
        }
        for path in ["/a/...", "/a/.b", "/a..b", "/a/b."] {
            assert!(!climbs(path), "{path}");
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
