//! Drives a link: moves bytes between its state and its connection, and detects a peer that does not respond.

use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use leno_wire::link::LinkError;
use tokio::time::{Instant, Sleep, sleep_until};

use super::{LinkHandle, OpenedStream};
use crate::buffers::{self, BufferSize};
use crate::io::Io;

impl LinkHandle {
    /// Drives the link over `io` until either side closes it. `on_open` receives the streams that the peer
    /// opens. Each turn reads all available bytes, then writes all output at once. After `idle_timeout` without
    /// a stream the link retires.
    ///
    /// # Errors
    /// The peer violated the link protocol.
    pub(crate) async fn drive(
        self,
        io: Io,
        idle_timeout: Duration,
        on_open: impl FnMut(OpenedStream),
    ) -> Result<(), LinkError> {
        self.drive_with_intervals(
            LinkIntervals { beat: BEAT_INTERVAL, tick: TICK_INTERVAL, idle_timeout },
            io,
            on_open,
        )
        .await
    }

    async fn drive_with_intervals(
        self,
        intervals: LinkIntervals,
        io: Io,
        on_open: impl FnMut(OpenedStream),
    ) -> Result<(), LinkError> {
        let beat_at = Instant::now() + intervals.beat;
        let mut driver = Driver {
            link: self.clone(),
            io: io.clone(),
            read_buffer: BytesMut::new(),
            write_buffer: BytesMut::new(),
            on_open,
            intervals,
            timer: Box::pin(sleep_until(beat_at)),
            beat_at,
            check_interval: CheckInterval::Idle,
            has_received: false,
            checks_since_ping: None,
            was_used: false,
            idle_remaining: intervals.idle_timeout,
            closing_beats: CLOSING_BEATS,
            violation: None,
        };
        poll_fn(|cx| driver.poll_turn(cx)).await;
        let violation = driver.violation.take();
        self.fail_all_streams();
        io.close().await;
        violation.map_or(Ok(()), Err)
    }
}

/// The intervals of a link.
#[derive(Debug, Clone, Copy)]
struct LinkIntervals {
    /// The interval of beats: each renews the peer's allowances and counts idle time.
    beat: Duration,
    /// The shortest interval of liveness checks, used while streams are open.
    tick: Duration,
    /// The time without a stream after which the link retires.
    idle_timeout: Duration,
}

/// Moves bytes between a link's state and its connection.
struct Driver<F> {
    link: LinkHandle,
    io: Io,
    read_buffer: BytesMut,
    write_buffer: BytesMut,
    on_open: F,
    intervals: LinkIntervals,
    /// The time of the next check. One timer serves all waits of a link.
    timer: Pin<Box<Sleep>>,
    /// The time of the next beat.
    beat_at: Instant,
    check_interval: CheckInterval,
    /// True if bytes arrived since the last check.
    has_received: bool,
    /// The number of checks since the last ping, while it is unanswered; `None` if no ping is unanswered.
    checks_since_ping: Option<u32>,
    /// True if a stream was opened or written to since the last beat.
    was_used: bool,
    /// The remaining idle time.
    idle_remaining: Duration,
    /// The remaining beats in which the peer may answer the ping of a retiring link.
    closing_beats: u32,
    /// The protocol violation of the peer that ended the link; `None` without a violation.
    violation: Option<LinkError>,
}

/// The interval of liveness checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckInterval {
    /// The beat interval: no stream is open.
    Idle,
    /// A tick, doubled this many times: streams are open.
    Active(u32),
}

/// The state of the read half of the connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadState {
    Open,
    Closed,
}

