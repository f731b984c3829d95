//! The hidden `leno bench backend`: a small fast HTTP/1.1 server, the built-in application behind the proxies.
//!
//! The response to `/1024` has 1024 bytes. `/count` returns the number of responses to all other requests on all
//! connections, so that the measured CPU time can be divided by requests.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use clap::Args;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::loopback;
use crate::duration::parse_duration;

/// Arguments of the hidden `leno bench backend`.
#[derive(Debug, Args)]
pub(crate) struct BackendArgs {
    /// Loopback port to listen on
    #[arg(long)]
    port: u16,
    /// Delay of each response
    #[arg(long, value_parser = parse_duration, default_value = "0s")]
    delay: Duration,
}

impl BackendArgs {
    /// Serves until SIGTERM or SIGINT.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let backend_state = Rc::new(BackendState::new(self.delay));
        loopback::serve(self.port, |stream| serve_connection(stream, Rc::clone(&backend_state)))
    }
}

/// The state that all connections share. The server runs on one thread.
struct BackendState {
    response_count: Cell<u64>,
    /// Rendered responses, by body size in bytes.
    responses_by_size: RefCell<HashMap<usize, Rc<[u8]>>>,
    delay: Duration,
}

impl BackendState {
    fn new(delay: Duration) -> Self {
        Self { response_count: Cell::new(0), responses_by_size: RefCell::default(), delay }
    }

    /// Appends the response for a path to `response_bytes`.
    fn write_response(&self, path: &[u8], response_bytes: &mut Vec<u8>) {
        let path = path.strip_prefix(b"/").unwrap_or(path);
        if path == b"count" {
            let count = self.response_count.get().to_string();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", count.len());
            response_bytes.extend_from_slice(head.as_bytes());
            response_bytes.extend_from_slice(count.as_bytes());
            return;
        }
        self.response_count.set(self.response_count.get() + 1);
        let body_bytes = body_size(path);
        let response = {
            let mut responses_by_size = self.responses_by_size.borrow_mut();
            Rc::clone(
                responses_by_size.entry(body_bytes).or_insert_with(|| render_response(body_bytes)),
            )
        };
        response_bytes.extend_from_slice(&response);
    }
}

/// Returns the body size that a path names, at most [`MAX_BODY_BYTES`]; [`DEFAULT_BODY_BYTES`] if it names none.
fn body_size(path: &[u8]) -> usize {
    let path_text = std::str::from_utf8(path).ok();
    let body_bytes = path_text.and_then(|path_text| path_text.parse::<usize>().ok());
    body_bytes.map_or(DEFAULT_BODY_BYTES, |body_bytes| body_bytes.min(MAX_BODY_BYTES))
}

fn render_response(body_bytes: usize) -> Rc<[u8]> {
    let mut response = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: {body_bytes}\r\n\r\n"
    )
    .into_bytes();
    response.extend((0..body_bytes).map(|index| b'a' + (index % 26) as u8));
    response.into()
}

async fn serve_connection(mut stream: TcpStream, backend_state: Rc<BackendState>) {
    let mut request_bytes = Vec::with_capacity(MAX_HEAD_BYTES);
    let mut response_bytes = Vec::new();
    loop {
        match stream.read_buf(&mut request_bytes).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let Some(after_response) =
            respond_to_all(&mut request_bytes, &backend_state, &mut response_bytes)
        else {
            return;
        };
        if !backend_state.delay.is_zero() && !response_bytes.is_empty() {
            tokio::time::sleep(backend_state.delay).await;
        }
        if stream.write_all(&response_bytes).await.is_err()
            || after_response == AfterResponse::Close
        {
            return;
        }
        response_bytes.clear();
    }
}

/// The state of a connection after the responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterResponse {
    KeepAlive,
    Close,
}

