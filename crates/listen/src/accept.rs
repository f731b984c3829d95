//! Accepts the connections of every server. A listener pauses while the system lacks file descriptors or
//! memory, and closes without losing the connections in the kernel's queue.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use rustix::io::Errno;
use socket2::{SockFilter, SockRef};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio::time::{Instant, sleep_until};

use crate::source::ConnectionSource;

/// Opens a TCP listener with `SO_REUSEADDR`, so that closed connections do not block the address.
///
/// # Errors
/// Returns an error if the address is in use, or not local.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Maximum connections that wait to be accepted at a listener. The kernel limits the number to `somaxconn`.
pub const BACKLOG: u32 = 1024;

/// A socket that accepts connections.
pub trait Accept {
    /// An accepted connection, such as a [`TcpStream`].
    type Stream;

    /// The address of the connection's peer, which determines the source of the connection.
    type Peer: Into<ConnectionSource>;

    /// Accepts the next connection. Cancel-safe.
    fn accept_one(&self) -> impl Future<Output = io::Result<(Self::Stream, Self::Peer)>> + Send;

    /// Prevents new TCP handshakes; handshakes in progress complete, and their connections join the queue.
    ///
    /// # Errors
    /// Returns an error if the system does not support the filter: connections then arrive until the socket is
    /// closed.
    fn end_handshakes(&self) -> io::Result<()>;
}

impl Accept for TcpListener {
    type Stream = TcpStream;
    type Peer = SocketAddr;

    async fn accept_one(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.accept().await
    }

    fn end_handshakes(&self) -> io::Result<()> {
        SockRef::from(self).attach_filter(&DROP_SYN)
    }
}

impl Accept for UnixListener {
    type Stream = UnixStream;
    type Peer = ConnectionSource;

    async fn accept_one(&self) -> io::Result<(UnixStream, ConnectionSource)> {
        Ok((self.accept().await?.0, ConnectionSource::LOCAL))
    }

    fn end_handshakes(&self) -> io::Result<()> {
        // Unix sockets have no handshake: a connection is in the queue as soon as its client calls `connect`.
        Ok(())
    }
}

/// The next event of a listener.
#[derive(Debug)]
pub enum AcceptEvent<S, P> {
    /// An accepted connection, and the address of its peer.
    Accepted(S, P),
    /// A pause started, because the system has no room for a connection. The next call waits until the pause ends.
    Paused,
    /// The listener was closed by [`Listener::close`], and no connection is left in its queue.
    Closed,
}

impl From<SocketAddr> for ConnectionSource {
    fn from(address: SocketAddr) -> Self {
        address.ip().into()
    }
}

/// A listener that handles all errors of `accept(2)` itself.
///
/// Errors of a single connection, such as an aborted one, are skipped. When the system has no file descriptor or no
/// memory for a connection, the next attempt follows after a pause. Without the pause, the connection in the kernel's
/// queue would make the listener ready again at once.
#[derive(Debug)]
pub struct Listener<L> {
    listener: L,
    /// The name of the server in log messages.
    server: &'static str,
    pauses: Pauses,
    /// The time at which handshakes in progress must be complete; `None` until the listener is closed.
    closes_at: Option<Instant>,
}

impl<L: Accept> Listener<L> {
    /// Creates a listener; `server` names it in the log.
    pub fn new(server: &'static str, listener: L) -> Self {
        Self { listener, server, pauses: Pauses::default(), closes_at: None }
    }

    /// Accepts the next connection. Cancel-safe; a cancelled pause continues with the next call.
    pub async fn accept(&mut self) -> (L::Stream, L::Peer) {
        loop {
            if let Some(accepted) = self.accept_or_pause().await {
                return accepted;
            }
        }
    }

