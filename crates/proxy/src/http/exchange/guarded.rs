//! The stations where others decide: authorization services, then rate limit services.

use std::net::SocketAddr;
use std::sync::Arc;

use leno_model::{HeaderEdits, Reason, SpiffeId, Unanswered};
use leno_telemetry::{Count, GrpcStatus};
use leno_traffic::guard::{
    Asking, CompiledAuthorization, CompiledGlobalLimit, Described, PortGuards,
};
use leno_traffic::{CompiledActions, FieldEdits, Guards, RequestView};

use super::Exchange;
use super::shown::Claimed;
use crate::decider::{ask, authorization, limit};
use crate::error::Failure;
use crate::http::request::Aim;
use crate::http::route::Bound;
use crate::session::Entrance;

/// What all of them change of the heads of a request and of its answer.
#[derive(Default)]
struct Changes {
    request: HeaderEdits,
    response: HeaderEdits,
}

impl Changes {
    fn take(&mut self, (request, response): (HeaderEdits, HeaderEdits)) {
        for (all, more) in [(&mut self.request, request), (&mut self.response, response)] {
            let HeaderEdits { set, add, remove } = more;
            all.set.retain(|known| set.iter().all(|it| it.name != known.name));
            all.set.extend(set);
            all.add.extend(add);
            all.remove.extend(remove);
        }
    }
}

impl Exchange<'_, '_> {
    /// Policies of the mesh decide first; whom they let in, others are asked about.
    pub(super) async fn authorize_guarded(
        &mut self,
        guards: &Guards,
        aim: &Aim<'_>,
        bound: &Bound,
    ) -> Result<(), Failure> {
        let Entrance::Inbound { port } = &self.session.entrance else { return Ok(()) };
        let (request, port) = (self.request, *port);
        let Some(guards) = guards.at(port) else { return self.authorize(aim, bound) };
        let view = request.view(aim);
        let shown = self.shown(guards.tokens(), &view)?;
        let with_claims = RequestView { fields: &Claimed { request, shown: &shown }, ..view };
        self.let_in(&with_claims, bound)?;
        self.limit(aim, bound)?;
        let mut changes = Changes::default();
        changes.take((shown.edits, HeaderEdits::default()));
        let consulted = self.consult(guards, (aim, port), bound).await?;
        changes.take((consulted.request, consulted.response));
        if !changes.request.is_empty() || !changes.response.is_empty() {
            let [request, response] =
                [changes.request, changes.response].map(|it| FieldEdits::wanted(&it));
            self.actions = Some(Arc::new(CompiledActions::editing(request, response)));
        }
        Ok(())
    }

    async fn consult(
        &self,
        guards: &PortGuards,
        (aim, port): (&Aim<'_>, u16),
        bound: &Bound,
    ) -> Result<Changes, Failure> {
        let mut changes = Changes::default();
        let view = self.request.view(aim);
        for rule in guards.authorizations(&view) {
            changes.take(self.authorized_by(rule, (aim, port), bound).await?);
        }
        let account = self.session.identity.as_ref().map(|identity| &identity.account);
        let asking = Asking { account, address: self.session.peer.ip() };
        for (rule, described) in guards.limits(&view, asking) {
            changes.take(self.admitted_by(rule, described, aim).await?);
        }
        Ok(changes)
    }

    /// Asks an authorization service; what it changes, or what the client is told.
    async fn authorized_by(
        &self,
        rule: &CompiledAuthorization,
        (aim, port): (&Aim<'_>, u16),
        bound: &Bound,
    ) -> Result<(HeaderEdits, HeaderEdits), Failure> {
        let worker = &self.session.worker;
        let view = self.request.view(aim);
        let plan = &bound.scene.plans.snapshot.plan;
        let server =
            SpiffeId { trust_domain: plan.trust_domain.clone(), account: plan.account.clone() };
        let ends = authorization::Ends {
            from: self.session.peer,
            client: self.session.identity.as_deref(),
            to: SocketAddr::new(plan.address, port),
            server: &server,
            service: plan.served.get(&port),
        };
        let question = authorization::question(rule, (self.request, &view), &ends);
        let question = (authorization::METHOD, question);
        let read = |answer| authorization::verdict(answer, &view);
        match ask(worker, &rule.rule.decider, question, read).await {
            Ok(authorization::Verdict::Allowed { request, response }) => {
                worker.shard.add(Count::AuthorizationAllowed, 1);
                Ok((request, response))
            }
            Ok(authorization::Verdict::Denied(answer)) => {
                worker.shard.add(Count::AuthorizationDenied, 1);
                let grpc = answer.status.map(GrpcStatus::of_http);
                let (policy, answer) = (Some(rule.ruling()), Some(Arc::new(answer)));
                Err(Failure { policy, answer, grpc, ..Reason::DeniedByService.into() })
            }
            Err(_) if rule.rule.decider.unanswered == Unanswered::Allow => {
                worker.shard.add(Count::AuthorizationSkipped, 1);
                Ok(Default::default())
            }
            Err(_) => {
                worker.shard.add(Count::AuthorizationUnanswered, 1);
                let policy = Some(rule.ruling());
                Err(Failure { policy, ..Reason::AuthorizationUnavailable.into() })
            }
        }
    }

    /// Asks a rate limit service; what it changes, or what the client is told.
    async fn admitted_by(
        &self,
        rule: &CompiledGlobalLimit,
        described: Vec<Described>,
        aim: &Aim<'_>,
    ) -> Result<(HeaderEdits, HeaderEdits), Failure> {
        let worker = &self.session.worker;
        let view = self.request.view(aim);
        let question = (limit::METHOD, limit::question(rule, described));
        let read = |answer| limit::verdict(answer, rule, &view);
        match ask(worker, &rule.rule.decider, question, read).await {
            Ok(limit::Verdict::Room { request, response }) => {
                worker.shard.add(Count::GlobalLimitAllowed, 1);
                Ok((request, response))
            }
            Ok(limit::Verdict::Full { answer, wait }) => {
                worker.shard.add(Count::GlobalLimitDenied, 1);
                let (policy, answer) = (Some(rule.ruling()), Some(Arc::new(answer)));
                let retry_after = wait.map(|wait| wait.as_secs().max(1));
                Err(Failure { policy, answer, retry_after, ..Reason::RateLimited.into() })
            }
            Err(_) if rule.rule.decider.unanswered == Unanswered::Allow => {
                worker.shard.add(Count::GlobalLimitSkipped, 1);
                Ok(Default::default())
            }
            Err(_) => {
                worker.shard.add(Count::GlobalLimitUnanswered, 1);
                let policy = Some(rule.ruling());
                Err(Failure { policy, ..Reason::RateLimitUnavailable.into() })
            }
        }
    }
}
