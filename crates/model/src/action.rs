//! Actions that a route rule applies to requests and responses, in addition to its choice of a backend: header
//! edits, redirects, rewrites, timeouts, retries, mirroring, CORS and session persistence.

use std::time::Duration;

use crate::cors::Cors;
use crate::definition::{Definition, ManifestBuilder, TextProblem, TextSchema};
use crate::name::Name;
use crate::route::WeightedBackend;
use crate::session_persistence::SessionPersistence;
use crate::token::is_token;

/// The actions of a rule, other than its choice of a backend. The default does nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RuleActions {
    /// Edits of request headers, applied before the request is forwarded.
    pub request_headers: HeaderEdits,
    /// Edits of response headers, applied before the client receives the response.
    pub response_headers: HeaderEdits,
    /// The redirect that each request receives as its response. A rule with a redirect has no backends and forwards no
    /// request.
    pub redirect: Option<Redirect>,
    /// The rewrite of host and path; neither is rewritten when absent.
    pub rewrite: Option<UrlRewrite>,
    /// The timeout of one attempt at one endpoint; no separate timeout when absent.
    pub attempt_timeout: Option<Duration>,
    /// The retry rule; when absent, only requests that were never sent are retried.
    pub retry: Option<RetryRule>,
    /// The total weight of backends in other namespaces that no grant permits. Requests that this weight selects
    /// receive a 500.
    pub ungranted_weight: u32,
    /// The services that receive copies of requests. The weight of each service is its share of the requests, in
    /// millionths.
    pub mirrors: Vec<WeightedBackend>,
    /// The CORS policy; when absent, the application handles CORS itself.
    pub cors: Option<Cors>,
    /// Session persistence; when absent, each request may go to any endpoint.
    pub persistence: Option<SessionPersistence>,
}

impl RuleActions {
    /// The maximum number of copies of one request. The sidecar sends each copy as a request of its own.
    pub const MAX_MIRRORS: usize = 4;
}

/// The conditions of retries, within the retry budget of the service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RetryRule {
    /// The response statuses that are retried until `attempts` retries were made; from 400 to 599, in ascending order.
    pub codes: Vec<u16>,
    /// The maximum number of retries after the first attempt, 0 to [`RetryRule::MAX_ATTEMPTS`]; 0 disables
    /// retries. The Gateway API calls this number `attempts`, although it does not count the first attempt.
    pub attempts: u8,
    /// The delay before the first retry; it grows with each further retry.
    pub backoff: Duration,
}

impl RetryRule {
    /// The maximum of `attempts`, the number of retries. It is low because each retry adds the load of a whole request
    /// to a service that may be overloaded.
    pub const MAX_ATTEMPTS: u8 = 10;
    /// The statuses that `codes` may list: client and server errors.
    pub const CODES: std::ops::RangeInclusive<u16> = 400..=599;
}

/// Edits of headers. Names are in lower case; each occurs once across all three lists, and none is a hop-by-hop
/// or framing header.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct HeaderEdits {
    /// Headers that replace those received with the same name.
    pub set: Vec<Header>,
    /// Headers that are appended.
    pub add: Vec<Header>,
    /// The names of received headers that are removed.
    pub remove: Vec<String>,
}

impl HeaderEdits {
    /// True if there are no edits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.add.is_empty() && self.remove.is_empty()
    }

    /// True if a rule may edit the header of this lower-case name.
    ///
    /// Hop-by-hop and framing headers are excluded (RFC 9110 §7.6.1, RFC 9112 §6), because edits of them would
    /// break the message. `host` is excluded as well, because a rewrite sets it.
    #[must_use]
    pub fn may_edit(name: &str) -> bool {
        !PROTECTED_HEADERS.contains(&name)
    }

    /// True for a valid header name: a token (RFC 9110 §5.6.2) in lower case.
    #[must_use]
    pub fn is_valid_name(name: &str) -> bool {
        is_token(name) && !name.bytes().any(|byte| byte.is_ascii_uppercase())
    }

    /// True for a valid header value: no control characters except tabs, no leading or trailing white space
    /// (RFC 9110 §5.5).
    #[must_use]
    pub fn is_valid_value(value: &str) -> bool {
        value.bytes().all(|byte| byte == b'\t' || !byte.is_ascii_control())
            && value.trim_matches([' ', '\t']) == value
    }
}

/// Header edits and rewrites for one backend of a rule. They are closer to the backend than the edits of the rule:
/// request edits apply after the rule's request edits, and response edits before the rule's response edits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct BackendEdits {
    /// Edits of request headers.
    pub request_headers: HeaderEdits,
    /// Edits of response headers.
    pub response_headers: HeaderEdits,
    /// The rewrite of host and path. A host or path that it sets replaces that of the rule's rewrite.
    pub rewrite: Option<UrlRewrite>,
}

