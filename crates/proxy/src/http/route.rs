//! Routes requests, which is a stage of the request pipeline: selects the service, the rule and the backend's
//! endpoints for a request, by the kind of its listener.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_model::{ClientAuthorization, Endpoint, EndpointId, Protocol, Reason, ServiceName};
use leno_traffic::balance::RequestHash;
use leno_traffic::forwarded::EffectivePolicies;
use leno_traffic::traffic_policy::PortTrafficPolicy;
use leno_traffic::{
    CompiledActions, CompiledPort, Redirection, RequestView, RouteChoice, SessionAffinity,
    SessionTransport, TagDecision, host,
};

use super::date;
use super::gateway_request;
use super::outside::{self, NamedDestination};
use super::request::{ParsedTarget, Request};
use crate::config_store::ConfigSnapshot;
use crate::error::Failure;
use crate::record::ExchangeRecord;
use crate::rule_matches;
use crate::session::{ListenerKind, Session};
use crate::upstream::Application;
use crate::upstream::cluster::UpstreamCluster;
use crate::upstream::pick::{HashSelection, session_endpoint};
use crate::upstream::priorities::Priorities;
use crate::worker::Worker;

/// The route of a request, under the configuration snapshot that it holds.
pub(crate) struct ResolvedRoute {
    pub(crate) config: Arc<ConfigSnapshot>,
    pub(crate) destination: Destination,
    /// The timeout of the whole exchange.
    pub(crate) timeout: Option<Duration>,
    /// The actions of the selected rule other than the timeout; `None` if there are none.
    pub(crate) actions: Option<Arc<CompiledActions>>,
    /// The upstream cluster state with circuit breaker and outlier detection, if any policy applies.
    pub(crate) cluster: Option<Rc<UpstreamCluster>>,
    /// The hash of the request, if a load balancing policy uses one.
    pub(crate) hash_selection: Option<HashSelection>,
    /// The traffic policy, if it includes fault injection or hedging.
    pub(crate) fault_or_hedge_policy: Option<Arc<PortTrafficPolicy>>,
    /// The persistent session of the client and its endpoint; `None` without session persistence.
    pub(crate) session_affinity: Option<Box<SessionAffinity>>,
}

impl ResolvedRoute {
    /// Returns a route to `destination` without a timeout, actions and policies.
    pub(crate) fn to_destination(config: Arc<ConfigSnapshot>, destination: Destination) -> Self {
        Self {
            config,
            destination,
            timeout: None,
            actions: None,
            cluster: None,
            hash_selection: None,
            fault_or_hedge_policy: None,
            session_affinity: None,
        }
    }
}

/// The destination of a route.
pub(crate) enum Destination {
    /// The local application, or a server outside the mesh.
    Application(Rc<Application>),
    /// Any of these endpoints.
    Endpoints(Priorities),
    /// No destination: the client receives a redirect.
    Redirected(Redirection),
}

impl Destination {
    /// Returns the number of endpoints to choose from; 0 for the application.
    pub(crate) fn endpoint_count(&self) -> usize {
        match self {
            Self::Endpoints(priorities) => priorities.len(),
            Self::Application(_) | Self::Redirected(_) => 0,
        }
    }
}

/// Routes a request by its listener kind, and records the result.
pub(crate) async fn route_request(
    session: &Session,
    request: &Request<'_>,
    request_target: &ParsedTarget<'_>,
    record: &mut ExchangeRecord<'_>,
) -> Result<ResolvedRoute, Failure> {
    match &session.listener_kind {
        ListenerKind::Inbound { port } => {
            let detected_http2 = session.detected_http2 || request.head.http2;
            route_inbound(session, *port, detected_http2, record)
        }
        ListenerKind::Outbound { service, port } | ListenerKind::Service { service, port } => {
            // Recorded before the service is known to exist, because the listener determines it. A service that
            // a client of the HTTP proxy names is recorded only once it is found.
            record.subject.service = Some(service.clone());
            route_to_service(session, service, *port, request, request_target, record).await
        }
        ListenerKind::Pinned { address, id } => route_pinned(session, *address, id, record).await,
        // Boxed to keep the future small for other requests.
        ListenerKind::Gateway { .. } => match &session.gateway_connection {
            Some(gateway_connection) => {
                Box::pin(gateway_request::route_request(
                    session,
                    gateway_connection,
                    request,
                    request_target,
                    record,
                ))
                .await
            }
            None => Err(Reason::NoRoute.into()),
        },
        ListenerKind::Address(address) => {
            Ok(outside::route_external(session, *address, request, request_target)?)
        }
        ListenerKind::HttpProxy => {
            // Only a request with an absolute target is meant for a proxy (RFC 9112 §3.2.2): a request that
            // looped back has none.
            let destination = match request_target.origin_form {
                None => parse_authority(session, request_target.authority)
                    .map(|(service, port)| NamedDestination::Service(service, port))?,
                Some(_) => outside::resolve_authority(session, request_target.authority).await?,
            };
            match destination {
                NamedDestination::Service(service, port) => {
                    route_to_service(session, &service, port, request, request_target, record).await
                }
                NamedDestination::External(address) => {
                    Ok(outside::route_external(session, address, request, request_target)?)
                }
            }
        }
    }
}

