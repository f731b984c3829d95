//! Serves HTTPS connections of API servers: a bounded number, with one request at a time on each.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use leno_listen::{
    ConcurrencyLimit, ConnectionAdmission, ConnectionSource, Listener, PendingConnection,
    PendingLimits, StopSignal, complete_handshake, read_hello,
};
use rustls::ServerConfig;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use super::review::AdmissionRequest;
use crate::api::{ObjectApi, ObjectName};
use crate::inject::{InjectionSettings, NamespaceMetadata};

/// The state shared by all connections.
pub(super) struct WebhookState {
    pub(super) client: Client,
    pub(super) settings: watch::Receiver<InjectionSettings>,
    /// The limit of concurrent reviews. A connection with a review in progress is not closed in favor of
    /// others.
    pub(super) review_limit: ConcurrencyLimit,
}

/// Serves connections until `accept_end` is set. Then completes the reviews in progress, and those that arrive
/// within the time for a last request. After `shutdown` is set, responses have `Connection: close`.
pub(super) async fn serve_connections(
    listener: TcpListener,
    client: Client,
    tls_config_receiver: watch::Receiver<Option<Arc<ServerConfig>>>,
    settings: watch::Receiver<InjectionSettings>,
    shutdown: StopSignal,
    mut accept_end: StopSignal,
) {
    let review_limit = ConcurrencyLimit::new(MAX_REVIEWS, MAX_REVIEWS_PER_SOURCE);
    let state = Arc::new(WebhookState { client, settings, review_limit });
    let admission =
        ConnectionAdmission::new(PendingLimits::new(MAX_WAITING_CONNECTIONS, MAX_CONNECTIONS));
    let mut listener = Listener::new("webhook", listener);
    let mut connections = JoinSet::new();
    loop {
        let has_capacity = connections.len() < MAX_CONNECTIONS;
        let accepted_connection = tokio::select! {
            Some(_) = connections.join_next() => continue,
            accepted = listener.next_until(accept_end.wait_requested()), if has_capacity => accepted,
        };
        let Some((stream, peer)) = accepted_connection else { break };
        // The caller has waited for the first configuration.
        let Some(tls_config) = tls_config_receiver.borrow().clone() else { continue };
        let source = ConnectionSource::from(peer);
        let pending_connection = admission.admit(source);
        let state = Arc::clone(&state);
        let (shutdown, accept_end) = (shutdown.clone(), accept_end.clone());
        connections.spawn(serve_webhook_connection(
            stream,
            pending_connection,
            source,
            tls_config,
            state,
            shutdown,
            accept_end,
        ));
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Serves one connection. A connection counts as pending while it is established but no request is in
/// progress. At the limit, the pending connection that has waited longest is closed in favor of a new
/// connection.
async fn serve_webhook_connection(
    stream: TcpStream,
    pending_connection: PendingConnection,
    source: ConnectionSource,
    tls_config: Arc<ServerConfig>,
    state: Arc<WebhookState>,
    shutdown: StopSignal,
    accept_end: StopSignal,
) {
    let mut shutdown_deadline = accept_end.clone();
    let handshake_result = tokio::select! {
        result = timeout(HANDSHAKE_TIMEOUT, accept_tls(stream, &pending_connection, tls_config)) => result,
        () = shutdown_deadline.wait_for_last_request() => return,
    };
    let stream = match handshake_result {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake with the webhook failed"),
        Err(_) => return,
    };
    let service = service_fn(|request: Request<Incoming>| {
        let (state, shutdown, pending_connection) =
            (Arc::clone(&state), &shutdown, &pending_connection);
        async move {
            let mut response = state.handle_request(request, pending_connection, source).await;
            if shutdown.is_requested() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        // A client that closes its sending direction after its request awaits the response (RFC 9112 §9.6).
        .half_close(true)
        .header_read_timeout(IDLE_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let connection = pin!(connection);
    let outcome = accept_end
        .serve_connection(&pending_connection, connection, |connection| {
            connection.graceful_shutdown()
        })
        .await;
    if let Ok(Err(error)) = outcome {
        tracing::debug!(%error, "connection to the webhook failed");
    }
}

async fn accept_tls(
    stream: TcpStream,
    pending_connection: &PendingConnection,
    tls_config: Arc<ServerConfig>,
) -> io::Result<TlsStream<TcpStream>> {
    let client_hello = read_hello(pending_connection, stream).await.map_err(|(error, _)| error)?;
    complete_handshake(pending_connection, client_hello, tls_config).await
}

impl WebhookState {
    /// Reads the body of a review request and responds to it. Other requests are rejected.
    async fn handle_request(
        &self,
        request: Request<Incoming>,
        pending_connection: &PendingConnection,
        source: ConnectionSource,
    ) -> Response<Full<Bytes>> {
        if request.uri().path() != MUTATE_PATH {
            return text_response(StatusCode::NOT_FOUND, "not found; use /mutate");
        }
        if request.method() != Method::POST {
            return text_response(StatusCode::METHOD_NOT_ALLOWED, "send an AdmissionReview");
        }
        let read_body = Limited::new(request.into_body(), MAX_BODY_BYTES).collect();
        let body = match timeout(BODY_TIMEOUT, read_body).await {
            Ok(Ok(collected)) => collected.to_bytes(),
            Ok(Err(_)) => {
                return text_response(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "the body is too large or incomplete",
                );
            }
            Err(_) => {
                return text_response(
                    StatusCode::REQUEST_TIMEOUT,
                    "timeout while reading the body",
                );
            }
        };
        // Until here the connection waits for the client, and may be closed in favor of a new connection.
        let _request_in_progress = pending_connection.start_request();
        self.review_response(&body, source).await
    }

    /// Returns the response to an `AdmissionReview`; 503 while too many are in progress.
    pub(super) async fn review_response(
        &self,
        body: &[u8],
        source: ConnectionSource,
    ) -> Response<Full<Bytes>> {
        let Some(_permit) = self.review_limit.acquire(source) else {
            return text_response(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many reviews are in progress",
            );
        };
        match AdmissionRequest::parse(body, source) {
            Ok(review) => json_response(&self.review_pod(&review).await),
            Err(error) => text_response(StatusCode::BAD_REQUEST, &error.to_string()),
        }
    }

    async fn review_pod(&self, review: &AdmissionRequest) -> Value {
        let Some(namespace_name) = review.namespace_of_pod() else {
            return review.allow_unchanged();
        };
        let namespaces: ObjectApi<Namespace> = ObjectApi::for_all_namespaces(self.client.clone());
        let name = ObjectName::from(namespace_name);
        let namespace = match timeout(NAMESPACE_TIMEOUT, namespaces.get(&name)).await {
            Ok(Ok(namespace)) => namespace,
            // The client may not be the API server: the reason goes to the log only.
            Ok(Err(error)) => {
                return review.reject_with_message(
                    UNAVAILABLE,
                    UNREADABLE_NAMESPACE,
                    &error.to_string(),
                );
            }
            Err(_) => {
                return review.reject_with_message(
                    UNAVAILABLE,
                    UNREADABLE_NAMESPACE,
                    "no response in time",
                );
            }
        };
        let namespace_metadata = NamespaceMetadata::from(namespace);
        let settings = self.settings.borrow().clone();
        review.inject_pod(&namespace_metadata, &settings)
    }
}

fn json_response(value: &Value) -> Response<Full<Bytes>> {
    response_with_type(StatusCode::OK, "application/json", value.to_string())
}

fn text_response(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    response_with_type(status, "text/plain; charset=utf-8", format!("{text}\n"))
}

fn response_with_type(
    status: StatusCode,
    content_type: &'static str,
    body: String,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// The path for reviews of pods.
pub const MUTATE_PATH: &str = "/mutate";
/// The maximum size of a request body. The API server accepts objects of at most 3 MiB, and sends old and new
/// versions.
const MAX_BODY_BYTES: usize = 8 << 20;
/// The maximum time for the body of a request to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of open connections.
const MAX_CONNECTIONS: usize = 1024;
/// The maximum number of connections without a request; half as many from one source. An API server that creates
/// many pods at once opens a connection for each pod.
pub(super) const MAX_WAITING_CONNECTIONS: usize = 256;
/// The maximum number of reviews in progress; further reviews are rejected. Connections with a review in progress
/// are not closed in favor of new connections, so they may be only half of all connections.
const MAX_REVIEWS: usize = MAX_CONNECTIONS / 2;
/// The maximum number of reviews of one source: an API server that creates many pods at once has one for each,
/// for milliseconds.
const MAX_REVIEWS_PER_SOURCE: usize = MAX_CONNECTIONS / 4;
/// The maximum time of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum time between requests. It exceeds the 90 s after which the API server closes idle connections. A
/// request is lost if the webhook closes the connection while the API server sends the request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// The maximum time to read the namespace of a pod.
const NAMESPACE_TIMEOUT: Duration = Duration::from_secs(4);
const UNAVAILABLE: u16 = 503;
const UNREADABLE_NAMESPACE: &str =
    "the namespace cannot be read at the moment; try again, and see the log of the control plane";
