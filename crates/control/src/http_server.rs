//! A bounded HTTP server: limits for connections and for each wait.

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
use leno_identity::{AcceptedHosts, CrossSiteRequest, check_origin, named_host, only_value};
use leno_listen::{
    Accept, ConnectionAdmission, ConnectionSource, HalfOpen, HalfOpenLimits, Listener, StopSignal,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// An HTTP request handler.
pub(crate) trait RequestHandler: Send + Sync + 'static {
    /// The response body.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>>
        + Unpin
        + Send
        + 'static;

    /// The name of the server in the log.
    const SERVER: &'static str;

    /// The maximum lifetime of a connection; unlimited if absent.
    const LIFE_MAX: Option<Duration>;

    /// Returns the response to a request from this source.
    fn handle_request(
        &self,
        request: Request<Incoming>,
        source: ConnectionSource,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// A client connection.
pub(crate) trait HttpConnection: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Sends responses as soon as they are written (`TCP_NODELAY`).
    fn send_at_once(&self) {}
}

impl HttpConnection for UnixStream {}

impl HttpConnection for TcpStream {
    fn send_at_once(&self) {
        // An error means that the client disconnected; the first read reports it.
        self.set_nodelay(true).ok();
    }
}

/// Serves until shutdown, on at most `connections_max` concurrent connections; more wait. At most half of them
/// may be without a request. After shutdown it completes the responses in progress, within a bound.
pub(crate) async fn serve_all<L, A>(
    listener: L,
    connections_max: usize,
    answering: Arc<A>,
    stop: watch::Receiver<bool>,
) where
    L: Accept<Stream: HttpConnection>,
    A: RequestHandler,
{
    let stop = StopSignal::new(stop);
    let serving = accept_all(listener, connections_max, answering, stop.clone());
    if stop.run_bounded(LAST_MAX, serving).await.is_none() {
        tracing::debug!(server = A::SERVER, "some responses were not completed in time");
    }
}

async fn accept_all<L, A>(
    listener: L,
    connections_max: usize,
    answering: Arc<A>,
    mut stop: StopSignal,
) where
    L: Accept<Stream: HttpConnection>,
    A: RequestHandler,
{
    let bounds = HalfOpenLimits::new(connections_max / 2, connections_max);
    // At the limit, the source with the most connections is evicted first. No lower limit per source applies:
    // all operators may share one source.
    let admission =
        ConnectionAdmission::new(HalfOpenLimits { waiting_of_source: bounds.waiting, ..bounds });
    let mut listener = Listener::new(A::SERVER, listener);
    let mut connections = JoinSet::new();
    loop {
        let room = connections.len() < connections_max;
        let next = tokio::select! {
            Some(_) = connections.join_next() => continue,
            next = listener.next_until(stop.wait_requested()), if room => next,
        };
        let Some((stream, peer)) = next else { break };
        let source: ConnectionSource = peer.into();
        let half_open = admission.admit(source);
        let answering = Arc::clone(&answering);
        connections.spawn(serve_one(stream, half_open, source, answering, stop.clone()));
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn serve_one<A: RequestHandler>(
    stream: impl HttpConnection,
    half_open: HalfOpen,
    source: ConnectionSource,
    answering: Arc<A>,
    stop: StopSignal,
) {
    stream.send_at_once();
    let service = service_fn(|request: Request<Incoming>| {
        let (answering, half_open, stop) = (Arc::clone(&answering), &half_open, stop.clone());
        async move {
            let under_way = half_open.start_response();
            let response = answering.handle_request(request, source).await;
            if response.body().size_hint().exact().is_none() {
                under_way.go_on();
            }
            Ok::<_, Infallible>(until_stop(response, stop))
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        // A client that half-closes after its request awaits the response (RFC 9112 §9.6).
        .half_close(true)
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let old_age = async {
        match A::LIFE_MAX {
            Some(life) => tokio::time::sleep(life).await,
            None => std::future::pending().await,
        }
    };
    let serving =
        stop.clone().serve_connection(&half_open, connection.as_mut(), |it| it.graceful_shutdown());
    // A client that does not read its response may not hold the connection forever.
    let served = tokio::select! {
        served = serving => served.unwrap_or(Ok(())),
        () = old_age => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(SHUTDOWN_MAX, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "an operator connection failed");
    }
}

/// Marks a response as the last one of its connection after shutdown. An endless body ends at shutdown.
fn until_stop<B: Body>(mut response: Response<B>, mut stop: StopSignal) -> Response<UntilStop<B>> {
    if stop.is_requested() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let is_endless = response.body().size_hint().exact().is_none();
    response.map(|body| UntilStop {
        body,
        stopped: is_endless.then(|| Box::pin(async move { stop.wait_requested().await }) as _),
    })
}

/// A body that ends when its server shuts down.
struct UntilStop<B> {
    body: B,
    /// `None` if the body has an end of its own.
    stopped: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<B: Body + Unpin> Body for UntilStop<B> {
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

/// Returns the error response to a cross-site request, `None` for any other request.
pub(crate) fn reject_cross_site(
    uri: &Uri,
    headers: &HeaderMap,
    names: AcceptedHosts,
    is_page: bool,
) -> Option<Response<Full<Bytes>>> {
    let values = |name: &'static str| headers.get_all(name).iter();
    let field =
        |name: &'static str| only_value(values(name).map(|it| it.to_str().unwrap_or_default()));
    let hosts = headers.get_all(HOST).iter().map(|it| it.to_str().unwrap_or_default());
    let host = named_host(uri.authority().map(|it| it.as_str()), hosts);
    let found = host.and_then(|host| check_origin(host, field, names, is_page)).err()?;
    let status = match found {
        CrossSiteRequest::SeveralHosts => StatusCode::BAD_REQUEST,
        CrossSiteRequest::Host => StatusCode::MISDIRECTED_REQUEST,
        CrossSiteRequest::Site => StatusCode::FORBIDDEN,
    };
    Some(text_response(status, format!("{found}\n")))
}

pub(crate) fn text_response(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    typed_response(status, "text/plain; charset=utf-8", body)
}

pub(crate) fn typed_response(
    status: StatusCode,
    kind: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    typed_body(status, kind, Full::new(body.into()))
}

pub(crate) fn typed_body<B>(status: StatusCode, kind: &'static str, body: B) -> Response<B> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Decodes a percent-encoded part of a query (RFC 3986 §2.1); `None` unless it is percent-encoded UTF-8.
pub(crate) fn decode_percent(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let high = char::from(rest.next()?).to_digit(16)?;
        let low = char::from(rest.next()?).to_digit(16)?;
        bytes.push(u8::try_from(high << 4 | low).ok()?);
    }
    String::from_utf8(bytes).ok()
}

/// The timeout for a request head, including the wait for its first byte.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// The timeout for the last response of a connection at the end of its lifetime.
const SHUTDOWN_MAX: Duration = Duration::from_secs(10);

/// The timeout for responses in progress at shutdown.
const LAST_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