/// Routes to one specific workload: the routes and policies of its service do not apply.
async fn route_pinned(
    session: &Session,
    address: SocketAddr,
    id: &EndpointId,
    record: &mut ExchangeRecord<'_>,
) -> Result<ResolvedRoute, Failure> {
    record.subject.service = Some(id.service.clone());
    record.subject.port = id.port;
    let worker = &session.worker;
    let max_wait = worker.config.limits.discovery_timeout;
    let (config, endpoint) = worker.config_store.pinned_endpoint(address, id, max_wait).await?;
    worker.retire_removed_endpoints(&config);
    if worker.config_store.protocol_at(address) == Some(Protocol::Tcp) {
        return Err(reject_changed_protocol(session));
    }
    Ok(ResolvedRoute::to_destination(
        config,
        Destination::Endpoints(Priorities::new(Arc::from([endpoint]), None)),
    ))
}

/// Returns the route to a port of the application, as the snapshot describes it. `detected_http2`: the client
/// uses HTTP/2, and so does the application if it declares no protocol.
pub(crate) fn route_inbound(
    session: &Session,
    port: u16,
    detected_http2: bool,
    record: &mut ExchangeRecord<'_>,
) -> Result<ResolvedRoute, Failure> {
    let config = session.worker.config_store.current_config().ok_or(Reason::DiscoveryTimeout)?;
    let workload_config = &config.compiled.snapshot.config;
    record.subject.port = port;
    // The connection may be older than the configuration.
    let inbound_port = workload_config.ports.iter().find(|inbound| inbound.port == port);
    let served_protocol = match inbound_port.ok_or(Reason::UnknownService)?.protocol {
        Protocol::Detect if detected_http2 => Protocol::Http2,
        // Only the rule that opened the port for clients outside the mesh declares its protocol.
        Protocol::Detect
            if session.transport == SessionTransport::Plaintext && session.identity.is_none() =>
        {
            config.plaintext_protocol(port, session.peer.ip()).unwrap_or(Protocol::Detect)
        }
        declared_protocol => declared_protocol,
    };
    record.subject.service = workload_config.port_services.get(&port).cloned();
    let address = SocketAddr::new(workload_config.address, port);
    let application = session.worker.application_at(address, served_protocol.into());
    Ok(ResolvedRoute::to_destination(config, Destination::Application(application)))
}

/// Parses an authority into a service and a port.
pub(crate) fn parse_authority(
    session: &Session,
    authority: &str,
) -> Result<(ServiceName, u16), Reason> {
    let (name, port) = match authority.rsplit_once(':') {
        Some((name, port)) => (name, port.parse().map_err(|_| Reason::BadRequest)?),
        None => (authority, HTTP_PORT),
    };
    let config = session.worker.config_store.current_config().ok_or(Reason::DiscoveryTimeout)?;
    let namespace = &config.compiled.snapshot.config.workload.namespace;
    let service = host::service_of(name, namespace).ok_or(Reason::UnknownService)?;
    Ok((service, port))
}

/// Returns the destination of a CONNECT request to the HTTP proxy.
///
/// # Errors
/// `denied-outbound` for a service that the client may not call, `unknown-service` for a service without this
/// port; otherwise the errors of [`outside::resolve_authority`].
pub(crate) async fn tunnel_destination(
    session: &Session,
    authority: &str,
) -> Result<NamedDestination, Reason> {
    let (service, port) = match outside::resolve_authority(session, authority).await? {
        NamedDestination::Service(service, port) => (service, port),
        external => return Ok(external),
    };
    let max_wait = session.worker.config.limits.discovery_timeout;
    let (_, compiled_service) =
        session.worker.config_store.with_service(&service, max_wait).await?;
    match (compiled_service.config.client_authorization, compiled_service.ports.contains_key(&port))
    {
        (ClientAuthorization::Denied, _) => Err(Reason::DeniedOutbound),
        (ClientAuthorization::Allowed, false) => Err(Reason::UnknownService),
        (ClientAuthorization::Allowed, true) => Ok(NamedDestination::Service(service, port)),
    }
}

