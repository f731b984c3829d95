//! The record of one exchange: a request, or a byte stream. It is filled during processing, and counted, logged
//! and traced once on drop.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime};

use leno_model::{Reason, RouteName, ServiceName};
use leno_telemetry::{GrpcStatus, RequestLabels, RequestRecord, SeriesId};
use leno_traffic::{InboundAccess, RequestPermit};

use crate::error::Failure;
use crate::request_trace::{RequestEnd, RequestTrace};
use crate::rule_matches;
use crate::session::{ListenerKind, Session};
use crate::worker::ExchangeGuard;

/// The record of one exchange. Dropping the record counts the exchange, even if the client has vanished.
pub(crate) struct ExchangeRecord<'a> {
    session: &'a Session,
    _exchange_guard: ExchangeGuard,
    pub(crate) started: Instant,
    /// The subject of the exchange in metrics.
    pub(crate) subject: MetricsSubject,
    /// The final head of the response.
    pub(crate) head: FinalHead,
    /// The reason of a failure; `None` after success. Initially `downstream-closed`, for exchanges that are
    /// dropped.
    pub(crate) reason: Option<Reason>,
    /// The gRPC status of the response; `None` if the exchange is no gRPC call.
    pub(crate) grpc: Cell<Option<GrpcStatus>>,
    /// The size of the request's body, in bytes.
    pub(crate) bytes_in: Cell<u64>,
    /// The size of the response's body, in bytes.
    pub(crate) bytes_out: Cell<u64>,
    /// The number of retries, including a second attempt of a hedge.
    pub(crate) retries: u32,
    /// The result of a hedge; `None` if no second attempt was sent.
    pub(crate) hedge: Option<Hedge>,
    /// The reason for which the exchange would have been denied if policies were enforced.
    dry_run_reason: Option<Reason>,
    /// True if the exchange has been counted as a stream.
    is_stream_counted: Cell<bool>,
    /// The data for the access log, tracing and taps; `None` if all of them are disabled.
    pub(crate) trace: Option<RequestTrace<'a>>,
}

/// The head of the response that the client received.
#[derive(Debug, Default)]
pub(crate) struct FinalHead {
    /// The HTTP status; 0 if the client received no response.
    pub(crate) status: Cell<u16>,
    /// The rejection reason of another sidecar, if that sidecar wrote the head.
    pub(crate) rejection: Cell<Option<Reason>>,
}

/// The subject of an exchange, without the labels of its session. It never contains values that a client can
/// invent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MetricsSubject {
    /// The label `protocol`: `http`, `tcp` or `outside`.
    pub(crate) protocol: &'static str,
    /// The destination service; `None` before it is known.
    pub(crate) service: Option<ServiceName>,
    /// The port of the service; 0 before it is known.
    pub(crate) port: u16,
    /// The route that selected the backend; `None` without a route.
    pub(crate) route: Option<RouteName>,
}

/// The result of a hedge, the second attempt of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hedge {
    /// The response of the second attempt was sent to the client.
    Won,
    /// The first attempt ended the exchange, or both attempts failed.
    Lost,
}

impl Hedge {
    /// Returns the value in the access log.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Won => "won",
            Self::Lost => "lost",
        }
    }
}

/// The metric series of one subject of one session.
pub(crate) struct ExchangeSeries {
    pub(crate) subject: MetricsSubject,
    pub(crate) labels: RequestLabels,
    pub(crate) id: SeriesId,
}

impl<'a> ExchangeRecord<'a> {
    /// Opens a record for an exchange in `protocol`. Inlined, so that the record is not moved.
    #[inline(always)]
    pub(crate) fn open(session: &'a Session, protocol: &'static str) -> Self {
        let worker = &session.worker;
        Self {
            session,
            _exchange_guard: worker.start_exchange(),
            started: Instant::now(),
            subject: MetricsSubject { protocol, service: None, port: 0, route: None },
            head: FinalHead::default(),
            reason: Some(Reason::DownstreamClosed),
            grpc: Cell::new(None),
            bytes_in: Cell::new(0),
            bytes_out: Cell::new(0),
            retries: 0,
            hedge: None,
            dry_run_reason: None,
            is_stream_counted: Cell::new(false),
            trace: worker.observability_config().map(RequestTrace::new),
        }
    }

    /// Opens the record of a request that cannot be parsed and is rejected for this reason.
    #[cold]
    pub(crate) fn open_unreadable(session: &'a Session, reason: Reason) -> Self {
        let mut record = Self::open(session, "http");
        record.reason = Some(reason);
        record.head.status.set(reason.status());
        record.record_listener_target();
        if let Some(trace) = &mut record.trace {
            trace.record_unreadable(&session.worker);
        }
        record
    }

    /// Records that the client's sidecar abandoned the attempt while its client still waits.
    #[cold]
    pub(crate) fn mark_abandoned(&mut self) {
        if self.reason == Some(Reason::DownstreamClosed) {
            self.reason = Some(Reason::AttemptAbandoned);
        }
    }

