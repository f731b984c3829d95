//! Parsers and serializers of HTTP/1.1 and the link protocol, without IO or clocks.
//!
//! All input is untrusted: no code here panics or indexes unchecked, and every allocation has a named bound.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::string_slice)]

pub mod http1;
pub mod link;
pub mod sniff;
