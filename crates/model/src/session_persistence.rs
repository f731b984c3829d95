//! Session persistence: requests of one client use the endpoint that served the first of them.

use std::time::Duration;

use crate::action::HeaderEdits;

/// Session persistence by a value that the client receives in a response and sends with later requests (Gateway
/// API, GEP-1619).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SessionPersistence {
    /// The name of the cookie or header; a distinct one for each rule when absent.
    pub name: Option<String>,
    /// The location of the value.
    pub kind: PersistenceType,
    /// The lifetime of the value since the first response that set it.
    pub absolute: Option<Duration>,
    /// The lifetime of the value since the last response that set it.
    pub idle: Option<Duration>,
    /// The path of the cookie; that of the match when absent.
    pub path: Option<String>,
}

/// The location of the value of a [`SessionPersistence`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PersistenceType {
    /// A session cookie.
    Cookie,
    /// A cookie that expires after [`SessionPersistence::absolute`], which is set.
    LastingCookie,
    /// A header of requests and responses.
    Header,
}

impl SessionPersistence {
    /// The maximum length of a name, as in the schema of the Gateway API.
    pub const MAX_NAME_BYTES: usize = 256;
    /// The maximum length of a path, as in the schema of the Gateway API.
    pub const MAX_PATH_BYTES: usize = 1024;

    /// True for a valid name: a token (RFC 6265 §4.1.1, RFC 9110 §5.6.2); a header name is in lower case,
    /// editable by rules, and not one of the cookie headers.
    #[must_use]
    pub fn is_name(name: &str, kind: PersistenceType) -> bool {
        let is_valid = HeaderEdits::is_name(&name.to_ascii_lowercase());
        let is_valid = is_valid && name.len() <= Self::MAX_NAME_BYTES;
        match kind {
            PersistenceType::Cookie | PersistenceType::LastingCookie => is_valid,
            PersistenceType::Header => {
                is_valid
                    && HeaderEdits::is_name(name)
                    && HeaderEdits::may_edit(name)
                    && !["cookie", "set-cookie"].contains(&name)
            }
        }
    }

    /// True for a valid cookie path: it begins with `/` and contains no character that ends the attribute (RFC
    /// 6265 §4.1.1).
    #[must_use]
    pub fn is_path(path: &str) -> bool {
        path.starts_with('/')
            && path.len() <= Self::MAX_PATH_BYTES
            && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b';')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_paths_are_validated() {
        for path in ["/", "/a/b", "/a?b=c"] {
            assert!(SessionPersistence::is_path(path), "{path}");
        }
        let long = format!("/{}", "a".repeat(1024));
        for path in ["", "a", "/a;Domain=b", "/a b", "/a\r\nb: c", "/ä", &*long] {
            assert!(!SessionPersistence::is_path(path), "{path}");
        }
    }

    #[test]
    fn persistence_names_are_validated() {
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
            assert_eq!(
                SessionPersistence::is_name(name, PersistenceType::Cookie),
                cookie,
                "{name}"
            );
            assert_eq!(
                SessionPersistence::is_name(name, PersistenceType::LastingCookie),
                cookie,
                "{name}"
            );
            assert_eq!(
                SessionPersistence::is_name(name, PersistenceType::Header),
                header,
                "{name}"
            );
        }
    }
}
