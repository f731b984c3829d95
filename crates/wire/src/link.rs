//! Implements the link protocol, by which two sidecars carry many requests and TCP connections over one connection.
//!
//! `docs/link.md` is the specification. A [`Link`] converts received bytes to [`LinkEvent`]s, and calls of its methods
//! to output bytes. The caller moves the bytes between the link and a TLS connection. [`Link::output`] collects the
//! output of one iteration of an event loop, so that it is encrypted and written at once.

mod allowances;
mod codes;
mod frame;
mod limits;
mod receive;
mod send;
mod stream;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use bytes::{Bytes, BytesMut};

use self::allowances::FrameAllowances;
pub use self::codes::{GoAwayCode, LinkError, OpenError, ResetCode, StreamClosed};
pub use self::limits::*;
use self::stream::StreamState;
pub use self::stream::{StreamId, StreamIdHasher};

/// One side of a link: the state of its streams, and its pending output.
///
/// A link needs a few dozen bytes of memory per open stream, plus the output. The credit that the peer grants, a number
/// of bytes, limits the output of each stream, but not the sum: check [`Link::is_congested`] before each send, and wait
/// while it is true. Continue to read while waiting, because two sides that both stop reading wait for each other
/// forever.
#[derive(Debug)]
pub struct Link {
    role: Role,
    own_limits: LinkLimits,
    /// The limits from the peer's HELLO; the minimum limits until the HELLO arrives.
    peer_limits: LinkLimits,
    /// True if the peer's HELLO announces support for rejection reasons.
    peer_reads_reasons: bool,
    /// True if the peer's HELLO has arrived.
    hello_received: bool,
    /// The open streams.
    streams: HashMap<StreamId, StreamState, BuildHasherDefault<StreamIdHasher>>,
    /// The last stream that the opener opened, as far as this side knows.
    last_stream: StreamId,
    /// The last stream in the latest GOAWAY that this side sent; `None` before the first.
    go_away_sent: Option<StreamId>,
    /// The last stream in the latest GOAWAY that the peer sent; `None` before the first.
    go_away_received: Option<StreamId>,
    output: BytesMut,
    /// True if a PING arrived whose PONG is not in the output yet.
    pong_pending: bool,
    /// True between a PING of this side and its PONG.
    ping_in_flight: bool,
    /// True if another ping was requested while one was in flight.
    ping_requested: bool,
    allowances: FrameAllowances,
    /// Streams that received credit through the peer's HELLO and whose [`LinkEvent::Credit`] is not yet reported.
    credited_streams: Vec<StreamId>,
    /// The violation of the peer that ended the link; `None` while the link works.
    fatal_error: Option<LinkError>,
}

/// The role of a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The client's sidecar, which creates the connection and opens the streams.
    Opener,
    /// The server's sidecar.
    Acceptor,
}

/// The kind of traffic that a stream carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// One request and its response.
    Http,
    /// One TCP connection.
    Tcp,
}

