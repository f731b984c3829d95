//! Stations off the usual way of a request: redirections, answers of the sidecar, pages of other origins, copies, faults on purpose.

use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use bytes::BytesMut;
use leno_model::{Cors, Reason};
use leno_telemetry::Count;
use leno_telemetry::trace::Written;
use leno_traffic::cors::{CrossOrigin, judge};
use leno_traffic::fault::Injected;
use leno_traffic::treatment::PortTreatment;
use leno_traffic::{CompiledActions, FieldEdits, Redirection, Ruling};
use leno_wire::http1::{Framing, write_request};

use super::Exchange;
use crate::error::Failure;
use crate::hits;
use crate::http::answer::Answer;
use crate::http::body::Piece;
use crate::http::forward::edits;
use crate::http::mirror::{self, Copies};
use crate::http::replay::Hold;
use crate::http::request::Aim;
use crate::http::route::Bound;
use crate::http::trailers;

impl Exchange<'_, '_> {
    /// Sends the client elsewhere; nothing of its request goes on.
    pub(super) async fn redirect(
        &mut self,
        redirection: &Redirection,
        actions: Option<&CompiledActions>,
    ) -> Result<(), Failure> {
        let fields = [("location", redirection.location.clone())];
        let cross_origin = self.cross_origin.take();
        let edits = cross_origin.as_ref().or(actions.map(|actions| &actions.response));
        self.answer(redirection.status, &fields, edits).await
    }

    /// Answers without a body; nothing of the request goes on.
    pub(super) async fn answer(
        &mut self,
        status: u16,
        fields: &[(&str, String)],
        edits: Option<&FieldEdits>,
    ) -> Result<(), Failure> {
        self.record.head.status.set(status);
        self.started.set(true);
        if !self.body.is_complete() || self.session.worker.is_leaving() {
            self.responder.close_after();
        }
        let fields: Vec<(&str, &str)> =
            fields.iter().map(|(name, value)| (*name, &**value)).collect();
        let answer =
            Answer { status, fields: &fields, text: "", edits, rejects: false, to_sidecar: false };
        match answer.send(self.responder, true).await {
            true => Ok(()),
            false => Err(Reason::DownstreamClosed.into()),
        }
    }

    /// What pages of other origins may: the answer to a browser that asks, or edits of the answer
    /// that is to come.
    pub(super) fn judge_origin(
        &mut self,
        cors: &Cors,
        aim: &Aim<'_>,
        bound: &Bound,
    ) -> Option<Vec<(&'static str, String)>> {
        let edits = bound.actions.as_ref().map(|actions| &actions.response);
        let none = FieldEdits::default();
        match judge(cors, &self.request.view(aim), edits.unwrap_or(&none))? {
            CrossOrigin::Preflight(fields) => Some(fields),
            CrossOrigin::Actual(edits) => {
                self.cross_origin = Some(edits);
                None
            }
        }
    }

    /// What pages of other origins are told with an answer of our own, so that they may read why they
    /// got no other. What the rule does to answers beside is for those of the application.
    pub(super) fn edits_of_failure(&self) -> Option<FieldEdits> {
        self.cross_origin.as_ref()?;
        let cors = self.actions.as_ref()?.cors.as_ref()?;
        let aim = self.request.aim_of_any_scheme().ok()?;
        match judge(cors, &self.request.view(&aim), &FieldEdits::default())? {
            CrossOrigin::Actual(edits) => Some(edits),
            CrossOrigin::Preflight(_) => None,
        }
    }

    /// Copies for other services, where rules want some. Those of a request without a body are on
    /// their way when this returns; the others wait for it, which is kept while it passes.
    #[inline]
    pub(super) fn copies(&mut self, bound: &Bound) -> Option<Copies> {
        let wants = bound.actions.as_ref().is_some_and(|actions| !actions.mirrors.is_empty());
        if wants && !self.request.upgrade { self.copies_of(bound) } else { None }
    }

