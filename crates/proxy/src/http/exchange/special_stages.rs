//! Less common stages of a request: redirects, generated responses, CORS, mirrored copies, fault injection.

use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use bytes::BytesMut;
use leno_model::{Cors, Reason};
use leno_telemetry::Count;
use leno_telemetry::trace::PropagatedHeaders;
use leno_traffic::cors::{CrossOrigin, apply_cors};
use leno_traffic::fault::InjectedFaults;
use leno_traffic::traffic_policy::PortTrafficPolicy;
use leno_traffic::{CompiledActions, FieldEdits, PolicyDecision, Redirection};
use leno_wire::http1::{Framing, write_request};

use super::Exchange;
use crate::error::Failure;
use crate::http::body::BodyPiece;
use crate::http::forward::request_edits;
use crate::http::generated_response::GeneratedResponse;
use crate::http::mirror::{self, PendingMirrors};
use crate::http::replay::ReplayBuffer;
use crate::http::request::ParsedTarget;
use crate::http::route::ResolvedRoute;
use crate::http::trailers;
use crate::rule_matches;

impl Exchange<'_, '_> {
    /// Responds with a redirect; no part of the request is forwarded.
    pub(super) async fn send_redirect(
        &mut self,
        redirection: &Redirection,
        actions: Option<&CompiledActions>,
    ) -> Result<(), Failure> {
        let fields = [("location", redirection.location.clone())];
        let cross_origin = self.cross_origin.take();
        let edits = cross_origin.as_ref().or(actions.map(|actions| &actions.response));
        self.send_empty(redirection.status, &fields, edits).await
    }

    /// Responds without a body; no part of the request is forwarded.
    pub(super) async fn send_empty(
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
        let answer = GeneratedResponse {
            status,
            fields: &fields,
            text: "",
            edits,
            rejects: false,
            to_sidecar: false,
        };
        match answer.send(self.responder, true).await {
            true => Ok(()),
            false => Err(Reason::DownstreamClosed.into()),
        }
    }

    /// Evaluates CORS: returns the fields of a preflight response, or stores the edits of the response to come.
    pub(super) fn judge_origin(
        &mut self,
        cors: &Cors,
        request_target: &ParsedTarget<'_>,
        resolved_route: &ResolvedRoute,
    ) -> Option<Vec<(&'static str, String)>> {
        let edits = resolved_route.actions.as_ref().map(|actions| &actions.response);
        let none = FieldEdits::default();
        match apply_cors(cors, &self.request.request_view(request_target), edits.unwrap_or(&none))?
        {
            CrossOrigin::Preflight(fields) => Some(fields),
            CrossOrigin::Actual(edits) => {
                self.cross_origin = Some(edits);
                None
            }
        }
    }

    /// Returns the CORS headers of a generated response, so that the page can read the error. Other response
    /// edits of the rule apply to responses of the application only.
    pub(super) fn edits_of_failure(&self) -> Option<FieldEdits> {
        self.cross_origin.as_ref()?;
        let cors = self.actions.as_ref()?.cors.as_ref()?;
        let request_target = self.request.aim_of_any_scheme().ok()?;
        match apply_cors(cors, &self.request.request_view(&request_target), &FieldEdits::default())?
        {
            CrossOrigin::Actual(edits) => Some(edits),
            CrossOrigin::Preflight(_) => None,
        }
    }

    /// Prepares mirrored copies if rules require them. Copies of a request without a body have been sent when
    /// this returns; the others wait for the body, which is buffered while it is forwarded.
    #[inline]
    pub(super) fn prepare_mirrors(
        &mut self,
        resolved_route: &ResolvedRoute,
    ) -> Option<PendingMirrors> {
        let wants =
            resolved_route.actions.as_ref().is_some_and(|actions| !actions.mirrors.is_empty());
        if wants && !self.request.upgrade { self.copies_of(resolved_route) } else { None }
    }

