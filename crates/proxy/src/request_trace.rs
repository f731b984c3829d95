//! Request trace of one request: collected by the data thread, exported by the control thread.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use leno_model::{PropagationFormat, Reason, TappedRequest};
use leno_telemetry::access_log::without_user;
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
    /// The span of the request.
    pub(crate) span: Option<TraceSpan>,
    /// The address of the endpoint or application that was tried last.
    pub(crate) upstream: Option<SocketAddr>,
    /// The policy that allowed it, or would have allowed only others.
    pub(crate) policy: Option<PolicyDecision>,
}

/// The trace and log entry of a request that has ended.
#[derive(Debug)]
pub(crate) struct TraceEntry {
    pub(crate) ended: SystemTime,
    pub(crate) labels: RequestLabels,
    pub(crate) outcome: RequestRecord,
    pub(crate) retries: u8,
    pub(crate) hedge: Option<Hedge>,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) authority: String,
    pub(crate) user_agent: String,
    pub(crate) request_id: String,
    pub(crate) forwarded_for: String,
    pub(crate) downstream: SocketAddr,
    pub(crate) upstream: Option<SocketAddr>,
    pub(crate) policy: Option<PolicyDecision>,
    /// The reason for which it would have been denied.
    pub(crate) dry_run_reason: Option<Reason>,
    pub(crate) span: Option<TraceSpan>,
}

/// The end of a request.
pub(crate) struct RequestEnd<'a> {
    pub(crate) labels: &'a RequestLabels,
    pub(crate) outcome: RequestRecord,
    pub(crate) retries: u32,
    pub(crate) hedge: Option<Hedge>,
    pub(crate) dry_run_reason: Option<Reason>,
    pub(crate) downstream: SocketAddr,
}

/// The bounded queues of one data thread for entries; it never waits for any of them.
#[derive(Debug, Clone)]
pub(crate) struct TraceQueues {
    /// The access log.
    pub(crate) log: mpsc::Sender<Arc<TraceEntry>>,
    /// The span exporter.
    pub(crate) spans: mpsc::Sender<Arc<TraceEntry>>,
    /// The tap queue.
    pub(crate) taps: mpsc::Sender<MatchedRequest>,
}

/// The receivers of the queues.
pub(crate) struct TraceReceivers {
    pub(crate) log: mpsc::Receiver<Arc<TraceEntry>>,
    pub(crate) spans: mpsc::Receiver<Arc<TraceEntry>>,
    pub(crate) taps: mpsc::Receiver<MatchedRequest>,
}

impl TraceQueues {
    /// Creates the queues of all data threads.
    pub(crate) fn new() -> (Self, TraceReceivers) {
        let (log, log_receiver) = mpsc::channel(MAX_LINES);
        let (spans, spans_receiver) = mpsc::channel(MAX_SPANS);
        let (taps, taps_receiver) = mpsc::channel(MAX_TAPPED);
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

    /// Queues the entry for the access log, the span exporter and taps, and copies data only if one of them
    /// needs it.
    pub(crate) fn publish(&self, worker: &Worker, ended: &RequestEnd<'_>) {
        let thread = &self.observability;
        let config = &thread.settings;
        let is_failure = ended.outcome.is_failure();
        let is_logged = config.access_log().is_some_and(|log| {
            (is_failure && log.errors) || log.sampling.is_sampled(worker.random_number())
        });
        let traces_errors = config.tracing_settings().is_some_and(|tracing| tracing.errors);
        let is_traced =
            self.span.is_some_and(|span| span.is_sampled || (is_failure && traces_errors));
        let matching = match config.taps() {
            [] => TapSet::default(),
            _ => self.matching_taps(thread, ended),
        };
        if !is_logged && !is_traced && matching == TapSet::default() {
            return;
        }
        let TraceQueues { log, spans, taps } = &worker.trace_queues;
        let trace_entry = Arc::new(self.to_entry(ended));
        thread.queue_entry(matching, &trace_entry, taps);
        if is_logged && log.try_send(trace_entry.clone()).is_err() {
            worker.shard.add(Count::AccessLogLinesDropped, 1);
        }
        if is_traced && spans.try_send(trace_entry).is_err() {
            worker.shard.add(Count::SpansOverflowed, 1);
        }
    }

    /// Returns the taps that match and have not reached their rate limit.
    fn matching_taps(&self, thread: &ThreadObservability, ended: &RequestEnd<'_>) -> TapSet {
        // Most requests are for another service: they need no parsing here.
        if !thread.settings.taps().iter().any(|tap| tap.is_for(&ended.labels.service)) {
            return TapSet::default();
        }
        let is_inbound = ended.labels.direction == "inbound";
        let request_target =
            self.request.and_then(|request| request.parse_target_any_scheme().ok());
        thread.select_taps(&TappedRequest {
            is_inbound,
            service: &ended.labels.service,
            from: if is_inbound { &ended.labels.peer } else { &thread.caller },
            path: request_target.as_ref().map_or("", |request_target| request_target.path),
            method: self.request.map_or("", Request::method),
            status: ended.outcome.status,
        })
    }

    fn to_entry(&self, ended: &RequestEnd<'_>) -> TraceEntry {
        let request = self.request;
        let header = |name: &str| {
            let value = request.and_then(|request| request.head.find(&request.bytes, name).next());
            String::from_utf8_lossy(truncate_text(value.unwrap_or_default())).into_owned()
        };
        let request_target = request.and_then(|request| request.parse_target_any_scheme().ok());
        let text = |text: Option<&str>| {
            String::from_utf8_lossy(truncate_text(text.unwrap_or_default().as_bytes())).into_owned()
        };
        TraceEntry {
            ended: SystemTime::now(),
            labels: ended.labels.clone(),
            outcome: ended.outcome,
            retries: u8::try_from(ended.retries).unwrap_or(u8::MAX),
            hedge: ended.hedge,
            method: text(request.map(Request::method)),
            path: text(request_target.as_ref().map(|request_target| request_target.path)),
            // User information is removed before the cut, which could remove the `@` after a password.
            authority: text(
                request_target
                    .as_ref()
                    .map(|request_target| without_user(request_target.authority)),
            ),
            user_agent: header("user-agent"),
            request_id: header("x-request-id"),
            forwarded_for: header("x-forwarded-for"),
            downstream: ended.downstream,
            upstream: self.upstream,
            policy: self.policy.clone(),
            dry_run_reason: ended.dry_run_reason,
            span: self.span,
        }
    }
}

impl TraceEntry {
    /// Returns the start time.
    pub(crate) fn started_at(&self) -> SystemTime {
        self.ended.checked_sub(self.outcome.duration).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

fn propagation_formats(format: PropagationFormat) -> PropagationFormats {
    let none = PropagationFormats::default();
    match format {
        PropagationFormat::W3c => PropagationFormats { w3c: true, ..none },
        PropagationFormat::B3 => PropagationFormats { b3: true, ..none },
        PropagationFormat::B3Multi => PropagationFormats { b3_multi: true, ..none },
    }
}

/// Truncates text that clients choose: queue entries must stay small.
fn truncate_text(text: &[u8]) -> &[u8] {
    text.get(..leno_telemetry::access_log::MAX_TEXT_BYTES).unwrap_or(text)
}

/// The maximum number of queued access log entries.
pub(crate) const MAX_LINES: usize = 4096;
/// The maximum number of queued requests for taps.
pub(crate) const MAX_TAPPED: usize = 1024;
/// The maximum number of queued spans for the exporter.
pub(crate) const MAX_SPANS: usize = 2048;
