//! Collects the data of one request for the access log, tracing and taps on its data thread, and queues it for the
//! control thread, which exports it.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use leno_model::{PropagationFormat, Reason, TappedRequest};
use leno_telemetry::access_log::strip_user_info;
use leno_telemetry::trace::{PropagationFormats, TraceHeaders, TraceSpan};
use leno_telemetry::{Count, RequestLabels, RequestRecord};
use leno_traffic::PolicyDecision;
use tokio::sync::mpsc;

use crate::http::request::Request;
use crate::live_requests::{MatchedRequest, TapSet, ThreadObservability};
use crate::record::Hedge;
use crate::worker::Worker;

/// The data collected during a request, without heap allocations.
pub(crate) struct RequestTrace<'a> {
    observability: Rc<ThreadObservability>,
    /// The parsed request; `None` for a byte stream or an unreadable request.
    request: Option<&'a Request<'a>>,
    /// The span of the request; `None` if tracing is off.
    pub(crate) span: Option<TraceSpan>,
    /// The address of the endpoint or application that was tried last; `None` if none was tried.
    pub(crate) upstream: Option<SocketAddr>,
    /// The policy that allowed or denied the request. In dry-run mode, it may be a policy that allows only
    /// other clients.
    pub(crate) policy: Option<PolicyDecision>,
}

/// The trace and log entry of a request that has ended.
#[derive(Debug)]
pub(crate) struct TraceEntry {
    /// The time at which the request ended.
    pub(crate) ended_at: SystemTime,
    pub(crate) labels: RequestLabels,
    pub(crate) outcome: RequestRecord,
    pub(crate) retries: u8,
    /// The result of a hedge; `None` if no second attempt was sent.
    pub(crate) hedge: Option<Hedge>,
    /// Empty for a byte stream or an unreadable request, like the following texts of the request head.
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) authority: String,
    pub(crate) user_agent: String,
    pub(crate) request_id: String,
    pub(crate) forwarded_for: String,
    /// The address of the client.
    pub(crate) downstream: SocketAddr,
    /// As in [`RequestTrace`], like `policy` and `span`.
    pub(crate) upstream: Option<SocketAddr>,
    pub(crate) policy: Option<PolicyDecision>,
    /// The reason for which the request would have been denied if policies were enforced.
    pub(crate) dry_run_reason: Option<Reason>,
    pub(crate) span: Option<TraceSpan>,
}

/// The result of a request that has ended, and its labels.
pub(crate) struct RequestEnd<'a> {
    pub(crate) labels: &'a RequestLabels,
    pub(crate) outcome: RequestRecord,
    pub(crate) retries: u32,
    /// The result of a hedge; `None` if no second attempt was sent.
    pub(crate) hedge: Option<Hedge>,
    /// The reason for which the request would have been denied if policies were enforced.
    pub(crate) dry_run_reason: Option<Reason>,
    /// The address of the client.
    pub(crate) downstream: SocketAddr,
}

/// The senders of the bounded queues for request traces. Data threads never wait for room: if a queue is full,
/// the new entry is dropped and counted.
#[derive(Debug, Clone)]
pub(crate) struct TraceQueues {
    /// The queue of the access log.
    pub(crate) log: mpsc::Sender<Arc<TraceEntry>>,
    /// The queue of the span exporter.
    pub(crate) spans: mpsc::Sender<Arc<TraceEntry>>,
    /// The queue of requests that match a tap.
    pub(crate) taps: mpsc::Sender<MatchedRequest>,
}

/// The receivers of the queues, for the control thread.
pub(crate) struct TraceReceivers {
    pub(crate) log: mpsc::Receiver<Arc<TraceEntry>>,
    pub(crate) spans: mpsc::Receiver<Arc<TraceEntry>>,
    pub(crate) taps: mpsc::Receiver<MatchedRequest>,
}

impl TraceQueues {
    /// Creates the queues of all data threads.
    pub(crate) fn new() -> (Self, TraceReceivers) {
        let (log, log_receiver) = mpsc::channel(MAX_QUEUED_LOG_LINES);
        let (spans, spans_receiver) = mpsc::channel(MAX_QUEUED_SPANS);
        let (taps, taps_receiver) = mpsc::channel(MAX_QUEUED_TAPPED_REQUESTS);
        (
            Self { log, spans, taps },
            TraceReceivers { log: log_receiver, spans: spans_receiver, taps: taps_receiver },
        )
    }
}

impl<'a> RequestTrace<'a> {
    pub(crate) fn new(observability: Rc<ThreadObservability>) -> Self {
        Self { observability, request: None, span: None, upstream: None, policy: None }
    }

    /// Records a parsed request and creates its span.
    pub(crate) fn record_request(&mut self, request: &'a Request<'a>, worker: &Worker) {
        self.request = Some(request);
        let Some(tracing) = self.observability.settings.tracing_settings() else { return };
        let mut headers = TraceHeaders::default();
        for field in &request.head.fields {
            // Fields named by `Connection` must not be read (RFC 9110 §7.6.1).
            if !field.hop_by_hop {
                headers.record_header(
                    field.name.slice_in(&request.bytes),
                    field.value.slice_in(&request.bytes),
                );
            }
        }
        let formats = propagation_formats(tracing.propagation);
        let is_sampled = |random| tracing.sampling.is_sampled(random);
        self.span = Some(TraceSpan::from_headers(
            &headers,
            formats,
            &mut || worker.random_number(),
            is_sampled,
        ));
    }

