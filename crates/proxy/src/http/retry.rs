//! Applies retry policies: withholds responses from the client if the request is retried, and charges the retry
//! budget.

use std::cell::Cell;
use std::time::{Duration, Instant};

use leno_model::{RetryRule, ServiceName};
use leno_telemetry::{Count, GrpcStatus};
use leno_traffic::CompiledActions;
use leno_traffic::retry::{self, AttemptFailure, FailedAttempt, SentPart};
use leno_wire::http1::ResponseHead;

use super::exchange::{HedgeState, ResponseObserver};
use super::grpc;
use super::replay::ReplayBuffer;
use super::request::Request;
use super::route::ResolvedRoute;
use crate::record::ExchangeRecord;
use crate::upstream::circuit_breaker::RetrySlot;
use crate::upstream::cluster::{OutcomeGuard, UpstreamCluster};
use crate::upstream::{ConnectWait, connect_wait_for};
use crate::worker::Worker;

/// The inputs that determine how long an attempt waits for a connection. They are evaluated only if no
/// connection is open.
pub(crate) struct ConnectWaitInputs<'a> {
    pub(crate) resolved_route: &'a ResolvedRoute,
    /// The number of retries so far.
    pub(crate) retries: u32,
}

impl From<ConnectWaitInputs<'_>> for ConnectWait {
    fn from(ConnectWaitInputs { resolved_route, retries }: ConnectWaitInputs<'_>) -> Self {
        Self::for_cluster(resolved_route.cluster.as_deref(), || {
            default_wait(resolved_route, retries)
        })
    }
}

/// Returns the connection wait of an attempt without a `connectTimeout` policy.
fn default_wait(resolved_route: &ResolvedRoute, retries: u32) -> ConnectWait {
    let retry_rule = resolved_route.actions.as_ref().and_then(|actions| actions.retry.as_ref());
    match retry_rule.is_some_and(|retry_rule| retry_rule.attempts == 0) {
        // No other attempt follows.
        true => ConnectWait::Full,
        false => connect_wait_for(retries, resolved_route.destination.endpoint_count()),
    }
}

/// Decides whether the client gets a response or the request is retried.
pub(crate) struct ResponseFilter<'a> {
    /// The retry policy. Without one, no response is withheld.
    retry_rule: Option<&'a RetryRule>,
    worker: &'a Worker,
    request: &'a Request<'a>,
    /// The buffered body; `None` if there is no body.
    retry_buffer: Option<&'a ReplayBuffer>,
    withheld_response: &'a Cell<Option<WithheldResponse>>,
    retry_limits: RetryLimits<'a>,
}

/// The limits on the retry of one request.
#[derive(Clone, Copy)]
pub(crate) struct RetryLimits<'a> {
    /// The service whose retry budget is charged; `None` if the request has no service.
    service: Option<&'a ServiceName>,
    /// The number of retries so far.
    retries: u32,
    /// The upstream cluster whose circuit breakers limit concurrent retries; `None` without policies.
    cluster: Option<&'a UpstreamCluster>,
    /// The slot of the request in that limit.
    retry_slot: &'a RetrySlot,
}

impl<'a> RetryLimits<'a> {
    pub(crate) fn new(
        record: &'a ExchangeRecord<'_>,
        outcome_guard: Option<&'a OutcomeGuard>,
        retry_slot: &'a RetrySlot,
    ) -> Self {
        Self {
            service: record.subject.service.as_ref(),
            retries: record.retries,
            cluster: outcome_guard.map(OutcomeGuard::upstream_cluster),
            retry_slot,
        }
    }
}

/// A response withheld from the client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WithheldResponse {
    pub(crate) status: u16,
    /// The gRPC status in its head.
    pub(crate) grpc: Option<GrpcStatus>,
}

