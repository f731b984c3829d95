//! Forwards one attempt of a request: sends the request on a connection and forwards the response to the
//! client, with both bodies streaming concurrently.

mod http2_request;
mod interim;
mod request_body_state;
mod response_path;
mod tunnel;
mod unprocessed;

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};

use leno_model::Reason;
use leno_telemetry::trace::{PropagatedHeaders, TraceSpan};
use leno_traffic::{CompiledActions, FieldEdits, retry};
use leno_wire::http1::{
    BodyLength, ConnectionHeader, FramingPolicy, ParseProgress, RequestEdits, RequestKind,
    ResponseHead, write_request,
};
use leno_wire::link::{OpenError, ResetCode, StreamKind};
use tokio::time::sleep;

use self::interim::InterimBudget;
pub(super) use self::interim::{Http2ResponseHead, MissingResponse, PendingResponse};
use self::request_body_state::RequestBodyState;
use super::body::{BodyRecorder, BodySink, BodySource, PauseLimit, forward_body};
use super::exchange::{Exchange, ResponseField, ResponseObserver};
use super::grpc::GrpcCall;
use super::message::MessageReader;
use super::request::{ParsedTarget, Request};
use super::respond::Responder;
use super::retry::{ResponseFilter, RetryLimits, WithheldResponse};
use super::trailers;
use crate::error::{stream_error_reason, upstream_reason};
use crate::http2::client::Http2Checkout;
use crate::http2::connect;
use crate::http2::head;
use crate::http2::stream::{OutgoingBody, ReceivedBody, RequestStream};
use crate::io::Io;
use crate::link::{LinkHandle, LinkStream, ReceivedHead, ReceivedItem, rejection_over_http1};
use crate::record::ExchangeRecord;
use crate::session::Session;
use crate::tcp::open_http2_tunnel;
use crate::upstream::cluster::OutcomeGuard;
use crate::upstream::pool::ConnectionSharing;
use crate::upstream::{AttemptTarget, Checkout, Http1Upstream, TimedAttempt};
use crate::worker::Worker;

/// The progress of the current attempt of an exchange, which determines if the request may be retried.
#[derive(Debug, Default)]
pub(crate) struct ExchangeProgress {
    /// True if a part of the request may have reached an upstream.
    pub(crate) request_sent: bool,
    /// True if a part of the request's body has been consumed.
    pub(crate) body_taken: bool,
    /// True if the connection was reused, and may have been closing when the request was sent.
    pub(crate) on_reused_connection: bool,
    /// The response that is withheld from the client because the request is retried; `None` otherwise.
    pub(crate) withheld_response: Cell<Option<WithheldResponse>>,
    /// True if the connection to the upstream is reserved for this client.
    pub(crate) is_pinned: bool,
    /// The HTTP/2 code with which the upstream reset its stream; `None` if it did not.
    pub(crate) reset_code: Cell<Option<ResetCode>>,
}

/// Sends the request on a connection, and its response back to the client.
pub(crate) async fn forward_request(
    exchange: &mut Exchange<'_, '_>,
    request_target: &ParsedTarget<'_>,
    attempt_target: &AttemptTarget,
    checkout: Checkout,
) -> Result<(), Reason> {
    let checkout = match checkout {
        Checkout::Http2(checkout)
            if exchange.request.is_upgrade && !checkout.supports_upgrades() =>
        {
            drop(checkout);
            let (worker, timed_attempt) =
                (&exchange.session.worker, exchange.timed_attempt.as_ref());
            attempt_target.acquire_http1(worker, timed_attempt, exchange.exclusive_wait()).await?
        }
        checkout => checkout,
    };
    match checkout {
        // Boxed to keep the future small for other requests.
        Checkout::Link(link) if exchange.session.detected_http2 && !link.reads_http2_mark() => {
            let mut checkout = Box::pin(open_http2_tunnel(&link, &exchange.session.worker)).await?;
            forward_over_http2(exchange, request_target, attempt_target, &mut checkout).await
        }
        Checkout::Link(link) => forward_over_link(exchange, request_target, &link).await,
        Checkout::Http2(mut checkout) => {
            match forward_over_http2(exchange, request_target, attempt_target, &mut checkout).await
            {
                // Boxed to keep the future small for other requests.
                Err(Reason::UpstreamRefused) => {
                    Box::pin(unprocessed::resend_unprocessed(
                        exchange,
                        request_target,
                        attempt_target,
                        checkout,
                    ))
                    .await
                }
                outcome => outcome,
            }
        }
        Checkout::Http1(mut connection) => {
            exchange.progress.on_reused_connection = connection.is_reused;
            if connection.is_reused && retry::is_idempotent(request_target.method) {
                exchange.buffer_until_response();
            }
            let is_clean = forward_over_http1(exchange, request_target, &mut connection).await?;
            match exchange.progress.is_pinned {
                true if is_clean => exchange.pin_connection(attempt_target, connection),
                false if is_clean && !exchange.request.head.authenticates_connection => {
                    attempt_target.return_connection(connection);
                }
                // Any other connection is closed.
                true | false => {}
            }
            Ok(())
        }
    }
}