    /// Accepts the next connection. Returns [`AcceptEvent::Paused`] when a pause starts, so that the caller can
    /// count it, and [`AcceptEvent::Closed`] when a closed listener has no more connections. Cancel-safe.
    pub async fn next(&mut self) -> AcceptEvent<L::Stream, L::Peer> {
        let Some(closes_at) = self.closes_at else {
            return AcceptEvent::from(self.accept_or_pause().await);
        };
        tokio::select! {
            // The queue is polled before the clock: after a delay of this process both may be ready.
            biased;
            accepted = self.accept_or_pause() => AcceptEvent::from(accepted),
            () = sleep_until(closes_at) => AcceptEvent::Closed,
        }
    }

    /// Closes the listener without losing a connection: handshakes in progress get [`HANDSHAKE_TIME`] to
    /// complete, and [`Listener::next`] returns every connection of the queue before [`AcceptEvent::Closed`].
    /// The kernel resets the connections that are in the queue of a socket when it is closed, although their
    /// clients have sent requests.
    pub fn close(&mut self) {
        // Without the filter, connections that arrive during `HANDSHAKE_TIME` are accepted as well.
        if let Err(error) = self.listener.end_handshakes() {
            tracing::debug!(server = self.server, %error, "cannot stop new handshakes");
        }
        self.closes_at = Some(Instant::now() + HANDSHAKE_TIME);
    }

    /// Accepts the next connection. When `stopped` completes, the listener is closed as by
    /// [`Listener::close`]: the next calls return the queued connections, and then `None`. Cancel-safe.
    pub async fn next_until(
        &mut self,
        stopped: impl Future<Output = ()>,
    ) -> Option<(L::Stream, L::Peer)> {
        let mut stopped = pin!(stopped);
        loop {
            let event = tokio::select! {
                // `stopped` is polled first: under load there is always a next connection.
                biased;
                () = stopped.as_mut(), if self.closes_at.is_none() => {
                    self.close();
                    continue;
                }
                event = self.next() => event,
            };
            match event {
                AcceptEvent::Accepted(stream, peer) => return Some((stream, peer)),
                AcceptEvent::Paused => {}
                AcceptEvent::Closed => return None,
            }
        }
    }

    /// Waits for the end of the current pause, then accepts a connection. Returns `None` when a new pause starts.
    async fn accept_or_pause(&mut self) -> Option<(L::Stream, L::Peer)> {
        if let Some(until) = self.pauses.paused_until {
            sleep_until(until).await;
            self.pauses.paused_until = None;
        }
        while self.pauses.paused_until.is_none() {
            match self.listener.accept_one().await {
                Ok(accepted) => {
                    self.pauses.record_success();
                    return Some(accepted);
                }
                Err(error) => self.record_failure(&error),
            }
        }
        None
    }

    /// Returns the number of pauses since the start.
    pub fn pause_count(&self) -> u64 {
        self.pauses.pause_count
    }

    fn record_failure(&mut self, error: &io::Error) {
        if self.pauses.record_failure(error, Instant::now()) {
            tracing::warn!(
                server = self.server,
                %error,
                "cannot accept connections; retrying several times per second"
            );
        }
    }
}

impl<S, P> From<Option<(S, P)>> for AcceptEvent<S, P> {
    fn from(accepted: Option<(S, P)>) -> Self {
        accepted.map_or(Self::Paused, |(stream, peer)| Self::Accepted(stream, peer))
    }
}

/// The pauses of a listener.
#[derive(Debug, Default)]
struct Pauses {
    /// The end of the current pause; `None` if there is none.
    paused_until: Option<Instant>,
    /// The length of the previous pause; zero after an accepted connection.
    last_pause: Duration,
    /// The number of consecutive failures of single connections.
    consecutive_skips: u32,
    /// The earliest time at which the next pause is logged; `None` before the first one.
    next_log_at: Option<Instant>,
    /// The number of pauses since the start.
    pause_count: u64,
}

impl Pauses {
    fn record_success(&mut self) {
        (self.last_pause, self.consecutive_skips) = (Duration::ZERO, 0);
    }