impl<'a> ResponseFilter<'a> {
    /// Returns `None` without a retry policy and without a buffered body. `retry_buffer`: the buffered body;
    /// `None` if there is no body. `withheld_response` receives the decision.
    pub(crate) fn for_attempt(
        actions: Option<&'a CompiledActions>,
        worker: &'a Worker,
        request: &'a Request<'a>,
        retry_buffer: Option<&'a ReplayBuffer>,
        withheld_response: &'a Cell<Option<WithheldResponse>>,
        retry_limits: RetryLimits<'a>,
    ) -> Option<Self> {
        let retry_rule = actions.and_then(|actions| actions.retry.as_ref());
        if retry_rule.is_none() && retry_buffer.is_none() {
            return None;
        }
        Some(Self { retry_rule, worker, request, retry_buffer, withheld_response, retry_limits })
    }

    /// True if a response was withheld from the client.
    pub(crate) fn has_withheld(&self) -> bool {
        self.withheld_response.get().is_some()
    }

    /// Decides if a response is withheld. If so, charges the retry to the budget and returns true. Otherwise
    /// the request is not sent again, and its buffered body is released. `observer`: the observer of the
    /// response.
    pub(crate) fn withhold(
        &self,
        bytes: &[u8],
        head: &ResponseHead,
        observer: Option<&ResponseObserver>,
    ) -> bool {
        let withholds = self
            .retry_rule
            .is_some_and(|retry_rule| self.withholds_by_rule(retry_rule, bytes, head, observer));
        if let Some(retry_buffer) = self.retry_buffer.filter(|_| !withholds) {
            retry_buffer.release();
        }
        withholds
    }

    /// True if the retry policy withholds this response, and a retry slot and the budget permit the retry.
    fn withholds_by_rule(
        &self,
        retry_rule: &RetryRule,
        bytes: &[u8],
        head: &ResponseHead,
        observer: Option<&ResponseObserver>,
    ) -> bool {
        let status = match self.request.is_grpc() {
            true => grpc::equivalent_http_status(bytes, head),
            false => head.status,
        };
        let RetryLimits { service, retries, cluster, retry_slot } = self.retry_limits;
        // A hedged attempt counts as a retry.
        let hedge_state = observer.and_then(ResponseObserver::hedge_state);
        let retries = retries + u32::from(hedge_state.is_some_and(HedgeState::is_second_sent));
        let attempt = FailedAttempt {
            sent: SentPart::HeadOrMore,
            idempotent: retry::is_idempotent(self.request.method()),
            body_replayable: self.retry_buffer.is_none_or(|retry_buffer| !retry_buffer.is_lost()),
            response_started: false,
            earlier_attempts: u8::try_from(retries).unwrap_or(u8::MAX),
            // The rule considers these only for attempts without a response.
            other_endpoints: 0,
            waited: Duration::ZERO,
        };
        let withholds =
            retry::may_retry_by_rule(retry_rule, AttemptFailure::Response(status), &attempt)
                && retry_slot.try_acquire(cluster)
                && charge_retry(self.worker, service);
        if !withholds {
            retry_slot.release();
        }
        let to_withheld_response =
            || WithheldResponse { status: head.status, grpc: grpc::head_status(bytes, head) };
        self.withheld_response.set(withholds.then(to_withheld_response));
        withholds
    }
}

/// Charges a retry to the budget of a service. Returns false if the budget is exhausted.
pub(crate) fn charge_retry(worker: &Worker, service: Option<&ServiceName>) -> bool {
    let is_charged = service.is_some_and(|service| {
        let now = Instant::now();
        worker.with_budget(service, || now, |budget| budget.withdraw_retry(now))
    });
    if !is_charged {
        worker.metrics.add(Count::RetriesOverBudget, 1);
    }
    is_charged
}

/// Credits the retry budget for a request that may be retried.
pub(crate) fn credit_budget(worker: &Worker, service: Option<&ServiceName>) {
    if let Some(service) = service {
        worker.with_budget(service, Instant::now, leno_traffic::RetryBudget::record_request);
    }
}
