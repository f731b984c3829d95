//! The stages that call check services: external authorization, then external rate limits.

use std::net::SocketAddr;
use std::sync::Arc;

use leno_model::{FailureMode, Header, HeaderEdits, Reason, SpiffeId};
use leno_telemetry::{Count, GrpcStatus};
use leno_traffic::request_checks::{
    CheckedClient, CompiledAuthorization, CompiledGlobalLimit, CompiledPortChecks,
    RequestDescriptor,
};
use leno_traffic::{CompiledActions, CompiledChecks, FieldEdits, RequestView};

use super::Exchange;
use super::jwt_validation::AuthenticatedRequest;
use crate::check_service::{CheckError, authorization, limit, send_check};
use crate::error::Failure;
use crate::http::buffered_body::BufferedExcerpt;
use crate::http::request::ParsedTarget;
use crate::http::route::ResolvedRoute;
use crate::session::ListenerKind;

/// A request as the application will see it, and the changes made for that.
type ReportedRequest<'a> = (&'a RequestView<'a>, &'a HeaderEdits);

/// True if a request continues without a decision. An unusable response may have been a denial, and never
/// allows the request.
fn may_go_on(none: &CheckError, failure_mode: FailureMode) -> bool {
    failure_mode == FailureMode::Allow && !matches!(none, CheckError::Unusable(_))
}

/// The header changes of all check services, for the request and its response.
#[derive(Default)]
struct HeaderChanges {
    request: HeaderEdits,
    response: HeaderEdits,
}

impl HeaderChanges {
    fn add_edits(&mut self, request: HeaderEdits, response: HeaderEdits) {
        for (all, more) in [(&mut self.request, request), (&mut self.response, response)] {
            let HeaderEdits { set, add, remove } = more;
            // Later changes override earlier ones.
            let is_over = |known: &Header| {
                set.iter().any(|it| it.name == known.name) || remove.contains(&known.name)
            };
            all.set.retain(|known| !is_over(known));
            all.add.retain(|known| !is_over(known));
            all.remove.extend(remove);
            all.set.extend(set);
            all.add.extend(add);
        }
    }
}

impl Exchange<'_, '_> {
    /// Evaluates the policies of the mesh first, and then calls the check services for permitted requests.
    pub(super) async fn authorize_guarded(
        &mut self,
        guards: &CompiledChecks,
        request_target: &ParsedTarget<'_>,
        resolved_route: &ResolvedRoute,
    ) -> Result<(), Failure> {
        let ListenerKind::Inbound { port } = &self.session.listener_kind else { return Ok(()) };
        let (request, port) = (self.request, *port);
        let Some(guards) = guards.for_port(port) else {
            return self.authorize_request(request_target, resolved_route);
        };
        let view = request.request_view(request_target);
        let shown = self.verify_tokens(guards.token_validations(), &view)?;
        let with_claims =
            RequestView { fields: &AuthenticatedRequest { request, token_claims: &shown }, ..view };
        self.let_in(&with_claims, resolved_route)?;
        let limited = self.limited_port(resolved_route);
        if let Some(port) = limited {
            self.take_tokens(port, &with_claims, resolved_route)?;
            // No check request is sent without a free concurrency permit. The permit itself is acquired after
            // the checks.
            self.acquire_permit(port, &with_claims, resolved_route)?;
            self.observer = None;
        }
        let asked = (&with_claims, &shown.edits);
        let consulted = self.run_checks(guards, asked, port, resolved_route).await?;
        if let Some(port) = limited {
            self.acquire_permit(port, &with_claims, resolved_route)?;
        }
        let mut changes = HeaderChanges::default();
        changes.add_edits(shown.edits.clone(), HeaderEdits::default());
        changes.add_edits(consulted.request, consulted.response);
        request.remove_similar(&mut changes.request);
        if !changes.request.is_empty() || !changes.response.is_empty() {
            let [request, response] =
                [changes.request, changes.response].map(|it| FieldEdits::from_edits(&it));
            self.actions = Some(Arc::new(CompiledActions::from_edits(request, response)));
        }
        Ok(())
    }

