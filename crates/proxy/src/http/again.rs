//! Retries under a retry policy: responses withheld from the client, and the retry budget.

use std::cell::Cell;
use std::time::{Duration, Instant};

use leno_model::{RetryRule, ServiceName};
use leno_telemetry::{Count, GrpcStatus};
use leno_traffic::CompiledActions;
use leno_traffic::retry::{self, Attempt, Sent, Setback};
use leno_wire::http1::ResponseHead;

use super::exchange::{Beside, ResponseObserver};
use super::grpc;
use super::replay::Hold;
use super::request::Request;
use super::route::Bound;
use crate::upstream::cluster::UpstreamCluster;
use crate::upstream::gate::Retrying;
use crate::upstream::{Wait, wait_for};
use crate::worker::Worker;

/// The facts that determine how long an attempt waits for a connection; evaluated only if none is open.
pub(crate) struct Prospect<'a> {
    pub(crate) bound: &'a Bound,
    /// The number of retries so far.
    pub(crate) retries: u32,
}

impl From<Prospect<'_>> for Wait {
    fn from(Prospect { bound, retries }: Prospect<'_>) -> Self {
        Self::for_cluster(bound.cluster.as_deref(), || unlimited_wait(bound, retries))
    }
}

/// Returns the wait of an attempt that no policy limits.
fn unlimited_wait(bound: &Bound, retries: u32) -> Wait {
    let rule = bound.actions.as_ref().and_then(|actions| actions.retry.as_ref());
    match rule.is_some_and(|rule| rule.attempts == 0) {
        // No other attempt follows.
        true => Wait::Whole,
        false => wait_for(retries, bound.destination.endpoint_count()),
    }
}

/// Decides whether the client gets a response or the request is retried.
pub(crate) struct KeepBack<'a> {
    /// The retry policy. Without one, no response is withheld.
    rule: Option<&'a RetryRule>,
    worker: &'a Worker,
    request: &'a Request<'a>,
    /// The service that pays for the retry from its budget, and the number of retries so far.
    bears: (Option<&'a ServiceName>, u32),
    held: Option<&'a Hold>,
    kept_back: &'a Cell<Option<KeptBack>>,
    /// The circuit breaker that bounds retries, and the state of this retry.
    retrying: (Option<&'a UpstreamCluster>, &'a Retrying),
}

/// A response withheld from the client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeptBack {
    pub(crate) status: u16,
    /// The gRPC status in its head.
    pub(crate) grpc: Option<GrpcStatus>,
}

impl<'a> KeepBack<'a> {
    /// Returns `None` without a retry policy and without a buffered body. `held`: the buffered part of the
    /// body; `None` if there is no body. `kept_back` receives the decision.
    pub(crate) fn for_attempt(
        actions: Option<&'a CompiledActions>,
        worker: &'a Worker,
        request: &'a Request<'a>,
        bears: (Option<&'a ServiceName>, u32),
        held: Option<&'a Hold>,
        kept_back: &'a Cell<Option<KeptBack>>,
        retrying: (Option<&'a UpstreamCluster>, &'a Retrying),
    ) -> Option<Self> {
        let rule = actions.and_then(|actions| actions.retry.as_ref());
        if rule.is_none() && held.is_none() {
            return None;
        }
        Some(Self { rule, worker, request, bears, held, kept_back, retrying })
    }

    /// True if a response was withheld from the client.
    pub(crate) fn has_kept(&self) -> bool {
        self.kept_back.get().is_some()
    }

    /// Returns true if a response is withheld; the retry is then charged to the budget. Otherwise the request
    /// is not sent again, and its buffered body is released. `observer`: the observer of the response.
    pub(crate) fn withhold(
        &self,
        bytes: &[u8],
        head: &ResponseHead,
        observer: Option<&ResponseObserver>,
    ) -> bool {
        let keeps = self.rule.is_some_and(|rule| self.keeps_by(rule, bytes, head, observer));
        if let Some(held) = self.held.filter(|_| !keeps) {
            held.release();
        }
        keeps
    }

    fn keeps_by(
        &self,
        rule: &RetryRule,
        bytes: &[u8],
        head: &ResponseHead,
        observer: Option<&ResponseObserver>,
    ) -> bool {
        let status = match self.request.is_grpc() {
            true => grpc::stands_for(bytes, head),
            false => head.status,
        };
        let (service, retries) = self.bears;
        // A hedged attempt counts as a retry.
        let beside = observer.and_then(ResponseObserver::hedge_state);
        let retries = retries + u32::from(beside.is_some_and(Beside::is_sent));
        let attempt = Attempt {
            sent: Sent::HeadOrMore,
            idempotent: retry::is_idempotent(self.request.method()),
            body_replayable: self.held.is_none_or(|held| !held.is_lost()),
            response_started: false,
            number: u8::try_from(retries).unwrap_or(u8::MAX),
            others: 0,
            waited: Duration::ZERO,
        };
        let keeps = retry::retry_by_rule(rule, Setback::Answered(status), &attempt)
            && self.retrying.1.try_claim(self.retrying.0)
            && charge_retry(self.worker, service);
        if !keeps {
            self.retrying.1.give_back();
        }
        let kept = || KeptBack { status: head.status, grpc: grpc::head_status(bytes, head) };
        self.kept_back.set(keeps.then(kept));
        keeps
    }
}

/// Charges a retry to the budget of a service. Returns false if the budget is exhausted.
pub(crate) fn charge_retry(worker: &Worker, service: Option<&ServiceName>) -> bool {
    let paid = service.is_some_and(|service| {
        let now = Instant::now();
        worker.with_budget(service, || now, |budget| budget.withdraw(now))
    });
    if !paid {
        worker.shard.add(Count::RetriesOverBudget, 1);
    }
    paid
}

/// Credits the retry budget for a request that may be retried.
pub(crate) fn pay_in(worker: &Worker, service: Option<&ServiceName>) {
    if let Some(service) = service {
        worker.with_budget(service, Instant::now, leno_traffic::RetryBudget::deposit);
    }
}
