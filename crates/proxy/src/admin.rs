//! The read-only admin endpoint, served on loopback by the control thread: metrics, readiness and the current
//! configuration, each at its own path. The control plane queries the same paths over its stream.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use http_body_util::{BodyExt as _, Collected, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HOST, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use leno_discovery::{Query, QueryResponse};
use leno_identity::{AcceptedHosts, CrossSiteRequest, check_origin, request_host, single_value};
use leno_listen::{ConnectionAdmission, PendingLimits};
use leno_telemetry::{AliasNames, Count, ExpositionFormat, LogLimit, MetricsShard, Telemetry};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;

use crate::application_metrics::ScrapeError;
use crate::config::Config;
use crate::config_store::ConfigStore;
use crate::connections::Connections;
use crate::drain::Phase;
use crate::ejected::EjectedEndpoints;
use crate::management_server::{self, ManagementListener};
use crate::open_listeners::OpenListeners;

mod connectivity;
mod page;

/// The state that the admin endpoint reads.
pub(crate) struct Admin {
    pub(crate) config: Arc<Config>,
    /// Counts the scrapes of the application, in the shard of the control thread.
    pub(crate) metrics: MetricsShard,
    pub(crate) scrape_state: ScrapeState,
    /// Limits `/connectivity` to one query at a time, since each opens connections.
    pub(crate) connectivity_permit: Semaphore,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) config_store: Arc<ConfigStore>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) ejected_endpoints: Arc<EjectedEndpoints>,
    pub(crate) open_listeners: OpenListeners,
    /// True if the proxy serves a gateway.
    pub(crate) is_gateway: bool,
    /// True once the gateway's ports were open. Ports that are added later do not make the proxy unready.
    pub(crate) were_ports_open: Cell<bool>,
    pub(crate) phase: watch::Receiver<Phase>,
}

/// The state of scraping the application's metrics.
pub(crate) struct ScrapeState {
    /// Limits concurrent scrapes.
    permits: Semaphore,
    /// True if the last scrape succeeded.
    is_healthy: Cell<bool>,
    /// Limits the log lines about failed scrapes.
    log_limit: RefCell<LogLimit>,
}

impl Default for ScrapeState {
    fn default() -> Self {
        Self {
            permits: Semaphore::new(MAX_SCRAPES),
            is_healthy: Cell::new(true),
            log_limit: RefCell::default(),
        }
    }
}

