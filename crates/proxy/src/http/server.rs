//! Serves HTTP/1.1 requests: those of a connection one after another, and those of a link's streams
//! concurrently.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};

use bytes::{Bytes, BytesMut};
use leno_model::Reason;
use leno_wire::http1::{BodyLength, Http1Version, Malformed, ParseProgress, RequestHead};
use leno_wire::sniff::{DetectedProtocol, sniff_protocol};
use tokio::sync::watch;
use tokio::time::timeout;

use super::body::BodySource;
use super::error_response;
use super::exchange::Exchange;
use super::message::{MessageReader, MessageWriter, ReadError};
use super::proxy_headers;
use super::request::{Request, may_upgrade};
use super::respond::Responder;
use crate::drain::{Phase, last_request_timeout};
use crate::error::{Failure, downstream_reason};
use crate::http2::cancel;
use crate::http2::h2c_upgrade;
use crate::io::Io;
use crate::link::{OpenedStream, StreamError};
use crate::max_wait::wait_within;
use crate::record::ExchangeRecord;
use crate::session::{ListenerKind, Session};

/// The result of serving a connection.
pub(crate) enum ServeResult {
    /// The connection is over.
    Done,
    /// The client requested a tunnel to this authority; `early_bytes` holds the bytes already received.
    Tunnel { authority: String, early_bytes: BytesMut },
    /// The client continues in HTTP/2; `first_frame` is the frame with the request that offered the upgrade.
    Http2 { first_frame: Bytes, early_bytes: BytesMut },
    /// The client of the HTTP proxy uses HTTP/2 with prior knowledge; `early_bytes` holds its first bytes.
    PriorKnowledge { early_bytes: BytesMut },
}

/// Serves the requests of one connection until either side ends it, and then closes it. A connection that is
/// idle for some time releases its buffers.
pub(crate) async fn serve_requests(
    session: &Session,
    io: &Io,
    mut early_bytes: BytesMut,
) -> ServeResult {
    let mut phase = session.worker.phase.clone();
    session.is_exclusive.set(true);
    loop {
        let serve_result =
            Box::pin(serve_until_idle(session, io, std::mem::take(&mut early_bytes))).await;
        if let Some(serve_result) = serve_result {
            return serve_result;
        }
        let remaining_idle_time =
            session.idle_timeout().saturating_sub(session.worker.config.limits.rest_after);
        let wait_readable = || poll_fn(|cx| io.poll_readable(cx));
        let has_request = tokio::select! {
            biased;
            wait_result = timeout(remaining_idle_time, wait_readable()) => matches!(wait_result, Ok(Ok(()))),
            _ = phase.wait_for(|phase| *phase == Phase::Draining) => {
                let last_request_wait =
                    last_request_timeout(&session.worker.config.limits).min(remaining_idle_time);
                // Boxed: most idle connections never need it.
                matches!(Box::pin(timeout(last_request_wait, wait_readable())).await, Ok(Ok(())))
            }
            () = session.wait_for_eviction() => false,
        };
        if !has_request {
            io.close().await;
            return ServeResult::Done;
        }
    }
}

