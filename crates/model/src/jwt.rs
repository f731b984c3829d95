//! JSON web tokens that requests show: whose are accepted, and what becomes of their claims.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::route::RequestMatch;
use crate::server::{InvalidEndpoint, Server};

/// Which tokens requests may, or must, show.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JwtValidation {
    /// Whose tokens are accepted; at least one, each name once.
    pub issuers: Vec<JwtIssuer>,
    /// Which requests must show one, any of these.
    pub required: Required,
}

/// Which requests must show a token. One that shows a token that is not accepted is denied anyway.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Required {
    /// None.
    Never,
    /// All.
    Always,
    /// Any of these; at least one.
    Of(Vec<RequestMatch>),
}

/// Who issues tokens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JwtIssuer {
    /// What its tokens say of themselves as `iss`.
    pub issuer: String,
    /// Whom they must be for, any of these; anybody when empty.
    pub audiences: Vec<String>,
    /// Its public keys.
    pub keys: IssuerKeys,
    /// Where requests show them; at least one.
    pub places: Vec<JwtPlace>,
    /// How far clocks may be apart.
    pub leeway: Duration,
    /// Tokens without a time of expiration are rejected.
    pub requires_expiration: bool,
    /// The greatest age of a token, counted from its issue (`iat`); any when absent.
    pub max_age: Option<Duration>,
    /// Claims that the application is told, each in a header of its own.
    pub forwards: Vec<ClaimHeader>,
    /// Whether the application gets the token itself.
    pub passes_token: bool,
}

impl JwtIssuer {
    /// The most that clocks may be apart.
    pub const LEEWAY_MAX: Duration = Duration::from_secs(3600);
    /// The shortest `max_age`.
    pub const MAX_AGE_MIN: Duration = Duration::from_secs(1);
    /// The longest `max_age`.
    pub const MAX_AGE_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
}

/// The public keys of an issuer, or where they are.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum IssuerKeys {
    /// These: a JWK set.
    Set(Arc<str>),
    /// The control plane reads them there. No sidecar is told that.
    At(KeySource),
    /// What sidecars are told until the control plane has read them: no token of the issuer is
    /// accepted.
    Awaited,
}

impl IssuerKeys {
    /// The most bytes of a set: more than issuers serve.
    pub const BYTES_MAX: usize = 64 << 10;

    /// Where they are read, if they are not here.
    #[must_use]
    pub fn source(&self) -> Option<&KeySource> {
        match self {
            Self::At(source) => Some(source),
            Self::Set(_) | Self::Awaited => None,
        }
    }
}

/// Where the control plane reads a JWK set.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeySource {
    /// A file where the control plane is.
    File(PathBuf),
    /// A server outside the mesh.
    Server(KeyServer),
}

/// A server that gives a JWK set.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyServer {
    /// Where it listens.
    pub server: Server,
    /// The path that is asked for, with a query where there is one.
    pub path: String,
    /// How often it is asked, at the least.
    pub refresh: Duration,
}

impl KeyServer {
    /// The shortest time between two questions.
    pub const REFRESH_MIN: Duration = Duration::from_secs(1);
    /// The longest time.
    pub const REFRESH_MAX: Duration = Duration::from_secs(24 * 3600);

    /// Reads `https://HOST[:PORT]/PATH`, or the same with `http`.
    ///
    /// # Errors
    /// [`InvalidEndpoint`] for anything else.
    pub fn parse(url: &str, refresh: Duration) -> Result<Self, InvalidEndpoint> {
        let (server, path) = Server::parse_with_default_port(url)?;
        let path = if path.is_empty() { "/" } else { path };
        let visible = |byte: u8| byte.is_ascii_graphic() && !b"#\"<>\\^`{|}".contains(&byte);
        if path.len() > PATH_BYTES_MAX || !path.bytes().all(visible) {
            return Err(InvalidEndpoint::Path);
        }
        Ok(Self { server, path: path.to_owned(), refresh })
    }
}

/// Its path, or its URL.
impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Server(KeyServer { server, path, .. }) => write!(f, "{server}{path}"),
        }
    }
}

/// Where a request shows a token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum JwtPlace {
    /// In a header, behind a prefix, such as `Bearer `.
    Header {
        /// Its name, in lower case.
        name: String,
        /// What stands before the token; compared without regard to case.
        prefix: String,
    },
    /// In a parameter of the query.
    Query(String),
}

/// A claim that the application is told. What clients send under the header's name goes no further.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimHeader {
    /// The claim; dots lead into objects.
    pub claim: String,
    /// The header, in lower case.
    pub header: String,
}

/// A claim and the values it may have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimMatch {
    /// The claim; dots lead into objects.
    pub name: String,
    /// One of these is its value, or an element of it; at least one.
    pub values: Vec<String>,
}

/// More than any URL of a JWK set has.
const PATH_BYTES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_of_keys_is_a_url_with_or_without_a_port() {
        let parse = |url: &str| {
            KeyServer::parse(url, Duration::from_secs(1))
                .map(|it| KeySource::Server(it).to_string())
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
