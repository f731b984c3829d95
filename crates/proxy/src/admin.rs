//! The admin page: read-only, on loopback, on the control thread.

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use leno_model::WorkloadName;
use leno_telemetry::{Form, Names, Telemetry};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::connections::Connections;
use crate::opened::Doors;
use crate::removed::RemovedEndpoints;
use crate::world::World;

mod page;

/// What the admin page shows.
pub(crate) struct Admin {
    /// Whose sidecar it is.
    pub(crate) workload: WorkloadName,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) world: Arc<World>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) removed: Arc<RemovedEndpoints>,
    pub(crate) doors: Doors,
    /// It is to serve a gateway.
    pub(crate) is_gateway: bool,
    /// Its ports were open once: those that are added later take nothing away from it.
    pub(crate) was_open: Cell<bool>,
}

/// Answers until the listener is dropped with the control thread.
pub(crate) async fn serve(listener: TcpListener, admin: Rc<Admin>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else {
            return;
        };
        let Ok((tcp, _)) = listener.accept().await else {
            continue;
        };
        let admin = admin.clone();
        tokio::task::spawn_local(async move {
            let answer = service_fn(|request| {
                let admin = admin.clone();
                async move { Ok::<_, Infallible>(answer(&admin, &request)) }
            });
            let served = hyper::server::conn::http1::Builder::new()
                .timer(hyper_util::rt::TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(tcp), answer);
            if let Err(error) = served.await {
                tracing::debug!(%error, "an admin connection ended badly");
            }
            drop(slot);
        });
    }
}

fn answer(admin: &Admin, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text(StatusCode::METHOD_NOT_ALLOWED, "this page is read-only: use GET\n".into());
    }
    match request.uri().path() {
        "/metrics" => metrics(admin, request),
        "/ready" => ready(admin),
        "/world" => json(&page::world(admin)),
        "/connections" => json(&page::connections(admin)),
        "/requests" => json(&page::requests(admin)),
        "/removed" => json(&page::removed(admin)),
        "/" => text(StatusCode::OK, INDEX.into()),
        _ => text(StatusCode::NOT_FOUND, INDEX.into()),
    }
}

/// All metrics, in the form that is asked for.
pub(crate) fn metrics(admin: &Admin, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let mut out = String::new();
    if let Some(query) = request.uri().query() {
        let named = query.strip_prefix("names=");
        let known = named.and_then(|named| Names::ALL.iter().find(|(word, _)| *word == named));
        let Some((_, names)) = known else {
            let problem = format!("`{query}` is not known here: use names=osm or names=fsm\n");
            return text(StatusCode::BAD_REQUEST, problem);
        };
        let workload = &admin.workload;
        let workload = (workload.namespace.as_str(), workload.name.as_str());
        admin.telemetry.expose_as(*names, workload, &mut out);
        return typed(StatusCode::OK, Form::Prometheus.content_type(), out);
    }
    let accept = request.headers().get(hyper::header::ACCEPT);
    let accept = accept.and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let form = Form::accepted(accept);
    admin.telemetry.expose(form, &mut out);
    typed(StatusCode::OK, form.content_type(), out)
}

/// Whether the proxy serves, and if not, why.
pub(crate) fn ready(admin: &Admin) -> Response<Full<Bytes>> {
    match page::unready(admin) {
        None => text(StatusCode::OK, "ready\n".into()),
        Some(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

fn json(value: &serde_json::Value) -> Response<Full<Bytes>> {
    typed(StatusCode::OK, "application/json", format!("{value:#}\n"))
}

pub(crate) fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    typed(status, "text/plain; charset=utf-8", body)
}

fn typed(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let kind = hyper::header::HeaderValue::from_static(kind);
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
    response
}

const INDEX: &str = "leno proxy: /metrics /ready /world /connections /requests /removed\n";
/// Admin connections at once; more wait.
const CONNECTIONS_MAX: usize = 16;
/// From the first byte of an admin request's head to its last.
const HEAD_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);
