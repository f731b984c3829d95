//! The part of an offer that can be sent while some of its endpoints are uncertain.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leno_model::{EndpointId, PortConfig, ServiceConfig, ServiceName, Snapshot};

use super::rejected_resources::RejectedResources;
use crate::held_versions::HeldVersions;
use crate::key::{ResourceKey, ResourceVersion};
use crate::unknown_endpoints::UnknownEndpoints;

/// The part of a snapshot to send now.
///
/// Excluded are services that are new to the proxy and have no known endpoints yet, and services that route to
/// them: a request for one waits at the proxy, as for any unknown service, instead of failing for lack of
/// endpoints. Services that a held service routes to are always sent, because references must be valid.
pub(super) fn sendable_part(
    snapshot: &Arc<Snapshot>,
    doubt: &UnknownEndpoints,
    held: &HeldVersions,
) -> Arc<Snapshot> {
    let mut hidden = with_users(snapshot, services_without_endpoints(snapshot, doubt, held));
    if hidden.is_empty() {
        return Arc::clone(snapshot);
    }
    let is_held = |name: &ServiceName| {
        held.services.get(name).is_some_and(|service| service.version.is_some())
    };
    let mut open: Vec<&ServiceName> =
        snapshot.services.keys().filter(|name| is_held(name)).collect();
    let mut seen: BTreeSet<&ServiceName> = open.iter().copied().collect();
    while let Some(name) = open.pop() {
        hidden.remove(name);
        let used = snapshot.services.get(name).into_iter().flat_map(|view| backend_services(view));
        open.extend(used.filter(|name| seen.insert(name)));
    }
    let shown = snapshot.services.iter().filter(|(name, _)| !hidden.contains(name));
    let services = shown.map(|(name, view)| (name.clone(), Arc::clone(view))).collect();
    let addresses = snapshot.addresses.clone();
    let names = snapshot.names.clone();
    Arc::new(Snapshot { config: Arc::clone(&snapshot.config), services, addresses, names })
}

/// The resources that a proxy keeps unchanged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept<'a> {
    /// Rejected resources.
    pub(super) rejected_resources: &'a RejectedResources,
    /// Uncertain endpoints and addresses.
    pub(super) unknown_endpoints: &'a UnknownEndpoints,
}

impl Kept<'_> {
    /// True if this content, or the removal (`None`), is not sent although it differs.
    pub(super) fn contains(&self, key: &ResourceKey, version: Option<ResourceVersion>) -> bool {
        let uncertain = match key {
            ResourceKey::Endpoint(id) => version.is_none() && self.unknown_endpoints.contains(id),
            ResourceKey::Address(address) => self.unknown_endpoints.is_about(address),
            ResourceKey::Workload | ResourceKey::Service(_) | ResourceKey::Name(_) => false,
        };
        uncertain || self.rejected_resources.contains(key, version)
    }
}

/// Services with a port that has no endpoint, keeps none at the proxy, and may still get one.
fn services_without_endpoints<'a>(
    snapshot: &'a Snapshot,
    doubt: &'a UnknownEndpoints,
    held: &HeldVersions,
) -> BTreeSet<&'a ServiceName> {
    let mut answered = BTreeMap::new();
    for EndpointId { service, port, workload } in doubt.iter() {
        let view = snapshot.services.get(service).and_then(|view| view.ports.get(port));
        let there = view.is_none_or(|view| !view.endpoints.is_empty());
        let kept = held.services.get(service);
        let kept = kept.is_some_and(|held| held.endpoints.contains_key(&(*port, workload.clone())));
        *answered.entry((service, port)).or_insert(false) |= there || kept;
    }
    let unanswered = answered.into_iter().filter(|(_, answered)| !answered);
    unanswered.map(|((service, _), _)| service).collect()
}

/// The services, and all that route to them directly or indirectly.
fn with_users<'a>(
    snapshot: &'a Snapshot,
    services: BTreeSet<&'a ServiceName>,
) -> BTreeSet<&'a ServiceName> {
    let mut all = services;
    if all.is_empty() {
        return all;
    }
    let mut users: BTreeMap<&ServiceName, Vec<&ServiceName>> = BTreeMap::new();
    for (user, view) in &snapshot.services {
        for used in backend_services(view) {
            users.entry(used).or_default().push(user);
        }
    }
    let mut open: Vec<&ServiceName> = all.iter().copied().collect();
    while let Some(name) = open.pop() {
        let users = users.get(name).into_iter().flatten().copied();
        open.extend(users.filter(|user| all.insert(user)));
    }
    all
}

fn backend_services(view: &ServiceConfig) -> impl Iterator<Item = &ServiceName> {
    view.ports.values().flat_map(PortConfig::backends).map(|backend| &backend.service)
}
