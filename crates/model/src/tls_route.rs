//! TLS routes: which sessions that applications encrypt themselves go to which backends, by the
//! server name that the client asks for.

use std::fmt;
use std::str::FromStr;

use crate::name::{Name, RouteName};
use crate::route::{RouteParent, WeightedBackend};

/// A Gateway API `TLSRoute` attached to services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsRoute {
    /// The services whose sessions it decides, at least one.
    pub parents: Vec<RouteParent>,
    /// Its only rule, which has its name.
    pub rule: TlsRule,
}

/// Where sessions for some server names go.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TlsRule {
    /// The route that the rule came from.
    pub route: RouteName,
    /// The names, at least one.
    pub hostnames: Vec<HostPattern>,
    /// Where the sessions go, by weight. All weights 0: they are cut off.
    pub backends: Vec<WeightedBackend>,
}

/// A host name, or all below one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostPattern {
    /// This name.
    Exact(Name),
    /// Every name with one or more labels before this one: `*.example.com`.
    Below(Name),
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
        let invalid = |_| InvalidHostPattern { text: text.chars().take(TEXT_SHOWN_MAX).collect() };
        match text.strip_prefix("*.") {
            Some(name) => Name::new(name).map(Self::Below).map_err(invalid),
            None => Name::new(text).map(Self::Exact).map_err(invalid),
        }
    }
}

/// A text that is no host name, nor all below one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a host name: use one such as shop.example.com or *.example.com")]
pub struct InvalidHostPattern {
    /// What was given, cut to 253 characters.
    pub text: String,
}

/// The longest name there is.
const TEXT_SHOWN_MAX: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_read_as_they_are_written() {
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