/// Sends the request on a link, and its response back to the client.
async fn forward_over_link(
    exchange: &mut Exchange<'_, '_>,
    request_target: &ParsedTarget<'_>,
    link: &LinkHandle,
) -> Result<(), Reason> {
    let limits = &exchange.session.worker.config.limits;
    let stall_timeout = limits.body_stall_timeout;
    let wait_result = link.wait_uncongested(limits.connect_timeout).await;
    wait_result.ok_or(Reason::ConnectTimeout)?.map_err(stream_error_reason)?;
    let is_bodiless = exchange.body.is_empty();
    let open_result = {
        let trace_headers = exchange.span().map(PropagatedHeaders::from_span);
        let added_headers = exchange.added_headers(trace_headers.as_ref());
        let edits = request_edits(
            exchange,
            request_target,
            exchange.actions.as_deref(),
            FramingPolicy::OutOfBand,
            &added_headers,
        );
        let request = exchange.request;
        link.open_stream(StreamKind::Http, is_bodiless, |out| {
            write_request(&request.bytes, request.head, &edits, out);
        })
    };
    let stream = open_result.map_err(|error| match error {
        OpenError::TooLarge => Reason::HeadTooLarge,
        // Another link may still take the request, which was not sent.
        _ => Reason::UpstreamRefused,
    })?;
    exchange.progress.request_sent = true;
    let sink = BodySink::Link { stream: &stream, stall_timeout };
    let request_body_state = RequestBodyState::before_body(exchange);
    run_directions(exchange, sink, request_body_state, ResponseSource::Link(&stream))
        .await
        .map(|_| ())
}

/// Forwards the response to a request that was sent completely.
pub(crate) async fn forward_response(
    exchange: &mut Exchange<'_, '_>,
    stream: &LinkStream,
) -> Result<(), Reason> {
    let stall_timeout = exchange.session.worker.config.limits.body_stall_timeout;
    let sink = BodySink::Link { stream, stall_timeout };
    run_directions(exchange, sink, RequestBodyState::Whole, ResponseSource::Link(stream))
        .await
        .map(|_| ())
}

/// Sends the request over HTTP/2, and its response back to the client.
async fn forward_over_http2(
    exchange: &mut Exchange<'_, '_>,
    request_target: &ParsedTarget<'_>,
    attempt_target: &AttemptTarget,
    checkout: &mut Http2Checkout,
) -> Result<(), Reason> {
    let stall_timeout = exchange.session.worker.config.limits.body_stall_timeout;
    let head = http2_request::build_http2_request(exchange, request_target, attempt_target)?;
    // The server may close the connection before it processes the request (RFC 9113 §6.8).
    exchange.buffer_until_response();
    let (response, stream) = checkout.open_stream(head, exchange.body.is_empty())?;
    exchange.progress.request_sent = true;
    let outgoing = OutgoingBody::new(stream);
    let request_stream = RequestStream::new(&outgoing);
    let sink = BodySink::Http2 { stream: outgoing, stall_timeout };
    let request_body_state = RequestBodyState::before_body(exchange);
    let upstream = ResponseSource::Http2(Box::new(PendingResponse::new(response)));
    let outcome = run_directions(exchange, sink, request_body_state, upstream).await;
    request_stream.complete();
    outcome.map(|_| checkout.record_processed())
}

