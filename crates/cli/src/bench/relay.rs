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
        let upstream_ports: Rc<[u16]> = self.to.into();
        loopback::serve(self.port, |stream| {
            serve_connection(stream, Rc::clone(&upstream_ports), Rc::clone(&next_index))
        })
    }
}

/// Serves one request after another: forwards it to the next upstream port, and returns the response.
async fn serve_connection(
    mut client: TcpStream,
    upstream_ports: Rc<[u16]>,
    next_index: Rc<Cell<usize>>,
) {
    let mut idle_connections: Vec<Option<TcpStream>> =
        upstream_ports.iter().map(|_| None).collect();
    let mut received_bytes = Vec::with_capacity(MAX_HEAD_BYTES);
    while let Some(request) = read_message(&mut client, &mut received_bytes).await {
        let index = next_index.get() % upstream_ports.len();
        next_index.set(next_index.get().wrapping_add(1));
        let (Some(port), Some(idle_connection)) =
            (upstream_ports.get(index), idle_connections.get_mut(index))
        else {
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

/// Sends a request over the idle connection, or over a new one.
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
    let mut received_bytes = Vec::with_capacity(MAX_HEAD_BYTES);
    let response = read_message(&mut server, &mut received_bytes).await;
    let response = response.ok_or(std::io::ErrorKind::UnexpectedEof)?;
    *idle_connection = Some(server);
    Ok(response)
}

/// Returns the next complete message: headers, and a body of the declared length. Returns `None` when the connection
/// closes or the headers are too long.
async fn read_message(stream: &mut TcpStream, received_bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        if let Some(message_bytes) = message_length(received_bytes) {
            if received_bytes.len() >= message_bytes {
                return Some(received_bytes.drain(..message_bytes).collect());
            }
        } else if received_bytes.len() > MAX_HEAD_BYTES {
            return None;
        }
        match stream.read_buf(received_bytes).await {
            Ok(0) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

/// Returns the length of the first message; `None` until its headers are complete.
fn message_length(received_bytes: &[u8]) -> Option<usize> {
    let head_length = received_bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let lines = received_bytes.get(..head_length)?.split(|byte| *byte == b'\n');
    let mut body_lengths = lines.filter_map(|line| {
        let (name, value) = line.split_at_checked(CONTENT_LENGTH.len())?;
        let is_content_length = name.eq_ignore_ascii_case(CONTENT_LENGTH);
        let value = std::str::from_utf8(value.trim_ascii()).ok().filter(|_| is_content_length)?;
        value.parse::<usize>().ok()
    });
    Some(head_length + body_lengths.next().unwrap_or(0))
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