/// A header line.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Definition)]
#[definition(check = Self::with_lower_case_name)]
pub struct Header {
    /// Name of the header, in any case.
    #[field(text = EDITABLE_HEADER)]
    pub name: String,
    /// Value of the header.
    #[field(text = HEADER_VALUE)]
    pub value: String,
}

impl Header {
    fn with_lower_case_name(mut self, _: &mut ManifestBuilder<'_>) -> Self {
        self.name.make_ascii_lowercase();
        self
    }
}

/// A redirect response. An absent scheme, host or path is taken from the request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Redirect {
    /// The new scheme, if it changes.
    pub scheme: Option<Scheme>,
    /// The new host, if it changes.
    pub hostname: Option<Name>,
    /// The new path, if it changes.
    pub path: Option<PathEdit>,
    /// The new port. When absent, the default port of `scheme`. Without a port and a scheme, a gateway uses its own
    /// port; a sidecar uses the port of the service if `hostname` is set, and otherwise the port that the client
    /// requested.
    pub port: Option<u16>,
    /// The response status; one of [`Redirect::STATUSES`].
    pub status: u16,
}

impl Redirect {
    /// The valid statuses of a redirect.
    pub const STATUSES: [u16; 5] = [301, 302, 303, 307, 308];
}

/// The scheme of a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// HTTP without TLS.
    Http,
    /// HTTP over TLS.
    Https,
}

impl Scheme {
    /// Returns the scheme as written in a URL.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// Returns the default port of the scheme (RFC 9110 §4.2).
    #[must_use]
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// A rewrite of the host and path of a request. A host or path that is absent stays unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct UrlRewrite {
    /// The new host of the request.
    pub hostname: Option<Name>,
    /// The new path, if it changes.
    pub path: Option<PathEdit>,
}

/// An edit of a path. The query stays unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PathEdit {
    /// Replaces the whole path.
    Full(String),
    /// Replaces the path prefix of the rule's match; the rule has exactly one match. The new prefix begins with
    /// `/`, or is empty.
    Prefix(String),
}

impl PathEdit {
    /// True for a valid replacement path: it begins with `/` and has no query, fragment or other character that
    /// ends a path.
    #[must_use]
    pub fn is_valid_path(text: &str) -> bool {
        text.starts_with('/')
            && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'?' && byte != b'#')
    }
}

/// The headers that no rule may edit.
const PROTECTED_HEADERS: [&str; 12] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The name of a header that a rule may edit, in any case.
pub const EDITABLE_HEADER: TextSchema = TextSchema::new(MAX_HEADER_NAME_BYTES, |text| {
    let name = text.to_ascii_lowercase();
    if !HeaderEdits::is_valid_name(&name) || name.len() > MAX_HEADER_NAME_BYTES {
        return Err(TextProblem::new("is not the name of a header", "use letters, digits and `-`"));
    }
    if HeaderEdits::may_edit(&name) {
        return Ok(());
    }
    let hint = match name.as_str() {
        "host" => "use a URLRewrite with `hostname`",
        _ => "remove it",
    };
    Err(TextProblem::new("is a header of the protocol and cannot be changed", hint))
});
/// The value of a header that a rule sets.
pub const HEADER_VALUE: TextSchema = TextSchema::new(MAX_HEADER_VALUE_BYTES, |text| {
    match HeaderEdits::is_valid_value(text) && (1..=MAX_HEADER_VALUE_BYTES).contains(&text.len()) {
        true => Ok(()),
        false => Err(TextProblem::new(
            "is not a value of a header",
            "use 1 to 4096 bytes, without control characters and outer spaces",
        )),
    }
});
const MAX_HEADER_NAME_BYTES: usize = 256;
const MAX_HEADER_VALUE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_names_and_values_are_validated() {
        for name in ["x-a", "a", "!#$%&'*+-.^_`|~0"] {
            assert!(HeaderEdits::is_valid_name(name), "{name}");
        }
        for name in ["", "A", "a b", "a:", ":path", "ä", "a\r\n"] {
            assert!(!HeaderEdits::is_valid_name(name), "{name}");
        }
        for value in ["", "a b", "a\tb", "ä"] {
            assert!(HeaderEdits::is_valid_value(value), "{value}");
        }
        for value in [" a", "a ", "a\r\nb: c", "\0", "\x7f"] {
            assert!(!HeaderEdits::is_valid_value(value), "{value:?}");
        }
        assert!(PathEdit::is_valid_path("/a/%20"));
        for path in ["", "a", "/a?b", "/a#b", "/a b", "/a\r\nb", "/ä"] {
            assert!(!PathEdit::is_valid_path(path), "{path:?}");
        }
        assert!(HeaderEdits::may_edit("x-a"));
        assert!(!HeaderEdits::may_edit("transfer-encoding"));
    }
}
