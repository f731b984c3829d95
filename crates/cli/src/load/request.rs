//! Builds the requests of a load run, and selects its protocol, from the options of the command line.

use std::net::SocketAddr;

use anyhow::Context as _;
use leno_load::{LoadProtocol, LoadTarget, TargetForm};

use super::target::parse_authority;
use super::usage_error::UsageError;
use super::{HttpVersion, LoadArgs, body};

/// A request header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeaderOption {
    name: String,
    value: String,
}

/// Parses `name: value`.
///
/// # Errors
/// A message for users, if the text has no colon or no name.
pub(super) fn parse_header(text: &str) -> Result<HeaderOption, String> {
    let (name, value) = text.split_once(':').ok_or("use name:value")?;
    let (name, value) = (name.trim().to_owned(), value.trim().to_owned());
    match name.is_empty() {
        true => Err("use name:value".to_owned()),
        false => Ok(HeaderOption { name, value }),
    }
}

impl LoadArgs {
    /// Returns the protocol that the options select.
    ///
    /// # Errors
    /// [`UsageError`] if the options contradict each other.
    pub(super) fn protocol(&self) -> Result<LoadProtocol, UsageError> {
        let streams = self.streams.unwrap_or(1);
        match (self.http, self.grpc) {
            (Some(HttpVersion::Http1), true) => {
                Err(UsageError::new("gRPC requires HTTP/2: omit --http 1.1"))
            }
            (_, true) => Ok(LoadProtocol::Grpc { streams }),
            (Some(HttpVersion::Http2), false) => Ok(LoadProtocol::Http2 { streams }),
            (_, false) if self.streams.is_some() => {
                Err(UsageError::new("--streams requires --http 2 or --grpc"))
            }
            (_, false) => Ok(LoadProtocol::Http1),
        }
    }

    /// Builds a request for each target URL.
    ///
    /// # Errors
    /// If a name does not resolve, or a body cannot be read.
    pub(super) async fn build_requests(&self) -> anyhow::Result<Vec<LoadTarget>> {
        let proxy_address = match &self.proxy {
            None => None,
            Some(proxy) => {
                let authority = parse_authority(proxy)
                    .ok_or_else(|| UsageError::new("--proxy: use for example 127.0.0.1:8080"))?;
                Some(authority.resolve().await.context("the proxy")?)
            }
        };
        let body = self.read_body()?;
        let host_headers = self.header.iter().filter(|header| header.is_host());
        // A request has one host: of several headers, the last one wins.
        let host = host_headers.map(|header| header.value.as_str()).next_back();
        let method = match (&self.method, &body) {
            (Some(method), _) => method.as_str(),
            (None, Some(_)) => "POST",
            (None, None) => "GET",
        };
        let body = body.unwrap_or_default();
        let mut targets = Vec::with_capacity(self.targets.len());
        for weighted_url in &self.targets {
            let address: SocketAddr = match proxy_address {
                Some(proxy_address) => proxy_address,
                None => weighted_url.authority.resolve().await?,
            };
            let headers = self.header.iter().filter(|header| !header.is_host());
            let has_proxy = proxy_address.is_some();
            targets.push(LoadTarget {
                name: weighted_url.url.clone(),
                address,
                form: if has_proxy { TargetForm::Absolute } else { TargetForm::Origin },
                method: method.to_owned(),
                path: weighted_url.path.clone(),
                host: host.unwrap_or(&weighted_url.host).to_owned(),
                headers: headers
                    .map(|header| (header.name.clone(), header.value.clone()))
                    .collect(),
                body: body.clone(),
                weight: weighted_url.weight,
            });
        }
        Ok(targets)
    }

    fn read_body(&self) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(match (&self.body, &self.body_file, self.body_size) {
            (Some(text), _, _) => Some(text.clone().into_bytes()),
            (_, Some(path), _) => Some(body::read_body_file(path)?),
            (_, _, Some(size)) => Some(body::generate_body(size)),
            (None, None, None) => None,
        })
    }
}

impl HeaderOption {
    /// True if the header replaces the host of the URL.
    fn is_host(&self) -> bool {
        self.name.eq_ignore_ascii_case("host") || self.name == ":authority"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_parsed_with_optional_spaces() {
        for (text, name, value) in
            [("a:b", "a", "b"), ("X-A: b c", "X-A", "b c"), ("a:", "a", ""), ("a: b:c", "a", "b:c")]
        {
            let expected = HeaderOption { name: name.to_owned(), value: value.to_owned() };
            assert_eq!(parse_header(text), Ok(expected), "{text}");
        }
        assert!(parse_header("a").is_err());
        assert!(parse_header(": b").is_err());
    }
}
