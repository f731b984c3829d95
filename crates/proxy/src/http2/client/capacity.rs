//! Acquires a stream slot in an HTTP/2 pool: on an open connection, or on a new one. Requests without a free
//! slot wait in a queue.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::SendRequest;
use leno_model::Reason;
use leno_telemetry::Count;
use tokio::sync::{Mutex, Notify};
use tokio::time::{sleep, timeout};

use super::{
    Http2Checkout, Http2Connection, Http2Pool, MAX_CONNECTIONS, MAX_SHORT_CONNECTIONS,
    SHORT_CONNECTION_STREAMS, connect_http2,
};
use crate::io::Io;
use crate::upstream::connect;
use crate::worker::Worker;

/// The requests that wait for room, in order of arrival. The first one gets the next slot.
#[derive(Default)]
pub(super) struct PendingQueue {
    /// Held by the first request in the queue. The lock is fair, so requests get it in order of arrival.
    turn_lock: Mutex<()>,
    /// The number of requests in the queue.
    length: Cell<usize>,
}

/// A request in the queue.
struct QueuePosition<'a>(&'a PendingQueue);

impl<'a> QueuePosition<'a> {
    fn join_queue(queue: &'a PendingQueue) -> Self {
        queue.length.set(queue.length.get() + 1);
        Self(queue)
    }
}

impl Drop for QueuePosition<'_> {
    fn drop(&mut self) {
        self.0.length.set(self.0.length.get() - 1);
    }
}

/// The attempts to open another connection. They continue after the request that started them has ended.
#[derive(Default)]
pub(super) struct ConnectionAttempts {
    /// The number of attempts that have not ended.
    in_progress: Cell<usize>,
    /// The last attempt, if it failed.
    last_failure: Cell<Option<FailedConnect>>,
    /// Wakes the request that waits for the end of an attempt.
    attempt_ended: Notify,
}

/// A failed attempt to open a connection.
#[derive(Clone, Copy)]
struct FailedConnect {
    reason: Reason,
    failed_at: Instant,
    /// The time limit of the attempt.
    max_wait: Duration,
}

/// A request that waits for a stream to an application.
struct StreamRequest<'a> {
    address: SocketAddr,
    worker: &'a Rc<Worker>,
    max_wait: Duration,
    waiting_since: Instant,
}

impl Http2Pool {
    /// Returns the first connection with room; `None` if no connection has room, or other requests wait for it.
    pub(crate) fn acquire_ready(&self) -> Option<Http2Checkout> {
        match self.open_connections.pending_queue.length.get() {
            0 => self.acquire_with_room(),
            _ => None,
        }
    }

    /// Returns a connection to the application on which a stream may be opened now, within `max_wait`.
    pub(crate) async fn acquire_within(
        &self,
        address: SocketAddr,
        worker: &Rc<Worker>,
        max_wait: Duration,
    ) -> Result<Http2Checkout, Reason> {
        if let Some(checkout) = self.acquire_ready() {
            worker.metrics.add(Count::CheckoutReused, 1);
            return Ok(checkout);
        }
        let request = StreamRequest { address, worker, max_wait, waiting_since: Instant::now() };
        let queue = &self.open_connections.pending_queue;
        let _queue_position = QueuePosition::join_queue(queue);
        let wait_for_turn = async {
            let turn_guard = queue.turn_lock.lock().await;
            (turn_guard, self.wait_for_room().await)
        };
        let (_turn, checkout) =
            timeout(max_wait, wait_for_turn).await.map_err(|_| self.timeout_reason())?;
        match checkout {
            Some(checkout) => Ok(checkout),
            None => timeout(max_wait, self.acquire_on_any(request))
                .await
                .map_err(|_| self.timeout_reason())?,
        }
    }

    /// Returns the reason for a timeout. A server without room for a stream is busy, not unresponsive.
    fn timeout_reason(&self) -> Reason {
        match self.is_open() {
            true => Reason::UpstreamRefused,
            false => Reason::ConnectTimeout,
        }
    }

    /// Waits for room on a new connection or on an open one, whichever comes first. If no connection can be
    /// opened, the request waits for the open ones: a server may accept only a few.
    async fn acquire_on_any(
        &self,
        mut request: StreamRequest<'_>,
    ) -> Result<Http2Checkout, Reason> {
        loop {
            if let Some(checkout) = self.wait_for_room().await {
                return Ok(checkout);
            }
            let attempts = &self.open_connections.attempts;
            let last_failure = attempts.last_failure.get();
            let shared_failure = last_failure.filter(|failure| request.shares_failure(failure));
            let has_failed =
                last_failure.is_some_and(|failure| failure.failed_at.elapsed() < FAILURE_PAUSE);
            if self.is_open() && (has_failed || shared_failure.is_some()) {
                if let Ok(Some(checkout)) =
                    timeout(FAILURE_PAUSE, self.wait_for_room_on_open()).await
                {
                    return Ok(checkout);
                }
                // The failure no longer concerns this request, so another attempt may start.
                request.waiting_since = Instant::now();
                continue;
            }
            match shared_failure {
                Some(failure) if attempts.in_progress.get() == 0 => return Err(failure.reason),
                // An attempt in progress may still succeed.
                Some(_) => {}
                None => self.start_attempts(&request),
            }
            tokio::select! {
                biased;
                () = attempts.attempt_ended.notified() => {}
                Some(checkout) = self.wait_for_room_on_open() => return Ok(checkout),
            }
        }
    }

