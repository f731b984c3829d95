//! The link between two sidecars: many requests and TCP streams over one connection, without IO.
//!
//! `docs/link.md` is the specification. A [`Link`] turns received bytes into [`Event`]s and calls
//! into output bytes; whoever drives it moves both through TLS and a socket. Everything that one
//! turn of an event loop produces gathers in [`Link::output`], to be sealed and written at once.

mod budget;
mod codes;
mod frame;
mod limits;
mod receive;
mod send;
mod stream;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use bytes::{Bytes, BytesMut};

use self::budget::Budget;
pub use self::codes::{GoAwayCode, Gone, LinkError, OpenError, ResetCode};
pub use self::limits::*;
use self::stream::Stream;
pub use self::stream::{StreamId, StreamIdHasher};

/// One end of a link: the state of its streams, and the bytes it wants written.
///
/// Memory: a few dozen bytes per open stream, plus the output. Sends are bounded by the peer's
/// credit per stream only, so ask [`Link::is_congested`] before each one and wait while it says
/// yes. Keep reading meanwhile: two ends that both stop reading wait for each other forever.
#[derive(Debug)]
pub struct Link {
    role: Role,
    ours: Limits,
    /// The peer's limits: those of its HELLO, until then what every peer accepts.
    theirs: Limits,
    /// The peer's HELLO says that it reads reasons of rejections.
    peer_reads_reasons: bool,
    greeted: bool,
    streams: HashMap<StreamId, Stream, BuildHasherDefault<StreamIdHasher>>,
    /// The last stream that the opener opened, as far as this end knows.
    last: StreamId,
    /// In the GOAWAY that this end sent: the last stream it serves.
    said_last: Option<StreamId>,
    /// In the GOAWAY that the peer sent: the last stream it serves.
    heard_last: Option<StreamId>,
    output: BytesMut,
    pong_owed: bool,
    ping_unanswered: bool,
    /// Another ping was asked for before the answer to the last one.
    ping_again: bool,
    budget: Budget,
    /// Streams that the peer's HELLO gave new credit, to be told one event at a time.
    awakened: Vec<StreamId>,
    broken: Option<LinkError>,
}

/// Which end of the link this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The client's sidecar, which made the connection and opens the streams.
    Opener,
    /// The server's sidecar.
    Acceptor,
}

/// What a stream carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// One request and its response.
    Http,
    /// One TCP connection.
    Tcp,
}

/// What the peer did, in the order in which it did it.
///
/// The `Bytes` are slices of the input buffer and keep it alive: copy what is small and stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The peer's HELLO arrived: its limits hold now, and more streams may fit than before.
    Ready,
    /// The peer opened a stream. Only the acceptor sees this.
    Opened {
        /// The new stream.
        stream: StreamId,
        /// What it carries.
        kind: StreamKind,
        /// The request head, or what the peer says about the TCP connection.
        head: Bytes,
        /// Nothing follows from the peer.
        end: bool,
    },
    /// A response head. Only the opener sees this.
    Head {
        /// The stream it belongs to.
        stream: StreamId,
        /// The response head, or what the peer says about the TCP connection.
        head: Bytes,
        /// A 1xx head: another one follows.
        interim: bool,
        /// The peer itself rejected the request: no application wrote the head.
        rejected: bool,
        /// Nothing follows from the peer.
        end: bool,
    },
    /// Bytes of a body or a TCP connection. Return them with [`Link::consumed`].
    Data {
        /// The stream they belong to.
        stream: StreamId,
        /// The bytes; empty only together with `end`.
        data: Bytes,
        /// Nothing follows from the peer.
        end: bool,
    },
    /// The trailer section of a body. Nothing follows from the peer.
    Trailers {
        /// The stream it belongs to.
        stream: StreamId,
        /// The section as HTTP/1.1 writes it.
        trailers: Bytes,
    },
    /// The peer cut the stream off. It is gone in both directions.
    Reset {
        /// The stream that is no more.
        stream: StreamId,
        /// Why.
        code: ResetCode,
        /// The label of the reason for which the peer rejected the stream; empty without one.
        reason: Bytes,
    },
    /// A stream that had no credit, or less than it wanted, has some again.
    Credit {
        /// The stream that may go on sending.
        stream: StreamId,
    },
    /// The peer takes no more streams, or opens no more. Open streams up to `last` go on.
    ///
    /// To the opener: its streams after `last` are gone from the link; they were never looked at
    /// and are safe to try elsewhere. May come again with a lower `last`, and with a code that is
    /// not [graceful](GoAwayCode::is_graceful) when the peer is about to close.
    GoAway {
        /// The last stream that the peer serves.
        last: StreamId,
        /// Why.
        code: GoAwayCode,
    },
    /// The peer answered [`Link::ping`].
    Pong,
}

impl Link {
    /// A new end of a link. Its HELLO is already in the output.
    #[must_use]
    pub fn new(role: Role, limits: Limits) -> Self {
        let ours = limits.within_range();
        let mut output = BytesMut::new();
        frame::write_hello(&mut output, role, &ours);
        Self {
            role,
            ours,
            theirs: Limits::least(),
            peer_reads_reasons: false,
            greeted: false,
            streams: HashMap::default(),
            last: StreamId::NONE,
            said_last: None,
            heard_last: None,
            output,
            pong_owed: false,
            ping_unanswered: false,
            ping_again: false,
            budget: Budget::new(&ours),
            awakened: Vec::new(),
            broken: None,
        }
    }

