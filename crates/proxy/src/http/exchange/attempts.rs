//! One attempt of an exchange, and the decision to repeat it.

use super::*;

impl Exchange<'_, '_> {
    /// Credits the retry budget, and buffers the request's body for another attempt.
    pub(super) fn prepare_retry(&mut self, rule: &RetryRule) {
        if rule.attempts == 0 {
            return;
        }
        retry::pay_in(&self.session.worker, self.record.subject.service.as_ref());
        if !self.body.is_empty() && !self.request.upgrade {
            self.held = Some(self.keep_body());
        }
    }

    /// Decides under a retry policy if the request is retried, and waits for the backoff.
    pub(super) async fn is_tried_again(
        &mut self,
        rule: &RetryRule,
        reason: Reason,
        request_target: &ParsedTarget<'_>,
        resolved_route: &ResolvedRoute,
    ) -> bool {
        let worker = &self.session.worker;
        let attempt = self.attempt_so_far(request_target, resolved_route);
        // A withheld response has already been charged to the budget.
        let again = self.progress.withheld_response.get().is_some()
            || (retry_by_rule(rule, AttemptFailure::Failed(reason), &attempt)
                && self.retry_slot.try_claim(resolved_route.cluster.as_deref())
                && retry::charge_retry(worker, self.record.subject.service.as_ref()));
        if again {
            tokio::time::sleep(retry_pause(rule, attempt.number, worker.random_number())).await;
            self.body.rewind();
            self.record.bytes_in.set(0);
        }
        again
    }

    /// There is only one application: retries elsewhere are up to the client's sidecar. A pooled connection
    /// that was just closing is a local matter, and proves no failure. The same holds for an HTTP/2 connection
    /// that the application closed before it processed the request.
    pub(super) fn may_repeat(&self, reason: Reason, resolved_route: &ResolvedRoute) -> bool {
        match resolved_route.destination {
            Destination::Application(_) => {
                self.progress.on_reused || reason == Reason::UpstreamRefused
            }
            Destination::Endpoints(_) | Destination::Redirected(_) => true,
        }
    }

    pub(super) async fn send_attempt(
        &mut self,
        request_target: &ParsedTarget<'_>,
        resolved_route: &ResolvedRoute,
        tried: &mut Option<EndpointId>,
    ) -> Result<(), Reason> {
        let (attempt_target, own) = match self.is_private() {
            false => (self.pick_destination(resolved_route, tried.as_ref())?, None),
            true => self.private_destination(resolved_route, tried.as_ref())?,
        };
        *tried = attempt_target.endpoint_id();
        if self.observer.is_some() || resolved_route.session_affinity.is_some() {
            self.goes_to(tried.as_ref(), resolved_route);
        }
        if let Some(cluster) = &resolved_route.cluster {
            self.outcome_guard = attempt_target.start_attempt(cluster)?;
        }
        self.timed_attempt = attempt_target.start_timed();
        if let Some(trace) = &mut self.record.trace {
            trace.upstream = Some(attempt_target.address());
        }
        let checkout = if self.progress.pins {
            let checkout = Box::pin(self.checkout_private(&attempt_target, own));
            match &resolved_route.cluster {
                None => checkout.await,
                Some(cluster) => Box::pin(cluster.wait_for_connection(checkout)).await,
            }
        } else {
            let (worker, found_http2) = (&self.session.worker, self.session.found_http2);
            let wait = retry::ConnectOutlook { resolved_route, retries: self.record.retries };
            let checkout =
                attempt_target.acquire(worker, self.timed_attempt.as_ref(), found_http2, wait);
            let checkout = pin!(checkout);
            match &resolved_route.cluster {
                None => checkout.await,
                Some(cluster) => cluster.wait_for_connection(checkout).await,
            }
        };
        let outcome = match checkout {
            Ok(checkout) => {
                let outcome =
                    forward_request(self, request_target, &attempt_target, checkout).await;
                attempt_target.record_outcome(&self.session.worker, outcome);
                outcome
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
            self.end_trial(outcome_guard, outcome);
        }
    }

    pub(super) fn end_trial(&self, outcome_guard: OutcomeGuard, outcome: Result<(), Reason>) {
        let answered = |status, grpc: Option<GrpcStatus>| EndpointResult::Response {
            status,
            grpc: grpc.map(GrpcStatus::code),
        };
        let ending = match (outcome, self.progress.withheld_response.get()) {
            (Ok(()), _) => answered(self.record.head.status.get(), self.record.grpc.get()),
            // The endpoint has responded, even if the client does not receive that response.
            (Err(_), Some(kept)) => answered(kept.status, kept.grpc),
            (Err(reason), None) => EndpointResult::Failed(reason),
        };
        outcome_guard.finish(&self.session.worker, ending);
    }
}
