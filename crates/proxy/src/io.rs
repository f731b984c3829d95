//! Byte streams over TCP, TLS or memory, shared by the readers and writers of one task. All connections of the
//! data path use them.

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

use crate::buffers::{self, BufferSize};

/// A byte stream. Clones share it; they must stay in one task, which polls one side at a time.
#[derive(Clone)]
pub(crate) struct Io(Rc<SharedStream>);

/// The stream and the state that its clones share.
struct SharedStream {
    stream: RefCell<ByteStream>,
    /// True if accepted bytes may still wait inside the TLS session.
    is_unflushed: Cell<bool>,
    /// True if the last read filled its buffer: more bytes are likely to be available.
    read_filled_buffer: Cell<bool>,
    /// The timer of the checks of a peer that has half-closed; `None` before the first check.
    peer_check_timer: RefCell<Option<Pin<Box<Sleep>>>>,
}

/// The transport of a byte stream.
pub(crate) enum ByteStream {
    /// TCP without TLS.
    Plain(TcpStream),
    /// TLS accepted by this sidecar.
    Server(Box<tokio_rustls::server::TlsStream<TcpStream>>),
    /// TLS opened by this sidecar.
    Client(Box<tokio_rustls::client::TlsStream<TcpStream>>),
    /// Memory, with another task of this thread at the other end.
    Memory(DuplexStream),
}

impl Io {
    pub(crate) fn new(stream: ByteStream) -> Self {
        Self(Rc::new(SharedStream {
            stream: RefCell::new(stream),
            is_unflushed: Cell::new(false),
            read_filled_buffer: Cell::new(false),
            peer_check_timer: RefCell::new(None),
        }))
    }

    /// Reads available bytes into `buffer`, which grows by at most `READ_BYTES`. Returns 0 at the end. An empty
    /// buffer holds no memory while no bytes arrive.
    pub(crate) fn poll_read(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut BytesMut,
    ) -> Poll<io::Result<usize>> {
        let mut stream = self.0.stream.borrow_mut();
        let size = match &*stream {
            ByteStream::Plain(tcp) => {
                if buffer.is_empty() && tcp.poll_read_ready(cx)?.is_pending() {
                    buffers::return_buffer(buffer, BufferSize::Message);
                    return Poll::Pending;
                }
                if self.0.read_filled_buffer.get() {
                    BufferSize::Batch
                } else {
                    BufferSize::Message
                }
            }
            ByteStream::Server(_) | ByteStream::Client(_) | ByteStream::Memory(_) => {
                BufferSize::Batch
            }
        };
        buffers::ensure_capacity(buffer, size);
        if buffer.capacity() - buffer.len() < MIN_READ_BYTES {
            buffer.reserve(READ_BYTES);
        }
        let result = pin!(stream.read_buf(buffer)).poll(cx);
        match result {
            Poll::Ready(_) => self.0.read_filled_buffer.set(buffer.len() == buffer.capacity()),
            Poll::Pending => buffers::return_buffer(buffer, size),
        }
        result
    }

    /// Writes from the front of `buffer` until it is empty, then flushes. Pending with an empty buffer means
    /// that the flush is not complete: call again.
    pub(crate) fn poll_write_all(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut BytesMut,
    ) -> Poll<io::Result<()>> {
        let mut stream = self.0.stream.borrow_mut();
        while !buffer.is_empty() {
            let written_bytes = ready!(Pin::new(&mut *stream).poll_write(cx, buffer))?;
            if written_bytes == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.0.is_unflushed.set(true);
            buffer.advance(written_bytes);
        }
        if self.0.is_unflushed.get() {
            ready!(Pin::new(&mut *stream).poll_flush(cx))?;
            self.0.is_unflushed.set(false);
        }
        Poll::Ready(Ok(()))
    }

    /// True if written bytes may not have reached the kernel yet.
    pub(crate) fn is_unflushed(&self) -> bool {
        self.0.is_unflushed.get()
    }

