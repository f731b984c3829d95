//! Runs the request pipeline: one request, stage by stage, under one configuration snapshot.

mod attempts;
mod body_prefix;
mod external_checks;
mod hedged;
mod jwt_validation;
mod observer;
mod pinned;
mod rerouted;
mod special_stages;

pub(crate) use hedged::HedgeState;
pub(crate) use observer::ResponseObserver;
use observer::TimedPermit;
pub(crate) use pinned::PinnedConnections;

use std::borrow::Cow;
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_model::{EndpointId, Reason, Scheme, ServiceAccount};
use leno_telemetry::trace::{MAX_FIELDS, PropagatedHeaders, TraceSpan};
use leno_traffic::retry::may_retry;
use leno_traffic::{AttemptLimit, CompiledActions, FieldEdits, RequestView, SessionAffinity};
use leno_wire::link::ResetCode;
use smallvec::SmallVec;

use super::body::BodySource;
use super::date;
use super::error_response;
use super::forward::ExchangeProgress;
use super::replay::ReplayBuffer;
use super::request::{ParsedTarget, Request};
use super::respond::Responder;
use super::route::{Destination, ResolvedRoute, route_request};
use super::scheme;
use crate::error::Failure;
use crate::http2::cancel;
use crate::record::{ExchangeRecord, Hedge};
use crate::rule_matches;
use crate::session::{ListenerKind, Session};
use crate::upstream::circuit_breaker::RetrySlot;
use crate::upstream::cluster::{OutcomeGuard, UpstreamCluster};
use crate::upstream::pick::{pick_endpoint, session_endpoint};
use crate::upstream::priorities::Priorities;
use crate::upstream::{AttemptTarget, TimedAttempt, Upstream};

/// Headers that are added to a request. The headers of a trace context fit without an allocation.
pub(crate) type AddedHeaders<'a> = SmallVec<[(&'a str, &'a [u8]); MAX_FIELDS]>;

