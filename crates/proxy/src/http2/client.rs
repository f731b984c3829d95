//! Manages a pool of HTTP/2 connections to one server, shared by the requests of one thread. The pool learns
//! after how many streams a server ends its connections.

mod capacity;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Ping, Reason as Http2Code, SendStream};
use leno_model::Reason;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

pub(crate) use self::capacity::connect_and_handshake;
use self::capacity::{ConnectionAttempts, PendingQueue};
use super::transport::Transport;
use super::{
    CONNECTION_WINDOW_BYTES, MAX_HEADER_LIST_BYTES, MAX_SEND_BUFFER_BYTES, SMALL_FRAME_COST,
    STREAM_WINDOW_BYTES,
};
use crate::io::Io;
use crate::upstream::pool;

/// The connections of one thread to one server.
#[derive(Clone)]
pub(crate) struct Http2Pool {
    open_connections: Rc<Http2Connections>,
    server: Rc<ServerState>,
    /// The interval at which unused surplus connections are closed.
    check_interval: Duration,
}

/// The open connections of a pool. A connection has room if the server is likely to process another stream on
/// it. Requests use the first connection with room, so the last connections are the surplus.
#[derive(Default)]
struct Http2Connections {
    connections: RefCell<Vec<Rc<Http2Connection>>>,
    /// True while a task that closes surplus connections runs.
    has_surplus_task: Cell<bool>,
    /// The requests that wait for room.
    pending_queue: PendingQueue,
    /// The attempts to open another connection.
    attempts: ConnectionAttempts,
}

/// The state of a server, shared by its connections.
struct ServerState {
    /// Notifies one waiting request when a stream has ended, and all waiting requests when connections were
    /// added or removed.
    room_notify: Notify,
    /// The number of streams that the server processes on one connection before it refuses further ones with
    /// GOAWAY, as nginx does (`keepalive_requests`); `u32::MAX` if no limit is known.
    streams_per_connection: Cell<u32>,
    /// The number of streams before the first one refused by the last GOAWAY; 0 if unknown.
    streams_before_goaway: Cell<u32>,
    /// The number of streams that the server has processed.
    processed_streams: Cell<u64>,
    /// The number of consecutive connections on which the server refused all streams with GOAWAY.
    refusing_connections: Cell<u32>,
    /// Notified when a stream was processed, or no stream is left. Requests with a refused stream wait for this
    /// notification.
    progress_notify: Notify,
}

/// One connection of a pool, with its streams counted.
struct Http2Connection {
    /// The codec's handle that opens streams.
    sender: SendRequest<Bytes>,
    /// The number of open streams.
    open_streams: Cell<usize>,
    /// The number of streams opened so far.
    opened_streams: Cell<u32>,
    /// The first stream known to be refused when the server ended the connection; `u32::MAX` if none is known.
    first_refused_stream: Cell<u32>,
    /// The number of streams before the first refused one, once all refused streams are known; `u32::MAX` until
    /// then.
    accepted_streams: Cell<u32>,
    /// The number of streams after which the previous connection ended; 0 if unknown.
    expected_streams: u32,
    /// The number of streams opened at the last check for unused connections.
    opened_streams_at_check: Cell<Option<u32>>,
    /// The expiration of the peer's certificate; `None` for the application, which has none.
    expires_at: Option<Instant>,
    /// The server state of the pool.
    server: Rc<ServerState>,
}

/// A connection with a slot for one stream, held until dropped.
pub(crate) struct Http2Checkout {
    sender: SendRequest<Bytes>,
    connection: Rc<Http2Connection>,
    /// The number of streams of the connection before this one.
    stream_index: Option<u32>,
}

impl Default for Http2Pool {
    fn default() -> Self {
        Self {
            open_connections: Rc::default(),
            server: Rc::default(),
            check_interval: CHECK_INTERVAL,
        }
    }
}

impl Default for ServerState {
    fn default() -> Self {
        Self {
            room_notify: Notify::new(),
            streams_per_connection: Cell::new(u32::MAX),
            streams_before_goaway: Cell::new(0),
            processed_streams: Cell::new(0),
            refusing_connections: Cell::new(0),
            progress_notify: Notify::new(),
        }
    }
}

impl Http2Checkout {
    fn new(connection: Rc<Http2Connection>) -> Self {
        connection.open_streams.set(connection.open_streams.get() + 1);
        connection.opened_streams.set(connection.opened_streams.get().saturating_add(1));
        Self { sender: connection.sender.clone(), connection, stream_index: None }
    }

    /// True if the server supports extended CONNECT (RFC 8441).
    pub(crate) fn supports_upgrades(&self) -> bool {
        self.sender.is_extended_connect_protocol_enabled()
    }