/// Sends the request over HTTP/1.1, and its response back to the client. Returns true if the connection may
/// serve another request.
async fn forward_over_http1(
    exchange: &mut Exchange<'_, '_>,
    request_target: &ParsedTarget<'_>,
    connection: &mut Http1Upstream,
) -> Result<bool, Reason> {
    let request = exchange.request;
    let framing = match request.head.body {
        BodyLength::Chunked | BodyLength::UntilClose => FramingPolicy::Chunked,
        BodyLength::Empty | BodyLength::ContentLength(_) => FramingPolicy::Keep,
    };
    let sharing = connection.sharing(exchange.progress.is_pinned);
    let Http1Upstream { reader, writer, .. } = connection;
    {
        let trace_headers = exchange.span().map(PropagatedHeaders::from_span);
        let added_headers = exchange.added_headers(trace_headers.as_ref());
        let edits = request_edits(
            exchange,
            request_target,
            exchange.actions.as_deref(),
            framing,
            &added_headers,
        );
        write_request(&request.bytes, request.head, &edits, writer.output_buffer());
    }
    exchange.progress.request_sent = true;
    if exchange.body.is_empty() || request.is_upgrade {
        writer.flush().await.map_err(|_| Reason::UpstreamReset)?;
    }
    let sink = BodySink::Http1 { writer, is_chunked: framing == FramingPolicy::Chunked };
    let request_body_state = RequestBodyState::before_body(exchange);
    let upstream = ResponseSource::Http1(reader, sharing);
    run_directions(exchange, sink, request_body_state, upstream).await
}

/// Returns the edits of the request's head. Rules determine them for a request to an endpoint; check services
/// and token claims determine them for a request to the application.
pub(crate) fn request_edits<'a>(
    exchange: &'a Exchange<'_, '_>,
    request_target: &'a ParsedTarget<'_>,
    actions: Option<&'a CompiledActions>,
    framing: FramingPolicy,
    added_headers: &'a [(&'a str, &'a [u8])],
) -> RequestEdits<'a> {
    let host =
        actions.and_then(|actions| actions.rewritten_host()).or(exchange.session.host.as_deref());
    RequestEdits {
        target: request_target.origin_form.as_deref().map(str::as_bytes),
        // RFC 9112 §3.2.2: the authority of an absolute target replaces `Host`.
        host: match (host, &request_target.origin_form) {
            (Some(host), _) => Some(host.as_bytes()),
            (None, Some(_)) => Some(request_target.authority.as_bytes()),
            (None, None) => None,
        },
        framing,
        add: added_headers,
        lines: actions.map_or("", |actions| &actions.request.lines),
        remove: actions.map_or(&[], |actions| &actions.request.remove),
        replace: exchange.span().map_or(&[], TraceSpan::replaced_headers),
        connection: match exchange.request.is_upgrade {
            true => ConnectionHeader::Upgrade,
            false => ConnectionHeader::KeepAlive,
        },
    }
}

/// The upstream from which a response arrives.
enum ResponseSource<'a> {
    Link(&'a LinkStream),
    Http1(&'a mut MessageReader, ConnectionSharing),
    Http2(Box<PendingResponse>),
}

/// Returns the limit on pauses of the request's body. A gRPC call may pause as long as its server has nothing
/// to send.
fn request_pause_limit<'a>(
    session: &Session,
    record: &'a ExchangeRecord<'a>,
    is_grpc_call: bool,
    response_started: &'a Cell<bool>,
) -> PauseLimit<'a> {
    match is_grpc_call {
        true => PauseLimit::CountedStream(record),
        false => PauseLimit::BeforeResponse {
            limit: session.worker.config.limits.body_stall_timeout,
            response_started,
        },
    }
}

