//! One attempt: sends the request and receives the response, with both bodies streaming concurrently.

mod asked;
mod interim;
mod sending;
mod tunnel;
mod unprocessed;

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use leno_model::Reason;
use leno_telemetry::trace::{Span, Written};
use leno_traffic::{CompiledActions, FieldEdits, retry};
use leno_wire::http1::{
    Answers, BodyLength, Connection, Framing, Parsed, RequestEdits, ResponseHead, write_request,
};
use leno_wire::link::{OpenError, ResetCode, StreamKind};
use tokio::time::sleep;

use self::interim::Allowance;
pub(super) use self::interim::{Awaited, Http2Answer, Unanswered};
use self::sending::Sending;
use super::again::{KeepBack, KeptBack};
use super::body::{Noted, Silence, Sink, Source, forward_body};
use super::exchange::{Exchange, Named, ResponseObserver};
use super::grpc::{self, Call};
use super::message::Reader;
use super::request::{Aim, Request};
use super::respond::Responder;
use super::trailers;
use crate::error::{lost_reason, upstream_reason};
use crate::http2::client::Http2Checkout;
use crate::http2::connect;
use crate::http2::head;
use crate::http2::stream::{Asked, Outgoing, Received};
use crate::link::{Incoming, LinkHandle, LinkStream, Lost, ReceivedHead, rejection_over_http1};
use crate::record::Record;
use crate::session::Session;
use crate::tcp::http2_tunnel;
use crate::upstream::cluster::Trial;
use crate::upstream::pool::Sharing;
use crate::upstream::{Checkout, Destined, Http1Upstream, Timed};
use crate::worker::Worker;

/// The progress of an exchange, which determines if it may be retried.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// A part of the request may have reached an upstream.
    pub(crate) request_sent: bool,
    /// A part of the request's body has been consumed.
    pub(crate) body_taken: bool,
    /// The connection was reused, and may have been closing when the request was sent.
    pub(crate) on_reused: bool,
    /// Set if a response is withheld from the client because the request is retried.
    pub(crate) kept_back: Cell<Option<KeptBack>>,
    /// The connection to the upstream is reserved for this client.
    pub(crate) pins: bool,
    /// The HTTP/2 code with which the upstream reset its stream.
    pub(crate) reset: Cell<Option<ResetCode>>,
}

/// Sends the request on a connection, and its response back to the client.
pub(crate) async fn forward_request(
    exchange: &mut Exchange<'_, '_>,
    aim: &Aim<'_>,
    destined: &Destined,
    checkout: Checkout,
) -> Result<(), Reason> {
    let checkout = match checkout {
        Checkout::Http2(checkout) if exchange.request.upgrade && !checkout.takes_upgrades() => {
            drop(checkout);
            let (worker, timed) = (&exchange.session.worker, exchange.timed.as_ref());
            destined.checkout_http1(worker, timed, exchange.wait_alone()).await?
        }
        checkout => checkout,
    };
    match checkout {
        // Boxed to keep the future small for other requests.
        Checkout::Link(link) if exchange.session.found_http2 && !link.reads_http2_mark() => {
            let mut checkout = Box::pin(http2_tunnel(&link, &exchange.session.worker)).await?;
            over_http2(exchange, aim, destined, &mut checkout).await
        }
        Checkout::Link(link) => over_link(exchange, aim, &link).await,
        Checkout::Http2(mut checkout) => {
            match over_http2(exchange, aim, destined, &mut checkout).await {
                // Boxed to keep the future small for other requests.
                Err(Reason::UpstreamRefused) => {
                    Box::pin(unprocessed::send_again(exchange, aim, destined, checkout)).await
                }
                outcome => outcome,
            }
        }
        Checkout::Http1(mut connection) => {
            exchange.progress.on_reused = connection.reused;
            if connection.reused && retry::is_idempotent(aim.method) {
                exchange.hold_briefly();
            }
            let clean = over_http1(exchange, aim, &mut connection).await?;
            match exchange.progress.pins {
                true if clean => exchange.pin_connection(destined, connection),
                false if clean && !exchange.request.head.authenticates_connection => {
                    destined.give_back(connection);
                }
                true | false => {}
            }
            Ok(())
        }
    }
}

