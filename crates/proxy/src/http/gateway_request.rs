//! Routes requests of external clients at a gateway: selects listener and rule, and adds headers about the
//! client.

use std::sync::Arc;

use leno_model::{ClientAuthorization, Reason, Scheme, WeightedBackend};
use leno_traffic::{
    CompiledActions, CompiledGatewayPort, CompiledService, GatewayChoice, RequestView, RouteChoice,
    SessionAffinity,
};

use super::date;
use super::exchange::Exchange;
use super::request::{ParsedTarget, Request};
use super::route::{Destination, ResolvedRoute, route_to_port, session_predicate};
use crate::config_store::ConfigSnapshot;
use crate::error::Failure;
use crate::record::ExchangeRecord;
use crate::rule_matches;
use crate::session::{GatewayConnection, Session};

/// Routes a request that arrived on a port of the gateway.
pub(crate) async fn route_request(
    session: &Session,
    gateway_connection: &GatewayConnection,
    request: &Request<'_>,
    request_target: &ParsedTarget<'_>,
    record: &mut ExchangeRecord<'_>,
) -> Result<ResolvedRoute, Failure> {
    let worker = &session.worker;
    let config = worker.config_store.current_config().ok_or(Reason::DiscoveryTimeout)?;
    record.subject.port = gateway_connection.port;
    // The connection may be older than the configuration.
    let port_config = config
        .compiled
        .gateway
        .as_ref()
        .and_then(|gateway| gateway.ports.get(&gateway_connection.port).cloned());
    let port_config = port_config.ok_or(Reason::NoRoute)?;
    let (listeners, server_name) = match (&*port_config, gateway_connection.scheme) {
        (CompiledGatewayPort::Http(listeners), Scheme::Http) => (listeners, None),
        (CompiledGatewayPort::Https(listeners), Scheme::Https) => {
            (listeners, Some(gateway_connection.server_name.as_deref()))
        }
        // The port has changed its protocol since the connection was accepted.
        _ => return Err(Reason::NoRoute.into()),
    };
    let view = request.request_view(request_target);
    let mut gateway_choice = listeners.choose_backend(&view, server_name, worker.random_number());
    let session_affinity = match &mut gateway_choice {
        GatewayChoice::Route(route_choice) => SessionAffinity::for_request(
            route_choice,
            &config.compiled,
            session_predicate(worker, &config, None, &view),
            &view,
            date::since_epoch,
        ),
        _ => None,
    };
    match gateway_choice {
        GatewayChoice::Route(RouteChoice::To { rule, backend, index }) => {
            rule_matches::count_route(&worker.metrics, rule);
            record.subject.route = Some(rule.route.clone());
            let resolved_route = route_to_backend(session, backend, &view, record).await?;
            let actions = rule.actions_at(index).cloned();
            Ok(ResolvedRoute {
                timeout: rule.request_timeout,
                actions,
                session_affinity,
                ..resolved_route
            })
        }
        GatewayChoice::Route(RouteChoice::Redirect { rule }) => {
            rule_matches::count_route(&worker.metrics, rule);
            record.subject.route = Some(rule.route.clone());
            let actions = rule.actions.clone();
            let redirection = actions.as_ref().and_then(|actions| {
                actions.redirection_at(&view, gateway_connection.scheme, gateway_connection.port)
            });
            let redirection = redirection.ok_or(Reason::InvalidBackend)?;
            let resolved_route =
                ResolvedRoute::to_destination(config.clone(), Destination::Redirected(redirection));
            Ok(ResolvedRoute { actions, ..resolved_route })
        }
        GatewayChoice::Route(RouteChoice::InvalidBackend { rule }) => {
            rule_matches::count_route(&worker.metrics, rule);
            record.subject.route = Some(rule.route.clone());
            Err(Reason::InvalidBackend.into())
        }
        // A gateway has no endpoints of its own, to which `Direct` would forward.
        GatewayChoice::Route(RouteChoice::NoRoute | RouteChoice::Direct)
        | GatewayChoice::NoRoute { .. } => Err(Reason::NoRoute.into()),
        GatewayChoice::Misdirected => Err(Reason::Misdirected.into()),
    }
}

/// Returns the service of a backend, with the configuration that contains it. Waits for the service, because
/// the backends of a gateway's rules may arrive a moment later than the rules.
///
/// # Errors
/// `invalid-backend` for a service that does not exist, `denied-outbound` for a service that the gateway may
/// not call.
pub(crate) async fn backend_service(
    session: &Session,
    backend: &WeightedBackend,
) -> Result<(Arc<ConfigSnapshot>, Arc<CompiledService>), Reason> {
    let worker = &session.worker;
    let max_wait = worker.config.limits.discovery_timeout;
    let service_result = worker.config_store.with_service(&backend.service, max_wait).await;
    let (config, compiled_service) = service_result.map_err(|reason| match reason {
        Reason::UnknownService => Reason::InvalidBackend,
        reason => reason,
    })?;
    worker.retire_removed_endpoints(&config);
    match compiled_service.config.client_authorization {
        ClientAuthorization::Denied => Err(Reason::DeniedOutbound),
        ClientAuthorization::Allowed => Ok((config, compiled_service)),
    }
}

/// Returns the route to the endpoints of a backend.
async fn route_to_backend(
    session: &Session,
    backend: &WeightedBackend,
    view: &RequestView<'_>,
    record: &mut ExchangeRecord<'_>,
) -> Result<ResolvedRoute, Failure> {
    let worker = &session.worker;
    let (config, compiled_service) = backend_service(session, backend).await?;
    let compiled_port = compiled_service.ports.get(&backend.port).ok_or(Reason::InvalidBackend)?;
    record.subject.service = Some(backend.service.clone());
    record.subject.port = backend.port;
    Ok(route_to_port(worker, config, compiled_port, view)?)
}

impl Exchange<'_, '_> {
    /// Adds `x-forwarded-for` and `x-forwarded-proto` for requests of external clients, unless a rule sets or
    /// removes them.
    pub(super) fn add_client_headers(
        &mut self,
        gateway_connection: &GatewayConnection,
        actions: Option<&Arc<CompiledActions>>,
    ) {
        let client_headers = [
            ("x-forwarded-for", self.session.peer.ip().to_string()),
            ("x-forwarded-proto", gateway_connection.scheme.as_str().to_owned()),
        ];
        let is_edited = |name: &str| {
            actions.is_some_and(|actions| {
                actions.request.remove.iter().any(|edited_name| **edited_name == *name)
                    || actions.request.appended().any(|(edited_name, _)| edited_name == name)
            })
        };
        let added_headers = client_headers.into_iter().filter(|(name, _)| !is_edited(name));
        self.extra_headers.extend(added_headers.map(|(name, value)| (name.to_owned(), value)));
    }
}