/// Appends the responses to all complete requests, and removes these requests from `request_bytes`. Returns `None`
/// if a request is malformed or too long. Requests of benchmark clients have no body.
fn respond_to_all(
    request_bytes: &mut Vec<u8>,
    backend_state: &BackendState,
    response_bytes: &mut Vec<u8>,
) -> Option<AfterResponse> {
    let mut consumed_bytes = 0;
    let mut after_response = AfterResponse::KeepAlive;
    while let Some(head_bytes) = head_length(request_bytes.get(consumed_bytes..)?) {
        let head = request_bytes.get(consumed_bytes..consumed_bytes + head_bytes)?;
        let mut request_words = head.split(|byte| *byte == b' ');
        let target = request_words.nth(1)?;
        backend_state.write_response(target_path(target), response_bytes);
        if has_connection_close(head) {
            after_response = AfterResponse::Close;
        }
        consumed_bytes += head_bytes;
    }
    request_bytes.drain(..consumed_bytes);
    (request_bytes.len() < MAX_HEAD_BYTES).then_some(after_response)
}

/// Returns the length of the first request head; `None` if it is incomplete.
fn head_length(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|position| position + 4)
}

/// Returns the path of a target in origin or absolute form, without its query.
fn target_path(target: &[u8]) -> &[u8] {
    let after_scheme = target.strip_prefix(b"http://");
    let path = after_scheme.map_or(target, |authority_and_path| {
        let path_start = authority_and_path.iter().position(|byte| *byte == b'/');
        path_start.and_then(|path_start| authority_and_path.get(path_start..)).unwrap_or(b"/")
    });
    path.split(|byte| *byte == b'?').next().unwrap_or(path)
}

fn has_connection_close(head: &[u8]) -> bool {
    let is_connection_close =
        |line: &[u8]| line.trim_ascii_end().eq_ignore_ascii_case(b"connection: close");
    head.split(|byte| *byte == b'\n').any(is_connection_close)
}

/// The default size of a response body.
const DEFAULT_BODY_BYTES: usize = 1024;
/// The maximum size of a response body: responses are kept in memory as a whole.
const MAX_BODY_BYTES: usize = 64 << 20;
/// The maximum length of a request head: more than any proxy adds to a request of a load generator.
const MAX_HEAD_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the responses to `requests`, the state of the connection after them, and the number of counted responses.
    fn respond_to(requests: &[u8]) -> (String, Option<AfterResponse>, u64) {
        let backend_state = BackendState::new(Duration::ZERO);
        let mut request_bytes = requests.to_vec();
        let mut response_bytes = Vec::new();
        let after_response =
            respond_to_all(&mut request_bytes, &backend_state, &mut response_bytes);
        (
            String::from_utf8(response_bytes).unwrap(),
            after_response,
            backend_state.response_count.get(),
        )
    }

    #[test]
    fn each_complete_request_gets_a_body_of_the_size_in_its_path() {
        let (text, after_response, count) = respond_to(
            b"GET /3 HTTP/1.1\r\nhost: a\r\n\r\nGET http://b/0?x HTTP/1.1\r\n\r\nGET /1",
        );
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("\r\n\r\nabcHTTP/1.1"));
        assert!(text.ends_with("content-length: 0\r\n\r\n"), "{text}");
        assert_eq!((after_response, count), (Some(AfterResponse::KeepAlive), 2));
    }

    #[test]
    fn the_connection_closes_after_the_response_if_the_client_requests_it() {
        let (_, after_response, count) = respond_to(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n");
        assert_eq!((after_response, count), (Some(AfterResponse::Close), 1));
    }

    #[test]
    fn reading_the_count_does_not_change_it() {
        let (text, _, count) = respond_to(
            b"GET /count HTTP/1.1\r\n\r\nGET /7 HTTP/1.1\r\n\r\nGET /count HTTP/1.1\r\n\r\n",
        );
        assert!(text.ends_with("\r\n\r\n1"), "{text}");
        assert_eq!(count, 1);
    }

    #[test]
    fn malformed_requests_close_the_connection() {
        assert_eq!(respond_to(b"\x16\x03\x01\r\n\r\n").1, None);
        assert_eq!(respond_to(&[b'x'; MAX_HEAD_BYTES]).1, None);
    }
}
