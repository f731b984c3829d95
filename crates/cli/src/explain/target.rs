//! Parses the target, method and headers of the request to explain, as an HTTP client would send them.

use hyper::Uri;

/// The target of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExplainTarget {
    /// The host, without the port.
    pub(crate) host: String,
    /// The port; 80 if the URL has none.
    pub(crate) port: u16,
    /// The host and port, as in the `Host` header.
    pub(crate) authority: String,
    /// The path, without the query.
    pub(crate) path: String,
    /// The query, after the first `?`.
    pub(crate) query: Option<String>,
    /// True for a TCP connection, which has no path.
    pub(crate) is_tcp: bool,
}

impl ExplainTarget {
    /// Parses `http://host[:port][/path][?query]`, or `tcp://host:port`.
    ///
    /// # Errors
    /// A message for users, if the URL is invalid or not supported.
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        // Clients do not send the fragment.
        let url = url.split_once('#').map_or(url, |(before_fragment, _)| before_fragment);
        let usage_error =
            |problem: &str| format!("{problem}: use a URL such as http://orders.shop:8080/orders");
        if url.len() > MAX_URL_BYTES {
            return Err(usage_error("it is longer than sidecars accept"));
        }
        let uri: Uri = url.parse().map_err(|_| usage_error("it is not a URL"))?;
        match uri.scheme_str() {
            Some("http" | "tcp") => {}
            Some("https") => {
                return Err(
                    "sidecars cannot read a request inside the TLS of an application: use \
                            http://, and the sidecars encrypt it"
                        .to_owned(),
                );
            }
            _ => return Err(usage_error("it does not begin with http://")),
        }
        let is_tcp = uri.scheme_str() == Some("tcp");
        let authority = uri.authority().ok_or_else(|| usage_error("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(usage_error("it contains a user name"));
        }
        if authority.host().is_empty() {
            return Err(usage_error("it has no host"));
        }
        let port = match authority.port() {
            Some(port) => match port.as_u16() {
                0 => return Err(usage_error("the port is 0")),
                port => port,
            },
            None if authority.as_str().ends_with(':') => {
                return Err(usage_error("the port is empty"));
            }
            // `Uri` accepts other text as a port, but does not return it.
            None if authority.as_str().len() > authority.host().len() => {
                return Err(usage_error("the port is not a number up to 65535"));
            }
            None if is_tcp => return Err(TCP_USAGE.to_owned()),
            None => HTTP_PORT,
        };
        if is_tcp && (!matches!(uri.path(), "" | "/") || uri.query().is_some()) {
            return Err(TCP_USAGE.to_owned());
        }
        Ok(Self {
            host: authority.host().to_owned(),
            port,
            authority: authority.as_str().to_owned(),
            path: uri.path().to_owned(),
            query: uri.query().map(str::to_owned),
            is_tcp,
        })
    }

    /// Returns the parsed URL, without a fragment.
    pub(super) fn url(&self) -> String {
        let Self { authority, path, query, is_tcp, .. } = self;
        match (is_tcp, query) {
            (true, _) => format!("tcp://{authority}"),
            (false, None) => format!("http://{authority}{path}"),
            (false, Some(query)) => format!("http://{authority}{path}?{query}"),
        }
    }
}

/// Parses a method.
///
/// # Errors
/// A message for users, if the method is invalid or CONNECT.
pub(super) fn parse_method(text: &str) -> Result<String, String> {
    match text.parse::<hyper::Method>() {
        Ok(hyper::Method::CONNECT) => {
            Err("CONNECT is not supported: rules do not apply to requests inside a tunnel"
                .to_owned())
        }
        Ok(method) => Ok(method.to_string()),
        Err(_) => Err("use a method such as GET or POST".to_owned()),
    }
}

