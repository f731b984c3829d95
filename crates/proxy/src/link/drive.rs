//! Driving a link: bytes between its state and its connection, and an ear for silence.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use leno_wire::link::LinkError;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::{LinkHandle, Opened};
use crate::buffers::{self, Size};
use crate::io::Io;

impl LinkHandle {
    /// Drives the link over `io` until either side ends it. `on_open` hears of streams that the
    /// peer opens. One turn reads all there is, then writes once all that the turn produced.
    /// After `idle` without a stream it retires.
    ///
    /// # Errors
    /// When the peer broke the protocol of links.
    pub(crate) async fn drive(
        self,
        io: Io,
        idle: Duration,
        on_open: impl FnMut(Opened),
    ) -> Result<(), LinkError> {
        self.drive_at((BEAT, idle), io, on_open).await
    }

    async fn drive_at(
        self,
        (period, idle): (Duration, Duration),
        io: Io,
        on_open: impl FnMut(Opened),
    ) -> Result<(), LinkError> {
        let mut beat = interval_at(Instant::now() + period, period);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut driver = Driver {
            link: self.clone(),
            io: io.clone(),
            input: BytesMut::new(),
            output: BytesMut::new(),
            on_open,
            beat,
            pulse: Pulse::Heard,
            idle_left: idle,
            idle,
            parting: PARTING_BEATS,
            misuse: None,
        };
        poll_fn(|cx| driver.poll_turn(cx)).await;
        let misuse = driver.misuse.take();
        self.break_off();
        io.close().await;
        misuse.map_or(Ok(()), Err)
    }
}

/// Moves bytes between a link's state and its connection.
struct Driver<F> {
    link: LinkHandle,
    io: Io,
    input: BytesMut,
    output: BytesMut,
    on_open: F,
    beat: Interval,
    pulse: Pulse,
    /// How long there may be no stream, and how much of that is left.
    idle: Duration,
    idle_left: Duration,
    /// Beats that a peer still has to answer the ping of a link that retires.
    parting: u32,
    /// The peer's breach of the protocol, if there was one.
    misuse: Option<LinkError>,
}

/// What was heard of the peer since the last beat.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pulse {
    Heard,
    Silent,
    /// Nothing, though it was pinged.
    Unanswered,
}

/// Whether more can arrive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Input {
    Open,
    Over,
}

impl<F: FnMut(Opened)> Driver<F> {
    /// One turn. Ready: the link is over.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.link.0.state.borrow_mut().driver = Some(cx.waker().clone());
        let input = self.poll_input(cx);
        let is_alive = self.poll_beat(cx);
        loop {
            if self.output.is_empty() && !self.io.is_unflushed() && !self.refill() {
                let state = self.link.0.state.borrow();
                let over = input == Input::Over || state.broken || state.is_finished();
                return if over || !is_alive { Poll::Ready(()) } else { Poll::Pending };
            }
            match self.io.poll_write_all(cx, &mut self.output) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                // A peer that has gone, or broken a rule, need not hear the rest.
                Poll::Pending if input == Input::Over || !is_alive => return Poll::Ready(()),
                Poll::Pending if self.link.is_broken() => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Every so often: new allowances for the peer, a ping if somebody waits for a silent one, and
    /// an end of the link if nobody has needed it for long.
    /// False: the peer did not answer the last ping, so it is gone without a word.
    fn poll_beat(&mut self, cx: &mut Context<'_>) -> bool {
        while self.beat.poll_tick(cx).is_ready() {
            let mut state = self.link.0.state.borrow_mut();
            state.link.renew_allowances();
            let unused = state.slots.is_empty() && !std::mem::take(&mut state.used);
            if state.retired && !state.concluded {
                // Who leaves the ping unanswered and goes on opening streams has had its time.
                match self.parting {
                    0 => state.conclude(),
                    left => self.parting = left - 1,
                }
            }
            match self.pulse {
                Pulse::Unanswered => return false,
                Pulse::Silent if !state.slots.is_empty() || state.retired => {
                    state.link.ping();
                    self.pulse = Pulse::Unanswered;
                }
                Pulse::Silent | Pulse::Heard => self.pulse = Pulse::Silent,
            }
            drop(state);
            let period = self.beat.period();
            self.idle_left = if unused { self.idle_left.saturating_sub(period) } else { self.idle };
            if self.idle_left.is_zero() {
                self.link.retire();
            }
        }
        true
    }

    /// Takes what the turn has produced. False: nothing.
    fn refill(&mut self) -> bool {
        // An idle link holds no buffer.
        buffers::give(&mut self.output, Size::Turn);
        let mut state = self.link.0.state.borrow_mut();
        let was_congested = state.link.is_congested();
        std::mem::swap(&mut self.output, state.link.output());
        if was_congested {
            state.resume_congested();
            self.link.0.changed.notify_waiters();
        }
        !self.output.is_empty()
    }

    /// Reads and hands out what has arrived.
    fn poll_input(&mut self, cx: &mut Context<'_>) -> Input {
        for _ in 0..READS_PER_TURN {
            match self.io.poll_read(cx, &mut self.input) {
                Poll::Ready(Ok(0) | Err(_)) => return Input::Over,
                Poll::Ready(Ok(_)) => self.pulse = Pulse::Heard,
                Poll::Pending => return Input::Open,
            }
            loop {
                let event = self.link.0.state.borrow_mut().link.receive(&mut self.input);
                match event {
                    Ok(Some(event)) => self.link.dispatch(event, &mut self.on_open),
                    Ok(None) => break,
                    Err(error) => {
                        self.misuse = Some(error);
                        return Input::Over;
                    }
                }
            }
        }
        // More may be waiting; let the streams of this turn run first.
        cx.waker().wake_by_ref();
        Input::Open
    }
}

/// How often the peer may start anew with misuse (`docs/link.md`, Floods), and how long a silent
/// one may leave a ping unanswered.
const BEAT: Duration = Duration::from_secs(10);
/// Beats that a peer has to answer the ping of a link that retires.
const PARTING_BEATS: u32 = 1;
/// Reads of one turn before the streams get to run: bounds how long they wait.
const READS_PER_TURN: usize = 4;

#[cfg(test)]
mod tests {
    use leno_wire::link::{Limits, Link, Role, StreamKind};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::io::Stream;
    use crate::link::Lost;
    use crate::tests::fixture::{Application, run, until};

