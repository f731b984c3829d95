//! A persistent client connection for several requests or arbitrary bytes.

use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::http::{MAX_WAIT, Response};
use crate::message::{UndeclaredBody, read_body, read_head};

/// A client's connection.
pub struct TestConnection(BufReader<TcpStream>);

impl TestConnection {
    /// Connects to an address.
    ///
    /// # Errors
    /// The error of the socket.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, MAX_WAIT)?;
        stream.set_read_timeout(Some(MAX_WAIT))?;
        stream.set_write_timeout(Some(MAX_WAIT))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::with_capacity(BUFFER_BYTES, stream)))
    }

    /// Sends bytes unmodified.
    ///
    /// # Errors
    /// The error of the socket.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.0.get_mut().write_all(bytes.as_ref())
    }

    /// Receives one response and decodes its chunked body.
    ///
    /// # Errors
    /// The error of the socket, or `InvalidData` for an invalid response.
    pub fn receive_response(&mut self) -> io::Result<Response> {
        let head = read_head(&mut self.0)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or(io::ErrorKind::InvalidData)?;
        let body = match status {
            100..200 | 204 | 304 => Vec::new(),
            _ => read_body(&mut self.0, &head, UndeclaredBody::UntilEnd)?,
        };
        Ok(Response { status, head, body })
    }

    /// Sends a GET request and keeps the connection open.
    ///
    /// # Errors
    /// As [`TestConnection::send`] and [`TestConnection::receive_response`].
    pub fn get(&mut self, path: &str) -> io::Result<Response> {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n"))?;
        self.receive_response()
    }

    /// Returns true if a byte or the end of the stream arrives within `max_wait`.
    ///
    /// # Errors
    /// The error of the socket.
    pub fn has_activity(&mut self, max_wait: Duration) -> io::Result<bool> {
        let stream = self.0.get_mut();
        stream.set_read_timeout(Some(max_wait))?;
        let peek_result = stream.peek(&mut [0]);
        stream.set_read_timeout(Some(MAX_WAIT))?;
        match peek_result {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Shuts down the sending direction.
    ///
    /// # Errors
    /// The error of the socket.
    pub fn shut_down_sending(&mut self) -> io::Result<()> {
        self.0.get_mut().shutdown(std::net::Shutdown::Write)
    }

    /// Reads all remaining bytes.
    ///
    /// # Errors
    /// The error of the socket.
    pub fn read_to_end(mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.0.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// The read buffer size, small because a test may hold ten thousand connections.
const BUFFER_BYTES: usize = 256;
