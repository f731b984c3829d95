//! Accepts incoming connections for every server, and bounds those that are pending.
//!
//! In this crate, *pending* describes accepted connections, not connections in the kernel's SYN backlog. A
//! connection is pending until its peer has sent the first bytes that the server waits for: a TLS handshake, the
//! head of a request, or a first message. Pending connections are cheap for a peer, so their
//! number is bounded in total and per source. At a limit, the connection that has waited longest for its peer
//! is evicted for a new one ([`ConnectionAdmission`]).
//!
//! The cryptographic work of a handshake is done in *turns*. A turn is the permission to compute a part of one
//! handshake; the number of turns is limited, and sources get turns in rotation. While a connection waits for
//! its peer, it has no turn.

mod accept;
mod admission;
mod concurrency;
mod handshake;
mod socket_path;
mod source;
mod stop;
mod table;

pub use accept::{Accept, AcceptEvent, BACKLOG, Listener, bind};
pub use admission::{ConnectionAdmission, Evicted, PendingConnection, RequestInProgress};
pub use concurrency::{ConcurrencyLimit, ConcurrencyPermit};
pub use handshake::{complete_handshake, read_hello, reset_on_drop};
pub use socket_path::SocketPath;
pub use source::ConnectionSource;
pub use stop::StopSignal;
pub use table::PendingLimits;