    /// A link over plain TCP to a peer that greets, and then says `word` whenever it hears anything.
    async fn link_to(word: &'static [u8]) -> LinkHandle {
        link_for(IDLE, word).await
    }

    async fn link_for(idle: Duration, word: &'static [u8]) -> LinkHandle {
        let peer = Application::start(move |mut client| async move {
            client.send(Link::new(Role::Acceptor, Limits::default()).output()).await;
            let mut heard = [0; 1024];
            while matches!(client.stream.read(&mut heard).await, Ok(1..)) {
                if client.stream.write_all(word).await.is_err() {
                    return;
                }
            }
        });
        let tcp = TcpStream::connect(peer.await.address).await.unwrap();
        let link = LinkHandle::new(Role::Opener);
        let driven = link.clone().drive_at((PERIOD, idle), Io::new(Stream::Plain(tcp)), |_| {});
        tokio::task::spawn_local(driven);
        link.ready().await.unwrap();
        link
    }

    #[test]
    fn a_silent_peer_is_given_up_when_it_leaves_a_ping_unanswered() {
        run(async {
            let link = link_to(b"").await;
            let stream = link.open(StreamKind::Http, true, |_| {}).unwrap();
            assert_eq!(stream.lost().await, Lost::Broken);
            assert!(link.is_broken());
        });
    }

    #[test]
    fn a_peer_that_answers_pings_may_take_its_time() {
        run(async {
            let link = link_to(PONG).await;
            let stream = link.open(StreamKind::Http, true, |_| {}).unwrap();
            let patience = PERIOD * 6;
            assert!(tokio::time::timeout(patience, stream.lost()).await.is_err());
        });
    }

    #[test]
    fn an_idle_link_is_not_disturbed() {
        run(async {
            let link = link_to(b"").await;
            let broken = async {
                while !link.is_broken() {
                    tokio::task::yield_now().await;
                }
            };
            assert!(tokio::time::timeout(PERIOD * 6, broken).await.is_err());
        });
    }

    #[test]
    fn a_link_that_nobody_needs_ends_and_one_in_use_does_not() {
        run(async {
            let used = link_for(PERIOD * 2, PONG).await;
            let stream = used.open(StreamKind::Http, true, |_| {}).unwrap();
            let unused = link_for(PERIOD * 2, b"").await;
            until(|| unused.is_broken()).await;
            assert!(!used.is_broken());
            drop(stream);
            until(|| used.is_broken()).await;
        });
    }

    const PERIOD: Duration = Duration::from_millis(500);
    const IDLE: Duration = Duration::from_secs(60);
    const PONG: &[u8] = &[0, 0, 0, 10, 0, 0, 0, 0];
}
