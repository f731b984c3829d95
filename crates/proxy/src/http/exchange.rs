//! The corridor: one request, station by station, in one version of the world.

mod aside;
mod begun;
mod guarded;
mod hedged;
mod pinned;
mod rerouted;
mod shown;
mod witness;

pub(crate) use hedged::Beside;
pub(crate) use pinned::Pins;
use witness::Seat;
pub(crate) use witness::Witness;

use std::borrow::Cow;
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_model::{EndpointId, Reason, RetryRule, Scheme, ServiceAccount};
use leno_telemetry::GrpcStatus;
use leno_telemetry::trace::{FIELDS_MAX, Span, Written};
use leno_traffic::removal::Ending;
use leno_traffic::retry::{self, Setback};
use leno_traffic::{AttemptLimit, CompiledActions, FieldEdits, RequestView, Stay};
use leno_wire::link::ResetCode;
use smallvec::SmallVec;

use super::again;
use super::body::Source;
use super::date;
use super::forward::{Progress, forward};
use super::replay::Hold;
use super::request::{Aim, Request};
use super::rescue;
use super::respond::Responder;
use super::route::{Bound, Destination, route};
use super::scheme;
use crate::error::Failure;
use crate::hits;
use crate::http2::cancel;
use crate::record::{Hedge, Record};
use crate::session::{Entrance, Session};
use crate::upstream::gate::Retrying;
use crate::upstream::pick::{kept, pick};
use crate::upstream::priorities::Priorities;
use crate::upstream::ward::{Trial, Ward};
use crate::upstream::{Destined, Timed, Upstream};

/// Headers that are added to a request; those of a trace take no block.
pub(crate) type Added<'a> = SmallVec<[(&'a str, &'a [u8]); FIELDS_MAX]>;

