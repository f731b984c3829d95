//! Cross-origin resource sharing (CORS): web origins that may use a service from a browser.

use std::fmt;
use std::net::Ipv6Addr;

/// The CORS policy of a route, enforced by browsers (the Fetch standard, §3.2).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cors {
    /// The allowed origins; never empty.
    pub origins: Vec<OriginPattern>,
    /// True if requests may carry cookies and credentials.
    pub allows_credentials: bool,
    /// The allowed methods, in addition to those that the Fetch standard safelists.
    pub methods: AllowedNames,
    /// The lower-case names of allowed request headers, in addition to the safelisted headers.
    pub headers: AllowedNames,
    /// The lower-case names of exposed response headers, in addition to the safelisted headers.
    pub exposed_headers: AllowedNames,
    /// The time that a browser may cache a preflight response, in seconds.
    pub max_age_seconds: u32,
}

/// A list of method or header names, or all names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AllowedNames {
    /// All names are allowed.
    Any,
    /// Only these names are allowed.
    Only(Vec<String>),
}

impl Default for AllowedNames {
    fn default() -> Self {
        Self::Only(Vec::new())
    }
}

/// A pattern of origins: `scheme://host`, followed by `:port` unless it is the scheme's default port. The host may
/// be `*`, which matches any host, or begin with `*.`, which matches one or more labels. The pattern `*` matches
/// any origin.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OriginPattern(String);

impl OriginPattern {
    /// Validates a pattern.
    ///
    /// # Errors
    /// [`InvalidOrigin`] for an origin that no browser sends, and for a `*` that would match unrelated hosts.
    pub fn new(text: &str) -> Result<Self, InvalidOrigin> {
        let invalid_origin = |hint: String| {
            let text = text.chars().take(MAX_ORIGIN_BYTES).collect();
            InvalidOrigin { text, hint }
        };
        let invalid_form = || invalid_origin(FORM_HINT.to_owned());
        if text == ANY_ORIGIN {
            return Ok(Self(text.to_owned()));
        }
        let (scheme, host_and_port) = text.split_once("://").ok_or_else(invalid_form)?;
        // Colons within brackets belong to an IPv6 address.
        let (host, port) = match host_and_port.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            Some(_) | None => (host_and_port, None),
        };
        let is_scheme_byte =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte);
        let starts_with_letter =
            scheme.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
        let is_valid_scheme = starts_with_letter && scheme.bytes().all(is_scheme_byte);
        if text.len() > MAX_ORIGIN_BYTES || !is_valid_scheme {
            return Err(invalid_form());
        }
        match host.strip_prefix(ANY_ORIGIN) {
            // `scheme://*` matches any host.
            Some("") => {}
            Some(suffix) => match suffix.strip_prefix('.') {
                Some(suffix) if is_host(suffix) => {}
                None if is_host(suffix) => {
                    // Without the dot, unrelated hosts with the same ending match.
                    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
                    return Err(invalid_origin(format!("write `{scheme}://*.{suffix}{port}`")));
                }
                Some(_) | None => return Err(invalid_form()),
            },
            None if is_host(host) || is_ipv6_address(host) => {}
            None => return Err(invalid_form()),
        }
        let Some(port) = port else { return Ok(Self(text.to_owned())) };
        // Browsers write the port without a sign or leading zeros.
        let port_number = port.parse::<u16>().ok().filter(|number| *number > 0);
        let port_number =
            port_number.filter(|number| number.to_string() == port).ok_or_else(invalid_form)?;
        if DEFAULT_PORTS.contains(&(scheme, port_number)) {
            return Err(invalid_origin(format!(
                "browsers omit this port: write `{scheme}://{host}`"
            )));
        }
        Ok(Self(text.to_owned()))
    }

    /// True if the pattern matches every origin.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.0 == ANY_ORIGIN
    }

    /// True if an origin, as a browser sends it, matches.
    #[must_use]
    pub fn matches_origin(&self, origin: &str) -> bool {
        if self.is_any() {
            return true;
        }
        let Some((scheme, host_pattern)) = self.0.split_once("://") else { return false };
        let Some(host_and_port) =
            origin.strip_prefix(scheme).and_then(|remainder| remainder.strip_prefix("://"))
        else {
            return false;
        };
        match host_pattern.strip_prefix(ANY_ORIGIN) {
            None => host_and_port == host_pattern,
            // A pattern with a port matches only origins with this port, a pattern without a port only origins without
            // a port.
            Some(suffix) => {
                let has_port = |text: &str| {
                    text.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'))
                };
                has_port(host_and_port) == has_port(suffix)
                    && host_and_port.len() > suffix.len()
                    && host_and_port.ends_with(suffix)
            }
        }
    }

    /// Returns the text as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for OriginPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that is not a valid origin pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an origin: {hint}")]
