//! Requests of external clients at a gateway: selection of listener and rule, and headers about the client.

use std::sync::Arc;

use leno_model::{Reach, Reason, Scheme, WeightedBackend};
use leno_traffic::{
    CompiledActions, GatewayChoice, GatewayPortPlan, RequestView, RouteChoice, ServicePlan, Stay,
};

use super::date;
use super::exchange::Exchange;
use super::request::{Aim, Request};
use super::route::{Bound, Destination, may_keep, to_port};
use crate::error::Failure;
use crate::record::Record;
use crate::rule_matches;
use crate::session::{Edge, Session};
use crate::world::ConfigSnapshot;

/// Routes a request that arrived on a port of the gateway.
pub(crate) async fn route_request(
    session: &Session,
    edge: &Edge,
    request: &Request<'_>,
    aim: &Aim<'_>,
    record: &mut Record<'_>,
) -> Result<Bound, Failure> {
    let worker = &session.worker;
    let config = worker.world.current_config().ok_or(Reason::DiscoveryTimeout)?;
    record.subject.port = edge.port;
    // The connection may be older than the configuration.
    let plan = config.plans.gateway.as_ref().and_then(|plan| plan.ports.get(&edge.port).cloned());
    let plan = plan.ok_or(Reason::NoRoute)?;
    let (listeners, server_name) = match (&*plan, edge.scheme) {
        (GatewayPortPlan::Http(listeners), Scheme::Http) => (listeners, None),
        (GatewayPortPlan::Https(listeners), Scheme::Https) => {
            (listeners, Some(edge.server_name.as_deref()))
        }
        _ => return Err(Reason::NoRoute.into()),
    };
    let view = request.request_view(aim);
    let mut choice = listeners.choose_backend(&view, server_name, worker.random_number());
    let stay = match &mut choice {
        GatewayChoice::Route(choice) => Stay::for_request(
            choice,
            &config.plans,
            may_keep(worker, &config, None, &view),
            &view,
            date::since_epoch,
        ),
        _ => None,
    };
    match choice {
        GatewayChoice::Route(RouteChoice::To { rule, backend, index }) => {
            rule_matches::count_route(&worker.shard, rule);
            record.subject.route = Some(rule.route.clone());
            let bound = to_backend(session, backend, &view, record).await?;
            let actions = rule.actions_at(index).cloned();
            Ok(Bound { timeout: rule.request_timeout, actions, stay, ..bound })
        }
        GatewayChoice::Route(RouteChoice::Redirect { rule }) => {
            rule_matches::count_route(&worker.shard, rule);
            record.subject.route = Some(rule.route.clone());
            let actions = rule.actions.clone();
            let redirection =
                actions.as_ref().and_then(|it| it.redirection_at(&view, edge.scheme, edge.port));
            let redirection = redirection.ok_or(Reason::InvalidBackend)?;
            let bound = Bound::to_destination(config.clone(), Destination::Redirected(redirection));
            Ok(Bound { actions, ..bound })
        }
        GatewayChoice::Route(RouteChoice::InvalidBackend { rule }) => {
            rule_matches::count_route(&worker.shard, rule);
            record.subject.route = Some(rule.route.clone());
            Err(Reason::InvalidBackend.into())
        }
        GatewayChoice::Route(RouteChoice::NoRoute | RouteChoice::Direct)
        | GatewayChoice::NoRoute { .. } => Err(Reason::NoRoute.into()),
        GatewayChoice::Misdirected => Err(Reason::Misdirected.into()),
    }
}

/// Returns the service of a backend. Backends of a gateway's rules need no subscription, and may arrive a
/// moment later than the rules.
pub(crate) async fn service_of(
    session: &Session,
    backend: &WeightedBackend,
) -> Result<(Arc<ConfigSnapshot>, Arc<ServicePlan>), Reason> {
    let worker = &session.worker;
    let max_wait = worker.config.limits.discovery_timeout;
    let found = worker.world.with_service(&backend.service, max_wait).await;
    let (config, plan) = found.map_err(|reason| match reason {
        Reason::UnknownService => Reason::InvalidBackend,
        reason => reason,
    })?;
    worker.retire_removed(&config);
    match plan.view.reach {
        Reach::Denied => Err(Reason::DeniedOutbound),
        Reach::Allowed => Ok((config, plan)),
    }
}

/// Returns the endpoints of a backend.
async fn to_backend(
    session: &Session,
    backend: &WeightedBackend,
    view: &RequestView<'_>,
    record: &mut Record<'_>,
) -> Result<Bound, Failure> {
    let worker = &session.worker;
    let (config, plan) = service_of(session, backend).await?;
    let port = plan.ports.get(&backend.port).ok_or(Reason::InvalidBackend)?;
    record.subject.service = Some(backend.service.clone());
    record.subject.port = backend.port;
    Ok(to_port(worker, config, port, view)?)
}

impl Exchange<'_, '_> {
    /// Adds `x-forwarded-for` and `x-forwarded-proto` for requests of external clients, unless a rule sets or
    /// removes them.
    pub(super) fn tell_of_client(&mut self, edge: &Edge, actions: Option<&Arc<CompiledActions>>) {
        let client = [
            ("x-forwarded-for", self.session.peer.ip().to_string()),
            ("x-forwarded-proto", edge.scheme.as_str().to_owned()),
        ];
        let is_said = |name: &str| {
            actions.is_some_and(|it| {
                it.request.remove.iter().any(|known| **known == *name)
                    || it.request.appended().any(|(known, _)| known == name)
            })
        };
        let reported = client.into_iter().filter(|(name, _)| !is_said(name));
        self.marks.extend(reported.map(|(name, value)| (name.to_owned(), value)));
    }
}
