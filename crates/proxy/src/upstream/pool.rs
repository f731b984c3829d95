//! Pools idle HTTP/1.1 connections to an upstream. The most recently used connection is reused first, so that
//! surplus connections stay idle and are closed.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;

use crate::buffers::{self, BufferSize};
use crate::connections::OpenCounter;
use crate::http::message::{MessageReader, MessageWriter};
use crate::io::Io;

/// An HTTP/1.1 connection to an upstream, checked out by one request at a time.
pub(crate) struct Http1Upstream {
    pub(crate) reader: MessageReader,
    pub(crate) writer: MessageWriter,
    /// True if the connection was used before: the peer may be closing it at this moment.
    pub(crate) is_reused: bool,
    /// True if the peer is a verified sidecar over `leno-http/1`, which marks the requests that it rejects.
    pub(crate) marks_rejections: bool,
    /// The expiration of the peer's certificate; `None` for the application, which has none.
    expires_at: Option<Instant>,
    _open_counter: OpenCounter,
    /// The permit of this connection in the limit on connections to applications.
    _permit: Option<OwnedSemaphorePermit>,
}

/// The clients that may use an HTTP/1.1 connection to an upstream.
#[derive(Clone, Copy)]
pub(crate) enum ConnectionSharing {
    /// Any client, unless a response authenticates the connection.
    Pooled,
    /// One client, even if the connection is authenticated.
    Pinned,
    /// One client, to a verified sidecar that marks its rejections.
    PinnedAtSidecar,
}

/// Idle connections to one address.
pub(crate) struct Http1Pool {
    idle_connections: RefCell<VecDeque<IdleConnection>>,
    /// The maximum number of idle connections: 0 while the pool is closed.
    max_idle_connections: Cell<usize>,
}

impl Default for Http1Pool {
    fn default() -> Self {
        Self {
            idle_connections: RefCell::default(),
            max_idle_connections: Cell::new(MAX_IDLE_CONNECTIONS),
        }
    }
}

/// A connection in the pool, and the time when it was returned.
struct IdleConnection {
    connection: Box<Http1Upstream>,
    idle_since: Instant,
}

impl Http1Upstream {
    /// Creates a connection that was not used before. `stall_timeout`: the time after which a peer that takes
    /// no pending data counts as stalled.
    pub(crate) fn new(io: Io, stall_timeout: Duration, open_counter: OpenCounter) -> Self {
        let (reader, writer) =
            (MessageReader::new(io.clone()), MessageWriter::new(io, stall_timeout));
        Self {
            reader,
            writer,
            is_reused: false,
            marks_rejections: false,
            expires_at: None,
            _open_counter: open_counter,
            _permit: None,
        }
    }

    /// Adds the permit of this connection in the limit on connections to applications.
    pub(crate) fn with_permit(self, permit: OwnedSemaphorePermit) -> Self {
        Self { _permit: Some(permit), ..self }
    }

    /// Sets the expiration of the peer's certificate.
    pub(crate) fn expiring_at(self, expires_at: Instant) -> Self {
        Self { expires_at: Some(expires_at), ..self }
    }

    /// Returns the clients that may use the connection. `is_pinned`: the connection is reserved for one client.
    #[inline]
    pub(crate) fn sharing(&self, is_pinned: bool) -> ConnectionSharing {
        match (is_pinned, self.marks_rejections) {
            (false, _) => ConnectionSharing::Pooled,
            (true, false) => ConnectionSharing::Pinned,
            (true, true) => ConnectionSharing::PinnedAtSidecar,
        }
    }

    /// True while the connection is open, and the peer has sent nothing.
    pub(crate) fn is_usable(&self) -> bool {
        self.reader.io.is_quiet() && !self.is_expired()
    }

    fn is_expired(&self) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= Instant::now())
    }
}

impl Http1Pool {
    /// Returns the most recently used connection that is still usable, and closes unusable ones. `None` if no
    /// connection is usable.
    pub(crate) fn take_recent(&self) -> Option<Box<Http1Upstream>> {
        let mut idle_connections = self.idle_connections.borrow_mut();
        loop {
            let connection = idle_connections.pop_back()?.connection;
            if connection.is_usable() {
                return Some(connection);
            }
        }
    }

    /// Returns a connection to the pool after an exchange, unless input or output is left in its buffers.
    /// Closes the connections that have been idle for longer than [`MAX_IDLE_TIME`].
    pub(crate) fn put_back(&self, mut connection: Box<Http1Upstream>, now: Instant) {
        let is_clean = connection.reader.buffer.is_empty() && connection.writer.is_empty();
        let mut idle_connections = self.idle_connections.borrow_mut();
        while idle_connections.front().is_some_and(|oldest| oldest.idle_since + MAX_IDLE_TIME < now)
        {
            idle_connections.pop_front();
        }
        if is_clean && idle_connections.len() < self.max_idle_connections.get() {
            buffers::return_buffer(&mut connection.reader.buffer, BufferSize::Message);
            connection.is_reused = true;
            idle_connections.push_back(IdleConnection { connection, idle_since: now });
        }
    }

    /// Closes all idle connections.
    pub(crate) fn clear(&self) {
        self.idle_connections.borrow_mut().clear();
    }

    /// Opens or closes the pool. Closing it also closes its idle connections; while the pool is closed, each
    /// request needs a new connection.
    pub(crate) fn set_open(&self, is_open: bool) {
        self.max_idle_connections.set(if is_open { MAX_IDLE_CONNECTIONS } else { 0 });
        if !is_open {
            self.clear();
        }
    }
}

/// The maximum number of idle connections per address and thread.
const MAX_IDLE_CONNECTIONS: usize = 512;
/// The maximum idle time of a surplus connection; below the usual limits of servers.
pub(crate) const MAX_IDLE_TIME: Duration = Duration::from_secs(30);
