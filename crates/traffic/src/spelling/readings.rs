//! The other paths that an application may read in one: what parsers of URLs leave of it.

use super::folded::{is_blank, is_separator};

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

/// The other paths that an application may read in this one, which is `decoded` when no escape is left.
pub(crate) fn other_readings(sent: &str, decoded: &[u8]) -> Vec<String> {
    let mut found: Vec<String> = after_authority(sent).map(str::to_owned).into_iter().collect();
    found.extend(after_authority(&super::lossy(decoded)).map(str::to_owned));
    found.sort_unstable();
    found.dedup();
    found
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
}
