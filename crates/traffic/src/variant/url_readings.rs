//! The alternative readings of a path: the other paths that applications and URL parsers may read in it.

use super::lossy_text;
use super::normalized::{decoded_once, is_blank, is_separator};

/// Returns the path after the authority of a network-path reference `//host/path` (RFC 3986 §4.2); `None` for other
/// paths. WHATWG parsers also accept more slashes, and backslashes.
fn path_after_authority(path: &str) -> Option<&str> {
    let start = path.find(|c| !is_separator(c) && !is_blank(c))?;
    let (slashes, from_authority) = path.split_at_checked(start)?;
    let is_reference =
        slashes.starts_with(is_separator) && slashes.matches(is_separator).count() > 1;
    is_reference.then(|| {
        let authority_end = from_authority.find(is_separator);
        authority_end.map_or("/", |end| from_authority.get(end..).unwrap_or("/"))
    })
}

/// True if a path is a network-path reference, under any number of escape layers.
pub(crate) fn names_authority(path: &str) -> bool {
    let mut text = path.as_bytes().to_vec();
    loop {
        if path_after_authority(&lossy_text(&text)).is_some() {
            return true;
        }
        let decoded = decoded_once(&text);
        if decoded.len() == text.len() {
            return false;
        }
        text = decoded;
    }
}

/// Returns the alternative paths that an application may read; `None` if there are too many paths, or if their total
/// length is too large.
///
/// An application may decode a path before or after it parses it, several times, so both are combined in any order.
/// Parsers remove an authority, a query, a fragment, tabs and line ends. Some parsers end a path at a semicolon, and
/// some read invalid UTF-8 as Latin-1. Paths that differ only in escapes count once.
pub(crate) fn alternative_readings(sent: &str) -> Option<Vec<String>> {
    let mut texts = vec![sent.as_bytes().to_vec()];
    let (mut position, mut total_bytes) = (0, 0);
    let mut readings: Vec<String> = Vec::new();
    while let Some(text) = texts.get(position).cloned() {
        position += 1;
        let lossy = lossy_text(&text);
        let parsed_paths = [
            path_after_authority(&lossy).map(str::to_owned),
            path_before(&lossy, &['?', '#']),
            path_before(&lossy, &[';']),
            remove_line_breaks(&lossy),
            decode_latin1(&text),
        ];
        for reading in parsed_paths.into_iter().flatten() {
            if texts.iter().any(|text_bytes| *text_bytes == reading.as_bytes()) {
                continue;
            }
            total_bytes += reading.len();
            if readings.len() == MAX_ALTERNATIVES || total_bytes > MAX_ALTERNATIVE_BYTES {
                return None;
            }
            texts.push(reading.clone().into_bytes());
            readings.push(reading);
        }
        let decoded = decoded_once(&text);
        if decoded.len() != text.len() && !texts.contains(&decoded) {
            if texts.len() == MAX_PARSED_TEXTS {
                return None;
            }
            texts.push(decoded);
        }
    }
    Some(readings)
}

/// Returns the path before the first of these characters; `None` if the path contains none of them.
fn path_before(path: &str, ends: &[char]) -> Option<String> {
    path.split_once(ends).map(|(path, _)| path.to_owned())
}

/// Removes tabs and line ends; `None` if there are none.
fn remove_line_breaks(path: &str) -> Option<String> {
    let breaks = ['\t', '\r', '\n'];
    path.contains(breaks).then(|| path.replace(breaks, ""))
}

/// Decodes invalid UTF-8 as Latin-1; `None` for valid UTF-8.
fn decode_latin1(bytes: &[u8]) -> Option<String> {
    let is_invalid_utf8 = std::str::from_utf8(bytes).is_err();
    is_invalid_utf8.then(|| bytes.iter().map(|byte| char::from(*byte)).collect())
}

/// The maximum number of alternative paths. It bounds the work for one request. A path with more alternatives is
/// treated as any path.
const MAX_ALTERNATIVES: usize = 8;
/// The maximum total length of alternative paths in bytes.
const MAX_ALTERNATIVE_BYTES: usize = 16 * 1024;
/// The maximum number of parsed texts, including those of all escape layers.
const MAX_PARSED_TEXTS: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_follows_two_slashes_or_more() {
        for (path, expected) in [
            ("//x/admin", Some("/admin")),
            ("///x/admin", Some("/admin")),
            (r"/\x\admin", Some(r"\admin")),
            ("/\t/x/admin", Some("/admin")),
            ("//u@x:80//admin", Some("//admin")),
            ("//x", Some("/")),
            ("//", None),
            ("/", None),
            ("", None),
            ("*", None),
            ("/x//admin", None),
            ("x//admin", None),
        ] {
            assert_eq!(path_after_authority(path), expected, "{path}");
        }
    }

    #[test]
    fn a_path_is_parsed_between_any_two_layers_of_escapes() {
        for (sent, expected_readings) in [
            ("/admin", &[][..]),
            ("/%61dmin%20", &[]),
            ("/admin%3fx", &["/admin"]),
            ("/admin%23x%3fy", &["/admin"]),
            ("/admin;a=b/x", &["/admin"]),
            ("/ad%0amin%09", &["/admin"]),
            ("/%2fx%252fy/admin", &["/y/admin", "/admin"]),
            ("//x%2fy/admin%3fz", &["/admin%3fz", "/admin", "/y/admin"]),
            ("//a//b", &["//b", "/"]),
            ("/caf%e9", &["/caf\u{e9}"]),
            ("//x%2fy/caf%e9", &["/caf%e9", "/caf\u{e9}", "/y/caf\u{e9}"]),
            ("/caf%c3%a9", &[]),
        ] {
            let read =
                alternative_readings(sent).expect("the number of readings is within the limit");
            for expected in expected_readings {
                assert!(
                    read.iter().any(|reading| reading == expected),
                    "{expected} in {sent}: {read:?}"
                );
            }
            assert!(!expected_readings.is_empty() || read.is_empty(), "{sent}: {read:?}");
        }
    }

    #[test]
    fn readings_are_bounded() {
        assert_eq!(alternative_readings(&"//a".repeat(20)), None);
        assert_eq!(alternative_readings(&format!("/{}", "/a".repeat(20_000))), None);
        assert_eq!(alternative_readings(&format!("/{}", "%20".repeat(20_000))), Some(Vec::new()));
    }
}