    /// Records an orderly end: a response of the application, or a rejection by its sidecar.
    pub(crate) fn mark_completed(&mut self) {
        self.reason = self.head.rejection.get();
        // A rejected call has the status 200 on the wire. Both sidecars count it by the status of the reason.
        if let Some(reason) = self.reason.filter(|_| self.grpc.get().is_some()) {
            self.head.status.set(reason.status());
        }
    }

    /// Sets the service and port that the connection was opened for, if the exchange ended before its route was
    /// selected.
    #[cold]
    fn record_listener_target(&mut self) {
        let (service, port) = match &self.session.listener_kind {
            ListenerKind::Outbound { service, port } | ListenerKind::Service { service, port } => {
                (service, *port)
            }
            ListenerKind::Pinned { id, .. } => (&id.service, id.port),
            ListenerKind::Inbound { .. }
            | ListenerKind::HttpProxy
            | ListenerKind::Address(_)
            | ListenerKind::Gateway { .. } => return,
        };
        self.subject.service.get_or_insert_with(|| service.clone());
        self.subject.port = port;
    }

    /// Records a failure, and counts a match of the policy that caused it, if there is one.
    pub(crate) fn record_failure(&mut self, failure: &Failure) {
        self.reason = Some(failure.reason);
        if self.subject.port == 0 {
            self.record_listener_target();
        }
        // Circuit breakers and faults count their matches where they apply.
        if let Some(decision) = &failure.policy
            && matches!(
                failure.reason,
                Reason::DeniedByPolicy
                    | Reason::RateLimited
                    | Reason::Overloaded
                    | Reason::TokenMissing
                    | Reason::TokenInvalid
                    | Reason::BodyTooLarge
                    | Reason::DeniedByService
                    | Reason::AuthorizationUnavailable
                    | Reason::RateLimitUnavailable
            )
        {
            rule_matches::count_policy(&self.session.worker.metrics, decision);
        }
        if let Some(trace) = &mut self.trace {
            trace.policy.clone_from(&failure.policy);
        }
    }

    /// Counts a byte stream that was opened or rejected, so that long streams are reported before they end.
    pub(crate) fn count_opened(&self) {
        let series = self.session.series_for(&self.subject);
        self.session.worker.metrics.count_opened(series.id);
    }

    /// Counts a request with a long-lived stream once, so that it is reported before it ends.
    #[cold]
    #[inline(never)]
    pub(crate) fn count_stream(&self) {
        if !self.is_stream_counted.replace(true) {
            let series = self.session.series_for(&self.subject);
            self.session.worker.metrics.count_stream_opened(series.id);
        }
    }

    /// Records the allow decision, and its reason for denial if it is allowed only because policies are not
    /// enforced.
    pub(crate) fn record_permit(&mut self, access: &InboundAccess, permit: RequestPermit) {
        if let Some(decision) = access.decision(permit)
            // A policy that allows only other clients has not matched.
            && permit.would_deny().is_none_or(|reason| reason == Reason::DeniedByPolicy)
        {
            rule_matches::count_policy(&self.session.worker.metrics, decision);
        }
        if let Some(reason) = permit.would_deny() {
            self.dry_run_reason = Some(reason);
            self.session.log_dry_run_denial(reason, access.decision(permit));
        }
        if let Some(trace) = &mut self.trace {
            trace.policy = access.decision(permit).cloned();
        }
    }

    fn duration(&self) -> Duration {
        self.started.elapsed()
    }
}

impl Drop for ExchangeRecord<'_> {
    fn drop(&mut self) {
        let worker = &self.session.worker;
        let series = self.session.series_for(&self.subject);
        let outcome = RequestRecord {
            status: self.head.status.get(),
            reason: self.reason.map(Reason::label),
            grpc: self.grpc.get(),
            duration: self.duration(),
            bytes_in: self.bytes_in.get(),
            bytes_out: self.bytes_out.get(),
        };
        worker.metrics.record_request(series.id, &outcome);
        if self.is_stream_counted.get() {
            worker.metrics.count_stream_ended(series.id);
        }
        if let Some(reason) = self.dry_run_reason {
            worker.metrics.count_dry_run_denial(series.id, reason.label());
        }
        if let Some(trace) = &self.trace {
            if let Some(span) = trace.span.filter(|span| span.is_sampled) {
                worker.metrics.store_exemplar(
                    series.id,
                    span.trace,
                    span.id,
                    outcome.duration,
                    SystemTime::now(),
                );
            }
            let (retries, hedge, dry_run_reason) = (self.retries, self.hedge, self.dry_run_reason);
            let (labels, downstream) = (&series.labels, self.session.peer);
            trace.publish(
                worker,
                &RequestEnd { labels, outcome, retries, hedge, dry_run_reason, downstream },
            );
        }
    }
}
