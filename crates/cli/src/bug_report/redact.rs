//! What looks like a secret is taken out, whatever it came with.

use anyhow::Context as _;
use regex::Regex;

/// Finds secrets.
pub(super) struct Redaction(Regex);

impl Redaction {
    /// # Errors
    /// When the pattern is not one, which a test would notice.
    pub(super) fn new() -> anyhow::Result<Self> {
        Regex::new(SECRETS).map(Self).context("the pattern of secrets")
    }

    /// The text without them.
    pub(super) fn of(&self, text: &str) -> String {
        self.0.replace_all(text, "${kept}[redacted]").into_owned()
    }
}

/// Join tokens, signed tokens (RFC 7519), credentials of HTTP (RFC 9110 section 11.4), private keys in
/// PEM (RFC 7468), what lets in to the page, and values of what is named like a secret; names are kept.
const SECRETS: &str = concat!(
    r"(?si)leno-join-[0-9a-f]+",
    r"|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*",
    r"|(?P<kept>\b(?:bearer|basic)\s+|[?&]token=|#/live/)[\w.~+/=-]{8,}",
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_go_and_the_rest_stays() {
        let redaction = Redaction::new().unwrap();
        for (text, expected) in [
            ("token: leno-join-00ff12", "token: [redacted]"),
            (
                "\"authorization\": \"Bearer abc.def-123\"",
                "\"authorization\": \"Bearer [redacted]\"",
            ),
            ("Authorization: basic dXNlcjpwYXNz", "Authorization: basic [redacted]"),
            ("x eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiIxIn0.AbC_-9 y", "x [redacted] y"),
            (
                "a -----BEGIN EC PRIVATE KEY-----\\nMHc\n-----END EC PRIVATE KEY----- b",
                "a [redacted] b",
            ),
            ("-----BEGIN PRIVATE KEY-----\ncut", "[redacted]"),
            ("http://10.0.0.7:1/?token=00ff1122aa", "http://10.0.0.7:1/?token=[redacted]"),
            ("http://127.0.0.1:1/#/live/00ff1122aa", "http://127.0.0.1:1/#/live/[redacted]"),
            ("-----BEGIN CERTIFICATE-----\nMII", "-----BEGIN CERTIFICATE-----\nMII"),
            ("a basic service, a bearer of news", "a basic service, a bearer of news"),
            ("shop/cart 10.0.0.7:80 /path?x=1", "shop/cart 10.0.0.7:80 /path?x=1"),
        ] {
            assert_eq!(redaction.of(text), expected);
        }
    }
}
