//! The request pipeline: one request, stage by stage, under one configuration snapshot.

mod aside;
mod begun;
mod guarded;
mod hedged;
mod observer;
mod pinned;
mod rerouted;
mod shown;

pub(crate) use hedged::Beside;
pub(crate) use observer::ResponseObserver;
use observer::Seat;
pub(crate) use pinned::Pins;

use std::borrow::Cow;
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_model::{EndpointId, Reason, RetryRule, Scheme, ServiceAccount};
use leno_telemetry::GrpcStatus;
use leno_telemetry::trace::{FIELDS_MAX, Span, Written};
use leno_traffic::outlier::Ending;
use leno_traffic::retry::{self, Setback};
use leno_traffic::{AttemptLimit, CompiledActions, FieldEdits, RequestView, Stay};
use leno_wire::link::ResetCode;
use smallvec::SmallVec;

use super::again;
use super::body::Source;
use super::date;
use super::forward::{Progress, forward_request};
use super::replay::Hold;
use super::request::{Aim, Request};
use super::rescue;
use super::respond::Responder;
use super::route::{Bound, Destination, route_request};
use super::scheme;
use crate::error::Failure;
use crate::http2::cancel;
use crate::record::{Hedge, Record};
use crate::rule_matches;
use crate::session::{ListenerKind, Session};
use crate::upstream::cluster::{Trial, UpstreamCluster};
use crate::upstream::gate::Retrying;
use crate::upstream::pick::{pick_endpoint, session_endpoint};
use crate::upstream::priorities::Priorities;
use crate::upstream::{Destined, Timed, Upstream};

/// Headers that are added to a request; those of a trace context need no allocation.
pub(crate) type Added<'a> = SmallVec<[(&'a str, &'a [u8]); FIELDS_MAX]>;