/// Serves requests until the proxy stops, then completes the responses in progress.
pub(crate) async fn serve(listener: TcpListener, admin: Rc<Admin>) {
    let connection_permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    // The admission counts a connection until it is closed. Connections with a request in progress must not evict
    // others, so the limit is that of all connections. All clients are on this machine and count as one source, which
    // may therefore use the limits of all sources.
    let limits = PendingLimits {
        pending: MAX_CONNECTIONS,
        ..PendingLimits::new(MAX_CONNECTIONS / 2, MAX_CONNECTIONS)
    };
    let admission =
        ConnectionAdmission::new(PendingLimits { waiting_per_source: limits.waiting, ..limits });
    let mut admin_listener = ManagementListener::new("admin", listener, admin.phase.clone());
    loop {
        let Ok(permit) = connection_permits.clone().acquire_owned().await else {
            return;
        };
        let Some((tcp, peer)) = admin_listener.accept().await else {
            break;
        };
        let (admin, pending_connection) = (admin.clone(), admission.admit(peer));
        let phase = admin.phase.clone();
        tokio::task::spawn_local(async move {
            let service = service_fn(|request| {
                let (admin, pending_connection) = (admin.clone(), &pending_connection);
                async move {
                    let _request_in_progress = pending_connection.start_request();
                    // A rejected page of another site gets no header with the workload name either.
                    let is_page = request.uri().path() == "/";
                    let response = match reject_cross_site(&request, AcceptedHosts::Local, is_page)
                    {
                        Some(response) => response,
                        None => add_workload_header(&admin, handle_request(&admin, &request).await),
                    };
                    Ok::<_, Infallible>(response)
                }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(hyper_util::rt::TokioTimer::new())
                // A client that half-closes after its request still expects the response (RFC 9112 §9.6).
                .half_close(true)
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(tcp), service);
            let served =
                management_server::serve_connection(&pending_connection, connection, phase).await;
            if let Ok(Err(error)) = served {
                tracing::debug!(%error, "admin connection failed");
            }
            drop(permit);
        });
    }
    management_server::wait_for_connections(&connection_permits, MAX_CONNECTIONS).await;
}

/// Answers queries of the control plane like requests of admin clients, one at a time: the control plane sends the
/// next query after the response or the deadline of the previous one.
pub(crate) async fn serve_queries(mut queries: mpsc::Receiver<Query>, admin: Rc<Admin>) {
    while let Some(Query { path, deadline, reply: mut response_sender, .. }) = queries.recv().await
    {
        let respond = async {
            let Ok(request) = Request::get(&path).body(()) else {
                return QueryResponse { status: 400, body: b"invalid HTTP path\n".to_vec() };
            };
            let (head, body) = respond_at_path(&admin, &request).await.into_parts();
            let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
            QueryResponse { status: head.status.as_u16(), body: body.into() }
        };
        tokio::select! {
            result = timeout(deadline, respond) => {
                // After the deadline the control plane no longer waits for the response.
                if let Ok(response) = result {
                    // The stream to the control plane may have ended.
                    response_sender.send(response).ok();
                }
            }
            // The stream of the query has ended: the query needs no response.
            () = response_sender.closed() => {}
        }
    }
}

/// Adds a header with the workload name, so that tools can detect the response of another program.
fn add_workload_header(
    admin: &Admin,
    mut response: Response<Full<Bytes>>,
) -> Response<Full<Bytes>> {
    if let Ok(workload) = HeaderValue::from_str(&admin.config.workload.to_string()) {
        response.headers_mut().insert(HeaderName::from_static(WORKLOAD_FIELD), workload);
    }
    response
}

/// Responds to a request of an admin client: with the document at its path, or with the rejection of a method that
/// is not read-only.
async fn handle_request(admin: &Rc<Admin>, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text_response(
            StatusCode::METHOD_NOT_ALLOWED,
            "this page is read-only: use GET\n".into(),
        );
    }
    respond_at_path(admin, request).await
}

/// Returns the document at the path of a request from an admin client or the control plane.
async fn respond_at_path<B>(admin: &Rc<Admin>, request: &Request<B>) -> Response<Full<Bytes>> {
    match request.uri().path() {
        "/metrics" => metrics_response(admin, request).await,
        "/ready" => readiness_response(admin),
        "/config" => json_response(&page::current_config(admin)),
        "/connections" => json_response(&page::open_connections(admin)),
        "/requests" => json_response(&page::request_counts(admin)),
        "/ejected" => json_response(&page::ejected_endpoints(admin)),
        "/circuits" => json_response(&page::open_circuits(admin)),
        "/connectivity" => {
            match connectivity::check_service_endpoints(
                admin,
                request.uri().query().unwrap_or_default(),
            )
            .await
            {
                Ok(report) => json_response(&report),
                Err(message) => text_response(StatusCode::BAD_REQUEST, message),
            }
        }
        "/" => text_response(StatusCode::OK, INDEX.into()),
        _ => text_response(StatusCode::NOT_FOUND, INDEX.into()),
    }
}

/// Returns the rejection of a request that a page of another site may have caused; `None` if the request is
/// accepted. `is_page`: the response is a page that hyperlinks on other sites may open.
pub(crate) fn reject_cross_site(
    request: &Request<Incoming>,
    accepted_hosts: AcceptedHosts,
    is_page: bool,
) -> Option<Response<Full<Bytes>>> {
    let headers = request.headers();
    let header_value = |name: &'static str| {
        single_value(headers.get_all(name).iter().map(|value| value.to_str().unwrap_or_default()))
    };
    let hosts = headers.get_all(HOST).iter().map(|value| value.to_str().unwrap_or_default());
    let host = request_host(request.uri().authority().map(|authority| authority.as_str()), hosts);
    let rejection =
        host.and_then(|host| check_origin(host, header_value, accepted_hosts, is_page)).err()?;
    let status = match rejection {
        CrossSiteRequest::MultipleHosts => StatusCode::BAD_REQUEST,
        CrossSiteRequest::UntrustedHost => StatusCode::MISDIRECTED_REQUEST,
        CrossSiteRequest::OtherOrigin => StatusCode::FORBIDDEN,
    };
    Some(text_response(status, format!("{rejection}\n")))
}

