//! Sends one export request to an OpenTelemetry or Zipkin collector, over HTTP/1.1 or as a unary gRPC call.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue, RETRY_AFTER, TE};
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper_util::rt::TokioIo;
use leno_model::{Collector, CollectorProtocol, Scheme};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::exchange::drive_exchange;
use crate::servers::{Connector, TlsSessionError, TlsSessions, connect_server};
use crate::{message, otlp, retry_info};

/// An export request.
#[derive(Debug)]
pub struct ExportRequest {
    /// The content type of the body over HTTP/1.1; gRPC requests always have `application/grpc`.
    pub content_type: &'static str,
    /// The encoded body.
    pub bytes: Vec<u8>,
    /// The number of spans, points or records in the body.
    pub count: u64,
}

impl ExportRequest {
    /// Creates an OTLP request from an encoded body and the number of its items.
    #[must_use]
    pub fn new_otlp((bytes, count): (Vec<u8>, u64)) -> Self {
        Self { content_type: "application/x-protobuf", bytes, count }
    }
}

/// The spans, points or records of an accepted request that the collector rejected.
#[derive(Debug, Default)]
pub struct RejectedItems {
    /// The number of rejected spans, points or records; 0 if all were accepted.
    pub count: u64,
    /// The collector's explanation; may be empty.
    pub reason: String,
}

/// The reason why an export request failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The collector at this authority (host and port) is unreachable.
    #[error("the collector at {0} cannot be reached: {1}")]
    Unreachable(String, std::io::Error),
    /// The collector did not respond in time.
    #[error("the collector did not respond in time")]
    TimedOut,
    /// The collector cannot be verified, or does not support TLS.
    #[error("TLS with the collector failed: {0}")]
    Tls(#[from] TlsSessionError),
    /// The collector uses another protocol than configured.
    #[error("the collector does not speak the protocol of `export` in the MeshConfig: {0}")]
    Protocol(String),
    /// The connection closed or failed before the response was complete.
    #[error("the connection to the collector broke: {0}")]
    ConnectionLost(String),
    /// The collector responded with this HTTP status, a text, and optionally a retry delay.
    #[error("the collector responded with status {0}: {1}")]
    Status(u16, String, Option<Duration>),
    /// The collector responded with this gRPC status code (a decimal number), a text, and optionally a retry delay.
    #[error("the collector responded with gRPC status {0}: {1}")]
    Grpc(String, String, Option<Duration>),
}

impl ExportError {
    /// Returns the retry delay that the collector requests, if any.
    pub(crate) fn retry_delay(&self) -> Option<Duration> {
        match self {
            Self::Status(_, _, retry_delay) | Self::Grpc(_, _, retry_delay) => *retry_delay,
            _ => None,
        }
    }

    /// Returns true if the error concerns only this request: a request with other items may succeed.
    pub(crate) fn concerns_only_request(&self) -> bool {
        match self {
            // Bad Request, Content Too Large, Unprocessable Content (RFC 9110 §15.5).
            Self::Status(status, ..) => matches!(status, 400 | 413 | 422),
            Self::Grpc(status, _, retry_delay) => match status.as_str() {
                // `INVALID_ARGUMENT`.
                "3" => true,
                // `RESOURCE_EXHAUSTED` without a retry delay: the request is too large.
                "8" => retry_delay.is_none(),
                _ => false,
            },
            _ => false,
        }
    }

    /// Returns true if a retry of the same request may succeed.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable(..) | Self::TimedOut | Self::ConnectionLost(_) => true,
            // OTLP specification, "Retryable Response Codes".
            Self::Status(status, ..) => matches!(status, 429 | 502 | 503 | 504),
            Self::Grpc(status, _, retry_delay) => match status.as_str() {
                // `CANCELLED`, `DEADLINE_EXCEEDED`, `ABORTED`, `OUT_OF_RANGE`, `UNAVAILABLE`, `DATA_LOSS`.
                "1" | "4" | "10" | "11" | "14" | "15" => true,
                // `RESOURCE_EXHAUSTED` is retryable only with a retry delay.
                "8" => retry_delay.is_some(),
                _ => false,
            },
            // These errors last until the configuration or the collector changes.
            Self::Tls(_) | Self::Protocol(_) => false,
        }
    }
}

/// Sends an export request. If the collector accepts it, returns the items that it rejected nevertheless.
pub(crate) async fn send_export(
    collector: &Collector,
    export_request: &ExportRequest,
    connector: &impl Connector,
    sessions: &TlsSessions,
) -> Result<RejectedItems, ExportError> {
    let unreachable = |error| ExportError::Unreachable(collector.server.authority(), error);
    let Collector { server, protocol, .. } = collector;
    let tcp = connect_server(server, connector).await.map_err(unreachable)?;
    let alpn_protocol: &[u8] = match protocol {
        CollectorProtocol::OtlpGrpc => b"h2",
        CollectorProtocol::OtlpHttp | CollectorProtocol::Zipkin => b"http/1.1",
    };
    match server.scheme {
        Scheme::Http => send_over(collector, tcp, export_request).await,
        Scheme::Https => {
            let tls_stream = sessions.open_session(server, alpn_protocol, tcp).await?;
            send_over(collector, tls_stream, export_request).await
        }
    }
}

/// Sends the request over an open connection with the protocol of the collector.
async fn send_over<S>(
    collector: &Collector,
    stream: S,
    export_request: &ExportRequest,
) -> Result<RejectedItems, ExportError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    match collector.protocol {
        CollectorProtocol::OtlpGrpc => send_grpc(collector, stream, &export_request.bytes)
            .await
            .map(|response| otlp::parse_rejected(&response)),
        CollectorProtocol::OtlpHttp => send_http1(collector, stream, export_request)
            .await
            .map(|response| otlp::parse_rejected(&response)),
        CollectorProtocol::Zipkin => {
            send_http1(collector, stream, export_request).await.map(|_| RejectedItems::default())
        }
    }
}

