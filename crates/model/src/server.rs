//! Servers outside the mesh: collectors, JWKS endpoints, external authorization and rate limit services. Parses and
//! formats their URLs.

use std::fmt;

use crate::action::Scheme;
use crate::definition::{
    Definition, ManifestBuilder, ManifestValue, Schema, TextForm, TextProblem, TextSchema,
};

/// A server outside the mesh.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Server {
    /// `Https` if connections use TLS.
    pub scheme: Scheme,
    /// The IP address, without brackets for IPv6, or the DNS name.
    pub host: String,
    /// The port of the server.
    pub port: u16,
}

/// The reason that the URL of a server is invalid. The messages call the URL an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEndpoint {
    /// The text is not an HTTP URL.
    #[error("an endpoint has the form `http://HOST:PORT`, or `https://HOST:PORT` for TLS")]
    Scheme,
    /// The host is missing or invalid.
    #[error("an endpoint needs a host: an address, IPv6 in brackets, or a name")]
    Host,
    /// The authority contains a user, and perhaps a password.
    #[error("an endpoint must not contain a user or password: remove the part up to the `@`")]
    User,
    /// The host is an internationalized name that is not encoded for the DNS.
    #[error(
        "a host with non-ASCII characters is written in Punycode, such as `xn--mller-kva.example`"
    )]
    International,
    /// The port is missing or invalid.
    #[error("an endpoint needs a port from 1 to 65535, such as `:4318`")]
    Port,
    /// The path is unexpected or invalid.
    #[error("a path may contain only visible characters without `?` and `#`, and gRPC has no path")]
    Path,
}

impl Server {
    /// Parses `http://HOST:PORT`, or the same with `https`.
    ///
    /// # Errors
    /// [`InvalidEndpoint`] for any other text.
    pub fn parse(url: &str) -> Result<Self, InvalidEndpoint> {
        match Self::parse_with_path(url)? {
            (server, "") => Ok(server),
            _ => Err(InvalidEndpoint::Path),
        }
    }

    /// Parses a URL with a port, and returns the server and the path, which is empty if the URL has none.
    pub(crate) fn parse_with_path(url: &str) -> Result<(Self, &str), InvalidEndpoint> {
        Self::parse_url(url, |_| None)
    }

    /// Parses a URL with an optional port, and returns the server and the path, which is empty if the URL has
    /// none.
    pub(crate) fn parse_with_default_port(url: &str) -> Result<(Self, &str), InvalidEndpoint> {
        Self::parse_url(url, |scheme| Some(scheme.default_port()))
    }

    /// Parses a URL, and returns the server and the path. `default_port` returns the port of a URL without a port, or
    /// `None` if the port is required.
    fn parse_url(
        url: &str,
        default_port: impl FnOnce(Scheme) -> Option<u16>,
    ) -> Result<(Self, &str), InvalidEndpoint> {
        let (scheme, remainder) = match (url.strip_prefix("http://"), url.strip_prefix("https://"))
        {
            (Some(remainder), _) => (Scheme::Http, remainder),
            (None, Some(remainder)) => (Scheme::Https, remainder),
            (None, None) => return Err(InvalidEndpoint::Scheme),
        };
        let path_start = remainder.find('/').unwrap_or(remainder.len());
        let (authority, path) = remainder.split_at(path_start);
        if authority.contains('@') {
            return Err(InvalidEndpoint::User);
        }
        let (host, port_text) = match authority.strip_prefix('[') {
            Some(after_bracket) => {
                let (host, suffix) = after_bracket.split_once(']').ok_or(InvalidEndpoint::Host)?;
                let address: std::net::Ipv6Addr =
                    host.parse().map_err(|_| InvalidEndpoint::Host)?;
                let port_text = match (suffix, suffix.strip_prefix(':')) {
                    ("", _) => None,
                    (_, Some(port_text)) => Some(port_text),
                    (_, None) => return Err(InvalidEndpoint::Host),
                };
                (address.to_string(), port_text)
            }
            None => match authority.split_once(':') {
                Some((host, port_text)) => (host.to_owned(), Some(port_text)),
                None => (authority.to_owned(), None),
            },
        };
        let is_host_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
        if !host.is_ascii() {
            return Err(InvalidEndpoint::International);
        }
        if host.is_empty() || host.len() > MAX_HOST_BYTES || !host.bytes().all(is_host_byte) {
            return Err(InvalidEndpoint::Host);
        }
        let parse_port = |port: &str| {
            // `u16::from_str` accepts a leading `+`, which is not valid in a URL.
            let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
            port.parse().ok().filter(|port| is_number && *port != 0)
        };
        let port: Option<u16> = match port_text {
            Some(port_text) => parse_port(port_text),
            None => default_port(scheme),
        };
        let port = port.ok_or(InvalidEndpoint::Port)?;
        Ok((Self { scheme, host, port }, path))
    }

    /// Returns host and port, in the form of a URL authority.
    #[must_use]
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

/// Formats the URL.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.as_str(), self.authority())
    }
}

impl Definition for Server {
    const SCHEMA: Schema = Schema::Text(&SERVER_URL);

    fn build(value: ManifestValue, _: &mut ManifestBuilder<'_>) -> Option<Self> {
        Self::parse(&value.into_text()?).ok()
    }
}

/// The URL of a server, without a path.
const SERVER_URL: TextSchema = TextSchema::new(MAX_URL_BYTES, |text| match Server::parse(text) {
    Ok(_) => Ok(()),
    Err(reason) => Err(TextProblem::new(
        format!("is not a valid server: {reason}"),
        "correct it, as in `http://127.0.0.1:9000`",
    )),
})
.with_form(TextForm::Url)
.with_pattern("^https?://");
/// The maximum length of a URL in bytes: enough for the longest host.
const MAX_URL_BYTES: usize = 512;
/// The maximum length of a host in bytes: that of a DNS name (RFC 1035 §2.3.4).
const MAX_HOST_BYTES: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_scheme_a_host_and_a_port() {
        for text in ["http://127.0.0.1:9000", "https://authz.example:443", "http://[::1]:9"] {
            assert_eq!(Server::parse(text).unwrap().to_string(), text);
        }
        for (text, error) in [
            ("authz:9000", InvalidEndpoint::Scheme),
            ("http://authz", InvalidEndpoint::Port),
            ("http://user@authz:1", InvalidEndpoint::User),
            ("http://user:secret@authz:1", InvalidEndpoint::User),
            ("http://user:secret@[::1]", InvalidEndpoint::User),
            ("http://@authz:1", InvalidEndpoint::User),
            ("http://müller.example:1", InvalidEndpoint::International),
            ("http://:1", InvalidEndpoint::Host),
            ("http://authz:1/check", InvalidEndpoint::Path),
            ("http://authz:1/", InvalidEndpoint::Path),
        ] {
            assert_eq!(Server::parse(text), Err(error), "{text}");
        }
    }
}
