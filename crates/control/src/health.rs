//! Serves health checks and metrics over plain HTTP, for the kubelet and Prometheus.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use leno_identity::AcceptedHosts;
use leno_listen::{ConcurrencyLimit, ConnectionSource};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admin::{AdminQueries, parse_metrics_query, state_task_response};
use crate::control::Control;
use crate::http_server::{RequestHandler, reject_cross_site, serve_all, text_response};
use crate::query_share::QueryShare;
use crate::state_task::AdminQuery;

/// The health listener, which serves any client. It starts before the control plane, and reports it as not ready
/// until then. Dropping it closes the listener at once.
#[derive(Debug)]
pub struct HealthListener {
    address: SocketAddr,
    /// The current state, for the request handler.
    state: watch::Sender<HealthState>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

/// The health of the control plane.
#[derive(Debug, Clone)]
enum HealthState {
    /// Not ready, for this reason.
    Unready(Cow<'static, str>),
    /// Ready; metrics are queried through this channel.
    Ready(AdminQueries),
}

impl HealthListener {
    /// Starts to serve at an address; with port 0 the kernel selects the port.
    ///
    /// # Errors
    /// Returns an error if the address is in use or not local.
    pub async fn start_server(address: SocketAddr) -> io::Result<Self> {
        let listener = leno_listen::bind(address)?;
        let address = listener.local_addr()?;
        let state = watch::Sender::new(HealthState::Unready(
            "the configuration sources are not loaded yet".into(),
        ));
        let stop = watch::Sender::new(false);
        let query_share = QueryShare::new(METRICS_PAUSE_FACTOR);
        let scrape_limit = ConcurrencyLimit::new(MAX_SCRAPES, MAX_SCRAPES_PER_SOURCE);
        let handler =
            Arc::new(HealthHandler { state: state.subscribe(), query_share, scrape_limit });
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_all(listener, MAX_CONNECTIONS, handler, stop.subscribe()));
        Ok(Self { address, state, stop, tasks })
    }

    /// Returns the listen address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the reason why the control plane is not ready yet.
    pub fn set_waiting(&self, reason: String) {
        self.state.send_replace(HealthState::Unready(reason.into()));
    }

    /// Marks the control plane as ready: it has read its sources, and serves.
    pub fn set_ready(&self, control: &Control) {
        self.state.send_replace(HealthState::Ready(control.queries()));
    }

    /// Marks the control plane as shutting down, so that it gets no new clients.
    pub fn set_stopping(&self) {
        self.state.send_replace(HealthState::Unready("the control plane is shutting down".into()));
    }

    /// Stops the listener. Returns after the responses in progress have completed, or after their time limit.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

/// The request handler of the health listener.
#[derive(Debug)]
struct HealthHandler {
    state: watch::Receiver<HealthState>,
    /// Bounds the state task's time for scrapes: any client with network access may scrape.
    query_share: QueryShare,
    /// Limits scrapes in progress: the kubelet needs a connection at the same time.
    scrape_limit: ConcurrencyLimit,
}

impl RequestHandler for HealthHandler {
    type Body = Full<Bytes>;

    const SERVER: &'static str = "health";

    const MAX_LIFE: Option<Duration> = Some(Duration::from_secs(60));

    async fn handle_request(
        &self,
        request: Request<Incoming>,
        source: ConnectionSource,
    ) -> Response<Full<Bytes>> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return text_response(StatusCode::METHOD_NOT_ALLOWED, PATH_LIST_TEXT.to_owned());
        }
        // Prometheus may address the pod by a Service name. No path is a page.
        if let Some(response) =
            reject_cross_site(request.uri(), request.headers(), AcceptedHosts::Cluster, false)
        {
            match request.uri().path() {
                _ if response.status() == StatusCode::BAD_REQUEST => return response,
                "/metrics" => return response,
                // A probe may use any host name: it gets the status alone, without the reason (DNS rebinding).
                "/readyz" => {
                    let status = match *self.state.borrow() {
                        HealthState::Ready(_) => StatusCode::OK,
                        HealthState::Unready(_) => StatusCode::SERVICE_UNAVAILABLE,
                    };
                    return text_response(status, format!("{status}\n"));
                }
                // The remaining responses reveal nothing about the mesh.
                _ => {}
            }
        }
        let state = self.state.borrow().clone();
        match (request.uri().path(), state) {
            ("/livez", _) => text_response(StatusCode::OK, "alive\n".to_owned()),
            ("/readyz", HealthState::Ready(_)) => {
                text_response(StatusCode::OK, "ready\n".to_owned())
            }
            ("/metrics", HealthState::Ready(queries)) => match parse_metrics_query(&request) {
                Ok(query) => self.scrape_metrics(&queries, query, source).await,
                Err(problem) => text_response(StatusCode::BAD_REQUEST, problem),
            },
            ("/readyz" | "/metrics", HealthState::Unready(reason)) => {
                text_response(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n"))
            }
            _ => text_response(StatusCode::NOT_FOUND, PATH_LIST_TEXT.to_owned()),
        }
    }
}

impl HealthHandler {
    /// Returns the metrics; 503 while too many scrapes wait.
    async fn scrape_metrics(
        &self,
        queries: &AdminQueries,
        query: AdminQuery,
        source: ConnectionSource,
    ) -> Response<Full<Bytes>> {
        let Some(_scrape_permit) = self.scrape_limit.acquire(source) else {
            return text_response(StatusCode::SERVICE_UNAVAILABLE, TOO_MANY_SCRAPES.to_owned());
        };
        let _turn = self.query_share.acquire_turn().await;
        state_task_response(queries, query).await
    }
}

/// The response to requests with another path or method: the list of paths.
const PATH_LIST_TEXT: &str = "leno control: GET /livez /readyz /metrics\n";

/// The pause after a scrape, in multiples of its duration. With 4, scrapes take at most a fifth of the state task's time.
const METRICS_PAUSE_FACTOR: u32 = 4;

/// The response beyond [`MAX_SCRAPES`].
const TOO_MANY_SCRAPES: &str = "too many scrapes are in progress: scrape less often\n";

/// Maximum concurrent connections; more wait.
const MAX_CONNECTIONS: usize = 64;

/// Maximum scrapes in progress; more are rejected. Connections without a request can be evicted, scrapes cannot, so
/// scrapes may use only a few of the connections. A control plane usually has a handful of collectors.
const MAX_SCRAPES: usize = 8;

/// Maximum scrapes in progress per source, so that no client blocks all others.
const MAX_SCRAPES_PER_SOURCE: usize = MAX_SCRAPES / 2;
