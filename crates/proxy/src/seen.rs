//! Request trace of one request: collected by the data thread, exported by the control thread.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use leno_model::{ContextForm, Reason, Tappable};
use leno_telemetry::access_log::without_user;
use leno_telemetry::trace::{Carrier, Forms, Span};
use leno_telemetry::{Count, Outcome, RequestLabels};
use leno_traffic::PolicyDecision;
use tokio::sync::mpsc;

use crate::http::request::Request;
use crate::record::Hedge;
use crate::tapped::{Drawn, Tapping, ThreadView};
use crate::worker::Worker;

/// The data collected during a request, without heap allocations.
pub(crate) struct RequestTrace<'a> {
    view: Rc<ThreadView>,
    /// The parsed request; `None` for a byte stream or an unreadable request.
    request: Option<&'a Request<'a>>,
    /// The span of the request.
    pub(crate) span: Option<Span>,
    /// The address of the endpoint or application that was tried last.
    pub(crate) upstream: Option<SocketAddr>,
    /// The policy that allowed it, or would have allowed only others.
    pub(crate) policy: Option<PolicyDecision>,
}

/// The trace and log entry of a request that has ended.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) ended: SystemTime,
    pub(crate) labels: RequestLabels,
    pub(crate) outcome: Outcome,
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
    pub(crate) span: Option<Span>,
}

/// The end of a request.
pub(crate) struct Ended<'a> {
    pub(crate) labels: &'a RequestLabels,
    pub(crate) outcome: Outcome,
    pub(crate) retries: u32,
    pub(crate) hedge: Option<Hedge>,
    pub(crate) dry_run_reason: Option<Reason>,
    pub(crate) downstream: SocketAddr,
}

/// The bounded queues of one data thread for entries; it never waits for any of them.
#[derive(Debug, Clone)]
pub(crate) struct TraceQueues {
    /// The access log.
    pub(crate) log: mpsc::Sender<Arc<Seen>>,
    /// The span exporter.
    pub(crate) spans: mpsc::Sender<Arc<Seen>>,
    /// The tap queue.
    pub(crate) taps: mpsc::Sender<Drawn>,
}

/// The receivers of the queues.
pub(crate) struct Intakes {
    pub(crate) log: mpsc::Receiver<Arc<Seen>>,
    pub(crate) spans: mpsc::Receiver<Arc<Seen>>,
    pub(crate) taps: mpsc::Receiver<Drawn>,
}

impl TraceQueues {
    /// Creates the queues of all data threads.
    pub(crate) fn new() -> (Self, Intakes) {
        let (log, lines) = mpsc::channel(LINES_MAX);
        let (spans, exported) = mpsc::channel(SPANS_MAX);
        let (taps, tapped) = mpsc::channel(TAPPED_MAX);
        (Self { log, spans, taps }, Intakes { log: lines, spans: exported, taps: tapped })
    }
}

impl<'a> RequestTrace<'a> {
    pub(crate) fn new(view: Rc<ThreadView>) -> Self {
        Self { view, request: None, span: None, upstream: None, policy: None }
    }

    /// Records a parsed request and creates its span.
    pub(crate) fn record_request(&mut self, request: &'a Request<'a>, worker: &Worker) {
        self.request = Some(request);
        let Some(tracing) = self.view.view.tracing_settings() else { return };
        let mut carrier = Carrier::default();
        for field in &request.head.fields {
            // Fields named by `Connection` must not be read (RFC 9110 §7.6.1).
            if !field.hop_by_hop {
                carrier.record_header(
                    field.name.slice_in(&request.bytes),
                    field.value.slice_in(&request.bytes),
                );
            }
        }
        let forms = header_forms(tracing.begins);
        let samples = |draw| tracing.sampling.is_sampled(draw);
        self.span =
            Some(Span::from_carrier(&carrier, forms, &mut || worker.random_number(), samples));
    }

    /// Records an unreadable request, which begins a new trace.
    #[cold]
    pub(crate) fn record_unreadable(&mut self, worker: &Worker) {
        let Some(tracing) = self.view.view.tracing_settings() else { return };
        let samples = |draw| tracing.sampling.is_sampled(draw);
        let forms = header_forms(tracing.begins);
        self.span = Some(Span::from_carrier(
            &Carrier::default(),
            forms,
            &mut || worker.random_number(),
            samples,
        ));
    }

