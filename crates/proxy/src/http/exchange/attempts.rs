//! Makes one attempt of an exchange, and decides if it is repeated.

use std::pin::pin;

use leno_model::{EndpointId, Reason, RetryRule};
use leno_telemetry::GrpcStatus;
use leno_traffic::outlier::EndpointResult;
use leno_traffic::retry::{AttemptFailure, may_retry_by_rule, retry_pause};

use super::Exchange;
use crate::http::forward::forward_request;
use crate::http::request::ParsedTarget;
use crate::http::retry;
use crate::http::route::{Destination, ResolvedRoute};
use crate::upstream::cluster::OutcomeGuard;

impl Exchange<'_, '_> {
    /// Credits the retry budget, and buffers the request's body for another attempt.
    pub(super) fn prepare_retry(&mut self, retry_rule: &RetryRule) {
        if retry_rule.attempts == 0 {
            return;
        }
        retry::credit_budget(&self.session.worker, self.record.subject.service.as_ref());
        if !self.body.is_empty() && !self.request.is_upgrade {
            self.retry_buffer = Some(self.buffer_body());
        }
    }

    /// Decides under a retry policy if the request is retried. If so, waits for the backoff and returns true.
    pub(super) async fn wait_for_policy_retry(
        &mut self,
        retry_rule: &RetryRule,
        reason: Reason,
        request_target: &ParsedTarget<'_>,
        resolved_route: &ResolvedRoute,
    ) -> bool {
        let worker = &self.session.worker;
        let attempt = self.failed_attempt(request_target, resolved_route);
        // A withheld response has already been charged to the budget.
        let is_retried = self.progress.withheld_response.get().is_some()
            || (may_retry_by_rule(retry_rule, AttemptFailure::Failed(reason), &attempt)
                && self.retry_slot.try_acquire(resolved_route.cluster.as_deref())
                && retry::charge_retry(worker, self.record.subject.service.as_ref()));
        if is_retried {
            tokio::time::sleep(retry_pause(
                retry_rule,
                attempt.earlier_attempts,
                worker.random_number(),
            ))
            .await;
            self.body.rewind();
            self.record.bytes_in.set(0);
        }
        is_retried
    }

    /// True if this sidecar may repeat a failed attempt at this destination. An attempt at the local
    /// application is repeated only if it failed on a reused connection, which may have been closing, or on an
    /// HTTP/2 connection that the application closed before it processed the request. In all other cases, the
    /// client's sidecar decides about a retry at another endpoint.
    pub(super) fn may_repeat_attempt(
        &self,
        reason: Reason,
        resolved_route: &ResolvedRoute,
    ) -> bool {
        match resolved_route.destination {
            Destination::Application(_) => {
                self.progress.on_reused_connection || reason == Reason::UpstreamRefused
            }
            Destination::Endpoints(_) | Destination::Redirected(_) => true,
        }
    }

    /// Makes one attempt: picks a target, acquires a connection and forwards the request. `previous_endpoint`
    /// holds the endpoint of the previous attempt, and is set to the endpoint of this attempt.
    pub(super) async fn send_attempt(
        &mut self,
        request_target: &ParsedTarget<'_>,
        resolved_route: &ResolvedRoute,
        previous_endpoint: &mut Option<EndpointId>,
    ) -> Result<(), Reason> {
        let (attempt_target, pinned_connection) = match self.needs_pinned_connection() {
            false => (self.pick_destination(resolved_route, previous_endpoint.as_ref())?, None),
            true => self.pinned_destination(resolved_route, previous_endpoint.as_ref())?,
        };
        *previous_endpoint = attempt_target.endpoint_id();
        if self.observer.is_some() || resolved_route.session_affinity.is_some() {
            self.publish_endpoint(previous_endpoint.as_ref(), resolved_route);
        }
        if let Some(cluster) = &resolved_route.cluster {
            self.outcome_guard = attempt_target.start_attempt(cluster)?;
        }
        self.timed_attempt = attempt_target.start_timed_attempt();
        if let Some(trace) = &mut self.record.trace {
            trace.upstream = Some(attempt_target.address());
        }
        let checkout_result = if self.progress.is_pinned {
            let acquisition = Box::pin(self.acquire_pinned(&attempt_target, pinned_connection));
            match &resolved_route.cluster {
                None => acquisition.await,
                Some(cluster) => Box::pin(cluster.wait_for_connection(acquisition)).await,
            }
        } else {
            let (worker, detected_http2) = (&self.session.worker, self.session.detected_http2);
            let wait_inputs =
                retry::ConnectWaitInputs { resolved_route, retries: self.record.retries };
            let acquisition = pin!(attempt_target.acquire(
                worker,
                self.timed_attempt.as_ref(),
                detected_http2,
                wait_inputs,
            ));
            match &resolved_route.cluster {
                None => acquisition.await,
                Some(cluster) => cluster.wait_for_connection(acquisition).await,
            }
        };
        let outcome = match checkout_result {
            Ok(checkout) => {
                let forward_outcome =
                    forward_request(self, request_target, &attempt_target, checkout).await;
                attempt_target.record_outcome(&self.session.worker, forward_outcome);
                forward_outcome
            }
            // The connection attempt has already recorded its own failure.
            Err(reason) => Err(reason),
        };
        self.end_attempt(outcome);
        outcome
    }

    /// Reports the end of an attempt to outlier detection and latency statistics.
    #[inline]
    pub(super) fn end_attempt(&mut self, outcome: Result<(), Reason>) {
        if let (Some(timed_attempt), Err(reason)) = (&self.timed_attempt, outcome) {
            timed_attempt.record_failure(reason);
        }
        self.timed_attempt = None;
        if let Some(outcome_guard) = self.outcome_guard.take() {
            self.finish_outcome(outcome_guard, outcome);
        }
    }

    /// Records the result of an attempt in its outcome guard.
    pub(super) fn finish_outcome(&self, outcome_guard: OutcomeGuard, outcome: Result<(), Reason>) {
        let response_result = |status, grpc: Option<GrpcStatus>| EndpointResult::Response {
            status,
            grpc: grpc.map(GrpcStatus::code),
        };
        let result = match (outcome, self.progress.withheld_response.get()) {
            (Ok(()), _) => response_result(self.record.head.status.get(), self.record.grpc.get()),
            // The endpoint has responded, even if the client does not receive that response.
            (Err(_), Some(withheld_response)) => {
                response_result(withheld_response.status, withheld_response.grpc)
            }
            (Err(reason), None) => EndpointResult::Failed(reason),
        };
        outcome_guard.finish(&self.session.worker, result);
    }
}
