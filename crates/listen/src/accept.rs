//! The accept loop of every server: it never fails, and pauses while the system has no room for a connection.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::{Instant, sleep_until};

use crate::source::Source;

/// A socket that accepts connections.
pub trait Accept {
    /// A connection.
    type Stream;

    /// The address of its peer.
    type Peer: Into<Source>;

    /// Accepts the next connection. Cancel-safe.
    fn accept_one(&self) -> impl Future<Output = io::Result<(Self::Stream, Self::Peer)>> + Send;
}

impl Accept for TcpListener {
    type Stream = TcpStream;
    type Peer = SocketAddr;

    async fn accept_one(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.accept().await
    }
}

impl Accept for UnixListener {
    type Stream = UnixStream;
    type Peer = Source;

    async fn accept_one(&self) -> io::Result<(UnixStream, Source)> {
        Ok((self.accept().await?.0, Source::LOCAL))
    }
}

impl From<SocketAddr> for Source {
    fn from(address: SocketAddr) -> Self {
        address.ip().into()
    }
}

/// A listener with an [`Listener::accept`] that does not fail.
///
/// Errors of a single connection, such as one that its client has closed, are skipped. When the system has no
/// file descriptor or no memory for a connection, the next attempt comes after a pause: the connection stays
/// in the queue of the kernel and would make the listener ready again at once.
#[derive(Debug)]
pub struct Listener<L> {
    listener: L,
    /// The server, for the log.
    server: &'static str,
    pauses: Pauses,
}

impl<L: Accept> Listener<L> {
    /// A listener of this server, which the log names.
    pub fn new(server: &'static str, listener: L) -> Self {
        Self { listener, server, pauses: Pauses::default() }
    }

    /// Accepts the next connection. Cancel-safe; a pause that was cancelled goes on at the next call.
    pub async fn accept(&mut self) -> (L::Stream, L::Peer) {
        loop {
            if let Some(accepted) = self.accept_or_pause().await {
                return accepted;
            }
        }
    }

    /// The same, but returns `None` when a pause begins, so that the caller can count it. The next call
    /// waits for its end.
    pub async fn accept_or_pause(&mut self) -> Option<(L::Stream, L::Peer)> {
        if let Some(until) = self.pauses.until {
            sleep_until(until).await;
            self.pauses.until = None;
        }
        while self.pauses.until.is_none() {
            match self.listener.accept_one().await {
                Ok(accepted) => {
                    self.pauses.succeed();
                    return Some(accepted);
                }
                Err(error) => self.fail(&error),
            }
        }
        None
    }

    /// Accept calls that were followed by a pause, since the start.
    pub fn paused(&self) -> u64 {
        self.pauses.number
    }

    fn fail(&mut self, error: &io::Error) {
        if self.pauses.fail(error, Instant::now()) {
            tracing::warn!(
                server = self.server,
                %error,
                "connections cannot be accepted; trying again several times a second"
            );
        }
    }
}

/// The pauses of a listener.
#[derive(Debug, Default)]
struct Pauses {
    until: Option<Instant>,
    /// The length of the last one, until a connection is accepted.
    last: Duration,
    /// Failures of single connections in a row.
    skipped: u32,
    /// When the next pause is logged at the earliest.
    logged_from: Option<Instant>,
    number: u64,
}

impl Pauses {
    fn succeed(&mut self) {
        (self.last, self.skipped) = (Duration::ZERO, 0);
    }

    /// Pauses, unless the failure is that of a single connection. Returns whether to log it.
    fn fail(&mut self, error: &io::Error, now: Instant) -> bool {
        if is_of_connection(error) && self.skipped < SKIPPED_MAX {
            self.skipped += 1;
            return false;
        }
        self.last = (self.last * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.until = Some(now + self.last);
        self.number += 1;
        if self.logged_from.is_some_and(|from| now < from) {
            return false;
        }
        self.logged_from = Some(now + LOG_PERIOD);
        true
    }
}

/// True for a failure of the one connection that was to be accepted, which says nothing about the next:
/// `accept(2)` reports network errors of the new connection as its own.
fn is_of_connection(error: &io::Error) -> bool {
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

/// The first pause: descriptors become free whenever a connection ends.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// The longest pause: eight attempts a second take no noticeable CPU time.
const PAUSE_MAX: Duration = Duration::from_millis(125);
/// Failures of single connections in a row before they are taken for one of the listener.
const SKIPPED_MAX: u32 = 64;
/// A listener logs that it pauses at most once in this time.
const LOG_PERIOD: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;

    use super::*;

    /// Answers with these errors, one after another, and then with connections.
    struct Script(RefCell<VecDeque<Errno>>);

    struct Nowhere;

    impl From<Nowhere> for Source {
        fn from(_: Nowhere) -> Self {
            Self::LOCAL
        }
    }

    impl Script {
        fn repeated(errors: &[(Errno, usize)]) -> Listener<Self> {
            let errors = errors.iter().flat_map(|(errno, n)| std::iter::repeat_n(*errno, *n));
            Listener::new("test", Self(RefCell::new(errors.collect())))
        }
    }

    impl Accept for Script {
        type Stream = ();
        type Peer = Nowhere;

        fn accept_one(&self) -> impl Future<Output = io::Result<((), Nowhere)>> + Send {
            let error = self.0.borrow_mut().pop_front();
            std::future::ready(error.map_or(Ok(((), Nowhere)), |error| Err(error.into())))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_to_a_bound_while_no_descriptor_is_free() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            let mut listener = Script::repeated(&[(errno, 100)]);
            let start = Instant::now();
            listener.accept().await;
            let took = start.elapsed();
            assert_eq!(listener.paused(), 100);
            assert!(took > PAUSE_MAX * 94 && took < PAUSE_MAX * 100, "{errno}: {took:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_broke_off_costs_the_next_no_time() {
        for errno in [Errno::CONNABORTED, Errno::PROTO, Errno::PERM, Errno::HOSTUNREACH] {
            let mut listener = Script::repeated(&[(errno, 60)]);
            let start = Instant::now();
            listener.accept().await;
            assert_eq!((start.elapsed(), listener.paused()), (Duration::ZERO, 0));
        }
        let mut listener = Script::repeated(&[(Errno::CONNABORTED, 1000)]);
        listener.accept().await;
        assert!(listener.paused() > 900, "an error that never ends is one of the listener");
    }

    #[tokio::test(start_paused = true)]
    async fn each_pause_is_reported_when_it_begins() {
        let mut listener = Script::repeated(&[(Errno::CONNABORTED, 3), (Errno::MFILE, 2)]);
        let start = Instant::now();
        assert!(listener.accept_or_pause().await.is_none());
        assert_eq!((start.elapsed(), listener.paused()), (Duration::ZERO, 1));
        assert!(listener.accept_or_pause().await.is_none());
        assert!(listener.accept_or_pause().await.is_some());
        assert!(start.elapsed() >= PAUSE_MIN * 3 && listener.paused() == 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_that_was_cancelled_goes_on() {
        let mut listener = Script::repeated(&[(Errno::MFILE, 20)]);
        let start = Instant::now();
        while tokio::time::timeout(Duration::from_millis(1), listener.accept()).await.is_err() {}
        assert!(start.elapsed() > PAUSE_MAX * 14 && listener.paused() == 20);
    }

    #[test]
    fn trouble_is_logged_once_in_a_while() {
        let (mut pauses, now) = (Pauses::default(), Instant::now());
        let error = io::Error::from(Errno::MFILE);
        let logged =
            (0..600).filter(|s| pauses.fail(&error, now + Duration::from_secs(*s))).count();
        assert_eq!(logged, 20);
    }
}