async fn over_link(
    exchange: &mut Exchange<'_, '_>,
    aim: &Aim<'_>,
    link: &LinkHandle,
) -> Result<(), Reason> {
    let limits = &exchange.session.worker.config.limits;
    let max_wait = limits.body_stall_timeout;
    let uncongested = link.wait_uncongested(limits.connect_timeout).await;
    uncongested.ok_or(Reason::ConnectTimeout)?.map_err(lost_reason)?;
    let bodiless = exchange.body.is_empty();
    let opened = {
        let context = exchange.span().map(Written::from_span);
        let added = exchange.added_headers(context.as_ref());
        let edits =
            request_edits(exchange, aim, exchange.actions.as_deref(), Framing::Outside, &added);
        let request = exchange.request;
        link.open_stream(StreamKind::Http, bodiless, |out| {
            write_request(&request.bytes, request.head, &edits, out);
        })
    };
    let stream = opened.map_err(|error| match error {
        OpenError::TooLarge => Reason::HeadTooLarge,
        _ => Reason::UpstreamRefused,
    })?;
    exchange.progress.request_sent = true;
    let sink = Sink::Link { stream: &stream, max_wait };
    let sending = Sending::at_start(exchange);
    run_directions(exchange, sink, sending, Upstreamed::Link(&stream)).await.map(|_| ())
}

/// Forwards the response to a request that was sent completely.
pub(crate) async fn forward_response(
    exchange: &mut Exchange<'_, '_>,
    stream: &LinkStream,
) -> Result<(), Reason> {
    let max_wait = exchange.session.worker.config.limits.body_stall_timeout;
    let sink = Sink::Link { stream, max_wait };
    run_directions(exchange, sink, Sending::Whole, Upstreamed::Link(stream)).await.map(|_| ())
}

async fn over_http2(
    exchange: &mut Exchange<'_, '_>,
    aim: &Aim<'_>,
    destined: &Destined,
    checkout: &mut Http2Checkout,
) -> Result<(), Reason> {
    let max_wait = exchange.session.worker.config.limits.body_stall_timeout;
    let head = asked::http2_request(exchange, aim, destined)?;
    // The server may close the connection before it processes the request (RFC 9113 §6.8).
    exchange.hold_briefly();
    let (response, stream) = checkout.open_stream(head, exchange.body.is_empty())?;
    exchange.progress.request_sent = true;
    let outgoing = Outgoing::new(stream);
    let asked = Asked::new(&outgoing);
    let sink = Sink::Http2 { stream: outgoing, max_wait };
    let sending = Sending::at_start(exchange);
    let upstream = Upstreamed::Http2(Box::new(Awaited::new(response)));
    let outcome = run_directions(exchange, sink, sending, upstream).await;
    asked.complete();
    outcome.map(|_| checkout.record_processed())
}

/// Returns true if the connection may serve another request.
async fn over_http1(
    exchange: &mut Exchange<'_, '_>,
    aim: &Aim<'_>,
    connection: &mut Http1Upstream,
) -> Result<bool, Reason> {
    let request = exchange.request;
    let framing = match request.head.body {
        BodyLength::Chunked | BodyLength::UntilClose => Framing::Chunked,
        BodyLength::Empty | BodyLength::Known(_) => Framing::Keep,
    };
    let sharing = connection.sharing(exchange.progress.pins);
    let Http1Upstream { reader, writer, .. } = connection;
    {
        let context = exchange.span().map(Written::from_span);
        let added = exchange.added_headers(context.as_ref());
        let edits = request_edits(exchange, aim, exchange.actions.as_deref(), framing, &added);
        write_request(&request.bytes, request.head, &edits, writer.output_buffer());
    }
    exchange.progress.request_sent = true;
    if exchange.body.is_empty() || request.upgrade {
        writer.flush().await.map_err(|_| Reason::UpstreamReset)?;
    }
    let sink = Sink::Http1 { writer, chunked: framing == Framing::Chunked };
    let sending = Sending::at_start(exchange);
    let upstream = Upstreamed::Http1(reader, sharing);
    run_directions(exchange, sink, sending, upstream).await
}

