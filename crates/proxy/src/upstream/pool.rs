//! Warm HTTP/1.1 connections, used last-in first-out so that the surplus ages and closes.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;

use crate::buffers::{self, Size};
use crate::connections::Counted;
use crate::http::message::{Reader, Writer};
use crate::io::Io;

/// An HTTP/1.1 connection to an upstream, leased by one request at a time.
pub(crate) struct Http1Upstream {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
    /// It has served before: the peer may be closing it this very moment.
    pub(crate) reused: bool,
    /// The peer is a verified sidecar over `leno-http/1`, which marks the requests that it rejects.
    pub(crate) marks_rejections: bool,
    /// When its peer's certificate expires; never for the application, which has none.
    expires: Option<Instant>,
    _counted: Counted,
    /// Its place among the connections to the application.
    _place: Option<OwnedSemaphorePermit>,
}

/// The clients of an HTTP/1.1 connection to an upstream.
#[derive(Clone, Copy)]
pub(crate) enum Sharing {
    /// Any client, unless a response authenticates the connection.
    Pooled,
    /// One client, also when the connection is authenticated.
    Pinned,
    /// The same, to a verified sidecar that marks its rejections.
    PinnedAtSidecar,
}

/// Idle connections to one address.
pub(crate) struct Pool {
    idle: RefCell<VecDeque<Idle>>,
    /// The most connections that are kept: none while the pool is closed.
    room: Cell<usize>,
}

impl Default for Pool {
    fn default() -> Self {
        Self { idle: RefCell::default(), room: Cell::new(IDLE_MAX) }
    }
}

struct Idle {
    connection: Box<Http1Upstream>,
    since: Instant,
}

impl Http1Upstream {
    /// `patience`: how long the peer may take nothing of a request.
    pub(crate) fn new(io: Io, patience: Duration, counted: Counted) -> Self {
        let (reader, writer) = (Reader::new(io.clone()), Writer::new(io, patience));
        Self {
            reader,
            writer,
            reused: false,
            marks_rejections: false,
            expires: None,
            _counted: counted,
            _place: None,
        }
    }

    /// The same, in a place among the connections to the application.
    pub(crate) fn at(self, place: OwnedSemaphorePermit) -> Self {
        Self { _place: Some(place), ..self }
    }

    /// The same, to a peer whose identity is proved until then.
    pub(crate) fn until(self, expires: Instant) -> Self {
        Self { expires: Some(expires), ..self }
    }

    /// Its clients; `is_pinned`: it serves one client alone.
    #[inline]
    pub(crate) fn sharing(&self, is_pinned: bool) -> Sharing {
        match (is_pinned, self.marks_rejections) {
            (false, _) => Sharing::Pooled,
            (true, false) => Sharing::Pinned,
            (true, true) => Sharing::PinnedAtSidecar,
        }
    }

    /// True while the peer keeps it open and is silent.
    pub(crate) fn is_usable(&self) -> bool {
        self.reader.io.is_quiet() && !self.is_expired()
    }

    fn is_expired(&self) -> bool {
        self.expires.is_some_and(|expires| expires <= Instant::now())
    }
}

impl Pool {
    /// The connection used last that is still open and silent.
    pub(crate) fn take(&self) -> Option<Box<Http1Upstream>> {
        let mut idle = self.idle.borrow_mut();
        loop {
            let connection = idle.pop_back()?.connection;
            if connection.is_usable() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection whose exchange ended cleanly, and closes those that nobody has needed
    /// for long.
    pub(crate) fn put(&self, mut connection: Box<Http1Upstream>, now: Instant) {
        let clean = connection.reader.buffer.is_empty() && connection.writer.is_empty();
        let mut idle = self.idle.borrow_mut();
        while idle.front().is_some_and(|surplus| surplus.since + AGE_MAX < now) {
            idle.pop_front();
        }
        if clean && idle.len() < self.room.get() {
            buffers::give(&mut connection.reader.buffer, Size::Message);
            connection.reused = true;
            idle.push_back(Idle { connection, since: now });
        }
    }

    /// Closes what is idle.
    pub(crate) fn clear(&self) {
        self.idle.borrow_mut().clear();
    }

    /// Closes the pool with its idle connections, or opens it: requests need new connections while it is closed.
    pub(crate) fn set_open(&self, is_open: bool) {
        self.room.set(if is_open { IDLE_MAX } else { 0 });
        if !is_open {
            self.clear();
        }
    }
}

/// Idle connections kept per address and thread.
const IDLE_MAX: usize = 512;
/// How long the surplus of a busier time is kept; below what servers usually allow.
pub(crate) const AGE_MAX: Duration = Duration::from_secs(30);
