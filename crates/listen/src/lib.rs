//! Incoming connections: one accept loop for every server, and fair bounds for those that are half-open.
//!
//! A connection is half-open until its peer has sent its part: a TLS handshake, the head of a request, or a
//! first message. Half-open connections are cheap for a peer, so their number is bounded in total and per
//! source, and the one that has waited longest for its peer is evicted for a new one ([`ConnectionAdmission`]).
//! Handshakes are computed in turns, which sources take in rotation; no turn is held while the peer is awaited.

mod accept;
mod admission;
mod concurrency;
mod handshake;
mod socket_path;
mod source;
mod stop;
mod table;

pub use accept::{Accept, AcceptEvent, BACKLOG, Listener, bind};
pub use admission::{ConnectionAdmission, Evicted, HalfOpen, RequestInProgress};
pub use concurrency::{ConcurrencyLimit, ConcurrencyPermit};
pub use handshake::{complete_handshake, read_hello, reset_on_drop};
pub use socket_path::SocketPath;
pub use source::ConnectionSource;
pub use stop::StopSignal;
pub use table::HalfOpenLimits;
