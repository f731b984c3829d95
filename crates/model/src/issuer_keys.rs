//! Public keys of token issuers (JWK sets): inline, in a file, or at a server.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::action::Scheme;
use crate::address_class::AddressClass;
use crate::definition::{Definition, ManifestBuilder, TextForm, TextProblem, TextSchema};
use crate::server::{InvalidEndpoint, Server};

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

    /// Warns about plaintext and about special addresses, such as link-local ones.
    fn warn_about_risks(&self, builder: &mut ManifestBuilder<'_>) {
        let address: Option<IpAddr> = self.server.host.parse().ok();
        let is_loopback =
            self.server.host == "localhost" || address.is_some_and(|address| address.is_loopback());
        if self.server.scheme == Scheme::Http && !is_loopback {
            builder.warn(
                "is queried in plaintext: an attacker on the network path can have tokens accepted",
                "use https",
            );
        }
        if address.map(AddressClass::from_address) == Some(AddressClass::Special) {
            builder.warn(
                "is a special address: keys are fetched from it only if the operator permits it",
                "name the issuer's own server, or list the address in `leno control --jwks-allow`",
            );
        }
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

/// The fields of an issuer's keys.
#[derive(Definition)]
#[definition(
    builds = IssuerKeys,
    text_problem = problem_in_place_of_keys,
    cel("!has(self.refreshInterval) || has(self.url)", "refreshInterval requires url"),
    cel("!has(self.file) || self.file.startsWith('/')", "must be an absolute path in a cluster")
)]
struct IssuerKeyFields {
    /// The keys or their source.
    #[field(include)]
    keys: KeyField,
    /// Maximum time between two fetches from `url`.
    #[field(duration("1s", "24h"), absent = "`5m`")]
    refresh_interval: Option<Duration>,
}

/// The keys of an issuer, or their source, as written in manifests.
#[derive(Definition)]
#[definition(noun = "keys")]
enum KeyField {
    /// JWK set as JSON, as served at the issuer's `jwks_uri`; at most 64 KiB.
    #[field(text = JWK_SET)]
    Inline(String),
    /// Path of a file with the JWK set on the control plane's machine. The control plane watches the file for changes. A
    /// relative path starts at the document's directory. In a cluster, paths are absolute.
    #[field(text = FILE_PATH)]
    File(String),
    /// URL of the JWK set, the issuer's `jwks_uri`: `https://HOST[:PORT]/PATH`, or the same with `http`. The control plane
    /// fetches the set.
    #[field(text = JWKS_URL)]
    Url(String),
}

impl IssuerKeyFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<IssuerKeys> {
        let is_url = matches!(self.keys, KeyField::Url(_));
        let has_unused_interval = self.refresh_interval.is_some() && !is_url;
        if has_unused_interval {
            let hint = "remove it; files are watched";
            builder.reject_field("refreshInterval", "applies to `url` only", hint);
        }
        let keys = match self.keys {
            KeyField::Inline(jwk_set) => {
                builder.build_below("inline", |builder| build_inline_keys(&jwk_set, builder))
            }
            KeyField::File(path) => {
                let path = builder.build_below("file", |builder| builder.resolve_path(&path));
                path.map(KeySource::File).map(IssuerKeys::Source)
            }
            KeyField::Url(url) => {
                let refresh_interval = self.refresh_interval.unwrap_or(DEFAULT_REFRESH_INTERVAL);
                let key_server = KeyServer::parse(&url, refresh_interval).ok()?;
                builder.build_below("url", |builder| key_server.warn_about_risks(builder));
                Some(IssuerKeys::Source(KeySource::Server(key_server)))
            }
        };
        keys.filter(|_| !has_unused_interval)
    }
}

/// Builds inline keys, if the text has the form of a JWK set. Sidecars determine whether its keys are usable. Messages do
/// not quote the text, because it may contain private keys.
fn build_inline_keys(text: &str, builder: &mut ManifestBuilder<'_>) -> Option<IssuerKeys> {
    match find_jwk_set_problem(text) {
        None => Some(IssuerKeys::Inline(text.into())),
        Some(problem) => {
            builder.reject(problem, "copy the content of the issuer's `jwks_uri`");
            None
        }
    }
}

