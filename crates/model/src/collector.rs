//! Collectors: servers outside the mesh that receive spans, metrics and access log lines. Parses their URLs.

use std::fmt;
use std::marker::PhantomData;

use crate::definition::{Definition, ManifestBuilder, ManifestValue, Schema, TextForm, TextSchema};
use crate::server::{InvalidEndpoint, Server};

/// A collector's endpoint and protocol.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Collector {
    /// The protocol that the collector receives.
    pub protocol: CollectorProtocol,
    /// The address of the collector.
    pub server: Server,
    /// The path of the POST requests.
    pub path: String,
}

/// The protocol of a collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CollectorProtocol {
    /// OTLP over HTTP, as protobuf.
    OtlpHttp,
    /// OTLP over gRPC.
    OtlpGrpc,
    /// Zipkin v2 JSON.
    Zipkin,
}

/// A telemetry signal of OpenTelemetry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Signal {
    /// Spans of traces.
    Traces,
    /// Metrics of sidecars.
    Metrics,
    /// Access log lines.
    Logs,
}

impl CollectorProtocol {
    /// Returns the path that is used if the collector's URL has none.
    #[must_use]
    pub const fn default_path(self, signal: Signal) -> &'static str {
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

impl Collector {
    /// Parses `http://HOST:PORT[/PATH]`, or the same with `https`.
    ///
    /// # Errors
    /// [`InvalidEndpoint`] for any other text, and for a path that the protocol does not have.
    pub fn parse(
        signal: Signal,
        protocol: CollectorProtocol,
        url: &str,
    ) -> Result<Self, InvalidEndpoint> {
        let (server, path) = Server::parse_with_path(url)?;
        let is_path_byte = |byte: u8| byte.is_ascii_graphic() && !b"?#\"<>\\^`{|}".contains(&byte);
        let path = match (path, protocol) {
            ("" | "/", _) => protocol.default_path(signal),
            (path, _) if path == protocol.default_path(signal) => path,
            // The protocol buffer service determines the path of a gRPC call.
            (_, CollectorProtocol::OtlpGrpc) => return Err(InvalidEndpoint::Path),
            (path, _) if path.len() <= MAX_PATH_BYTES && path.bytes().all(is_path_byte) => path,
            _ => return Err(InvalidEndpoint::Path),
        };
        Ok(Self { protocol, server, path: path.to_owned() })
    }

    /// Parses the field `endpoint` of the current map, or rejects it.
    fn build_from(
        signal: Signal,
        protocol: CollectorProtocol,
        endpoint: &str,
        builder: &mut ManifestBuilder<'_>,
    ) -> Option<Self> {
        let reject = |reason: InvalidEndpoint| {
            let hint = match protocol {
                CollectorProtocol::OtlpHttp => "correct it, as in `http://127.0.0.1:4318`",
                CollectorProtocol::OtlpGrpc => "correct it, as in `http://127.0.0.1:4317`",
                CollectorProtocol::Zipkin => "correct it, as in `http://127.0.0.1:9411`",
            };
            let problem = format!("is not a valid endpoint: {reason}");
            builder.reject_text("endpoint", TextForm::Url, problem, hint);
        };
        Self::parse(signal, protocol, endpoint).map_err(reject).ok()
    }
}

/// A signal as a type, for the types of manifests that belong to one signal.
pub(crate) trait SignalType {
    /// The signal.
    const SIGNAL: Signal;
}

/// Spans.
pub(crate) struct Traces;

/// Metrics.
pub(crate) struct Metrics;

/// Access log lines.
pub(crate) struct Logs;

impl SignalType for Traces {
    const SIGNAL: Signal = Signal::Traces;
}

impl SignalType for Metrics {
    const SIGNAL: Signal = Signal::Metrics;
}

impl SignalType for Logs {
    const SIGNAL: Signal = Signal::Logs;
}

/// An OTLP collector of a signal.
pub(crate) struct OtlpCollector<S>(pub(crate) Collector, PhantomData<S>);

/// The fields of an OTLP collector.
#[derive(Definition)]
struct OtlpFields {
    /// URL of the collector: `http://HOST:PORT`, or `https://HOST:PORT` for TLS. A path is optional; the default path is
    /// `/v1/traces`, `/v1/metrics` or `/v1/logs`. A URL for gRPC has no path.
    #[field(text = ENDPOINT)]
    endpoint: String,
    /// Protocol: `http` is protobuf in HTTP/1.1.
    #[field(default = "http")]
    protocol: OtlpProtocol,
}

/// The protocol of an OTLP collector.
#[derive(Definition)]
enum OtlpProtocol {
    #[field(name = "http")]
    Http,
    #[field(name = "grpc")]
    Grpc,
}

impl<S: SignalType> Definition for OtlpCollector<S> {
    const SCHEMA: Schema = OtlpFields::SCHEMA;