/// A response field: name and value.
pub(crate) type Named = (Cow<'static, str>, String);

/// One request in the pipeline, and its state so far.
pub(crate) struct Exchange<'a, 'io> {
    pub(crate) session: &'a Session,
    pub(crate) request: &'a Request<'a>,
    pub(crate) body: &'a mut Source<'io>,
    pub(crate) responder: &'a mut Responder<'io>,
    pub(crate) record: Record<'a>,
    pub(crate) progress: Progress,
    /// Part of the response may have reached the client.
    pub(crate) started: &'a Cell<bool>,
    /// The time limit for the upstream to accept a protocol upgrade.
    pub(crate) agree_within: Option<Duration>,
    /// The header changes of the selected rule; `None` if there are none.
    pub(crate) actions: Option<Arc<CompiledActions>>,
    /// The part of the request's body that is buffered for retries.
    pub(crate) held: Option<Rc<Hold>>,
    /// The same buffer, also for mirrored copies and hedged attempts.
    kept: Option<Rc<Hold>>,
    /// The observer notified when the response starts.
    pub(crate) observer: Option<ResponseObserver>,
    /// The response header changes with CORS, including those of the rule.
    pub(crate) cross_origin: Option<FieldEdits>,
    /// The latency measurement of the current attempt, at an endpoint.
    pub(crate) timed: Option<Timed>,
    /// The outcome guard of the current attempt, at an endpoint with a circuit breaker or outlier detection.
    pub(crate) trial: Option<Trial>,
    /// The slot of this request in a limit on concurrent retries.
    pub(crate) retrying: Retrying,
    /// Headers that are added for the application or the next hop: of a lane, or about an external client.
    pub(crate) marks: Vec<(String, String)>,
    /// With session persistence: the response field that identifies the endpoint.
    pub(crate) keeps: Option<Box<Named>>,
}

impl<'a, 'io> Exchange<'a, 'io> {
    pub(crate) fn new(
        session: &'a Session,
        request: &'a Request<'a>,
        body: &'a mut Source<'io>,
        responder: &'a mut Responder<'io>,
        started: &'a Cell<bool>,
    ) -> Self {
        // Constructed in place: moving a record costs a copy for each request.
        let mut exchange = Self {
            session,
            request,
            body,
            responder,
            record: Record::open(session, "http"),
            progress: Progress::default(),
            started,
            agree_within: None,
            actions: None,
            held: None,
            kept: None,
            observer: None,
            cross_origin: None,
            timed: None,
            trial: None,
            retrying: Retrying::default(),
            marks: Vec::new(),
            keeps: None,
        };
        if let Some(trace) = &mut exchange.record.trace {
            trace.record_request(request, &session.worker);
        }
        exchange
    }

    /// Records that the client's sidecar abandoned this attempt, as opposed to the client abandoning the
    /// request.
    #[cold]
    pub(crate) fn abandon(&mut self) {
        self.record.mark_abandoned();
    }

    /// Forwards the request to its destination and the response back.
    ///
    /// # Errors
    /// The connection or stream of the client cannot continue, and is reset with this code.
    pub(crate) async fn run(&mut self) -> Result<(), ResetCode> {
        let Err(mut failure) = self.run_stages().await else {
            self.record.mark_succeeded();
            return Ok(());
        };
        self.record.record_failure(&failure);
        if self.started.get() {
            // A part of the response has been sent: only a broken connection tells the client that it is
            // incomplete.
            self.record.grpc.set(None);
            return Err(self.progress.reset.get().unwrap_or(ResetCode::Failed));
        }
        failure.reset = self.progress.reset.get();
        self.record.head.status.set(failure.status());
        // gRPC is not supported over HTTP/1.1.
        let is_call = !matches!(self.responder, Responder::Http1 { .. }) && self.request.is_grpc();
        if is_call {
            self.record.grpc.set(Some(failure.grpc_status()));
        }
        if !self.body.is_complete() || self.session.worker.is_leaving() {
            self.responder.close_after();
        }
        let bodiless = self.request.method() == "HEAD";
        let edits = self.edits_of_failure();
        let answered = rescue::send_error(
            &failure,
            self.session,
            self.responder,
            bodiless,
            is_call,
            edits.as_ref(),
        )
        .await;
        if answered { Ok(()) } else { Err(ResetCode::Failed) }
    }

    /// The stages: route → authorize → pick endpoint → acquire connection → stream → (retry).
    async fn run_stages(&mut self) -> Result<(), Failure> {
        let mut aim = match self.request.parse_target() {
            Ok(aim) => aim,
            Err(reason) => scheme::parse_target(self.session, self.request, reason)?,
        };
        let bound = route_request(self.session, self.request, &aim, &mut self.record).await?;
        match &bound.config.plans.guards {
            None => self.authorize_request(&aim, &bound)?,
            // Boxed to keep the future small for other requests.
            Some(guards) => Box::pin(self.authorize_guarded(guards, &aim, &bound)).await?,
        }
        if let Some(cors) = bound.actions.as_ref().and_then(|actions| actions.cors.as_ref())
            && let Some(preflight) = self.judge_origin(cors, &aim, &bound)
        {
            return self.send_empty(200, &preflight, None).await;
        }
        if let Destination::Redirected(redirection) = &bound.destination {
            return self.send_redirect(redirection, bound.actions.as_deref()).await;
        }
        if let Some(actions) = &bound.actions {
            if let Some(target) = actions.rewritten_target(aim.path, aim.query) {
                aim.origin = Some(Cow::Owned(target));
            }
            self.actions = Some(actions.clone());
        }
        self.add_marks(&aim, &bound);
        // The time limit of a request does not apply to an upgraded connection.
        let one = self.actions.as_ref().and_then(|actions| actions.attempt_limit);
        let one = one.map(AttemptLimit::time_limit);
        let soonest = bound.timeout.into_iter().chain(one).min();
        self.agree_within = soonest.filter(|_| self.request.upgrade);
        let copies = self.prepare_mirrors(&bound);
        let outcome = self.in_time(&aim, &bound).await;
        if let Some(copies) = copies {
            copies.send_all(self.kept_body());
        }
        outcome
    }

    /// Makes all attempts, within the timeout of the rule.
    async fn in_time(&mut self, aim: &Aim<'_>, bound: &Bound) -> Result<(), Failure> {
        match bound.timeout.filter(|_| !self.request.upgrade) {
            None => self.send_attempts(aim, bound).await,
            Some(limit) => {
                let outcome = {
                    let _abandoned = cancel::Attempt;
                    let mut attempts = pin!(self.send_attempts(aim, bound));
                    let outcome = tokio::time::timeout(limit, &mut attempts).await;
                    if outcome.is_err() {
                        cancel::Attempt::mark_abandoned();
                    }
                    outcome
                };
                outcome.unwrap_or_else(|_| {
                    self.record_hedge(Hedge::Lost);
                    self.end_attempt(Err(Reason::RequestTimeout));
                    Err(Reason::RequestTimeout.into())
                })
            }
        }
    }

    /// Authorizes a request from another sidecar. Requests of the local application need no authorization.
    fn authorize_request(&mut self, aim: &Aim<'_>, bound: &Bound) -> Result<(), Failure> {
        if self.session.is_inbound() {
            let request = self.request;
            self.let_in(&request.request_view(aim), bound)?;
            self.apply_limits(&request.request_view(aim), bound)?;
        }
        Ok(())
    }

    /// Evaluates the authorization policies of the mesh.
    fn let_in(&mut self, view: &RequestView<'_>, bound: &Bound) -> Result<(), Failure> {
        let access = &bound.config.plans.access;
        let permit = self.session.authorize_peer(&bound.config, self.record.started)?;
        let permit = access.authorize_request(&permit, view)?;
        self.record.record_permit(access, permit);
        Ok(())
    }

    /// Applies the local rate and concurrency limits.
    fn apply_limits(&mut self, view: &RequestView<'_>, bound: &Bound) -> Result<(), Failure> {
        let Some(port) = self.limited_port(bound) else { return Ok(()) };
        self.take_tokens(port, view, bound)?;
        self.acquire_permit(port, view, bound)
    }

    /// Returns the port on which the request arrived, if any limit applies to it.
    fn limited_port(&self, bound: &Bound) -> Option<u16> {
        match &self.session.listener_kind {
            ListenerKind::Inbound { port } => {
                Some(*port).filter(|it| bound.config.plans.limits.has_limits(*it))
            }
            _ => None,
        }
    }

    /// Takes tokens of rate limits.
    #[inline(never)]
    fn take_tokens(&self, port: u16, view: &RequestView<'_>, bound: &Bound) -> Result<(), Failure> {
        let now = self.session.worker.world.age();
        Ok(bound.config.plans.limits.admit_request(port, view, self.caller_account(), now)?)
    }

    /// Acquires a concurrency permit of the application; returns the tokens if there is none.
    #[inline(never)]
    fn acquire_permit(
        &mut self,
        port: u16,
        view: &RequestView<'_>,
        bound: &Bound,
    ) -> Result<(), Failure> {
        let (worker, limits) = (&self.session.worker, &bound.config.plans.limits);
        let is_whole = self.body.is_empty() && !self.request.upgrade;
        let place = limits.acquire_permit(port, is_whole, worker.world.age());
        let place = place.inspect_err(|_| limits.give_back(port, view, self.caller_account()))?;
        let seat =
            |place| ResponseObserver::Place(Box::new(Seat { place, worker: worker.clone() }));
        self.observer = place.map(seat);
        Ok(())
    }

    fn caller_account(&self) -> Option<&ServiceAccount> {
        self.session.identity.as_ref().map(|identity| &identity.account)
    }

    /// Adds the marks of a lane to an inbound request, for the application to propagate; at a gateway, adds
    /// headers about the client.
    fn add_marks(&mut self, aim: &Aim<'_>, bound: &Bound) {
        let ListenerKind::Inbound { port } = &self.session.listener_kind else {
            if let Some(edge) = &self.session.edge {
                self.tell_of_client(edge, bound.actions.as_ref());
            }
            return;
        };
        let lanes = &bound.config.plans.lanes;
        if lanes.may_mark(*port) {
            let view = self.request.request_view(aim);
            let marks = lanes.marks_for(*port, &view, &mut || self.session.worker.random_number());
            if let Some(rule) = marks.rule {
                rule_matches::count_tags(&self.session.worker.shard, rule.0, rule.1);
            }
            let missing = marks.missing_headers(&view);
            self.marks = missing.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        }
    }

    /// Returns the span of the request if it is traced.
    pub(crate) fn span(&self) -> Option<&Span> {
        self.record.trace.as_ref().and_then(|trace| trace.span.as_ref())
    }

    /// Returns the headers that are added to the request, `context` among them.
    pub(crate) fn added_headers<'b>(&'b self, context: Option<&'b Written>) -> Added<'b> {
        if self.marks.is_empty() && context.is_none() && !self.session.found_http2 {
            return Added::new();
        }
        let marks = self.marks.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        let mut added: Added<'b> = marks.collect();
        for field in context.into_iter().flat_map(Written::fields) {
            added.push(field);
        }
        if self.session.found_http2 && !self.session.is_inbound() && !self.request.upgrade {
            added.extend(HTTP2_MARK);
        }
        added
    }

    /// Sends the request, and to another endpoint if the first attempt fails in a way that permits it.
    async fn send_attempts(&mut self, aim: &Aim<'_>, bound: &Bound) -> Result<(), Failure> {
        if let Some(traffic_policy) = bound.unusual.as_ref().filter(|it| it.faults.is_some()) {
            self.inject_fault(aim, bound, traffic_policy).await?;
        }
        let actions = self.actions.clone();
        let rule = actions.as_ref().and_then(|actions| actions.retry.as_ref());
        let limit = actions.as_ref().and_then(|actions| actions.attempt_limit);
        let limit = limit.filter(|_| !self.request.upgrade).map(|limit| (limit, self.started));
        if let Some(rule) = rule {
            self.prepare_retry(rule);
        }
        let mut tried = None;
        loop {
            let outcome = {
                // Dropped before the backoff: other requests run meanwhile.
                let _abandoned = limit.map(|_| cancel::Attempt);
                match self.hedge_rule(aim, bound) {
                    None => {
                        let attempt = pin!(self.send_attempt(aim, bound, &mut tried));
                        match limit {
                            None => attempt.await,
                            Some(limit) => in_limit(limit.0, limit.1, attempt).await,
                        }
                    }
                    // Boxed to keep the future small for other requests.
                    Some(rule) => {
                        let both = Box::pin(self.send_hedged(aim, bound, rule, &mut tried));
                        let outcome = match limit {
                            None => both.await,
                            Some(limit) => in_limit(limit.0, limit.1, both).await,
                        };
                        self.record_hedge(Hedge::Lost);
                        outcome
                    }
                }
            };
            let Err(reason) = outcome else {
                return Ok(());
            };
            if reason == Reason::AttemptTimeout {
                self.end_attempt(outcome);
            }
            let again = match rule {
                None => {
                    self.may_repeat(reason, bound)
                        && retry::may_retry(reason, &self.attempt_so_far(aim, bound))
                        && self.retrying.try_claim(bound.cluster.as_deref())
                }
                Some(rule) => self.is_tried_again(rule, reason, aim, bound).await,
            };
            if !again {
                let failure = match &bound.cluster {
                    Some(cluster) => cluster.failure_for(reason),
                    None => reason.into(),
                };
                // Boxed to keep the future small for other requests.
                return match self.detect_outdated(reason, (aim, bound)) {
                    Some(outdated) => Box::pin(self.reroute_request(failure, outdated)).await,
                    None => Err(failure),
                };
            }
            self.begin_again(rule.is_none());
        }
    }

    /// Credits the retry budget, and buffers the request's body for another attempt.
    fn prepare_retry(&mut self, rule: &RetryRule) {
        if rule.attempts == 0 {
            return;
        }
        again::pay_in(&self.session.worker, self.record.subject.service.as_ref());
        if !self.body.is_empty() && !self.request.upgrade {
            self.held = Some(self.keep_body());
        }
    }

    /// Decides under a retry policy if the request is retried, and waits for the backoff.
    async fn is_tried_again(
        &mut self,
        rule: &RetryRule,
        reason: Reason,
        aim: &Aim<'_>,
        bound: &Bound,
    ) -> bool {
        let worker = &self.session.worker;
        let attempt = self.attempt_so_far(aim, bound);
        // A withheld response has already been charged to the budget.
        let again = self.progress.kept_back.get().is_some()
            || (retry::retry_by_rule(rule, Setback::Failed(reason), &attempt)
                && self.retrying.try_claim(bound.cluster.as_deref())
                && again::charge_retry(worker, self.record.subject.service.as_ref()));
        if again {
            tokio::time::sleep(retry::retry_pause(rule, attempt.number, worker.random_number()))
                .await;
            self.body.rewind();
            self.record.bytes_in.set(0);
        }
        again
    }

    /// There is only one application: retries elsewhere are up to the client's sidecar. A pooled connection
    /// that was just closing is a local matter, and proves no failure. The same holds for an HTTP/2 connection
    /// that the application closed before it processed the request.
    fn may_repeat(&self, reason: Reason, bound: &Bound) -> bool {
        match bound.destination {
            Destination::Application(_) => {
                self.progress.on_reused || reason == Reason::UpstreamRefused
            }
            Destination::Endpoints(_) | Destination::Redirected(_) => true,
        }
    }

    async fn send_attempt(
        &mut self,
        aim: &Aim<'_>,
        bound: &Bound,
        tried: &mut Option<EndpointId>,
    ) -> Result<(), Reason> {
        let (destined, own) = match self.is_private() {
            false => (self.pick_destination(bound, tried.as_ref())?, None),
            true => self.private_destination(bound, tried.as_ref())?,
        };
        *tried = destined.endpoint_id();
        if self.observer.is_some() || bound.stay.is_some() {
            self.goes_to(tried.as_ref(), bound);
        }
        if let Some(cluster) = &bound.cluster {
            self.trial = destined.start_attempt(cluster)?;
        }
        self.timed = destined.start_timed();
        if let Some(trace) = &mut self.record.trace {
            trace.upstream = Some(destined.address());
        }
        let checkout = if self.progress.pins {
            let checkout = Box::pin(self.checkout_private(&destined, own));
            match &bound.cluster {
                None => checkout.await,
                Some(cluster) => Box::pin(cluster.wait_for_connection(checkout)).await,
            }
        } else {
            let (worker, found_http2) = (&self.session.worker, self.session.found_http2);
            let wait = again::Prospect { bound, retries: self.record.retries };
            let checkout = destined.acquire(worker, self.timed.as_ref(), found_http2, wait);
            let checkout = pin!(checkout);
            match &bound.cluster {
                None => checkout.await,
                Some(cluster) => cluster.wait_for_connection(checkout).await,
            }
        };
        let outcome = match checkout {
            Ok(checkout) => {
                let outcome = forward_request(self, aim, &destined, checkout).await;
                destined.record_outcome(&self.session.worker, outcome);
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
    fn end_attempt(&mut self, outcome: Result<(), Reason>) {
        if let (Some(timed), Err(reason)) = (&self.timed, outcome) {
            timed.record_failure(reason);
        }
        self.timed = None;
        if let Some(trial) = self.trial.take() {
            self.end_trial(trial, outcome);
        }
    }

    fn end_trial(&self, trial: Trial, outcome: Result<(), Reason>) {
        let answered = |status, grpc: Option<GrpcStatus>| Ending::Answered {
            status,
            grpc: grpc.map(GrpcStatus::code),
        };
        let ending = match (outcome, self.progress.kept_back.get()) {
            (Ok(()), _) => answered(self.record.head.status.get(), self.record.grpc.get()),
            // The endpoint has responded, even if the client does not receive that response.
            (Err(_), Some(kept)) => answered(kept.status, kept.grpc),
            (Err(reason), None) => Ending::Broken(reason),
        };
        trial.finish(&self.session.worker, ending);
    }

    fn pick_destination(
        &self,
        bound: &Bound,
        avoid: Option<&EndpointId>,
    ) -> Result<Destined, Reason> {
        match &bound.destination {
            Destination::Application(application) => Ok(Destined::Application(application.clone())),
            Destination::Endpoints(priorities) => {
                let at = (priorities, bound.cluster.as_deref());
                let kept = bound
                    .stay
                    .as_ref()
                    .and_then(|stay| self.session_endpoint(stay, at.0, at.1, avoid));
                let upstream = match kept {
                    Some(kept) => kept,
                    None => pick_endpoint(
                        &self.session.worker,
                        at.0,
                        at.1,
                        bound.hashed.as_ref(),
                        avoid,
                    )?,
                };
                Ok(Destined::Upstream(upstream))
            }
            Destination::Redirected(_) => Err(Reason::NoEndpoint),
        }
    }

    /// With session persistence: returns the endpoint of the session, if it may be used.
    #[inline(never)]
    fn session_endpoint(
        &self,
        stay: &Stay,
        priorities: &Priorities,
        cluster: Option<&UpstreamCluster>,
        avoid: Option<&EndpointId>,
    ) -> Option<Rc<Upstream>> {
        let worker = &self.session.worker;
        let endpoints = priorities.serving_endpoints(worker, cluster, avoid);
        session_endpoint(worker, stay.find_endpoint(endpoints)?, cluster, avoid)
    }

    /// Publishes the endpoint of this attempt to a hedged attempt and, with session persistence, to the client.
    #[inline(never)]
    fn goes_to(&mut self, endpoint: Option<&EndpointId>, bound: &Bound) {
        if let Some(beside) = self.observer.as_ref().and_then(ResponseObserver::hedge_state) {
            beside.record_first(endpoint.cloned());
        }
        if let Some(stay) = &bound.stay {
            self.keeps = self.known_of(stay, endpoint);
        }
    }

    /// With session persistence: returns the response field for a response of this endpoint.
    fn known_of(&self, stay: &Stay, answers: Option<&EndpointId>) -> Option<Box<Named>> {
        let is_safe = self.session.edge.as_ref().is_some_and(|edge| edge.scheme == Scheme::Https);
        stay.response_field(answers?, date::since_epoch(), is_safe).map(Box::new)
    }
}

/// Tells the sidecar of an application without a declared protocol that the client uses HTTP/2. Both fields are
/// hop-by-hop, and have the same meaning as from a client that offers an upgrade to HTTP/2 (RFC 7540 §3.2).
const HTTP2_MARK: [(&str, &[u8]); 2] = [("connection", b"upgrade"), ("upgrade", b"h2c")];

/// Runs an attempt within the per-attempt timeout of its rule. `started`: part of the response has reached the
/// client. The caller holds a [`cancel::Attempt`].
async fn in_limit(
    limit: AttemptLimit,
    started: &Cell<bool>,
    attempt: impl Future<Output = Result<(), Reason>>,
) -> Result<(), Reason> {
    let mut attempt = pin!(attempt);
    match tokio::time::timeout(limit.time_limit(), &mut attempt).await {
        Ok(outcome) => outcome,
        Err(_) if limit.is_of_head() && started.get() => attempt.await,
        Err(_) => {
            cancel::Attempt::mark_abandoned();
            Err(Reason::AttemptTimeout)
        }
    }
}