/// Returns the edits of the request's head: by rules on the way to endpoints, by check services and tokens at
/// the application.
pub(crate) fn request_edits<'a>(
    exchange: &'a Exchange<'_, '_>,
    aim: &'a Aim<'_>,
    rule: Option<&'a CompiledActions>,
    framing: Framing,
    add: &'a [(&'a str, &'a [u8])],
) -> RequestEdits<'a> {
    let host = rule.and_then(|rule| rule.rewritten_host()).or(exchange.session.host.as_deref());
    RequestEdits {
        target: aim.origin.as_deref().map(str::as_bytes),
        // RFC 9112 §3.2.2: the authority of an absolute target replaces `Host`.
        host: match (host, &aim.origin) {
            (Some(host), _) => Some(host.as_bytes()),
            (None, Some(_)) => Some(aim.authority.as_bytes()),
            (None, None) => None,
        },
        framing,
        add,
        lines: rule.map_or("", |rule| &rule.request.lines),
        remove: rule.map_or(&[], |rule| &rule.request.remove),
        replace: exchange.span().map_or(&[], Span::replaced_headers),
        connection: match exchange.request.upgrade {
            true => Connection::Upgrade,
            false => Connection::KeepAlive,
        },
    }
}

/// The upstream from which a response arrives.
enum Upstreamed<'a> {
    Link(&'a LinkStream),
    Http1(&'a mut Reader, Sharing),
    Http2(Box<Awaited>),
}

/// Returns the limit on pauses of the request's body. A gRPC call may pause as long as its server has nothing
/// to send.
fn silence_limit<'a>(
    session: &Session,
    record: &'a Record<'a>,
    is_call: bool,
    answered: &'a Cell<bool>,
) -> Silence<'a> {
    match is_call {
        true => Silence::OfStream(record),
        false => {
            Silence::Bounded { limit: session.worker.config.limits.body_stall_timeout, answered }
        }
    }
}

/// True for a gRPC call, which requires HTTP/2.
fn is_call(request: &Request<'_>, responder: &Responder<'_>, sink: &Sink<'_>) -> bool {
    match (responder, sink) {
        (Responder::Http2 { grpc, .. }, _) => *grpc,
        (_, Sink::Http2 { .. }) => request.is_grpc(),
        _ => false,
    }
}

