//! Hedges requests: makes a second attempt in parallel if the first attempt is slow to respond. The client
//! receives the response that arrives first.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use leno_model::{EndpointId, HedgeRule, Reason, ServiceName};
use leno_telemetry::{Count, GrpcStatus};
use leno_traffic::CompiledActions;
use leno_traffic::hedge::{HedgeConditions, may_hedge};
use leno_traffic::outlier::EndpointResult;
use leno_wire::http1::{ParseProgress, RequestKind, ResponseHead};

use super::{Exchange, ResponseObserver};
use crate::error::stream_error_reason;
use crate::http::body::BodyPiece;
use crate::http::forward::{ExchangeProgress, forward_response};
use crate::http::grpc;
use crate::http::mirror::send_buffered_request;
use crate::http::replay::ReplayBuffer;
use crate::http::request::ParsedTarget;
use crate::http::retry::{self, charge_retry};
use crate::http::route::{Destination, ResolvedRoute};
use crate::http::trailers;
use crate::http2::cancel;
use crate::link::{LinkStream, ReceivedHead};
use crate::record::Hedge;
use crate::session::Session;
use crate::upstream::circuit_breaker::RetrySlot;
use crate::upstream::cluster::OutcomeGuard;
use crate::upstream::pick::pick_endpoint;
use crate::upstream::{AttemptTarget, Checkout, ConnectWait, TimedAttempt, Upstream};
use crate::worker::Worker;

/// State shared by two parallel attempts.
#[derive(Debug, Default)]
pub(crate) struct HedgeState {
    /// The endpoint of the first attempt; `None` before it was picked.
    first_endpoint: RefCell<Option<EndpointId>>,
    /// True if the first attempt has a response.
    first_has_response: Cell<bool>,
    /// True if the second attempt was sent.
    second_is_sent: Cell<bool>,
    /// True if the first attempt has failed, and only the second is pending.
    first_has_failed: Cell<bool>,
}

impl HedgeState {
    /// Records the endpoint of the first attempt.
    pub(crate) fn record_first_endpoint(&self, endpoint: Option<EndpointId>) {
        self.first_endpoint.replace(endpoint);
    }

    /// Records that the client receives the response of the first attempt.
    pub(crate) fn mark_first_response(&self) {
        self.first_has_response.set(true);
    }

    /// True if the second attempt was sent.
    pub(crate) fn is_second_sent(&self) -> bool {
        self.second_is_sent.get()
    }
}

/// The attempt that completes the request, with its result.
enum RaceResult {
    /// The outcome of the first attempt.
    FirstAttempt(Result<(), Reason>),
    /// The response of the second attempt.
    SecondAttempt(Box<HedgeResponse>),
}

