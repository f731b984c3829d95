//! Implements the HTTP/2 client and server on the `h2` codec. Heads are converted to HTTP/1.1 and back, so that
//! both versions share one request pipeline.

pub(crate) mod cancel;
pub(crate) mod client;
pub(crate) mod connect;
pub(crate) mod h2c_upgrade;
mod half_close;
pub(crate) mod head;
pub(crate) mod server;
pub(crate) mod stream;
mod transport;

/// The receive window of one stream, in bytes.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
/// The receive window of a connection, in bytes: large enough that streams with unread data do not block
/// the other streams.
const CONNECTION_WINDOW_BYTES: u32 = 256 * STREAM_WINDOW_BYTES;
/// The cost that the codec charges for an almost empty frame that has not been read.
const SMALL_FRAME_COST: usize = 256;
/// The maximum size of a header list that the codec accepts and advertises in SETTINGS. The limit of a head
/// applies to its HTTP/1.1 form; a longer list is read so that the client gets a response with the reason and
/// the request is counted.
const MAX_HEADER_LIST_BYTES: u32 = 256 * 1024;
/// The maximum size of a header list from clients of a gateway, which are not trusted.
const MAX_GATEWAY_HEADER_LIST_BYTES: u32 = 128 * 1024;
/// The maximum size of pending output on one stream.
const MAX_SEND_BUFFER_BYTES: usize = 64 * 1024;
