//! Serves HTTP/2 connections: accepts the streams of a connection, and runs the request pipeline for each
//! stream.

mod proxy_port;

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use h2::server::{Builder, Connection, SendResponse};
use leno_model::Reason;
use leno_wire::http1::{BodyLength, ParseProgress, RequestHead};
use tokio::time::timeout;

use super::cancel;
use super::connect;
use super::half_close::HalfClose;
use super::head;
use super::stream::{Http2Response, ReceivedBody};
use super::transport::Transport;
use super::{
    CONNECTION_WINDOW_BYTES, MAX_GATEWAY_HEADER_LIST_BYTES, MAX_HEADER_LIST_BYTES,
    MAX_SEND_BUFFER_BYTES, SMALL_FRAME_COST, STREAM_WINDOW_BYTES,
};
use crate::drain::Phase;
use crate::error::{Failure, downstream_reason};
use crate::http::body::{BodyPiece, BodySource};
use crate::http::error_response;
use crate::http::exchange::Exchange;
use crate::http::grpc;
use crate::http::message::ReadError;
use crate::http::proxy_headers;
use crate::http::request::{Request, may_upgrade};
use crate::http::respond::Responder;
use crate::io::Io;
use crate::record::ExchangeRecord;
use crate::session::{ListenerKind, Session};

/// Serves one connection until either side ends it. `early_bytes`: the bytes already read.
pub(crate) async fn serve_connection(session: Rc<Session>, io: &Io, early_bytes: BytesMut) {
    serve_transport(session, io, Transport::new(io.clone(), early_bytes)).await;
}

/// Serves a client that upgraded from HTTP/1.1; `first_frame` is the frame with its request.
pub(crate) async fn continue_upgraded(
    session: Rc<Session>,
    io: &Io,
    first_frame: Bytes,
    early_bytes: BytesMut,
) {
    serve_transport(session, io, Transport::with_frame(io.clone(), early_bytes, first_frame)).await;
}

/// Performs the HTTP/2 handshake, and serves the streams of the connection.
async fn serve_transport(session: Rc<Session>, io: &Io, transport: Transport) {
    let handshake_timeout = session.worker.config.limits.handshake_timeout;
    let is_gateway = session.gateway_connection.is_some();
    let half_close = Rc::new(HalfClose::default());
    let handshake = server_builder(is_gateway).handshake(transport.for_client(half_close.clone()));
    let Ok(Ok(connection)) = timeout(handshake_timeout, handshake).await else {
        session.worker.metrics.count_rejected(Reason::BadRequest.label());
        return io.close_lingering().await;
    };
    let connection_end = match session.listener_kind == ListenerKind::HttpProxy {
        // Boxed to keep the future small for other connections.
        true => Box::pin(proxy_port::reject_requests(&session, connection)).await,
        false => serve_streams(&session, connection, half_close).await,
    };
    if let Http2ConnectionEnd::Graceful = connection_end {
        // The client may still read responses, and frames that it sends meanwhile would reset a closed
        // connection.
        io.close_lingering().await;
    }
}

/// The way in which an HTTP/2 connection ended.
enum Http2ConnectionEnd {
    /// Both sides know the last stream, and every response was written.
    Graceful,
    /// The connection failed, or a side ended it before its streams were complete.
    Abrupt,
}

