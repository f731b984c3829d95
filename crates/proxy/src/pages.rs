//! Listener, connections and shutdown of the admin and health servers. At shutdown, responses in progress are
//! completed.

use std::error::Error;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1::Connection;
use hyper::service::HttpService;
use hyper_util::rt::TokioIo;
use leno_listen::{Evicted, HalfOpen, Listener};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;

use crate::drain::Phase;

/// The listener of the admin or health server.
pub(crate) struct PageListener {
    listener: Listener<TcpListener>,
    phase: watch::Receiver<Phase>,
}

impl PageListener {
    pub(crate) fn new(
        server: &'static str,
        listener: TcpListener,
        phase: watch::Receiver<Phase>,
    ) -> Self {
        Self { listener: Listener::new(server, listener), phase }
    }

    /// Accepts the next connection; `None` if the proxy has stopped and no connection is waiting.
    pub(crate) async fn accept(&mut self) -> Option<(TcpStream, SocketAddr)> {
        let stopped = async { drop(self.phase.wait_for(|phase| *phase == Phase::Stopped).await) };
        self.listener.next_until(stopped).await
    }
}

/// Serves a connection of the admin or health server. Once the proxy has stopped, the connection ends after the
/// request in progress; a connection without a request is closed at once.
pub(crate) async fn serve_page<S>(
    half_open: &HalfOpen,
    connection: Connection<TokioIo<TcpStream>, S>,
    mut phase: watch::Receiver<Phase>,
) -> Result<hyper::Result<()>, Evicted>
where
    S: HttpService<Incoming, ResBody = Full<Bytes>>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        result = half_open.serve_connection(connection.as_mut()) => return result,
        _ = phase.wait_for(|phase| *phase == Phase::Stopped) => {}
    }
    connection.as_mut().graceful_shutdown();
    Ok(connection.await)
}

/// Runs `serving`, which ends after the last response, until at most [`MAX_FINAL_RESPONSE_TIME`] after the
/// proxy has stopped.
pub(crate) async fn run_bounded(
    mut phase: watch::Receiver<Phase>,
    serving: impl Future<Output = ()>,
) {
    let deadline = async {
        // The sender outlives the pages.
        drop(phase.wait_for(|phase| *phase == Phase::Stopped).await);
        sleep(MAX_FINAL_RESPONSE_TIME).await;
    };
    tokio::select! {
        () = serving => {}
        () = deadline => {}
    }
}

/// Waits until every connection has released its permit.
pub(crate) async fn wait_for_connections(permits: &Semaphore, count: usize) {
    // The semaphore is never closed.
    drop(permits.acquire_many(count.try_into().unwrap_or(u32::MAX)).await);
}

/// The maximum time for the last responses after the proxy has stopped.
const MAX_FINAL_RESPONSE_TIME: Duration = Duration::from_secs(1);
