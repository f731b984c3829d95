//! Accepts and serves connections of the two management servers, the proxy's own HTTP servers: the admin endpoint
//! and the health server. At shutdown, responses in progress are completed.

use std::error::Error;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1::Connection;
use hyper::service::HttpService;
use hyper_util::rt::TokioIo;
use leno_listen::{Evicted, Listener, PendingConnection};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;

use crate::drain::Phase;

/// The listener of a management server.
pub(crate) struct ManagementListener {
    listener: Listener<TcpListener>,
    phase: watch::Receiver<Phase>,
}

impl ManagementListener {
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

/// Serves a connection of a management server. Once the proxy has stopped, the connection ends after the request
/// in progress; a connection without a request is closed at once.
///
/// # Errors
/// [`Evicted`] if the connection was without a request and had to make room for others.
pub(crate) async fn serve_connection<S>(
    pending_connection: &PendingConnection,
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
        result = pending_connection.serve_connection(connection.as_mut()) => return result,
        _ = phase.wait_for(|phase| *phase == Phase::Stopped) => {}
    }
    connection.as_mut().graceful_shutdown();
    Ok(connection.await)
}

/// Runs a management server, `serving`, which ends by itself after its last response. Aborts it
/// [`MAX_FINAL_RESPONSE_TIME`] after the proxy has stopped.
pub(crate) async fn run_until_deadline(
    mut phase: watch::Receiver<Phase>,
    serving: impl Future<Output = ()>,
) {
    let deadline = async {
        // The wait cannot fail: the sender of the phase outlives the management servers.
        drop(phase.wait_for(|phase| *phase == Phase::Stopped).await);
        sleep(MAX_FINAL_RESPONSE_TIME).await;
    };
    tokio::select! {
        () = serving => {}
        () = deadline => {}
    }
}

/// Waits until every connection has released its permit. `max_connections` is the number of all permits.
pub(crate) async fn wait_for_connections(permits: &Semaphore, max_connections: usize) {
    // The semaphore is never closed.
    drop(permits.acquire_many(max_connections.try_into().unwrap_or(u32::MAX)).await);
}

/// The maximum time for the last responses after the proxy has stopped.
const MAX_FINAL_RESPONSE_TIME: Duration = Duration::from_secs(1);
