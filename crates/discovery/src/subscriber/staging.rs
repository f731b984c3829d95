//! A decoded delta, and the services that result from it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use leno_model::{
    AddressEntry, DnsRecord, Endpoint, EndpointId, ObjectKey, PortConfig, ServiceConfig,
    ServiceName, WeightedBackend, WorkloadConfig, WorkloadName,
};

use crate::held_versions::endpoints_of;
use crate::key::ResourceKey;
use crate::message::{ConfigUpdate, Delta, ResourceRejection};
use crate::resource::Resource;

/// A decoded delta. Removals are applied before additions.
#[derive(Debug, Default)]
pub(super) struct DecodedDelta {
    config: Option<Arc<WorkloadConfig>>,
    /// New services and new versions of services, without endpoints.
    views: BTreeMap<ServiceName, ServiceConfig>,
    gone: BTreeSet<ServiceName>,
    endpoints: BTreeMap<ServiceName, EndpointChanges>,
    /// `None` for unsubscribed ones.
    addresses: BTreeMap<IpAddr, Option<Arc<AddressEntry>>>,
    names: BTreeMap<ServiceName, Option<Arc<DnsRecord>>>,
}

/// Endpoints of one service by port and workload; `None` for removed ones.
type EndpointChanges = BTreeMap<(u16, WorkloadName), Option<Arc<Endpoint>>>;

impl DecodedDelta {
    /// Decodes every resource of a delta.
    pub(super) fn read(delta: &Delta) -> Result<Self, Vec<ResourceRejection>> {
        let mut staging = Self::default();
        let mut refusals = Vec::new();
        for key in &delta.removed {
            refusals.extend(staging.remove(key));
        }
        for upsert in &delta.upserts {
            match Resource::decode(upsert) {
                Ok(resource) => staging.insert(resource),
                Err(invalid) => {
                    let reason = format!("{}: {}", invalid.field, invalid.reason);
                    refusals.push(ResourceRejection::new(invalid.key, reason));
                }
            }
        }
        if refusals.is_empty() { Ok(staging) } else { Err(refusals) }
    }

    /// The resulting configuration; the previous one if it is equal.
    pub(super) fn resulting_proxy_config(
        &self,
        before: Option<&ConfigUpdate>,
    ) -> Option<Arc<WorkloadConfig>> {
        let before = before.map(|before| &before.snapshot.config);
        let new = self.config.as_ref().filter(|new| before.is_none_or(|before| before != *new));
        new.or(before).cloned()
    }

    /// The resulting address entries; `None` without changes.
    pub(super) fn resulting_addresses(
        &self,
        before: Option<&ConfigUpdate>,
    ) -> Option<BTreeMap<IpAddr, Arc<AddressEntry>>> {
        merge_changes(&self.addresses, before.map(|before| &before.snapshot.addresses))
    }

    /// The resulting DNS records; `None` without changes.
    pub(super) fn resulting_names(
        &self,
        before: Option<&ConfigUpdate>,
    ) -> Option<BTreeMap<ServiceName, Arc<DnsRecord>>> {
        merge_changes(&self.names, before.map(|before| &before.snapshot.names))
    }

    /// The resulting services, with all references checked; `None` without changes.
    pub(super) fn resulting_services(
        &self,
        before: Option<&ConfigUpdate>,
        absent: &BTreeSet<ServiceName>,
    ) -> Result<Option<BTreeMap<ServiceName, Arc<ServiceConfig>>>, Vec<ResourceRejection>> {
        let old = before.map(|before| &before.snapshot.services);
        let mut services = old.cloned().unwrap_or_default();
        let mut refusals = Vec::new();
        services.retain(|name, _| !self.gone.contains(name));
        let mut differs = old.is_some_and(|old| old.len() != services.len());
        for name in self.affected_services() {
            let old = services.get(name);
            let Some(view) = self.rebuild_service(name, old.map(|old| &**old), &mut refusals)
            else {
                continue;
            };
            if old.is_none_or(|old| **old != view) {
                differs = true;
                services.insert(name.clone(), Arc::new(view));
            }
        }
        if differs || before.is_none_or(|before| before.absent != *absent) {
            self.check_backends(&services, absent, &mut refusals);
        }
        if refusals.is_empty() { Ok(differs.then_some(services)) } else { Err(refusals) }
    }

    /// Records the removal of a resource, or returns the reason that it cannot be removed.
    fn remove(&mut self, key: &ResourceKey) -> Option<ResourceRejection> {
        match key {
            ResourceKey::Workload => {
                let reason = "a plan can be replaced, not removed";
                return Some(ResourceRejection::new(key.clone(), reason));
            }
            ResourceKey::Service(name) => {
                self.gone.insert(name.clone());
            }
            ResourceKey::Address(address) => {
                self.addresses.insert(*address, None);
            }
            ResourceKey::Name(name) => {
                self.names.insert(name.clone(), None);
            }
            ResourceKey::Endpoint(EndpointId { service, port, workload }) => {
                let changes = self.endpoints.entry(service.clone()).or_default();
                changes.insert((*port, workload.clone()), None);
            }
        }
        None
    }

    fn insert(&mut self, resource: Resource) {
        match resource {
            Resource::Workload(plan) => self.config = Some(Arc::from(plan)),
            Resource::Service(view) => {
                self.views.insert(view.name.clone(), view);
            }
            Resource::AddressEntry(address, address_entry) => {
                self.addresses.insert(address, Some(Arc::new(address_entry)));
            }
            Resource::DnsRecord(name, dns_record) => {
                self.names.insert(name, Some(Arc::new(dns_record)));
            }
            Resource::Endpoint(endpoint) => {
                let EndpointId { service, port, workload } = endpoint.id.clone();
                let changes = self.endpoints.entry(service).or_default();
                changes.insert((port, workload), Some(Arc::new(endpoint)));
            }
        }
    }