/// Runs both directions concurrently. Once the response is complete, the exchange is over, even if the
/// request's body was not sent to its end. Returns true if the upstream connection is clean.
async fn run_directions(
    exchange: &mut Exchange<'_, '_>,
    mut sink: Sink<'_>,
    sending: Sending,
    upstream: Upstreamed<'_>,
) -> Result<bool, Reason> {
    let mut late = exchange.agree_within.map(|limit| Box::pin(sleep(limit)));
    let Exchange {
        session, request, body, responder, record, progress, actions, cross_origin, ..
    } = exchange;
    let (observer, keeps) = (exchange.observer.as_ref(), exchange.keeps.as_deref());
    let (held, timed, trial) = (&exchange.held, exchange.timed.as_ref(), exchange.trial.as_ref());
    let Progress { body_taken, kept_back, reset, .. } = progress;
    let (has_body, bears) = (!body.is_empty(), (record.subject.service.as_ref(), record.retries));
    let (record, rules, worker) = (&*record, actions.as_deref(), &session.worker);
    let retrying = (trial.map(Trial::upstream_cluster), &exchange.retrying);
    let keep_back =
        KeepBack::for_attempt(rules, worker, request, bears, held.as_deref(), kept_back, retrying);
    let (started, is_call) = (exchange.started, is_call(request, responder, &sink));
    let silence = silence_limit(session, record, is_call, started);
    let (upgrade, sending) = (request.upgrade, Cell::new(sending));
    let client = responder.client_connection();
    let mut send = pin!(async {
        *body_taken = has_body;
        let permitted = |section| trailers::permitted_section(session, actions.as_deref(), section);
        let noted = Noted::for_request(&record.bytes_in, &permitted);
        if sending.get() != Sending::UnderWay {
            // An upgraded connection, with an upstream that may have ended its direction already. Boxed to keep
            // the future small for other requests.
            let tunnel = tunnel::forward_client(body, &mut sink, session, &noted, &sending);
            return Box::pin(tunnel).await;
        }
        forward_body(body, &mut sink, silence, &noted).await
    });
    let mut reply = Reply {
        worker: &session.worker,
        answers: request.response_rules(),
        request,
        upgrade,
        edits: cross_origin.as_ref().or(actions.as_deref().map(|actions| &actions.response)),
        keeps,
        keep_back,
        observer,
        trial,
        timed,
        sending: &sending,
        responder,
        given: Noted::for_response(&record.bytes_out, is_call.then_some(Call(&record.grpc))),
        record,
        started,
        reset,
    };
    let mut receive = pin!(receive_response(upstream, &mut reply));
    let reusable = poll_fn(|cx| {
        if sending.get().is_under_way()
            && let Poll::Ready(sent) = send.as_mut().poll(cx)
        {
            sending.set(Sending::after_body(sent, started.get(), observer, timed)?);
        }
        let held = sending.get() == Sending::Held;
        if let Poll::Ready(received) = receive.as_mut().poll(cx) {
            return Poll::Ready(received);
        }
        if held && late.as_mut().is_some_and(|late| late.as_mut().poll(cx).is_ready()) {
            return Poll::Ready(Err(Reason::RequestTimeout));
        }
        if held && sending.get() == Sending::Tunnel {
            // The upstream has accepted the upgrade: start to forward the client's data.
            cx.waker().wake_by_ref();
        }
        let is_watched = sending.get().is_watched(upgrade);
        let gone = client.as_ref().filter(|io| is_watched && io.poll_gone(cx).is_ready());
        gone.map_or(Poll::Pending, |_| Poll::Ready(Err(Reason::DownstreamClosed)))
    })
    .await?;
    Ok(reusable && matches!(sending.get(), Sending::Whole | Sending::Held))
}

/// The response path of one exchange, and the records that it updates.
struct Reply<'a, 'io> {
    worker: &'a Worker,
    answers: Answers,
    request: &'a Request<'a>,
    /// The client requested an upgrade.
    upgrade: bool,
    /// The response header edits of the selected rule, or of CORS.
    edits: Option<&'a FieldEdits>,
    /// A response field, with session persistence.
    keeps: Option<&'a Named>,
    /// Decides if a response is withheld; `None` without a retry policy and without a buffered body.
    keep_back: Option<KeepBack<'a>>,
    /// The observer notified when the response starts.
    observer: Option<&'a ResponseObserver>,
    /// The outcome guard of an endpoint with a circuit breaker or outlier detection.
    trial: Option<&'a Trial>,
    /// The latency measurement of the endpoint.
    timed: Option<&'a Timed>,
    sending: &'a Cell<Sending>,
    responder: &'a mut Responder<'io>,
    given: Noted<'a>,
    record: &'a Record<'a>,
    started: &'a Cell<bool>,
    /// The HTTP/2 code with which the upstream resets its stream.
    reset: &'a Cell<Option<ResetCode>>,
}

