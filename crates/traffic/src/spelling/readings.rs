//! The other paths that an application may read in one: what parsers of URLs leave of it.

use super::folded::{is_blank, is_separator};
use super::lossy;

/// The path after the authority of a network-path reference (RFC 3986 §4.2): `//host/path`. The parser of the WHATWG takes
/// more slashes, and backslashes, for the two.
pub(crate) fn after_authority(path: &str) -> Option<&str> {
    let begin = path.find(|c| !is_separator(c) && !is_blank(c))?;
    let (slashes, authority) = path.split_at_checked(begin)?;
    let is_reference =
        slashes.starts_with(is_separator) && slashes.matches(is_separator).count() > 1;
    is_reference.then(|| {
        authority.find(is_separator).map_or("/", |end| authority.get(end..).unwrap_or("/"))
    })
}

/// The other paths that an application may read in this one, which is `decoded` when no escape is left: without the
/// authority; in Latin-1, where it is no UTF-8; and without the query, the fragment, tabs and line ends that parsers of URLs
/// drop, where it is decoded before it is parsed.
pub(crate) fn other_readings(sent: &str, decoded: &[u8]) -> Vec<String> {
    let mut found: Vec<String> = after_authority(sent).map(str::to_owned).into_iter().collect();
    let text = lossy(decoded);
    let latin = decoded.iter().map(|byte| char::from(*byte)).collect::<String>();
    let is_latin = std::str::from_utf8(decoded).is_err();
    for text in [Some(&text), Some(&latin).filter(|_| is_latin)].into_iter().flatten() {
        let parsed = parsed(text);
        found.extend(after_authority(&parsed).map(str::to_owned));
        found.extend((parsed != *text).then_some(parsed));
    }
    found.extend(is_latin.then_some(latin));
    found.sort_unstable();
    found.dedup();
    found
}

/// The path in the eyes of a parser of URLs.
fn parsed(text: &str) -> String {
    let path = text.split(['?', '#']).next().unwrap_or_default();
    path.replace(['\t', '\r', '\n'], "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_follows_two_slashes_or_more() {
        for (path, after) in [
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
            assert_eq!(after_authority(path), after, "{path}");
        }
    }

    #[test]
    fn a_decoded_path_is_parsed_once_more() {
        for (decoded, others) in [
            (&b"/admin"[..], &[][..]),
            (b"/admin?x", &["/admin"]),
            (b"/admin#x?y", &["/admin"]),
            (b"/ad\nmin\t", &["/admin"]),
            (b"//x/admin?y", &["//x/admin", "/admin"]),
            (b"/caf\xe9", &["/caf\u{e9}"]),
            (b"/caf\xe9?x", &["/caf\u{e9}", "/caf\u{e9}?x", "/caf\u{fffd}"]),
            ("/caf\u{e9}".as_bytes(), &[]),
        ] {
            assert_eq!(other_readings("/", decoded), others, "{}", lossy(decoded));
        }
    }
}
