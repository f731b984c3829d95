//! The HTTP server of all demo services.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use leno_listen::Listener;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::response::{self, DemoResponse};
use super::reviews::{ReviewsVersion, StarColor};
use super::upstream::UpstreamClient;
use super::{details, gateway, productpage, ratings, reviews};

/// A demo service, with its version and the client for the services that it calls.
pub(super) enum ServiceApplication {
    Productpage(UpstreamClient),
    Details,
    UnratedReviews(ReviewsVersion),
    RatedReviews(ReviewsVersion, StarColor, UpstreamClient),
    Ratings,
    Gateway(UpstreamClient),
}

impl ServiceApplication {
    async fn handle_request(&self, request: &Request<Incoming>) -> DemoResponse {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return response::method_not_allowed();
        }
        let (uri, headers) = (request.uri(), request.headers());
        if uri.path() == "/health" {
            return response::json_response(StatusCode::OK, &json!({"status": "healthy"}));
        }
        match self {
            Self::Productpage(upstream) => productpage::serve_page(upstream, uri, headers).await,
            Self::Details => details::serve_details(uri.path()),
            Self::UnratedReviews(version) => reviews::serve_unrated(*version, uri.path()),
            Self::RatedReviews(version, color, upstream) => {
                reviews::serve_rated(*version, *color, upstream, uri.path(), headers).await
            }
            Self::Ratings => ratings::serve_ratings(uri.path()),
            Self::Gateway(upstream) => gateway::forward_ratings(upstream, uri, headers).await,
        }
    }
}

/// Serves until `stop` resolves, then completes requests in progress, within `DRAIN_TIMEOUT`.
pub(super) async fn serve(
    listener: TcpListener,
    application: ServiceApplication,
    stop: impl Future<Output = ()>,
) {
    let application = Rc::new(application);
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let (drain_sender, drain_receiver) = watch::channel(false);
    let mut listener = Listener::new("bookinfo", listener);
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            (stream, permit) = accept_connection(&mut listener, &permits) => {
                connections.spawn_local(serve_connection(
                    stream,
                    Rc::clone(&application),
                    drain_receiver.clone(),
                    permit,
                ));
            }
            Some(_) = connections.join_next() => {}
        }
    }
    // The port closes first, so that no connection arrives during the drain.
    drop(listener);
    drain_sender.send_replace(true);
    let drain_connections = async { while connections.join_next().await.is_some() {} };
    if timeout(DRAIN_TIMEOUT, drain_connections).await.is_err() {
        tracing::warn!("requests still in progress after {DRAIN_TIMEOUT:?} are aborted");
    }
}

/// Accepts the next connection once there is capacity; further connections wait in the kernel's queue. Returns the
/// connection with its permit, which is dropped when the connection ends.
async fn accept_connection(
    listener: &mut Listener<TcpListener>,
    permits: &Arc<Semaphore>,
) -> (TcpStream, OwnedSemaphorePermit) {
    let permit = Arc::clone(permits).acquire_owned().await.expect("the semaphore is never closed");
    (listener.accept().await.0, permit)
}

async fn serve_connection(
    stream: TcpStream,
    application: Rc<ServiceApplication>,
    mut drain_receiver: watch::Receiver<bool>,
    _permit: OwnedSemaphorePermit,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "the client disconnected immediately");
        return;
    }
    let service = service_fn(move |request| {
        let application = Rc::clone(&application);
        async move { Ok::<_, Infallible>(application.handle_request(&request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // A client may half-close after its request and still await the response (RFC 9112 section 9.6).
        .half_close(true)
        .header_read_timeout(IDLE_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        _ = drain_receiver.wait_for(|is_draining| *is_draining) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "connection closed early");
    }
}

/// The maximum number of concurrent connections, which bounds the memory of a demo service; the demo's client
/// opens far fewer.
pub(super) const MAX_CONNECTIONS: usize = 1024;

/// The maximum time that a connection waits for its next request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// The maximum time for requests in progress to complete after SIGTERM.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