/// Forwards the response. Returns true if the upstream connection is clean.
async fn receive_response(
    upstream: Upstreamed<'_>,
    reply: &mut Reply<'_, '_>,
) -> Result<bool, Reason> {
    let mut allowance = Allowance::new();
    match upstream {
        Upstreamed::Link(stream) => loop {
            let arrived = stream.next().await.map_err(|lost| reply.loss_reason(lost, stream))?;
            // The link's state machine permits no frame before a head.
            let Incoming::Head { head: bytes, interim, rejected, end } = arrived else {
                return Err(Reason::UpstreamMalformed);
            };
            let mut head = reply.worker.response_heads.lend();
            parse_head(&mut head, &bytes, reply.answers, reply.upgrade, interim)?;
            if interim {
                allowance.spend_head(&bytes)?;
                reply.send_interim(&bytes, &head).await?;
                continue;
            }
            let received = ReceivedHead { bytes, rejected };
            if let Some(reason) = received.rejection_reason(&head) {
                reply.record_rejection(reason)?;
            }
            let bytes = received.bytes;
            let source = match (end, head.tunnel) {
                (true, _) => bodiless_source(&head)?,
                (false, true) => Source::from_link(stream, BodyLength::UntilClose),
                (false, false) => Source::from_link(stream, head.body),
            };
            let finished = reply.send_final(&bytes, &head, source).await;
            if finished.is_err() && reply.is_kept_back() {
                stream.abandon();
            }
            return finished.map(|()| true);
        },
        Upstreamed::Http2(awaited) => receive_http2(awaited, reply).await,
        Upstreamed::Http1(reader, sharing) => loop {
            let mut head = reply.worker.response_heads.lend();
            let bytes = reader
                .read_response(&mut head, reply.answers)
                .await
                .map_err(|e| upstream_reason(&e))?;
            if head.is_interim() {
                allowance.spend_head(&bytes)?;
                reply.send_interim(&bytes, &head).await?;
                continue;
            }
            if head.tunnel && !reply.upgrade {
                // The request did not ask for an upgrade.
                return Err(Reason::UpstreamMalformed);
            }
            let may_serve_again = match sharing {
                Sharing::Pooled => !head.authenticates_connection(&bytes),
                Sharing::Pinned => true,
                Sharing::PinnedAtSidecar => {
                    if let Some(reason) = rejection_over_http1(&bytes, &head) {
                        reply.record_rejection(reason)?;
                    }
                    true
                }
            };
            let reusable =
                head.keep_alive && head.body != BodyLength::UntilClose && may_serve_again;
            let length = if head.tunnel { BodyLength::UntilClose } else { head.body };
            let source = Source::from_http1(reader, length);
            reply.send_final(&bytes, &head, source).await?;
            return Ok(reusable);
        },
    }
}

/// Forwards the response of an HTTP/2 server.
async fn receive_http2(
    mut awaited: Box<Awaited>,
    reply: &mut Reply<'_, '_>,
) -> Result<bool, Reason> {
    loop {
        let mut head = reply.worker.response_heads.lend();
        let asked = (reply.answers, reply.upgrade);
        let answer = awaited.next().await.map_err(|unanswered| {
            reply.reset.set(unanswered.reset);
            unanswered.reason
        })?;
        let (mut parts, body) = match answer {
            Http2Answer::Interim(bytes) => {
                parse_head(&mut head, &bytes, asked.0, asked.1, true)?;
                awaited.collect_during(reply.send_interim(&bytes, &head)).await??;
                continue;
            }
            Http2Answer::Final(parts, body) => (parts, body),
        };
        let agreed = reply.upgrade && parts.status.is_success();
        let bytes = match agreed {
            true => connect::switching_response(&mut parts, reply.request),
            false => head::response_to_http1(&parts),
        };
        parse_head(&mut head, &bytes, asked.0, asked.1, false)?;
        let source = match (body.is_end_stream(), head.body) {
            _ if head.tunnel => Source::Http2(Received::new(body)),
            // Further bytes would be taken for the next response.
            (_, BodyLength::Empty) => Source::Empty,
            (true, _) => bodiless_source(&head)?,
            (false, _) => Source::Http2(Received::new(body)),
        };
        if source.is_empty() && head.body == BodyLength::UntilClose {
            head.body = BodyLength::Known(0);
        }
        reply.send_final(&bytes, &head, source).await?;
        return Ok(true);
    }
}

/// Rejects a head that declares a body but ends the stream.
fn bodiless_source<'a>(head: &ResponseHead) -> Result<Source<'a>, Reason> {
    match head.body {
        BodyLength::Known(bytes) if bytes > 0 => Err(Reason::UpstreamMalformed),
        _ => Ok(Source::Empty),
    }
}

/// Parses a head from a link. The receiver distinguishes final and interim heads by their status, whatever the
/// frame says: after a mismatch it would take the next response for this one.
fn parse_head(
    head: &mut ResponseHead,
    bytes: &[u8],
    answers: Answers,
    upgrade: bool,
    interim: bool,
) -> Result<(), Reason> {
    match head.parse(bytes, answers) {
        Ok(Parsed::Complete(length))
            if length == bytes.len()
                && head.is_interim() == interim
                && (upgrade || !head.tunnel) =>
        {
            Ok(())
        }
        Ok(_) | Err(_) => Err(Reason::UpstreamMalformed),
    }
}

