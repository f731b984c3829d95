//! Requests of our own, such as copies, for endpoints that are spoken to in HTTP/1.1 or HTTP/2.

use std::future::poll_fn;
use std::rc::Rc;

use bytes::Bytes;
use leno_model::Reason;
use leno_wire::http1::{
    BodyLength, Framing, Parsed, RequestEdits, RequestHead, ResponseHead, write_request,
};

use super::ANSWER_BYTES_MAX;
use crate::error::upstream_reason;
use crate::http::body::{Piece, Sink, Source};
use crate::http::forward::{Awaited, Http2Answer, Unanswered};
use crate::http::request::Request;
use crate::http2::client::Http2Lease;
use crate::http2::head;
use crate::http2::stream::{Outgoing, Received};
use crate::upstream::ward::Ward;
use crate::upstream::{Destined, Http1Upstream, Lease, Upstream, Wait};
use crate::worker::Worker;

/// Sends a whole request over a connection of HTTP/1.1, and reads its answer; the status of that.
pub(crate) async fn over_http1(
    worker: &Worker,
    (upstream, mut connection): (&Rc<Upstream>, Box<Http1Upstream>),
    bytes: Bytes,
    body: Vec<Piece>,
) -> Result<u16, Reason> {
    let mut lent = worker.request_heads.lend();
    parse(&mut lent, &bytes)?;
    let request = Request { bytes, head: &lent, upgrade: false };
    let answers = request.answers();
    let framing = match request.head.body {
        BodyLength::Empty if !body.is_empty() => Framing::Chunked,
        _ => Framing::Keep,
    };
    let edits = RequestEdits { framing, ..RequestEdits::default() };
    let Http1Upstream { reader, writer, .. } = &mut *connection;
    write_request(&request.bytes, request.head, &edits, writer.room());
    give(Sink::Http1 { writer, chunked: framing == Framing::Chunked }, body).await?;
    let mut head = ResponseHead::default();
    loop {
        let answer = reader.response(&mut head, answers).await;
        answer.map_err(|error| upstream_reason(&error))?;
        if !head.is_interim() {
            break;
        }
    }
    if head.tunnel {
        return Err(Reason::UpstreamMalformed);
    }
    let reusable = head.keep_alive && head.body != BodyLength::UntilClose;
    let is_whole = discard(&mut Source::http1(reader, head.body)).await?;
    if is_whole && reusable {
        Destined::Upstream(upstream.clone()).give_back(connection);
    }
    Ok(head.status)
}

/// The same over HTTP/2, again as long as the server processes other streams and not this one. `ward`: the policies that bound the
/// request.
pub(crate) async fn over_http2(
    worker: &Rc<Worker>,
    (upstream, ward): (&Rc<Upstream>, Option<&Ward>),
    mut lease: Http2Lease,
    bytes: Bytes,
    body: Vec<Piece>,
) -> Result<u16, Reason> {
    loop {
        let asked = head_of(worker, upstream, &bytes)?;
        let is_reset = match over_stream(worker, &mut lease, asked, body.clone()).await {
            Err(Unanswered { reason: Reason::UpstreamRefused, reset }) => reset.is_some(),
            outcome => return outcome.map_err(|unanswered| unanswered.reason),
        };
        if !lease.may_repeat(is_reset).await {
            return Err(Reason::UpstreamRefused);
        }
        let again = upstream.lease(worker, None, Wait::Whole);
        let again = match ward {
            None => again.await?,
            Some(ward) => ward.wait(again).await?,
        };
        lease = match again {
            Lease::Http2(lease) => lease,
            // The endpoint speaks another protocol since.
            Lease::Link(_) | Lease::Http1(_) => return Err(Reason::UpstreamRefused),
        };
    }
}

/// The head of a request as HTTP/2 writes it.
fn head_of(
    worker: &Worker,
    upstream: &Upstream,
    bytes: &Bytes,
) -> Result<http::Request<()>, Reason> {
    let mut lent = worker.request_heads.lend();
    parse(&mut lent, bytes)?;
    let request = Request { bytes: bytes.clone(), head: &lent, upgrade: false };
    let aim = request.aim()?;
    let target = std::str::from_utf8(request.head.target.of(&request.bytes));
    let address = upstream.endpoint.address.to_string();
    let authority = if aim.authority.is_empty() { &address } else { aim.authority };
    let scheme = if upstream.is_plain() { "http" } else { "https" };
    let place = (scheme, authority, target.unwrap_or_default());
    head::request_to(&request.bytes, request.head, place)
}

async fn over_stream(
    worker: &Worker,
    lease: &mut Http2Lease,
    asked: http::Request<()>,
    body: Vec<Piece>,
) -> Result<u16, Unanswered> {
    let (response, stream) = lease.send(asked, body.is_empty())?;
    let mut awaited = Awaited::new(response);
    if !body.is_empty() {
        let patience = worker.config.limits.body_stall_timeout;
        let sink = Sink::Http2 { stream: Outgoing::new(stream), patience };
        // A stream that the server ended before the end of the body says so by its response.
        awaited.meanwhile(give(sink, body)).await?.ok();
    }
    loop {
        if let Http2Answer::Final(parts, body) = awaited.next().await? {
            lease.processed();
            discard(&mut Source::Http2(Received::new(body))).await?;
            return Ok(parts.status.as_u16());
        }
    }
}

fn parse(head: &mut RequestHead, bytes: &[u8]) -> Result<(), Reason> {
    match head.parse(bytes) {
        Ok(Parsed::Complete(_)) => Ok(()),
        Ok(Parsed::Partial) | Err(_) => Err(Reason::HeadTooLarge),
    }
}

async fn give(mut sink: Sink<'_>, body: Vec<Piece>) -> Result<(), Reason> {
    let mut rest = body.len();
    for piece in body {
        rest -= 1;
        sink.push(piece, rest == 0).await.map_err(|_| Reason::UpstreamReset)?;
    }
    sink.finish(true).await.map_err(|_| Reason::UpstreamReset)
}

/// Reads an answer to its end, or as far as is worth it; whether it was the end.
async fn discard(source: &mut Source<'_>) -> Result<bool, Reason> {
    let mut bytes = 0_usize;
    while bytes < ANSWER_BYTES_MAX {
        let next = poll_fn(|cx| source.poll_next(cx)).await;
        match next.map_err(|error| upstream_reason(&error))? {
            None => return Ok(true),
            Some(Piece::Data(data)) => bytes = bytes.saturating_add(data.len()),
            Some(Piece::Trailers(_)) => {}
        }
    }
    Ok(false)
}
