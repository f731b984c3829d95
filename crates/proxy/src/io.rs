//! One byte stream, plain or TLS, whose reading and writing halves live in the same task.

use std::cell::{Cell, Ref, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::buffers::{self, Size};

/// One byte stream. Clones share it; they must stay in one task, which polls one side at a time.
#[derive(Clone)]
pub(crate) struct Io(Rc<Shared>);

struct Shared {
    stream: RefCell<Stream>,
    /// Bytes that the stream has taken may still wait inside its TLS session.
    unflushed: Cell<bool>,
    /// The last read filled all the room that it had: more is likely to be there.
    filled: Cell<bool>,
    /// When a peer that ended its direction is looked after next.
    next_look: RefCell<Option<Pin<Box<Sleep>>>>,
}

/// What the bytes travel on.
pub(crate) enum Stream {
    /// A bare TCP connection.
    Plain(TcpStream),
    /// TLS that this sidecar terminated.
    Server(Box<tokio_rustls::server::TlsStream<TcpStream>>),
    /// TLS that this sidecar began.
    Client(Box<tokio_rustls::client::TlsStream<TcpStream>>),
    /// Bytes that another task of this thread carries on.
    Memory(DuplexStream),
}

impl Io {
    pub(crate) fn new(stream: Stream) -> Self {
        Self(Rc::new(Shared {
            stream: RefCell::new(stream),
            unflushed: Cell::new(false),
            filled: Cell::new(false),
            next_look: RefCell::new(None),
        }))
    }

    /// Reads what there is into `buffer`, growing it by at most `READ_BYTES`. 0 is the end. An
    /// empty buffer holds no memory while nothing arrives.
    pub(crate) fn poll_read(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut BytesMut,
    ) -> Poll<io::Result<usize>> {
        let mut stream = self.0.stream.borrow_mut();
        let size = match &*stream {
            Stream::Plain(tcp) => {
                if buffer.is_empty() && tcp.poll_read_ready(cx)?.is_pending() {
                    buffers::give(buffer, Size::Message);
                    return Poll::Pending;
                }
                if self.0.filled.get() { Size::Batch } else { Size::Message }
            }
            Stream::Server(_) | Stream::Client(_) | Stream::Memory(_) => Size::Batch,
        };
        buffers::furnish(buffer, size);
        if buffer.capacity() - buffer.len() < READ_BYTES_MIN {
            buffer.reserve(READ_BYTES);
        }
        let polled = pin!(stream.read_buf(buffer)).poll(cx);
        match polled {
            Poll::Ready(_) => self.0.filled.set(buffer.len() == buffer.capacity()),
            Poll::Pending => buffers::give(buffer, size),
        }
        polled
    }

    /// Writes from the front of `buffer` until it is empty, then flushes. Pending with an empty
    /// buffer means that the flush is not done: call again.
    pub(crate) fn poll_write_all(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut BytesMut,
    ) -> Poll<io::Result<()>> {
        let mut stream = self.0.stream.borrow_mut();
        while !buffer.is_empty() {
            let written = ready!(Pin::new(&mut *stream).poll_write(cx, buffer))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.0.unflushed.set(true);
            buffer.advance(written);
        }
        if self.0.unflushed.get() {
            ready!(Pin::new(&mut *stream).poll_flush(cx))?;
            self.0.unflushed.set(false);
        }
        Poll::Ready(Ok(()))
    }

    /// Whether a write has yet to reach the kernel.
    pub(crate) fn is_unflushed(&self) -> bool {
        self.0.unflushed.get()
    }

    /// Ends the writing side: FIN, after `close_notify` on TLS.
    pub(crate) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.stream.borrow_mut()).poll_shutdown(cx)
    }

    /// Ends a connection on which nothing more is expected. A peer that does not read is not
    /// waited for longer than `FAREWELL`.
    pub(crate) async fn close(&self) {
        // Failing means that the connection is gone already, which is what we want.
        drop(timeout(FAREWELL, poll_fn(|cx| self.poll_shutdown(cx))).await);
    }

    /// Ends a connection whose peer may still be sending. Closing it with unread bytes would reset
    /// it, and the peer would lose the answer: so they are read and dropped for a while.
    pub(crate) async fn linger(&self) {
        let read_out = async {
            poll_fn(|cx| self.poll_shutdown(cx)).await?;
            let mut left = LINGER_BYTES_MAX;
            let mut dropped = BytesMut::new();
            loop {
                let read = poll_fn(|cx| self.poll_read(cx, &mut dropped)).await?;
                dropped.clear();
                match left.checked_sub(read) {
                    Some(rest) if read > 0 => left = rest,
                    _ => return Ok::<_, io::Error>(()),
                }
            }
        };
        // Failing means that the connection is gone already, which is what we want.
        drop(timeout(FAREWELL, read_out).await);
    }

    /// Whether the bytes travel as they are: not inside TLS.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(&*self.0.stream.borrow(), Stream::Plain(_))
    }

    /// Waits until there is something to read.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &*self.0.stream.borrow() {
            Stream::Plain(tcp) => tcp.poll_read_ready(cx),
            // Decrypted bytes may wait inside the session; reading is the only way to know.
            Stream::Server(_) | Stream::Client(_) | Stream::Memory(_) => Poll::Ready(Ok(())),
        }
    }

    /// Resolves when a peer that only waits has gone. The end of its own direction is no departure: it may wait for its
    /// answer (RFC 9112 §9.6). Bytes that it sends ahead hide its end until they are read, and so does TLS.
    pub(crate) fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        let Stream::Plain(tcp) = &*self.0.stream.borrow() else {
            return Poll::Pending;
        };
        match tcp.poll_peek(cx, &mut ReadBuf::new(&mut [0])) {
            Poll::Ready(Ok(0)) => self.poll_gone_after_end(cx),
            Poll::Ready(Err(_)) => Poll::Ready(()),
            Poll::Ready(Ok(_)) | Poll::Pending => Poll::Pending,
        }
    }

    /// Resolves when a peer that has ended its direction does not listen any more: it resets the connection, or leaves
    /// keepalive probes without a reply. Neither event makes a
    /// stream readable that has ended, so the socket is examined once in `LOOK_PERIOD`.
    #[cold]
    pub(crate) fn poll_gone_after_end(&self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(tcp) = self.tcp() else { return Poll::Pending };
        let mut next_look = self.0.next_look.borrow_mut();
        let look = next_look.get_or_insert_with(|| {
            let probes = TcpKeepalive::new()
                .with_time(PROBE_PERIOD)
                .with_interval(PROBE_PERIOD)
                .with_retries(PROBES_MAX);
            // Failing means that the socket is gone already, which the first look finds out.
            drop(SockRef::from(&*tcp).set_tcp_keepalive(&probes));
            Box::pin(sleep(LOOK_PERIOD))
        });
        loop {
            if !matches!(SockRef::from(&*tcp).take_error(), Ok(None)) {
                return Poll::Ready(());
            }
            ready!(look.as_mut().poll(cx));
            look.as_mut().reset(Instant::now() + LOOK_PERIOD);
        }
    }

    /// Whether an idle connection is still open and silent, hence fit for another request.
    pub(crate) fn is_quiet(&self) -> bool {
        // A peek tells end and data apart from silence and consumes neither; while the event
        // loop has seen nothing it costs no system call.
        let mut cx = Context::from_waker(Waker::noop());
        let Some(tcp) = self.tcp() else { return false };
        tcp.poll_peek(&mut cx, &mut ReadBuf::new(&mut [0])).is_pending()
    }

    /// Closes with a reset instead of an orderly end, when the last clone is dropped: the peer
    /// must not mistake it for success.
    pub(crate) fn reset(&self) {
        // Failing means that the socket is gone already, which is what we want.
        if let Some(tcp) = self.tcp() {
            drop(SockRef::from(&*tcp).set_linger(Some(Duration::ZERO)));
        }
    }

    /// Ends the connection both ways at once: whoever reads or writes it finds that out.
    pub(crate) fn cut(&self) {
        self.reset();
        if let Some(tcp) = self.tcp() {
            drop(SockRef::from(&*tcp).shutdown(std::net::Shutdown::Both));
        }
    }

    /// Lends the stream to a codec that reads and writes by itself.
    pub(crate) fn with<T>(&self, poll: impl FnOnce(Pin<&mut Stream>) -> T) -> T {
        poll(Pin::new(&mut *self.0.stream.borrow_mut()))
    }

    /// The connection below, where there is one.
    fn tcp(&self) -> Option<Ref<'_, TcpStream>> {
        let tcp = Ref::filter_map(self.0.stream.borrow(), |stream| match stream {
            Stream::Plain(tcp) => Some(tcp),
            Stream::Server(tls) => Some(tls.get_ref().0),
            Stream::Client(tls) => Some(tls.get_ref().0),
            Stream::Memory(_) => None,
        });
        tcp.ok()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Server(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Client(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Memory(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Server(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Client(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Memory(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Server(stream) => Pin::new(stream).poll_flush(cx),
            Self::Client(stream) => Pin::new(stream).poll_flush(cx),
            Self::Memory(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Server(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Client(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Memory(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// What one read asks for: a TLS record's worth.
const READ_BYTES: usize = 16 * 1024;
/// Below this much room a buffer grows before the next read.
const READ_BYTES_MIN: usize = 1024;
/// How long the end of a connection may take, read out or not.
const FAREWELL: Duration = Duration::from_secs(2);
/// What is read and dropped of a peer that goes on sending after its answer.
const LINGER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The time between two looks at a peer that has ended its direction and waits for its answer.
const LOOK_PERIOD: Duration = Duration::from_millis(500);
/// The time before the first keepalive probe to such a peer, and between two.
const PROBE_PERIOD: Duration = Duration::from_secs(3);
/// Probes without a reply after which the peer is gone: about twelve seconds after its machine went. The kernel of a
/// process that closed its socket goes on replying until it forgets the connection, for about a minute.
const PROBES_MAX: u32 = 3;