    /// Queues the entry for the access log, the span exporter and taps, and copies data only if one of them
    /// needs it.
    pub(crate) fn publish(&self, worker: &Worker, ended: &Ended<'_>) {
        let thread = &self.view;
        let view = &thread.view;
        let failed = ended.outcome.is_failure();
        let is_logged = view.access_log().is_some_and(|log| {
            (failed && log.errors) || log.sampling.is_sampled(worker.random_number())
        });
        let errors = view.tracing_settings().is_some_and(|tracing| tracing.errors);
        let is_traced = self.span.is_some_and(|span| span.is_sampled || (failed && errors));
        let drawn = match view.taps() {
            [] => Tapping::default(),
            _ => self.matching_taps(thread, ended),
        };
        if !is_logged && !is_traced && drawn == Tapping::default() {
            return;
        }
        let TraceQueues { log, spans, taps } = &worker.trace_queues;
        let seen = Arc::new(self.to_entry(ended));
        thread.queue_entry(drawn, &seen, taps);
        if is_logged && log.try_send(seen.clone()).is_err() {
            worker.shard.add(Count::AccessLogLinesDropped, 1);
        }
        if is_traced && spans.try_send(seen).is_err() {
            worker.shard.add(Count::SpansOverflowed, 1);
        }
    }

    /// Returns the taps that match and have not reached their rate limit.
    fn matching_taps(&self, thread: &ThreadView, ended: &Ended<'_>) -> Tapping {
        // Most requests are for another service: they need no parsing here.
        if !thread.view.taps().iter().any(|tap| tap.is_for(&ended.labels.service)) {
            return Tapping::default();
        }
        let is_inbound = ended.labels.direction == "inbound";
        let aim = self.request.and_then(|request| request.aim_of_any_scheme().ok());
        thread.select_taps(&Tappable {
            is_inbound,
            service: &ended.labels.service,
            from: if is_inbound { &ended.labels.peer } else { &thread.caller },
            path: aim.as_ref().map_or("", |aim| aim.path),
            method: self.request.map_or("", Request::method),
            status: ended.outcome.status,
        })
    }

    fn to_entry(&self, ended: &Ended<'_>) -> Seen {
        let request = self.request;
        let field = |name: &str| {
            let value = request.and_then(|it| it.head.find(&it.bytes, name).next());
            String::from_utf8_lossy(truncate_text(value.unwrap_or_default())).into_owned()
        };
        let aim = request.and_then(|request| request.aim_of_any_scheme().ok());
        let text = |text: Option<&str>| {
            String::from_utf8_lossy(truncate_text(text.unwrap_or_default().as_bytes())).into_owned()
        };
        Seen {
            ended: SystemTime::now(),
            labels: ended.labels.clone(),
            outcome: ended.outcome,
            retries: u8::try_from(ended.retries).unwrap_or(u8::MAX),
            hedge: ended.hedge,
            method: text(request.map(Request::method)),
            path: text(aim.as_ref().map(|aim| aim.path)),
            // User information is removed before the cut, which could remove the `@` after a password.
            authority: text(aim.as_ref().map(|aim| without_user(aim.authority))),
            user_agent: field("user-agent"),
            request_id: field("x-request-id"),
            forwarded_for: field("x-forwarded-for"),
            downstream: ended.downstream,
            upstream: self.upstream,
            policy: self.policy.clone(),
            dry_run_reason: ended.dry_run_reason,
            span: self.span,
        }
    }
}

impl Seen {
    /// Returns the start time.
    pub(crate) fn started_at(&self) -> SystemTime {
        self.ended.checked_sub(self.outcome.duration).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

fn header_forms(form: ContextForm) -> Forms {
    let none = Forms::default();
    match form {
        ContextForm::W3c => Forms { w3c: true, ..none },
        ContextForm::B3 => Forms { b3: true, ..none },
        ContextForm::B3Multi => Forms { b3_multi: true, ..none },
    }
}

/// Truncates text that clients choose: queue entries must stay small.
fn truncate_text(text: &[u8]) -> &[u8] {
    text.get(..leno_telemetry::access_log::TEXT_BYTES_MAX).unwrap_or(text)
}

/// Queued access log entries.
pub(crate) const LINES_MAX: usize = 4096;
/// Queued requests for taps.
pub(crate) const TAPPED_MAX: usize = 1024;
/// Queued spans for the exporter.
pub(crate) const SPANS_MAX: usize = 2048;
