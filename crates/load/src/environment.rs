//! The environment of a run: connections and precise timers, replaceable in tests.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use leno_wire::http1::ResponseHead;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::clock::{Alarm, Clock};
use crate::error_kind::ErrorKind;
use crate::plan::{ConnectionReuse, LoadPlan};

/// The source of connections and timers.
pub(crate) trait Environment: 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + 'static;

    /// Opens a connection.
    fn connect(&self, address: SocketAddr) -> impl Future<Output = io::Result<Self::Stream>>;

    /// Creates an unarmed alarm.
    fn create_alarm(&self) -> io::Result<Alarm>;
}

/// TCP, and kernel timers.
#[derive(Debug)]
pub(crate) struct SystemEnvironment;

impl Environment for SystemEnvironment {
    type Stream = TcpStream;

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn create_alarm(&self) -> io::Result<Alarm> {
        Alarm::of_the_kernel()
    }
}

/// The shared context of all requests of one thread.
#[derive(Debug)]
pub(crate) struct ThreadContext<W> {
    pub(crate) environment: W,
    pub(crate) clock: Clock,
    pub(crate) timeout: Duration,
    pub(crate) reuse: ConnectionReuse,
    pub(crate) meter: Rc<ByteMeter>,
    pub(crate) read_buffers: RefCell<ReadBuffers>,
    /// Distinct addresses.
    addresses: Vec<SocketAddr>,
    /// The address of each target, as an index.
    address_indices: Vec<usize>,
}

impl<W: Environment> ThreadContext<W> {
    pub(crate) fn new(environment: W, plan: &LoadPlan) -> Self {
        let mut addresses: Vec<SocketAddr> = plan.targets.iter().map(|t| t.address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let index_of =
            |address| addresses.iter().position(|candidate| candidate == address).unwrap_or(0);
        Self {
            address_indices: plan.targets.iter().map(|target| index_of(&target.address)).collect(),
            addresses,
            environment,
            clock: Clock::start(),
            timeout: plan.timeout,
            reuse: plan.reuse,
            meter: Rc::default(),
            read_buffers: RefCell::default(),
        }
    }

    /// Returns the number of addresses.
    pub(crate) fn address_count(&self) -> usize {
        self.addresses.len()
    }

    /// Returns the address index of a target.
    pub(crate) fn address_index(&self, target: usize) -> usize {
        self.address_indices[target]
    }

    /// Opens a connection to an address.
    pub(crate) async fn connect(&self, address_index: usize) -> Result<W::Stream, ErrorKind> {
        match timeout(self.timeout, self.environment.connect(self.addresses[address_index])).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(ErrorKind::of_connecting(&error)),
            Err(_) => Err(ErrorKind::ConnectTimeout),
        }
    }
}

/// Bytes on all connections of a thread.
#[derive(Debug, Default)]
pub(crate) struct ByteMeter {
    pub(crate) sent: Cell<u64>,
    pub(crate) received: Cell<u64>,
}

impl ByteMeter {
    pub(crate) fn count_sent(&self, bytes: usize) {
        self.sent.set(self.sent.get() + bytes as u64);
    }

    pub(crate) fn count_received(&self, bytes: usize) {
        self.received.set(self.received.get() + bytes as u64);
    }
}

/// The read buffer, shared by all connections of a thread, so that it stays in the caches and idle connections
/// hold no memory.
#[derive(Debug)]
pub(crate) struct ReadBuffers {
    pub(crate) buffer: Box<[u8]>,
    pub(crate) head: ResponseHead,
}

impl Default for ReadBuffers {
    fn default() -> Self {
        Self { buffer: vec![0; READ_BYTES].into_boxed_slice(), head: ResponseHead::default() }
    }
}

/// The size of a read buffer: large bodies need few reads, and it fits in the second-level cache.
const READ_BYTES: usize = 64 * 1024;
