//! Retries under a retry policy: responses withheld from the client, and the retry budget.

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
use crate::upstream::circuit_breaker::RetrySlot;
use crate::upstream::cluster::UpstreamCluster;
use crate::upstream::{ConnectWait, connect_wait_for};
use crate::worker::Worker;

/// The inputs that determine how long an attempt waits for a connection; evaluated only if none is open.
pub(crate) struct ConnectWaitInputs<'a> {
    pub(crate) resolved_route: &'a ResolvedRoute,
    /// The number of retries so far.
    pub(crate) retries: u32,
}

impl From<ConnectWaitInputs<'_>> for ConnectWait {
    fn from(ConnectWaitInputs { resolved_route, retries }: ConnectWaitInputs<'_>) -> Self {
        Self::for_cluster(resolved_route.cluster.as_deref(), || {
            unlimited_wait(resolved_route, retries)
        })
    }
}

/// Returns the wait of an attempt that no policy limits.
fn unlimited_wait(resolved_route: &ResolvedRoute, retries: u32) -> ConnectWait {
    let rule = resolved_route.actions.as_ref().and_then(|actions| actions.retry.as_ref());
    match rule.is_some_and(|rule| rule.attempts == 0) {
        // No other attempt follows.
        true => ConnectWait::Whole,
        false => connect_wait_for(retries, resolved_route.destination.endpoint_count()),
    }
}

/// Decides whether the client gets a response or the request is retried.
pub(crate) struct ResponseFilter<'a> {
    /// The retry policy. Without one, no response is withheld.
    rule: Option<&'a RetryRule>,
    worker: &'a Worker,
    request: &'a Request<'a>,
    /// The service that pays for the retry from its budget, and the number of retries so far.
    budget: (Option<&'a ServiceName>, u32),
    retry_buffer: Option<&'a ReplayBuffer>,
    withheld_response: &'a Cell<Option<WithheldResponse>>,
    /// The circuit breaker that bounds retries, and the state of this retry.
    retry_slot: (Option<&'a UpstreamCluster>, &'a RetrySlot),
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
        budget: (Option<&'a ServiceName>, u32),
        retry_buffer: Option<&'a ReplayBuffer>,
        withheld_response: &'a Cell<Option<WithheldResponse>>,
        retry_slot: (Option<&'a UpstreamCluster>, &'a RetrySlot),
    ) -> Option<Self> {
        let rule = actions.and_then(|actions| actions.retry.as_ref());
        if rule.is_none() && retry_buffer.is_none() {
            return None;
        }
        Some(Self { rule, worker, request, budget, retry_buffer, withheld_response, retry_slot })
    }

    /// True if a response was withheld from the client.
    pub(crate) fn has_withheld(&self) -> bool {
        self.withheld_response.get().is_some()
    }

    /// Returns true if a response is withheld; the retry is then charged to the budget. Otherwise the request
    /// is not sent again, and its buffered body is released. `observer`: the observer of the response.
    pub(crate) fn withhold(
        &self,
        bytes: &[u8],
        head: &ResponseHead,
        observer: Option<&ResponseObserver>,
    ) -> bool {
        let withholds =
            self.rule.is_some_and(|rule| self.withholds_by_rule(rule, bytes, head, observer));
        if let Some(retry_buffer) = self.retry_buffer.filter(|_| !withholds) {
            retry_buffer.release();
        }
        withholds
    }

    /// True if the retry policy withholds this response, and a retry slot and the budget permit the retry.
    fn withholds_by_rule(
        &self,
        rule: &RetryRule,
        bytes: &[u8],
        head: &ResponseHead,
        observer: Option<&ResponseObserver>,
    ) -> bool {
        let status = match self.request.is_grpc() {
            true => grpc::equivalent_http_status(bytes, head),
            false => head.status,
        };
        let (service, retries) = self.budget;
        // A hedged attempt counts as a retry.
        let hedge_state = observer.and_then(ResponseObserver::hedge_state);
        let retries = retries + u32::from(hedge_state.is_some_and(HedgeState::is_second_sent));
        let attempt = FailedAttempt {
            sent: SentPart::HeadOrMore,
            idempotent: retry::is_idempotent(self.request.method()),
            body_replayable: self.retry_buffer.is_none_or(|retry_buffer| !retry_buffer.is_lost()),
            response_started: false,
            number: u8::try_from(retries).unwrap_or(u8::MAX),
            alternatives: 0,
            waited: Duration::ZERO,
        };
        let withholds = retry::retry_by_rule(rule, AttemptFailure::Response(status), &attempt)
            && self.retry_slot.1.try_claim(self.retry_slot.0)
            && charge_retry(self.worker, service);
        if !withholds {
            self.retry_slot.1.release();
        }
        let response =
            || WithheldResponse { status: head.status, grpc: grpc::head_status(bytes, head) };
        self.withheld_response.set(withholds.then(response));
        withholds
    }
}

/// Charges a retry to the budget of a service. Returns false if the budget is exhausted.
pub(crate) fn charge_retry(worker: &Worker, service: Option<&ServiceName>) -> bool {
    let is_charged = service.is_some_and(|service| {
        let now = Instant::now();
        worker.with_budget(service, || now, |budget| budget.withdraw(now))
    });
    if !is_charged {
        worker.shard.add(Count::RetriesOverBudget, 1);
    }
    is_charged
}

/// Credits the retry budget for a request that may be retried.
pub(crate) fn credit_budget(worker: &Worker, service: Option<&ServiceName>) {
    if let Some(service) = service {
        worker.with_budget(service, Instant::now, leno_traffic::RetryBudget::deposit);
    }
}
