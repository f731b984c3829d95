//! Parses and writes HTTP/1.1 and the link protocol, and detects the protocol of a connection. There is no I/O and no
//! clock in this crate: callers pass bytes, and receive bytes and events.
//!
//! All input is untrusted: no input causes a panic, nothing is indexed without a check, and every allocation has a
//! named limit.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::string_slice)]

pub mod http1;
pub mod link;
pub mod sniff;