/// Routes to a service: selects a rule and a backend, and collects the backend's endpoints and policies.
async fn route_to_service(
    session: &Session,
    service: &ServiceName,
    port: u16,
    request: &Request<'_>,
    request_target: &ParsedTarget<'_>,
    record: &mut ExchangeRecord<'_>,
) -> Result<ResolvedRoute, Failure> {
    let worker = &session.worker;
    let max_wait = worker.config.limits.discovery_timeout;
    let (config, compiled_service) = worker.config_store.with_service(service, max_wait).await?;
    worker.retire_removed_endpoints(&config);
    record.subject.service = Some(service.clone());
    if compiled_service.config.client_authorization == ClientAuthorization::Denied {
        return Err(Reason::DeniedOutbound.into());
    }
    let compiled_port = compiled_service.ports.get(&port).ok_or(Reason::UnknownService)?;
    record.subject.port = port;
    if compiled_port.protocol == Protocol::Tcp && session.listener_kind != ListenerKind::HttpProxy {
        return Err(reject_changed_protocol(session));
    }
    let view = request.request_view(request_target);
    let mut route_choice = compiled_port.routes.choose_backend(&view, worker.random_number());
    let may_keep_session = session_predicate(worker, &config, Some(compiled_port), &view);
    let (compiled, clock) = (&config.compiled, date::since_epoch);
    let session_affinity =
        SessionAffinity::for_request(&mut route_choice, compiled, may_keep_session, &view, clock);
    let (backend_port, policies, timeout, actions) = match route_choice {
        RouteChoice::Direct => {
            let actions = compiled_port.routes.direct_actions().cloned();
            (compiled_port, compiled_port.own_policies(), None, actions)
        }
        RouteChoice::To { rule, backend, index } => {
            rule_matches::count_route(&worker.metrics, rule);
            record.subject.route = Some(rule.route.clone());
            let service = compiled.service(&backend.service);
            let backend_port = service.and_then(|service| service.ports.get(&backend.port));
            let backend_port = backend_port.ok_or(Reason::InvalidBackend)?;
            record.subject.service = Some(backend.service.clone());
            let policies = compiled_port.policies_of_rule(rule.index, index, backend_port);
            (backend_port, policies, rule.request_timeout, rule.actions_at(index).cloned())
        }
        RouteChoice::Redirect { rule } => {
            rule_matches::count_route(&worker.metrics, rule);
            record.subject.route = Some(rule.route.clone());
            let actions = rule.actions.clone();
            let redirection = actions.as_ref().and_then(|actions| actions.redirection(&view, port));
            let destination = Destination::Redirected(redirection.ok_or(Reason::InvalidBackend)?);
            let resolved_route = ResolvedRoute::to_destination(config, destination);
            return Ok(ResolvedRoute { actions, ..resolved_route });
        }
        RouteChoice::NoRoute => return Err(Reason::NoRoute.into()),
        RouteChoice::InvalidBackend { rule } => {
            rule_matches::count_route(&worker.metrics, rule);
            return Err(Reason::InvalidBackend.into());
        }
    };
    let priorities = permitted_endpoints(worker, backend_port, Some(&view))?;
    let destination = Destination::Endpoints(priorities);
    if policies.traffic_policy.is_none() {
        let resolved_route = ResolvedRoute::to_destination(config, destination);
        return Ok(ResolvedRoute { timeout, actions, session_affinity, ..resolved_route });
    }
    let hash_selection = request_hash(&config, backend_port, policies, Some(&view));
    let cluster = worker.cluster_for(policies.traffic_policy, backend_port, config.version);
    let fault_or_hedge_policy = select_fault_or_hedge_policy(policies.traffic_policy);
    Ok(ResolvedRoute {
        destination,
        timeout,
        actions,
        cluster,
        hash_selection,
        fault_or_hedge_policy,
        session_affinity,
        config,
    })
}

/// Fails a request on a connection that is served as HTTP, because its port now carries TCP. TCP policies apply
/// to the next connection.
#[cold]
fn reject_changed_protocol(session: &Session) -> Failure {
    session.is_outdated.set(true);
    Reason::ProtocolChanged.into()
}

