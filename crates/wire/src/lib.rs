//! Bytes to messages and back, with no IO and no clock.
//!
//! Everything here reads what a stranger sent: nothing panics, nothing indexes, nothing grows
//! beyond a named bound.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::string_slice)]

pub mod http1;
pub mod link;
pub mod sniff;
