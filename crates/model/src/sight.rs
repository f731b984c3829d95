//! What operators see of single requests: which are traced and logged, and where that goes.

use std::fmt;

use crate::action::Scheme;
use crate::log_template::LogTemplate;

/// What operators see of single requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Sight {
    /// Which are traced; none when absent.
    pub tracing: Option<Tracing>,
    /// Which are logged; what each sidecar was started with when absent.
    pub access_log: Option<AccessLog>,
}

/// Which requests are traced, and where their spans go.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tracing {
    /// How many of the traces that begin in the mesh.
    pub sampling: Sampling,
    /// Whether a request that failed leaves a span although its trace is not sampled.
    pub errors: bool,
    /// How the context of a trace is written that begins in the mesh.
    pub begins: ContextForm,
    /// Where spans go.
    pub collector: Collector,
}

/// Which requests are logged, and how.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AccessLog {
    /// How many of those that did not fail.
    pub sampling: Sampling,
    /// Whether all are logged that failed.
    pub errors: bool,
    /// How a line is written.
    pub form: LogForm,
}

/// How a line of the access log is written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LogForm {
    /// As one object of JSON.
    Json,
    /// By a template.
    Template(LogTemplate),
}

impl AccessLog {
    /// Every request, as JSON.
    #[must_use]
    pub fn json() -> Self {
        Self { sampling: Sampling::ALL, errors: true, form: LogForm::Json }
    }
}

/// A share of requests, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sampling(u32);

impl Sampling {
    /// All of them.
    pub const ALL: Self = Self(MILLION);
    /// One of a hundred.
    pub const DEFAULT: Self = Self(MILLION / 100);

    /// So many of a million; `None` beyond all of them.
    #[must_use]
    pub const fn of_millionths(millionths: u32) -> Option<Self> {
        if millionths <= MILLION { Some(Self(millionths)) } else { None }
    }

    /// So many of a million.
    #[must_use]
    pub const fn millionths(self) -> u32 {
        self.0
    }

    /// Reads a percentage, such as `1%` or `0.05%`, with at most four decimals.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let number = text.strip_suffix('%')?;
        let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str, most| {
            (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !digits(whole, 3) || !digits(decimals, 4) {
            return None;
        }
        let whole: u32 = whole.parse().ok()?;
        let decimals: u32 = format!("{decimals:0<4}").parse().ok()?;
        Self::of_millionths(whole.checked_mul(MILLION / 100)?.checked_add(decimals)?)
    }

    /// Whether a request is one of them, by a random number.
    #[must_use]
    pub fn takes(self, draw: u64) -> bool {
        (u128::from(draw) * u128::from(MILLION)) >> 64 < u128::from(self.0)
    }
}

/// As it is read.
impl fmt::Display for Sampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, decimals) = (self.0 / (MILLION / 100), self.0 % (MILLION / 100));
        match decimals {
            0 => write!(f, "{whole}%"),
            _ => write!(f, "{whole}.{}%", format!("{decimals:04}").trim_end_matches('0')),
        }
    }
}

/// How the context of a trace is written in the headers of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ContextForm {
    /// `traceparent`, as the W3C has it.
    W3c,
    /// `b3`, in one header.
    B3,
    /// `X-B3-TraceId` and its siblings.
    B3Multi,
}

impl ContextForm {
    /// All of them, with the words of manifests.
    pub const ALL: &'static [(&'static str, Self)] =
        &[("w3c", Self::W3c), ("b3", Self::B3), ("b3multi", Self::B3Multi)];
}

/// Where spans go, and what is spoken there.
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

impl CollectorProtocol {
    /// Where spans are posted to, unless an endpoint says otherwise.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::OtlpHttp => "/v1/traces",
            Self::OtlpGrpc => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            Self::Zipkin => "/api/v2/spans",
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
    pub fn parse(protocol: CollectorProtocol, url: &str) -> Result<Self, InvalidEndpoint> {
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
            ("" | "/", _) => protocol.path(),
            (path, _) if path == protocol.path() => path,
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

const MILLION: u32 = 1_000_000;
/// As long as names may be in the DNS (RFC 1035 §2.3.4).
const HOST_BYTES_MAX: usize = 253;
/// More than collectors have.
const PATH_BYTES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_read_exactly_and_written_as_they_are_read() {
        for (text, millionths) in [
            ("0%", 0),
            ("1%", 10_000),
            ("100%", 1_000_000),
            ("0.05%", 500),
            ("12.5%", 125_000),
            ("0.0001%", 1),
        ] {
            let sampling = Sampling::parse(text).unwrap();
            assert_eq!(sampling.millionths(), millionths, "{text}");
            assert_eq!(sampling.to_string(), text);
        }
        for bad in ["", "1", "%", "101%", "100.0001%", "-1%", "1 %", ".5%", "5.%", "0.00001%"] {
            assert_eq!(Sampling::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_share_takes_what_it_says() {
        let one = Sampling::DEFAULT;
        assert!(one.takes(0) && !one.takes(u64::MAX));
        assert!(one.takes(u64::MAX / 100 - 1) && !one.takes(u64::MAX / 100 + 1));
        let none = Sampling::of_millionths(0).unwrap();
        assert!(!none.takes(0) && Sampling::ALL.takes(u64::MAX));
    }

    #[test]
    fn endpoints_are_read_and_what_is_wrong_is_named() {
        use CollectorProtocol::{OtlpGrpc, OtlpHttp, Zipkin};
        for (protocol, text, shown) in [
            (OtlpHttp, "http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            (OtlpHttp, "http://c.example:80/a/b", "http://c.example:80/a/b"),
            (Zipkin, "http://[::1]:9411/", "http://[::1]:9411/api/v2/spans"),
            (OtlpHttp, "https://c.example:4318", "https://c.example:4318/v1/traces"),
        ] {
            let collector = Collector::parse(protocol, text).unwrap();
            assert_eq!(collector.to_string(), shown);
            assert_eq!(Collector::parse(protocol, shown), Ok(collector));
        }
        let grpc = Collector::parse(OtlpGrpc, "http://localhost:4317").unwrap();
        assert_eq!(Collector::parse(OtlpGrpc, &grpc.to_string()), Ok(grpc));
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
            assert_eq!(Collector::parse(OtlpGrpc, text), Err(error), "{text}");
        }
        for path in ["/a b", "/a?b", "/a\r\nx: y", "/\u{e9}"] {
            let url = format!("http://c:1{path}");
            assert_eq!(Collector::parse(OtlpHttp, &url), Err(InvalidEndpoint::Path), "{path}");
        }
    }
}
