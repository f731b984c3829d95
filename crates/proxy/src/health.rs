//! The health server (`--health`): liveness, readiness and metrics of the sidecar, and probes of the
//! application for the kubelet.

use std::convert::Infallible;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use leno_identity::AcceptedHosts;
use leno_listen::{ConnectionAdmission, PendingLimits};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::admin::{self, Admin, text_response};
use crate::config::Config;
use crate::management_server::{self, ManagementListener};
use crate::probes::ProbeFailure;

/// The health server. Unlike the admin endpoint it is open to all clients, so it reveals only whether the proxy and
/// the application are healthy. Metrics are limited to the clients of `--metrics-from`.
pub(crate) struct HealthServer {
    config: Arc<Config>,
    admin: Rc<Admin>,
    probe_permits: Semaphore,
}

impl HealthServer {
    pub(crate) fn new(config: Arc<Config>, admin: Rc<Admin>) -> Self {
        Self { config, admin, probe_permits: Semaphore::new(MAX_PROBES) }
    }

    /// Serves requests until the proxy stops, then completes the responses in progress.
    pub(crate) async fn serve(self, listener: TcpListener) {
        let server = Rc::new(self);
        let connection_permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        // The admission counts a connection until it is closed, also during its request. Its default limit, half of
        // the connections, would make requests in progress evict the connections that wait for their request.
        let limits = PendingLimits::new(MAX_CONNECTIONS / 2, MAX_CONNECTIONS);
        let admission =
            ConnectionAdmission::new(PendingLimits { pending: MAX_CONNECTIONS, ..limits });
        let phase = server.admin.phase.clone();
        let mut health_listener = ManagementListener::new("health", listener, phase.clone());
        loop {
            let Ok(permit) = connection_permits.clone().acquire_owned().await else {
                return;
            };
            let Some((tcp, client)) = health_listener.accept().await else {
                break;
            };
            let phase = phase.clone();
            let (server, pending_connection) = (server.clone(), admission.admit(client));
            tokio::task::spawn_local(async move {
                let service = service_fn(|request| {
                    let (server, pending_connection) = (server.clone(), &pending_connection);
                    async move {
                        let _request_in_progress = pending_connection.start_request();
                        Ok::<_, Infallible>(server.handle_request(&request, client.ip()).await)
                    }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    // A client that half-closes after its request still expects the response (RFC 9112 §9.6).
                    .half_close(true)
                    // The kubelet opens a new connection for each probe, so none is kept alive.
                    .keep_alive(false)
                    .header_read_timeout(HEAD_TIMEOUT)
                    .serve_connection(TokioIo::new(tcp), service);
                // A client that does not read its response must not occupy a connection forever.
                let serving =
                    management_server::serve_connection(&pending_connection, connection, phase);
                let result = timeout(MAX_CONNECTION_LIFETIME, serving).await;
                if !matches!(result, Ok(Ok(Ok(())))) {
                    tracing::debug!("a health check connection ended with an error");
                }
                drop(permit);
            });
        }
        management_server::wait_for_connections(&connection_permits, MAX_CONNECTIONS).await;
    }

    /// Returns the response to a request: the proxy's health or metrics, the result of a probe, or a rejection.
    async fn handle_request(
        &self,
        request: &Request<Incoming>,
        client: IpAddr,
    ) -> Response<Full<Bytes>> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return text_response(StatusCode::METHOD_NOT_ALLOWED, INDEX.into());
        }
        match request.uri().path() {
            "/livez" => return text_response(StatusCode::OK, "alive\n".into()),
            "/metrics" => return self.metrics_response(request, client).await,
            _ => {}
        }
        // A probe may have any host name. A request that a page of another site caused in a browser must not make
        // the sidecar probe the application.
        if let Some(response) = admin::reject_cross_site(request, AcceptedHosts::Any, false) {
            return response;
        }
        let response = match request.uri().path() {
            "/readyz" => admin::readiness_response(&self.admin),
            path => match path.strip_prefix("/probe/") {
                Some(probe_path) => self.run_probe(probe_path).await,
                None => text_response(StatusCode::NOT_FOUND, INDEX.into()),
            },
        };
        // By DNS rebinding, a web site could read this response under its own host name. A request with such a name
        // gets only the status, without the reason.
        match admin::reject_cross_site(request, AcceptedHosts::Cluster, false) {
            Some(_) => text_response(response.status(), format!("{}\n", response.status())),
            None => response,
        }
    }

    /// Returns the metrics to permitted clients only: they contain names of peers and the application's own
    /// metrics.
    async fn metrics_response(
        &self,
        request: &Request<Incoming>,
        client: IpAddr,
    ) -> Response<Full<Bytes>> {
        if !self.config.metrics_from.contains(client) {
            return text_response(StatusCode::FORBIDDEN, METRICS_DENIED.into());
        }
        // Prometheus may address the pod by the name of a Service.
        match admin::reject_cross_site(request, AcceptedHosts::Cluster, false) {
            Some(response) => response,
            None => admin::metrics_response(&self.admin, request).await,
        }
    }

    /// Runs a probe of the application, and returns its result as a response.
    async fn run_probe(&self, path: &str) -> Response<Full<Bytes>> {
        let Some(probe) = self.config.probes.find_probe(path) else {
            return text_response(StatusCode::NOT_FOUND, "no such probe\n".into());
        };
        let result = match timeout(PROBE_PERMIT_WAIT, self.probe_permits.acquire()).await {
            Ok(Ok(_permit)) => {
                probe.run_probe(self.config.probe_address(), &self.config.interception).await
            }
            // A pod has fewer probes than `MAX_PROBES`, so other clients hold the permits.
            _ => Err(ProbeFailure::Busy),
        };
        match result {
            Ok(()) => text_response(StatusCode::OK, "ok\n".into()),
            Err(failure) => {
                tracing::debug!(path, reason = %failure, "application probe failed");
                text_response(failure.status_code(), format!("{failure}\n"))
            }
        }
    }
}

/// The response to a client that may not read metrics.
const METRICS_DENIED: &str = "metrics are not available to this address; permit it with --metrics-from (in Kubernetes, with the \
                          annotation leno.dev/metrics: enabled, or with leno install --metrics-from)\n";
/// The body for unknown paths and methods: the list of paths.
const INDEX: &str = "leno proxy: /livez /readyz /metrics /probe/CONTAINER/KIND\n";
/// The maximum number of concurrent connections; further connections wait. At most half of them may be without
/// a request, and at most a quarter may be connections of a single source without a request.
const MAX_CONNECTIONS: usize = 64;
/// The maximum number of concurrent probes: more than the containers of a pod have.
const MAX_PROBES: usize = 32;
/// The maximum time for which a probe waits for a permit.
const PROBE_PERMIT_WAIT: Duration = Duration::from_secs(1);
/// The maximum time to wait for a request head, and to receive it.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum lifetime of a connection. After it the connection is closed, whether or not the client has read its
/// response; Prometheus and the kubelet open a new connection for their next request.
const MAX_CONNECTION_LIFETIME: Duration = Duration::from_secs(120);