    /// Closes the write side: FIN, after `close_notify` on TLS.
    pub(crate) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.stream.borrow_mut()).poll_shutdown(cx)
    }

    /// Closes a connection on which no more bytes are expected. Waits at most `MAX_CLOSE_TIME` for a peer that
    /// does not read.
    pub(crate) async fn close(&self) {
        // An error means that the connection is already closed.
        drop(timeout(MAX_CLOSE_TIME, poll_fn(|cx| self.poll_shutdown(cx))).await);
    }

    /// Closes a connection with a peer that may still be sending. A close with unread bytes would reset the
    /// connection, and the peer would lose the response. Therefore received bytes are read and dropped, for at
    /// most `MAX_CLOSE_TIME` and [`MAX_LINGER_BYTES`].
    pub(crate) async fn close_lingering(&self) {
        let drain = async {
            poll_fn(|cx| self.poll_shutdown(cx)).await?;
            let mut remaining = MAX_LINGER_BYTES;
            let mut discarded = BytesMut::new();
            loop {
                let read_bytes = poll_fn(|cx| self.poll_read(cx, &mut discarded)).await?;
                discarded.clear();
                match remaining.checked_sub(read_bytes) {
                    Some(new_remaining) if read_bytes > 0 => remaining = new_remaining,
                    // The peer has closed, or has sent too many bytes.
                    _ => return Ok::<_, io::Error>(()),
                }
            }
        };
        // An error means that the connection is already closed.
        drop(timeout(MAX_CLOSE_TIME, drain).await);
    }

    /// True if the stream is plain TCP, without TLS.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(&*self.0.stream.borrow(), ByteStream::Plain(_))
    }

    /// Polls until the stream may be readable; always ready for TLS and memory.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &*self.0.stream.borrow() {
            ByteStream::Plain(tcp) => tcp.poll_read_ready(cx),
            // Decrypted bytes may wait inside the session; only a read can detect them.
            ByteStream::Server(_) | ByteStream::Client(_) | ByteStream::Memory(_) => {
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Resolves when a peer that waits for its response has closed the connection. A half-close does not count:
    /// the peer may still expect its response (RFC 9112 §9.6). Pipelined bytes hide a close until they are
    /// read, and TLS always hides it.
    pub(crate) fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        let ByteStream::Plain(tcp) = &*self.0.stream.borrow() else {
            return Poll::Pending;
        };
        match tcp.poll_peek(cx, &mut ReadBuf::new(&mut [0])) {
            Poll::Ready(Ok(0)) => self.poll_gone_after_end(cx),
            Poll::Ready(Err(_)) => Poll::Ready(()),
            Poll::Ready(Ok(_)) | Poll::Pending => Poll::Pending,
        }
    }

    /// Resolves when a peer that has half-closed is gone: it resets the connection, or does not reply to
    /// keepalive probes. Neither event makes a half-closed stream readable, so the socket is checked once per
    /// `PEER_CHECK_INTERVAL`.
    #[cold]
    pub(crate) fn poll_gone_after_end(&self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(tcp) = self.tcp_stream() else { return Poll::Pending };
        let mut check_timer_slot = self.0.peer_check_timer.borrow_mut();
        let check_timer = check_timer_slot.get_or_insert_with(|| {
            let keepalive = TcpKeepalive::new()
                .with_time(KEEPALIVE_INTERVAL)
                .with_interval(KEEPALIVE_INTERVAL)
                .with_retries(KEEPALIVE_RETRIES);
            // An error means that the socket is already closed, which the first check detects.
            drop(SockRef::from(&*tcp).set_tcp_keepalive(&keepalive));
            Box::pin(sleep(PEER_CHECK_INTERVAL))
        });
        loop {
            if !matches!(SockRef::from(&*tcp).take_error(), Ok(None)) {
                return Poll::Ready(());
            }
            ready!(check_timer.as_mut().poll(cx));
            check_timer.as_mut().reset(Instant::now() + PEER_CHECK_INTERVAL);
        }
    }

    /// True if an idle connection is still open and has received no bytes, so that it may take another request.
    pub(crate) fn is_quiet(&self) -> bool {
        // A peek distinguishes end and data from silence and consumes neither; without an event in the event
        // loop it costs no system call.
        let mut cx = Context::from_waker(Waker::noop());
        let Some(tcp) = self.tcp_stream() else { return false };
        tcp.poll_peek(&mut cx, &mut ReadBuf::new(&mut [0])).is_pending()
    }

    /// Resets the connection when the last clone is dropped, so that the peer does not mistake the close for
    /// success.
    pub(crate) fn reset_on_drop(&self) {
        // An error means that the socket is already closed.
        if let Some(tcp) = self.tcp_stream() {
            drop(SockRef::from(&*tcp).set_linger(Some(Duration::ZERO)));
        }
    }

    /// Resets the connection at once, in both directions: readers and writers get an error.
    pub(crate) fn reset_now(&self) {
        self.reset_on_drop();
        if let Some(tcp) = self.tcp_stream() {
            drop(SockRef::from(&*tcp).shutdown(std::net::Shutdown::Both));
        }
    }

    /// Calls `poll` with the stream, for a codec that reads and writes it directly.
    pub(crate) fn with_stream<T>(&self, poll: impl FnOnce(Pin<&mut ByteStream>) -> T) -> T {
        poll(Pin::new(&mut *self.0.stream.borrow_mut()))
    }

    /// Returns the underlying TCP connection; `None` for memory.
    fn tcp_stream(&self) -> Option<Ref<'_, TcpStream>> {
        let tcp = Ref::filter_map(self.0.stream.borrow(), |stream| match stream {
            ByteStream::Plain(tcp) => Some(tcp),
            ByteStream::Server(tls) => Some(tls.get_ref().0),
            ByteStream::Client(tls) => Some(tls.get_ref().0),
            ByteStream::Memory(_) => None,
        });
        tcp.ok()
    }
}

impl AsyncRead for ByteStream {
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

impl AsyncWrite for ByteStream {
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

/// The size in bytes of one read: a TLS record.
const READ_BYTES: usize = 16 * 1024;
/// The free capacity in bytes below which a buffer grows before the next read.
const MIN_READ_BYTES: usize = 1024;
/// The maximum duration of closing a connection, including reads of remaining bytes.
const MAX_CLOSE_TIME: Duration = Duration::from_secs(2);
/// The maximum number of bytes dropped from a peer that continues to send after its response.
const MAX_LINGER_BYTES: usize = 64 * 1024 * 1024;
/// The time between two checks of a peer that has half-closed and waits for its response.
const PEER_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The time before the first keepalive probe to a peer that has half-closed, and between two probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
/// The number of unanswered probes after which the peer is gone: about twelve seconds after its machine
/// vanished. For a process that closed its socket, the kernel continues to reply until it drops the connection,
/// for about a minute.
const KEEPALIVE_RETRIES: u32 = 3;