/// Serves requests until the connection ends. Returns `None` if the connection has been idle for some time.
async fn serve_until_idle(
    session: &Session,
    io: &Io,
    early_bytes: BytesMut,
) -> Option<ServeResult> {
    let worker = &session.worker;
    let mut reader = MessageReader::new(io.clone());
    reader.buffer = early_bytes;
    let mut writer = MessageWriter::new(io.clone(), worker.config.limits.body_stall_timeout);
    let mut phase = worker.phase.clone();
    loop {
        match wait_for_request(session, &mut reader, &mut phase).await {
            NextStep::Request => {}
            NextStep::Idle => return None,
            NextStep::Draining if await_last_request(session, &mut reader).await => {}
            NextStep::Draining | NextStep::End => {
                io.close().await;
                return Some(ServeResult::Done);
            }
        }
        let mut head = worker.request_heads.take_object();
        let head_timeout = worker.config.limits.head_timeout;
        let bytes = match wait_within(head_timeout, reader.read_request(&mut head)).await {
            Some(Ok(bytes)) => bytes,
            Some(Err(_)) if is_http2_proxy_client(session, &reader) => {
                return Some(ServeResult::PriorKnowledge { early_bytes: reader.buffer });
            }
            Some(Err(error)) => {
                return Some(reject_unreadable(session, io, downstream_reason(&error)).await);
            }
            None => return Some(reject_unreadable(session, io, Reason::HeadTimeout).await),
        };
        if head.http2 {
            if let Some(first_frame) = h2c_upgrade::accept_upgrade(session, io, &head, &bytes) {
                return Some(switch_to_http2(&mut writer, first_frame, reader.buffer).await);
            }
            // The field `http2` describes the client only on a link.
            head.http2 = false;
        }
        if session.gateway_connection.is_some() {
            proxy_headers::remove_proxy_headers(&mut head, &bytes);
        }
        let is_bodiless = matches!(head.body, BodyLength::Empty | BodyLength::ContentLength(0));
        let is_upgrade = is_bodiless && may_upgrade(&worker.config.upgrades, &head, &bytes);
        let request = Request { bytes, head: &head, is_upgrade };
        // For other listeners, the request pipeline rejects a tunnel.
        if session.listener_kind == ListenerKind::HttpProxy && request.method() == "CONNECT" {
            let authority =
                String::from_utf8_lossy(head.target.slice_in(&request.bytes)).into_owned();
            return Some(ServeResult::Tunnel { authority, early_bytes: reader.buffer });
        }
        let mut responder = Responder::Http1 {
            writer: &mut writer,
            version: head.version,
            // RFC 9112 §9.3: keeping an HTTP/1.0 connection open would require an explicit header and a
            // delimited body.
            keep_alive: head.keep_alive && head.version == Http1Version::Http11,
        };
        let body_length = if is_upgrade { BodyLength::UntilClose } else { head.body };
        let mut body = BodySource::from_http1(&mut reader, body_length);
        let (response_started, client_responder) = (Cell::new(false), &mut responder);
        let outcome =
            Exchange::new(session, &request, &mut body, client_responder, &response_started)
                .run()
                .await;
        let is_kept_alive = matches!(responder, Responder::Http1 { keep_alive: true, .. });
        // After a rejected upgrade the connection remains usable.
        let is_complete = body.is_complete() || is_upgrade;
        if outcome.is_err() {
            io.reset_on_drop();
            return Some(ServeResult::Done);
        }
        if !is_complete || !is_kept_alive {
            io.close_lingering().await;
            return Some(ServeResult::Done);
        }
    }
}

/// Accepts a client's offer of HTTP/2.
async fn switch_to_http2(
    writer: &mut MessageWriter,
    first_frame: Bytes,
    early_bytes: BytesMut,
) -> ServeResult {
    writer.output_buffer().extend_from_slice(h2c_upgrade::SWITCHING_RESPONSE);
    match writer.flush().await {
        Ok(()) => ServeResult::Http2 { first_frame, early_bytes },
        Err(_) => ServeResult::Done,
    }
}

/// The next step of a connection between two requests.
enum NextStep {
    /// A request has begun.
    Request,
    /// The connection is idle for so long that its buffers are released.
    Idle,
    /// The proxy drains. A request that the client sent before it learned of this may still arrive.
    Draining,
    /// The connection is over, or has to be closed.
    End,
}

/// Waits for a request that was in transit when draining began. Returns true if one arrives.
#[cold]
fn await_last_request<'a>(
    session: &'a Session,
    reader: &'a mut MessageReader,
) -> Pin<Box<dyn Future<Output = bool> + 'a>> {
    let last_request_wait =
        last_request_timeout(&session.worker.config.limits).min(session.idle_timeout());
    Box::pin(async move {
        matches!(timeout(last_request_wait, reader.wait_for_message()).await, Ok(Ok(true)))
    })
}

/// Waits for the first byte of the next request.
async fn wait_for_request(
    session: &Session,
    reader: &mut MessageReader,
    phase: &mut watch::Receiver<Phase>,
) -> NextStep {
    let limits = &session.worker.config.limits;
    let idle_timeout = session.idle_timeout();
    // With TLS, decrypted bytes may be pending that only a read returns.
    let may_release_buffers = reader.io.is_plain() && limits.rest_after < idle_timeout;
    let max_wait = if may_release_buffers { limits.rest_after } else { idle_timeout };
    tokio::select! {
        biased;
        wait_result = timeout(max_wait, reader.wait_for_message()) => match wait_result {
            Ok(Ok(true)) => NextStep::Request,
            Err(_) if may_release_buffers && reader.buffer.is_empty() => NextStep::Idle,
            // A part of an empty line was received, which does not begin a request.
            Err(_) if may_release_buffers => {
                match timeout(session.idle_timeout(), reader.wait_for_message()).await {
                    Ok(Ok(true)) => NextStep::Request,
                    Ok(Ok(false) | Err(_)) | Err(_) => NextStep::End,
                }
            }
            Ok(Ok(false) | Err(_)) | Err(_) => NextStep::End,
        },
        _ = phase.wait_for(|phase| *phase == Phase::Draining) => NextStep::Draining,
        () = session.wait_for_eviction(), if !may_release_buffers => NextStep::End,
    }
}

