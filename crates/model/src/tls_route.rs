//! TLS passthrough routes: rules that forward TLS sessions of applications to backends by server name.

use std::fmt;
use std::str::FromStr;

use crate::name::{Name, RouteName};
use crate::route::{RouteParent, WeightedBackend};

/// A Gateway API `TLSRoute` attached to services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsRoute {
    /// The services that the route is attached to, at least one.
    pub parents: Vec<RouteParent>,
    /// The only rule of the route, which contains the route's name.
    pub rule: TlsRule,
    /// The creation time, in seconds since 1970; 0 if unknown. The oldest route takes precedence.
    pub created: i64,
}

/// The backends of TLS sessions with some server names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TlsRule {
    /// The route that contains the rule.
    pub route: RouteName,
    /// The server names, at least one.
    pub hostnames: Vec<HostPattern>,
    /// The weighted backends. If all weights are 0, sessions are closed.
    pub backends: Vec<WeightedBackend>,
    /// The total weight of backends that do not exist or that no grant permits. Sessions that this weight selects are
    /// closed.
    pub ungranted_weight: u32,
}

/// A pattern that matches one host name, or all subdomains of a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostPattern {
    /// Exactly this name.
    Exact(Name),
    /// Every subdomain of this name, with one or more labels before it: `*.example.com`.
    Below(Name),
}

impl HostPattern {
    /// True if a host name, in lower case and without a trailing dot, matches.
    #[must_use]
    pub fn matches_host(&self, host: &str) -> bool {
        match self {
            Self::Exact(name) => name.as_str() == host,
            Self::Below(name) => host
                .strip_suffix(name.as_str())
                .and_then(|prefix| prefix.strip_suffix('.'))
                .is_some_and(|labels| !labels.is_empty()),
        }
    }

    /// Returns the specificity: true for an exact name, and the length of the name in bytes. Among matching patterns,
    /// the pattern with the greatest specificity takes precedence.
    #[must_use]
    pub fn specificity(&self) -> (bool, usize) {
        match self {
            Self::Exact(name) => (true, name.as_str().len()),
            Self::Below(name) => (false, name.as_str().len()),
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => write!(f, "{name}"),
            Self::Below(name) => write!(f, "*.{name}"),
        }
    }
}

impl FromStr for HostPattern {
    type Err = InvalidHostPattern;

    fn from_str(text: &str) -> Result<Self, InvalidHostPattern> {
        let invalid =
            |_| InvalidHostPattern { text: text.chars().take(MAX_ERROR_CHARACTERS).collect() };
        match text.strip_prefix("*.") {
            Some(name) => Name::new(name).map(Self::Below).map_err(invalid),
            None => Name::new(text).map(Self::Exact).map_err(invalid),
        }
    }
}

/// A text that is not a valid host pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a host name: use one such as shop.example.com or *.example.com")]
pub struct InvalidHostPattern {
    /// The text, truncated to 253 characters.
    pub text: String,
}

/// The maximum number of characters of a text in an error.
const MAX_ERROR_CHARACTERS: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_pattern_matches_whole_labels() {
        let matches =
            |pattern: &str, host: &str| pattern.parse::<HostPattern>().unwrap().matches_host(host);
        assert!(matches("a.com", "a.com") && !matches("a.com", "b.a.com"));
        assert!(matches("*.a.com", "b.a.com") && matches("*.a.com", "c.b.a.com"));
        assert!(
            !matches("*.a.com", "a.com")
                && !matches("*.a.com", "ba.com")
                && !matches("*.a.com", ".a.com")
        );
    }

    #[test]
    fn host_patterns_round_trip() {
        for text in ["shop.example.com", "*.example.com", "shop", "*.com"] {
            let pattern: HostPattern = text.parse().expect(text);
            assert_eq!(pattern.to_string(), text);
        }
        for text in ["", "*", "*.", "a.*.com", "*a.com", "Shop.example.com", "a..b", "a b", "*.*.a"]
        {
            assert!(text.parse::<HostPattern>().is_err(), "{text}");
        }
    }
}