    /// Records an unreadable request, which begins a new trace.
    #[cold]
    pub(crate) fn record_unreadable(&mut self, worker: &Worker) {
        let Some(tracing) = self.observability.settings.tracing_settings() else { return };
        let is_sampled = |random| tracing.sampling.is_sampled(random);
        let formats = propagation_formats(tracing.propagation);
        self.span = Some(TraceSpan::from_headers(
            &TraceHeaders::default(),
            formats,
            &mut || worker.random_number(),
            is_sampled,
        ));
    }

    /// Queues the entry for the access log, the span exporter and taps. Creates the entry only if one of them
    /// needs it.
    pub(crate) fn publish(&self, worker: &Worker, request_end: &RequestEnd<'_>) {
        let observability = &self.observability;
        let settings = &observability.settings;
        let is_failure = request_end.outcome.is_failure();
        let is_logged = settings.access_log().is_some_and(|log| {
            (is_failure && log.errors) || log.sampling.is_sampled(worker.random_number())
        });
        let traces_errors = settings.tracing_settings().is_some_and(|tracing| tracing.errors);
        let is_traced =
            self.span.is_some_and(|span| span.is_sampled || (is_failure && traces_errors));
        let matching_taps = match settings.taps() {
            [] => TapSet::default(),
            _ => self.matching_taps(observability, request_end),
        };
        if !is_logged && !is_traced && matching_taps == TapSet::default() {
            return;
        }
        let TraceQueues { log: log_queue, spans: span_queue, taps: tap_queue } =
            &worker.trace_queues;
        let trace_entry = Arc::new(self.to_entry(request_end));
        observability.queue_request(matching_taps, &trace_entry, tap_queue);
        if is_logged && log_queue.try_send(trace_entry.clone()).is_err() {
            worker.metrics.add(Count::AccessLogLinesDropped, 1);
        }
        if is_traced && span_queue.try_send(trace_entry).is_err() {
            worker.metrics.add(Count::SpansOverflowed, 1);
        }
    }

    /// Returns the taps that match the request and have not reached their rate limit.
    fn matching_taps(
        &self,
        observability: &ThreadObservability,
        request_end: &RequestEnd<'_>,
    ) -> TapSet {
        // Most requests are for another service: they need no parsing here.
        if !observability.settings.taps().iter().any(|tap| tap.is_for(&request_end.labels.service))
        {
            return TapSet::default();
        }
        let is_inbound = request_end.labels.direction == "inbound";
        let request_target =
            self.request.and_then(|request| request.parse_target_any_scheme().ok());
        observability.select_taps(&TappedRequest {
            is_inbound,
            service: &request_end.labels.service,
            from: if is_inbound { &request_end.labels.peer } else { &observability.caller },
            path: request_target.as_ref().map_or("", |request_target| request_target.path),
            method: self.request.map_or("", Request::method),
            status: request_end.outcome.status,
        })
    }

    /// Copies the collected data into an entry.
    fn to_entry(&self, request_end: &RequestEnd<'_>) -> TraceEntry {
        let request = self.request;
        let header_text = |name: &str| {
            let value = request.and_then(|request| request.head.find(&request.bytes, name).next());
            String::from_utf8_lossy(truncate_text(value.unwrap_or_default())).into_owned()
        };
        let request_target = request.and_then(|request| request.parse_target_any_scheme().ok());
        let truncate = |text: Option<&str>| {
            String::from_utf8_lossy(truncate_text(text.unwrap_or_default().as_bytes())).into_owned()
        };
        TraceEntry {
            ended_at: SystemTime::now(),
            labels: request_end.labels.clone(),
            outcome: request_end.outcome,
            retries: u8::try_from(request_end.retries).unwrap_or(u8::MAX),
            hedge: request_end.hedge,
            method: truncate(request.map(Request::method)),
            path: truncate(request_target.as_ref().map(|request_target| request_target.path)),
            // Removed before the text is truncated: truncation could remove the `@` that marks the end of a password.
            authority: truncate(
                request_target
                    .as_ref()
                    .map(|request_target| strip_user_info(request_target.authority)),
            ),
            user_agent: header_text("user-agent"),
            request_id: header_text("x-request-id"),
            forwarded_for: header_text("x-forwarded-for"),
            downstream: request_end.downstream,
            upstream: self.upstream,
            policy: self.policy.clone(),
            dry_run_reason: request_end.dry_run_reason,
            span: self.span,
        }
    }
}

impl TraceEntry {
    /// Returns the start time of the request.
    pub(crate) fn started_at(&self) -> SystemTime {
        self.ended_at.checked_sub(self.outcome.duration).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

/// Converts the configured format.
fn propagation_formats(format: PropagationFormat) -> PropagationFormats {
    let no_formats = PropagationFormats::default();
    match format {
        PropagationFormat::W3c => PropagationFormats { w3c: true, ..no_formats },
        PropagationFormat::B3 => PropagationFormats { b3: true, ..no_formats },
        PropagationFormat::B3Multi => PropagationFormats { b3_multi: true, ..no_formats },
    }
}

/// Truncates a text that clients choose, so that queue entries stay small.
fn truncate_text(text: &[u8]) -> &[u8] {
    text.get(..leno_telemetry::access_log::MAX_TEXT_BYTES).unwrap_or(text)
}

/// The maximum number of queued access log entries; further entries are dropped.
pub(crate) const MAX_QUEUED_LOG_LINES: usize = 4096;
/// The maximum number of queued requests for taps; further requests are dropped.
pub(crate) const MAX_QUEUED_TAPPED_REQUESTS: usize = 1024;
/// The maximum number of queued spans for the exporter; further spans are dropped.
pub(crate) const MAX_QUEUED_SPANS: usize = 2048;
