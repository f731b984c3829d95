//! HTTP/2 at the edges: its heads become those of HTTP/1.1 and back, the corridor between is one.

pub(crate) mod client;
pub(crate) mod head;
pub(crate) mod server;
pub(crate) mod stream;
mod transport;
