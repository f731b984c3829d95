//! Selects the part of a desired configuration that can be sent while some of its endpoints are unknown.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leno_model::{EndpointId, PortConfig, ServiceConfig, ServiceName, Snapshot};

use super::rejected_resources::RejectedResources;
use crate::held_versions::HeldVersions;
use crate::key::{ResourceKey, ResourceVersion};
use crate::unknown_endpoints::UnknownEndpoints;

/// Returns the part of a snapshot to send now.
///
/// Excludes services that are new to the proxy and have no known endpoints yet, and services that route to
/// them. A request for an excluded service waits at the proxy, as for any service that the proxy does not hold,
/// instead of failing for lack of endpoints. Services that a held service routes to are always included,
/// because references must be valid.
pub(super) fn select_sendable_part(
    snapshot: &Arc<Snapshot>,
    unknown_endpoints: &UnknownEndpoints,
    held_versions: &HeldVersions,
) -> Arc<Snapshot> {
    let mut excluded_services = add_dependents(
        snapshot,
        find_services_without_endpoints(snapshot, unknown_endpoints, held_versions),
    );
    if excluded_services.is_empty() {
        return Arc::clone(snapshot);
    }
    let is_held = |name: &ServiceName| {
        held_versions.services.get(name).is_some_and(|service| service.version.is_some())
    };
    let mut queue: Vec<&ServiceName> =
        snapshot.services.keys().filter(|name| is_held(name)).collect();
    let mut visited_services: BTreeSet<&ServiceName> = queue.iter().copied().collect();
    while let Some(name) = queue.pop() {
        excluded_services.remove(name);
        let backends =
            snapshot.services.get(name).into_iter().flat_map(|service| backend_services(service));
        queue.extend(backends.filter(|name| visited_services.insert(name)));
    }
    let included_services =
        snapshot.services.iter().filter(|(name, _)| !excluded_services.contains(name));
    let services =
        included_services.map(|(name, service)| (name.clone(), Arc::clone(service))).collect();
    let addresses = snapshot.addresses.clone();
    let names = snapshot.names.clone();
    Arc::new(Snapshot { config: Arc::clone(&snapshot.config), services, addresses, names })
}

/// The resources that a proxy retains unchanged although they differ from the desired ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct RetainedResources<'a> {
    /// Rejected resources.
    pub(super) rejected_resources: &'a RejectedResources,
    /// Endpoints and addresses that may still exist.
    pub(super) unknown_endpoints: &'a UnknownEndpoints,
}

impl RetainedResources<'_> {
    /// True if this version, or the removal if `version` is `None`, is not sent although it differs from the
    /// held version.
    pub(super) fn contains(&self, key: &ResourceKey, version: Option<ResourceVersion>) -> bool {
        let is_unknown = match key {
            ResourceKey::Endpoint(id) => version.is_none() && self.unknown_endpoints.contains(id),
            ResourceKey::Address(address) => self.unknown_endpoints.contains_address(address),
            ResourceKey::Workload | ResourceKey::Service(_) | ResourceKey::Name(_) => false,
        };
        is_unknown || self.rejected_resources.contains(key, version)
    }
}

/// Returns the services with a port that has only unknown endpoints, none of them held by the proxy.
fn find_services_without_endpoints<'a>(
    snapshot: &'a Snapshot,
    unknown_endpoints: &'a UnknownEndpoints,
    held_versions: &HeldVersions,
) -> BTreeSet<&'a ServiceName> {
    let mut has_endpoint_by_port = BTreeMap::new();
    for EndpointId { service, port, workload } in unknown_endpoints.iter() {
        let port_config =
            snapshot.services.get(service).and_then(|service| service.ports.get(port));
        let has_known = port_config.is_none_or(|port_config| !port_config.endpoints.is_empty());
        let has_retained = held_versions.services.get(service).is_some_and(|held_service| {
            held_service.endpoints.contains_key(&(*port, workload.clone()))
        });
        *has_endpoint_by_port.entry((service, port)).or_insert(false) |= has_known || has_retained;
    }
    let without_endpoints =
        has_endpoint_by_port.into_iter().filter(|(_, has_endpoint)| !has_endpoint);
    without_endpoints.map(|((service, _), _)| service).collect()
}

/// Returns the given services, and all services that route to them directly or indirectly.
fn add_dependents<'a>(
    snapshot: &'a Snapshot,
    services: BTreeSet<&'a ServiceName>,
) -> BTreeSet<&'a ServiceName> {
    let mut collected_services = services;
    if collected_services.is_empty() {
        return collected_services;
    }
    let mut dependents: BTreeMap<&ServiceName, Vec<&ServiceName>> = BTreeMap::new();
    for (dependent, service) in &snapshot.services {
        for backend in backend_services(service) {
            dependents.entry(backend).or_default().push(dependent);
        }
    }
    let mut queue: Vec<&ServiceName> = collected_services.iter().copied().collect();
    while let Some(name) = queue.pop() {
        let dependents = dependents.get(name).into_iter().flatten().copied();
        queue.extend(dependents.filter(|dependent| collected_services.insert(dependent)));
    }
    collected_services
}

/// Returns the services that a service routes to.
fn backend_services(service: &ServiceConfig) -> impl Iterator<Item = &ServiceName> {
    service.ports.values().flat_map(PortConfig::backends).map(|backend| &backend.service)
}