impl<F: FnMut(OpenedStream)> Driver<F> {
    /// Runs one turn: reads, checks the peer and writes. Returns `Ready` when the link has ended.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_used = {
            let mut state = self.link.0.state.borrow_mut();
            state.driver_waker = Some(cx.waker().clone());
            state.was_used
        };
        if is_used && self.check_interval != CheckInterval::Active(0) {
            self.shorten_check_interval();
        }
        let read_state = self.poll_input(cx);
        let is_alive = self.poll_timer(cx);
        loop {
            if self.write_buffer.is_empty() && !self.io.is_unflushed() && !self.take_output() {
                let state = self.link.0.state.borrow();
                let is_over =
                    read_state == ReadState::Closed || state.is_broken || state.is_finished();
                return if is_over || !is_alive { Poll::Ready(()) } else { Poll::Pending };
            }
            match self.io.poll_write_all(cx, &mut self.write_buffer) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                // After a disconnect or a protocol violation, pending output is dropped.
                Poll::Pending if read_state == ReadState::Closed || !is_alive => {
                    return Poll::Ready(());
                }
                // So is the output of an abandoned link.
                Poll::Pending if self.link.is_broken() => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Shortens the check interval because a stream was opened or written to, so that an unresponsive peer is
    /// detected soon.
    #[inline(never)]
    fn shorten_check_interval(&mut self) {
        self.check_interval = CheckInterval::Active(0);
        let next_check = Instant::now() + self.intervals.tick;
        if next_check < self.timer.deadline() {
            self.timer.as_mut().reset(next_check);
        }
    }

    /// Runs a check when the timer fires. Returns false if the peer left the last ping unanswered for too long:
    /// the link is then lost.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> bool {
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            // After a stall of this process, received bytes may not have been read yet.
            let is_late = now > self.timer.deadline() + self.intervals.tick;
            let is_alive = self.check_peer(is_late);
            if now >= self.beat_at {
                self.beat_at = now + self.intervals.beat;
                self.run_beat();
            }
            if !is_alive {
                return false;
            }
            let next_check = match self.check_interval {
                CheckInterval::Idle => self.beat_at,
                // A ping is unanswered.
                CheckInterval::Active(_) if self.checks_since_ping.is_some() => {
                    now + self.intervals.tick
                }
                CheckInterval::Active(doublings) => {
                    now + self.intervals.tick.saturating_mul(1 << doublings)
                }
            };
            self.timer.as_mut().reset(next_check);
        }
        true
    }

    /// Pings a silent peer while streams are open, and reports the peer if it remains silent. Returns false if
    /// the peer has been silent for [`LOST_CHECKS`] checks after the ping. `is_late`: this check runs late, so
    /// silence does not count.
    fn check_peer(&mut self, is_late: bool) -> bool {
        let was_silent = self.link.0.state.borrow().is_silent;
        if self.has_received && was_silent {
            self.link.set_silent(false);
        }
        let mut state = self.link.0.state.borrow_mut();
        let is_used = std::mem::take(&mut state.was_used);
        self.was_used |= is_used;
        let was_answered = self.has_received && self.checks_since_ping.is_some();
        let needs_liveness = !state.slots.is_empty() || state.is_retired;
        self.check_interval = match self.check_interval {
            _ if is_used => CheckInterval::Active(0),
            _ if !needs_liveness => CheckInterval::Idle,
            // Open streams without data in either direction: the peer responds, so pings become less frequent.
            CheckInterval::Active(doublings) if was_answered => {
                CheckInterval::Active((doublings + 1).min(MAX_INTERVAL_DOUBLINGS))
            }
            CheckInterval::Active(doublings) => CheckInterval::Active(doublings),
            CheckInterval::Idle => CheckInterval::Active(0),
        };
        if std::mem::take(&mut self.has_received) || is_late {
            self.checks_since_ping = self.checks_since_ping.filter(|_| !was_answered);
            return true;
        }
        match &mut self.checks_since_ping {
            Some(checks) => {
                *checks += 1;
                let checks = *checks;
                drop(state);
                if checks >= SILENT_CHECKS && !was_silent {
                    self.link.set_silent(true);
                }
                return checks < LOST_CHECKS;
            }
            None if needs_liveness => {
                state.link.ping();
                self.checks_since_ping = Some(0);
            }
            None => {}
        }
        true
    }

    /// Runs a beat: renews the peer's allowances, sends GOAWAY on a retiring link after its last closing beat, and
    /// retires a link that has been idle for too long.
    fn run_beat(&mut self) {
        let mut state = self.link.0.state.borrow_mut();
        state.link.renew_allowances();
        let is_idle = state.slots.is_empty() && !std::mem::take(&mut self.was_used);
        if state.is_retired && !state.is_last_stream_known {
            // A peer that keeps opening streams without answering the ping has reached its limit.
            match self.closing_beats {
                0 => state.send_go_away(),
                remaining => self.closing_beats = remaining - 1,
            }
        }
        drop(state);
        let LinkIntervals { beat, idle_timeout, .. } = self.intervals;
        self.idle_remaining =
            if is_idle { self.idle_remaining.saturating_sub(beat) } else { idle_timeout };
        if self.idle_remaining.is_zero() {
            self.link.retire();
        }
    }

    /// Moves the pending output from the link state to the write buffer. Returns false if there is no output.
    fn take_output(&mut self) -> bool {
        // An idle link holds no buffer.
        buffers::return_buffer(&mut self.write_buffer, BufferSize::Turn);
        let mut state = self.link.0.state.borrow_mut();
        let was_congested = state.link.is_congested();
        std::mem::swap(&mut self.write_buffer, state.link.output());
        if was_congested {
            state.resume_congested();
            self.link.0.changed.notify_waiters();
        }
        !self.write_buffer.is_empty()
    }

    /// Reads and dispatches received frames.
    fn poll_input(&mut self, cx: &mut Context<'_>) -> ReadState {
        for _ in 0..READS_PER_TURN {
            match self.io.poll_read(cx, &mut self.read_buffer) {
                Poll::Ready(Ok(0) | Err(_)) => return ReadState::Closed,
                Poll::Ready(Ok(_)) => self.has_received = true,
                Poll::Pending => return ReadState::Open,
            }
            loop {
                let event = self.link.0.state.borrow_mut().link.receive(&mut self.read_buffer);
                match event {
                    Ok(Some(event)) => self.link.dispatch_event(event, &mut self.on_open),
                    Ok(None) => break,
                    Err(error) => {
                        self.violation = Some(error);
                        return ReadState::Closed;
                    }
                }
            }
        }
        // More bytes may be available; the streams of this turn run first.
        cx.waker().wake_by_ref();
        ReadState::Open
    }
}

