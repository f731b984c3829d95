//! Health checks for the kubelet: liveness and readiness of the sidecar, and probes of the application.

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
use leno_listen::{ConnectionAdmission, HalfOpenLimits};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::admin::{self, Admin, text_response};
use crate::config::Config;
use crate::pages::{self, Pages};
use crate::probes::ProbeFailure;

/// The health server. It is open to all clients and reveals nothing that the admin page keeps to its machine;
/// metrics are limited to the clients in an option.
pub(crate) struct Health {
    config: Arc<Config>,
    admin: Rc<Admin>,
    probing: Semaphore,
}

impl Health {
    pub(crate) fn new(config: Arc<Config>, admin: Rc<Admin>) -> Self {
        Self { config, admin, probing: Semaphore::new(PROBES_MAX) }
    }

    /// Serves requests until the proxy is over, then completes the responses in progress.
    pub(crate) async fn serve(self, listener: TcpListener) {
        let (health, slots) = (Rc::new(self), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
        // A connection with a request counts as half-open until its end, and must not evict others.
        let bounds = HalfOpenLimits::new(CONNECTIONS_MAX / 2, CONNECTIONS_MAX);
        let admission =
            ConnectionAdmission::new(HalfOpenLimits { half_open: CONNECTIONS_MAX, ..bounds });
        let phase = health.admin.phase.clone();
        let mut pages = Pages::new("health", listener, phase.clone());
        loop {
            let Ok(slot) = slots.clone().acquire_owned().await else {
                return;
            };
            let Some((tcp, client)) = pages.next().await else {
                break;
            };
            let phase = phase.clone();
            let (health, half_open) = (health.clone(), admission.admit(client));
            tokio::task::spawn_local(async move {
                let answer = service_fn(|request| {
                    let (health, half_open) = (health.clone(), &half_open);
                    async move {
                        let _answering = half_open.start_response();
                        Ok::<_, Infallible>(health.handle_request(&request, client.ip()).await)
                    }
                });
                let served = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    // A client that half-closes after its request still expects the response (RFC 9112 §9.6).
                    .half_close(true)
                    // The kubelet opens a new connection for each probe, so none is kept alive.
                    .keep_alive(false)
                    .header_read_timeout(HEAD_TIMEOUT)
                    .serve_connection(TokioIo::new(tcp), answer);
                // A client that does not read its response must not occupy a connection forever.
                let served = timeout(LIFE_MAX, pages::serve_page(&half_open, served, phase)).await;
                if !matches!(served, Ok(Ok(Ok(())))) {
                    tracing::debug!("a health check connection ended with an error");
                }
                drop(slot);
            });
        }
        pages::all_ended(&slots, CONNECTIONS_MAX).await;
    }

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
        // Probes may use any host name, but pages of websites in a browser cause no work here.
        if let Some(response) = admin::reject_foreign(request, AcceptedHosts::Any, false) {
            return response;
        }
        let response = match request.uri().path() {
            "/readyz" => admin::readiness_response(&self.admin),
            path => match path.strip_prefix("/probe/") {
                Some(probe) => self.run_probe(probe).await,
                None => text_response(StatusCode::NOT_FOUND, INDEX.into()),
            },
        };
        // A foreign host name gets the status alone, without the reason (DNS rebinding).
        match admin::reject_foreign(request, AcceptedHosts::Cluster, false) {
            Some(_) => text_response(response.status(), format!("{}\n", response.status())),
            None => response,
        }
    }

    /// Returns the metrics, for the permitted clients: they contain names of peers, and the application's own
    /// metrics.
    async fn metrics_response(
        &self,
        request: &Request<Incoming>,
        client: IpAddr,
    ) -> Response<Full<Bytes>> {
        if !self.config.metrics_from.contains(client) {
            return text_response(StatusCode::FORBIDDEN, NO_METRICS.into());
        }
        // Prometheus may address the pod by the name of a Service.
        match admin::reject_foreign(request, AcceptedHosts::Cluster, false) {
            Some(response) => response,
            None => admin::metrics_response(&self.admin, request).await,
        }
    }

    async fn run_probe(&self, path: &str) -> Response<Full<Bytes>> {
        let Some(probe) = self.config.probes.find_probe(path) else {
            return text_response(StatusCode::NOT_FOUND, "no such probe\n".into());
        };
        let made = match timeout(TURN_WAIT, self.probing.acquire()).await {
            Ok(Ok(_turn)) => {
                probe.run_probe(self.config.probed_at(), &self.config.interception).await
            }
            // A kubelet alone does not cause so many.
            _ => Err(ProbeFailure::Busy),
        };
        match made {
            Ok(()) => text_response(StatusCode::OK, "ok\n".into()),
            Err(unwell) => {
                tracing::debug!(path, reason = %unwell, "application probe failed");
                text_response(unwell.status_code(), format!("{unwell}\n"))
            }
        }
    }
}

const NO_METRICS: &str = "metrics are not available to this address: see --metrics-from (in Kubernetes the \
                          annotation leno.dev/metrics: enabled, and leno install --metrics-from)\n";
const INDEX: &str = "leno proxy: /livez /readyz /metrics /probe/CONTAINER/KIND\n";
/// Concurrent connections; further ones wait. At most half of them may be without a request, and a quarter may
/// be such connections of a single source.
const CONNECTIONS_MAX: usize = 64;
/// Concurrent probes: more than a pod has.
const PROBES_MAX: usize = 32;
/// The maximum time for which a probe waits for others.
const TURN_WAIT: Duration = Duration::from_secs(1);
/// The time from the first byte of a head to its last, and for the wait for the first one.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum life of a connection: Prometheus and the kubelet open another one.
const LIFE_MAX: Duration = Duration::from_secs(120);
