//! HTTP/2 at the edges: its heads become those of HTTP/1.1 and back, the corridor between is one.

pub(crate) mod cancel;
pub(crate) mod client;
pub(crate) mod connect;
mod half_close;
pub(crate) mod head;
pub(crate) mod offer;
pub(crate) mod server;
pub(crate) mod stream;
mod transport;

/// What a peer may send ahead on one stream.
const WINDOW_BYTES: u32 = 64 * 1024;
/// What a peer may send ahead on all streams of a connection: as much as on each of them, so that
/// streams that nobody reads do not stop the others.
const CONNECTION_WINDOW_BYTES: u32 = 256 * WINDOW_BYTES;
/// What the codec counts for a frame that is almost empty, while nobody reads it.
const SMALL_FRAME_COST: usize = 256;
/// The header lists that the codec reads and announces. The limit of a head applies to the one of HTTP/1.1 that is made of it; a
/// longer list is read so that it gets a response with the reason and is counted.
const HEADER_LIST_BYTES_MAX: u32 = 256 * 1024;
/// The same from clients of a gateway, which may be anyone.
const EDGE_HEADER_LIST_BYTES_MAX: u32 = 128 * 1024;
/// What may wait for a peer on one stream.
const SEND_BUFFER_BYTES_MAX: usize = 64 * 1024;
