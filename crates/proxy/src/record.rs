//! What happened to one exchange: filled on the way, emitted once, when it is dropped.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime};

use leno_model::{Reason, RouteName, ServiceName};
use leno_telemetry::{GrpcStatus, Outcome, RequestLabels, SeriesId};
use leno_traffic::{InboundAccess, Permit};

use crate::error::Failure;
use crate::hits;
use crate::seen::{Ended, Sighting};
use crate::session::{Entrance, Session};
use crate::worker::Underway;

/// What happened to one exchange. Dropping it counts it, also when its client has vanished.
pub(crate) struct Record<'a> {
    session: &'a Session,
    _underway: Underway,
    pub(crate) started: Instant,
    /// What the exchange is counted under.
    pub(crate) subject: Subject,
    /// The final head of the response.
    pub(crate) head: FinalHead,
    pub(crate) reason: Option<Reason>,
    /// What a gRPC call was answered.
    pub(crate) grpc: Cell<Option<GrpcStatus>>,
    pub(crate) bytes_in: Cell<u64>,
    pub(crate) bytes_out: Cell<u64>,
    pub(crate) retries: u32,
    /// What became of a second attempt beside the first.
    pub(crate) hedge: Option<Hedge>,
    /// Why policies would have denied it, had they been enforced.
    audited: Option<Reason>,
    /// Its stream is counted already.
    has_stream: Cell<bool>,
    /// What operators see of it beside counts; none when nobody looks.
    pub(crate) sighting: Option<Sighting<'a>>,
}

/// The head of the response that the client got.
#[derive(Debug, Default)]
pub(crate) struct FinalHead {
    pub(crate) status: Cell<u16>,
    /// The reason for which another sidecar rejected the request, where that sidecar wrote the head.
    pub(crate) rejection: Cell<Option<Reason>>,
}

/// What an exchange was about, beside what its session tells: never what a client may invent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) protocol: &'static str,
    pub(crate) service: Option<ServiceName>,
    pub(crate) port: u16,
    pub(crate) route: Option<RouteName>,
}

/// What became of a second attempt beside the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hedge {
    /// The client got its answer.
    Won,
    /// The first attempt ended, or both failed.
    Lost,
}

impl Hedge {
    /// The word in the access log.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Won => "won",
            Self::Lost => "lost",
        }
    }
}

/// The series of one subject of one session.
pub(crate) struct Series {
    pub(crate) subject: Subject,
    pub(crate) labels: RequestLabels,
    pub(crate) id: SeriesId,
}

impl<'a> Record<'a> {
    /// Opens a record for an exchange that speaks `protocol`. Inlined, so that it is made where it stays.
    #[inline(always)]
    pub(crate) fn open(session: &'a Session, protocol: &'static str) -> Self {
        let worker = &session.worker;
        Self {
            session,
            _underway: worker.enter(),
            started: Instant::now(),
            subject: Subject { protocol, service: None, port: 0, route: None },
            head: FinalHead::default(),
            reason: Some(Reason::DownstreamClosed),
            grpc: Cell::new(None),
            bytes_in: Cell::new(0),
            bytes_out: Cell::new(0),
            retries: 0,
            hedge: None,
            audited: None,
            has_stream: Cell::new(false),
            sighting: worker.view().map(Sighting::new),
        }
    }

    /// A record of a request that cannot be read, and goes no further for this reason.
    #[cold]
    pub(crate) fn unread(session: &'a Session, reason: Reason) -> Self {
        let mut record = Self::open(session, "http");
        record.reason = Some(reason);
        record.head.status.set(reason.status());
        record.name_called();
        if let Some(sighting) = &mut record.sighting {
            sighting.unread(&session.worker);
        }
        record
    }

    /// The client's sidecar abandoned the attempt, and the client still waits: it has not gone away.
    #[cold]
    pub(crate) fn abandon(&mut self) {
        if self.reason == Some(Reason::DownstreamClosed) {
            self.reason = Some(Reason::AttemptAbandoned);
        }
    }

