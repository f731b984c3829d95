//! The stages that call check services: external authorization, then external rate limits.

use std::net::SocketAddr;
use std::sync::Arc;

use leno_model::{FailureMode, Header, HeaderEdits, Reason, SpiffeId};
use leno_telemetry::{Count, GrpcStatus};
use leno_traffic::guard::{
    Asking, CompiledAuthorization, CompiledGlobalLimit, Described, PortGuards,
};
use leno_traffic::{CompiledActions, FieldEdits, Guards, RequestView};

use super::Exchange;
use super::shown::Claimed;
use crate::check_service::{NoAnswer, authorization, limit, send_check};
use crate::error::Failure;
use crate::http::ahead::Excerpt;
use crate::http::request::Aim;
use crate::http::route::Bound;
use crate::session::ListenerKind;

/// A request as the application will see it, and the changes made for that.
type Reported<'a> = (&'a RequestView<'a>, &'a HeaderEdits);

/// True if a request continues without a decision. An unusable response may have been a denial, and never
/// allows the request.
fn may_go_on(none: &NoAnswer, failure_mode: FailureMode) -> bool {
    failure_mode == FailureMode::Allow && !matches!(none, NoAnswer::Unusable(_))
}

/// The header changes of all check services, for the request and its response.
#[derive(Default)]
struct Changes {
    request: HeaderEdits,
    response: HeaderEdits,
}

impl Changes {
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
        guards: &Guards,
        aim: &Aim<'_>,
        bound: &Bound,
    ) -> Result<(), Failure> {
        let ListenerKind::Inbound { port } = &self.session.listener_kind else { return Ok(()) };
        let (request, port) = (self.request, *port);
        let Some(guards) = guards.for_port(port) else { return self.authorize_request(aim, bound) };
        let view = request.request_view(aim);
        let shown = self.verify_tokens(guards.token_validations(), &view)?;
        let with_claims = RequestView { fields: &Claimed { request, shown: &shown }, ..view };
        self.let_in(&with_claims, bound)?;
        let limited = self.limited_port(bound);
        if let Some(port) = limited {
            self.take_tokens(port, &with_claims, bound)?;
            // No check request is sent without a free concurrency permit. The permit itself is acquired after
            // the checks.
            self.acquire_permit(port, &with_claims, bound)?;
            self.observer = None;
        }
        let asked = (&with_claims, &shown.edits);
        let consulted = self.run_checks(guards, asked, port, bound).await?;
        if let Some(port) = limited {
            self.acquire_permit(port, &with_claims, bound)?;
        }
        let mut changes = Changes::default();
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
        guards: &PortGuards,
        asked: Reported<'_>,
        port: u16,
        bound: &Bound,
    ) -> Result<Changes, Failure> {
        let mut changes = Changes::default();
        let (view, _) = asked;
        let mut beginning = None;
        for rule in guards.required_authorizations(view) {
            let excerpt = match rule.rule.body {
                // Boxed to keep the future small for other requests.
                Some(body) => Box::pin(self.read_ahead(rule, body, &mut beginning, bound)).await?,
                None => None,
            };
            let (request, response) = self.authorized_by(rule, asked, port, bound, excerpt).await?;
            changes.add_edits(request, response);
        }
        let asking = Asking { account: self.caller_account(), address: self.session.peer.ip() };
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
        (view, edits): Reported<'_>,
        port: u16,
        bound: &Bound,
        excerpt: Option<Excerpt>,
    ) -> Result<(HeaderEdits, HeaderEdits), Failure> {
        let worker = &self.session.worker;
        let plan = &bound.config.plans.snapshot.plan;
        let server =
            SpiffeId { trust_domain: plan.trust_domain.clone(), account: plan.account.clone() };
        let ends = authorization::Ends {
            from: self.session.peer,
            client: self.session.identity.as_deref(),
            to: SocketAddr::new(plan.address, port),
            server: &server,
            service: plan.served.get(&port),
        };
        let question =
            authorization::build_request(rule, self.request, view, edits, &ends, excerpt);
        let read = |answer| authorization::parse_verdict(answer, view);
        match send_check(worker, &rule.rule.check_service, authorization::METHOD, question, read)
            .await
        {
            Ok(authorization::Verdict::Allowed { request, response }) => {
                worker.shard.add(Count::AuthorizationAllowed, 1);
                Ok((request, response))
            }
            Ok(authorization::Verdict::Denied(answer)) => {
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
        described: Vec<Described>,
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
            Ok(limit::Verdict::Room { request, response }) => {
                worker.shard.add(Count::GlobalLimitAllowed, 1);
                Ok((request, response))
            }
            Ok(limit::Verdict::Full { answer, wait }) => {
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
