//! HTTPS for the API server: connections within bounds, one question after another on each.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use rustls::ServerConfig;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::review::Review;
use crate::api::{ObjectApi, ObjectName};
use crate::inject::{NamespaceFacts, Settings};

/// What every connection needs.
struct Answering {
    client: Client,
    settings: watch::Receiver<Settings>,
}

/// Answers for ever; connections end with it.
pub(super) async fn serve_all(
    listener: TcpListener,
    client: Client,
    (configs, settings): (watch::Receiver<Option<Arc<ServerConfig>>>, watch::Receiver<Settings>),
) {
    let answering = Arc::new(Answering { client, settings });
    let places = Arc::new(Places::default());
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => accepted,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection for the webhook cannot be accepted; waiting a moment");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (Some(place), Some(config)) = (places.take(from.ip()), configs.borrow().clone()) else {
            tracing::debug!(%from, "too many connections for the webhook from there");
            continue;
        };
        let answering = Arc::clone(&answering);
        connections.spawn(async move {
            serve_one(stream, config, answering).await;
            drop(place);
        });
    }
}

async fn serve_one(stream: TcpStream, config: Arc<ServerConfig>, answering: Arc<Answering>) {
    let handshake = timeout(HANDSHAKE_MAX, TlsAcceptor::from(config).accept(stream));
    let stream = match handshake.await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "a handshake with the webhook failed"),
        Err(_) => return,
    };
    let service = service_fn(move |request| {
        let answering = Arc::clone(&answering);
        async move { Ok::<_, Infallible>(answering.answer(request).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_MAX)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection for the webhook ended badly");
    }
}

impl Answering {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        if request.uri().path() != MUTATE_PATH {
            return text(StatusCode::NOT_FOUND, "there is nothing here; ask /mutate");
        }
        if request.method() != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "send an AdmissionReview");
        }
        let body = Limited::new(request.into_body(), BODY_MAX).collect();
        let body = match timeout(BODY_TIME_MAX, body).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(_)) => return text(StatusCode::PAYLOAD_TOO_LARGE, "too much, or broken off"),
            Err(_) => return text(StatusCode::REQUEST_TIMEOUT, "the body did not come"),
        };
        match Review::parse(&body) {
            Ok(review) => json(&self.mutate(&review).await),
            Err(error) => text(StatusCode::BAD_REQUEST, &error.to_string()),
        }
    }

    async fn mutate(&self, review: &Review) -> Value {
        let Some(namespace) = review.namespace_of_pod() else { return review.allow() };
        let namespaces: ObjectApi<Namespace> = ObjectApi::all(self.client.clone());
        let name = ObjectName::from(namespace);
        let namespace = match timeout(NAMESPACE_MAX, namespaces.get(&name)).await {
            Ok(Ok(namespace)) => namespace,
            Ok(Err(error)) => {
                // The client may not be the API server: the reason is for the log.
                tracing::warn!(%namespace, %error, "the namespace of a pod cannot be read");
                return review.refuse(UNAVAILABLE, UNREADABLE);
            }
            Err(_) => {
                tracing::warn!(%namespace, "the namespace of a pod is not answered in time");
                return review.refuse(UNAVAILABLE, UNREADABLE);
            }
        };
        let facts = NamespaceFacts::from(namespace);
        let settings = self.settings.borrow().clone();
        review.mutate(&facts, &settings)
    }
}

/// How many connections each address has: the API server keeps a few, and nobody can take them all.
#[derive(Default)]
struct Places(Mutex<BTreeMap<IpAddr, usize>>);

struct Place {
    places: Arc<Places>,
    address: IpAddr,
}

impl Places {
    fn take(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        // Whoever died while it held the lock left nothing half done.
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(address).or_default();
        if *count >= CONNECTIONS_OF_ONE_MAX {
            return None;
        }
        *count += 1;
        Some(Place { places: Arc::clone(self), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.address);
            }
        }
    }
}

fn json(value: &Value) -> Response<Full<Bytes>> {
    typed(StatusCode::OK, "application/json", value.to_string())
}

fn text(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    typed(status, "text/plain; charset=utf-8", format!("{text}\n"))
}

fn typed(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Where pods are asked about.
pub const MUTATE_PATH: &str = "/mutate";
/// The API server takes objects of 3 MiB at most, and asks with old and new.
const BODY_MAX: usize = 8 << 20;
const BODY_TIME_MAX: Duration = Duration::from_secs(5);
const CONNECTIONS_MAX: usize = 1024;
/// An API server that creates many pods at once opens a connection for each.
const CONNECTIONS_OF_ONE_MAX: usize = 256;
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Longer than the 90 s after which the API server itself lets go: a connection that both may close
/// at once loses questions.
const IDLE_MAX: Duration = Duration::from_secs(120);
const NAMESPACE_MAX: Duration = Duration::from_secs(4);
/// When the system has no more descriptors, asking again at once would only burn time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const UNAVAILABLE: u16 = 503;
const UNREADABLE: &str =
    "the namespace cannot be read at the moment; try again, and see the log of the control plane";
