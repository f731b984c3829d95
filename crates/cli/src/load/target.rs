//! Parses target URLs with weights from the command line, and resolves their hosts.

use anyhow::Context as _;
use hyper::Uri;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

/// A URL and its share of the requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WeightedUrl {
    /// The URL as given, without the weight.
    pub(super) url: String,
    /// The host and port to connect to.
    pub(super) authority: UrlAuthority,
    /// The value of the `Host` header: host and port as in the URL.
    pub(super) host: String,
    /// The path, including the query.
    pub(super) path: String,
    /// The share of the requests, relative to the weights of the other URLs.
    pub(super) weight: u32,
}

/// A DNS name or an IP address, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UrlAuthority {
    name: String,
    port: u16,
}

/// Parses `http://host:port/path=WEIGHT`.
///
/// # Errors
/// A message for users, if the URL is invalid or not supported.
pub(super) fn parse_target(text: &str) -> Result<WeightedUrl, String> {
    let (url, weight) = split_weight(text)?;
    if url.starts_with("https://") {
        return Err("TLS is not supported: use an http:// URL".to_owned());
    }
    let full_url = match url.contains("://") {
        true => url.to_owned(),
        false => format!("http://{url}"),
    };
    let uri: Uri = full_url.parse().map_err(|error| format!("not a URL: {error}"))?;
    let invalid = |problem: &str| format!("{problem}: use for example http://127.0.0.1:8080/path");
    if uri.scheme_str() != Some("http") {
        return Err(invalid("not http"));
    }
    let authority = uri.authority().ok_or_else(|| invalid("no host"))?;
    if authority.as_str().contains('@') {
        return Err("a URL with a user is not supported: use -H 'authorization: …'".to_owned());
    }
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    Ok(WeightedUrl {
        url: full_url.clone(),
        authority: parse_authority(authority.as_str()).ok_or_else(|| invalid("no host"))?,
        host: authority.as_str().to_owned(),
        // `http://host?query` has no path, but a request requires one.
        path: if path.starts_with('?') { format!("/{path}") } else { path.to_owned() },
        weight,
    })
}

/// Parses `name:port`, `address:port` or `[address]:port`; port 80 by default.
pub(super) fn parse_authority(text: &str) -> Option<UrlAuthority> {
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, port.parse().ok()?),
        _ => (text, HTTP_PORT),
    };
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    (!name.is_empty()).then(|| UrlAuthority { name: name.to_owned(), port })
}

impl UrlAuthority {
    /// Resolves the name. Of several addresses, returns the first that accepts a connection, or else the first.
    ///
    /// # Errors
    /// If the name does not resolve.
    pub(super) async fn resolve(&self) -> anyhow::Result<SocketAddr> {
        let Self { name, port } = self;
        let addresses: Vec<SocketAddr> = lookup_host((name.as_str(), *port))
            .await
            .with_context(|| format!("cannot find `{name}`"))?
            .collect();
        if let [_, _, ..] = addresses.as_slice() {
            for address in &addresses {
                if let Ok(Ok(_)) = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
                    return Ok(*address);
                }
            }
        }
        addresses.first().copied().with_context(|| format!("`{name}` has no address"))
    }
}

/// Splits off `=WEIGHT`; the weight is 1 without it. A query parameter such as `?id=7` has the same form, so
/// after a query parameter only a second `=`, as in `?id=7=2`, begins a weight.
fn split_weight(text: &str) -> Result<(&str, u32), String> {
    let Some((url, digits)) = text.rsplit_once('=') else {
        return Ok((text, 1));
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let is_query_value = match url.split_once('?') {
        Some((_, query)) => !query.rsplit('&').next().unwrap_or_default().contains('='),
        None => false,
    };
    if !is_number || is_query_value {
        return Ok((text, 1));
    }
    let weight = digits.parse().map_err(|_| format!("the weight {digits} is too large"))?;
    Ok((url, weight))
}

/// The default port of `http` URLs (RFC 9110 section 4.2.1).
const HTTP_PORT: u16 = 80;

/// The time for one of several addresses to accept a connection before the next one is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed_with_and_without_weights() {
        for (text, host, path, weight) in [
            ("http://127.0.0.1:8080/", "127.0.0.1:8080", "/", 1),
            ("127.0.0.1:8080", "127.0.0.1:8080", "/", 1),
            ("http://a=3", "a", "/", 3),
            ("http://a:80/b/c=10", "a:80", "/b/c", 10),
            ("http://a/p?id=0", "a", "/p?id=0", 1),
            ("http://a/p?id=0=5", "a", "/p?id=0", 5),
            ("http://a/p?x=1&id=0", "a", "/p?x=1&id=0", 1),
            ("http://a/p?x=1&id=0=2", "a", "/p?x=1&id=0", 2),
            ("http://a/p?t=YWI=", "a", "/p?t=YWI=", 1),
            ("http://a?x=1", "a", "/?x=1", 1),
            ("http://[::1]:9/p=0", "[::1]:9", "/p", 0),
        ] {
            let target = parse_target(text).expect(text);
            let parsed = (target.host.as_str(), target.path.as_str(), target.weight);
            assert_eq!(parsed, (host, path, weight), "{text}");
        }
    }

    #[test]
    fn unsupported_urls_are_rejected() {
        for text in [
            "https://a/",
            "ftp://a/",
            "http:///p",
            "http://",
            "",
            "http://u:p@a/",
            "http://a b/",
            "http://a:b/",
            "http://a/=99999999999",
        ] {
            assert!(parse_target(text).is_err(), "{text}");
        }
    }

    #[test]
    fn authorities_are_parsed_with_and_without_ports() {
        for (text, name, port) in [
            ("a", "a", 80),
            ("a:81", "a", 81),
            ("127.0.0.1:81", "127.0.0.1", 81),
            ("[::1]", "::1", 80),
            ("[::1]:81", "::1", 81),
        ] {
            let expected = UrlAuthority { name: name.to_owned(), port };
            assert_eq!(parse_authority(text), Some(expected), "{text}");
        }
        assert_eq!(parse_authority(":80"), None);
        assert_eq!(parse_authority("a:b"), None);
    }
}
