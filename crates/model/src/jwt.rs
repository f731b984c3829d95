//! Settings of JSON web token (JWT) validation: accepted issuers, required tokens, and claims forwarded to the
//! application.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::route::RequestMatch;
use crate::server::{InvalidEndpoint, Server};

/// The JSON web tokens that requests may or must carry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JwtValidation {
    /// The accepted issuers; at least one, each name once.
    pub issuers: Vec<JwtIssuer>,
    /// The requests that must carry a token.
    pub required: TokenRequirement,
}

/// The requests that must carry a token. A request with an invalid token is always denied.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TokenRequirement {
    /// Tokens are optional for all requests.
    Never,
    /// Every request must carry a token.
    Always,
    /// Requests that match one of these entries must carry a token. There is at least one entry.
    Matching(Vec<RequestMatch>),
}

/// An issuer of tokens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JwtIssuer {
    /// The `iss` claim of the issuer's tokens.
    pub issuer: String,
    /// The accepted audiences (`aud` claim), one of which a token must have; any audience when empty.
    pub aud: Vec<String>,
    /// The public keys of the issuer.
    pub keys: IssuerKeys,
    /// The locations of the token in requests; at least one.
    pub locations: Vec<JwtLocation>,
    /// The tolerated difference between the clocks of the issuer and the sidecar.
    pub clock_skew: Duration,
    /// True if tokens without an expiration time are rejected.
    pub requires_expiration: bool,
    /// The maximum age of a token since its issue (`iat`); unlimited when absent.
    pub max_age: Option<Duration>,
    /// Claims forwarded to the application, each in its own header.
    pub claim_to_headers: Vec<ClaimHeader>,
    /// True if the token itself is forwarded to the application.
    pub forward_original_token: bool,
}

impl JwtIssuer {
    /// The maximum clock skew. A token stays valid for the clock skew after its expiration.
    pub const MAX_CLOCK_SKEW: Duration = Duration::from_secs(3600);
    /// The minimum `max_age`.
    pub const MAX_AGE_MIN: Duration = Duration::from_secs(1);
    /// The maximum `max_age`.
    pub const MAX_AGE_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
}

/// The public keys of an issuer, or their source.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum IssuerKeys {
    /// An inline JWK set.
    Inline(Arc<str>),
    /// A source from which the control plane fetches the keys. The source is not sent to sidecars.
    Source(KeySource),
    /// The keys are not fetched yet. Sidecars receive this value instead of a source, and accept no token of the
    /// issuer.
    Pending,
}

impl IssuerKeys {
    /// The maximum size of a JWK set in bytes: 64 KiB.
    pub const MAX_BYTES: usize = 64 << 10;

    /// Returns the source; `None` for inline keys and for keys that are not fetched yet.
    #[must_use]
    pub fn source(&self) -> Option<&KeySource> {
        match self {
            Self::Source(source) => Some(source),
            Self::Inline(_) | Self::Pending => None,
        }
    }
}

/// The source of a JWK set, read by the control plane.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeySource {
    /// A file on the control plane's machine.
    File(PathBuf),
    /// A server outside the mesh.
    Server(KeyServer),
}

/// A JWKS endpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyServer {
    /// The address of the endpoint.
    pub server: Server,
    /// The request path, with the query if any.
    pub path: String,
    /// The maximum time between two fetches of the JWK set.
    pub refresh_interval: Duration,
}

impl KeyServer {
    /// The minimum refresh interval.
    pub const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(1);
    /// The maximum refresh interval.
    pub const MAX_REFRESH_INTERVAL: Duration = Duration::from_secs(24 * 3600);

    /// Parses `https://HOST[:PORT]/PATH`, or the same with `http`.
    ///
    /// # Errors
    /// [`InvalidEndpoint`] for any other text.
    pub fn parse(url: &str, refresh_interval: Duration) -> Result<Self, InvalidEndpoint> {
        let (server, path) = Server::parse_with_default_port(url)?;
        let path = if path.is_empty() { "/" } else { path };
        let is_path_byte = |byte: u8| byte.is_ascii_graphic() && !b"#\"<>\\^`{|}".contains(&byte);
        if path.len() > MAX_PATH_BYTES || !path.bytes().all(is_path_byte) {
            return Err(InvalidEndpoint::Path);
        }
        Ok(Self { server, path: path.to_owned(), refresh_interval })
    }
}

/// Formats the path of the file, or the URL.
impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Server(KeyServer { server, path, .. }) => write!(f, "{server}{path}"),
        }
    }
}

/// The location of a token in a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum JwtLocation {
    /// A header, after a prefix such as `Bearer `.
    Header {
        /// The header name, in lower case.
        name: String,
        /// The text before the token in the header's value; matched case-insensitively.
        prefix: String,
    },
    /// A query parameter of this name.
    Query(String),
}

/// A claim forwarded to the application. Headers of this name from clients are removed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimHeader {
    /// The name of the claim; dots separate the keys of nested objects.
    pub claim: String,
    /// The header name, in lower case.
    pub header: String,
}

/// A claim and its accepted values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimMatch {
    /// The name of the claim; dots separate the keys of nested objects.
    pub name: String,
    /// The accepted values of the claim or of one of its elements; at least one.
    pub values: Vec<String>,
}

/// The maximum length of a request path in bytes.
const MAX_PATH_BYTES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_server_url_may_omit_the_port() {
        let parse = |url: &str| {
            KeyServer::parse(url, Duration::from_secs(1))
                .map(|server| KeySource::Server(server).to_string())
        };
        for (url, expected) in [
            ("https://a.example/keys", "https://a.example:443/keys"),
            ("http://a.example", "http://a.example:80/"),
            ("http://[::1]:8080/x?policy=b", "http://[::1]:8080/x?policy=b"),
            ("http://[::1]/x", "http://[::1]:80/x"),
            ("https://a.example/x@y", "https://a.example:443/x@y"),
        ] {
            assert_eq!(parse(url).unwrap(), expected);
        }
        for (url, error) in [
            ("a.example/keys", InvalidEndpoint::Scheme),
            ("file:///keys", InvalidEndpoint::Scheme),
            ("https:///keys", InvalidEndpoint::Host),
            ("https://user@a.example/keys", InvalidEndpoint::User),
            ("https://user:secret@a.example:443/keys", InvalidEndpoint::User),
            ("https://a.example:0/keys", InvalidEndpoint::Port),
            ("https://a.example:/keys", InvalidEndpoint::Port),
            ("https://a.example/a b", InvalidEndpoint::Path),
            ("https://a.example/a\r\nb", InvalidEndpoint::Path),
            ("https://a.example/#a", InvalidEndpoint::Path),
        ] {
            assert_eq!(parse(url), Err(error), "{url}");
        }
    }
}