/// True if a client of the HTTP proxy begins with HTTP/2. Other listeners sniff the first bytes before they
/// parse a head.
#[cold]
fn is_http2_proxy_client(session: &Session, reader: &MessageReader) -> bool {
    session.listener_kind == ListenerKind::HttpProxy
        && sniff_protocol(&reader.buffer) == DetectedProtocol::Http2
}

/// Responds to an unreadable request, and ends the connection, because the end of such a request is unknown.
pub(crate) async fn reject_unreadable(session: &Session, io: &Io, reason: Reason) -> ServeResult {
    let record = ExchangeRecord::open_unreadable(session, reason);
    let mut writer =
        MessageWriter::new(io.clone(), session.worker.config.limits.body_stall_timeout);
    let mut responder =
        Responder::Http1 { writer: &mut writer, version: Http1Version::Http11, keep_alive: false };
    let failure = Failure::from(reason);
    if error_response::send_error(&failure, session, &mut responder, false, false, None).await {
        // The time in which the connection lingers is not part of the exchange.
        drop(record);
        io.close_lingering().await;
    }
    ServeResult::Done
}

/// Serves one HTTP stream of a link.
pub(crate) async fn serve_stream(session: &Session, opened_stream: &OpenedStream) {
    let stream = &opened_stream.stream;
    let mut head = session.worker.request_heads.take_object();
    let stall_timeout = session.worker.config.limits.body_stall_timeout;
    let mut responder = Responder::Link { stream, stall_timeout };
    match parse_head(&mut head, opened_stream) {
        Ok(()) => {
            let is_upgrade = !opened_stream.end_stream
                && head.body == BodyLength::Empty
                && may_upgrade(&session.worker.config.upgrades, &head, &opened_stream.head);
            let body_length = match head.body {
                BodyLength::Empty if is_upgrade => BodyLength::UntilClose,
                body_length => body_length,
            };
            let request = Request { bytes: opened_stream.head.clone(), head: &head, is_upgrade };
            let mut body = BodySource::from_link(stream, body_length);
            let response_started = Cell::new(false);
            let mut exchange =
                Exchange::new(session, &request, &mut body, &mut responder, &response_started);
            let request_scope = cancel::RequestScope;
            {
                let mut exchange_run = pin!(exchange.run());
                tokio::select! {
                    biased;
                    // The client has reset the stream, or its link is lost: the exchange is dropped next.
                    stream_error = stream.wait_until_lost() => if let StreamError::Http2(code) = stream_error {
                        request_scope.record_cancel(code);
                    },
                    outcome = &mut exchange_run => {
                        if let Err(code) = outcome {
                            stream.reset(code);
                        }
                        return;
                    }
                }
            }
            if stream.is_abandoned() {
                exchange.record_abandonment();
            }
        }
        Err(error) => {
            let reason = downstream_reason(&error);
            let _record = ExchangeRecord::open_unreadable(session, reason);
            let failure = Failure::from(reason);
            error_response::send_error(&failure, session, &mut responder, false, false, None).await;
        }
    }
}

/// Parses a head. On a link the END flag indicates whether a body follows; the head may declare its length.
fn parse_head(head: &mut RequestHead, opened_stream: &OpenedStream) -> Result<(), ReadError> {
    match head.parse(&opened_stream.head)? {
        ParseProgress::Complete(length) if length == opened_stream.head.len() => {}
        ParseProgress::Complete(_) | ParseProgress::Partial => {
            return Err(Malformed::HeadTooLarge.into());
        }
    }
    head.body = match (opened_stream.end_stream, head.body) {
        (true, BodyLength::Empty | BodyLength::ContentLength(0)) => BodyLength::Empty,
        (false, BodyLength::Empty | BodyLength::ContentLength(0)) if head.upgrade => {
            BodyLength::Empty
        }
        (false, BodyLength::ContentLength(bytes)) => BodyLength::ContentLength(bytes),
        (false, BodyLength::Empty) => BodyLength::Chunked,
        // The flag contradicts the declared length, or the head declares chunks, which a link does not have.
        (true, _) | (false, _) => return Err(ReadError::LengthMismatch),
    };
    Ok(())
}