/// An action of the peer. Events arrive in the order of the peer's actions.
///
/// The `Bytes` are slices of the input buffer and keep it alive: copy small values before storing them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEvent {
    /// The peer's HELLO arrived: its limits now apply, and may permit more streams than before.
    Ready,
    /// The peer opened a stream. Only for the acceptor.
    Opened {
        /// The new stream.
        stream: StreamId,
        /// The content of the stream.
        kind: StreamKind,
        /// The request head, or the metadata of the TCP connection.
        head: Bytes,
        /// True if the peer sends nothing more on this stream.
        end_stream: bool,
    },
    /// A response head. Only for the opener.
    Head {
        /// The stream of the request.
        stream: StreamId,
        /// The response head, or the metadata of the TCP connection.
        head: Bytes,
        /// True for a 1xx head: another head follows.
        interim: bool,
        /// True if the peer itself rejected the request: the head is not from the application.
        rejected: bool,
        /// True if the peer sends nothing more on this stream.
        end_stream: bool,
    },
    /// Bytes of a body or a TCP connection. Acknowledge them with [`Link::record_consumed`].
    Data {
        /// The stream that carries the bytes.
        stream: StreamId,
        /// The bytes; empty only together with `end_stream`.
        data: Bytes,
        /// True if the peer sends nothing more on this stream.
        end_stream: bool,
    },
    /// The trailer section of a body. The peer sends nothing more on this stream.
    Trailers {
        /// The stream of the body.
        stream: StreamId,
        /// The section in HTTP/1.1 format.
        trailers: Bytes,
    },
    /// The peer reset the stream in both directions.
    Reset {
        /// The stream, which is removed from the link.
        stream: StreamId,
        /// The reason of the reset.
        code: ResetCode,
        /// The label of the rejection reason; empty if the peer sent none.
        reason: Bytes,
    },
    /// A stream that had no credit may send again.
    Credit {
        /// The stream that may continue to send.
        stream: StreamId,
    },
    /// The peer accepts, or opens, no more streams. Open streams up to `last_stream` continue.
    ///
    /// For the opener: its streams after `last_stream` are removed from the link; they were never processed and are
    /// safe to retry elsewhere. May be repeated with a lower `last_stream`, and with a code that is not
    /// [graceful](GoAwayCode::is_graceful) if the peer is about to close.
    GoAway {
        /// The last stream that the peer processes.
        last_stream: StreamId,
        /// The reason for which the peer ends the creation of streams.
        code: GoAwayCode,
    },
    /// The PONG to a [`Link::ping`] arrived.
    Pong,
}

impl Link {
    /// Creates one side of a link, with its HELLO in the output.
    #[must_use]
    pub fn new(role: Role, limits: LinkLimits) -> Self {
        let own_limits = limits.clamp_to_ranges();
        let mut output = BytesMut::new();
        frame::write_hello(&mut output, role, &own_limits);
        Self {
            role,
            own_limits,
            peer_limits: LinkLimits::minimum(),
            peer_reads_reasons: false,
            hello_received: false,
            streams: HashMap::default(),
            last_stream: StreamId::NONE,
            go_away_sent: None,
            go_away_received: None,
            output,
            pong_pending: false,
            ping_in_flight: false,
            ping_requested: false,
            allowances: FrameAllowances::new(&own_limits),
            credited_streams: Vec::new(),
            fatal_error: None,
        }
    }

    /// Returns the pending output, which consists of whole frames. The caller removes the bytes that it has written.
    pub fn output(&mut self) -> &mut BytesMut {
        if std::mem::take(&mut self.pong_pending) {
            frame::write_empty(&mut self.output, frame::FrameKind::Pong);
        }
        &mut self.output
    }

    /// Sends a PING; its PONG results in [`LinkEvent::Pong`]. The event shows that the peer is alive, and that all
    /// frames that the peer sent before it received the PING have arrived. While a PING is in flight, the next one is
    /// sent after its PONG, and one event reports both.
    pub fn ping(&mut self) {
        if self.fatal_error.is_some() {
            return;
        }
        if self.ping_in_flight {
            self.ping_requested = true;
        } else {
            self.ping_in_flight = true;
            frame::write_empty(&mut self.output, frame::FrameKind::Ping);
        }
    }

    /// Requests that the peer open no more streams. The acceptor still serves streams that the peer opens before it
    /// receives the request: call [`Link::ping`] next, and [`Link::go_away`] at the [`LinkEvent::Pong`].
    pub fn drain(&mut self) {
        if self.role == Role::Acceptor {
            self.send_go_away(StreamId::ALL, GoAwayCode::Drain);
        } else {
            self.go_away(GoAwayCode::Drain);
        }
    }

    /// Ends the creation of streams: the acceptor ignores streams after the last one that it has received, and the
    /// opener opens none. Open streams continue; close the connection when [`Link::is_idle`] returns true.
    pub fn go_away(&mut self, code: GoAwayCode) {
        let last_stream = match self.role {
            Role::Opener => StreamId::NONE,
            Role::Acceptor => self.last_stream,
        };
        self.send_go_away(last_stream, code);
    }