/// True for a gRPC call, which requires HTTP/2.
fn is_grpc_call(request: &Request<'_>, responder: &Responder<'_>, sink: &BodySink<'_>) -> bool {
    match (responder, sink) {
        (Responder::Http2 { grpc, .. }, _) => *grpc,
        (_, BodySink::Http2 { .. }) => request.is_grpc(),
        _ => false,
    }
}

/// Resolves to an error once the client has closed its connection; never resolves otherwise.
fn poll_client_gone<T>(io: Option<&Io>, cx: &mut Context<'_>) -> Poll<Result<T, Reason>> {
    let gone = io.filter(|io| io.poll_gone(cx).is_ready());
    gone.map_or(Poll::Pending, |_| Poll::Ready(Err(Reason::DownstreamClosed)))
}

/// Forwards the request's body and the response concurrently. Once the response is complete, the exchange is
/// over, even if the request's body was not sent to its end. Returns true if the upstream connection may
/// serve another request.
async fn run_directions(
    exchange: &mut Exchange<'_, '_>,
    mut sink: BodySink<'_>,
    initial_state: RequestBodyState,
    upstream: ResponseSource<'_>,
) -> Result<bool, Reason> {
    let mut timer = exchange.upgrade_timeout.map(|limit| Box::pin(sleep(limit)));
    let Exchange { request, body, responder, record, progress, actions, cors_edits, .. } = exchange;
    let (observer, retry_buffer) = (exchange.observer.as_ref(), exchange.retry_buffer.as_deref());
    let (timed_attempt, outcome_guard) =
        (exchange.timed_attempt.as_ref(), exchange.outcome_guard.as_ref());
    let ExchangeProgress { body_taken, withheld_response: withheld, reset_code, .. } = progress;
    let (session, record, rules) = (exchange.session, &*record, actions.as_deref());
    let worker = &session.worker;
    let retry_limits = RetryLimits::new(record, outcome_guard, &exchange.retry_slot);
    let response_filter =
        ResponseFilter::for_attempt(rules, worker, request, retry_buffer, withheld, retry_limits);
    let (started, is_grpc_call) =
        (exchange.response_started, is_grpc_call(request, responder, &sink));
    let (body_state, client_io) = (Cell::new(initial_state), responder.client_connection());
    // The client's direction: the body of the request, or the data after an upgrade.
    let mut send_body = pin!(async {
        *body_taken = !body.is_empty();
        let filter = |section| trailers::permitted_section(session, actions.as_deref(), section);
        let recorder = BodyRecorder::for_request(&record.bytes_in, &filter);
        if body_state.get() != RequestBodyState::InProgress {
            // An upgraded connection, whose upstream may already have closed its sending direction. Boxed to
            // keep the future small for other requests.
            let tunnel = tunnel::forward_client(body, &mut sink, session, &recorder, &body_state);
            return Box::pin(tunnel).await;
        }
        let pause_limit = request_pause_limit(session, record, is_grpc_call, started);
        forward_body(body, &mut sink, pause_limit, &recorder).await
    });
    let grpc_call = is_grpc_call.then_some(GrpcCall(&record.grpc));
    // The upstream's direction.
    let mut response_path = ResponsePath {
        worker,
        request_kind: request.request_kind(),
        request,
        is_upgrade: request.is_upgrade,
        edits: cors_edits.as_ref().or(actions.as_deref().map(|actions| &actions.response)),
        affinity_field: exchange.affinity_field.as_deref(),
        response_filter,
        observer,
        outcome_guard,
        timed_attempt,
        request_body_state: &body_state,
        responder,
        recorder: BodyRecorder::unfiltered(&record.bytes_out, grpc_call),
        record,
        response_started: started,
        reset_code,
    };
    let mut response_future = pin!(receive_response(upstream, &mut response_path));
    let is_reusable = poll_fn(|cx| {
        if body_state.get().is_in_progress()
            && let Poll::Ready(sent) = send_body.as_mut().poll(cx)
        {
            let next = RequestBodyState::after_body(sent, started.get(), observer, timed_attempt);
            body_state.set(next?);
        }
        // Read before the response is polled, which may accept the upgrade.
        let is_paused = body_state.get() == RequestBodyState::Paused;
        if let Poll::Ready(outcome) = response_future.as_mut().poll(cx) {
            return Poll::Ready(outcome);
        }
        if is_paused && timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready()) {
            return Poll::Ready(Err(Reason::RequestTimeout));
        }
        if is_paused && body_state.get() == RequestBodyState::Tunnel {
            // The upstream has accepted the upgrade: start to forward the client's data.
            cx.waker().wake_by_ref();
        }
        let is_canceled = body_state.get().is_canceled_by_disconnect(request.is_upgrade);
        poll_client_gone(client_io.as_ref().filter(|_| is_canceled), cx)
    })
    .await?;
    Ok(is_reusable
        && matches!(body_state.get(), RequestBodyState::Whole | RequestBodyState::Paused))
}

