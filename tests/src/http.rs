//! A plain HTTP/1.1 client: one request per connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A received response.
#[derive(Debug, Clone)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The head, as text.
    pub head: String,
    /// The body as bytes; [`exchange_bytes`] and [`get`] do not decode chunks.
    pub body: Vec<u8>,
}

impl Response {
    /// Returns the first header of this name.
    #[must_use]
    pub fn first_header(&self, name: &str) -> Option<&str> {
        crate::message::first_header(&self.head, name)
    }

    /// Returns the reason of a response that a sidecar generated.
    #[must_use]
    pub fn rejection_reason(&self) -> Option<&str> {
        self.first_header("leno-reason")?.split(';').next()
    }
}

/// Sends a GET request over a new connection.
///
/// # Errors
/// The error of the socket, or `InvalidData` for an invalid response.
pub fn get(address: SocketAddr, path: &str) -> io::Result<Response> {
    exchange_bytes(
        address,
        &format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n"),
    )
}

/// Sends a GET request like [`get`], with the address as the host: admin endpoints accept no other name.
///
/// # Errors
/// As [`get`].
pub fn get_page(address: SocketAddr, path: &str) -> io::Result<Response> {
    let head = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    exchange_bytes(address, &head)
}

/// Sends bytes over a new connection and reads the response to its end.
///
/// # Errors
/// The error of the socket, or `InvalidData` for an invalid response.
pub fn exchange_bytes(address: SocketAddr, request: &str) -> io::Result<Response> {
    let mut stream = TcpStream::connect_timeout(&address, MAX_WAIT)?;
    stream.set_read_timeout(Some(MAX_WAIT))?;
    stream.write_all(request.as_bytes())?;
    let mut response_bytes = Vec::new();
    stream.read_to_end(&mut response_bytes)?;
    let invalid_data = || io::Error::from(io::ErrorKind::InvalidData);
    let head_end = response_bytes
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .ok_or_else(invalid_data)?;
    let body = response_bytes.split_off(head_end + 4);
    let head = String::from_utf8(response_bytes).map_err(|_| invalid_data())?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok(Response { status: status.ok_or_else(invalid_data)?, head, body })
}

/// The timeout of socket operations, far longer than a response on loopback takes.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(20);
