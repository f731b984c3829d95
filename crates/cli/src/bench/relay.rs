//! The hidden `leno bench relay`: an application that calls another one for each request.
//!
//! It keeps one upstream connection for each client connection, like a client library with a pool, and returns
//! the upstream response.

use std::cell::Cell;
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::rc::Rc;

use clap::Args;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::loopback;

/// Arguments of the hidden `leno bench relay`.
#[derive(Debug, Args)]
pub(crate) struct RelayArgs {
    /// Loopback port to listen on
    #[arg(long)]
    port: u16,
    /// Loopback ports to call, in turn
    #[arg(long, value_delimiter = ',', required = true)]
    to: Vec<u16>,
}

impl RelayArgs {
    /// Serves until SIGTERM or SIGINT.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let next_index = Rc::new(Cell::new(0));
        let ports: Rc<[u16]> = self.to.into();
        loopback::serve(self.port, |stream| {
            serve_connection(stream, Rc::clone(&ports), Rc::clone(&next_index))
        })
    }
}

/// Serves one request after another: calls a port and returns its response.
async fn serve_connection(mut client: TcpStream, ports: Rc<[u16]>, next_index: Rc<Cell<usize>>) {
    let mut pool: Vec<Option<TcpStream>> = ports.iter().map(|_| None).collect();
    let mut received = Vec::with_capacity(MAX_HEAD_BYTES);
    while let Some(request) = read_message(&mut client, &mut received).await {
        let index = next_index.get() % ports.len();
        next_index.set(next_index.get().wrapping_add(1));
        let (Some(port), Some(idle_connection)) = (ports.get(index), pool.get_mut(index)) else {
            return;
        };
        let response = match send_request(idle_connection, *port, &request).await {
            Ok(response) => response,
            Err(_) => BAD_GATEWAY.to_vec(),
        };
        if client.write_all(&response).await.is_err() {
            return;
        }
    }
}

/// Sends a request over the kept connection, or over a new one.
async fn send_request(
    idle_connection: &mut Option<TcpStream>,
    port: u16,
    request: &[u8],
) -> std::io::Result<Vec<u8>> {
    let mut server = match idle_connection.take() {
        Some(server) => server,
        None => {
            let server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
            server.set_nodelay(true)?;
            server
        }
    };
    server.write_all(request).await?;
    let mut received = Vec::with_capacity(MAX_HEAD_BYTES);
    let response = read_message(&mut server, &mut received).await;
    let response = response.ok_or(std::io::ErrorKind::UnexpectedEof)?;
    *idle_connection = Some(server);
    Ok(response)
}

/// Returns the next complete message: headers, and a body of the declared length.
async fn read_message(stream: &mut TcpStream, received: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        if let Some(length) = message_length(received) {
            if received.len() >= length {
                return Some(received.drain(..length).collect());
            }
        } else if received.len() > MAX_HEAD_BYTES {
            return None;
        }
        match stream.read_buf(received).await {
            Ok(0) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

/// Returns the length of the first message; `None` until its headers are complete.
fn message_length(received: &[u8]) -> Option<usize> {
    let head_length = received.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let lines = received.get(..head_length)?.split(|byte| *byte == b'\n');
    let mut body = lines.filter_map(|line| {
        let (name, value) = line.split_at_checked(CONTENT_LENGTH.len())?;
        let is_length = name.eq_ignore_ascii_case(CONTENT_LENGTH);
        let value = std::str::from_utf8(value.trim_ascii()).ok().filter(|_| is_length)?;
        value.parse::<usize>().ok()
    });
    Some(head_length + body.next().unwrap_or(0))
}

const CONTENT_LENGTH: &[u8] = b"content-length:";
const BAD_GATEWAY: &[u8] = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n";
/// The maximum length of a request head: more than any proxy adds to a request of a load generator.
const MAX_HEAD_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_consists_of_its_head_and_the_declared_body() {
        for (bytes, length) in [
            (&b"GET / HTTP/1.1\r\nhost: a"[..], None),
            (b"GET / HTTP/1.1\r\nhost: a\r\n\r\nrest", Some(27)),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", Some(41)),
        ] {
            assert_eq!(message_length(bytes), length);
        }
    }
}
