//! Calls the check services of a port: external authorization, then external rate limits.

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

/// A request as the application will receive it, and the header changes that JWT validation has made to it.
type ReportedRequest<'a> = (&'a RequestView<'a>, &'a HeaderEdits);

/// True if the failure mode allows a request although the check service made no decision. After an unusable
/// response, which may have been a denial, the request is never allowed.
fn allows_on_failure(error: &CheckError, failure_mode: FailureMode) -> bool {
    failure_mode == FailureMode::Allow && !matches!(error, CheckError::Unusable(_))
}

/// The header changes of one or several check services, for the request and its response.
#[derive(Default)]
struct HeaderChanges {
    request: HeaderEdits,
    response: HeaderEdits,
}

impl HeaderChanges {
    /// Adds the changes of the next service, which override earlier changes of the same headers.
    fn add_edits(&mut self, request: HeaderEdits, response: HeaderEdits) {
        for (edits, added_edits) in [(&mut self.request, request), (&mut self.response, response)] {
            let HeaderEdits { set, add, remove } = added_edits;
            let is_overridden = |header: &Header| {
                set.iter().any(|edit| edit.name == header.name) || remove.contains(&header.name)
            };
            edits.set.retain(|header| !is_overridden(header));
            edits.add.retain(|header| !is_overridden(header));
            edits.remove.extend(remove);
            edits.set.extend(set);
            edits.add.extend(add);
        }
    }
}

impl Exchange<'_, '_> {
    /// Evaluates the policies of the mesh first, and then calls the check services for permitted requests.
    pub(super) async fn authorize_with_checks(
        &mut self,
        checks: &CompiledChecks,
        request_target: &ParsedTarget<'_>,
        resolved_route: &ResolvedRoute,
    ) -> Result<(), Failure> {
        let ListenerKind::Inbound { port } = &self.session.listener_kind else { return Ok(()) };
        let (request, port) = (self.request, *port);
        let Some(port_checks) = checks.for_port(port) else {
            return self.authorize_request(request_target, resolved_route);
        };
        let view = request.request_view(request_target);
        let token_claims = self.verify_tokens(port_checks.token_validations(), &view)?;
        let authenticated_view = RequestView {
            fields: &AuthenticatedRequest { request, token_claims: &token_claims },
            ..view
        };
        self.authorize_by_policies(&authenticated_view, resolved_route)?;
        let limited_port = self.limited_port(resolved_route);
        if let Some(port) = limited_port {
            self.take_tokens(port, &authenticated_view, resolved_route)?;
            // No check request is sent without a free concurrency permit. This permit is released at once, and
            // another one is acquired after the checks.
            self.acquire_permit(port, &authenticated_view, resolved_route)?;
            self.observer = None;
        }
        let reported_request = (&authenticated_view, &token_claims.edits);
        let check_changes =
            self.run_checks(port_checks, reported_request, port, resolved_route).await?;
        if let Some(port) = limited_port {
            self.acquire_permit(port, &authenticated_view, resolved_route)?;
        }
        let mut changes = HeaderChanges::default();
        changes.add_edits(token_claims.edits.clone(), HeaderEdits::default());
        changes.add_edits(check_changes.request, check_changes.response);
        request.remove_similar(&mut changes.request);
        if !changes.request.is_empty() || !changes.response.is_empty() {
            let [request, response] =
                [changes.request, changes.response].map(|edits| FieldEdits::from_edits(&edits));
            self.actions = Some(Arc::new(CompiledActions::from_edits(request, response)));
        }
        Ok(())
    }

    /// Calls the check services of a port one after another, and returns their header changes.
    async fn run_checks(
        &mut self,
        checks: &CompiledPortChecks,
        reported_request: ReportedRequest<'_>,
        port: u16,
        resolved_route: &ResolvedRoute,
    ) -> Result<HeaderChanges, Failure> {
        let mut changes = HeaderChanges::default();
        let (view, _) = reported_request;
        let mut prefix = None;
        for authorization_rule in checks.required_authorizations(view) {
            let excerpt = match authorization_rule.rule.body {
                // Boxed to keep the future small for other requests.
                Some(body) => {
                    Box::pin(self.buffer_excerpt(
                        authorization_rule,
                        body,
                        &mut prefix,
                        resolved_route,
                    ))
                    .await?
                }
                None => None,
            };
            let check_changes = self
                .call_authorization(
                    authorization_rule,
                    reported_request,
                    port,
                    resolved_route,
                    excerpt,
                )
                .await?;
            changes.add_edits(check_changes.request, check_changes.response);
        }
        let checked_client =
            CheckedClient { account: self.client_account(), address: self.session.peer.ip() };
        for (limit_rule, descriptors) in checks.required_limits(view, checked_client) {
            let check_changes = self.call_rate_limit(limit_rule, descriptors, view).await?;
            changes.add_edits(check_changes.request, check_changes.response);
        }
        if let Some(prefix) = prefix {
            self.body.prepend(prefix);
            if self.request.head.expect_continue {
                // The client has already received 100 Continue.
                changes.request.remove.push("expect".to_owned());
            }
        }
        Ok(changes)
    }

