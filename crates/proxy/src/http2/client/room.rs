//! Room for a stream: on an open connection, or on one that is opened for it.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use leno_model::Reason;
use leno_telemetry::Count;
use tokio::sync::MutexGuard;
use tokio::time::{sleep, timeout};

use super::{
    CONNECTIONS_MAX, Connection, FEW_STREAMS, Http2Lease, Http2Pool, SHORT_CONNECTIONS_MAX, greet,
};
use crate::io::Io;
use crate::upstream::connect;
use crate::worker::Worker;

/// The end of waiting for a stream.
enum Turn<'a> {
    /// A connection with room.
    Ready(Http2Lease),
    /// The right to open another connection.
    Opens(MutexGuard<'a, ()>),
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
            let connect = async || -> Result<_, Reason> {
                let connected = connect::application(address, worker, patience).await?;
                Ok((connected.reader.io.clone(), connected))
            };
            greet_new(connect).await.map(|send| self.add(send, None))
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
            if self.open.connections.borrow().len() < self.connections_max() {
                return None;
            }
            if let Some(crowded) = self.find(Connection::may_open) {
                return Some(crowded);
            }
            self.server.room.notified().await;
        }
    }

    /// A connection with room, as soon as one of those that are open has some; `None` when none is open.
    pub(crate) async fn room_on_open(&self) -> Option<Http2Lease> {
        loop {
            if let Some(ready) = self.ready() {
                return Some(ready);
            }
            if !self.is_open() {
                return None;
            }
            self.server.room.notified().await;
        }
    }

    /// A server that takes few streams on each connection gets more connections.
    fn connections_max(&self) -> usize {
        match self.server.streams_per_connection.get() < FEW_STREAMS {
            true => SHORT_CONNECTIONS_MAX,
            false => CONNECTIONS_MAX,
        }
    }
}

/// Opens a connection by `connect`, and begins to speak HTTP/2 over it. One that the server ends before any stream has carried no
/// request, so another one is opened (RFC 9113 §6.8 and §8.7), soon and at most so often.
///
/// # Errors
/// Those of `connect` and [`greet`].
pub(crate) async fn greet_new<Kept: 'static, Error: From<Reason>>(
    connect: impl AsyncFn() -> Result<(Io, Kept), Error>,
) -> Result<SendRequest<Bytes>, Error> {
    let mut ended = 0;
    loop {
        let (io, kept) = connect().await?;
        match greet(io, kept).await {
            Err(Reason::ConnectFailed) if ended + 1 < OPENINGS_MAX => {
                sleep(OPENING_PAUSE * ended).await;
                ended += 1;
            }
            greeted => return greeted.map_err(Error::from),
        }
    }
}

/// The connections that are opened in one attempt at a server that ends each of them before any stream. Several are usual where a server
/// has little room or restarts.
const OPENINGS_MAX: u32 = 8;
/// The pause before each further one of them is so much longer.
const OPENING_PAUSE: Duration = Duration::from_millis(1);