    /// Starts a pause, unless the failure is that of a single connection. Returns true if the pause should be
    /// logged.
    fn record_failure(&mut self, error: &io::Error, now: Instant) -> bool {
        if is_connection_error(error) && self.consecutive_skips < MAX_CONSECUTIVE_SKIPS {
            self.consecutive_skips += 1;
            return false;
        }
        self.last_pause = (self.last_pause * 2).clamp(FIRST_PAUSE, MAX_PAUSE);
        self.paused_until = Some(now + self.last_pause);
        self.pause_count += 1;
        if self.next_log_at.is_some_and(|next_log_at| now < next_log_at) {
            return false;
        }
        self.next_log_at = Some(now + LOG_INTERVAL);
        true
    }
}

/// True for a failure of a single connection, which does not affect the next connection. `accept(2)` returns such
/// failures because it also reports pending network errors of the new connection.
fn is_connection_error(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(
        errno,
        Some(
            Errno::CONNABORTED
                | Errno::CONNRESET
                | Errno::INTR
                | Errno::PERM
                | Errno::PROTO
                | Errno::NOPROTOOPT
                | Errno::OPNOTSUPP
                | Errno::NETDOWN
                | Errno::NETUNREACH
                | Errno::HOSTDOWN
                | Errno::HOSTUNREACH
                | Errno::NONET
                | Errno::TIMEDOUT
        )
    )
}

