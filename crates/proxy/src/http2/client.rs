//! Speaking HTTP/2 to a server: few connections, shared by the requests of one thread.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use h2::Ping;
use h2::client::{Builder, SendRequest};
use leno_model::Reason;
use leno_telemetry::Count;
use tokio::sync::{Mutex, MutexGuard, Notify};
use tokio::time::timeout;

use super::transport::Transport;
use super::{
    CONNECTION_WINDOW_BYTES, HEADER_LIST_BYTES_MAX, SEND_BUFFER_BYTES_MAX, SMALL_FRAME_COST,
    WINDOW_BYTES,
};
use crate::io::Io;
use crate::upstream::connect;
use crate::worker::Worker;

/// The connections of one thread to one server.
#[derive(Default)]
pub(crate) struct Http2Pool {
    open: RefCell<Vec<Rc<Connection>>>,
    /// One connection is opened at a time; who waits for it may use it.
    opening: Mutex<()>,
    /// Told when a stream has ended, and all when connections have come or gone.
    room: Rc<Notify>,
}

struct Connection {
    send: SendRequest<Bytes>,
    streams: Cell<usize>,
    /// When its peer's certificate expires; never for the application, which has none.
    expires: Option<Instant>,
    /// That of its pool.
    room: Rc<Notify>,
}

/// A connection with room for one stream, which it keeps until this is dropped.
pub(crate) struct Http2Lease {
    pub(crate) send: SendRequest<Bytes>,
    connection: Rc<Connection>,
}

/// The end of waiting for a stream.
enum Turn<'a> {
    /// A connection with room.
    Ready(Http2Lease),
    /// The right to open another connection.
    Opens(MutexGuard<'a, ()>),
}

impl Http2Lease {
    fn new(connection: Rc<Connection>) -> Self {
        connection.streams.set(connection.streams.get() + 1);
        Self { send: connection.send.clone(), connection }
    }

    /// Whether the server takes extended CONNECT (RFC 8441).
    pub(crate) fn takes_upgrades(&self) -> bool {
        self.send.is_extended_connect_protocol_enabled()
    }
}

impl Drop for Http2Lease {
    fn drop(&mut self) {
        self.connection.streams.set(self.connection.streams.get() - 1);
        self.connection.room.notify_one();
    }
}

impl Http2Pool {
    /// A connection to the application on which a stream may be opened now, within `patience`.
    pub(crate) async fn lease(
        &self,
        address: SocketAddr,
        worker: &Rc<Worker>,
        patience: Duration,
    ) -> Result<Http2Lease, Reason> {
        if let Some(ready) = self.ready() {
            worker.shard.add(Count::LeaseReused, 1);
            return Ok(ready);
        }
        // A server that has no room for a stream is busy, not silent.
        let turn = timeout(patience, self.turn()).await.map_err(|_| Reason::UpstreamRefused)?;
        let _opening = match turn {
            Turn::Ready(lease) => return Ok(lease),
            Turn::Opens(opening) => opening,
        };
        worker.shard.add(Count::LeaseOpened, 1);
        let opened = async {
            let connected = connect::application(address, worker, patience).await?;
            let send = greet(connected.reader.io.clone(), connected).await?;
            Ok(self.add(send, None))
        };
        timeout(patience, opened).await.unwrap_or(Err(Reason::ConnectTimeout))
    }

    /// Waits for a stream to end when there are enough connections, or until another may be opened.
    async fn turn(&self) -> Turn<'_> {
        let opening = self.opening.lock().await;
        match self.room().await {
            Some(ready) => Turn::Ready(ready),
            None => Turn::Opens(opening),
        }
    }

    /// A connection with room, as soon as there is one; `None` when another may be opened.
    pub(crate) async fn room(&self) -> Option<Http2Lease> {
        loop {
            if let Some(ready) = self.ready() {
                return Some(ready);
            }
            if self.open.borrow().len() < CONNECTIONS_MAX {
                return None;
            }
            self.room.notified().await;
        }
    }

    /// Keeps a connection that was greeted, until its peer's certificate expires.
    pub(crate) fn add(&self, send: SendRequest<Bytes>, expires: Option<Instant>) -> Http2Lease {
        let room = self.room.clone();
        let added = Rc::new(Connection { send, streams: Cell::new(0), expires, room });
        self.open.borrow_mut().push(added.clone());
        self.room.notify_waiters();
        Http2Lease::new(added)
    }

    /// The first connection with room; those that are over are forgotten.
    pub(crate) fn ready(&self) -> Option<Http2Lease> {
        let mut open = self.open.borrow_mut();
        let before = open.len();
        open.retain(|connection| !connection.is_over());
        if open.len() < before {
            self.room.notify_waiters();
        }
        let has_room =
            |open: &&Rc<Connection>| open.streams.get() < open.send.current_max_send_streams();
        open.iter().find(has_room).cloned().map(Http2Lease::new)
    }

    /// Opens no more streams; those under way go on.
    pub(crate) fn clear(&self) {
        self.open.borrow_mut().clear();
        self.room.notify_waiters();
    }
}

impl Connection {
    /// Whether no stream may be opened any more.
    fn is_over(&self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        // The codec's own answer is about the connection only; streams are ours to count.
        matches!(self.send.clone().poll_ready(&mut cx), Poll::Ready(Err(_)))
            || self.expires.is_some_and(|expires| expires <= Instant::now())
    }
}

/// Begins to speak HTTP/2 over a connection. `kept` lives as long as that does.
pub(crate) async fn greet(
    io: Io,
    kept: impl Sized + 'static,
) -> Result<SendRequest<Bytes>, Reason> {
    let shaken = builder().handshake(Transport::new(io, BytesMut::new()));
    let (send, mut connection) = shaken.await.map_err(|_| Reason::ConnectFailed)?;
    let ping = connection.ping_pong();
    tokio::task::spawn_local(async move {
        let _kept = kept;
        if let Err(error) = connection.await {
            tracing::debug!(%error, "an HTTP/2 connection to a server broke");
        }
    });
    // Its settings come before its answer: how many streams it takes is known then, and that it
    // speaks HTTP/2 at all.
    if let Some(mut ping) = ping {
        ping.ping(Ping::opaque()).await.map_err(|_| Reason::ConnectFailed)?;
    }
    Ok(send)
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .data_frame_budget(SMALL_FRAMES_MAX * SMALL_FRAME_COST)
        .initial_window_size(WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .max_send_buffer_size(SEND_BUFFER_BYTES_MAX);
    builder
}

/// Connections of one thread to one server; each has as many streams as it allows.
const CONNECTIONS_MAX: usize = 8;
/// Small frames of a server that may wait for slow readers on one connection.
const SMALL_FRAMES_MAX: usize = 256 * 1024;