/// The response path of one exchange, and the records that it updates.
struct ResponsePath<'a, 'io> {
    worker: &'a Worker,
    /// The properties of the request that delimit the body of its response, determined once.
    request_kind: RequestKind,
    request: &'a Request<'a>,
    /// True if the client requested an upgrade.
    is_upgrade: bool,
    /// The response header edits of the selected rule, or of CORS.
    edits: Option<&'a FieldEdits>,
    /// The response field that identifies the endpoint; `None` without session persistence.
    affinity_field: Option<&'a ResponseField>,
    /// Decides if a response is withheld; `None` without a retry policy and without a buffered body.
    response_filter: Option<ResponseFilter<'a>>,
    /// The observer notified when the response starts.
    observer: Option<&'a ResponseObserver>,
    /// The outcome guard of an endpoint with a circuit breaker or outlier detection.
    outcome_guard: Option<&'a OutcomeGuard>,
    /// The latency measurement of the endpoint.
    timed_attempt: Option<&'a TimedAttempt>,
    request_body_state: &'a Cell<RequestBodyState>,
    responder: &'a mut Responder<'io>,
    recorder: BodyRecorder<'a>,
    record: &'a ExchangeRecord<'a>,
    response_started: &'a Cell<bool>,
    /// The HTTP/2 code with which the upstream resets its stream; `None` if it does not.
    reset_code: &'a Cell<Option<ResetCode>>,
}

/// Forwards the response. Returns true if the upstream connection may serve another request.
async fn receive_response(
    upstream: ResponseSource<'_>,
    response_path: &mut ResponsePath<'_, '_>,
) -> Result<bool, Reason> {
    let mut interim_budget = InterimBudget::new();
    let (request_kind, is_upgrade) = (response_path.request_kind, response_path.is_upgrade);
    match upstream {
        ResponseSource::Link(stream) => loop {
            let stream_result = stream.next().await;
            let received_item =
                stream_result.map_err(|error| response_path.stream_error_reason(error, stream))?;
            // The link's state machine permits no frame before a head.
            let ReceivedItem::Head { head: bytes, interim, rejected, end } = received_item else {
                return Err(Reason::UpstreamMalformed);
            };
            let mut head = response_path.worker.response_heads.take_object();
            parse_head(&mut head, &bytes, request_kind, is_upgrade, interim)?;
            if interim {
                interim_budget.spend_head(&bytes)?;
                response_path.send_interim(&bytes, &head).await?;
                continue;
            }
            let received_head = ReceivedHead { bytes, rejected };
            if let Some(reason) = received_head.rejection_reason(&head) {
                response_path.record_rejection(reason)?;
            }
            let bytes = received_head.bytes;
            let source = match (end, head.tunnel) {
                (true, _) => bodiless_source(&head)?,
                (false, true) => BodySource::from_link(stream, BodyLength::UntilClose),
                (false, false) => BodySource::from_link(stream, head.body),
            };
            let outcome = response_path.send_final(&bytes, &head, source).await;
            if outcome.is_err() && response_path.is_withheld() {
                stream.abandon();
            }
            return outcome.map(|()| true);
        },
        ResponseSource::Http2(pending_response) => {
            receive_http2(pending_response, response_path).await
        }
        ResponseSource::Http1(reader, sharing) => loop {
            let mut head = response_path.worker.response_heads.take_object();
            let bytes = reader
                .read_response(&mut head, request_kind)
                .await
                .map_err(|error| upstream_reason(&error))?;
            if head.is_interim() {
                interim_budget.spend_head(&bytes)?;
                response_path.send_interim(&bytes, &head).await?;
                continue;
            }
            if head.tunnel && !is_upgrade {
                // The request did not include an upgrade.
                return Err(Reason::UpstreamMalformed);
            }
            let may_serve_again = match sharing {
                ConnectionSharing::Pooled => !head.authenticates_connection(&bytes),
                ConnectionSharing::Pinned => true,
                ConnectionSharing::PinnedAtSidecar => {
                    if let Some(reason) = rejection_over_http1(&bytes, &head) {
                        response_path.record_rejection(reason)?;
                    }
                    true
                }
            };
            let is_reusable =
                head.keep_alive && head.body != BodyLength::UntilClose && may_serve_again;
            let body_length = if head.tunnel { BodyLength::UntilClose } else { head.body };
            let source = BodySource::from_http1(reader, body_length);
            response_path.send_final(&bytes, &head, source).await?;
            return Ok(is_reusable);
        },
    }
}

