//! Persistence: requests of one client keep to the endpoint that answered the first of them.

use std::time::Duration;

use crate::action::HeaderEdits;

/// That the requests of one client keep to one endpoint, which a value names that the client gets
/// with an answer and shows with its next requests (Gateway API, GEP-1619).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Persistence {
    /// The cookie's or the header's name; one of its own for each rule when absent.
    pub name: Option<String>,
    /// What carries the value.
    pub carrier: Carries,
    /// For how long the value counts, from the first answer that told it.
    pub absolute: Option<Duration>,
    /// For how long it counts, from the last answer that told it.
    pub idle: Option<Duration>,
    /// The path that a cookie is for; the one that the match names when absent.
    pub path: Option<String>,
}

/// What carries the value of a [`Persistence`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Carries {
    /// A cookie, until the client ends its own session.
    Cookie,
    /// A cookie, until the time of [`Persistence::absolute`], which is there, is over.
    LastingCookie,
    /// A header, of requests and of answers.
    Header,
}

impl Persistence {
    /// The most bytes of a name, as in the schema of the Gateway API.
    pub const NAME_BYTES_MAX: usize = 256;
    /// The most bytes of a path, as in the schema of the Gateway API.
    pub const PATH_BYTES_MAX: usize = 1024;

    /// Whether a text can be the name: a token (RFC 6265 §4.1.1, RFC 9110 §5.6.2); of a header one in
    /// lower case that rules may edit, and none of those that cookies travel in.
    #[must_use]
    pub fn is_name(name: &str, carrier: Carries) -> bool {
        let fits = HeaderEdits::is_name(&name.to_ascii_lowercase());
        let fits = fits && name.len() <= Self::NAME_BYTES_MAX;
        match carrier {
            Carries::Cookie | Carries::LastingCookie => fits,
            Carries::Header => {
                fits && HeaderEdits::is_name(name)
                    && HeaderEdits::may_edit(name)
                    && !["cookie", "set-cookie"].contains(&name)
            }
        }
    }

    /// Whether a text can be the path of a cookie: it begins with `/`, and nothing in it ends the
    /// attribute (RFC 6265 §4.1.1).
    #[must_use]
    pub fn is_path(path: &str) -> bool {
        path.starts_with('/')
            && path.len() <= Self::PATH_BYTES_MAX
            && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b';')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_what_can_be_a_path() {
        for path in ["/", "/a/b", "/a?b=c"] {
            assert!(Persistence::is_path(path), "{path}");
        }
        let long = format!("/{}", "a".repeat(1024));
        for path in ["", "a", "/a;Domain=b", "/a b", "/a\r\nb: c", "/ä", &*long] {
            assert!(!Persistence::is_path(path), "{path}");
        }
    }

    #[test]
    fn knows_what_can_be_a_name() {
        let long = "a".repeat(257);
        for (name, cookie, header) in [
            ("cart", true, true),
            ("JSESSIONID", true, false),
            ("__Host-cart", true, false),
            ("", false, false),
            ("a b", false, false),
            ("a=b", false, false),
            ("a;b", false, false),
            ("ä", false, false),
            ("cookie", true, false),
            ("set-cookie", true, false),
            ("content-length", true, false),
            (&*long, false, false),
        ] {
            assert_eq!(Persistence::is_name(name, Carries::Cookie), cookie, "{name}");
            assert_eq!(Persistence::is_name(name, Carries::LastingCookie), cookie, "{name}");
            assert_eq!(Persistence::is_name(name, Carries::Header), header, "{name}");
        }
    }
}