    /// What is to be written, whole frames in order: split off what you take.
    pub fn output(&mut self) -> &mut BytesMut {
        if std::mem::take(&mut self.pong_owed) {
            frame::write_empty(&mut self.output, frame::Kind::Pong);
        }
        &mut self.output
    }

    /// Asks for a [`Event::Pong`]: a sign of life, or the proof that all the peer sent before it
    /// saw the ping has arrived. While an earlier one is unanswered this one waits for it, and one
    /// event then answers both: the answer to the earlier proves nothing about what came after.
    pub fn ping(&mut self) {
        if self.broken.is_some() {
            return;
        }
        if self.ping_unanswered {
            self.ping_again = true;
        } else {
            self.ping_unanswered = true;
            frame::write_empty(&mut self.output, frame::Kind::Ping);
        }
    }

    /// Asks the peer to open no more streams, and still serves those that it opens before it
    /// hears of this. Follow with [`Link::ping`]; at the [`Event::Pong`] say [`Link::go_away`].
    pub fn drain(&mut self) {
        if self.role == Role::Acceptor {
            self.say_go_away(StreamId::ALL, GoAwayCode::Drain);
        } else {
            self.go_away(GoAwayCode::Drain);
        }
    }

    /// No new streams: the acceptor ignores those after the last it has seen, the opener opens
    /// none. Open streams go on; close the connection when [`Link::is_idle`].
    pub fn go_away(&mut self, code: GoAwayCode) {
        let last = match self.role {
            Role::Opener => StreamId::NONE,
            Role::Acceptor => self.last,
        };
        self.say_go_away(last, code);
    }

    /// Gives the peer its allowances for frames without use back. Call it from a timer, about
    /// every ten seconds: a link that carries little for days then forgives what was long ago.
    pub fn renew_allowances(&mut self) {
        self.budget.renew(self.role);
    }

    /// Whether enough output waits that senders should pause until it is written.
    #[must_use]
    pub fn is_congested(&self) -> bool {
        self.output.len() >= self.ours.output_max
    }

    /// How many streams are open.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// How many streams could be opened now.
    #[must_use]
    pub fn vacancies(&self) -> usize {
        if self.role == Role::Acceptor || self.is_going_away() {
            return 0;
        }
        let max = self.theirs.streams_max.min(self.ours.streams_max);
        usize::try_from(max).unwrap_or(usize::MAX).saturating_sub(self.streams.len())
    }

    /// Whether no stream is open and nothing waits to be written.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.streams.is_empty() && self.output.is_empty() && !self.pong_owed
    }

    /// Whether either side said that no more streams are to be opened, or the link failed.
    #[must_use]
    pub fn is_going_away(&self) -> bool {
        self.said_last.is_some() || self.heard_last.is_some() || self.broken.is_some()
    }

    /// True when the peer reads the mark of requests of HTTP/2 clients.
    #[must_use]
    pub fn peer_reads_http2_mark(&self) -> bool {
        self.theirs.reads_http2_mark
    }

    /// How many bytes [`Link::send_data`] would accept now; none for a stream that is gone.
    #[must_use]
    pub fn credit(&self, stream: StreamId) -> u32 {
        match self.streams.get(&stream) {
            Some(stream) if !stream.sending.is_ended() => stream.credit,
            _ => 0,
        }
    }

    /// The limits in force on this side.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.ours
    }

    fn say_go_away(&mut self, last: StreamId, code: GoAwayCode) {
        if self.broken.is_some() || self.said_last.is_some_and(|said| said <= last) {
            return;
        }
        self.said_last = Some(last);
        frame::write_go_away(&mut self.output, last.number(), code as u8);
    }

    /// Tells the peer what it did wrong and takes part in nothing more.
    fn fail(&mut self, error: LinkError) -> LinkError {
        let last = match self.role {
            Role::Opener => StreamId::NONE,
            Role::Acceptor => self.said_last.unwrap_or(StreamId::ALL).min(self.last),
        };
        frame::write_go_away(&mut self.output, last.number(), error.code() as u8);
        self.streams.clear();
        self.awakened.clear();
        self.pong_owed = false;
        self.broken = Some(error);
        error
    }

    /// Forgets the stream if both of its directions have ended.
    fn settle(&mut self, stream: StreamId) {
        if self.streams.get(&stream).is_some_and(Stream::is_finished) {
            self.streams.remove(&stream);
            self.budget.stream_over();
        }
    }
}

/// The version of the protocol that this file speaks.
pub const VERSION: u16 = 1;
/// The ALPN protocol name under which it is spoken.
pub const ALPN: &[u8] = b"leno/1";
/// The last stream of a link: the number above it means "every stream" in GOAWAY.
pub const STREAM_LAST: u32 = u32::MAX - 1;

#[cfg(test)]
mod tests;