    /// Opens the stream. `end_stream`: no body follows.
    ///
    /// # Errors
    /// [`Reason::UpstreamRefused`] if the connection has ended.
    pub(crate) fn open_stream(
        &mut self,
        head: http::Request<()>,
        end_stream: bool,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), Reason> {
        let opened_stream =
            self.sender.send_request(head, end_stream).map_err(|_| Reason::UpstreamRefused)?;
        // A client's streams are 1, 3, 5 and so on (RFC 9113 §5.1.1).
        self.stream_index = Some(opened_stream.0.stream_id().as_u32() / 2);
        Ok(opened_stream)
    }

    /// Records that the server has processed the stream.
    pub(crate) fn record_processed(&self) {
        let server = &self.connection.server;
        server.processed_streams.set(server.processed_streams.get() + 1);
        server.refusing_connections.set(0);
        server.progress_notify.notify_one();
        let stream_limit = server.streams_per_connection.get();
        // A stream beyond the assumed limit was processed, so the real limit is higher.
        if self.stream_index.is_some_and(|stream_index| stream_index >= stream_limit) {
            server.streams_per_connection.set(stream_limit.saturating_mul(2));
        }
    }

    /// Waits until the server has processed another stream, after it has refused this one. Returns false if
    /// the server will probably refuse the request again. `is_reset`: the server has reset the stream rather
    /// than sent GOAWAY.
    pub(crate) async fn wait_for_progress(self, is_reset: bool) -> bool {
        let connection = self.connection.clone();
        let old_processed_streams = connection.server.processed_streams.get();
        if let Some(stream_index) = self.stream_index.filter(|_| !is_reset) {
            connection
                .first_refused_stream
                .set(connection.first_refused_stream.get().min(stream_index));
        }
        // The refused stream no longer counts as open below.
        drop(self);
        // A GOAWAY wakes all refused streams at once: once each of them has run, the first refused stream is
        // known.
        tokio::task::yield_now().await;
        if !is_reset {
            let accepted_streams = connection.first_refused_stream.get();
            connection.record_goaway(accepted_streams);
            return accepted_streams != u32::MAX && accepted_streams > 0;
        }
        let is_processed = || connection.server.processed_streams.get() > old_processed_streams;
        let progress = async {
            while !is_processed() && connection.open_streams.get() > 0 {
                connection.server.progress_notify.notified().await;
            }
        };
        // Checked again after a timeout, because a notification wakes only one of the waiting requests.
        drop(timeout(PROGRESS_TIMEOUT, progress).await);
        is_processed()
    }

    /// Like [`wait_for_progress`](Self::wait_for_progress), but also returns true if the server refused all
    /// streams of this connection, as a server that is short of connections does: the request may be sent again
    /// on another connection. Returns false after [`MAX_REFUSING_CONNECTIONS`] such connections in a row.
    pub(crate) async fn wait_to_repeat(self, is_reset: bool) -> bool {
        let server = self.connection.server.clone();
        self.wait_for_progress(is_reset).await
            || (!is_reset && server.refusing_connections.get() <= MAX_REFUSING_CONNECTIONS)
    }
}

impl Drop for Http2Checkout {
    fn drop(&mut self) {
        let Http2Connection { open_streams, server, .. } = &*self.connection;
        open_streams.set(open_streams.get() - 1);
        server.room_notify.notify_one();
        if open_streams.get() == 0 {
            server.progress_notify.notify_waiters();
        }
    }
}

impl Http2Pool {
    /// Adds an established connection. `expires_at`: the expiration of the peer's certificate, if it has one.
    pub(crate) fn add_connection(&self, sender: SendRequest<Bytes>, expires_at: Option<Instant>) {
        drop(self.insert_connection(sender, expires_at));
    }

    /// Adds an established connection, and returns a slot for one stream.
    pub(crate) fn add_and_acquire(
        &self,
        sender: SendRequest<Bytes>,
        expires_at: Option<Instant>,
    ) -> Http2Checkout {
        Http2Checkout::new(self.insert_connection(sender, expires_at))
    }

    fn insert_connection(
        &self,
        sender: SendRequest<Bytes>,
        expires_at: Option<Instant>,
    ) -> Rc<Http2Connection> {
        let connection = Rc::new(Http2Connection {
            sender,
            open_streams: Cell::new(0),
            opened_streams: Cell::new(0),
            first_refused_stream: Cell::new(u32::MAX),
            accepted_streams: Cell::new(u32::MAX),
            expected_streams: self.server.streams_before_goaway.get(),
            opened_streams_at_check: Cell::new(None),
            expires_at,
            server: self.server.clone(),
        });
        let mut connections = self.open_connections.connections.borrow_mut();
        connections.push(connection.clone());
        let has_surplus = connections.len() > 1;
        drop(connections);
        if has_surplus && !self.open_connections.has_surplus_task.replace(true) {
            tokio::task::spawn_local(close_surplus(
                Rc::downgrade(&self.open_connections),
                self.check_interval,
            ));
        }
        self.server.room_notify.notify_waiters();
        connection
    }