/// A response field: name and value.
pub(crate) type ResponseField = (Cow<'static, str>, String);

/// One request in the pipeline, and its state so far.
pub(crate) struct Exchange<'a, 'io> {
    pub(crate) session: &'a Session,
    pub(crate) request: &'a Request<'a>,
    pub(crate) body: &'a mut BodySource<'io>,
    pub(crate) responder: &'a mut Responder<'io>,
    pub(crate) record: ExchangeRecord<'a>,
    pub(crate) progress: ExchangeProgress,
    /// True if part of the response may have reached the client.
    pub(crate) response_started: &'a Cell<bool>,
    /// The time limit for the upstream to accept a protocol upgrade.
    pub(crate) upgrade_timeout: Option<Duration>,
    /// The actions of the selected rule, such as header changes, retries and mirrors; `None` without actions.
    pub(crate) actions: Option<Arc<CompiledActions>>,
    /// The buffered body for retries, until the response starts; `None` if the request is not retried.
    pub(crate) retry_buffer: Option<Rc<ReplayBuffer>>,
    /// The buffered body for all uses: retries, mirrored copies and hedged attempts.
    body_buffer: Option<Rc<ReplayBuffer>>,
    /// The observer notified when the response starts.
    pub(crate) observer: Option<ResponseObserver>,
    /// The response header changes for CORS, combined with those of the rule; `None` without CORS.
    pub(crate) cors_edits: Option<FieldEdits>,
    /// The latency measurement of the current attempt, at an endpoint.
    pub(crate) timed_attempt: Option<TimedAttempt>,
    /// The outcome guard of the current attempt, at an endpoint with a circuit breaker or outlier detection.
    pub(crate) outcome_guard: Option<OutcomeGuard>,
    /// The slot of this request in a limit on concurrent retries.
    pub(crate) retry_slot: RetrySlot,
    /// Headers that are added to the request: those of a traffic lane, for the application to propagate, or at
    /// a gateway, headers about the external client.
    pub(crate) extra_headers: Vec<(String, String)>,
    /// The response field that identifies the endpoint; `None` without session persistence.
    pub(crate) affinity_field: Option<Box<ResponseField>>,
}

impl<'a, 'io> Exchange<'a, 'io> {
    pub(crate) fn new(
        session: &'a Session,
        request: &'a Request<'a>,
        body: &'a mut BodySource<'io>,
        responder: &'a mut Responder<'io>,
        response_started: &'a Cell<bool>,
    ) -> Self {
        // Constructed in place: moving a record costs a copy for each request.
        let mut exchange = Self {
            session,
            request,
            body,
            responder,
            record: ExchangeRecord::open(session, "http"),
            progress: ExchangeProgress::default(),
            response_started,
            upgrade_timeout: None,
            actions: None,
            retry_buffer: None,
            body_buffer: None,
            observer: None,
            cors_edits: None,
            timed_attempt: None,
            outcome_guard: None,
            retry_slot: RetrySlot::default(),
            extra_headers: Vec::new(),
            affinity_field: None,
        };
        if let Some(trace) = &mut exchange.record.trace {
            trace.record_request(request, &session.worker);
        }
        exchange
    }

    /// Records that the client's sidecar abandoned this attempt, as opposed to the client abandoning the
    /// request.
    #[cold]
    pub(crate) fn record_abandonment(&mut self) {
        self.record.mark_abandoned();
    }

    /// Forwards the request to its destination and the response back.
    ///
    /// # Errors
    /// The connection or stream of the client cannot continue, and is reset with this code.
    pub(crate) async fn run(&mut self) -> Result<(), ResetCode> {
        let Err(mut failure) = self.run_stages().await else {
            self.record.mark_completed();
            return Ok(());
        };
        self.record.record_failure(&failure);
        if self.response_started.get() {
            // A part of the response has been sent: only a broken connection shows the client that it is
            // incomplete. A gRPC status that has been read may not have reached the client.
            self.record.grpc.set(None);
            return Err(self.progress.reset_code.get().unwrap_or(ResetCode::Failed));
        }
        failure.reset = self.progress.reset_code.get();
        self.record.head.status.set(failure.status());
        // gRPC is not supported over HTTP/1.1.
        let is_grpc_call =
            !matches!(self.responder, Responder::Http1 { .. }) && self.request.is_grpc();
        if is_grpc_call {
            self.record.grpc.set(Some(failure.grpc_status()));
        }
        if !self.body.is_complete() || self.session.worker.is_leaving() {
            self.responder.close_after_exchange();
        }
        let is_bodiless = self.request.method() == "HEAD";
        let cors_edits = self.failure_edits();
        let is_sent = error_response::send_error(
            &failure,
            self.session,
            self.responder,
            is_bodiless,
            is_grpc_call,
            cors_edits.as_ref(),
        )
        .await;
        if is_sent { Ok(()) } else { Err(ResetCode::Failed) }
    }

    /// Runs the stages: route → authorize → pick endpoint → acquire connection → stream → (retry).
    async fn run_stages(&mut self) -> Result<(), Failure> {
        let mut request_target = match self.request.parse_target() {
            Ok(request_target) => request_target,
            Err(reason) => scheme::parse_target(self.session, self.request, reason)?,
        };
        let resolved_route =
            route_request(self.session, self.request, &request_target, &mut self.record).await?;
        match &resolved_route.config.compiled.request_checks {
            None => self.authorize_request(&request_target, &resolved_route)?,
            // Boxed to keep the future small for other requests.
            Some(checks) => {
                Box::pin(self.authorize_with_checks(checks, &request_target, &resolved_route))
                    .await?
            }
        }
        if let Some(cors) =
            resolved_route.actions.as_ref().and_then(|actions| actions.cors.as_ref())
            && let Some(preflight) = self.evaluate_cors(cors, &request_target, &resolved_route)
        {
            return self.send_without_body(200, &preflight, None).await;
        }
        if let Destination::Redirected(redirection) = &resolved_route.destination {
            return self.send_redirect(redirection, resolved_route.actions.as_deref()).await;
        }
        if let Some(actions) = &resolved_route.actions {
            if let Some(target) =
                actions.rewritten_target(request_target.path, request_target.query)
            {
                request_target.origin_form = Some(Cow::Owned(target));
            }
            self.actions = Some(actions.clone());
        }
        self.add_extra_headers(&request_target, &resolved_route);
        // The time limit of a request does not apply to an upgraded connection.
        let attempt_limit = self.actions.as_ref().and_then(|actions| actions.attempt_limit);
        let attempt_timeout = attempt_limit.map(AttemptLimit::time_limit);
        let upgrade_timeout = resolved_route.timeout.into_iter().chain(attempt_timeout).min();
        self.upgrade_timeout = upgrade_timeout.filter(|_| self.request.is_upgrade);
        let pending_mirrors = self.prepare_mirrors(&resolved_route);
        let outcome = self.send_within_timeout(&request_target, &resolved_route).await;
        if let Some(pending_mirrors) = pending_mirrors {
            pending_mirrors.send_all(self.buffered_body_pieces());
        }
        outcome
    }

    /// Makes all attempts, within the timeout of the rule.
    async fn send_within_timeout(
        &mut self,
        request_target: &ParsedTarget<'_>,
        resolved_route: &ResolvedRoute,
    ) -> Result<(), Failure> {
        match resolved_route.timeout.filter(|_| !self.request.is_upgrade) {
            None => self.send_attempts(request_target, resolved_route).await,
            Some(limit) => {
                let timed_outcome = {
                    let _attempt_scope = cancel::AttemptScope;
                    let mut attempts = pin!(self.send_attempts(request_target, resolved_route));
                    let timed_outcome = tokio::time::timeout(limit, &mut attempts).await;
                    if timed_outcome.is_err() {
                        cancel::AttemptScope::mark_abandoned();
                    }
                    timed_outcome
                };
                timed_outcome.unwrap_or_else(|_| {
                    self.record_hedge(Hedge::Lost);
                    self.end_attempt(Err(Reason::RequestTimeout));
                    Err(Reason::RequestTimeout.into())
                })
            }
        }
    }

    /// Authorizes a request from another sidecar. Requests of the local application need no authorization.
    fn authorize_request(
        &mut self,
        request_target: &ParsedTarget<'_>,
        resolved_route: &ResolvedRoute,
    ) -> Result<(), Failure> {
        if self.session.is_inbound() {
            let request = self.request;
            self.authorize_by_policies(&request.request_view(request_target), resolved_route)?;
            self.apply_limits(&request.request_view(request_target), resolved_route)?;
        }
        Ok(())
    }

    /// Evaluates the authorization policies of the mesh.
    fn authorize_by_policies(
        &mut self,
        view: &RequestView<'_>,
        resolved_route: &ResolvedRoute,
    ) -> Result<(), Failure> {
        let access = &resolved_route.config.compiled.access;
        let peer_permit =
            self.session.authorize_peer(&resolved_route.config, self.record.started)?;
        let request_permit = access.authorize_request(&peer_permit, view)?;
        self.record.record_permit(access, request_permit);
        Ok(())
    }

    /// Applies the local rate and concurrency limits.
    fn apply_limits(
        &mut self,
        view: &RequestView<'_>,
        resolved_route: &ResolvedRoute,
    ) -> Result<(), Failure> {
        let Some(port) = self.limited_port(resolved_route) else { return Ok(()) };
        self.take_tokens(port, view, resolved_route)?;
        self.acquire_permit(port, view, resolved_route)
    }

    /// Returns the port on which the request arrived; `None` if no limit applies to it.
    fn limited_port(&self, resolved_route: &ResolvedRoute) -> Option<u16> {
        match &self.session.listener_kind {
            ListenerKind::Inbound { port } => {
                Some(*port).filter(|port| resolved_route.config.compiled.limits.has_limits(*port))
            }
            _ => None,
        }
    }

    /// Takes tokens of rate limits.
    #[inline(never)]
    fn take_tokens(
        &self,
        port: u16,
        view: &RequestView<'_>,
        resolved_route: &ResolvedRoute,
    ) -> Result<(), Failure> {
        let now = self.session.worker.config_store.age();
        Ok(resolved_route.config.compiled.limits.admit_request(
            port,
            view,
            self.client_account(),
            now,
        )?)
    }

    /// Acquires a concurrency permit of the application. If none is free, returns the rate limit tokens and
    /// fails.
    #[inline(never)]
    fn acquire_permit(
        &mut self,
        port: u16,
        view: &RequestView<'_>,
        resolved_route: &ResolvedRoute,
    ) -> Result<(), Failure> {
        let (worker, limits) = (&self.session.worker, &resolved_route.config.compiled.limits);
        let is_fully_sent = self.body.is_empty() && !self.request.is_upgrade;
        let acquire_result = limits.acquire_slot(port, is_fully_sent, worker.config_store.age());
        let slot = acquire_result
            .inspect_err(|_| limits.return_tokens(port, view, self.client_account()))?;
        let to_observer = |slot| {
            ResponseObserver::ConcurrencyPermit(Box::new(TimedPermit {
                slot,
                worker: worker.clone(),
            }))
        };
        self.observer = slot.map(to_observer);
        Ok(())
    }

    /// Returns the verified account of the client; `None` if the client has no certificate of the mesh.
    fn client_account(&self) -> Option<&ServiceAccount> {
        self.session.identity.as_ref().map(|identity| &identity.account)
    }

    /// Adds the headers of a lane to an inbound request, for the application to propagate; at a gateway, adds
    /// headers about the client.
    fn add_extra_headers(
        &mut self,
        request_target: &ParsedTarget<'_>,
        resolved_route: &ResolvedRoute,
    ) {
        let ListenerKind::Inbound { port } = &self.session.listener_kind else {
            if let Some(gateway_connection) = &self.session.gateway_connection {
                self.add_client_headers(gateway_connection, resolved_route.actions.as_ref());
            }
            return;
        };
        let lanes = &resolved_route.config.compiled.lanes;
        if lanes.may_add_headers(*port) {
            let view = self.request.request_view(request_target);
            let lane_headers = lanes
                .headers_for_request(*port, &view, &mut || self.session.worker.random_number());
            if let Some((origin, slot)) = lane_headers.rule {
                rule_matches::count_tags(&self.session.worker.metrics, origin, slot);
            }
            let missing_headers = lane_headers.missing_headers(&view);
            self.extra_headers =
                missing_headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        }
    }

    /// Returns the span of the request if it is traced.
    pub(crate) fn span(&self) -> Option<&TraceSpan> {
        self.record.trace.as_ref().and_then(|trace| trace.span.as_ref())
    }

    /// Returns the headers that are added to the request, `trace_headers` among them.
    pub(crate) fn added_headers<'b>(
        &'b self,
        trace_headers: Option<&'b PropagatedHeaders>,
    ) -> AddedHeaders<'b> {
        if self.extra_headers.is_empty() && trace_headers.is_none() && !self.session.detected_http2
        {
            return AddedHeaders::new();
        }
        let extra_headers =
            self.extra_headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        let mut added_headers: AddedHeaders<'b> = extra_headers.collect();
        for field in trace_headers.into_iter().flat_map(PropagatedHeaders::fields) {
            added_headers.push(field);
        }
        if self.session.detected_http2 && !self.session.is_inbound() && !self.request.is_upgrade {
            added_headers.extend(H2C_UPGRADE_HEADERS);
        }
        added_headers
    }

    /// Sends the request, and sends it again, to another endpoint if possible, while attempts fail in a way
    /// that permits a retry.
    async fn send_attempts(
        &mut self,
        target: &ParsedTarget<'_>,
        route: &ResolvedRoute,
    ) -> Result<(), Failure> {
        let fault_policy =
            route.fault_or_hedge_policy.as_ref().filter(|policy| policy.faults.is_some());
        if let Some(fault_policy) = fault_policy {
            self.inject_fault(target, route, fault_policy).await?;
        }
        let actions = self.actions.clone();
        let retry_rule = actions.as_ref().and_then(|actions| actions.retry.as_ref());
        let attempt_limit = self.attempt_limit();
        if let Some(retry_rule) = retry_rule {
            self.prepare_retry(retry_rule);
        }
        let mut previous_endpoint = None;
        loop {
            let outcome = {
                // The scope ends before the backoff, because other requests run on this thread during the
                // backoff.
                let _attempt_scope = attempt_limit.map(|_| cancel::AttemptScope);
                match self.hedge_rule(target, route) {
                    None => {
                        let attempt =
                            pin!(self.send_attempt(target, route, &mut previous_endpoint));
                        match attempt_limit {
                            None => attempt.await,
                            Some((limit, started)) => limit_attempt(limit, started, attempt).await,
                        }
                    }
                    // Boxed to keep the future small for other requests.
                    Some(hedge_rule) => {
                        let attempts = Box::pin(self.send_hedged(
                            target,
                            route,
                            hedge_rule,
                            &mut previous_endpoint,
                        ));
                        let hedged_outcome = match attempt_limit {
                            None => attempts.await,
                            Some((limit, started)) => limit_attempt(limit, started, attempts).await,
                        };
                        self.record_hedge(Hedge::Lost);
                        hedged_outcome
                    }
                }
            };
            let Err(reason) = outcome else { return Ok(()) };
            if reason == Reason::AttemptTimeout {
                self.end_attempt(outcome);
            }
            let is_retried = match retry_rule {
                None => {
                    self.may_repeat_attempt(reason, route)
                        && may_retry(reason, &self.failed_attempt(target, route))
                        && self.retry_slot.try_acquire(route.cluster.as_deref())
                }
                Some(retry_rule) => {
                    self.wait_for_policy_retry(retry_rule, reason, target, route).await
                }
            };
            if !is_retried {
                let failure = match &route.cluster {
                    Some(cluster) => cluster.failure_for(reason),
                    None => reason.into(),
                };
                // Boxed to keep the future small for other requests.
                return match self.detect_outdated(reason, target, route) {
                    Some(outdated) => Box::pin(self.reroute_request(failure, outdated)).await,
                    None => Err(failure),
                };
            }
            self.prepare_next_attempt(retry_rule.is_none());
        }
    }

    /// Returns the time limit of each attempt, and the flag that is true once the response has started; `None`
    /// without a limit, and for an upgrade.
    fn attempt_limit(&self) -> Option<(AttemptLimit, &'a Cell<bool>)> {
        let attempt_limit = self.actions.as_ref()?.attempt_limit?;
        (!self.request.is_upgrade).then_some((attempt_limit, self.response_started))
    }

    /// Picks the target of the next attempt: `avoided_endpoint` only if there is no other endpoint.
    fn pick_destination(
        &self,
        resolved_route: &ResolvedRoute,
        avoided_endpoint: Option<&EndpointId>,
    ) -> Result<AttemptTarget, Reason> {
        match &resolved_route.destination {
            Destination::Application(application) => {
                Ok(AttemptTarget::Application(application.clone()))
            }
            Destination::Endpoints(priorities) => {
                let cluster = resolved_route.cluster.as_deref();
                let session_upstream =
                    resolved_route.session_affinity.as_ref().and_then(|session_affinity| {
                        self.affinity_upstream(
                            session_affinity,
                            priorities,
                            cluster,
                            avoided_endpoint,
                        )
                    });
                let upstream = match session_upstream {
                    Some(session_upstream) => session_upstream,
                    None => pick_endpoint(
                        &self.session.worker,
                        priorities,
                        cluster,
                        resolved_route.hash_selection.as_ref(),
                        avoided_endpoint,
                    )?,
                };
                Ok(AttemptTarget::Upstream(upstream))
            }
            Destination::Redirected(_) => Err(Reason::NoEndpoint),
        }
    }

    /// Returns the upstream to which session persistence binds the client. `None` if the client has no session
    /// yet, or its endpoint may not be used.
    #[inline(never)]
    fn affinity_upstream(
        &self,
        session_affinity: &SessionAffinity,
        priorities: &Priorities,
        cluster: Option<&UpstreamCluster>,
        avoided_endpoint: Option<&EndpointId>,
    ) -> Option<Rc<Upstream>> {
        let worker = &self.session.worker;
        let endpoints = priorities.serving_endpoints(worker, cluster, avoided_endpoint);
        session_endpoint(
            worker,
            session_affinity.find_endpoint(endpoints)?,
            cluster,
            avoided_endpoint,
        )
    }

    /// Reports the endpoint of this attempt to a hedged attempt and, with session persistence, to the client.
    #[inline(never)]
    fn publish_endpoint(&mut self, endpoint: Option<&EndpointId>, resolved_route: &ResolvedRoute) {
        if let Some(hedge_state) = self.observer.as_ref().and_then(ResponseObserver::hedge_state) {
            hedge_state.record_first_endpoint(endpoint.cloned());
        }
        if let Some(session_affinity) = &resolved_route.session_affinity {
            self.affinity_field = self.affinity_response_field(session_affinity, endpoint);
        }
    }

    /// Returns the response field with which session persistence binds the client to this endpoint; `None` for
    /// the application.
    fn affinity_response_field(
        &self,
        session_affinity: &SessionAffinity,
        endpoint: Option<&EndpointId>,
    ) -> Option<Box<ResponseField>> {
        let is_https = self
            .session
            .gateway_connection
            .as_ref()
            .is_some_and(|connection| connection.scheme == Scheme::Https);
        session_affinity.response_field(endpoint?, date::since_epoch(), is_https).map(Box::new)
    }
}

/// Headers that inform the sidecar of an application without a declared protocol that the client uses HTTP/2.
/// Both fields are hop-by-hop, as in an offer to upgrade to HTTP/2 (RFC 7540 §3.2).
const H2C_UPGRADE_HEADERS: [(&str, &[u8]); 2] = [("connection", b"upgrade"), ("upgrade", b"h2c")];

/// Runs an attempt within the per-attempt timeout of its rule. `response_started`: true if part of the response
/// has reached the client. The caller holds a [`cancel::AttemptScope`].
async fn limit_attempt(
    limit: AttemptLimit,
    response_started: &Cell<bool>,
    attempt: impl Future<Output = Result<(), Reason>>,
) -> Result<(), Reason> {
    let mut attempt = pin!(attempt);
    match tokio::time::timeout(limit.time_limit(), &mut attempt).await {
        Ok(outcome) => outcome,
        Err(_) if limit.ends_with_head() && response_started.get() => attempt.await,
        Err(_) => {
            cancel::AttemptScope::mark_abandoned();
            Err(Reason::AttemptTimeout)
        }
    }
}