impl Exchange<'_, '_> {
    /// Returns the hedging rule that applies to the next attempt; `None` if no second attempt is permitted.
    #[inline]
    pub(super) fn hedge_rule<'b>(
        &self,
        request_target: &ParsedTarget<'_>,
        resolved_route: &'b ResolvedRoute,
    ) -> Option<&'b HedgeRule> {
        let hedging = resolved_route.fault_or_hedge_policy.as_ref()?.hedging.as_ref()?;
        // A second attempt would need a connection that does not belong to the client.
        if self.needs_pinned_connection() {
            return None;
        }
        self.may_hedge(&hedging.rule, request_target, resolved_route).then_some(&hedging.rule)
    }

    /// True if the rule permits a second attempt at this request.
    fn may_hedge(
        &self,
        hedge_rule: &HedgeRule,
        request_target: &ParsedTarget<'_>,
        resolved_route: &ResolvedRoute,
    ) -> bool {
        let retry_rule = self.actions.as_ref().and_then(|actions| actions.retry.as_ref());
        let conditions = HedgeConditions {
            method: request_target.method,
            is_unrepeatable: self.request.is_upgrade
                || self.request.head.find(&self.request.bytes, "expect").next().is_some(),
            has_affinity: resolved_route
                .session_affinity
                .as_ref()
                .is_some_and(|session_affinity| session_affinity.session_endpoint().is_some()),
            retries: u8::try_from(self.record.retries).unwrap_or(u8::MAX),
        };
        may_hedge(hedge_rule, retry_rule, &conditions)
    }

    /// Makes an attempt, and a second one if the first has no response in time. The client receives the first
    /// response; the other attempt is canceled, and does not count as a failure.
    pub(super) async fn send_hedged(
        &mut self,
        request_target: &ParsedTarget<'_>,
        resolved_route: &ResolvedRoute,
        hedge_rule: &HedgeRule,
        previous_endpoint: &mut Option<EndpointId>,
    ) -> Result<(), Reason> {
        let hedge_state = Rc::new(HedgeState::default());
        let has_body = !self.body.is_empty();
        let session = self.session;
        let second_attempt = HedgedAttempt {
            session,
            worker: &session.worker,
            resolved_route,
            request_head: self.link_head(request_target, self.actions.as_deref()).freeze(),
            body_buffer: has_body.then(|| self.buffer_body()),
            service: self.record.subject.service.clone(),
            actions: self.actions.clone(),
            is_grpc: self.request.is_grpc(),
            hedge_state: hedge_state.clone(),
        };
        if self.actions.as_ref().is_none_or(|actions| actions.retry.is_none()) {
            retry::credit_budget(&self.session.worker, second_attempt.service.as_ref());
        }
        self.observer = Some(ResponseObserver::Hedge(hedge_state));
        let race_result = self
            .race_attempts(
                request_target,
                resolved_route,
                &mut *previous_endpoint,
                hedge_rule.after,
                second_attempt,
            )
            .await;
        let hedge_response = match race_result {
            RaceResult::FirstAttempt(outcome) => return outcome,
            RaceResult::SecondAttempt(hedge_response) => *hedge_response,
        };
        // The retry slot is held until the response is complete.
        let HedgeResponse {
            upstream,
            outcome_guard,
            stream,
            timed_attempt,
            retry_slot: _retry_slot,
        } = hedge_response;
        // The first attempt is not retried, whatever its result. The second attempt has sent the whole body.
        self.retry_slot.release();
        self.body.skip_buffered();
        self.record_hedge(Hedge::Won);
        session.worker.metrics.add(Count::HedgesWon, 1);
        self.progress = ExchangeProgress {
            request_sent: true,
            body_taken: has_body,
            ..ExchangeProgress::default()
        };
        self.record.head.rejection.set(None);
        // The guards of the first attempt are dropped without an outcome.
        (self.timed_attempt, self.outcome_guard) = (Some(timed_attempt), outcome_guard);
        *previous_endpoint = Some(upstream.endpoint.id.clone());
        if let Some(trace) = &mut self.record.trace {
            trace.upstream = Some(upstream.endpoint.address);
        }
        if let Some(session_affinity) = &resolved_route.session_affinity {
            self.affinity_field =
                self.affinity_response_field(session_affinity, previous_endpoint.as_ref());
        }
        let outcome = forward_response(self, &stream).await;
        AttemptTarget::Upstream(upstream).record_outcome(&self.session.worker, outcome);
        self.end_attempt(outcome);
        outcome
    }

    /// Records the result of the second attempt, if it was sent.
    pub(super) fn record_hedge(&mut self, hedge: Hedge) {
        let hedge_observer = self.observer.take_if(|observer| observer.hedge_state().is_some());
        if hedge_observer
            .as_ref()
            .and_then(ResponseObserver::hedge_state)
            .is_some_and(HedgeState::is_second_sent)
        {
            self.record.retries += 1;
            self.record.hedge = Some(hedge);
        }
    }

    /// Runs both attempts until one attempt has a response, or both have failed.
    async fn race_attempts(
        &mut self,
        request_target: &ParsedTarget<'_>,
        resolved_route: &ResolvedRoute,
        previous_endpoint: &mut Option<EndpointId>,
        delay: Duration,
        second_attempt: HedgedAttempt<'_>,
    ) -> RaceResult {
        let client = self.responder.client_connection();
        let hedge_state = second_attempt.hedge_state.clone();
        let mut first_attempt =
            Some(Box::pin(self.send_attempt(request_target, resolved_route, previous_endpoint)));
        let mut second_attempt = Some(Box::pin(second_attempt.await_response(delay)));
        let mut first_failure = None;
        let race_result = poll_fn(|cx| {
            if let Some(attempt) = &mut first_attempt
                && let Poll::Ready(outcome) = attempt.as_mut().poll(cx)
            {
                first_attempt = None;
                match outcome {
                    Err(reason)
                        if second_attempt.is_some()
                            && hedge_state.is_second_sent()
                            && !hedge_state.first_has_response.get() =>
                    {
                        first_failure = Some(reason);
                        hedge_state.first_has_failed.set(true);
                    }
                    outcome => return Poll::Ready(RaceResult::FirstAttempt(outcome)),
                }
            }
            if hedge_state.first_has_response.get() && second_attempt.is_some() {
                let _attempt_scope = cancel::AttemptScope;
                cancel::AttemptScope::mark_abandoned();
                second_attempt = None;
            }
            if let Some(attempt) = &mut second_attempt
                && let Poll::Ready(response) = attempt.as_mut().poll(cx)
            {
                second_attempt = None;
                match (response, first_failure) {
                    (Some(response), _) => {
                        return Poll::Ready(RaceResult::SecondAttempt(Box::new(response)));
                    }
                    (None, Some(reason)) => {
                        return Poll::Ready(RaceResult::FirstAttempt(Err(reason)));
                    }
                    // The second attempt failed or was not made, and the first is still pending.
                    (None, None) => {}
                }
            }
            match (&client, first_failure) {
                // The first attempt, which watched for a disconnect, is over.
                (Some(io), Some(_)) if io.poll_gone(cx).is_ready() => {
                    Poll::Ready(RaceResult::FirstAttempt(Err(Reason::DownstreamClosed)))
                }
                _ => Poll::Pending,
            }
        })
        .await;
        // After a disconnect, the attempts count as canceled by the client, not as abandoned by this sidecar.
        if !matches!(race_result, RaceResult::FirstAttempt(Err(Reason::DownstreamClosed))) {
            let _attempt_scope = cancel::AttemptScope;
            cancel::AttemptScope::mark_abandoned();
            drop((first_attempt, second_attempt));
        }
        race_result
    }
}