    /// Returns the first connection with room; `None` if no connection has room. Removes the connections that
    /// have ended.
    fn acquire_with_room(&self) -> Option<Http2Checkout> {
        let mut connections = self.open_connections.connections.borrow_mut();
        let old_length = connections.len();
        connections.retain(|connection| !connection.is_over());
        if connections.len() < old_length {
            self.server.room_notify.notify_waiters();
        }
        drop(connections);
        self.acquire_where(Http2Connection::has_room)
    }

    /// Returns a slot on the first connection that meets `condition`; `None` if no connection does.
    fn acquire_where(&self, condition: fn(&Http2Connection) -> bool) -> Option<Http2Checkout> {
        let connections = self.open_connections.connections.borrow();
        connections.iter().find(|connection| condition(connection)).cloned().map(Http2Checkout::new)
    }

    /// True if a connection is open, with room or not.
    pub(crate) fn is_open(&self) -> bool {
        !self.open_connections.connections.borrow().is_empty()
    }

    /// Removes all connections, so that no more streams are opened on them. Streams in progress continue.
    pub(crate) fn clear(&self) {
        self.open_connections.connections.borrow_mut().clear();
        self.server.room_notify.notify_waiters();
    }
}

impl Http2Connection {
    /// True if the server permits another stream now.
    fn may_open(&self) -> bool {
        self.open_streams.get() < self.sender.current_max_send_streams()
    }

    /// True if the server is likely to process another stream. Beyond the number of streams after which it
    /// ended previous connections, one stream at a time probes for a higher limit.
    fn has_room(&self) -> bool {
        let has_reached_limit =
            self.opened_streams.get() >= self.server.streams_per_connection.get();
        self.may_open() && (!has_reached_limit || self.open_streams.get() == 0)
    }

    /// Records that a GOAWAY refused the stream with this number. A server that counts streams ends the next
    /// connection after a similar number. A single GOAWAY proves nothing: a server that drains, or closes a
    /// connection for its age or idleness, also refuses the streams in transit.
    fn record_goaway(&self, stream_count: u32) {
        if stream_count >= self.accepted_streams.get() {
            return;
        }
        self.accepted_streams.set(stream_count);
        let ServerState {
            streams_per_connection, streams_before_goaway, refusing_connections, ..
        } = &*self.server;
        if stream_count == 0 {
            refusing_connections.set(refusing_connections.get().saturating_add(1));
            // On a single connection, the cause may be a lack of resources. A server that refuses all streams
            // does not reveal a limit on their number.
            if refusing_connections.get() > 1 {
                streams_per_connection.set(u32::MAX);
                streams_before_goaway.set(0);
            }
            return;
        }
        streams_before_goaway.set(stream_count);
        let is_similar =
            |smaller: u32, larger: u32| larger <= smaller.saturating_mul(MAX_SIMILAR_RATIO);
        if is_similar(stream_count, self.expected_streams)
            && is_similar(self.expected_streams, stream_count)
        {
            streams_per_connection.set(stream_count);
        }
    }

    /// True if no request has used the connection since the last check.
    fn was_unused(&self) -> bool {
        let opened_streams = Some(self.opened_streams.get());
        self.opened_streams_at_check.replace(opened_streams) == opened_streams
            && self.open_streams.get() == 0
    }

    /// True if no stream may be opened any more.
    fn is_over(&self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        // The codec reports the end of the connection only; the limit on streams is checked in `may_open`.
        matches!(self.sender.clone().poll_ready(&mut cx), Poll::Ready(Err(_)))
            || self.expires_at.is_some_and(|expires_at| expires_at <= Instant::now())
    }
}

impl Http2Connections {
    /// Closes the connections not used since the last check, except for the one that the next request would
    /// use.
    fn close_unused(&self) {
        let mut connections = self.connections.borrow_mut();
        let ended_connections = connections.extract_if(.., |connection| connection.is_over());
        // A request that waits for room may now open another connection.
        ended_connections.for_each(|connection| connection.server.room_notify.notify_waiters());
        let mut has_first = false;
        connections.retain(|connection| {
            let is_first = !std::mem::replace(&mut has_first, true);
            !connection.was_unused() || is_first
        });
    }
}

/// Closes unused surplus connections of a pool at regular intervals, until at most one connection is left.
async fn close_surplus(open_connections: Weak<Http2Connections>, check_interval: Duration) {
    loop {
        sleep(check_interval).await;
        let Some(open_connections) = open_connections.upgrade() else { return };
        open_connections.close_unused();
        if open_connections.connections.borrow().len() < 2 {
            open_connections.has_surplus_task.set(false);
            return;
        }
    }
}