/// Returns a predicate for session persistence: true if a request may stay at an endpoint of a port. Otherwise
/// another backend may be used. `called_port`: the port of the called service, if any.
pub(crate) fn session_predicate<'a>(
    worker: &'a Rc<Worker>,
    config: &'a ConfigSnapshot,
    called_port: Option<&'a CompiledPort>,
    view: &'a RequestView<'_>,
) -> impl Fn(&CompiledPort, &Arc<Endpoint>) -> bool + 'a {
    move |port, endpoint| {
        let id = &endpoint.id;
        let policies = called_port.map_or_else(
            || port.own_policies(),
            |called_port| called_port.policies_to(&id.service, id.port, port),
        );
        let cluster = worker.cluster_for(policies.traffic_policy, port, config.version);
        let is_permitted_by_tags = port.tags.as_ref().is_none_or(|tags| {
            let priorities =
                tag_priorities(&tags.choose_instances(view, &mut || worker.random_number()));
            let serving_endpoints = priorities
                .as_ref()
                .map(|priorities| priorities.serving_endpoints(worker, cluster.as_deref(), None));
            serving_endpoints.is_some_and(|serving_endpoints| {
                serving_endpoints.iter().any(|candidate| candidate.id == endpoint.id)
            })
        });
        is_permitted_by_tags
            && session_endpoint(worker, endpoint, cluster.as_deref(), None).is_some()
    }
}

/// Returns the route to the endpoints of a port that may receive a request, with the policies of the port.
pub(crate) fn route_to_port(
    worker: &Rc<Worker>,
    config: Arc<ConfigSnapshot>,
    port: &CompiledPort,
    view: &RequestView<'_>,
) -> Result<ResolvedRoute, Reason> {
    let priorities = permitted_endpoints(worker, port, Some(view))?;
    let policies = port.own_policies();
    let traffic_policy = policies.traffic_policy;
    let hash_selection = request_hash(&config, port, policies, Some(view));
    let cluster = worker.cluster_for(traffic_policy, port, config.version);
    let fault_or_hedge_policy = select_fault_or_hedge_policy(traffic_policy);
    let resolved_route = ResolvedRoute::to_destination(config, Destination::Endpoints(priorities));
    Ok(ResolvedRoute { cluster, hash_selection, fault_or_hedge_policy, ..resolved_route })
}

/// Returns the traffic policy of a request if it includes fault injection or hedging.
fn select_fault_or_hedge_policy(
    traffic_policy: Option<&Arc<PortTrafficPolicy>>,
) -> Option<Arc<PortTrafficPolicy>> {
    traffic_policy.filter(|policy| policy.faults.is_some() || policy.hedging.is_some()).cloned()
}

/// Returns the hash of a request, or of a connection if `request_view` is `None`; `None` if no load balancing
/// policy hashes.
pub(crate) fn request_hash(
    config: &ConfigSnapshot,
    port: &CompiledPort,
    policies: EffectivePolicies<'_>,
    request_view: Option<&RequestView<'_>>,
) -> Option<HashSelection> {
    let EffectivePolicies { traffic_policy, hash_table } = policies;
    let balancing = traffic_policy?.balancing.as_ref()?;
    let caller = &config.compiled.snapshot.config.workload;
    let hash =
        RequestHash::for_request(balancing.rule.algorithm.hash_key()?, request_view, caller)?;
    let hash_table = hash_table.cloned().map(|hash_table| (port.endpoints.clone(), hash_table));
    Some(HashSelection { request_hash: hash, hash_table })
}

/// Returns the endpoints that the port's tag rules permit for a request, or for a connection if
/// `request_view` is `None`.
///
/// # Errors
/// `no-tagged-endpoint` if tag rules permit no endpoint.
pub(crate) fn permitted_endpoints(
    worker: &Worker,
    port: &CompiledPort,
    request_view: Option<&RequestView<'_>>,
) -> Result<Priorities, Reason> {
    let Some(tags) = &port.tags else {
        return Ok(Priorities::new(port.endpoints.clone(), None));
    };
    let mut random_number = || worker.random_number();
    let decision = match request_view {
        Some(request_view) => tags.choose_instances(request_view, &mut random_number),
        None => tags.choose_without_request(&mut random_number),
    };
    tags.matched_rules(&decision)
        .for_each(|(origin, slot)| rule_matches::count_tags(&worker.metrics, origin, slot));
    tag_priorities(&decision).ok_or(Reason::NoTaggedEndpoint)
}

/// Returns the endpoints that tag rules permit; `None` if tag rules permit no endpoint.
fn tag_priorities(decision: &TagDecision<'_>) -> Option<Priorities> {
    Some(Priorities::new(decision.endpoints?.clone(), decision.fallbacks.cloned()))
}

/// RFC 9110 §4.2.1: the default port of `http` URIs.
const HTTP_PORT: u16 = 80;