    /// Restores the peer's allowances for useless frames, which cost work and have no effect. Call this from a timer, about
    /// every ten seconds, so that single useless frames do not add up on a long-lived link.
    pub fn renew_allowances(&mut self) {
        self.allowances.renew_allowances(self.role);
    }

    /// True if the output is so large that senders should wait until it is written.
    #[must_use]
    pub fn is_congested(&self) -> bool {
        self.output.len() >= self.own_limits.congestion_threshold
    }

    /// Returns the number of open streams.
    #[must_use]
    pub fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// Returns the number of streams that could be opened now.
    #[must_use]
    pub fn vacant_stream_count(&self) -> usize {
        if self.role == Role::Acceptor || self.is_going_away() {
            return 0;
        }
        let max_streams = self.peer_limits.max_streams.min(self.own_limits.max_streams);
        usize::try_from(max_streams).unwrap_or(usize::MAX).saturating_sub(self.streams.len())
    }

    /// True if no stream is open and no output is pending.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.streams.is_empty() && self.output.is_empty() && !self.pong_pending
    }

    /// True if either side sent GOAWAY, or the link failed: no streams can be opened.
    #[must_use]
    pub fn is_going_away(&self) -> bool {
        self.go_away_sent.is_some() || self.go_away_received.is_some() || self.fatal_error.is_some()
    }

    /// True if the peer supports the mark that distinguishes requests from HTTP/2 clients.
    #[must_use]
    pub fn peer_reads_http2_mark(&self) -> bool {
        self.peer_limits.reads_http2_mark
    }

    /// Returns the number of bytes that [`Link::send_data`] would accept now; zero for a closed stream.
    #[must_use]
    pub fn available_credit(&self, stream: StreamId) -> u32 {
        match self.streams.get(&stream) {
            Some(state) if !state.send_direction.is_ended() => state.send_credit,
            _ => 0,
        }
    }

    /// Returns the limits of this side, clamped to their ranges.
    #[must_use]
    pub fn own_limits(&self) -> &LinkLimits {
        &self.own_limits
    }

    /// Sends GOAWAY, unless an earlier GOAWAY had the same or a lower last stream.
    fn send_go_away(&mut self, last_stream: StreamId, code: GoAwayCode) {
        if self.fatal_error.is_some()
            || self.go_away_sent.is_some_and(|sent_last_stream| sent_last_stream <= last_stream)
        {
            return;
        }
        self.go_away_sent = Some(last_stream);
        frame::write_go_away(&mut self.output, last_stream.number(), code as u8);
    }

    /// Reports the error to the peer and stops all processing.
    fn fail_link(&mut self, error: LinkError) -> LinkError {
        let last_stream = match self.role {
            Role::Opener => StreamId::NONE,
            Role::Acceptor => self.go_away_sent.unwrap_or(StreamId::ALL).min(self.last_stream),
        };
        frame::write_go_away(&mut self.output, last_stream.number(), error.go_away_code() as u8);
        self.streams.clear();
        self.credited_streams.clear();
        self.pong_pending = false;
        self.fatal_error = Some(error);
        error
    }

    /// Removes the stream if both of its directions have ended.
    fn remove_if_ended(&mut self, stream: StreamId) {
        if self.streams.get(&stream).is_some_and(StreamState::is_finished) {
            self.streams.remove(&stream);
            self.allowances.record_stream_end();
        }
    }
}

/// The version of the link protocol, which HELLO and the ALPN name contain.
pub const VERSION: u16 = 1;
/// The ALPN protocol name.
pub const ALPN: &[u8] = b"leno/1";
/// The highest stream number of a link. The next number is [`StreamId::ALL`] in GOAWAY.
pub const LAST_STREAM_NUMBER: u32 = u32::MAX - 1;

#[cfg(test)]
mod tests;
