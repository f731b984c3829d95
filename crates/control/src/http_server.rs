//! Serves HTTP/1.1 for the admin socket, the browser page and the health listener. The number of connections and the
//! duration of each wait are limited.

use std::convert::Infallible;
use std::error::Error;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use leno_identity::{AcceptedHosts, CrossSiteRequest, check_origin, request_host, single_value};
use leno_listen::{
    Accept, ConnectionAdmission, ConnectionSource, Listener, PendingConnection, PendingLimits,
    StopSignal,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The request handler of a server.
pub(crate) trait RequestHandler: Send + Sync + 'static {
    /// The response body.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>>
        + Unpin
        + Send
        + 'static;

    /// The name of the server in log messages.
    const SERVER: &'static str;

    /// The maximum lifetime of a connection; unlimited if absent.
    const MAX_LIFE: Option<Duration>;

    /// Returns the response to a request from this source.
    fn handle_request(
        &self,
        request: Request<Incoming>,
        source: ConnectionSource,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// A connection of a client.
pub(crate) trait HttpConnection: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Sets `TCP_NODELAY`, so that responses are sent as soon as they are written.
    fn disable_nagle(&self) {}
}

impl HttpConnection for UnixStream {}

impl HttpConnection for TcpStream {
    fn disable_nagle(&self) {
        // An error means that the client disconnected; the first read reports it.
        self.set_nodelay(true).ok();
    }
}

/// Serves until shutdown, on at most `max_connections` concurrent connections; further connections wait. At most half
/// of the connections may wait for a request of their client. After shutdown, responses in progress complete, for at
/// most [`DRAIN_TIMEOUT`].
pub(crate) async fn serve_all<L, H>(
    listener: L,
    max_connections: usize,
    handler: Arc<H>,
    stop: watch::Receiver<bool>,
) where
    L: Accept<Stream: HttpConnection>,
    H: RequestHandler,
{
    let stop = StopSignal::new(stop);
    let accept_loop = accept_connections(listener, max_connections, handler, stop.clone());
    if stop.run_bounded(DRAIN_TIMEOUT, accept_loop).await.is_none() {
        tracing::debug!(server = H::SERVER, "some responses were not completed in time");
    }
}

async fn accept_connections<L, H>(
    listener: L,
    max_connections: usize,
    handler: Arc<H>,
    mut stop: StopSignal,
) where
    L: Accept<Stream: HttpConnection>,
    H: RequestHandler,
{
    let bounds = PendingLimits::new(max_connections / 2, max_connections);
    // At the limit, a connection of the source with the most connections is evicted. There is no lower limit per
    // source, because all operators may share one source.
    let admission =
        ConnectionAdmission::new(PendingLimits { waiting_per_source: bounds.waiting, ..bounds });
    let mut listener = Listener::new(H::SERVER, listener);
    let mut connections = JoinSet::new();
    loop {
        let has_room = connections.len() < max_connections;
        let accepted = tokio::select! {
            // A connection has ended, so there may be room again.
            Some(_) = connections.join_next() => continue,
            accepted = listener.next_until(stop.wait_requested()), if has_room => accepted,
        };
        let Some((stream, peer)) = accepted else { break };
        let source: ConnectionSource = peer.into();
        let pending_connection = admission.admit(source);
        let handler = Arc::clone(&handler);
        connections.spawn(serve_connection(
            stream,
            pending_connection,
            source,
            handler,
            stop.clone(),
        ));
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn serve_connection<H: RequestHandler>(
    stream: impl HttpConnection,
    pending_connection: PendingConnection,
    source: ConnectionSource,
    handler: Arc<H>,
    stop: StopSignal,
) {
    stream.disable_nagle();
    let service = service_fn(|request: Request<Incoming>| {
        let (handler, pending_connection, stop) =
            (Arc::clone(&handler), &pending_connection, stop.clone());
        async move {
            let request_in_progress = pending_connection.start_request();
            let response = handler.handle_request(request, source).await;
            // A body without a length is a stream of events. It is written after the handler has returned.
            if response.body().size_hint().exact().is_none() {
                request_in_progress.keep_until_closed();
            }
            Ok::<_, Infallible>(end_at_stop(response, stop))
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        // A client that half-closes after its request awaits the response (RFC 9112 §9.6).
        .half_close(true)
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let expiry = async {
        match H::MAX_LIFE {
            Some(max_life) => tokio::time::sleep(max_life).await,
            None => std::future::pending().await,
        }
    };
    let serve_future =
        stop.clone().serve_connection(&pending_connection, connection.as_mut(), |connection| {
            connection.graceful_shutdown()
        });
    // A client that does not read its response may not hold the connection forever.
    let result = tokio::select! {
        // An evicted connection is closed without an error.
        result = serve_future => result.unwrap_or(Ok(())),
        () = expiry => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(LAST_RESPONSE_TIMEOUT, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "an operator connection failed");
    }
}

/// Marks a response as the last one of its connection after shutdown. An endless body ends at shutdown.
fn end_at_stop<B: Body>(
    mut response: Response<B>,
    mut stop: StopSignal,
) -> Response<EndsAtStop<B>> {
    if stop.is_requested() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let is_endless = response.body().size_hint().exact().is_none();
    response.map(|body| EndsAtStop {
        body,
        stopped: is_endless.then(|| Box::pin(async move { stop.wait_requested().await }) as _),
    })
}

/// A body that ends when its server shuts down.
struct EndsAtStop<B> {
    body: B,
    /// Ready at shutdown; `None` if the body ends by itself.
    stopped: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<B: Body + Unpin> Body for EndsAtStop<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        if let Some(stopped) = &mut self.stopped
            && stopped.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(None);
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns the error response to a cross-site request; `None` for any other request. `is_page` is true for a request
/// for an HTML page or a file of it, which links on other sites may open.
pub(crate) fn reject_cross_site(
    uri: &Uri,
    headers: &HeaderMap,
    accepted_hosts: AcceptedHosts,
    is_page: bool,
) -> Option<Response<Full<Bytes>>> {
    let values = |name: &'static str| headers.get_all(name).iter();
    let field = |name: &'static str| {
        single_value(values(name).map(|value| value.to_str().unwrap_or_default()))
    };
    let hosts = headers.get_all(HOST).iter().map(|value| value.to_str().unwrap_or_default());
    let host = request_host(uri.authority().map(|authority| authority.as_str()), hosts);
    let violation =
        host.and_then(|host| check_origin(host, field, accepted_hosts, is_page)).err()?;
    let status = match violation {
        CrossSiteRequest::MultipleHosts => StatusCode::BAD_REQUEST,
        CrossSiteRequest::UntrustedHost => StatusCode::MISDIRECTED_REQUEST,
        CrossSiteRequest::OtherOrigin => StatusCode::FORBIDDEN,
    };
    Some(text_response(status, format!("{violation}\n")))
}

pub(crate) fn text_response(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    typed_response(status, "text/plain; charset=utf-8", body)
}

pub(crate) fn typed_response(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    typed_body(status, content_type, Full::new(body.into()))
}

pub(crate) fn typed_body<B>(
    status: StatusCode,
    content_type: &'static str,
    body: B,
) -> Response<B> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Decodes a percent-encoded part of a query (RFC 3986 §2.1); `None` unless it is percent-encoded UTF-8.
pub(crate) fn decode_percent(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut remaining = text.bytes();
    while let Some(byte) = remaining.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let high = char::from(remaining.next()?).to_digit(16)?;
        let low = char::from(remaining.next()?).to_digit(16)?;
        bytes.push(u8::try_from(high << 4 | low).ok()?);
    }
    String::from_utf8(bytes).ok()
}

/// The timeout for a request head, including the wait for its first byte.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// The timeout for the last response of a connection at the end of its lifetime.
const LAST_RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The timeout for responses in progress at shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