    /// Starts attempts to open further connections, each in a separate task.
    fn start_attempts(&self, request: &StreamRequest<'_>) {
        let attempts_in_progress = &self.open_connections.attempts.in_progress;
        while attempts_in_progress.get() < self.max_concurrent_attempts() {
            attempts_in_progress.set(attempts_in_progress.get() + 1);
            request.worker.metrics.add(Count::CheckoutOpened, 1);
            // The task is not aborted: it ends within its timeout.
            let (pool, worker) = (self.clone(), request.worker.clone());
            tokio::task::spawn_local(pool.attempt_connection(
                request.address,
                worker,
                request.max_wait,
            ));
        }
    }

    /// Tries to open one connection, and adds it to the pool or records the failure.
    async fn attempt_connection(self, address: SocketAddr, worker: Rc<Worker>, max_wait: Duration) {
        // Requests with longer timeouts may wait for this attempt too.
        let max_wait = max_wait.max(worker.config.limits.connect_timeout);
        let connect = async || -> Result<_, Reason> {
            let connection = connect::connect_application(address, &worker, max_wait).await?;
            Ok((connection.reader.io.clone(), connection))
        };
        let timed_result = timeout(max_wait, connect_and_handshake(connect)).await;
        let connect_result = timed_result.unwrap_or(Err(Reason::ConnectTimeout));
        let failure_reason = connect_result.map(|sender| self.add_connection(sender, None)).err();
        let failure = failure_reason.map(|reason| FailedConnect {
            reason,
            failed_at: Instant::now(),
            max_wait,
        });
        let ConnectionAttempts { in_progress: attempts_in_progress, last_failure, attempt_ended } =
            &self.open_connections.attempts;
        last_failure.set(failure);
        attempts_in_progress.set(attempts_in_progress.get() - 1);
        attempt_ended.notify_waiters();
    }

    /// Returns the maximum number of concurrent attempts. If a connection takes few streams, sequential
    /// attempts would be slower than the server.
    fn max_concurrent_attempts(&self) -> usize {
        let streams_per_connection = self.server.streams_per_connection.get();
        if streams_per_connection >= SHORT_CONNECTION_STREAMS {
            return 1;
        }
        let needed_connections = self.open_connections.pending_queue.length.get()
            / usize::try_from(streams_per_connection).unwrap_or(1).max(1);
        let available_connections =
            MAX_SHORT_CONNECTIONS.saturating_sub(self.open_connections.connections.borrow().len());
        needed_connections.min(available_connections).clamp(1, MAX_CONCURRENT_ATTEMPTS)
    }

    /// Waits for a connection with room. Returns `None` at once if another connection may be opened.
    pub(crate) async fn wait_for_room(&self) -> Option<Http2Checkout> {
        loop {
            if let Some(checkout) = self.acquire_with_room() {
                return Some(checkout);
            }
            if self.open_connections.connections.borrow().len() < self.max_connections() {
                return None;
            }
            if let Some(checkout) = self.acquire_where(Http2Connection::may_open) {
                return Some(checkout);
            }
            self.server.room_notify.notified().await;
        }
    }

    /// Waits for room on one of the open connections. Returns `None` if no connection is open.
    pub(crate) async fn wait_for_room_on_open(&self) -> Option<Http2Checkout> {
        loop {
            if let Some(checkout) = self.acquire_with_room() {
                return Some(checkout);
            }
            if !self.is_open() {
                return None;
            }
            self.server.room_notify.notified().await;
        }
    }

    /// Returns the maximum number of connections; it is higher for a server that takes few streams on each.
    fn max_connections(&self) -> usize {
        match self.server.streams_per_connection.get() < SHORT_CONNECTION_STREAMS {
            true => MAX_SHORT_CONNECTIONS,
            false => MAX_CONNECTIONS,
        }
    }
}

impl StreamRequest<'_> {
    /// True if the request was waiting when the attempt failed, and has no longer timeout: another attempt
    /// would give the same result.
    fn shares_failure(&self, failure: &FailedConnect) -> bool {
        let had_time =
            failure.reason != Reason::ConnectTimeout || self.max_wait <= failure.max_wait;
        failure.failed_at >= self.waiting_since && had_time
    }
}

/// Opens a connection with `connect`, and performs the HTTP/2 handshake. A connection that the server ends
/// before any stream has carried no request, so another one is opened (RFC 9113 §6.8 and §8.7), after a short
/// pause and a limited number of times.
///
/// # Errors
/// Those of `connect` and [`connect_http2`].
pub(crate) async fn connect_and_handshake<Guard: 'static, Error: From<Reason>>(
    connect: impl AsyncFn() -> Result<(Io, Guard), Error>,
) -> Result<SendRequest<Bytes>, Error> {
    let mut ended_count = 0;
    loop {
        let (io, guard) = connect().await?;
        match connect_http2(io, guard).await {
            Err(Reason::ConnectFailed) if ended_count + 1 < MAX_HANDSHAKES => {
                sleep(HANDSHAKE_PAUSE * ended_count).await;
                ended_count += 1;
            }
            result => return result.map_err(Error::from),
        }
    }
}

/// The maximum number of concurrent attempts to a server that takes few streams per connection.
const MAX_CONCURRENT_ATTEMPTS: usize = 4;
/// The maximum number of connections per attempt to a server that ends each of them before any stream. Several
/// are normal for a server that is short of resources or restarts.
const MAX_HANDSHAKES: u32 = 8;
/// The increment of the pause before each further connection.
const HANDSHAKE_PAUSE: Duration = Duration::from_millis(1);
/// The time after a failed attempt in which requests wait for the open connections only.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);