    fn copies_of(&mut self, resolved_route: &ResolvedRoute) -> Option<PendingMirrors> {
        let worker = &self.session.worker;
        let to = mirror::select_mirrors(worker, resolved_route);
        if to.is_empty() {
            return None;
        }
        // Edits of the selected backend do not apply to copies.
        let of_rule = resolved_route.actions.as_deref().map(CompiledActions::of_copies);
        let mut request_target = self.request.aim_of_any_scheme().ok()?;
        if let Some(target) = of_rule
            .and_then(|rule| rule.rewritten_target(request_target.path, request_target.query))
        {
            request_target.origin = Some(Cow::Owned(target));
        }
        let head = self.link_head(&request_target, of_rule);
        let copies = PendingMirrors::new(worker, &resolved_route.config, to, head);
        if self.body.is_empty() {
            copies.send_all(Some(Vec::new()));
            return None;
        }
        self.keep_body().keep_to_end();
        Some(copies)
    }

    /// Returns the body for copies, if all of it was buffered.
    pub(super) fn kept_body(&self) -> Option<Vec<BodyPiece>> {
        let kept = self.body.buffered_pieces()?;
        Some(trailers::permitted_of(self.session, self.actions.as_deref(), kept))
    }

    /// Returns the head of the request as it is sent on a link, edited by these actions.
    pub(super) fn link_head(
        &self,
        request_target: &ParsedTarget<'_>,
        actions: Option<&CompiledActions>,
    ) -> BytesMut {
        let mut head = BytesMut::new();
        let context = self.span().map(PropagatedHeaders::from_span);
        let added = self.added_headers(context.as_ref());
        let edits = request_edits(self, request_target, actions, Framing::Outside, &added);
        write_request(&self.request.bytes, self.request.head, &edits, &mut head);
        head
    }

    /// Buffers the body while it is forwarded.
    pub(super) fn keep_body(&mut self) -> Rc<ReplayBuffer> {
        if let Some(hold) = &self.kept {
            return hold.clone();
        }
        let hold = Rc::new(ReplayBuffer::default());
        self.body.start_buffering(hold.clone());
        self.kept = Some(hold.clone());
        hold
    }

    /// Buffers a body until the response starts: for a connection that may close before the request is
    /// processed.
    #[inline(never)]
    pub(crate) fn hold_briefly(&mut self) {
        if !self.body.is_empty() && !self.request.upgrade && self.held.is_none() {
            self.held = Some(self.keep_body());
        }
    }

    /// Injects a delay or an error, if a policy requires it.
    pub(super) async fn inject_fault(
        &self,
        request_target: &ParsedTarget<'_>,
        resolved_route: &ResolvedRoute,
        traffic_policy: &PortTrafficPolicy,
    ) -> Result<(), Failure> {
        let worker = self.session.worker.clone();
        let caller = &resolved_route.config.plans.snapshot.config.account;
        let view = self.request.request_view(request_target);
        let chance = &mut || worker.random_number();
        let injected =
            traffic_policy.faults.as_ref().and_then(|it| it.draw_faults(&view, caller, chance));
        let Some(InjectedFaults { policy, rule, delay, abort, match_slot: slot }) = injected else {
            return Ok(());
        };
        let decision = PolicyDecision::service_policy(policy, rule, slot);
        rule_matches::count_policy(&worker.shard, &decision);
        if let Some(delay) = delay {
            worker.shard.add(Count::FaultDelays, 1);
            self.while_there(tokio::time::sleep(delay)).await?;
        }
        match abort {
            None => Ok(()),
            Some(answer) => {
                worker.shard.add(Count::FaultAborts, 1);
                Err(Failure::from_fault(decision, answer))
            }
        }
    }

    /// Waits for a future while the client is connected.
    pub(super) async fn while_there<T>(
        &self,
        awaited: impl Future<Output = T>,
    ) -> Result<T, Reason> {
        let client = self.responder.client_connection();
        let mut awaited = pin!(awaited);
        poll_fn(|cx| match (awaited.as_mut().poll(cx), &client) {
            (Poll::Ready(over), _) => Poll::Ready(Ok(over)),
            // With a body, reading it detects that the client is gone.
            (Poll::Pending, Some(io)) if self.body.is_empty() && io.poll_gone(cx).is_ready() => {
                Poll::Ready(Err(Reason::DownstreamClosed))
            }
            (Poll::Pending, _) => Poll::Pending,
        })
        .await
    }
}