/// Parses `name: value`.
///
/// # Errors
/// A message for users, if the name or the value is invalid.
pub(super) fn parse_header(text: &str) -> Result<(String, String), String> {
    let usage_error = || "use `name: value`, for example 'x-user: jason'".to_owned();
    let (name, value) = text.split_once(':').ok_or_else(usage_error)?;
    let name: hyper::header::HeaderName = name.trim().parse().map_err(|_| usage_error())?;
    let value = value.trim();
    hyper::header::HeaderValue::from_str(value).map_err(|_| usage_error())?;
    Ok((name.to_string(), value.to_owned()))
}

const TCP_USAGE: &str = "use tcp://HOST:PORT for a TCP connection, such as tcp://redis.shop:6379";
/// The default port of `http` URLs (RFC 9110 section 4.2.1).
const HTTP_PORT: u16 = 80;
/// The maximum length of a URL, below the size limit of a request head.
const MAX_URL_BYTES: usize = 64 * 1024 - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed_as_clients_send_them() {
        for (url, host, port, path, query) in [
            ("http://a.b:9080/c/d?e=f", "a.b", 9080, "/c/d", Some("e=f")),
            ("http://a.b", "a.b", 80, "/", None),
            ("http://a.b?x", "a.b", 80, "/", Some("x")),
            ("http://A.b.svc.cluster.local./%2e#top", "A.b.svc.cluster.local.", 80, "/%2e", None),
            ("http://127.0.0.1:1/", "127.0.0.1", 1, "/", None),
            ("http://[::1]:2/", "[::1]", 2, "/", None),
        ] {
            let target = ExplainTarget::parse(url).expect(url);
            let parsed = (target.host.as_str(), target.port, target.path.as_str());
            assert_eq!(parsed, (host, port, path), "{url}");
            assert_eq!(target.query.as_deref(), query, "{url}");
        }
        let target = ExplainTarget::parse("http://a.b:9080/").unwrap();
        assert_eq!(target.authority, "a.b:9080");
    }

    #[test]
    fn a_connection_has_a_host_and_a_port_and_nothing_else() {
        let target = ExplainTarget::parse("tcp://redis.shop:6379").unwrap();
        assert!(target.is_tcp);
        assert_eq!((&*target.host, target.port), ("redis.shop", 6379));
        for url in ["tcp://redis.shop:6379", "http://a.b:9080/c/d?e=f", "http://a.b/"] {
            assert_eq!(ExplainTarget::parse(url).unwrap().url(), url);
        }
        for url in ["tcp://redis.shop", "tcp://redis.shop:6379/a", "tcp://redis.shop:6379?a"] {
            let error = ExplainTarget::parse(url).expect_err(url);
            assert!(error.contains("tcp://redis.shop:6379"), "{url}: {error}");
        }
    }

    #[test]
    fn other_urls_are_rejected_with_an_example() {
        for url in [
            "",
            "a.b",
            "a.b:9080/c",
            "/c",
            "ftp://a.b/",
            "http://",
            "http:///c",
            "http://a:0/",
            "http://a:65536/",
            "http://a:/",
            "http://a:b/",
            "http://u@a/",
            "http://a b/",
        ] {
            let error = ExplainTarget::parse(url).expect_err(url);
            assert!(error.contains("http://"), "{url}: {error}");
        }
        assert!(ExplainTarget::parse("https://a/").unwrap_err().contains("TLS"));
        let endless = format!("http://a/{}", "b".repeat(100_000));
        assert!(ExplainTarget::parse(&endless).is_err());
    }

    #[test]
    fn headers_and_methods_are_checked() {
        let header = |text| parse_header(text).ok();
        let pair = |name: &str, value: &str| Some((name.to_owned(), value.to_owned()));
        assert_eq!(header("X-User:  jason "), pair("x-user", "jason"));
        assert_eq!(header("a:"), pair("a", ""));
        assert_eq!(header("a: b: c"), pair("a", "b: c"));
        for invalid in ["", "a", ": b", "a b: c", "a: b\r\nc: d"] {
            assert_eq!(header(invalid), None, "{invalid}");
        }
        assert_eq!(parse_method("PATCH"), Ok("PATCH".to_owned()));
        assert!(parse_method("CONNECT").is_err());
        assert!(parse_method("").is_err());
        assert!(parse_method("G T").is_err());
    }
}
