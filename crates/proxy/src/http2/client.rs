//! Speaking HTTP/2 to the application: few connections, shared by the requests of one thread.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use h2::Ping;
use h2::client::{Builder, SendRequest};
use leno_model::Reason;
use leno_telemetry::Count;
use tokio::sync::{Mutex, Notify};
use tokio::time::timeout;

use super::transport::Transport;
use super::{
    CONNECTION_WINDOW_BYTES, HEADER_LIST_BYTES_MAX, SEND_BUFFER_BYTES_MAX, SMALL_FRAME_COST,
    WINDOW_BYTES,
};
use crate::upstream::connect;
use crate::worker::Worker;

/// The connections of one thread to one application.
#[derive(Default)]
pub(crate) struct Http2Pool {
    open: RefCell<Vec<Rc<Connection>>>,
    /// One connection is opened at a time; who waits for it may use it.
    opening: Mutex<()>,
}

struct Connection {
    send: SendRequest<Bytes>,
    streams: Cell<usize>,
    /// Told when a stream has ended.
    ended: Rc<Notify>,
}

/// A connection with room for one stream, which it keeps until this is dropped.
pub(crate) struct Http2Lease {
    pub(crate) send: SendRequest<Bytes>,
    connection: Rc<Connection>,
}

impl Http2Lease {
    fn new(connection: Rc<Connection>) -> Self {
        connection.streams.set(connection.streams.get() + 1);
        Self { send: connection.send.clone(), connection }
    }
}

impl Drop for Http2Lease {
    fn drop(&mut self) {
        self.connection.streams.set(self.connection.streams.get() - 1);
        self.connection.ended.notify_one();
    }
}

impl Http2Pool {
    /// A connection on which a stream may be opened now, within the time for connecting.
    pub(crate) async fn lease(
        &self,
        address: SocketAddr,
        worker: &Rc<Worker>,
    ) -> Result<Http2Lease, Reason> {
        if let Some(ready) = self.ready() {
            worker.shard.add(Count::LeaseReused, 1);
            return Ok(ready);
        }
        let patience = worker.config.limits.connect_timeout;
        timeout(patience, self.make_room(address, worker))
            .await
            .unwrap_or(Err(Reason::ConnectTimeout))
    }

    /// Opens another connection, or waits for a stream to end when there are enough.
    async fn make_room(
        &self,
        address: SocketAddr,
        worker: &Rc<Worker>,
    ) -> Result<Http2Lease, Reason> {
        let _opening = self.opening.lock().await;
        loop {
            if let Some(ready) = self.ready() {
                return Ok(ready);
            }
            let ended = self.open.borrow().first().map(|first| first.ended.clone());
            match ended.filter(|_| self.open.borrow().len() >= CONNECTIONS_MAX) {
                Some(ended) => ended.notified().await,
                None => break,
            }
        }
        worker.shard.add(Count::LeaseOpened, 1);
        let ended = self.open.borrow().first().map(|first| first.ended.clone());
        let send = open(address, worker).await?;
        let ended = ended.unwrap_or_default();
        let opened = Rc::new(Connection { send, streams: Cell::new(0), ended });
        self.open.borrow_mut().push(opened.clone());
        Ok(Http2Lease::new(opened))
    }

    /// The first connection with room; those that are over are forgotten.
    fn ready(&self) -> Option<Http2Lease> {
        let mut cx = Context::from_waker(Waker::noop());
        let mut open = self.open.borrow_mut();
        // The codec's own answer is about the connection only; streams are ours to count.
        open.retain(|connection| {
            !matches!(connection.send.clone().poll_ready(&mut cx), Poll::Ready(Err(_)))
        });
        let has_room =
            |open: &&Rc<Connection>| open.streams.get() < open.send.current_max_send_streams();
        open.iter().find(has_room).cloned().map(Http2Lease::new)
    }
}

async fn open(address: SocketAddr, worker: &Rc<Worker>) -> Result<SendRequest<Bytes>, Reason> {
    let connected = connect::application(address, worker).await?;
    let transport = Transport::new(connected.reader.io.clone(), BytesMut::new());
    let shaken = builder().handshake(transport);
    let (send, mut connection) = shaken.await.map_err(|_| Reason::ConnectFailed)?;
    let ping = connection.ping_pong();
    tokio::task::spawn_local(async move {
        // Keeps the connection's place and count while it lives.
        let _connected = connected;
        if let Err(error) = connection.await {
            tracing::debug!(%address, %error, "an HTTP/2 connection to the application broke");
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

/// Connections of one thread to one application; each has as many streams as it allows.
const CONNECTIONS_MAX: usize = 8;
/// Small frames of an application that may wait for slow readers on one connection.
const SMALL_FRAMES_MAX: usize = 256 * 1024;