/// Sends the request over HTTP/1.1, and returns the body of the response.
async fn send_http1<S>(
    collector: &Collector,
    stream: S,
    export_request: &ExportRequest,
) -> Result<Bytes, ExportError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(protocol_error)?;
    let request_body = Full::new(Bytes::copy_from_slice(&export_request.bytes));
    let request = Request::post(&collector.path)
        .header(HOST, collector.server.authority())
        .header(CONTENT_TYPE, export_request.content_type)
        .body(request_body)
        .map_err(protocol_error)?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(classify_http1_error)?;
        let status = response.status();
        let retry_delay = response.headers().get(RETRY_AFTER).and_then(parse_retry_after);
        let limited_body = Limited::new(response.into_body(), message::MAX_RESPONSE_BYTES);
        let content = limited_body.collect().await.map_err(protocol_error)?.to_bytes();
        match status.is_success() {
            true => Ok(content),
            false => {
                Err(ExportError::Status(status.as_u16(), sanitize_text(&content), retry_delay))
            }
        }
    };
    drive_exchange(connection, exchange, classify_http1_error).await
}

/// Makes a unary call (gRPC over HTTP/2, `PROTOCOL-HTTP2.md`), and returns the message of the response.
async fn send_grpc<S>(
    collector: &Collector,
    stream: S,
    message_content: &[u8],
) -> Result<Bytes, ExportError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (client, connection) = h2::client::handshake(stream).await.map_err(protocol_error)?;
    let request = Request::post(collector.to_string())
        .version(http::Version::HTTP_2)
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .body(())
        .map_err(protocol_error)?;
    let exchange = async {
        let mut client = client.ready().await.map_err(classify_http2_error)?;
        let (response, mut request_stream) =
            client.send_request(request, false).map_err(classify_http2_error)?;
        request_stream
            .send_data(message::add_prefix(message_content), true)
            .map_err(classify_http2_error)?;
        let (response_head, mut body) = response.await.map_err(classify_http2_error)?.into_parts();
        if !response_head.status.is_success() {
            let retry_delay = response_head.headers.get(RETRY_AFTER).and_then(parse_retry_after);
            return Err(ExportError::Status(
                response_head.status.as_u16(),
                String::new(),
                retry_delay,
            ));
        }
        let mut message_bytes = BytesMut::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk.map_err(classify_http2_error)?;
            body.flow_control().release_capacity(chunk.len()).map_err(protocol_error)?;
            message::append_part(&mut message_bytes, &chunk).map_err(protocol_error)?;
        }
        // A response without trailers has its status in the headers (`Trailers-Only`).
        let trailers = body.trailers().await.map_err(classify_http2_error)?.unwrap_or_default();
        let status_field = |name: &str| {
            header_text(&trailers, name).or_else(|| header_text(&response_head.headers, name))
        };
        match status_field("grpc-status").as_deref() {
            // Status OK counts as success even if the message is invalid.
            Some("0") => {
                Ok(message::parse_single_message(message_bytes.freeze()).unwrap_or_default())
            }
            Some(status) => {
                let details = trailers
                    .get(STATUS_DETAILS)
                    .or_else(|| response_head.headers.get(STATUS_DETAILS));
                let retry_delay =
                    details.and_then(|value| retry_info::parse_delay(value.as_bytes()));
                let reason = status_field("grpc-message").unwrap_or_default();
                Err(ExportError::Grpc(status.to_owned(), reason, retry_delay))
            }
            None => Err(ExportError::Protocol("its response has no grpc-status".to_owned())),
        }
    };
    tokio::pin!(connection, exchange);
    tokio::select! {
        biased;
        result = &mut exchange => result,
        // The connection has ended, but the exchange may not have read a response that arrived before. Without
        // such a response, the exchange returns the error of the connection.
        _ = &mut connection => exchange.await,
    }
}

/// Returns a header field as text that is safe for the log; `None` if it is absent.
fn header_text(fields: &HeaderMap, name: &str) -> Option<String> {
    let value = fields.get(name)?;
    Some(sanitize_text(value.as_bytes()))
}

/// Parses `Retry-After` in seconds (RFC 9110 §10.2.3); `None` if it is a date or invalid.
fn parse_retry_after(value: &HeaderValue) -> Option<Duration> {
    value.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// Returns a collector's text in a form that is safe for the log: bounded, and without control characters.
pub(crate) fn sanitize_text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes.get(..MAX_LOGGED_BYTES).unwrap_or(bytes));
    text.trim().replace(char::is_control, " ")
}

/// Classifies an error of HTTP/1.1. A parse error means another protocol, any other error a lost connection.
fn classify_http1_error(error: hyper::Error) -> ExportError {
    match error.is_parse() {
        true => protocol_error(error),
        false => ExportError::ConnectionLost(error.to_string()),
    }
}

/// Classifies an error of HTTP/2. An I/O error or an error of the peer means a lost connection, any other error another
/// protocol.
fn classify_http2_error(error: h2::Error) -> ExportError {
    match error.is_io() || error.is_remote() {
        true => ExportError::ConnectionLost(error.to_string()),
        false => protocol_error(error),
    }
}

fn protocol_error(error: impl std::fmt::Display) -> ExportError {
    ExportError::Protocol(error.to_string())
}

/// The trailer with details of a gRPC error.
const STATUS_DETAILS: &str = "grpc-status-details-bin";
/// Maximum bytes of a collector's text in the log.
const MAX_LOGGED_BYTES: usize = 256;