    /// Calls an authorization service. Returns its changes to request and response, or the failure for the
    /// client.
    async fn call_authorization(
        &self,
        authorization_rule: &CompiledAuthorization,
        (view, edits): ReportedRequest<'_>,
        port: u16,
        resolved_route: &ResolvedRoute,
        excerpt: Option<BufferedExcerpt>,
    ) -> Result<HeaderChanges, Failure> {
        let worker = &self.session.worker;
        let config = &resolved_route.config.compiled.snapshot.config;
        let server =
            SpiffeId { trust_domain: config.trust_domain.clone(), account: config.account.clone() };
        let connection_peers = authorization::ConnectionPeers {
            from: self.session.peer,
            client: self.session.identity.as_deref(),
            to: SocketAddr::new(config.address, port),
            server: &server,
            service: config.port_services.get(&port),
        };
        let check_request = authorization::build_request(
            authorization_rule,
            self.request,
            view,
            edits,
            &connection_peers,
            excerpt,
        );
        let parse_response = |response| authorization::parse_decision(response, view);
        match send_check(
            worker,
            &authorization_rule.rule.check_service,
            authorization::METHOD,
            check_request,
            parse_response,
        )
        .await
        {
            Ok(authorization::AuthorizationResult::Allowed { request, response }) => {
                worker.metrics.add(Count::AuthorizationAllowed, 1);
                Ok(HeaderChanges { request, response })
            }
            Ok(authorization::AuthorizationResult::Denied(response)) => {
                worker.metrics.add(Count::AuthorizationDenied, 1);
                let grpc = response.status.map(GrpcStatus::from_http_status);
                let (policy, response) =
                    (Some(authorization_rule.policy_decision()), Some(Arc::new(response)));
                Err(Failure { policy, response, grpc, ..Reason::DeniedByService.into() })
            }
            Err(error)
                if allows_on_failure(
                    &error,
                    authorization_rule.rule.check_service.failure_mode,
                ) =>
            {
                worker.metrics.add(Count::AuthorizationFailureModeAllowed, 1);
                Ok(Default::default())
            }
            Err(_) => {
                worker.metrics.add(Count::AuthorizationFailed, 1);
                let policy = Some(authorization_rule.policy_decision());
                Err(Failure { policy, ..Reason::AuthorizationUnavailable.into() })
            }
        }
    }

    /// Calls a rate limit service. Returns its changes to request and response, or the failure for the client.
    async fn call_rate_limit(
        &self,
        limit_rule: &CompiledGlobalLimit,
        descriptors: Vec<RequestDescriptor>,
        view: &RequestView<'_>,
    ) -> Result<HeaderChanges, Failure> {
        let worker = &self.session.worker;
        let parse_response = |response| limit::parse_decision(response, limit_rule, view);
        match send_check(
            worker,
            &limit_rule.rule.check_service,
            limit::METHOD,
            limit::build_request(limit_rule, descriptors),
            parse_response,
        )
        .await
        {
            Ok(limit::RateLimitResult::WithinLimit { request, response }) => {
                worker.metrics.add(Count::GlobalLimitAllowed, 1);
                Ok(HeaderChanges { request, response })
            }
            Ok(limit::RateLimitResult::OverLimit { response, wait }) => {
                worker.metrics.add(Count::GlobalLimitDenied, 1);
                let (policy, response) =
                    (Some(limit_rule.policy_decision()), Some(Arc::new(response)));
                // `Retry-After` is in whole seconds, and 0 would permit an immediate retry.
                let retry_after = wait.map(|wait| wait.as_secs().max(1));
                Err(Failure { policy, response, retry_after, ..Reason::RateLimited.into() })
            }
            Err(error) if allows_on_failure(&error, limit_rule.rule.check_service.failure_mode) => {
                worker.metrics.add(Count::GlobalLimitFailureModeAllowed, 1);
                Ok(Default::default())
            }
            Err(_) => {
                worker.metrics.add(Count::GlobalLimitFailed, 1);
                let policy = Some(limit_rule.policy_decision());
                Err(Failure { policy, ..Reason::RateLimitUnavailable.into() })
            }
        }
    }
}