/// The interval at which the peer's allowances are renewed (`docs/link.md`, Floods).
const BEAT_INTERVAL: Duration = Duration::from_secs(10);
/// The interval of checks of a link in use. A peer is pinged at the first check without bytes since the
/// previous one.
const TICK_INTERVAL: Duration = Duration::from_millis(500);
/// The number of checks after an unanswered ping from which on new requests go to another endpoint: 2 s after
/// the ping, and within 3 s of the last byte of the peer.
const SILENT_CHECKS: u32 = 4;
/// The number of checks after which the streams of the link are lost as well, 6 s after the ping. A peer that
/// is short of CPU time, or that serves a thousand streams before the ping, can be silent for seconds and then
/// continue.
const LOST_CHECKS: u32 = 12;
/// The maximum number of doublings of the check interval: idle streams cost at most one ping every 4.5 s.
const MAX_INTERVAL_DOUBLINGS: u32 = 3;
/// The number of beats in which a peer has to answer the ping of a retiring link.
const CLOSING_BEATS: u32 = 1;
/// The maximum number of reads in one turn; bounds the delay of the streams.
const READS_PER_TURN: usize = 4;

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use leno_wire::link::{Link, LinkLimits, Role, StreamKind};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::io::ByteStream;
    use crate::link::StreamError;
    use crate::tests::fixture::{Application, run, wait_until};

    /// Returns a link over plain TCP to a peer that sends its first frames, and then `reply` after each read.
    /// The link does not become idle during a test.
    async fn link_to(reply: &'static [u8]) -> LinkHandle {
        link_for(LONG_IDLE_TIMEOUT, reply).await
    }

    /// Like [`link_to`], but the link retires after `idle_timeout` without a stream.
    async fn link_for(idle_timeout: Duration, reply: &'static [u8]) -> LinkHandle {
        let intervals = LinkIntervals { beat: BEAT, tick: BEAT / 4, idle_timeout };
        link_with(intervals, Duration::ZERO, reply).await
    }

    /// Like [`link_to`], with these intervals and a peer that pauses before each `reply`.
    async fn link_with(
        intervals: LinkIntervals,
        pause: Duration,
        reply: &'static [u8],
    ) -> LinkHandle {
        let peer = Application::start(move |mut client| async move {
            client.send_bytes(Link::new(Role::Acceptor, LinkLimits::default()).output()).await;
            let mut request = [0; 1024];
            while matches!(client.stream.read(&mut request).await, Ok(1..)) {
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
                if client.stream.write_all(reply).await.is_err() {
                    return;
                }
            }
        });
        let tcp = TcpStream::connect(peer.await.address).await.unwrap();
        let link = LinkHandle::new(Role::Opener);
        let driver =
            link.clone().drive_with_intervals(intervals, Io::new(ByteStream::Plain(tcp)), |_| {});
        tokio::task::spawn_local(driver);
        link.wait_ready().await.unwrap();
        link
    }

    #[test]
    fn a_peer_that_answers_no_ping_is_reported_silent_and_then_lost() {
        run(async {
            let link = link_to(b"").await;
            let was_silent = Rc::new(Cell::new(false));
            let observed = was_silent.clone();
            link.on_silence(move |_, is_silent| observed.set(is_silent));
            let stream = link.open_stream(StreamKind::Http, true, |_| {}).unwrap();
            assert_eq!(stream.wait_until_lost().await, StreamError::Broken);
            assert!(link.is_broken() && was_silent.get());
        });
    }

    #[test]
    fn a_peer_that_answers_pings_keeps_its_streams() {
        run(async {
            let link = link_to(PONG).await;
            let stream = link.open_stream(StreamKind::Http, true, |_| {}).unwrap();
            let max_wait = BEAT * 6;
            assert!(tokio::time::timeout(max_wait, stream.wait_until_lost()).await.is_err());
            assert!(!link.is_broken());
        });
    }

    #[test]
    fn a_peer_that_is_silent_for_less_than_the_limit_is_not_lost() {
        run(async {
            // The replies arrive between the second and the third check after each ping.
            let (tick, pause) = (BEAT, BEAT * 17 / 5);
            let link = link_with(
                LinkIntervals { beat: BEAT_INTERVAL, tick, idle_timeout: LONG_IDLE_TIMEOUT },
                pause,
                PONG,
            )
            .await;
            let stream = link.open_stream(StreamKind::Http, true, |_| {}).unwrap();
            assert!(tokio::time::timeout(pause * 4, stream.wait_until_lost()).await.is_err());
            assert!(!link.is_broken());
        });
    }

    #[test]
    fn streams_survive_a_silence_during_which_new_requests_avoid_the_link() {
        run(async {
            // Each reply arrives between the sixth and the seventh check after its ping.
            let (tick, pause) = (BEAT, BEAT * 13 / 2);
            let link = link_with(
                LinkIntervals { beat: BEAT_INTERVAL, tick, idle_timeout: LONG_IDLE_TIMEOUT },
                pause,
                PONG,
            )
            .await;
            let states = Rc::new(RefCell::new(Vec::new()));
            let observed = states.clone();
            link.on_silence(move |_, is_silent| observed.borrow_mut().push(is_silent));
            let stream = link.open_stream(StreamKind::Http, true, |_| {}).unwrap();
            tokio::select! {
                error = stream.wait_until_lost() => panic!("{error:?}"),
                () = wait_until(|| states.borrow().len() >= 2) => {}
            }
            assert_eq!(states.borrow()[..2], [true, false]);
            assert!(!link.is_broken());
        });
    }

    #[test]
    fn a_link_without_streams_is_not_closed_by_a_silent_peer() {
        run(async {
            let link = link_to(b"").await;
            let broken = async {
                while !link.is_broken() {
                    tokio::task::yield_now().await;
                }
            };
            assert!(tokio::time::timeout(BEAT * 6, broken).await.is_err());
        });
    }

    #[test]
    fn an_idle_link_retires_and_a_link_in_use_does_not() {
        run(async {
            let busy = link_for(BEAT * 2, PONG).await;
            let stream = busy.open_stream(StreamKind::Http, true, |_| {}).unwrap();
            let idle_link = link_for(BEAT * 2, b"").await;
            wait_until(|| idle_link.is_broken()).await;
            assert!(!busy.is_broken());
            drop(stream);
            wait_until(|| busy.is_broken()).await;
        });
    }

    const BEAT: Duration = Duration::from_millis(500);
    const LONG_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
    const PONG: &[u8] = &[0, 0, 0, 10, 0, 0, 0, 0];
}