/// Forwards the response of an HTTP/2 server.
async fn receive_http2(
    mut pending_response: Box<PendingResponse>,
    response_path: &mut ResponsePath<'_, '_>,
) -> Result<bool, Reason> {
    loop {
        let mut head = response_path.worker.response_heads.take_object();
        let (request_kind, is_upgrade) = (response_path.request_kind, response_path.is_upgrade);
        let received_head = pending_response.next_head().await.map_err(|missing_response| {
            response_path.reset_code.set(missing_response.reset_code);
            missing_response.reason
        })?;
        let (mut response_parts, body) = match received_head {
            Http2ResponseHead::Interim(bytes) => {
                parse_head(&mut head, &bytes, request_kind, is_upgrade, true)?;
                pending_response
                    .run_and_collect(response_path.send_interim(&bytes, &head))
                    .await??;
                continue;
            }
            Http2ResponseHead::Final(response_parts, body) => (response_parts, body),
        };
        let is_accepted = is_upgrade && response_parts.status.is_success();
        let bytes = match is_accepted {
            true => connect::build_switching_response(&mut response_parts, response_path.request),
            false => head::response_to_http1(&response_parts),
        };
        parse_head(&mut head, &bytes, request_kind, is_upgrade, false)?;
        let source = match (body.is_end_stream(), head.body) {
            _ if head.tunnel => BodySource::Http2(ReceivedBody::new(body)),
            // Further bytes would be mistaken for the next response.
            (_, BodyLength::Empty) => BodySource::Empty,
            (true, _) => bodiless_source(&head)?,
            (false, _) => BodySource::Http2(ReceivedBody::new(body)),
        };
        // The length is known to be 0, so the client's connection need not end with the body.
        if source.is_empty() && head.body == BodyLength::UntilClose {
            head.body = BodyLength::ContentLength(0);
        }
        response_path.send_final(&bytes, &head, source).await?;
        return Ok(true);
    }
}

/// Returns the empty body of a response that ends with its head. Rejects a head that declares a body.
fn bodiless_source<'a>(head: &ResponseHead) -> Result<BodySource<'a>, Reason> {
    match head.body {
        BodyLength::ContentLength(bytes) if bytes > 0 => Err(Reason::UpstreamMalformed),
        _ => Ok(BodySource::Empty),
    }
}

/// Parses a response head from a link or from HTTP/2. The client distinguishes final and interim heads by their
/// status, so a status that contradicts `interim` is rejected: otherwise the client would mistake the next
/// response for this one.
fn parse_head(
    head: &mut ResponseHead,
    bytes: &[u8],
    request_kind: RequestKind,
    is_upgrade: bool,
    interim: bool,
) -> Result<(), Reason> {
    match head.parse(bytes, request_kind) {
        Ok(ParseProgress::Complete(length))
            if length == bytes.len()
                && head.is_interim() == interim
                && (is_upgrade || !head.tunnel) =>
        {
            Ok(())
        }
        Ok(_) | Err(_) => Err(Reason::UpstreamMalformed),
    }
}