/// Returns the metrics of the sidecar and of the application, in the requested format and with the requested names.
pub(crate) async fn metrics_response<B>(
    admin: &Admin,
    request: &Request<B>,
) -> Response<Full<Bytes>> {
    let mut text = String::new();
    let alias_names = match AliasNames::from_query(request.uri().query().unwrap_or_default()) {
        Ok(alias_names) => alias_names,
        Err(message) => return text_response(StatusCode::BAD_REQUEST, message),
    };
    if let Some(alias_names) = alias_names {
        let workload = &admin.config.workload;
        let (namespace, name) = (workload.namespace.as_str(), workload.name.as_str());
        admin.telemetry.expose_as(alias_names, namespace, name, &mut text);
        text.push_str(&application_metrics(admin).await);
        return build_response(StatusCode::OK, ExpositionFormat::Prometheus.content_type(), text);
    }
    let accept_header = request.headers().get(hyper::header::ACCEPT);
    let accept = accept_header.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let format = match admin.config.application_metrics {
        // OpenMetrics permits no text after its end marker.
        Some(_) => ExpositionFormat::Prometheus,
        None => ExpositionFormat::from_accept(accept),
    };
    admin.telemetry.expose(format, &mut text);
    text.push_str(&application_metrics(admin).await);
    build_response(StatusCode::OK, format.content_type(), text)
}

/// Returns the application's own metrics; empty if they are not configured or cannot be read.
async fn application_metrics(admin: &Admin) -> String {
    let Some(application_metrics) = &admin.config.application_metrics else { return String::new() };
    let scraped_metrics = match admin.scrape_state.permits.try_acquire() {
        Ok(_permit) => application_metrics.scrape(&admin.config).await,
        Err(_) => Err(ScrapeError::Busy),
    };
    let was_healthy = admin.scrape_state.is_healthy.replace(scraped_metrics.is_ok());
    match scraped_metrics {
        Ok(metrics_text) => {
            admin.metrics.add(Count::ApplicationScraped, 1);
            metrics_text
        }
        Err(error) => {
            admin.metrics.add(Count::ApplicationScrapeFailed, 1);
            // Logged once per outage: a metric counts the failures.
            if was_healthy
                && let Some(line) =
                    admin.scrape_state.log_limit.borrow_mut().permit_line(Instant::now())
            {
                let suppressed = line.suppressed;
                tracing::warn!(%error, suppressed, "the application's metrics are omitted");
            }
            String::new()
        }
    }
}

/// Reports whether the proxy is ready, and the reason if not.
pub(crate) fn readiness_response(admin: &Admin) -> Response<Full<Bytes>> {
    match page::unready_reason(admin) {
        None => text_response(StatusCode::OK, "ready\n".into()),
        Some(reason) => text_response(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

fn json_response(value: &serde_json::Value) -> Response<Full<Bytes>> {
    build_response(StatusCode::OK, "application/json", format!("{value:#}\n"))
}

/// Builds a plain text response.
pub(crate) fn text_response(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    build_response(status, "text/plain; charset=utf-8", body)
}

fn build_response(
    status: StatusCode,
    content_type: &'static str,
    body: String,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, content_type);
    response
}

/// The response header with the name of this proxy's workload.
pub(crate) const WORKLOAD_FIELD: &str = "leno-workload";
/// The body for `/` and unknown paths: the list of paths.
const INDEX: &str = "leno proxy: /metrics /ready /config /connections /requests /ejected /circuits /connectivity?service=NS/NAME\n";
/// The maximum number of queued queries of the control plane. Each stream has at most one; queries of ended
/// streams are dropped.
pub(crate) const MAX_QUEUED_QUERIES: usize = 4;
/// The maximum number of concurrent scrapes of the application, since each may hold 8 MiB of metrics; further scrapes
/// omit its metrics.
const MAX_SCRAPES: usize = 4;
/// The maximum number of concurrent admin connections; further connections wait. At most half of them may be
/// without a request.
const MAX_CONNECTIONS: usize = 64;
/// The maximum time in which the head of a request must arrive.
const HEAD_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);
