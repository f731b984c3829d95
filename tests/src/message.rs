//! Reads HTTP/1.1 messages from blocking sockets, for the clients and the servers of tests.

use std::io::{self, BufRead, BufReader, Read};
use std::net::TcpStream;

/// The body of a message without a declared length.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum UndeclaredBody {
    /// Requests: the body is empty.
    Empty,
    /// Responses: the body ends with the connection.
    UntilEnd,
}

/// Reads one head; `None` if the peer closed the connection.
pub(crate) fn read_head(reader: &mut BufReader<TcpStream>) -> io::Result<Option<String>> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.by_ref().take(MAX_HEAD_BYTES).read_line(&mut head)? == 0 {
            return if head.is_empty() { Ok(None) } else { Err(unexpected_end()) };
        }
    }
    Ok(Some(head))
}

/// Reads the body of a message with this head.
pub(crate) fn read_body(
    reader: &mut BufReader<TcpStream>,
    head: &str,
    undeclared_body: UndeclaredBody,
) -> io::Result<Vec<u8>> {
    if first_header(head, "transfer-encoding")
        .is_some_and(|transfer_coding| transfer_coding.ends_with("chunked"))
    {
        return read_chunks(reader);
    }
    let mut body = Vec::new();
    match first_header(head, "content-length") {
        Some(length) => {
            let length: u64 = length.parse().map_err(|_| io::Error::from(INVALID))?;
            if reader.by_ref().take(length).read_to_end(&mut body)? as u64 != length {
                return Err(unexpected_end());
            }
        }
        None if undeclared_body == UndeclaredBody::UntilEnd => {
            reader.read_to_end(&mut body)?;
        }
        None => {}
    }
    Ok(body)
}

/// Returns the first header of this name.
pub(crate) fn first_header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().skip(1).find_map(|line| {
        let (field_name, value) = line.split_once(':')?;
        field_name.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

fn read_chunks(reader: &mut BufReader<TcpStream>) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let size = u64::from_str_radix(size, 16).map_err(|_| io::Error::from(INVALID))?;
        if reader.by_ref().take(size).read_to_end(&mut body)? as u64 != size {
            return Err(unexpected_end());
        }
        // An empty line ends a chunk. The last chunk, of size 0, may have trailers before this line.
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            match line.as_str() {
                "\r\n" => break,
                _ if size == 0 && !line.is_empty() => {}
                _ => return Err(INVALID.into()),
            }
        }
        if size == 0 {
            return Ok(body);
        }
    }
}

fn unexpected_end() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

const INVALID: io::ErrorKind = io::ErrorKind::InvalidData;
/// The maximum length of one line of a head.
const MAX_HEAD_BYTES: u64 = 128 * 1024;
