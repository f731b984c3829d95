//! A plain HTTP/1.1 client: one request, one connection, nothing clever.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// What came back, as it came.
#[derive(Debug, Clone)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The head, as text.
    pub head: String,
    /// The body, as bytes; `exchange` and `get` do not take its chunks apart.
    pub body: Vec<u8>,
}

impl Response {
    /// The first header of this name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        crate::message::header(&self.head, name)
    }

    /// Why a sidecar answered itself, if one did.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.header("leno-reason")?.split(';').next()
    }
}

/// GETs a path over a connection of its own.
///
/// # Errors
/// What the socket says, or `InvalidData` for what is no HTTP.
pub fn get(address: SocketAddr, path: &str) -> io::Result<Response> {
    exchange(address, &format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n"))
}

/// The same under the address itself: admin pages answer under no other name.
///
/// # Errors
/// As [`get`].
pub fn get_page(address: SocketAddr, path: &str) -> io::Result<Response> {
    let head = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    exchange(address, &head)
}

/// Sends bytes over a connection of their own, and reads the answer to its end.
///
/// # Errors
/// What the socket says, or `InvalidData` for what is no HTTP.
pub fn exchange(address: SocketAddr, request: &str) -> io::Result<Response> {
    let mut tcp = TcpStream::connect_timeout(&address, PATIENCE)?;
    tcp.set_read_timeout(Some(PATIENCE))?;
    tcp.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    tcp.read_to_end(&mut bytes)?;
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").ok_or_else(invalid)?;
    let body = bytes.split_off(end + 4);
    let head = String::from_utf8(bytes).map_err(|_| invalid())?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok(Response { status: status.ok_or_else(invalid)?, head, body })
}

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
