//! Calls other services, through an HTTP proxy or directly, over keep-alive connections.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{HOST, HeaderName};
use hyper::{HeaderMap, Request, Response, StatusCode, body::Incoming};
use hyper_util::rt::TokioIo;
use leno_model::REASON_FIELD;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The client that a demo service uses for all other services.
pub(super) struct UpstreamClient {
    connection_mode: ConnectionMode,
    /// Idle connections by service; with a proxy, under the empty name, because all services share its connections.
    idle_connections: RefCell<HashMap<&'static str, Vec<SendRequest<Empty<Bytes>>>>>,
    /// Tasks that drive the open connections. Dropping the set closes the connections.
    connection_tasks: RefCell<JoinSet<()>>,
}

/// The response of another service, with any status.
#[derive(Debug)]
pub(super) struct UpstreamResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl UpstreamClient {
    /// Creates a client that uses the proxy, or without one calls services directly by their names in a
    /// Kubernetes namespace. Opens no connection yet.
    pub(super) fn new(proxy: Option<HttpProxy>) -> Self {
        Self {
            connection_mode: proxy.map_or(ConnectionMode::Direct, ConnectionMode::Proxy),
            idle_connections: RefCell::default(),
            connection_tasks: RefCell::default(),
        }
    }

    /// GETs JSON from a service of the shop; any status but 200 is an error.
    pub(super) async fn get_json<T: DeserializeOwned>(
        &self,
        service: &'static str,
        target: &str,
        headers: &HeaderMap,
    ) -> Result<T, UpstreamError> {
        let response = self.get_response(service, target, headers).await?;
        let cause = if response.status != StatusCode::OK {
            let reason = response.headers.get(REASON_FIELD);
            UpstreamErrorCause::Status {
                status: response.status,
                reason: reason.and_then(|value| value.to_str().ok()).map(str::to_owned),
            }
        } else {
            match serde_json::from_slice(&response.body) {
                Ok(value) => return Ok(value),
                Err(error) => UpstreamErrorCause::Json(error),
            }
        };
        Err(UpstreamError { service, cause })
    }

    /// GETs from a service of the shop, with the trace headers of the current request.
    pub(super) async fn get_response(
        &self,
        service: &'static str,
        target: &str,
        headers: &HeaderMap,
    ) -> Result<UpstreamResponse, UpstreamError> {
        let outcome = timeout(CALL_TIMEOUT, self.send_request(service, target, headers)).await;
        outcome
            .unwrap_or(Err(UpstreamErrorCause::Timeout))
            .map_err(|cause| UpstreamError { service, cause })
    }

    /// Sends a request on an idle connection, or on a new one.
    async fn send_request(
        &self,
        service: &'static str,
        target: &str,
        headers: &HeaderMap,
    ) -> Result<UpstreamResponse, UpstreamErrorCause> {
        let connection_key = self.connection_mode.connection_key(service);
        let build_request = || self.connection_mode.build_request(service, target, headers);
        // The proxy may close an idle connection at the moment of its next use. A GET may be retried (RFC 9110
        // section 9.2.2), once, and on a new connection.
        if let Some(mut sender) = self.take_idle_connection(connection_key).await
            && let Ok(response) = sender.send_request(build_request()?).await
        {
            return self.read_response(connection_key, sender, response).await;
        }
        let mut sender = self.connect(service).await?;
        let response =
            sender.send_request(build_request()?).await.map_err(UpstreamErrorCause::Http)?;
        self.read_response(connection_key, sender, response).await
    }

