//! A copy for an application without a sidecar: on a connection of its own, in HTTP/1.1.

use std::future::poll_fn;

use leno_model::Reason;
use leno_wire::http1::{BodyLength, Parsed};

use super::super::body::{Piece, Source};
use super::super::request::answers;
use super::ANSWER_BYTES_MAX;
use crate::error::upstream_reason;
use crate::upstream::Http1Upstream;
use crate::worker::Worker;

/// Sends a copy, and reads its answer, or as much of that as is worth it; its status. Trailers of
/// a request, which few read, are not of the copy.
pub(super) async fn exchange(
    worker: &Worker,
    connection: &mut Http1Upstream,
    head: &[u8],
    body: Vec<Piece>,
) -> Result<u16, Reason> {
    let mut request = worker.request_heads.lend();
    match request.parse(head) {
        Ok(Parsed::Complete(_)) => {}
        Ok(Parsed::Partial) | Err(_) => return Err(Reason::HeadTooLarge),
    }
    let answers = answers(request.method.of(head));
    let Http1Upstream { reader, writer, .. } = connection;
    let room = writer.room();
    let bytes: usize = body.iter().map(length).sum();
    // All of the body is there: its length is known, whether it was said or not.
    match (request.body, head.strip_suffix(b"\r\n")) {
        (BodyLength::Empty, Some(fields)) if bytes > 0 => {
            room.extend_from_slice(fields);
            room.extend_from_slice(format!("content-length: {bytes}\r\n\r\n").as_bytes());
        }
        _ => room.extend_from_slice(head),
    }
    for piece in body {
        if let Piece::Data(data) = piece {
            writer.room().extend_from_slice(&data);
            if writer.is_full() {
                writer.flush().await.map_err(|_| Reason::UpstreamReset)?;
            }
        }
    }
    writer.flush().await.map_err(|_| Reason::UpstreamReset)?;
    let mut answer = worker.response_heads.lend();
    loop {
        let read = reader.response(&mut answer, answers).await;
        read.map_err(|error| upstream_reason(&error))?;
        if !answer.is_interim() {
            break;
        }
    }
    let mut source = Source::http1(reader, answer.body);
    let mut taken = 0_usize;
    while taken < ANSWER_BYTES_MAX {
        let next = poll_fn(|cx| source.poll_next(cx)).await;
        match next.map_err(|error| upstream_reason(&error))? {
            Some(piece) => taken = taken.saturating_add(length(&piece)),
            None => break,
        }
    }
    Ok(answer.status)
}

fn length(piece: &Piece) -> usize {
    match piece {
        Piece::Data(data) => data.len(),
        Piece::Trailers(_) => 0,
    }
}
