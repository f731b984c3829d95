//! Answering HTTP on a listener: a bounded number of connections, each with a bounded wait.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

/// What answers requests.
pub(crate) trait Answering: Send + Sync + 'static {
    /// What an answer says.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static;

    /// How long a connection lasts before another one has to be opened; for ever when absent.
    const LIFE_MAX: Option<Duration>;

    /// The answer to one request.
    fn answer(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// What accepts connections.
pub(crate) trait Accepting {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Waits for the next one. Cancel-safe.
    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Accepting for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        Ok(self.accept().await?.0)
    }
}

impl Accepting for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.accept().await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// Answers until told to stop, on at most `connections_max` connections at once; more wait.
pub(crate) async fn serve_all<L: Accepting, A: Answering>(
    listener: L,
    connections_max: usize,
    answering: Arc<A>,
    mut stop: watch::Receiver<bool>,
) {
    let slots = Arc::new(Semaphore::new(connections_max));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            Some(_) = connections.join_next() => continue,
            accepted = next(&listener, &slots) => accepted,
        };
        match accepted {
            Ok((stream, slot)) => {
                let answering = Arc::clone(&answering);
                connections.spawn(async move {
                    serve_one(stream, answering).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection of an operator cannot be accepted; waiting a moment");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The next connection, once there is a slot for it.
async fn next<L: Accepting>(
    listener: &L,
    slots: &Arc<Semaphore>,
) -> io::Result<(L::Stream, OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await;
    let slot = slot.map_err(io::Error::other)?;
    Ok((listener.next().await?, slot))
}

async fn serve_one<A: Answering>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    answering: Arc<A>,
) {
    let service = service_fn(move |request| {
        let answering = Arc::clone(&answering);
        async move { Ok::<_, Infallible>(answering.answer(request).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let old_age = async {
        match A::LIFE_MAX {
            Some(life) => tokio::time::sleep(life).await,
            None => std::future::pending().await,
        }
    };
    // Whoever takes nothing of an answer is not to keep the place for ever.
    let served = tokio::select! {
        served = &mut connection => served,
        () = old_age => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(FAREWELL_MAX, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection of an operator ended badly");
    }
}

pub(crate) fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    typed(status, "text/plain; charset=utf-8", body)
}

pub(crate) fn typed(
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

/// What a part of a query says (RFC 3986 §2.1); none when it is not percent-encoded UTF-8.
pub(crate) fn decoded(text: &str) -> Option<String> {
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

/// Until the head of a request is there, the wait for its first byte included.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the last answer of one may take.
const FAREWELL_MAX: Duration = Duration::from_secs(10);

/// When the system has no more descriptors, asking again at once would only burn time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