    /// The exchange ended in order: with an answer of the application, or a rejection by its sidecar.
    pub(crate) fn succeed(&mut self) {
        self.reason = self.head.rejection.get();
        // A rejected call has the status 200 on the wire. Both sidecars count it by the status of the reason.
        if let Some(reason) = self.reason.filter(|_| self.grpc.get().is_some()) {
            self.head.status.set(reason.status());
        }
    }

    /// Names the service and port that the connection was opened for, where the exchange ended before its route was known.
    #[cold]
    fn name_called(&mut self) {
        let (service, port) = match &self.session.entrance {
            Entrance::Door { service, port } | Entrance::Service { service, port } => {
                (service, *port)
            }
            Entrance::Pinned { id, .. } => (&id.service, id.port),
            Entrance::Inbound { .. }
            | Entrance::HttpProxy
            | Entrance::Address(_)
            | Entrance::Gateway { .. } => return,
        };
        self.subject.service.get_or_insert_with(|| service.clone());
        self.subject.port = port;
    }

    /// The exchange ended for this reason, and perhaps by a policy.
    pub(crate) fn fail(&mut self, failure: &Failure) {
        self.reason = Some(failure.reason);
        if self.subject.port == 0 {
            self.name_called();
        }
        if let Some(ruling) = &failure.policy
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
            hits::policy(&self.session.worker.shard, ruling);
        }
        if let Some(sighting) = &mut self.sighting {
            sighting.policy.clone_from(&failure.policy);
        }
    }

    /// Counts a byte stream that was opened or rejected: long ones are reported before they end.
    pub(crate) fn count_opened(&self) {
        let series = self.session.series(&self.subject);
        self.session.worker.shard.count_opened(series.id);
    }

    /// Counts a stream that begins: requests with long ones are reported before they end.
    #[cold]
    #[inline(never)]
    pub(crate) fn count_stream(&self) {
        if !self.has_stream.replace(true) {
            let series = self.session.series(&self.subject);
            self.session.worker.shard.count_stream_opened(series.id);
        }
    }

    /// Notes who let it in, and whether only because policies are not enforced.
    pub(crate) fn permit(&mut self, access: &InboundAccess, permit: Permit) {
        if let Some(ruling) = access.ruling(permit)
            // A policy that only others may use has decided nothing.
            && permit.would_deny().is_none_or(|reason| reason == Reason::DeniedByPolicy)
        {
            hits::policy(&self.session.worker.shard, ruling);
        }
        if let Some(reason) = permit.would_deny() {
            self.audited = Some(reason);
            self.session.tell_audited(reason, access.ruling(permit));
        }
        if let Some(sighting) = &mut self.sighting {
            sighting.policy = access.ruling(permit).cloned();
        }
    }

    fn duration(&self) -> Duration {
        self.started.elapsed()
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        let worker = &self.session.worker;
        let series = self.session.series(&self.subject);
        let outcome = Outcome {
            status: self.head.status.get(),
            reason: self.reason.map(Reason::label),
            grpc: self.grpc.get(),
            duration: self.duration(),
            bytes_in: self.bytes_in.get(),
            bytes_out: self.bytes_out.get(),
        };
        worker.shard.record(series.id, &outcome);
        if self.has_stream.get() {
            worker.shard.count_stream_ended(series.id);
        }
        if let Some(reason) = self.audited {
            worker.shard.audit(series.id, reason.label());
        }
        if let Some(sighting) = &self.sighting {
            if let Some(span) = sighting.span.filter(|span| span.is_sampled) {
                let taken = (outcome.duration, SystemTime::now());
                worker.shard.exemplify(series.id, (span.trace, span.id), taken);
            }
            let (retries, hedge, audited) = (self.retries, self.hedge, self.audited);
            let (labels, downstream) = (&series.labels, self.session.peer);
            sighting.tell(worker, &Ended { labels, outcome, retries, hedge, audited, downstream });
        }
    }
}
