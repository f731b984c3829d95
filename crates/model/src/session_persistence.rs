//! Session persistence settings of route rules: all requests of a session are forwarded to the endpoint that served the
//! session's first request, while this endpoint is healthy.

use std::time::Duration;

use crate::action::HeaderEdits;

/// Session persistence by a value that the client receives in a response and sends with later requests (Gateway
/// API, GEP-1619).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SessionPersistence {
    /// The name of the cookie or header; a distinct name for each rule is generated when absent.
    pub name: Option<String>,
    /// The location of the value: a cookie or a header.
    pub kind: PersistenceType,
    /// The maximum time since the first response that set the value; unlimited when absent.
    pub absolute_timeout: Option<Duration>,
    /// The maximum time since the last response that set the value; unlimited when absent.
    pub idle_timeout: Option<Duration>,
    /// The path of the cookie; the path of the rule's match when absent.
    pub path: Option<String>,
}

/// The location of the value of a [`SessionPersistence`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PersistenceType {
    /// A session cookie.
    Cookie,
    /// A cookie that expires after [`SessionPersistence::absolute_timeout`], which is set.
    LastingCookie,
    /// A header of requests and responses.
    Header,
}

impl SessionPersistence {
    /// The maximum length of a name in bytes, as in the Gateway API schema.
    pub const MAX_NAME_BYTES: usize = 256;
    /// The maximum length of a path in bytes, as in the Gateway API schema.
    pub const MAX_PATH_BYTES: usize = 1024;

    /// True for a valid name: a token (RFC 6265 §4.1.1, RFC 9110 §5.6.2). A header name must also be in lower case,
    /// editable by rules, and neither `cookie` nor `set-cookie`.
    #[must_use]
    pub fn is_valid_name(name: &str, kind: PersistenceType) -> bool {
        let is_valid_token = name.len() <= Self::MAX_NAME_BYTES
            && HeaderEdits::is_valid_name(&name.to_ascii_lowercase());
        match kind {
            PersistenceType::Cookie | PersistenceType::LastingCookie => is_valid_token,
            PersistenceType::Header => {
                is_valid_token
                    && HeaderEdits::is_valid_name(name)
                    && HeaderEdits::may_edit(name)
                    && !["cookie", "set-cookie"].contains(&name)
            }
        }
    }

    /// True for a valid cookie path: it begins with `/` and contains no character that ends the attribute (RFC
    /// 6265 §4.1.1).
    #[must_use]
    pub fn is_valid_path(path: &str) -> bool {
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
            assert!(SessionPersistence::is_valid_path(path), "{path}");
        }
        let long_path = format!("/{}", "a".repeat(1024));
        for path in ["", "a", "/a;Domain=b", "/a b", "/a\r\nb: c", "/ä", &*long_path] {
            assert!(!SessionPersistence::is_valid_path(path), "{path}");
        }
    }

    #[test]
    fn persistence_names_are_validated() {
        let long_name = "a".repeat(257);
        for (name, valid_for_cookie, valid_for_header) in [
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
            (&*long_name, false, false),
        ] {
            assert_eq!(
                SessionPersistence::is_valid_name(name, PersistenceType::Cookie),
                valid_for_cookie,
                "{name}"
            );
            assert_eq!(
                SessionPersistence::is_valid_name(name, PersistenceType::LastingCookie),
                valid_for_cookie,
                "{name}"
            );
            assert_eq!(
                SessionPersistence::is_valid_name(name, PersistenceType::Header),
                valid_for_header,
                "{name}"
            );
        }
    }
}