/// Accepts streams until the connection ends. Each stream is served by its own task.
async fn serve_streams(
    session: &Rc<Session>,
    mut connection: Connection<Transport, Bytes>,
    half_close: Rc<HalfClose>,
) -> Http2ConnectionEnd {
    let reset_counter = ResetCounter::for_session(session);
    let mut phase = session.worker.phase.clone();
    let mut is_ending = false;
    loop {
        // After GOAWAY, the client gets only a short time to close the connection.
        let max_wait = if is_ending { SHUTDOWN_TIMEOUT } else { session.idle_timeout() };
        let accept_result = tokio::select! {
            biased;
            accept_result = timeout(max_wait, connection.accept()) => accept_result,
            _ = phase.wait_for(|phase| *phase == Phase::Draining), if !is_ending => {
                is_ending = true;
                connection.graceful_shutdown();
                continue;
            }
            () = session.wait_for_eviction(), if !is_ending => {
                if half_close.stream_count() == 0 {
                    is_ending = true;
                    connection.graceful_shutdown();
                }
                continue;
            }
        };
        match accept_result {
            Ok(Some(Ok(_)))
                if reset_counter
                    .as_ref()
                    .is_some_and(|reset_counter| reset_counter.exceeds_limit()) =>
            {
                session.worker.metrics.count_rejected(Reason::BadRequest.label());
                connection.abrupt_shutdown(h2::Reason::ENHANCE_YOUR_CALM);
                drop(timeout(SHUTDOWN_TIMEOUT, poll_fn(|cx| connection.poll_closed(cx))).await);
                return Http2ConnectionEnd::Abrupt;
            }
            // The port now carries TCP: the client has to connect again.
            Ok(Some(Ok(_))) if session.is_outdated.get() => {
                connection.abrupt_shutdown(h2::Reason::PROTOCOL_ERROR);
                drop(timeout(SHUTDOWN_TIMEOUT, poll_fn(|cx| connection.poll_closed(cx))).await);
                return Http2ConnectionEnd::Abrupt;
            }
            Ok(Some(Ok((request, send_response)))) => {
                let (session, open_stream) = (session.clone(), OpenStreamGuard::new(&half_close));
                let reset_counter = reset_counter.clone();
                tokio::task::spawn_local(async move {
                    let result =
                        serve_stream(&session, request, send_response, &open_stream.0).await;
                    if let (StreamResult::Abandoned, Some(reset_counter)) = (result, reset_counter)
                    {
                        reset_counter.count_reset(Instant::now());
                    }
                    drop(open_stream);
                });
            }
            // The codec has sent the error to the client, and would return the same error from every further
            // call.
            Ok(Some(Err(error))) => {
                // The client violated the protocol, or sent a head far beyond the limit.
                if error.is_go_away() && error.is_library() {
                    session.worker.metrics.count_rejected(Reason::BadRequest.label());
                }
                tracing::debug!(%error, "HTTP/2 connection failed");
                return Http2ConnectionEnd::Abrupt;
            }
            Ok(None) => return Http2ConnectionEnd::Graceful,
            Err(_) if is_ending && half_close.stream_count() == 0 => {
                return Http2ConnectionEnd::Abrupt;
            }
            Err(_) if !is_ending && (half_close.stream_count() == 0 || session.is_expired()) => {
                is_ending = true;
                connection.graceful_shutdown();
            }
            // Streams are open, which may take any time.
            Err(_) => {}
        }
    }
}

/// Counts the streams that a client resets before any part of their responses is sent, within one period. Such
/// a stream costs the server an exchange, and the client nothing (CVE-2023-44487).
struct ResetCounter {
    /// The start of the current period.
    period_start: Cell<Option<Instant>>,
    /// The resets in the current period.
    reset_count: Cell<u32>,
    /// The maximum number of resets per period.
    max_resets: u32,
}

impl ResetCounter {
    /// Returns the counter for a session; `None` on connections of the local application: its resets harm
    /// only itself, and are counted on its links.
    fn for_session(session: &Session) -> Option<Rc<Self>> {
        let max_resets = match (session.gateway_connection.is_some(), session.is_inbound()) {
            (true, _) => MAX_RESETS,
            (false, true) => MAX_PEER_RESETS,
            (false, false) => return None,
        };
        Some(Rc::new(Self {
            period_start: Cell::default(),
            reset_count: Cell::default(),
            max_resets,
        }))
    }

    fn count_reset(&self, now: Instant) {
        let is_period_over =
            |period_start: Instant| now.duration_since(period_start) > RESETS_PERIOD;
        if self.period_start.get().is_none_or(is_period_over) {
            self.period_start.set(Some(now));
            self.reset_count.set(0);
        }
        self.reset_count.set(self.reset_count.get() + 1);
    }

    fn exceeds_limit(&self) -> bool {
        self.reset_count.get() > self.max_resets
    }
}

/// The result of a stream.
enum StreamResult {
    /// A part of the response was sent, or the sidecar rejected the request.
    Done,
    /// The client reset the stream before any part of its response was sent.
    Abandoned,
}

/// Counts one open stream while it lives.
struct OpenStreamGuard(Rc<HalfClose>);