/// Returns the reason that a text is not a JWK set with a public key.
fn find_jwk_set_problem(text: &str) -> Option<String> {
    if text.len() > IssuerKeys::MAX_BYTES {
        let problem =
            format!("has {} bytes, of which {} are read", text.len(), IssuerKeys::MAX_BYTES);
        return Some(problem);
    }
    let jwk_set: Option<serde_json::Value> = serde_json::from_str(text).ok();
    let keys = jwk_set.as_ref().and_then(|jwk_set| jwk_set.get("keys")?.as_array());
    let Some(keys) = keys else {
        return Some("is not a JWK set, which is JSON with `keys`".to_owned());
    };
    let is_public_key = |key: &serde_json::Value| {
        let key_type = key.get("kty").and_then(serde_json::Value::as_str);
        matches!(key_type, Some("RSA" | "EC" | "OKP"))
    };
    let problem = "has no public key: only keys with the `kty` RSA, EC or OKP can verify tokens";
    (!keys.iter().any(is_public_key)).then(|| problem.to_owned())
}

/// Returns the problem of a text in place of the map: a JWK set, or a URL of a file.
fn problem_in_place_of_keys(text: &str) -> Option<TextProblem> {
    if text.trim_start().starts_with('{') {
        let hint = "write a map with the text as `inline`";
        return Some(TextProblem::new("is a text, not a map", hint));
    }
    let path = file_url_path(text)?;
    let hint = format!("write a map with its path: {{file: \"{path}\"}}");
    Some(TextProblem::new(format!("is {text:?}, not a map"), hint))
}

/// Checks the path of a file. A path that looks like a URL is rejected.
fn check_file_path(text: &str) -> Result<(), TextProblem> {
    if text.len() > MAX_FILE_PATH_BYTES {
        return Err(TextProblem::new("is too long", "use at most 4096 bytes"));
    }
    if Path::new(text).file_name().is_none() || text.contains(char::is_control) {
        return Err(TextProblem::new("is not the path of a file", "name one"));
    }
    let hint = match file_url_path(text) {
        Some(path) => format!("write the path alone: \"{path}\""),
        None if !text.contains("://") => return Ok(()),
        None if KeyServer::parse(text, DEFAULT_REFRESH_INTERVAL).is_ok() => {
            "write it as `url`".to_owned()
        }
        None => "write the path of a file, as in `/etc/leno/keys.json`".to_owned(),
    };
    Err(TextProblem::new("is a URL, not the path of a file", hint))
}

/// Checks the URL of a JWK set.
fn check_jwks_url(text: &str) -> Result<(), TextProblem> {
    let Err(reason) = KeyServer::parse(text, DEFAULT_REFRESH_INTERVAL) else { return Ok(()) };
    let hint = match (reason, file_url_path(text)) {
        (_, Some(path)) => format!("write its path as `file`: \"{path}\""),
        (InvalidEndpoint::Scheme, None) if text.starts_with(['/', '.']) => {
            "write the path of a file as `file`".to_owned()
        }
        _ => "correct it, as in `https://accounts.example.com/.well-known/jwks.json`".to_owned(),
    };
    Err(TextProblem::new(format!("is not a valid JWKS endpoint: {reason}"), hint))
}

/// Returns the path in a local `file` URL (RFC 8089), for a hint; `None` if the text is no such URL or the path is too
/// long or has characters that a hint would have to escape.
fn file_url_path(text: &str) -> Option<&str> {
    let (scheme, after_scheme) = text.split_once(':')?;
    let path = after_scheme
        .strip_prefix("//localhost")
        .or_else(|| after_scheme.strip_prefix("//"))
        .unwrap_or(after_scheme);
    let is_file = scheme.eq_ignore_ascii_case("file") && path.starts_with('/');
    let is_unescaped = |c: char| !c.is_control() && !matches!(c, '"' | '\\' | '`');
    let has_name = Path::new(path).file_name().is_some() && path.len() <= MAX_PATH_IN_HINT_BYTES;
    (is_file && has_name && path.chars().all(is_unescaped)).then_some(path)
}

/// A JWK set. The type that it builds checks it, because a message must not quote it.
const JWK_SET: TextSchema = TextSchema::new(IssuerKeys::MAX_BYTES, |_| Ok(()));
/// The path of a file.
const FILE_PATH: TextSchema = TextSchema::new(MAX_FILE_PATH_BYTES, check_file_path);
/// The URL of a JWK set. Its parts have bounds.
const JWKS_URL: TextSchema = TextSchema::new(2048, check_jwks_url).with_form(TextForm::Url);
/// Maximum length of the path of a file, as in Linux.
const MAX_FILE_PATH_BYTES: usize = 4096;
/// Maximum length of a path that a hint repeats.
const MAX_PATH_IN_HINT_BYTES: usize = 256;
/// The default refresh interval, as in Envoy.
const DEFAULT_REFRESH_INTERVAL: Duration = Duration::from_secs(300);
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