    fn copies_of(&mut self, bound: &Bound) -> Option<Copies> {
        let worker = &self.session.worker;
        let to = mirror::drawn(worker, bound);
        if to.is_empty() {
            return None;
        }
        // What a backend has done to its requests is not for others.
        let of_rule = bound.actions.as_deref().map(CompiledActions::of_copies);
        let mut aim = self.request.aim_of_any_scheme().ok()?;
        if let Some(target) = of_rule.and_then(|rule| rule.target(aim.path, aim.query)) {
            aim.origin = Some(Cow::Owned(target));
        }
        let head = self.head(&aim, of_rule);
        let copies = Copies::new(worker, &bound.scene, to, head);
        if self.body.is_empty() {
            copies.send(Some(Vec::new()));
            return None;
        }
        self.keep_body().keep_to_end();
        Some(copies)
    }

    /// The body for copies, where it was kept whole.
    pub(super) fn kept_body(&self) -> Option<Vec<Piece>> {
        let kept = self.body.kept()?;
        Some(trailers::permitted_of(self.session, self.actions.as_deref(), kept))
    }

    /// The head of the request as it is sent on a link, edited by these actions.
    pub(super) fn head(&self, aim: &Aim<'_>, actions: Option<&CompiledActions>) -> BytesMut {
        let mut head = BytesMut::new();
        let context = self.span().map(Written::of);
        let added = self.added(context.as_ref());
        let edits = edits(self, (aim, actions), Framing::Outside, &added);
        write_request(&self.request.bytes, self.request.head, &edits, &mut head);
        head
    }

    /// Keeps what passes of the body.
    pub(super) fn keep_body(&mut self) -> Rc<Hold> {
        if let Some(hold) = &self.kept {
            return hold.clone();
        }
        let hold = Rc::new(Hold::default());
        self.body.keep(hold.clone());
        self.kept = Some(hold.clone());
        hold
    }

    /// Keeps a body until its answer begins: for a connection that may end before its request is looked at.
    #[inline(never)]
    pub(crate) fn hold_briefly(&mut self) {
        if !self.body.is_empty() && !self.request.upgrade && self.held.is_none() {
            self.held = Some(self.keep_body());
        }
    }

    /// Waits, or fails, where a policy wants it so.
    pub(super) async fn inject(
        &self,
        aim: &Aim<'_>,
        bound: &Bound,
        treatment: &PortTreatment,
    ) -> Result<(), Failure> {
        let worker = self.session.worker.clone();
        let caller = &bound.scene.plans.snapshot.plan.account;
        let view = self.request.view(aim);
        let chance = &mut || worker.draw();
        let injected = treatment.faults.as_ref().and_then(|it| it.inject(&view, caller, chance));
        let Some(Injected { policy, rule, delay, abort, hits: slot }) = injected else {
            return Ok(());
        };
        let ruling = Ruling::service_policy(policy, rule, slot);
        hits::policy(&worker.shard, &ruling);
        if let Some(delay) = delay {
            worker.shard.add(Count::FaultDelays, 1);
            self.while_there(tokio::time::sleep(delay)).await?;
        }
        match abort {
            None => Ok(()),
            Some(answer) => {
                worker.shard.add(Count::FaultAnswers, 1);
                Err(Failure::injected(ruling, answer))
            }
        }
    }

    /// Waits for something, as long as the client is there.
    pub(super) async fn while_there<T>(
        &self,
        awaited: impl Future<Output = T>,
    ) -> Result<T, Reason> {
        let client = self.responder.connection();
        let mut awaited = pin!(awaited);
        poll_fn(|cx| match (awaited.as_mut().poll(cx), &client) {
            (Poll::Ready(over), _) => Poll::Ready(Ok(over)),
            // What is read of a body tells by itself whether its client is there.
            (Poll::Pending, Some(io)) if self.body.is_empty() && io.poll_gone(cx).is_ready() => {
                Poll::Ready(Err(Reason::DownstreamClosed))
            }
            (Poll::Pending, _) => Poll::Pending,
        })
        .await
    }
}