impl OpenStreamGuard {
    fn new(half_close: &Rc<HalfClose>) -> Self {
        half_close.stream_opened();
        Self(half_close.clone())
    }
}

impl Drop for OpenStreamGuard {
    fn drop(&mut self) {
        self.0.stream_closed();
    }
}

/// Serves one stream: its request passes the request pipeline.
async fn serve_stream(
    session: &Session,
    request: http::Request<RecvStream>,
    send_response: SendResponse<Bytes>,
    half_close: &Rc<HalfClose>,
) -> StreamResult {
    let worker = &session.worker;
    let response = Http2Response::new(send_response);
    let (mut request_parts, body) = request.into_parts();
    let random = || u128::from(worker.random_number());
    let is_upgrade = connect::rewrite_as_upgrade(&mut request_parts, || {
        (random() << 64 | random()).to_le_bytes()
    });
    let stall_timeout = worker.config.limits.body_stall_timeout;
    let grpc = is_grpc(&request_parts.headers);
    let mut responder = Responder::Http2 { response: response.clone(), stall_timeout, grpc };
    let mut request_head = worker.request_heads.take_object();
    let parse_result = parse_head(&mut request_head, &request_parts, is_upgrade, &body);
    // An upgrade that is not permitted is rejected, because extended CONNECT (RFC 8441 §4) cannot continue in
    // HTTP.
    let permit_result = parse_result.and_then(|bytes| {
        let is_permitted =
            !is_upgrade || may_upgrade(&worker.config.upgrades, &request_head, &bytes);
        is_permitted.then_some(bytes).ok_or(Reason::Unsupported)
    });
    let bytes = match permit_result {
        Ok(bytes) => bytes,
        Err(reason) => {
            let _record = ExchangeRecord::open_unreadable(session, reason);
            let failure = Failure::from(reason);
            error_response::send_error(&failure, session, &mut responder, false, false, None).await;
            return StreamResult::Done;
        }
    };
    if session.gateway_connection.is_some() {
        proxy_headers::remove_proxy_headers(&mut request_head, &bytes);
    }
    let request = Request { bytes, head: &request_head, is_upgrade };
    let mut source = match request_head.body {
        BodyLength::Empty if !is_upgrade => BodySource::Empty,
        _ => BodySource::Http2(ReceivedBody::for_request(body, half_close.clone())),
    };
    let has_body = !source.is_empty();
    let started = Cell::new(false);
    let request_scope = cancel::RequestScope;
    let outcome = {
        let mut exchange = Exchange::new(session, &request, &mut source, &mut responder, &started);
        let outcome = {
            let mut exchange_run = pin!(exchange.run());
            tokio::select! {
                biased;
                code = response.wait_canceled() => {
                    request_scope.record_cancel(code);
                    None
                }
                exchange_result = &mut exchange_run => Some(exchange_result),
                never = half_close.wake_on_end(), if has_body => match never {},
            }
        };
        // The codec also cancels a request with a malformed body, which is an error of the client.
        if outcome.is_none() && poll_fn(|cx| Poll::Ready(is_malformed(exchange.body, cx))).await {
            exchange.record.record_failure(&Reason::BadRequest.into());
        }
        outcome
    };
    let Some(exchange_result) = outcome else {
        return if response.is_pending() { StreamResult::Abandoned } else { StreamResult::Done };
    };
    match exchange_result {
        Err(code) => response.reset_stream(code),
        Ok(()) if source.is_complete() => {}
        Ok(()) => tokio::select! {
            // Boxed to keep the future small for streams that are read to their end.
            () = Box::pin(drain_body(&mut source)) => {}
            never = half_close.wake_on_end() => match never {},
        },
    }
    StreamResult::Done
}

/// True if the codec has reset the stream because of a malformed body or trailer section.
#[cold]
fn is_malformed(body: &mut BodySource<'_>, cx: &mut Context<'_>) -> bool {
    loop {
        match body.poll_next(cx) {
            Poll::Ready(Ok(Some(_))) => {}
            Poll::Ready(Err(error)) => return matches!(error, ReadError::Protocol),
            Poll::Ready(Ok(None)) | Poll::Pending => return false,
        }
    }
}