    /// Reads the body of a response, and keeps the connection for later requests.
    async fn read_response(
        &self,
        connection_key: &'static str,
        sender: SendRequest<Empty<Bytes>>,
        response: Response<Incoming>,
    ) -> Result<UpstreamResponse, UpstreamErrorCause> {
        let (response_parts, body) = response.into_parts();
        let body = Limited::new(body, MAX_RESPONSE_BYTES)
            .collect()
            .await
            .map_err(UpstreamErrorCause::Body)?;
        let mut all_idle_connections = self.idle_connections.borrow_mut();
        let idle_connections = all_idle_connections.entry(connection_key).or_default();
        if idle_connections.len() < MAX_IDLE_CONNECTIONS && !sender.is_closed() {
            idle_connections.push(sender);
        }
        Ok(UpstreamResponse {
            status: response_parts.status,
            headers: response_parts.headers,
            body: body.to_bytes(),
        })
    }

    /// Takes the most recently used connection, so that surplus connections become idle and close. `None` if no idle
    /// connection is open.
    async fn take_idle_connection(
        &self,
        connection_key: &str,
    ) -> Option<SendRequest<Empty<Bytes>>> {
        loop {
            let mut sender = self.idle_connections.borrow_mut().get_mut(connection_key)?.pop()?;
            if sender.ready().await.is_ok() {
                return Some(sender);
            }
        }
    }

    /// Opens a connection to a service, or to the proxy.
    async fn connect(
        &self,
        service: &str,
    ) -> Result<SendRequest<Empty<Bytes>>, UpstreamErrorCause> {
        let stream = TcpStream::connect(self.connection_mode.address(service))
            .await
            .map_err(UpstreamErrorCause::Connect)?;
        stream.set_nodelay(true).map_err(UpstreamErrorCause::Connect)?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(UpstreamErrorCause::Http)?;
        let mut connection_tasks = self.connection_tasks.borrow_mut();
        while connection_tasks.try_join_next().is_some() {}
        connection_tasks.spawn_local(async move {
            // A broken connection is reported by the call that uses it.
            connection.await.ok();
        });
        Ok(sender)
    }
}

/// The way in which a service connects to other services.
enum ConnectionMode {
    /// Through one HTTP proxy, with request targets in absolute form (RFC 9112 section 3.2.2).
    Proxy(HttpProxy),
    /// Directly, by name.
    Direct,
}

impl ConnectionMode {
    /// Returns the key of idle connections for this service.
    fn connection_key(&self, service: &'static str) -> &'static str {
        match self {
            Self::Proxy(_) => "",
            Self::Direct => service,
        }
    }

    /// Returns the host and the port to connect to.
    fn address<'a>(&'a self, service: &'a str) -> (&'a str, u16) {
        match self {
            Self::Proxy(proxy) => (&proxy.host, proxy.port),
            Self::Direct => (service, SERVICE_PORT),
        }
    }

    fn build_request(
        &self,
        service: &str,
        target: &str,
        headers: &HeaderMap,
    ) -> Result<Request<Empty<Bytes>>, UpstreamErrorCause> {
        let (authority, uri) = match self {
            Self::Proxy(_) => {
                let authority = format!("{service}.bookinfo:{SERVICE_PORT}");
                let uri = format!("http://{authority}{target}");
                (authority, uri)
            }
            Self::Direct => (format!("{service}:{SERVICE_PORT}"), target.to_owned()),
        };
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = uri.parse().map_err(UpstreamErrorCause::Uri)?;
        let host = authority.parse().expect("names of the shop's services are header text");
        request.headers_mut().insert(HOST, host);
        for name in &PROPAGATED_HEADERS {
            for value in headers.get_all(name) {
                request.headers_mut().append(name, value.clone());
            }
        }
        Ok(request)
    }
}

/// The address of the HTTP proxy: `http://host:port`, as in `http_proxy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpProxy {
    host: String,
    port: u16,
}

