//! Cross-origin requests: which pages of other origins may use a service from a browser.

use std::fmt;

/// Which pages of other origins may ask what, as browsers enforce it (the Fetch standard, §3.2).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cors {
    /// Pages of these origins may; never empty.
    pub origins: Vec<OriginPattern>,
    /// Whether they may with cookies and credentials.
    pub credentials: bool,
    /// With these methods, beside those that every page may use.
    pub methods: AnyOf,
    /// With these headers, beside those that every page may send; in lower case.
    pub headers: AnyOf,
    /// The headers of answers that they may read, beside those that every page may; in lower case.
    pub exposed: AnyOf,
    /// How long a browser may remember the answer to its question, in seconds.
    pub max_age_seconds: u32,
}

/// Some words, or any word.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AnyOf {
    /// Whatever is asked for.
    Any,
    /// These.
    Only(Vec<String>),
}

impl Default for AnyOf {
    fn default() -> Self {
        Self::Only(Vec::new())
    }
}

/// An origin: `scheme://host`, with `:port` unless it goes without saying; `*` is any; and a host may
/// begin with `*`, which stands for any characters there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OriginPattern(String);

impl OriginPattern {
    /// Checks and keeps a pattern.
    ///
    /// # Errors
    /// [`InvalidOrigin`] for what no browser would send.
    pub fn new(text: &str) -> Result<Self, InvalidOrigin> {
        let invalid = || InvalidOrigin { text: text.chars().take(ORIGIN_BYTES_MAX).collect() };
        if text == ANY {
            return Ok(Self(text.to_owned()));
        }
        let (scheme, place) = text.split_once("://").ok_or_else(invalid)?;
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        };
        let letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"+-.".contains(&b);
        let begins = scheme.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
        let fits_scheme = begins && scheme.bytes().all(letter);
        let rest = host.strip_prefix(ANY).unwrap_or(host);
        let fits_host = !host.is_empty()
            && rest
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b));
        let fits_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
        match text.len() <= ORIGIN_BYTES_MAX && fits_scheme && fits_host && fits_port {
            true => Ok(Self(text.to_owned())),
            false => Err(invalid()),
        }
    }

    /// Whether it stands for every origin.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.0 == ANY
    }

    /// Whether an origin, as a browser sends it, fits.
    #[must_use]
    pub fn fits(&self, origin: &str) -> bool {
        if self.is_any() {
            return true;
        }
        let Some((scheme, host)) = self.0.split_once("://") else { return false };
        let Some(place) = origin.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://"))
        else {
            return false;
        };
        match host.strip_prefix(ANY) {
            None => place == host,
            // With a port in the pattern it has to be the same; without one there may be none.
            Some(ending) => {
                let has_port = |text: &str| text.rsplit_once(':').is_some();
                has_port(place) == has_port(ending)
                    && place.len() > ending.len()
                    && place.ends_with(ending)
            }
        }
    }

    /// As it was written.
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

/// A text that is no origin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no origin: use `*`, or one such as `https://www.example.com` in lower case")]
pub struct InvalidOrigin {
    /// What was given, cut to 253 characters.
    pub text: String,
}

const ANY: &str = "*";
const ORIGIN_BYTES_MAX: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_fits_as_a_whole_or_by_its_ending() {
        for (pattern, fit, unfit) in [
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
            ("http://*", &["http://a", "http://a.b"], &["http://a:1", "http://"]),
        ] {
            let it = OriginPattern::new(pattern).unwrap();
            assert!(fit.iter().all(|origin| it.fits(origin)), "{pattern}");
            assert!(!unfit.iter().any(|origin| it.fits(origin)), "{pattern}");
        }
        for bad in [
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
        ] {
            assert!(OriginPattern::new(bad).is_err(), "{bad}");
        }
    }
}