impl Reply<'_, '_> {
    async fn send_interim(&mut self, bytes: &[u8], head: &ResponseHead) -> Result<(), Reason> {
        self.responder.wait_uncongested().await.map_err(|_| Reason::DownstreamClosed)?;
        self.responder.send_interim(bytes, head).await.map_err(|_| Reason::DownstreamClosed)
    }

    /// Forwards the final head and its body.
    async fn send_final(
        &mut self,
        bytes: &[u8],
        head: &ResponseHead,
        mut source: Source<'_>,
    ) -> Result<(), Reason> {
        if let Some(timed) = self.timed {
            timed.record_response(match self.given.call {
                None => head.status,
                Some(_) => grpc::stands_for(bytes, head),
            });
        }
        let keep_back = self.keep_back.as_ref();
        if keep_back.is_some_and(|keep_back| keep_back.withhold(bytes, head, self.observer)) {
            // This reason is not reported.
            return Err(Reason::UpstreamReset);
        }
        if let Some(observer) = self.observer {
            observer.record_response(self.request, bytes, head);
        }
        self.responder.wait_uncongested().await.map_err(|_| Reason::DownstreamClosed)?;
        if self.upgrade && matches!(self.responder, Responder::Http2 { .. }) {
            connect::may_tell(self.request, bytes, head)?;
        }
        let sending = self.sending.get();
        let waits = matches!(sending, Sending::UnderWay | Sending::Unwanted);
        if waits || self.worker.is_leaving() {
            // The rest of a request body is not awaited once the response has started.
            self.responder.close_after();
        }
        if head.tunnel {
            // Boxed to keep the future small for other requests.
            return Box::pin(self.forward_upstream(bytes, head, source)).await;
        }
        self.record.head.status.set(head.status);
        self.started.set(true);
        let bodiless = source.is_empty();
        let mut sink = self
            .responder
            .start(bytes, head, self.edits, self.keeps, bodiless)
            .map_err(|_| Reason::DownstreamClosed)?;
        if bodiless && matches!(sink, Sink::Link { .. } | Sink::Http2 { .. }) {
            if let Some(call) = self.given.call {
                call.finish_response(bytes, head);
            }
            return Ok(());
        }
        let silence = match head.body {
            BodyLength::Known(_) => Silence::Limited(self.worker.config.limits.body_stall_timeout),
            // It may be an event stream, in which pauses of any length are normal.
            BodyLength::Empty | BodyLength::Chunked | BodyLength::UntilClose => {
                Silence::OfStream(self.record)
            }
        };
        let pumped = forward_body(&mut source, &mut sink, silence, &self.given).await;
        if let (Ok(()), Some(call)) = (&pumped, self.given.call) {
            call.finish_response(bytes, head);
        }
        pumped.map_err(|broken| self.failure_reason(&broken))
    }

    /// True if this response is withheld and another attempt follows.
    #[cold]
    fn is_kept_back(&self) -> bool {
        self.keep_back.as_ref().is_some_and(KeepBack::has_kept)
    }

    /// Records that the peer's sidecar rejected the request, so that the response is not the application's. An
    /// error if the workload no longer has the port: a newer configuration may contain another endpoint.
    #[cold]
    fn record_rejection(&mut self, reason: Reason) -> Result<(), Reason> {
        self.record.head.rejection.set(Some(reason));
        if let Some(trial) = self.trial {
            trial.record_rejection(reason);
        }
        let is_whole = self.request.head.body == BodyLength::Empty;
        if reason == Reason::UnknownService && is_whole { Err(reason) } else { Ok(()) }
    }

    #[cold]
    fn loss_reason(&self, lost: Lost, stream: &LinkStream) -> Reason {
        if let Lost::Http2(code) = lost {
            self.reset.set(Some(code));
        }
        let reported = (lost == Lost::Unreachable).then(|| stream.unreachable_for()).flatten();
        reported.unwrap_or_else(|| lost_reason(lost))
    }
}