impl FromStr for HttpProxy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("`{text}` is not a proxy: write http://HOST:PORT");
        let without_scheme = text.strip_prefix("http://").unwrap_or(text);
        let address = without_scheme.strip_suffix('/').unwrap_or(without_scheme);
        let (host, port) = address.rsplit_once(':').ok_or_else(invalid)?;
        let ipv6_host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = !host.is_empty() && !host.contains([':', '/', '@', '[', ']']);
        let host = ipv6_host.or(is_host.then_some(host)).ok_or_else(invalid)?;
        let port: u16 = port.parse().ok().filter(|port| *port != 0).ok_or_else(invalid)?;
        Ok(Self { host: host.to_owned(), port })
    }
}

/// A failed call to another service.
#[derive(Debug)]
pub(super) struct UpstreamError {
    /// The called service.
    pub(super) service: &'static str,
    cause: UpstreamErrorCause,
}

impl UpstreamError {
    /// Returns the status of the response; `None` if there was no response, or its content caused the error.
    pub(super) fn response_status(&self) -> Option<StatusCode> {
        match self.cause {
            UpstreamErrorCause::Status { status, .. } => Some(status),
            _ => None,
        }
    }

    /// Returns the mesh's reason for the rejection; `None` if the mesh did not respond in place of the service.
    pub(super) fn reason(&self) -> Option<&str> {
        match &self.cause {
            UpstreamErrorCause::Status { reason, .. } => reason.as_deref(),
            _ => None,
        }
    }
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.service, self.cause)
    }
}

impl std::error::Error for UpstreamError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.cause)
    }
}

#[derive(Debug, thiserror::Error)]
enum UpstreamErrorCause {
    #[error("cannot be reached: {0}")]
    Connect(#[source] std::io::Error),
    #[error("did not respond in time")]
    Timeout,
    #[error("did not respond: {0}")]
    Http(#[source] hyper::Error),
    #[error("sent an incomplete response: {0}")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("responded with status {status}")]
    Status { status: StatusCode, reason: Option<String> },
    #[error("sent an unexpected response: {0}")]
    Json(#[source] serde_json::Error),
    #[error("invalid request: {0}")]
    Uri(#[source] hyper::http::uri::InvalidUri),
}

/// Headers that correlate the calls of one user request, and the user that routes match on.
static PROPAGATED_HEADERS: [HeaderName; 13] = [
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("baggage"),
    HeaderName::from_static("b3"),
    HeaderName::from_static("x-b3-traceid"),
    HeaderName::from_static("x-b3-spanid"),
    HeaderName::from_static("x-b3-parentspanid"),
    HeaderName::from_static("x-b3-sampled"),
    HeaderName::from_static("x-b3-flags"),
    HeaderName::from_static("x-ot-span-context"),
    HeaderName::from_static("x-cloud-trace-context"),
    HeaderName::from_static("end-user"),
];

/// The port of the shop's services under their own names.
pub(super) const SERVICE_PORT: u16 = 9080;

/// The timeout of a call; no response of the demo takes this long.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum size of a response body, in bytes; the shop's responses have a few hundred bytes.
const MAX_RESPONSE_BYTES: usize = 1 << 20;

/// The maximum number of idle connections per service: as many as a service accepts, so that a steady load never
/// reconnects.
const MAX_IDLE_CONNECTIONS: usize = super::server::MAX_CONNECTIONS;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_addresses_are_parsed_from_the_environment() {
        let proxy = |host: &str, port| Some(HttpProxy { host: host.to_owned(), port });
        for (text, expected) in [
            ("http://127.0.0.1:15001", proxy("127.0.0.1", 15001)),
            ("http://127.0.0.1:15001/", proxy("127.0.0.1", 15001)),
            ("localhost:3128", proxy("localhost", 3128)),
            ("http://[::1]:15001", proxy("::1", 15001)),
            ("https://127.0.0.1:15001", None),
            ("http://user:secret@127.0.0.1:1", None),
            ("http://127.0.0.1", None),
            ("http://:1", None),
            ("127.0.0.1:0", None),
            ("", None),
        ] {
            assert_eq!(text.parse::<HttpProxy>().ok(), expected, "{text}");
        }
    }
}
