//! Reroutes requests with outdated endpoints: the requests wait for a newer configuration and are routed again.

use std::borrow::Cow;
use std::time::Duration;

use leno_model::Reason;
use leno_telemetry::Count;
use leno_traffic::retry::{self, FailedAttempt, SentPart};

use super::{Exchange, limit_attempt};
use crate::endpoint_wait::OutdatedConfig;
use crate::error::Failure;
use crate::http::forward::ExchangeProgress;
use crate::http::request::ParsedTarget;
use crate::http::route::{Destination, ResolvedRoute, route_request};
use crate::http2::cancel;
use crate::rule_matches;

impl Exchange<'_, '_> {
    /// Returns the state of the request after an attempt.
    pub(crate) fn failed_attempt(
        &self,
        request_target: &ParsedTarget<'_>,
        resolved_route: &ResolvedRoute,
    ) -> FailedAttempt {
        let is_buffered = self.retry_buffer.as_ref().is_some_and(|buffer| !buffer.is_lost());
        FailedAttempt {
            sent: if self.progress.request_sent { SentPart::HeadOrMore } else { SentPart::None },
            idempotent: retry::is_idempotent(request_target.method),
            body_replayable: !self.progress.body_taken || is_buffered,
            response_started: self.response_started.get(),
            earlier_attempts: u8::try_from(self.record.retries).unwrap_or(u8::MAX),
            other_endpoints: resolved_route.destination.endpoint_count().saturating_sub(1),
            waited: self.record.started.elapsed(),
        }
    }

    /// Prepares the next attempt. `rewinds`: the body is sent again from its first byte.
    #[cold]
    pub(super) fn prepare_next_attempt(&mut self, rewinds: bool) {
        if rewinds && self.progress.body_taken {
            self.body.rewind();
            self.record.bytes_in.set(0);
        }
        self.record.retries += 1;
        let policy = self.actions.as_ref().and_then(|actions| actions.retry_policy.as_ref());
        if let Some((policy, slot)) = policy {
            rule_matches::count_retry(&self.session.worker.metrics, policy, slot);
        }
        self.progress = ExchangeProgress::default();
        self.record.head.rejection.set(None);
        self.session.worker.metrics.add(Count::Retries, 1);
    }

    /// Detects that a failed request was routed to outdated endpoints: the current configuration contains none
    /// of them any more, or the workload no longer has the port. Returns `None` if an endpoint is still
    /// current, or the request may not be sent again.
    #[cold]
    pub(super) fn detect_outdated(
        &self,
        reason: Reason,
        request_target: &ParsedTarget<'_>,
        resolved_route: &ResolvedRoute,
    ) -> Option<OutdatedConfig> {
        let Destination::Endpoints(priorities) = &resolved_route.destination else { return None };
        // The previous attempts, and the time that they took, were for other endpoints.
        let first_attempt = FailedAttempt {
            earlier_attempts: 0,
            waited: Duration::ZERO,
            ..self.failed_attempt(request_target, resolved_route)
        };
        let retry_rule = self.actions.as_ref().and_then(|actions| actions.retry.as_ref());
        let may_send_again = match reason {
            Reason::NoEndpoint => !first_attempt.response_started,
            // The connection was not used.
            Reason::WrongIdentity => {
                !first_attempt.response_started && first_attempt.sent == SentPart::None
            }
            // The endpoint's sidecar did not process the request.
            Reason::UnknownService => {
                !first_attempt.response_started && first_attempt.body_replayable
            }
            reason => {
                retry_rule.is_none_or(|retry_rule| retry_rule.attempts > 0)
                    && retry::may_retry(reason, &first_attempt)
            }
        };
        if !may_send_again || self.needs_pinned_connection() {
            return None;
        }
        let has_lost_port = reason == Reason::UnknownService;
        OutdatedConfig::detect(
            &self.session.worker.config_store,
            &resolved_route.config,
            priorities,
            has_lost_port,
        )
    }

    /// Routes a failed request again under newer configurations, as long as it may be sent again.
    #[cold]
    pub(super) async fn reroute_request(
        &mut self,
        mut failure: Failure,
        mut outdated: OutdatedConfig,
    ) -> Result<(), Failure> {
        let (worker, request) = (&self.session.worker, self.request);
        while let Some(service) = self.record.subject.service.clone() {
            let newer_endpoint = worker.wait_for_endpoint(&service, outdated, self.record.started);
            if !self.run_while_connected(newer_endpoint).await? {
                break;
            }
            // Without an endpoint, the last try made no attempt that could count as a retry.
            if failure.reason != Reason::NoEndpoint {
                self.prepare_next_attempt(true);
            }
            // The scheme was checked when the request arrived.
            let mut request_target = request.parse_target_any_scheme()?;
            let resolved_route =
                route_request(self.session, request, &request_target, &mut self.record).await?;
            if let Destination::Redirected(redirection) = &resolved_route.destination {
                return self.send_redirect(redirection, resolved_route.actions.as_deref()).await;
            }
            let rule_actions = resolved_route.actions.as_ref();
            if let Some(target) = rule_actions.and_then(|actions| {
                actions.rewritten_target(request_target.path, request_target.query)
            }) {
                request_target.origin_form = Some(Cow::Owned(target));
            }
            self.actions.clone_from(&resolved_route.actions);
            let Err(reason) = self.send_rerouted_attempts(&request_target, &resolved_route).await
            else {
                return Ok(());
            };
            failure = match &resolved_route.cluster {
                Some(cluster) => cluster.failure_for(reason),
                None => reason.into(),
            };
            match self.detect_outdated(reason, &request_target, &resolved_route) {
                Some(newly_outdated) => outdated = newly_outdated,
                None => break,
            }
        }
        Err(failure)
    }

    /// Sends the request by its new route, without fault injection, which has already taken place, and without
    /// hedging.
    async fn send_rerouted_attempts(
        &mut self,
        request_target: &ParsedTarget<'_>,
        resolved_route: &ResolvedRoute,
    ) -> Result<(), Reason> {
        let actions = self.actions.clone();
        let retry_rule = actions.as_ref().and_then(|actions| actions.retry.as_ref());
        let attempt_limit = self.attempt_limit();
        let mut previous_endpoint = None;
        loop {
            let outcome = {
                let _attempt_scope = attempt_limit.map(|_| cancel::AttemptScope);
                let attempt =
                    self.send_attempt(request_target, resolved_route, &mut previous_endpoint);
                match attempt_limit {
                    None => attempt.await,
                    Some((limit, response_started)) => {
                        limit_attempt(limit, response_started, attempt).await
                    }
                }
            };
            let Err(reason) = outcome else { return Ok(()) };
            if reason == Reason::AttemptTimeout {
                self.end_attempt(outcome);
            }
            let is_retried = match retry_rule {
                None => {
                    retry::may_retry(reason, &self.failed_attempt(request_target, resolved_route))
                        && self.retry_slot.try_acquire(resolved_route.cluster.as_deref())
                }
                Some(retry_rule) => {
                    self.wait_for_policy_retry(retry_rule, reason, request_target, resolved_route)
                        .await
                }
            };
            if !is_retried {
                return Err(reason);
            }
            self.prepare_next_attempt(retry_rule.is_none());
        }
    }
}
