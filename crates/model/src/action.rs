//! Actions: what a rule of a route does to requests and answers, beside choosing a backend.

use std::time::Duration;

use crate::cors::Cors;
use crate::name::Name;
use crate::persistence::Persistence;
use crate::route::WeightedBackend;

/// What a rule does beside choosing a backend. The default does nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RuleActions {
    /// Edits of the headers of requests, before they are sent on.
    pub request_headers: HeaderEdits,
    /// Edits of the headers of answers, before clients get them.
    pub response_headers: HeaderEdits,
    /// Requests are answered with a redirection and go nowhere; then there are no backends.
    pub redirect: Option<Redirect>,
    /// What becomes of the host and path of requests.
    pub rewrite: Option<UrlRewrite>,
    /// How long one attempt at one endpoint may take; no limit of its own when absent.
    pub attempt_timeout: Option<Duration>,
    /// When requests are sent once more; only what never left is, when absent.
    pub retry: Option<RetryRule>,
    /// The weight of backends in other namespaces that no grant permits: their share of requests is
    /// answered 500.
    pub ungranted_weight: u32,
    /// Services that get a copy of requests; the weight of each is its share of them, in millionths.
    pub mirrors: Vec<WeightedBackend>,
    /// What pages of other origins may; nothing is said about it when absent.
    pub cors: Option<Cors>,
    /// Requests of one client keep to one endpoint; each goes to any when absent.
    pub persistence: Option<Persistence>,
}

impl RuleActions {
    /// The most copies of one request.
    pub const MIRRORS_MAX: usize = 4;
}

/// When a request is sent once more, within the retry budget of the service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RetryRule {
    /// The statuses of answers that the client does not get while there are attempts left; from 400
    /// to 599, in order.
    pub codes: Vec<u16>,
    /// How often at most, after the first attempt; 0 is never, [`RetryRule::ATTEMPTS_MAX`] the most.
    pub attempts: u8,
    /// How long to wait before the first retry; it grows from there.
    pub backoff: Duration,
}

impl RetryRule {
    /// The most retries that a rule may ask for: each multiplies the load of a service in trouble.
    pub const ATTEMPTS_MAX: u8 = 10;
    /// The statuses that a rule may name.
    pub const CODES: std::ops::RangeInclusive<u16> = 400..=599;
}

/// Edits of headers. Names are lower case; each is there once in all three lists, and none concerns
/// one connection or the framing of a message.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct HeaderEdits {
    /// These replace what was received under their names.
    pub set: Vec<Header>,
    /// These are added to what is there.
    pub add: Vec<Header>,
    /// What was received under these names goes no further.
    pub remove: Vec<String>,
}

impl HeaderEdits {
    /// Whether nothing is edited.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.add.is_empty() && self.remove.is_empty()
    }

    /// Whether the name of a header, in lower case, may be edited by a rule.
    ///
    /// Not the ones that concern one connection or say where a message ends (RFC 9110 §7.6.1,
    /// RFC 9112 §6): with those a rule would break the message. Nor `host`, which a rewrite sets.
    #[must_use]
    pub fn may_edit(name: &str) -> bool {
        !UNTOUCHABLE.contains(&name)
    }

    /// Whether a text can be the name of a header: a token (RFC 9110 §5.6.2) in lower case.
    #[must_use]
    pub fn is_name(name: &str) -> bool {
        let token =
            |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"!#$%&'*+-.^_`|~".contains(&b);
        !name.is_empty() && name.bytes().all(token)
    }

    /// Whether a text can be the value of a header: no control characters but tabs, no white
    /// space around it (RFC 9110 §5.5).
    #[must_use]
    pub fn is_value(value: &str) -> bool {
        value.bytes().all(|b| b == b'\t' || !b.is_ascii_control())
            && value.trim_matches([' ', '\t']) == value
    }
}

/// Edits of the requests that go to one backend of a rule, after those of the rule, and of its
/// answers, before those of the rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct BackendEdits {
    /// Edits of the headers of requests.
    pub request_headers: HeaderEdits,
    /// Edits of the headers of answers.
    pub response_headers: HeaderEdits,
    /// What becomes of host and path, instead of what the rule says of each.
    pub rewrite: Option<UrlRewrite>,
}

/// A header.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Header {
    /// Its name, in lower case.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// An answer that sends the client elsewhere. What is absent stays as the request had it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Redirect {
    /// Another scheme.
    pub scheme: Option<Scheme>,
    /// Another host.
    pub hostname: Option<Name>,
    /// Another path.
    pub path: Option<PathEdit>,
    /// Another port. When absent it is that of `scheme`, and without one that of the service.
    pub port: Option<u16>,
    /// 301, 302, 303, 307 or 308.
    pub status: u16,
}

impl Redirect {
    /// The statuses that a redirection may have.
    pub const STATUSES: [u16; 5] = [301, 302, 303, 307, 308];
}

/// The scheme of a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// `http`.
    Http,
    /// `https`.
    Https,
}

impl Scheme {
    /// The word in a URL.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// The port that goes without saying (RFC 9110 §4.2).
    #[must_use]
    pub const fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// What becomes of the host and path of a request. What is absent stays as it was.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct UrlRewrite {
    /// The host that the request is for, from there on.
    pub hostname: Option<Name>,
    /// Another path.
    pub path: Option<PathEdit>,
}

/// What becomes of a path. The query stays.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PathEdit {
    /// The whole path is this one.
    Full(String),
    /// In place of the prefix that the rule's only match names, this one. It begins with `/`, or
    /// is empty.
    Prefix(String),
}

impl PathEdit {
    /// Whether a text can be the path that a rule puts in place of another: it begins with `/`,
    /// and has neither a query nor what would end it.
    #[must_use]
    pub fn is_path(text: &str) -> bool {
        text.starts_with('/')
            && text.bytes().all(|b| b.is_ascii_graphic() && b != b'?' && b != b'#')
    }
}

/// The headers that no rule may edit.
const UNTOUCHABLE: [&str; 12] = [
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_what_can_be_a_header() {
        for name in ["x-a", "a", "!#$%&'*+-.^_`|~0"] {
            assert!(HeaderEdits::is_name(name), "{name}");
        }
        for name in ["", "A", "a b", "a:", ":path", "ä", "a\r\n"] {
            assert!(!HeaderEdits::is_name(name), "{name}");
        }
        for value in ["", "a b", "a\tb", "ä"] {
            assert!(HeaderEdits::is_value(value), "{value}");
        }
        for value in [" a", "a ", "a\r\nb: c", "\0", "\x7f"] {
            assert!(!HeaderEdits::is_value(value), "{value:?}");
        }
        assert!(PathEdit::is_path("/a/%20"));
        for path in ["", "a", "/a?b", "/a#b", "/a b", "/a\r\nb", "/ä"] {
            assert!(!PathEdit::is_path(path), "{path:?}");
        }
        assert!(HeaderEdits::may_edit("x-a"));
        assert!(!HeaderEdits::may_edit("transfer-encoding"));
    }
}