/// Reads and drops the rest of a body after the response, within limits. The codec resets the stream of a body
/// that is dropped before its end (RFC 9113 §8.1), and some clients lose a response that is followed
/// immediately by a reset.
async fn drain_body(source: &mut BodySource<'_>) {
    let draining = async {
        let mut remaining_bytes = MAX_DRAIN_BYTES;
        while let Ok(Some(BodyPiece::Data(data))) = poll_fn(|cx| source.poll_next(cx)).await {
            match remaining_bytes.checked_sub(data.len()) {
                Some(bytes) => remaining_bytes = bytes,
                None => break,
            }
        }
    };
    drop(timeout(MAX_DRAIN_TIME, draining).await);
}

/// Parses the head as HTTP/1.1, by the same strict rules.
fn parse_head(
    head: &mut RequestHead,
    request_parts: &http::request::Parts,
    is_upgrade: bool,
    body: &RecvStream,
) -> Result<Bytes, Reason> {
    let bytes = head::request_to_http1(request_parts)?.freeze();
    match head.parse(&bytes) {
        Ok(ParseProgress::Complete(length)) if length == bytes.len() => {}
        Ok(_) => return Err(Reason::BadRequest),
        Err(error) => return Err(downstream_reason(&error.into())),
    }
    if is_upgrade {
        // The upgrade must still be valid after parsing: a request to upgrade to HTTP/2, or with a body, is
        // not.
        let is_valid = head.upgrade && head.body == BodyLength::Empty;
        return if is_valid { Ok(bytes) } else { Err(Reason::BadRequest) };
    }
    head.body = match (body.is_end_stream(), head.body) {
        (true, _) => BodyLength::Empty,
        (false, BodyLength::ContentLength(length)) => BodyLength::ContentLength(length),
        (false, _) => BodyLength::Chunked,
    };
    Ok(bytes)
}

fn is_grpc(fields: &http::HeaderMap) -> bool {
    let content_type = fields.get(http::header::CONTENT_TYPE);
    content_type.is_some_and(|content_type| grpc::is_grpc_content_type(content_type.as_bytes()))
}

fn server_builder(is_gateway: bool) -> Builder {
    let (max_streams, max_header_list_bytes) = match is_gateway {
        true => (MAX_GATEWAY_STREAMS, MAX_GATEWAY_HEADER_LIST_BYTES),
        false => (MAX_STREAMS, MAX_HEADER_LIST_BYTES),
    };
    let mut builder = Builder::new();
    builder
        .enable_connect_protocol()
        .max_concurrent_streams(max_streams)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(max_header_list_bytes)
        .max_send_buffer_size(MAX_SEND_BUFFER_BYTES)
        .data_frame_budget(MAX_SMALL_FRAMES * SMALL_FRAME_COST)
        .max_concurrent_reset_streams(MAX_RESET_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESET_STREAMS)
        .max_local_error_reset_streams(Some(MAX_ERROR_RESETS));
    builder
}

/// The maximum time for which a client may continue to send a body after the response.
const MAX_DRAIN_TIME: Duration = Duration::from_secs(2);
/// The maximum size of the rest of a body that is read after the response.
const MAX_DRAIN_BYTES: usize = 64 * 1024 * 1024;
/// The time limit for a client to close after GOAWAY.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of concurrent streams on one connection.
const MAX_STREAMS: u32 = 256;
/// The maximum number of concurrent streams on a connection of an external client to a gateway.
const MAX_GATEWAY_STREAMS: u32 = 100;
/// The maximum number of streams that an external client may reset on one connection within `RESETS_PERIOD`.
const MAX_RESETS: u32 = 200;
/// The maximum number of streams that a peer without a sidecar may reset on one connection within
/// `RESETS_PERIOD`: it may be a proxy that shares the connection among many clients.
const MAX_PEER_RESETS: u32 = 1000;
/// The period in which the resets of a client are counted.
const RESETS_PERIOD: Duration = Duration::from_secs(10);
/// The maximum number of reset streams that are remembered, or not yet processed (CVE-2023-44487).
const MAX_RESET_STREAMS: usize = 64;
/// The maximum number of small frames of a client that may be pending for a slow application on one connection;
/// each costs the codec about 200 bytes.
const MAX_SMALL_FRAMES: usize = 16 * 1024;
/// The maximum number of streams that this side resets for protocol errors before it closes the connection.
const MAX_ERROR_RESETS: usize = 256;
