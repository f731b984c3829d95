//! Routes requests to servers outside the mesh: by the destination address of the connection, or by the host
//! that a client of the HTTP proxy names.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use leno_model::{AddressEntry, Egress, Name, Reason, ServiceName};
use leno_traffic::{EgressDecision, external_rejection};

use super::request::{ParsedTarget, Request};
use super::route::{self, Destination, ResolvedRoute};
use crate::session::Session;
use crate::upstream::Application;

/// Routes a request to an address outside the mesh, if an egress rule permits its host, or all traffic to that
/// address.
pub(crate) fn route_external(
    session: &Session,
    address: SocketAddr,
    request: &Request<'_>,
    request_target: &ParsedTarget<'_>,
) -> Result<ResolvedRoute, Reason> {
    let config = session.worker.config_store.current_config().ok_or(Reason::DiscoveryTimeout)?;
    let compiled = &config.compiled;
    if compiled.snapshot.config.egress == Egress::Deny
        && compiled.egress_rules.decide_address(address) != EgressDecision::Allowed
        && compiled
            .egress_rules
            .policy_for_request(address, &request.request_view(request_target))
            .is_none()
    {
        return Err(Reason::EgressDenied);
    }
    let mut cached_server = session.external_server.borrow_mut();
    let external_server =
        match cached_server.take().filter(|external_server| external_server.is_at(address)) {
            Some(external_server) => external_server,
            None => Rc::new(Application::external(address)),
        };
    *cached_server = Some(external_server.clone());
    Ok(ResolvedRoute::to_destination(
        Arc::clone(&config),
        Destination::Application(external_server),
    ))
}

/// The destination that a client of the HTTP proxy names.
pub(crate) enum NamedDestination {
    Service(ServiceName, u16),
    /// An address outside the mesh.
    External(SocketAddr),
}

/// Resolves the destination of a client of the HTTP proxy: a service, or an external host that `egress` may
/// permit.
///
/// # Errors
/// `unknown-service` for a service that does not exist, and for a host without an address; `egress-denied` if
/// no rule permits requests to the host. A name of two labels, such as `example.com`, is a host unless its
/// second label is a known namespace.
pub(crate) async fn resolve_authority(
    session: &Session,
    authority: &str,
) -> Result<NamedDestination, Reason> {
    let worker = &session.worker;
    let (host, port) = split_authority(authority)?;
    let service = match host.eq_ignore_ascii_case("localhost") {
        // RFC 6761 §6.3: `localhost` is always a name of this machine, whatever its resolver returns.
        true => Err(Reason::UnknownService),
        false => route::parse_authority(session, authority),
    };
    match &service {
        Ok((service, port)) => {
            let max_wait = worker.config.limits.discovery_timeout;
            match worker.config_store.with_service(service, max_wait).await {
                // The name may still be that of an external host.
                Err(Reason::UnknownService) => {}
                // Other failures are reported when the request is routed to the service.
                Ok(_) | Err(_) => return Ok(NamedDestination::Service(service.clone(), *port)),
            }
        }
        // The host is `localhost`, or does not have the form of a service name.
        Err(Reason::UnknownService) => {}
        Err(reason) => return Err(*reason),
    }
    let egress_permitted = {
        let config = worker.config_store.current_config().ok_or(Reason::DiscoveryTimeout)?;
        let compiled = &config.compiled;
        compiled.snapshot.config.egress == Egress::Allow
            || compiled.egress_rules.may_allow_port(port)
    };
    let named_service = service.as_ref().ok().map(|(service, _)| service);
    let is_known_namespace = |namespace: &Name| knows_namespace(session, namespace);
    if let Some(reason) =
        external_rejection(host, named_service, egress_permitted, is_known_namespace)
    {
        return Err(reason);
    }
    let resolve_result = Box::pin(resolve_host(session, host, port)).await;
    // A name in the form of a service name, but without an address, is an unknown service, even if the resolver
    // has timed out.
    let address =
        resolve_result.map_err(|reason| service.map_or(reason, |_| Reason::UnknownService))?;
    classify_address(session, address).await
}

/// Returns the destination at a resolved address. A service of the mesh is reached in the same way as by its
/// name, never in plaintext, and a single workload is rejected. A loopback address is the client's own machine.
async fn classify_address(
    session: &Session,
    address: SocketAddr,
) -> Result<NamedDestination, Reason> {
    let worker = &session.worker;
    if address.ip().is_loopback() {
        return Ok(NamedDestination::External(address));
    }
    let max_wait = worker.config.limits.discovery_timeout;
    match &*worker.config_store.address_entry(address.ip(), max_wait).await? {
        AddressEntry::External => Ok(NamedDestination::External(address)),
        AddressEntry::Service(service) => {
            Ok(NamedDestination::Service(service.clone(), address.port()))
        }
        AddressEntry::Workload { .. } => Err(Reason::UnknownService),
    }
}

/// True if the sidecar knows a service of the namespace: an unknown name in that namespace can only be a
/// mistake. Also true without a configuration.
#[cold]
fn knows_namespace(session: &Session, namespace: &Name) -> bool {
    let Some(config) = session.worker.config_store.current_config() else { return true };
    let compiled = &config.compiled;
    *namespace == compiled.snapshot.config.workload.namespace
        || compiled.services.keys().any(|service| service.namespace == *namespace)
}

/// Splits an authority into a host and a port, by default 80.
fn split_authority(authority: &str) -> Result<(&str, u16), Reason> {
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            (host, port.parse().map_err(|_| Reason::BadRequest)?)
        }
        _ => (authority, HTTP_PORT),
    };
    Ok((host, port))
}

/// Resolves a host with the resolver of the machine. Returns its first IPv4 address, or its first address if it
/// has no IPv4 address.
async fn resolve_host(session: &Session, host: &str, port: u16) -> Result<SocketAddr, Reason> {
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if let Ok(address) = host.parse() {
        return Ok(SocketAddr::new(address, port));
    }
    let worker = &session.worker;
    let resolve_name = async {
        // The permit limits the pending queries, each of which occupies a thread.
        let _permit = worker.name_queries.acquire().await.map_err(|_| Reason::UnknownService)?;
        let lookup_result = tokio::net::lookup_host((host, port)).await;
        let addresses: Vec<_> = lookup_result.map_err(|_| Reason::UnknownService)?.collect();
        let preferred_address =
            addresses.iter().find(|candidate| candidate.is_ipv4()).or(addresses.first());
        preferred_address.copied().ok_or(Reason::UnknownService)
    };
    let max_wait = worker.config.limits.connect_timeout;
    tokio::time::timeout(max_wait, resolve_name).await.map_err(|_| Reason::ConnectTimeout)?
}

/// RFC 9110 §4.2.1: the default port of `http` URIs.
const HTTP_PORT: u16 = 80;