    fn build(value: ManifestValue, builder: &mut ManifestBuilder<'_>) -> Option<Self> {
        let OtlpFields { endpoint, protocol } = OtlpFields::build(value, builder)?;
        let protocol = match protocol {
            OtlpProtocol::Http => CollectorProtocol::OtlpHttp,
            OtlpProtocol::Grpc => CollectorProtocol::OtlpGrpc,
        };
        let collector = Collector::build_from(S::SIGNAL, protocol, &endpoint, builder)?;
        Some(Self(collector, PhantomData))
    }
}

/// A Zipkin collector.
pub(crate) struct ZipkinCollector(pub(crate) Collector);

/// The fields of a Zipkin collector.
#[derive(Definition)]
#[definition(builds = ZipkinCollector)]
struct ZipkinFields {
    /// URL of the collector: `http://HOST:PORT`, or `https://HOST:PORT` for TLS. A path is optional; the default path is
    /// `/api/v2/spans`.
    #[field(text = ENDPOINT)]
    endpoint: String,
}

impl ZipkinFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<ZipkinCollector> {
        let (signal, protocol) = (Signal::Traces, CollectorProtocol::Zipkin);
        Collector::build_from(signal, protocol, &self.endpoint, builder).map(ZipkinCollector)
    }
}

/// Formats the collector's URL.
impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.server, self.path)
    }
}

/// The URL of a collector. [`Collector::parse`] checks it, because the valid paths depend on the protocol.
const ENDPOINT: TextSchema = TextSchema::bounded(MAX_ENDPOINT_BYTES).with_form(TextForm::Url);
/// The maximum length of a URL in bytes.
const MAX_ENDPOINT_BYTES: usize = 2048;
/// The maximum length of a path in bytes.
const MAX_PATH_BYTES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_parsed_and_errors_are_specific() {
        use CollectorProtocol::{OtlpGrpc, OtlpHttp, Zipkin};
        for (protocol, text, printed) in [
            (OtlpHttp, "http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            (OtlpHttp, "http://c.example:80/a/b", "http://c.example:80/a/b"),
            (Zipkin, "http://[::1]:9411/", "http://[::1]:9411/api/v2/spans"),
            (OtlpHttp, "https://c.example:4318", "https://c.example:4318/v1/traces"),
        ] {
            let collector = Collector::parse(Signal::Traces, protocol, text).unwrap();
            assert_eq!(collector.to_string(), printed);
            assert_eq!(Collector::parse(Signal::Traces, protocol, printed), Ok(collector));
        }
        let grpc = Collector::parse(Signal::Traces, OtlpGrpc, "http://localhost:4317").unwrap();
        assert_eq!(Collector::parse(Signal::Traces, OtlpGrpc, &grpc.to_string()), Ok(grpc));
        for (text, error) in [
            ("httpss://c:4318", InvalidEndpoint::Scheme),
            ("https://c", InvalidEndpoint::Port),
            ("c:4318", InvalidEndpoint::Scheme),
            ("http://:4318", InvalidEndpoint::Host),
            ("http://u@c:4318", InvalidEndpoint::User),
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
        for (signal, http_path, grpc_service) in [
            (Signal::Metrics, "/v1/metrics", "metrics.v1.MetricsService"),
            (Signal::Logs, "/v1/logs", "logs.v1.LogsService"),
        ] {
            let http_collector = Collector::parse(signal, OtlpHttp, "http://c:4318").unwrap();
            assert_eq!(http_collector.path, http_path);
            let grpc_collector = Collector::parse(signal, OtlpGrpc, "https://c:4317").unwrap();
            assert_eq!(
                grpc_collector.path,
                format!("/opentelemetry.proto.collector.{grpc_service}/Export")
            );
            // The gRPC path of another signal is rejected.
            let other_signal =
                Collector::parse(Signal::Traces, OtlpGrpc, &grpc_collector.to_string());
            assert_eq!(other_signal, Err(InvalidEndpoint::Path));
        }
    }
}
