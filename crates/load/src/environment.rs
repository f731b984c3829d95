//! Provides connections and precise timers to a run; tests replace them.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use leno_wire::http1::ResponseHead;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::clock::{Clock, Timer};
use crate::error_kind::ErrorKind;
use crate::plan::{ConnectionReuse, LoadPlan};

/// The source of connections and timers.
pub(crate) trait Environment: 'static {
    /// The type of connections.
    type Stream: AsyncRead + AsyncWrite + Unpin + 'static;

    /// Opens a connection.
    fn connect(&self, address: SocketAddr) -> impl Future<Output = io::Result<Self::Stream>>;

    /// Creates an unarmed timer.
    fn create_timer(&self) -> io::Result<Timer>;
}

/// The environment of real runs: TCP connections and kernel timers.
#[derive(Debug)]
pub(crate) struct SystemEnvironment;

impl Environment for SystemEnvironment {
    type Stream = TcpStream;

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn create_timer(&self) -> io::Result<Timer> {
        Timer::from_kernel()
    }
}

/// The shared context of all requests of one thread.
#[derive(Debug)]
pub(crate) struct ThreadContext<E> {
    pub(crate) environment: E,
    pub(crate) clock: Clock,
    pub(crate) timeout: Duration,
    pub(crate) reuse: ConnectionReuse,
    pub(crate) byte_counters: Rc<ByteCounters>,
    pub(crate) read_buffers: RefCell<ReadBuffers>,
    /// The addresses of all targets, without duplicates.
    addresses: Vec<SocketAddr>,
    /// The index in `addresses` of each target.
    address_indices: Vec<usize>,
}

impl<E: Environment> ThreadContext<E> {
    pub(crate) fn new(environment: E, plan: &LoadPlan) -> Self {
        let mut addresses: Vec<SocketAddr> =
            plan.targets.iter().map(|target| target.address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        // Every target's address is in the list.
        let find_address_index =
            |address| addresses.iter().position(|candidate| candidate == address).unwrap_or(0);
        Self {
            address_indices: plan
                .targets
                .iter()
                .map(|target| find_address_index(&target.address))
                .collect(),
            addresses,
            environment,
            clock: Clock::start(),
            timeout: plan.timeout,
            reuse: plan.reuse,
            byte_counters: Rc::default(),
            read_buffers: RefCell::default(),
        }
    }

    /// Returns the number of different addresses.
    pub(crate) fn address_count(&self) -> usize {
        self.addresses.len()
    }

    /// Returns the address index of a target.
    pub(crate) fn address_index(&self, target_index: usize) -> usize {
        self.address_indices[target_index]
    }

    /// Opens a connection to an address.
    pub(crate) async fn connect(&self, address_index: usize) -> Result<E::Stream, ErrorKind> {
        match timeout(self.timeout, self.environment.connect(self.addresses[address_index])).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(ErrorKind::from_connect_error(&error)),
            Err(_) => Err(ErrorKind::ConnectTimeout),
        }
    }
}

/// Bytes on all connections of a thread.
#[derive(Debug, Default)]
pub(crate) struct ByteCounters {
    pub(crate) bytes_sent: Cell<u64>,
    pub(crate) bytes_received: Cell<u64>,
}

impl ByteCounters {
    pub(crate) fn count_sent(&self, byte_count: usize) {
        self.bytes_sent.set(self.bytes_sent.get() + byte_count as u64);
    }

    pub(crate) fn count_received(&self, byte_count: usize) {
        self.bytes_received.set(self.bytes_received.get() + byte_count as u64);
    }
}

/// The read buffer and the response head, shared by all connections of a thread, so that they stay in the CPU
/// caches and idle connections hold no memory.
#[derive(Debug)]
pub(crate) struct ReadBuffers {
    pub(crate) read_buffer: Box<[u8]>,
    pub(crate) response_head: ResponseHead,
}

impl Default for ReadBuffers {
    fn default() -> Self {
        Self {
            read_buffer: vec![0; READ_BYTES].into_boxed_slice(),
            response_head: ResponseHead::default(),
        }
    }
}

/// The size of a read buffer: large bodies need few reads, and it fits in the second-level cache.
const READ_BYTES: usize = 64 * 1024;
