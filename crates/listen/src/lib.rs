//! Incoming connections: one accept loop for every server, and fair bounds for those that are half-open.
//!
//! A connection is half-open until its peer has proved that it takes part: by a TLS handshake, by the
//! head of a request, or by a first message. Until then it costs its peer next to nothing, so the number
//! of those is bounded in total and for each source, and the one that has waited longest for its peer
//! makes room for the next ([`ConnectionAdmission`]). Work for a handshake is done in turns, which sources take in
//! rotation; no turn is held while the peer is awaited.

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
pub use handshake::{read_hello, reset_on_drop, shake_hands};
pub use socket_path::SocketPath;
pub use source::ConnectionSource;
pub use stop::StopSignal;
pub use table::HalfOpenLimits;