    fn affected_services(&self) -> BTreeSet<&ServiceName> {
        self.views.keys().chain(self.endpoints.keys()).collect()
    }

    /// The resulting service with its endpoints; `None` if there is no such service.
    fn rebuild_service(
        &self,
        name: &ServiceName,
        old: Option<&ServiceConfig>,
        refusals: &mut Vec<ResourceRejection>,
    ) -> Option<ServiceConfig> {
        let nothing = EndpointChanges::new();
        let changes = self.endpoints.get(name).unwrap_or(&nothing);
        let Some(mut view) = self.views.get(name).cloned().or_else(|| old.map(without_endpoints))
        else {
            let strays = changes.values().flatten();
            let stray =
                |endpoint: &Arc<Endpoint>| misplaced_endpoint(endpoint, "its service is unknown");
            refusals.extend(strays.map(stray));
            return None;
        };
        let kept = old.into_iter().flat_map(endpoints_of);
        let kept = kept.map(|(port, endpoint)| ((port, endpoint.id.workload.clone()), endpoint));
        let mut endpoints: BTreeMap<_, _> = kept.collect();
        for (place, change) in changes {
            match change {
                // An equal endpoint keeps its `Arc`.
                Some(new) if endpoints.get(place).is_some_and(|old| *old == new) => {}
                Some(new) => {
                    endpoints.insert(place.clone(), new);
                }
                None => {
                    endpoints.remove(place);
                }
            }
        }
        for ((port, _), endpoint) in endpoints {
            match view.ports.get_mut(&port) {
                Some(port) => port.endpoints.push(Arc::clone(endpoint)),
                None => refusals.push(misplaced_endpoint(endpoint, "its service has no such port")),
            }
        }
        Some(view)
    }

    /// Checks that every backend of every rule is held or known to be absent.
    fn check_backends(
        &self,
        services: &BTreeMap<ServiceName, Arc<ServiceConfig>>,
        absent: &BTreeSet<ServiceName>,
        refusals: &mut Vec<ResourceRejection>,
    ) {
        for (name, view) in services {
            let mut backends = view.ports.values().flat_map(PortConfig::backends);
            let dangling = backends
                .find(|b| !services.contains_key(&b.service) && !absent.contains(&b.service));
            let Some(backend) = dangling else {
                continue;
            };
            let (user, used) = (name.clone(), backend.service.clone());
            let route = leading_to(view, &used).map_or(String::new(), |key| key.to_string());
            let removal_at_fault = self.gone.contains(&used) && !self.views.contains_key(name);
            let (key, because, reason) = if removal_at_fault {
                let reason = format!("cannot be removed: {route} of {user} refers to it");
                (used, user, reason)
            } else {
                let reason = format!(
                    "{route} refers to service {used}, which is neither present nor marked as absent"
                );
                (user, used, reason)
            };
            refusals.push(ResourceRejection {
                key: ResourceKey::Service(key),
                reason,
                because: Some(ResourceKey::Service(because)),
            });
        }
    }
}

/// The resulting map after additions and removals; `None` without changes.
fn merge_changes<K: Ord + Clone, A: PartialEq>(
    update: &BTreeMap<K, Option<Arc<A>>>,
    old: Option<&BTreeMap<K, Arc<A>>>,
) -> Option<BTreeMap<K, Arc<A>>> {
    let differs =
        |(key, new): (&K, &Option<Arc<A>>)| old.and_then(|old| old.get(key)) != new.as_ref();
    if !update.iter().any(differs) {
        return None;
    }
    let mut answers = old.cloned().unwrap_or_default();
    for (key, new) in update {
        match new {
            // An equal value keeps its `Arc`.
            Some(new) if answers.get(key) == Some(new) => {}
            Some(new) => drop(answers.insert(key.clone(), Arc::clone(new))),
            None => drop(answers.remove(key)),
        }
    }
    Some(answers)
}

fn without_endpoints(view: &ServiceConfig) -> ServiceConfig {
    let mut view = view.clone();
    for port in view.ports.values_mut() {
        port.endpoints = Vec::new();
    }
    view
}

fn misplaced_endpoint(endpoint: &Endpoint, reason: &str) -> ResourceRejection {
    ResourceRejection {
        key: ResourceKey::Endpoint(endpoint.id.clone()),
        reason: reason.to_owned(),
        because: Some(ResourceKey::Service(endpoint.id.service.clone())),
    }
}

/// The first route of a service that forwards to this backend.
fn leading_to(view: &ServiceConfig, backend: &ServiceName) -> Option<ObjectKey> {
    let mut ports = view.ports.values();
    ports.find_map(|port| {
        let rule = port.rules.iter().find(|rule| has_backend(&rule.backends, backend));
        let tls = port.tls_rules.iter().find(|rule| has_backend(&rule.backends, backend));
        let tcp = port.tcp_rule.iter().find(|rule| has_backend(&rule.backends, backend));
        let key = rule.map(|rule| rule.kind.object_key(rule.route.clone()));
        let key = key.or_else(|| tls.map(|rule| ObjectKey::TlsRoute(rule.route.clone())));
        key.or_else(|| tcp.map(|rule| rule.kind.object_key(rule.route.clone())))
    })
}

fn has_backend(backends: &[WeightedBackend], service: &ServiceName) -> bool {
    backends.iter().any(|backend| backend.service == *service)
}
