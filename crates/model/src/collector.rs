//! Collectors: where spans, metrics and lines of the access log are sent, and what is spoken there.

use std::fmt;

use crate::action::Scheme;

/// Where something is told, and what is spoken there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Collector {
    /// What is spoken.
    pub protocol: CollectorProtocol,
    /// Whether that is inside TLS.
    pub scheme: Scheme,
    /// An address or a name, IPv6 without its brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The path that is posted to.
    pub path: String,
}

/// What a collector speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CollectorProtocol {
    /// OTLP in HTTP, as protobuf.
    OtlpHttp,
    /// OTLP in gRPC.
    OtlpGrpc,
    /// JSON of Zipkin's second version.
    Zipkin,
}

/// What is told, by OpenTelemetry's word for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Signal {
    /// Spans.
    Traces,
    /// What is counted.
    Metrics,
    /// Lines of the access log.
    Logs,
}

impl CollectorProtocol {
    /// Where it is posted to, unless an endpoint says otherwise.
    #[must_use]
    pub const fn path(self, signal: Signal) -> &'static str {
        match (self, signal) {
            (Self::OtlpHttp, Signal::Traces) => "/v1/traces",
            (Self::OtlpHttp, Signal::Metrics) => "/v1/metrics",
            (Self::OtlpHttp, Signal::Logs) => "/v1/logs",
            (Self::OtlpGrpc, Signal::Traces) => {
                "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
            }
            (Self::OtlpGrpc, Signal::Metrics) => {
                "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
            }
            (Self::OtlpGrpc, Signal::Logs) => {
                "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
            }
            (Self::Zipkin, _) => "/api/v2/spans",
        }
    }
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
    /// It has no port.
    #[error("an endpoint needs a port, such as `:4318`")]
    Port,
    /// It has a path where there is none, or one that is none.
    #[error("a path is of visible characters without `?` and `#`, and gRPC has none")]
    Path,
}

impl Collector {
    /// Reads `http://HOST:PORT[/PATH]`, or the same with `https`.
    ///
    /// # Errors
    /// [`InvalidEndpoint`] for anything else.
    pub fn parse(
        signal: Signal,
        protocol: CollectorProtocol,
        url: &str,
    ) -> Result<Self, InvalidEndpoint> {
        let (scheme, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (Scheme::Http, rest),
            (None, Some(rest)) => (Scheme::Https, rest),
            (None, None) => return Err(InvalidEndpoint::Scheme),
        };
        let slash = rest.find('/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at(slash);
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or(InvalidEndpoint::Host)?;
                let host: std::net::Ipv6Addr = host.parse().map_err(|_| InvalidEndpoint::Host)?;
                (host.to_string(), port.strip_prefix(':'))
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host.to_owned(), Some(port)),
                None => (authority.to_owned(), None),
            },
        };
        let named = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
        if host.is_empty() || host.len() > HOST_BYTES_MAX || !host.bytes().all(named) {
            return Err(InvalidEndpoint::Host);
        }
        let port = port.filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
        let port: u16 = port.and_then(|port| port.parse().ok()).ok_or(InvalidEndpoint::Port)?;
        if port == 0 {
            return Err(InvalidEndpoint::Port);
        }
        let visible = |byte: u8| byte.is_ascii_graphic() && !b"?#\"<>\\^`{|}".contains(&byte);
        let path = match (path, protocol) {
            ("" | "/", _) => protocol.path(signal),
            (path, _) if path == protocol.path(signal) => path,
            (_, CollectorProtocol::OtlpGrpc) => return Err(InvalidEndpoint::Path),
            (path, _) if path.len() <= PATH_BYTES_MAX && path.bytes().all(visible) => path,
            _ => return Err(InvalidEndpoint::Path),
        };
        Ok(Self { protocol, scheme, host, port, path: path.to_owned() })
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
impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme.as_str(), self.authority(), self.path)
    }
}

/// As long as names may be in the DNS (RFC 1035 §2.3.4).
const HOST_BYTES_MAX: usize = 253;
/// More than collectors have.
const PATH_BYTES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_and_what_is_wrong_is_named() {
        use CollectorProtocol::{OtlpGrpc, OtlpHttp, Zipkin};
        for (protocol, text, shown) in [
            (OtlpHttp, "http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            (OtlpHttp, "http://c.example:80/a/b", "http://c.example:80/a/b"),
            (Zipkin, "http://[::1]:9411/", "http://[::1]:9411/api/v2/spans"),
            (OtlpHttp, "https://c.example:4318", "https://c.example:4318/v1/traces"),
        ] {
            let collector = Collector::parse(Signal::Traces, protocol, text).unwrap();
            assert_eq!(collector.to_string(), shown);
            assert_eq!(Collector::parse(Signal::Traces, protocol, shown), Ok(collector));
        }
        let grpc = Collector::parse(Signal::Traces, OtlpGrpc, "http://localhost:4317").unwrap();
        assert_eq!(Collector::parse(Signal::Traces, OtlpGrpc, &grpc.to_string()), Ok(grpc));
        for (text, error) in [
            ("httpss://c:4318", InvalidEndpoint::Scheme),
            ("https://c", InvalidEndpoint::Port),
            ("c:4318", InvalidEndpoint::Scheme),
            ("http://:4318", InvalidEndpoint::Host),
            ("http://u@c:4318", InvalidEndpoint::Host),
            ("http://[c]:4318", InvalidEndpoint::Host),
            ("http://c", InvalidEndpoint::Port),
            ("http://c:0", InvalidEndpoint::Port),
            ("http://c:+1", InvalidEndpoint::Port),
            ("http://c:99999", InvalidEndpoint::Port),
            ("http://c:1/a", InvalidEndpoint::Path),
        ] {
            assert_eq!(Collector::parse(Signal::Traces, OtlpGrpc, text), Err(error), "{text}");
        }
        for path in ["/a b", "/a?b", "/a\r\nx: y", "/\u{e9}"] {
            let url = format!("http://c:1{path}");
            assert_eq!(
                Collector::parse(Signal::Traces, OtlpHttp, &url),
                Err(InvalidEndpoint::Path),
                "{path}"
            );
        }
    }

    #[test]
    fn each_signal_has_a_path_of_its_own() {
        use CollectorProtocol::{OtlpGrpc, OtlpHttp};
        for (signal, http, grpc) in [
            (Signal::Metrics, "/v1/metrics", "metrics.v1.MetricsService"),
            (Signal::Logs, "/v1/logs", "logs.v1.LogsService"),
        ] {
            let over_http = Collector::parse(signal, OtlpHttp, "http://c:4318").unwrap();
            assert_eq!(over_http.path, http);
            let over_grpc = Collector::parse(signal, OtlpGrpc, "https://c:4317").unwrap();
            assert_eq!(over_grpc.path, format!("/opentelemetry.proto.collector.{grpc}/Export"));
            // That of another signal is none of this one.
            let other = Collector::parse(Signal::Traces, OtlpGrpc, &over_grpc.to_string());
            assert_eq!(other, Err(InvalidEndpoint::Path));
        }
    }
}
