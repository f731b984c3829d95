//! Servers outside the mesh: where they listen, and whether inside TLS.

use std::fmt;

use crate::action::Scheme;

/// A server outside the mesh.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Server {
    /// Whether it is spoken to inside TLS.
    pub scheme: Scheme,
    /// An address or a name, IPv6 without its brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// Why an endpoint cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEndpoint {
    /// It is no URL of HTTP.
    #[error("an endpoint is written `http://HOST:PORT`, or `https://HOST:PORT` for TLS")]
    Scheme,
    /// It has no host, or one that none can be.
    #[error("an endpoint needs a host: an address, IPv6 in brackets, or a name")]
    Host,
    /// It has a user, and perhaps a password.
    #[error("an endpoint has no user and no password: remove the part up to the `@`")]
    User,
    /// Its host is written in another alphabet than that of the DNS.
    #[error(
        "a host with other characters than those of ASCII is written as in the DNS, such as `xn--mller-kva.example`"
    )]
    International,
    /// It has no port, or one that none can be.
    #[error("an endpoint needs a port from 1 to 65535, such as `:4318`")]
    Port,
    /// It has a path where there is none, or one that is none.
    #[error("a path is of visible characters without `?` and `#`, and gRPC has none")]
    Path,
}

impl Server {
    /// Reads `http://HOST:PORT`, or the same with `https`.
    ///
    /// # Errors
    /// [`InvalidEndpoint`] for anything else.
    pub fn parse(url: &str) -> Result<Self, InvalidEndpoint> {
        match Self::parse_with_path(url)? {
            (server, "") => Ok(server),
            _ => Err(InvalidEndpoint::Path),
        }
    }

    /// The same, and what follows it, whatever that is.
    pub(crate) fn parse_with_path(url: &str) -> Result<(Self, &str), InvalidEndpoint> {
        Self::split(url, |_| None)
    }

    /// The same, where the port may be the one that goes without saying.
    pub(crate) fn parse_with_default_port(url: &str) -> Result<(Self, &str), InvalidEndpoint> {
        Self::split(url, |scheme| Some(scheme.port()))
    }

    /// Reads a URL; `unsaid` is the port where none is written.
    fn split(
        url: &str,
        unsaid: impl FnOnce(Scheme) -> Option<u16>,
    ) -> Result<(Self, &str), InvalidEndpoint> {
        let (scheme, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (Scheme::Http, rest),
            (None, Some(rest)) => (Scheme::Https, rest),
            (None, None) => return Err(InvalidEndpoint::Scheme),
        };
        let slash = rest.find('/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at(slash);
        if authority.contains('@') {
            return Err(InvalidEndpoint::User);
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or(InvalidEndpoint::Host)?;
                let host: std::net::Ipv6Addr = host.parse().map_err(|_| InvalidEndpoint::Host)?;
                let port = match (port, port.strip_prefix(':')) {
                    ("", _) => None,
                    (_, Some(port)) => Some(port),
                    (_, None) => return Err(InvalidEndpoint::Host),
                };
                (host.to_string(), port)
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host.to_owned(), Some(port)),
                None => (authority.to_owned(), None),
            },
        };
        let named = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
        if !host.is_ascii() {
            return Err(InvalidEndpoint::International);
        }
        if host.is_empty() || host.len() > HOST_BYTES_MAX || !host.bytes().all(named) {
            return Err(InvalidEndpoint::Host);
        }
        let number = |port: &str| {
            let digits = port.bytes().all(|byte| byte.is_ascii_digit());
            port.parse().ok().filter(|port| digits && *port != 0)
        };
        let port = match port {
            Some(port) => number(port),
            None => unsaid(scheme),
        };
        let port: u16 = port.ok_or(InvalidEndpoint::Port)?;
        Ok((Self { scheme, host, port }, path))
    }

    /// Host and port, as a URL has them.
    #[must_use]
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

/// Its URL.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.as_str(), self.authority())
    }
}

/// As long as names may be in the DNS (RFC 1035 §2.3.4).
const HOST_BYTES_MAX: usize = 253;

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