/// The time for handshakes in progress when a listener is closed. It suffices for a round trip to a distant client.
const HANDSHAKE_TIME: Duration = Duration::from_millis(100);
/// A filter of received segments (classic BPF, starting at the TCP header) that drops segments with SYN. A
/// client retransmits its SYN after a second, and reaches a process that listens at the address by then.
const DROP_SYN: [SockFilter; 4] = [
    SockFilter::new(LOAD_BYTE, 0, 0, TCP_FLAGS_OFFSET),
    // If SYN is set, continues with the next instruction; otherwise skips it.
    SockFilter::new(JUMP_IF_SET, 0, 1, TCP_SYN),
    // Keeps 0 bytes: the segment is dropped.
    SockFilter::new(RETURN, 0, 0, 0),
    // Keeps the whole segment.
    SockFilter::new(RETURN, 0, 0, u32::MAX),
];
/// `BPF_LD | BPF_B | BPF_ABS`.
const LOAD_BYTE: u16 = 0x30;
/// `BPF_JMP | BPF_JSET | BPF_K`.
const JUMP_IF_SET: u16 = 0x45;
/// `BPF_RET | BPF_K`.
const RETURN: u16 = 0x06;
/// The offset of the flags in a TCP header (RFC 9293 §3.1).
const TCP_FLAGS_OFFSET: u32 = 13;
/// The SYN flag.
const TCP_SYN: u32 = 0x02;
/// The length of the first pause; each further pause is twice as long. The first pause is short, because every
/// closed connection frees a file descriptor.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// The maximum pause. Eight attempts a second take no noticeable CPU time.
const MAX_PAUSE: Duration = Duration::from_millis(125);
/// Maximum consecutive failures of single connections. Further ones count as failures of the listener, and start a
/// pause.
const MAX_CONSECUTIVE_SKIPS: u32 = 64;
/// The minimum interval of log lines about pauses.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;

    use super::*;

    /// A socket that returns the listed errors one after another, and then connections.
    struct ScriptedSocket(RefCell<VecDeque<Errno>>);

    struct LocalPeer;

    impl From<LocalPeer> for ConnectionSource {
        fn from(_: LocalPeer) -> Self {
            Self::LOCAL
        }
    }

    impl ScriptedSocket {
        fn failing_listener(errors: &[(Errno, usize)]) -> Listener<Self> {
            let errors =
                errors.iter().flat_map(|(errno, count)| std::iter::repeat_n(*errno, *count));
            Listener::new("test", Self(RefCell::new(errors.collect())))
        }
    }

    impl Accept for ScriptedSocket {
        type Stream = ();
        type Peer = LocalPeer;

        fn accept_one(&self) -> impl Future<Output = io::Result<((), LocalPeer)>> + Send {
            let error = self.0.borrow_mut().pop_front();
            std::future::ready(error.map_or(Ok(((), LocalPeer)), |error| Err(error.into())))
        }

        fn end_handshakes(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_to_a_bound_while_no_descriptor_is_free() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            let mut listener = ScriptedSocket::failing_listener(&[(errno, 100)]);
            let start = Instant::now();
            listener.accept().await;
            let elapsed = start.elapsed();
            assert_eq!(listener.pause_count(), 100);
            assert!(elapsed > MAX_PAUSE * 94 && elapsed < MAX_PAUSE * 100, "{errno}: {elapsed:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_aborted_connection_does_not_delay_the_next_one() {
        for errno in [Errno::CONNABORTED, Errno::PROTO, Errno::PERM, Errno::HOSTUNREACH] {
            let mut listener = ScriptedSocket::failing_listener(&[(errno, 60)]);
            let start = Instant::now();
            listener.accept().await;
            assert_eq!((start.elapsed(), listener.pause_count()), (Duration::ZERO, 0));
        }
        let mut listener = ScriptedSocket::failing_listener(&[(Errno::CONNABORTED, 1000)]);
        listener.accept().await;
        assert!(listener.pause_count() > 900, "a persistent error is an error of the listener");
    }

    #[tokio::test(start_paused = true)]
    async fn each_pause_is_reported_when_it_starts() {
        let mut listener =
            ScriptedSocket::failing_listener(&[(Errno::CONNABORTED, 3), (Errno::MFILE, 2)]);
        let start = Instant::now();
        assert!(matches!(listener.next().await, AcceptEvent::Paused));
        assert_eq!((start.elapsed(), listener.pause_count()), (Duration::ZERO, 1));
        assert!(matches!(listener.next().await, AcceptEvent::Paused));
        assert!(matches!(listener.next().await, AcceptEvent::Accepted((), LocalPeer)));
        assert!(start.elapsed() >= FIRST_PAUSE * 3 && listener.pause_count() == 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_pause_continues() {
        let mut listener = ScriptedSocket::failing_listener(&[(Errno::MFILE, 20)]);
        let start = Instant::now();
        while tokio::time::timeout(Duration::from_millis(1), listener.accept()).await.is_err() {}
        assert!(start.elapsed() > MAX_PAUSE * 14 && listener.pause_count() == 20);
    }

    #[tokio::test]
    async fn a_burst_of_connections_is_queued() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let connect = |_| std::net::TcpStream::connect_timeout(&address, HANDSHAKE_TIME / 2);
        let burst: io::Result<Vec<_>> = (0..300).map(connect).collect();
        assert_eq!(burst.unwrap().len(), 300);
    }

    #[tokio::test]
    async fn queued_connections_are_accepted_after_close_and_no_handshake_starts() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let early: Vec<_> = (0..20).map(|_| std::net::TcpStream::connect(address)).collect();
        let mut listener = Listener::new("test", listener);
        listener.close();
        let late = std::net::TcpStream::connect_timeout(&address, HANDSHAKE_TIME / 2);
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
        for client in early {
            let AcceptEvent::Accepted(_, peer) = listener.next().await else {
                panic!("the listener is closed")
            };
            assert_eq!(peer, client.unwrap().local_addr().unwrap());
        }
        assert!(matches!(listener.next().await, AcceptEvent::Closed));
    }

    #[tokio::test]
    async fn queued_connections_are_accepted_after_the_stop() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let clients: Vec<_> = (0..20).map(|_| std::net::TcpStream::connect(address)).collect();
        let mut listener = Listener::new("test", listener);
        for client in clients {
            let (_, peer) = listener.next_until(std::future::ready(())).await.unwrap();
            assert_eq!(peer, client.unwrap().local_addr().unwrap());
        }
        assert!(listener.next_until(std::future::ready(())).await.is_none());
    }

    #[test]
    fn pauses_are_logged_at_a_bounded_rate() {
        let (mut pauses, now) = (Pauses::default(), Instant::now());
        let error = io::Error::from(Errno::MFILE);
        let logged = (0..600)
            .filter(|second| pauses.record_failure(&error, now + Duration::from_secs(*second)))
            .count();
        assert_eq!(logged, 20);
    }
}
