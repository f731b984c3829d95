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
        let turn = Rc::new(Cell::new(0));
        let to: Rc<[u16]> = self.to.into();
        loopback::serve(self.port, |stream| {
            serve_connection(stream, Rc::clone(&to), Rc::clone(&turn))
        })
    }
}

/// Answers one request after another.
async fn serve_connection(mut client: TcpStream, to: Rc<[u16]>, turn: Rc<Cell<usize>>) {
    let mut kept: Vec<Option<TcpStream>> = to.iter().map(|_| None).collect();
    let mut received = Vec::with_capacity(HEAD_BYTES_MAX);
    while let Some(request) = read_message(&mut client, &mut received).await {
        let index = turn.get() % to.len();
        turn.set(turn.get().wrapping_add(1));
        let (Some(port), Some(kept)) = (to.get(index), kept.get_mut(index)) else {
            return;
        };
        let answer = match send_request(kept, *port, &request).await {
            Ok(answer) => answer,
            Err(_) => BAD_GATEWAY.to_vec(),
        };
        if client.write_all(&answer).await.is_err() {
            return;
        }
    }
}

/// Sends a request over the kept connection, or over a new one.
async fn send_request(
    kept: &mut Option<TcpStream>,
    port: u16,
    request: &[u8],
) -> std::io::Result<Vec<u8>> {
    let mut server = match kept.take() {
        Some(server) => server,
        None => {
            let server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
            server.set_nodelay(true)?;
            server
        }
    };
    server.write_all(request).await?;
    let mut received = Vec::with_capacity(HEAD_BYTES_MAX);
    let answer = read_message(&mut server, &mut received).await;
    let answer = answer.ok_or(std::io::ErrorKind::UnexpectedEof)?;
    *kept = Some(server);
    Ok(answer)
}

/// Returns the next complete message: headers, and a body of the declared length.
async fn read_message(stream: &mut TcpStream, received: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        if let Some(length) = message_length(received) {
            if received.len() >= length {
                return Some(received.drain(..length).collect());
            }
        } else if received.len() > HEAD_BYTES_MAX {
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
    let head = received.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let lines = received.get(..head)?.split(|byte| *byte == b'\n');
    let mut body = lines.filter_map(|line| {
        let (name, value) = line.split_at_checked(CONTENT_LENGTH.len())?;
        let named = name.eq_ignore_ascii_case(CONTENT_LENGTH);
        let value = std::str::from_utf8(value.trim_ascii()).ok().filter(|_| named)?;
        value.parse::<usize>().ok()
    });
    Some(head + body.next().unwrap_or(0))
}

const CONTENT_LENGTH: &[u8] = b"content-length:";
const BAD_GATEWAY: &[u8] = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n";
/// More than any proxy adds to a request of a load generator.
const HEAD_BYTES_MAX: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_as_long_as_its_head_and_what_that_declares() {
        for (bytes, length) in [
            (&b"GET / HTTP/1.1\r\nhost: a"[..], None),
            (b"GET / HTTP/1.1\r\nhost: a\r\n\r\nrest", Some(27)),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", Some(41)),
        ] {
            assert_eq!(message_length(bytes), length);
        }
    }
}
