//! Sends requests that the proxy generates, such as mirrored copies and health checks, to endpoints that use
//! HTTP/1.1 or HTTP/2 instead of a link.

use std::future::poll_fn;
use std::rc::Rc;

use bytes::Bytes;
use leno_model::Reason;
use leno_wire::http1::{
    BodyLength, FramingPolicy, ParseProgress, RequestEdits, RequestHead, ResponseHead,
    write_request,
};

use super::MAX_RESPONSE_BYTES;
use crate::error::upstream_reason;
use crate::http::body::{BodyPiece, BodySink, BodySource};
use crate::http::forward::{Http2ResponseHead, MissingResponse, PendingResponse};
use crate::http::request::Request;
use crate::http2::client::Http2Checkout;
use crate::http2::head;
use crate::http2::stream::{OutgoingBody, ReceivedBody};
use crate::upstream::cluster::UpstreamCluster;
use crate::upstream::{AttemptTarget, Checkout, ConnectWait, Http1Upstream, Upstream};
use crate::worker::Worker;

/// Sends a complete request over an HTTP/1.1 connection, and reads the response to its end. Returns its status.
pub(crate) async fn exchange_over_http1(
    worker: &Worker,
    upstream: &Rc<Upstream>,
    mut connection: Box<Http1Upstream>,
    bytes: Bytes,
    body: Vec<BodyPiece>,
) -> Result<u16, Reason> {
    let mut request_head = worker.request_heads.take_object();
    parse_request(&mut request_head, &bytes)?;
    let request = Request { bytes, head: &request_head, is_upgrade: false };
    let request_kind = request.request_kind();
    let framing = match request.head.body {
        BodyLength::Empty if !body.is_empty() => FramingPolicy::Chunked,
        _ => FramingPolicy::Keep,
    };
    let edits = RequestEdits { framing, ..RequestEdits::default() };
    let Http1Upstream { reader, writer, .. } = &mut *connection;
    write_request(&request.bytes, request.head, &edits, writer.output_buffer());
    send_body(BodySink::Http1 { writer, is_chunked: framing == FramingPolicy::Chunked }, body)
        .await?;
    let mut head = ResponseHead::default();
    loop {
        let response = reader.read_response(&mut head, request_kind).await;
        response.map_err(|error| upstream_reason(&error))?;
        if !head.is_interim() {
            break;
        }
    }
    if head.tunnel {
        return Err(Reason::UpstreamMalformed);
    }
    let is_reusable = head.keep_alive && head.body != BodyLength::UntilClose;
    let is_whole = discard_body(&mut BodySource::from_http1(reader, head.body)).await?;
    if is_whole && is_reusable {
        AttemptTarget::Upstream(upstream.clone()).return_connection(connection);
    }
    Ok(head.status)
}

/// Sends a complete request over HTTP/2, and repeats it while the server refuses its stream but processes other
/// streams. Reads the response to its end, and returns its status. `cluster`: the policies that limit the
/// request.
pub(crate) async fn exchange_over_http2(
    worker: &Rc<Worker>,
    upstream: &Rc<Upstream>,
    cluster: Option<&UpstreamCluster>,
    mut checkout: Http2Checkout,
    bytes: Bytes,
    body: Vec<BodyPiece>,
) -> Result<u16, Reason> {
    loop {
        let request = build_http2_head(worker, upstream, &bytes)?;
        let is_reset = match exchange_on_stream(worker, &mut checkout, request, body.clone()).await
        {
            Err(MissingResponse { reason: Reason::UpstreamRefused, reset_code }) => {
                reset_code.is_some()
            }
            outcome => return outcome.map_err(|missing_response| missing_response.reason),
        };
        if !checkout.wait_to_repeat(is_reset).await {
            return Err(Reason::UpstreamRefused);
        }
        let acquisition = upstream.acquire(worker, None, ConnectWait::Full);
        let next_checkout = match cluster {
            None => acquisition.await?,
            Some(cluster) => cluster.wait_for_connection(acquisition).await?,
        };
        checkout = match next_checkout {
            Checkout::Http2(checkout) => checkout,
            // The endpoint has switched to another protocol.
            Checkout::Link(_) | Checkout::Http1(_) => return Err(Reason::UpstreamRefused),
        };
    }
}

/// Returns the head of a request in HTTP/2 format.
fn build_http2_head(
    worker: &Worker,
    upstream: &Upstream,
    bytes: &Bytes,
) -> Result<http::Request<()>, Reason> {
    let mut request_head = worker.request_heads.take_object();
    parse_request(&mut request_head, bytes)?;
    let request = Request { bytes: bytes.clone(), head: &request_head, is_upgrade: false };
    let request_target = request.parse_target()?;
    let target = std::str::from_utf8(request.head.target.slice_in(&request.bytes));
    let address = upstream.endpoint.address.to_string();
    let authority =
        if request_target.authority.is_empty() { &address } else { request_target.authority };
    let scheme = if upstream.is_unmeshed() { "http" } else { "https" };
    head::request_to_http2(
        &request.bytes,
        request.head,
        scheme,
        authority,
        target.unwrap_or_default(),
    )
}

/// Sends a complete request on one HTTP/2 stream, and reads the response to its end. Returns its status.
async fn exchange_on_stream(
    worker: &Worker,
    checkout: &mut Http2Checkout,
    request: http::Request<()>,
    body: Vec<BodyPiece>,
) -> Result<u16, MissingResponse> {
    let (response, stream) = checkout.open_stream(request, body.is_empty())?;
    let mut pending_response = PendingResponse::new(response);
    if !body.is_empty() {
        let stall_timeout = worker.config.limits.body_stall_timeout;
        let sink = BodySink::Http2 { stream: OutgoingBody::new(stream), stall_timeout };
        // An error is ignored: if the server ended the stream before the end of the body, the response reports
        // it.
        pending_response.run_and_collect(send_body(sink, body)).await?.ok();
    }
    loop {
        if let Http2ResponseHead::Final(response_parts, body) = pending_response.next_head().await?
        {
            checkout.record_processed();
            discard_body(&mut BodySource::Http2(ReceivedBody::new(body))).await?;
            return Ok(response_parts.status.as_u16());
        }
    }
}

/// Parses a complete request head.
fn parse_request(head: &mut RequestHead, bytes: &[u8]) -> Result<(), Reason> {
    match head.parse(bytes) {
        Ok(ParseProgress::Complete(_)) => Ok(()),
        Ok(ParseProgress::Partial) | Err(_) => Err(Reason::HeadTooLarge),
    }
}

async fn send_body(mut sink: BodySink<'_>, body: Vec<BodyPiece>) -> Result<(), Reason> {
    let mut remaining_pieces = body.len();
    for piece in body {
        remaining_pieces -= 1;
        sink.push(piece, remaining_pieces == 0).await.map_err(|_| Reason::UpstreamReset)?;
    }
    sink.finish_body(true).await.map_err(|_| Reason::UpstreamReset)
}

/// Reads a body to its end, at most [`MAX_RESPONSE_BYTES`]. Returns true if the end was reached.
async fn discard_body(source: &mut BodySource<'_>) -> Result<bool, Reason> {
    let mut byte_count = 0_usize;
    while byte_count < MAX_RESPONSE_BYTES {
        let next_piece = poll_fn(|cx| source.poll_next(cx)).await;
        match next_piece.map_err(|error| upstream_reason(&error))? {
            None => return Ok(true),
            Some(BodyPiece::Data(data)) => byte_count = byte_count.saturating_add(data.len()),
            Some(BodyPiece::Trailers(_)) => {}
        }
    }
    Ok(false)
}