pub struct InvalidOrigin {
    /// The text, truncated to 253 characters.
    pub text: String,
    /// A suggestion for the author.
    pub hint: String,
}

/// True for a host of non-empty labels, in the form that browsers send.
fn is_host(host: &str) -> bool {
    let is_label = |label: &str| {
        let is_label_byte =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-".contains(&byte);
        !label.is_empty() && label.bytes().all(is_label_byte)
    };
    host.split('.').all(is_label)
}

/// True for an IPv6 address in brackets, in the form that browsers send.
fn is_ipv6_address(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    address.is_some_and(|text| {
        text.parse::<Ipv6Addr>().is_ok_and(|address| address.to_string() == text)
    })
}

/// The hint for a text that does not have the form of an origin.
const FORM_HINT: &str = "use `*`, or one such as https://www.example.com or https://*.example.com";
/// The default ports of schemes (the URL standard, §4.2).
const DEFAULT_PORTS: [(&str, u16); 5] =
    [("http", 80), ("https", 443), ("ws", 80), ("wss", 443), ("ftp", 21)];
/// The pattern that matches every origin.
const ANY_ORIGIN: &str = "*";
/// The maximum length of an origin in bytes: the length of the longest DNS name.
const MAX_ORIGIN_BYTES: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_matches_exactly_or_by_its_suffix() {
        for (pattern, matching_origins, other_origins) in [
            ("*", &["https://a", "null"][..], &[][..]),
            (
                "https://a.example",
                &["https://a.example"],
                &[
                    "http://a.example",
                    "https://a.example:8443",
                    "https://b.a.example",
                    "https://a.example.evil",
                    "null",
                ],
            ),
            (
                "https://*.a.example",
                &["https://b.a.example", "https://c.b.a.example"],
                &[
                    "https://a.example",
                    "https://xa.example",
                    "https://b.a.example:8443",
                    "https://b.a.example.evil",
                ],
            ),
            ("http://*:8080", &["http://a:8080"], &["http://a", "http://a:80", "https://a:8080"]),
            (
                "http://*",
                &["http://a", "http://a.b", "http://[::1]"],
                &["http://a:1", "http://[::1]:1", "http://"],
            ),
            (
                "https://*.example.com:8443",
                &["https://a.example.com:8443"],
                &["https://example.com:8443", "https://evilexample.com:8443"],
            ),
            ("http://[::1]", &["http://[::1]"], &["http://[::1]:80", "http://[::2]"]),
            ("http://[::1]:8080", &["http://[::1]:8080"], &["http://[::1]"]),
            ("http://a:443", &["http://a:443"], &["http://a"]),
        ] {
            let origin_pattern = OriginPattern::new(pattern).unwrap();
            assert!(
                matching_origins.iter().all(|origin| origin_pattern.matches_origin(origin)),
                "{pattern}"
            );
            assert!(
                !other_origins.iter().any(|origin| origin_pattern.matches_origin(origin)),
                "{pattern}"
            );
        }
    }

    #[test]
    fn an_invalid_origin_pattern_is_rejected() {
        for invalid in [
            "",
            "a.example",
            "https://",
            "https://A",
            "https://a/",
            "https://a*",
            "https://a:0",
            "://a",
            "1://a",
            "https://a b",
            "null",
            "https://.a",
            "https://a.",
            "https://a..b",
            "https://*.",
            "https://*..a",
            "https://a:08443",
            "https://a:+8443",
            "https://a:",
            "https://::1",
            "https://[::1",
            "https://[0:0::1]",
            "https://[a]",
            "https://*[::1]",
        ] {
            assert!(OriginPattern::new(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_rejected_origin_has_a_hint() {
        for (invalid, hint) in [
            ("https://*example.com", "write `https://*.example.com`"),
            ("https://*example.com:8443", "write `https://*.example.com:8443`"),
            ("https://a:443", "browsers omit this port: write `https://a`"),
            ("http://*.a:80", "browsers omit this port: write `http://*.a`"),
            ("https://A", FORM_HINT),
        ] {
            assert_eq!(OriginPattern::new(invalid).unwrap_err().hint, hint, "{invalid}");
        }
    }
}