/// True if the server did not process the stream with this error, so that it may be sent again. The codec
/// reports GOAWAY to streams above the last processed one (RFC 9113 §6.8), and the error of the connection to
/// the others.
pub(crate) fn is_unprocessed(error: &h2::Error) -> bool {
    error.reason() == Some(Http2Code::REFUSED_STREAM) || (error.is_go_away() && error.is_remote())
}

/// Performs the HTTP/2 handshake on a connection. `guard` is dropped when the connection ends.
///
/// # Errors
/// `protocol-mismatch` if the peer responds in another protocol, `connect-failed` if it ends the connection or
/// accepts no stream.
pub(crate) async fn connect_http2(
    io: Io,
    guard: impl Sized + 'static,
) -> Result<SendRequest<Bytes>, Reason> {
    let handshake = client_builder().handshake(Transport::new(io.clone(), BytesMut::new()));
    let (mut sender, mut connection) = handshake.await.map_err(|_| Reason::ConnectFailed)?;
    // The server sends SETTINGS before its PING response. So after the response its stream limit is known, and
    // it certainly supports HTTP/2.
    if let Some(mut ping) = connection.ping_pong() {
        let early_end = poll_fn(|cx| {
            let poll_result = Pin::new(&mut connection).poll(cx);
            // A server may keep the connection open after a GOAWAY.
            match poll_result {
                _ if has_received_goaway(&mut sender, cx) => Poll::Ready(None),
                Poll::Ready(connection_end) => Poll::Ready(Some(connection_end)),
                Poll::Pending => Poll::Pending,
            }
        });
        tokio::select! {
            biased;
            connection_end = early_end => return Err(match connection_end {
                Some(connection_end) => early_end_reason(connection_end, &io).await,
                None => Reason::ConnectFailed,
            }),
            pong = ping.ping(Ping::opaque()) => {
                pong.map_err(|_| Reason::ConnectFailed)?;
            }
        }
    }
    tokio::task::spawn_local(async move {
        let _guard = guard;
        if let Err(error) = connection.await {
            tracing::debug!(%error, "HTTP/2 connection to a server failed");
        }
    });
    Ok(sender)
}

/// True if the server has sent GOAWAY: it accepts no further stream.
fn has_received_goaway(sender: &mut SendRequest<Bytes>, cx: &mut Context<'_>) -> bool {
    matches!(sender.poll_ready(cx), Poll::Ready(Err(error)) if error.is_go_away() && error.is_remote())
}

/// Returns the reason for a connection that ended before the server's SETTINGS and PING response.
async fn early_end_reason(connection_end: Result<(), h2::Error>, io: &Io) -> Reason {
    match connection_end {
        // The codec found no valid frames in the received bytes.
        Err(error) if error.is_go_away() && error.is_library() => Reason::ProtocolMismatch,
        Err(error) if !error.is_io() => Reason::ConnectFailed,
        // Received bytes may still be unread if the codec failed to write. The first frame of a server is
        // always short enough that its first byte is zero.
        Ok(()) | Err(_) => {
            let mut first_byte = [0];
            let mut buffer = ReadBuf::new(&mut first_byte);
            let result =
                poll_fn(|cx| io.with_stream(|stream| stream.poll_read(cx, &mut buffer))).await;
            match result.is_ok() && first_byte != [0] {
                true => Reason::ProtocolMismatch,
                false => Reason::ConnectFailed,
            }
        }
    }
}

fn client_builder() -> Builder {
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .data_frame_budget(MAX_SMALL_FRAMES * SMALL_FRAME_COST)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .max_send_buffer_size(MAX_SEND_BUFFER_BYTES);
    builder
}

/// The maximum number of connections of one thread to one server; the server limits the streams on each.
const MAX_CONNECTIONS: usize = 8;
/// The number of streams below which a connection counts as short.
const SHORT_CONNECTION_STREAMS: u32 = 64;
/// The maximum number of connections of one thread to a server with short connections.
const MAX_SHORT_CONNECTIONS: usize = 64;
/// The interval at which unused connections are checked; a connection closes after one to two intervals.
const CHECK_INTERVAL: Duration = pool::MAX_IDLE_TIME;
/// The maximum ratio between two stream counts that are considered similar.
const MAX_SIMILAR_RATIO: u32 = 2;
/// The maximum number of consecutive connections on which a server refuses all streams, before its refusals are
/// final.
const MAX_REFUSING_CONNECTIONS: u32 = 4;
/// The maximum time in which a server that has refused a stream has to process another one.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum number of small frames of a server that may be pending for slow readers on one connection.
const MAX_SMALL_FRAMES: usize = 256 * 1024;

#[cfg(test)]
mod tests;