    async fn run_checks(
        &mut self,
        guards: &CompiledPortChecks,
        asked: ReportedRequest<'_>,
        port: u16,
        resolved_route: &ResolvedRoute,
    ) -> Result<HeaderChanges, Failure> {
        let mut changes = HeaderChanges::default();
        let (view, _) = asked;
        let mut beginning = None;
        for rule in guards.required_authorizations(view) {
            let excerpt = match rule.rule.body {
                // Boxed to keep the future small for other requests.
                Some(body) => {
                    Box::pin(self.read_ahead(rule, body, &mut beginning, resolved_route)).await?
                }
                None => None,
            };
            let (request, response) =
                self.authorized_by(rule, asked, port, resolved_route, excerpt).await?;
            changes.add_edits(request, response);
        }
        let asking =
            CheckedClient { account: self.caller_account(), address: self.session.peer.ip() };
        for (rule, described) in guards.required_limits(view, asking) {
            let (request, response) = self.admitted_by(rule, described, view).await?;
            changes.add_edits(request, response);
        }
        if let Some(beginning) = beginning {
            self.body.begin_with(beginning);
            if self.request.head.expect_continue {
                // The client has already received 100 Continue.
                changes.request.remove.push("expect".to_owned());
            }
        }
        Ok(changes)
    }

    /// Calls an authorization service. Returns its changes, or the response for the client.
    async fn authorized_by(
        &self,
        rule: &CompiledAuthorization,
        (view, edits): ReportedRequest<'_>,
        port: u16,
        resolved_route: &ResolvedRoute,
        excerpt: Option<BufferedExcerpt>,
    ) -> Result<(HeaderEdits, HeaderEdits), Failure> {
        let worker = &self.session.worker;
        let plan = &resolved_route.config.plans.snapshot.config;
        let server =
            SpiffeId { trust_domain: plan.trust_domain.clone(), account: plan.account.clone() };
        let ends = authorization::ConnectionPeers {
            from: self.session.peer,
            client: self.session.identity.as_deref(),
            to: SocketAddr::new(plan.address, port),
            server: &server,
            service: plan.port_services.get(&port),
        };
        let question =
            authorization::build_request(rule, self.request, view, edits, &ends, excerpt);
        let read = |answer| authorization::parse_verdict(answer, view);
        match send_check(worker, &rule.rule.check_service, authorization::METHOD, question, read)
            .await
        {
            Ok(authorization::AuthorizationResult::Allowed { request, response }) => {
                worker.shard.add(Count::AuthorizationAllowed, 1);
                Ok((request, response))
            }
            Ok(authorization::AuthorizationResult::Denied(answer)) => {
                worker.shard.add(Count::AuthorizationDenied, 1);
                let grpc = answer.status.map(GrpcStatus::of_http);
                let (policy, answer) = (Some(rule.policy_decision()), Some(Arc::new(answer)));
                Err(Failure { policy, answer, grpc, ..Reason::DeniedByService.into() })
            }
            Err(none) if may_go_on(&none, rule.rule.check_service.failure_mode) => {
                worker.shard.add(Count::AuthorizationFailureModeAllowed, 1);
                Ok(Default::default())
            }
            Err(_) => {
                worker.shard.add(Count::AuthorizationFailed, 1);
                let policy = Some(rule.policy_decision());
                Err(Failure { policy, ..Reason::AuthorizationUnavailable.into() })
            }
        }
    }

    /// Calls a rate limit service. Returns its changes, or the response for the client.
    async fn admitted_by(
        &self,
        rule: &CompiledGlobalLimit,
        described: Vec<RequestDescriptor>,
        view: &RequestView<'_>,
    ) -> Result<(HeaderEdits, HeaderEdits), Failure> {
        let worker = &self.session.worker;
        let read = |answer| limit::parse_verdict(answer, rule, view);
        match send_check(
            worker,
            &rule.rule.check_service,
            limit::METHOD,
            limit::build_request(rule, described),
            read,
        )
        .await
        {
            Ok(limit::RateLimitResult::WithinLimit { request, response }) => {
                worker.shard.add(Count::GlobalLimitAllowed, 1);
                Ok((request, response))
            }
            Ok(limit::RateLimitResult::OverLimit { answer, wait }) => {
                worker.shard.add(Count::GlobalLimitDenied, 1);
                let (policy, answer) = (Some(rule.policy_decision()), Some(Arc::new(answer)));
                let retry_after = wait.map(|wait| wait.as_secs().max(1));
                Err(Failure { policy, answer, retry_after, ..Reason::RateLimited.into() })
            }
            Err(none) if may_go_on(&none, rule.rule.check_service.failure_mode) => {
                worker.shard.add(Count::GlobalLimitFailureModeAllowed, 1);
                Ok(Default::default())
            }
            Err(_) => {
                worker.shard.add(Count::GlobalLimitFailed, 1);
                let policy = Some(rule.policy_decision());
                Err(Failure { policy, ..Reason::RateLimitUnavailable.into() })
            }
        }
    }
}
