//! Runs the less common stages of a request: redirects, generated responses, CORS, mirrored copies and fault
//! injection. Also buffers the body of a request for the attempts and copies that need it again.

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
use leno_wire::http1::{FramingPolicy, write_request};

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
        let cors_edits = self.cors_edits.take();
        let edits = cors_edits.as_ref().or(actions.map(|actions| &actions.response));
        self.send_without_body(redirection.status, &fields, edits).await
    }

    /// Responds without a body; no part of the request is forwarded.
    pub(super) async fn send_without_body(
        &mut self,
        status: u16,
        fields: &[(&str, String)],
        edits: Option<&FieldEdits>,
    ) -> Result<(), Failure> {
        self.record.head.status.set(status);
        self.response_started.set(true);
        if !self.body.is_complete() || self.session.worker.is_leaving() {
            self.responder.close_after_exchange();
        }
        let borrowed_fields: Vec<(&str, &str)> =
            fields.iter().map(|(name, value)| (*name, &**value)).collect();
        let response = GeneratedResponse {
            status,
            fields: &borrowed_fields,
            text: "",
            edits,
            is_rejection: false,
            to_sidecar: false,
        };
        match response.send(self.responder, true).await {
            true => Ok(()),
            false => Err(Reason::DownstreamClosed.into()),
        }
    }

    /// Evaluates CORS. Returns the fields of the response to a preflight request; `None` for any other
    /// request, for which the edits of the later response are stored.
    pub(super) fn evaluate_cors(
        &mut self,
        cors: &Cors,
        request_target: &ParsedTarget<'_>,
        resolved_route: &ResolvedRoute,
    ) -> Option<Vec<(&'static str, String)>> {
        let edits = resolved_route.actions.as_ref().map(|actions| &actions.response);
        let empty_edits = FieldEdits::default();
        match apply_cors(
            cors,
            &self.request.request_view(request_target),
            edits.unwrap_or(&empty_edits),
        )? {
            CrossOrigin::Preflight(fields) => Some(fields),
            CrossOrigin::Actual(edits) => {
                self.cors_edits = Some(edits);
                None
            }
        }
    }

    /// Returns the CORS headers of an error response, so that the web page can read the error. Other response
    /// edits of the rule apply to responses of the application only.
    pub(super) fn failure_edits(&self) -> Option<FieldEdits> {
        self.cors_edits.as_ref()?;
        let cors = self.actions.as_ref()?.cors.as_ref()?;
        let request_target = self.request.parse_target_any_scheme().ok()?;
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
        let has_mirrors =
            resolved_route.actions.as_ref().is_some_and(|actions| !actions.mirrors.is_empty());
        if has_mirrors && !self.request.is_upgrade {
            self.start_mirrors(resolved_route)
        } else {
            None
        }
    }

    /// Selects the mirrors. Sends the copies of a request without a body; otherwise returns the copies, which
    /// wait for the body.
    fn start_mirrors(&mut self, resolved_route: &ResolvedRoute) -> Option<PendingMirrors> {
        let worker = &self.session.worker;
        let mirror_backends = mirror::select_mirrors(worker, resolved_route);
        if mirror_backends.is_empty() {
            return None;
        }
        // Edits of the selected backend do not apply to copies.
        let actions = resolved_route.actions.as_deref().map(CompiledActions::for_mirrors);
        let mut request_target = self.request.parse_target_any_scheme().ok()?;
        if let Some(target) = actions
            .and_then(|actions| actions.rewritten_target(request_target.path, request_target.query))
        {
            request_target.origin_form = Some(Cow::Owned(target));
        }
        let head = self.link_head(&request_target, actions);
        let pending_mirrors =
            PendingMirrors::new(worker, &resolved_route.config, mirror_backends, head);
        if self.body.is_empty() {
            pending_mirrors.send_all(Some(Vec::new()));
            return None;
        }
        self.buffer_body().retain_to_end();
        Some(pending_mirrors)
    }

    /// Returns the body for mirrored copies; `None` if not all of it was buffered.
    pub(super) fn buffered_body_pieces(&self) -> Option<Vec<BodyPiece>> {
        let pieces = self.body.buffered_pieces()?;
        Some(trailers::permit_body_trailers(self.session, self.actions.as_deref(), pieces))
    }

    /// Returns the head of the request as it is sent on a link, edited by these actions.
    pub(super) fn link_head(
        &self,
        request_target: &ParsedTarget<'_>,
        actions: Option<&CompiledActions>,
    ) -> BytesMut {
        let mut head = BytesMut::new();
        let trace_headers = self.span().map(PropagatedHeaders::from_span);
        let added_headers = self.added_headers(trace_headers.as_ref());
        let edits =
            request_edits(self, request_target, actions, FramingPolicy::OutOfBand, &added_headers);
        write_request(&self.request.bytes, self.request.head, &edits, &mut head);
        head
    }

    /// Buffers the body while it is forwarded.
    pub(super) fn buffer_body(&mut self) -> Rc<ReplayBuffer> {
        if let Some(buffer) = &self.body_buffer {
            return buffer.clone();
        }
        let buffer = Rc::new(ReplayBuffer::default());
        self.body.start_buffering(buffer.clone());
        self.body_buffer = Some(buffer.clone());
        buffer
    }

    /// Buffers a body until the response starts: for a connection that may close before the request is
    /// processed.
    #[inline(never)]
    pub(crate) fn buffer_until_response(&mut self) {
        if !self.body.is_empty() && !self.request.is_upgrade && self.retry_buffer.is_none() {
            self.retry_buffer = Some(self.buffer_body());
        }
    }

    /// Injects a delay or an error, if a policy requires it.
    ///
    /// # Errors
    /// The injected error, or `downstream-closed` if the client disconnects during the delay.
    pub(super) async fn inject_fault(
        &self,
        request_target: &ParsedTarget<'_>,
        resolved_route: &ResolvedRoute,
        traffic_policy: &PortTrafficPolicy,
    ) -> Result<(), Failure> {
        let worker = self.session.worker.clone();
        let caller = &resolved_route.config.compiled.snapshot.config.account;
        let view = self.request.request_view(request_target);
        let random_number = &mut || worker.random_number();
        let injected_faults = traffic_policy
            .faults
            .as_ref()
            .and_then(|faults| faults.select_faults(&view, caller, random_number));
        let Some(InjectedFaults { policy, rule_name, delay, abort, match_slot }) = injected_faults
        else {
            return Ok(());
        };
        let decision = PolicyDecision::from_service_policy(policy, rule_name, match_slot);
        rule_matches::count_policy(&worker.metrics, &decision);
        if let Some(delay) = delay {
            worker.metrics.add(Count::FaultDelays, 1);
            self.run_while_connected(tokio::time::sleep(delay)).await?;
        }
        match abort {
            None => Ok(()),
            Some(response) => {
                worker.metrics.add(Count::FaultAborts, 1);
                Err(Failure::from_fault(decision, response))
            }
        }
    }

    /// Waits for a future as long as the client is connected, and returns its output.
    ///
    /// # Errors
    /// `downstream-closed` if the client disconnects.
    pub(super) async fn run_while_connected<T>(
        &self,
        future: impl Future<Output = T>,
    ) -> Result<T, Reason> {
        let client = self.responder.client_connection();
        let mut future = pin!(future);
        poll_fn(|cx| match (future.as_mut().poll(cx), &client) {
            (Poll::Ready(output), _) => Poll::Ready(Ok(output)),
            // While a body is read, the read detects a disconnect.
            (Poll::Pending, Some(io)) if self.body.is_empty() && io.poll_gone(cx).is_ready() => {
                Poll::Ready(Err(Reason::DownstreamClosed))
            }
            (Poll::Pending, _) => Poll::Pending,
        })
        .await
    }
}