/// A field of an answer: its name and its value.
pub(crate) type Named = (Cow<'static, str>, String);

/// One request on its way through the corridor, and what became of it so far.
pub(crate) struct Exchange<'a, 'io> {
    pub(crate) session: &'a Session,
    pub(crate) request: &'a Request<'a>,
    pub(crate) body: &'a mut Source<'io>,
    pub(crate) responder: &'a mut Responder<'io>,
    pub(crate) record: Record<'a>,
    pub(crate) progress: Progress,
    /// Part of the response may have reached the client.
    pub(crate) started: &'a Cell<bool>,
    /// How long the upstream may take to agree to another protocol.
    pub(crate) agree_within: Option<Duration>,
    /// What the rule that decided does to heads; `None` when that is nothing.
    pub(crate) actions: Option<Arc<CompiledActions>>,
    /// What is kept of the request's body for retries.
    pub(crate) held: Option<Rc<Hold>>,
    /// The same for copies and second attempts as well.
    kept: Option<Rc<Hold>>,
    /// Who must know when the client gets an answer.
    pub(crate) witness: Option<Witness>,
    /// What is done to the heads of answers beside what the rule says for all.
    pub(crate) cross_origin: Option<FieldEdits>,
    /// How long the attempt under way takes to be answered, at an endpoint.
    pub(crate) timed: Option<Timed>,
    /// The attempt under way, at an endpoint that a policy watches.
    pub(crate) trial: Option<Trial>,
    /// That it is sent once more, where that is bounded.
    pub(crate) retrying: Retrying,
    /// Headers that a lane adds at the entrance of a service.
    pub(crate) marks: Vec<(String, String)>,
    /// Under persistence: the field of the answer that tells who gives it.
    pub(crate) keeps: Option<Box<Named>>,
}

impl<'a, 'io> Exchange<'a, 'io> {
    pub(crate) fn new(
        session: &'a Session,
        request: &'a Request<'a>,
        body: &'a mut Source<'io>,
        (responder, started): (&'a mut Responder<'io>, &'a Cell<bool>),
    ) -> Self {
        // Made in place: a record that is made before and moved costs a copy for each request.
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
            witness: None,
            cross_origin: None,
            timed: None,
            trial: None,
            retrying: Retrying::default(),
            marks: Vec::new(),
            keeps: None,
        };
        if let Some(sighting) = &mut exchange.record.sighting {
            sighting.request(request, &session.worker);
        }
        exchange
    }

    /// Notes that the client's sidecar abandoned this attempt, and not the client the request.
    #[cold]
    pub(crate) fn abandon(&mut self) {
        self.record.abandon();
    }

    /// Carries the request to where it belongs and its answer back.
    ///
    /// # Errors
    /// The connection or stream that it came on cannot go on, and is reset by this code.
    pub(crate) async fn run(&mut self) -> Result<(), ResetCode> {
        let Err(mut failure) = self.walk().await else {
            self.record.succeed();
            return Ok(());
        };
        self.record.fail(&failure);
        if self.started.get() {
            // Half an answer is out: only a broken connection says that it is not whole.
            self.record.grpc.set(None);
            return Err(self.progress.reset.get().unwrap_or(ResetCode::Failed));
        }
        failure.reset = self.progress.reset.get();
        self.record.head.status.set(failure.status());
        // Over HTTP/1.1 there is no gRPC.
        let is_call = !matches!(self.responder, Responder::Http1 { .. }) && self.request.is_grpc();
        if is_call {
            self.record.grpc.set(Some(failure.grpc_status()));
        }
        if !self.body.is_complete() || self.session.worker.is_leaving() {
            self.responder.close_after();
        }
        let bodiless = self.request.method() == "HEAD";
        let edits = self.edits_of_failure();
        let form = (bodiless, is_call);
        let answered =
            rescue::answer(&failure, self.session, self.responder, form, edits.as_ref()).await;
        if answered { Ok(()) } else { Err(ResetCode::Failed) }
    }

    /// The stations: route → authorize → pick endpoint → lease connection → stream → (retry).
    async fn walk(&mut self) -> Result<(), Failure> {
        let mut aim = match self.request.aim() {
            Ok(aim) => aim,
            Err(reason) => scheme::aim(self.session, self.request, reason)?,
        };
        let bound = route(self.session, self.request, &aim, &mut self.record).await?;
        match &bound.scene.plans.guards {
            None => self.authorize(&aim, &bound)?,
            // Boxed, so that the others need no room for it.
            Some(guards) => Box::pin(self.authorize_guarded(guards, &aim, &bound)).await?,
        }
        if let Some(cors) = bound.actions.as_ref().and_then(|actions| actions.cors.as_ref())
            && let Some(preflight) = self.judge_origin(cors, &aim, &bound)
        {
            return self.answer(200, &preflight, None).await;
        }
        if let Destination::Redirected(redirection) = &bound.destination {
            return self.redirect(redirection, bound.actions.as_deref()).await;
        }
        if let Some(actions) = &bound.actions {
            if let Some(target) = actions.target(aim.path, aim.query) {
                aim.origin = Some(Cow::Owned(target));
            }
            self.actions = Some(actions.clone());
        }
        self.mark(&aim, &bound);
        // A limit on the request is none on what is said after an upgrade.
        let one = self.actions.as_ref().and_then(|actions| actions.attempt_limit);
        let one = one.map(AttemptLimit::time);
        let soonest = bound.timeout.into_iter().chain(one).min();
        self.agree_within = soonest.filter(|_| self.request.upgrade);
        let copies = self.copies(&bound);
        let outcome = self.in_time(&aim, &bound).await;
        if let Some(copies) = copies {
            copies.send(self.kept_body());
        }
        outcome
    }

    /// All attempts, in the time that the rule gives them.
    async fn in_time(&mut self, aim: &Aim<'_>, bound: &Bound) -> Result<(), Failure> {
        match bound.timeout.filter(|_| !self.request.upgrade) {
            None => self.attempts(aim, bound).await,
            Some(limit) => {
                let outcome = {
                    let _abandoned = cancel::Attempt;
                    let mut attempts = pin!(self.attempts(aim, bound));
                    let outcome = tokio::time::timeout(limit, &mut attempts).await;
                    if outcome.is_err() {
                        cancel::Attempt::abandon();
                    }
                    outcome
                };
                outcome.unwrap_or_else(|_| {
                    self.settle(Hedge::Lost);
                    self.end_attempt(Err(Reason::RequestTimeout));
                    Err(Reason::RequestTimeout.into())
                })
            }
        }
    }

    /// What comes from another sidecar needs a policy's permit; the application may ask.
    fn authorize(&mut self, aim: &Aim<'_>, bound: &Bound) -> Result<(), Failure> {
        if self.session.is_inbound() {
            let request = self.request;
            self.let_in(&request.view(aim), bound)?;
            self.limit(&request.view(aim), bound)?;
        }
        Ok(())
    }

    /// The policies of the mesh decide.
    fn let_in(&mut self, view: &RequestView<'_>, bound: &Bound) -> Result<(), Failure> {
        let access = &bound.scene.plans.access;
        let permit = self.session.permit(&bound.scene, self.record.started)?;
        let permit = access.request(&permit, view)?;
        self.record.permit(access, permit);
        Ok(())
    }

    /// What comes in beyond a limit goes no further.
    fn limit(&mut self, view: &RequestView<'_>, bound: &Bound) -> Result<(), Failure> {
        let Some(port) = self.limited(bound) else { return Ok(()) };
        self.admit(port, view, bound)?;
        self.enter(port, view, bound)
    }

    /// The port that the request comes in at, if anything limits that.
    fn limited(&self, bound: &Bound) -> Option<u16> {
        match &self.session.entrance {
            Entrance::Inbound { port } => {
                Some(*port).filter(|it| bound.scene.plans.limits.concern(*it))
            }
            _ => None,
        }
    }

    /// Takes tokens of rate limits.
    #[inline(never)]
    fn admit(&self, port: u16, view: &RequestView<'_>, bound: &Bound) -> Result<(), Failure> {
        let now = self.session.worker.world.age();
        Ok(bound.scene.plans.limits.admit(port, (view, self.caller()), now)?)
    }

    /// Takes a place among the requests that the application is given at once; without one the tokens go
    /// back.
    #[inline(never)]
    fn enter(&mut self, port: u16, view: &RequestView<'_>, bound: &Bound) -> Result<(), Failure> {
        let (worker, limits) = (&self.session.worker, &bound.scene.plans.limits);
        let is_whole = self.body.is_empty() && !self.request.upgrade;
        let place = limits.enter(port, is_whole, worker.world.age());
        let place = place.inspect_err(|_| limits.give_back(port, (view, self.caller())))?;
        let seat = |place| Witness::Place(Box::new(Seat { place, worker: worker.clone() }));
        self.witness = place.map(seat);
        Ok(())
    }

    fn caller(&self) -> Option<&ServiceAccount> {
        self.session.identity.as_ref().map(|identity| &identity.account)
    }

    /// What comes in may be marked as of a lane, for the application to carry on.
    fn mark(&mut self, aim: &Aim<'_>, bound: &Bound) {
        let Entrance::Inbound { port } = &self.session.entrance else {
            if let Some(edge) = &self.session.edge {
                self.tell_of_client(edge, bound.actions.as_ref());
            }
            return;
        };
        let lanes = &bound.scene.plans.lanes;
        if lanes.concern(*port) {
            let view = self.request.view(aim);
            let marks = lanes.mark(*port, &view, &mut || self.session.worker.draw());
            if let Some(rule) = marks.rule {
                hits::tags(&self.session.worker.shard, rule);
            }
            let missing = marks.missing(&view);
            self.marks = missing.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        }
    }

    /// Its place in a trace, when requests are traced.
    pub(crate) fn span(&self) -> Option<&Span> {
        self.record.sighting.as_ref().and_then(|sighting| sighting.span.as_ref())
    }

    /// The headers that are added to the request, `context` among them.
    pub(crate) fn added<'b>(&'b self, context: Option<&'b Written>) -> Added<'b> {
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

    /// Sends the request, to another endpoint if the first fails in a way that permits it.
    async fn attempts(&mut self, aim: &Aim<'_>, bound: &Bound) -> Result<(), Failure> {
        if let Some(treatment) = bound.unusual.as_ref().filter(|it| it.faults.is_some()) {
            self.inject(aim, bound, treatment).await?;
        }
        let actions = self.actions.clone();
        let rule = actions.as_ref().and_then(|actions| actions.retry.as_ref());
        let limit = actions.as_ref().and_then(|actions| actions.attempt_limit);
        let limit = limit.filter(|_| !self.request.upgrade).map(|limit| (limit, self.started));
        if let Some(rule) = rule {
            self.prepare(rule);
        }
        let mut tried = None;
        loop {
            let outcome = {
                // It ends before the pause for a retry: other requests run meanwhile.
                let _abandoned = limit.map(|_| cancel::Attempt);
                match self.hedge(aim, bound) {
                    None => {
                        let attempt = pin!(self.attempt(aim, bound, &mut tried));
                        match limit {
                            None => attempt.await,
                            Some(limit) => in_limit(limit, attempt).await,
                        }
                    }
                    // Boxed, so that the others need no room for it.
                    Some(rule) => {
                        let both = Box::pin(self.hedged((aim, bound), rule, &mut tried));
                        let outcome = match limit {
                            None => both.await,
                            Some(limit) => in_limit(limit, both).await,
                        };
                        self.settle(Hedge::Lost);
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
                        && retry::retry(reason, &self.attempt_so_far((aim, bound)))
                        && self.retrying.claim(bound.ward.as_deref())
                }
                Some(rule) => self.is_tried_again(rule, reason, (aim, bound)).await,
            };
            if !again {
                let failure = match &bound.ward {
                    Some(ward) => ward.failure(reason),
                    None => reason.into(),
                };
                // Boxed, so that the others need no room for it.
                return match self.outdated(reason, (aim, bound)) {
                    Some(outdated) => Box::pin(self.reroute(failure, outdated)).await,
                    None => Err(failure),
                };
            }
            self.begin_again(rule.is_none());
        }
    }

    /// Pays into the budget, and keeps the request's body for another attempt.
    fn prepare(&mut self, rule: &RetryRule) {
        if rule.attempts == 0 {
            return;
        }
        again::pay_in(&self.session.worker, self.record.subject.service.as_ref());
        if !self.body.is_empty() && !self.request.upgrade {
            self.held = Some(self.keep_body());
        }
    }

    /// Under a rule: whether the request is sent once more; then this waits until it is time.
    async fn is_tried_again(
        &mut self,
        rule: &RetryRule,
        reason: Reason,
        (aim, bound): (&Aim<'_>, &Bound),
    ) -> bool {
        let worker = &self.session.worker;
        let attempt = self.attempt_so_far((aim, bound));
        // An answer that was kept from the client is paid for.
        let again = self.progress.kept_back.get().is_some()
            || (retry::retry_by_rule(rule, Setback::Failed(reason), &attempt)
                && self.retrying.claim(bound.ward.as_deref())
                && again::pays(worker, self.record.subject.service.as_ref()));
        if again {
            tokio::time::sleep(retry::pause(rule, attempt.number, worker.draw())).await;
            self.body.rewind();
            self.record.bytes_in.set(0);
        }
        again
    }

    /// There is one application. Whether another is asked is for the client's sidecar to say; a
    /// kept connection that was just closing proves nothing, and is ours alone. So is a connection of HTTP/2 that the application
    /// ended before it looked at the request.
    fn may_repeat(&self, reason: Reason, bound: &Bound) -> bool {
        match bound.destination {
            Destination::Application(_) => {
                self.progress.on_reused || reason == Reason::UpstreamRefused
            }
            Destination::Endpoints(_) | Destination::Redirected(_) => true,
        }
    }

    async fn attempt(
        &mut self,
        aim: &Aim<'_>,
        bound: &Bound,
        tried: &mut Option<EndpointId>,
    ) -> Result<(), Reason> {
        let (destined, own) = match self.is_private() {
            false => (self.pick(bound, tried.as_ref())?, None),
            true => self.private(bound, tried.as_ref())?,
        };
        *tried = destined.endpoint();
        if self.witness.is_some() || bound.stay.is_some() {
            self.goes_to(tried.as_ref(), bound);
        }
        if let Some(ward) = &bound.ward {
            self.trial = destined.begin(ward)?;
        }
        self.timed = destined.enter();
        if let Some(sighting) = &mut self.record.sighting {
            sighting.upstream = Some(destined.address());
        }
        let lease = if self.progress.pins {
            let lease = Box::pin(self.lease_private(&destined, own));
            match &bound.ward {
                None => lease.await,
                Some(ward) => Box::pin(ward.wait(lease)).await,
            }
        } else {
            let (worker, found_http2) = (&self.session.worker, self.session.found_http2);
            let wait = again::Prospect { bound, retries: self.record.retries };
            let lease = destined.lease(worker, self.timed.as_ref(), (found_http2, wait));
            let lease = pin!(lease);
            match &bound.ward {
                None => lease.await,
                Some(ward) => ward.wait(lease).await,
            }
        };
        let outcome = match lease {
            Ok(lease) => {
                let outcome = forward(self, aim, &destined, lease).await;
                destined.learn(&self.session.worker, outcome);
                outcome
            }
            // Who connects has learned by itself.
            Err(reason) => Err(reason),
        };
        self.end_attempt(outcome);
        outcome
    }

    /// Tells who learns from it how the attempt ended.
    #[inline]
    fn end_attempt(&mut self, outcome: Result<(), Reason>) {
        if let (Some(timed), Err(reason)) = (&self.timed, outcome) {
            timed.ends(reason);
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
            // It did answer, whatever the client hears.
            (Err(_), Some(kept)) => answered(kept.status, kept.grpc),
            (Err(reason), None) => Ending::Broken(reason),
        };
        trial.end(&self.session.worker, ending);
    }

    fn pick(&self, bound: &Bound, avoid: Option<&EndpointId>) -> Result<Destined, Reason> {
        match &bound.destination {
            Destination::Application(application) => Ok(Destined::Application(application.clone())),
            Destination::Endpoints(priorities) => {
                let at = (priorities, bound.ward.as_deref());
                let kept = bound.stay.as_ref().and_then(|stay| self.kept(stay, at, avoid));
                let upstream = match kept {
                    Some(kept) => kept,
                    None => pick(&self.session.worker, at, bound.hashed.as_ref(), avoid)?,
                };
                Ok(Destined::Upstream(upstream))
            }
            Destination::Redirected(_) => Err(Reason::NoEndpoint),
        }
    }

    /// Under persistence: the endpoint that the request keeps to, if it may.
    #[inline(never)]
    fn kept(
        &self,
        stay: &Stay,
        (priorities, ward): (&Priorities, Option<&Ward>),
        avoid: Option<&EndpointId>,
    ) -> Option<Rc<Upstream>> {
        let worker = &self.session.worker;
        let endpoints = priorities.serving(worker, ward, avoid);
        kept(worker, (stay.endpoint(endpoints)?, ward), avoid)
    }

    /// Who goes on beside this attempt knows where that goes, and under persistence the client will.
    #[inline(never)]
    fn goes_to(&mut self, endpoint: Option<&EndpointId>, bound: &Bound) {
        if let Some(beside) = self.witness.as_ref().and_then(Witness::beside) {
            beside.went(endpoint.cloned());
        }
        if let Some(stay) = &bound.stay {
            self.keeps = self.told_of(stay, endpoint);
        }
    }

    /// Under persistence: what the client is told when this endpoint answers.
    fn told_of(&self, stay: &Stay, answers: Option<&EndpointId>) -> Option<Box<Named>> {
        let is_safe = self.session.edge.as_ref().is_some_and(|edge| edge.scheme == Scheme::Https);
        stay.field(answers?, date::since_epoch(), is_safe).map(Box::new)
    }
}

/// Tells the sidecar of an application without a declared protocol that the client speaks HTTP/2. Both fields are for one hop,
/// and mean the same there as from a client that offers to go on in HTTP/2 (RFC 7540 §3.2).
const HTTP2_MARK: [(&str, &[u8]); 2] = [("connection", b"upgrade"), ("upgrade", b"h2c")];

/// An attempt, in the time of its rule. `started`: the client has a part of the answer. The caller has a [`cancel::Attempt`].
async fn in_limit(
    (limit, started): (AttemptLimit, &Cell<bool>),
    attempt: impl Future<Output = Result<(), Reason>>,
) -> Result<(), Reason> {
    let mut attempt = pin!(attempt);
    match tokio::time::timeout(limit.time(), &mut attempt).await {
        Ok(outcome) => outcome,
        Err(_) if limit.is_of_head() && started.get() => attempt.await,
        Err(_) => {
            cancel::Attempt::abandon();
            Err(Reason::AttemptTimeout)
        }
    }
}