/// A second attempt before it is sent.
struct HedgedAttempt<'a> {
    session: &'a Session,
    worker: &'a Rc<Worker>,
    resolved_route: &'a ResolvedRoute,
    /// The head in the format of a link.
    request_head: Bytes,
    /// The buffered body, if there is one.
    body_buffer: Option<Rc<ReplayBuffer>>,
    /// The service with the retry budget to which the attempt is charged; `None` if the request has no service.
    service: Option<ServiceName>,
    actions: Option<Arc<CompiledActions>>,
    /// True for a gRPC call: its gRPC status decides if a response is an error.
    is_grpc: bool,
    hedge_state: Rc<HedgeState>,
}

/// A second attempt with a started response.
struct HedgeResponse {
    upstream: Rc<Upstream>,
    outcome_guard: Option<OutcomeGuard>,
    stream: LinkStream,
    timed_attempt: TimedAttempt,
    retry_slot: RetrySlot,
}

impl HedgedAttempt<'_> {
    /// Waits for the hedging delay, makes the second attempt and waits for its response. Returns `None` if the
    /// attempt was not made or failed.
    async fn await_response(self, delay: Duration) -> Option<HedgeResponse> {
        tokio::time::sleep(delay).await;
        let body = match &self.body_buffer {
            None => Vec::new(),
            Some(body_buffer) => {
                let pieces = body_buffer.wait_for_body().await?;
                trailers::permit_body_trailers(self.session, self.actions.as_deref(), pieces)
            }
        };
        let cluster = self.resolved_route.cluster.as_ref();
        let upstream = self.pick_endpoint()?;
        let retry_slot = RetrySlot::default();
        if !retry_slot.try_acquire(cluster.map(|cluster| &**cluster)) {
            return None;
        }
        let outcome_guard = match cluster {
            None => None,
            Some(cluster) => {
                Some(cluster.start_attempt(&upstream, Some(|counts| &counts.requests)).ok()?)
            }
        };
        let timed_attempt = upstream.start_timed_attempt();
        match self.send_request(&upstream, outcome_guard.as_ref(), &timed_attempt, body).await {
            Ok(Some(stream)) => {
                Some(HedgeResponse { upstream, outcome_guard, stream, timed_attempt, retry_slot })
            }
            // No request was sent, so the endpoint has not failed.
            Ok(None) => None,
            Err(result) => {
                if let EndpointResult::Failed(reason) = result {
                    timed_attempt.record_failure(reason);
                }
                if let Some(outcome_guard) = outcome_guard {
                    outcome_guard.finish(self.worker, result);
                }
                None
            }
        }
    }

    /// Picks an endpoint with a sidecar, other than the endpoint of the first attempt; `None` if no such
    /// endpoint is available.
    fn pick_endpoint(&self) -> Option<Rc<Upstream>> {
        let first_endpoint = self.hedge_state.first_endpoint.borrow().clone()?;
        let Destination::Endpoints(priorities) = &self.resolved_route.destination else {
            return None;
        };
        let (cluster, hash_selection) =
            (self.resolved_route.cluster.as_deref(), self.resolved_route.hash_selection.as_ref());
        let upstream =
            pick_endpoint(self.worker, priorities, cluster, hash_selection, Some(&first_endpoint))
                .ok()?;
        let is_usable = upstream.endpoint.id != first_endpoint
            && !upstream.is_unmeshed()
            && !upstream.uses_http1();
        is_usable.then_some(upstream)
    }

    /// Sends the request, and waits for a response that may be forwarded; `None` if there is no link, or if the
    /// retry budget is exhausted.
    async fn send_request(
        &self,
        upstream: &Rc<Upstream>,
        outcome_guard: Option<&OutcomeGuard>,
        timed_attempt: &TimedAttempt,
        body: Vec<BodyPiece>,
    ) -> Result<Option<LinkStream>, EndpointResult> {
        let wait =
            ConnectWait::for_cluster(self.resolved_route.cluster.as_deref(), || ConnectWait::Short);
        let checkout = upstream.acquire(self.worker, Some(timed_attempt), wait);
        let checkout = match &self.resolved_route.cluster {
            None => checkout.await,
            Some(cluster) => cluster.wait_for_connection(checkout).await,
        };
        let Checkout::Link(link) = checkout.map_err(EndpointResult::Failed)? else {
            return Ok(None);
        };
        if !charge_retry(self.worker, self.service.as_ref()) {
            return Ok(None);
        }
        self.hedge_state.second_is_sent.set(true);
        self.worker.metrics.add(Count::Hedges, 1);
        let send_result = send_buffered_request(self.worker, &link, &self.request_head, body).await;
        let stream = send_result.map_err(EndpointResult::Failed)?;
        timed_attempt.mark_waiting();
        let head_result = stream.final_head().await;
        let received_head = head_result
            .map_err(|stream_error| EndpointResult::Failed(stream_error_reason(stream_error)))?;
        match self.check_response(&received_head, outcome_guard, timed_attempt) {
            Ok(()) => Ok(Some(stream)),
            Err(result) => {
                stream.abandon();
                Err(result)
            }
        }
    }

    /// Decides if a response may be forwarded. Malformed and retriable responses are not, nor are errors while
    /// the first attempt is pending: errors are often faster than successes.
    fn check_response(
        &self,
        received_head: &ReceivedHead,
        outcome_guard: Option<&OutcomeGuard>,
        timed_attempt: &TimedAttempt,
    ) -> Result<(), EndpointResult> {
        let mut head = ResponseHead::default();
        let bytes = &received_head.bytes;
        match head.parse(bytes, RequestKind::Other) {
            Ok(ParseProgress::Complete(_)) => {}
            Ok(ParseProgress::Partial) | Err(_) => {
                return Err(EndpointResult::Failed(Reason::UpstreamMalformed));
            }
        }
        if let (Some(outcome_guard), Some(reason)) =
            (outcome_guard, received_head.rejection_reason(&head))
        {
            outcome_guard.record_rejection(reason);
        }
        let status = match self.is_grpc {
            true => grpc::equivalent_http_status(bytes, &head),
            false => head.status,
        };
        let retry_rule = self.actions.as_ref().and_then(|actions| actions.retry.as_ref());
        let is_error = matches!(status, 429 | 500..) && !self.hedge_state.first_has_failed.get();
        if is_error || retry_rule.is_some_and(|retry_rule| retry_rule.codes.contains(&status)) {
            timed_attempt.record_response(status);
            let grpc = grpc::head_status(bytes, &head).map(GrpcStatus::code);
            return Err(EndpointResult::Response { status: head.status, grpc });
        }
        Ok(())
    }
}
