//! What the kubelet is told: that the sidecar lives, whether it serves, and how the application is.

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
use leno_identity::OwnNames;
use leno_listen::{Admission, Bounds};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::admin::{self, Admin, text};
use crate::config::Config;
use crate::pages::{self, Pages};
use crate::probes::Unwell;

/// What answers there. Anybody may ask: it tells nothing that the admin page keeps to its machine,
/// but for the metrics, which are for the clients that an option lists.
pub(crate) struct Health {
    config: Arc<Config>,
    admin: Rc<Admin>,
    probing: Semaphore,
}

impl Health {
    pub(crate) fn new(config: Arc<Config>, admin: Rc<Admin>) -> Self {
        Self { config, admin, probing: Semaphore::new(PROBES_MAX) }
    }

    /// Answers until the proxy is over; then it completes the responses in progress.
    pub(crate) async fn serve(self, listener: TcpListener) {
        let (health, slots) = (Rc::new(self), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
        // A connection with a request counts as half-open until its end, and is not to evict others.
        let bounds = Bounds::new(CONNECTIONS_MAX / 2, CONNECTIONS_MAX);
        let admission = Admission::new(Bounds { half_open: CONNECTIONS_MAX, ..bounds });
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
                        let _answering = half_open.answering();
                        Ok::<_, Infallible>(health.answer(&request, client.ip()).await)
                    }
                });
                let served = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    // A client that ends its own direction after its request awaits the response (RFC 9112 §9.6).
                    .half_close(true)
                    // The kubelet asks on a new connection each time: nobody keeps a place.
                    .keep_alive(false)
                    .header_read_timeout(HEAD_TIMEOUT)
                    .serve_connection(TokioIo::new(tcp), answer);
                // Whoever takes nothing of an answer is not to keep the place for ever.
                let served = timeout(LIFE_MAX, pages::serve(&half_open, served, phase)).await;
                if !matches!(served, Ok(Ok(Ok(())))) {
                    tracing::debug!("a connection for health was not ended in order");
                }
                drop(slot);
            });
        }
        pages::all_ended(&slots, CONNECTIONS_MAX).await;
    }

    async fn answer(&self, request: &Request<Incoming>, client: IpAddr) -> Response<Full<Bytes>> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return text(StatusCode::METHOD_NOT_ALLOWED, INDEX.into());
        }
        match request.uri().path() {
            "/livez" => return text(StatusCode::OK, "alive\n".into()),
            "/metrics" => return self.metrics(request, client).await,
            _ => {}
        }
        // A probe may name any host, but the page of a website in a browser causes no work here.
        if let Some(response) = admin::foreign(request, OwnNames::Any, false) {
            return response;
        }
        let response = match request.uri().path() {
            "/readyz" => admin::ready(&self.admin),
            path => match path.strip_prefix("/probe/") {
                Some(probe) => self.probe(probe).await,
                None => text(StatusCode::NOT_FOUND, INDEX.into()),
            },
        };
        // A foreign name gets the status alone, without the reason (DNS rebinding).
        match admin::foreign(request, OwnNames::Cluster, false) {
            Some(_) => text(response.status(), format!("{}\n", response.status())),
            None => response,
        }
    }

    /// The metrics, for the clients that may read them: they name peers, and show those of the application.
    async fn metrics(&self, request: &Request<Incoming>, client: IpAddr) -> Response<Full<Bytes>> {
        if !self.config.metrics_from.contains(client) {
            return text(StatusCode::FORBIDDEN, NO_METRICS.into());
        }
        // Prometheus may know the pod by the name of a Service.
        match admin::foreign(request, OwnNames::Cluster, false) {
            Some(response) => response,
            None => admin::metrics(&self.admin, request).await,
        }
    }

    async fn probe(&self, path: &str) -> Response<Full<Bytes>> {
        let Some(probe) = self.config.probes.at(path) else {
            return text(StatusCode::NOT_FOUND, "there is no such probe\n".into());
        };
        let made = match timeout(TURN_WAIT, self.probing.acquire()).await {
            Ok(Ok(_turn)) => probe.make(self.config.probed_at(), &self.config.interception).await,
            // A kubelet alone does not cause so many.
            _ => Err(Unwell::Busy),
        };
        match made {
            Ok(()) => text(StatusCode::OK, "well\n".into()),
            Err(unwell) => {
                tracing::debug!(path, %unwell, "a probe of the application failed");
                text(unwell.status(), format!("{unwell}\n"))
            }
        }
    }
}

const NO_METRICS: &str = "metrics are not open to this address: see --metrics-from (in Kubernetes the \
                          annotation leno.dev/metrics: enabled, and leno install --metrics-from)\n";
const INDEX: &str = "leno proxy: /livez /readyz /metrics /probe/CONTAINER/KIND\n";
/// Connections at once; more wait. Half of them may be without a request, and a quarter may be such ones of a
/// single source.
const CONNECTIONS_MAX: usize = 64;
/// Probes under way at once: more than a pod has.
const PROBES_MAX: usize = 32;
/// How long a probe waits for its turn.
const TURN_WAIT: Duration = Duration::from_secs(1);
/// From the first byte of a head to its last, and the wait for the first one.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest life of a connection: Prometheus and the kubelet open another one.
const LIFE_MAX: Duration = Duration::from_secs(120);
