//! Decodes and validates a delta, and builds the resulting configuration from it and the current
//! configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use leno_model::{
    AddressEntry, DnsRecord, Endpoint, EndpointId, ObjectKey, PortConfig, ServiceConfig,
    ServiceName, WeightedBackend, WorkloadConfig, WorkloadName,
};

use crate::held_versions::service_endpoints;
use crate::key::ResourceKey;
use crate::message::{ConfigUpdate, Delta, ResourceRejection};
use crate::resource::Resource;

/// A decoded delta. Removals are applied before additions.
#[derive(Debug, Default)]
pub(super) struct DecodedDelta {
    /// The workload configuration, if the delta contains one.
    config: Option<Arc<WorkloadConfig>>,
    /// New services and new versions of services, without endpoints.
    services: BTreeMap<ServiceName, ServiceConfig>,
    removed_services: BTreeSet<ServiceName>,
    /// New, changed and removed endpoints, by service.
    endpoints: BTreeMap<ServiceName, EndpointChanges>,
    /// Address entries; `None` for those to remove.
    addresses: BTreeMap<IpAddr, Option<Arc<AddressEntry>>>,
    /// DNS records; `None` for those to remove.
    dns_records: BTreeMap<ServiceName, Option<Arc<DnsRecord>>>,
}

/// Endpoints of one service by port and workload; `None` for removed ones.
type EndpointChanges = BTreeMap<(u16, WorkloadName), Option<Arc<Endpoint>>>;

impl DecodedDelta {
    /// Decodes every resource of a delta.
    ///
    /// # Errors
    /// The rejections of all resources that are invalid or cannot be removed.
    pub(super) fn decode(delta: &Delta) -> Result<Self, Vec<ResourceRejection>> {
        let mut decoded_delta = Self::default();
        let mut rejections = Vec::new();
        for key in &delta.removed {
            rejections.extend(decoded_delta.record_removal(key));
        }
        for upsert in &delta.upserts {
            match Resource::decode(upsert) {
                Ok(resource) => decoded_delta.record_resource(resource),
                Err(invalid) => {
                    let reason = format!("{}: {}", invalid.field, invalid.reason);
                    rejections.push(ResourceRejection::new(invalid.key, reason));
                }
            }
        }
        if rejections.is_empty() { Ok(decoded_delta) } else { Err(rejections) }
    }

    /// Returns the resulting workload configuration: the current one if the delta contains none or an equal
    /// one. `None` if neither exists.
    pub(super) fn build_workload_config(
        &self,
        current_update: Option<&ConfigUpdate>,
    ) -> Option<Arc<WorkloadConfig>> {
        let current_config = current_update.map(|update| &update.snapshot.config);
        let new_config = self.config.as_ref().filter(|new_config| {
            current_config.is_none_or(|current_config| current_config != *new_config)
        });
        new_config.or(current_config).cloned()
    }

    /// Returns the resulting address entries; `None` without changes.
    pub(super) fn build_addresses(
        &self,
        current_update: Option<&ConfigUpdate>,
    ) -> Option<BTreeMap<IpAddr, Arc<AddressEntry>>> {
        merge_changes(&self.addresses, current_update.map(|update| &update.snapshot.addresses))
    }

    /// Returns the resulting DNS records; `None` without changes.
    pub(super) fn build_dns_records(
        &self,
        current_update: Option<&ConfigUpdate>,
    ) -> Option<BTreeMap<ServiceName, Arc<DnsRecord>>> {
        merge_changes(&self.dns_records, current_update.map(|update| &update.snapshot.names))
    }

    /// Returns the resulting services, with all references checked; `None` without changes. Routes may refer to
    /// `absent_services`, which are known not to exist.
    ///
    /// # Errors
    /// The rejections of all services and endpoints with an invalid reference.
    pub(super) fn build_services(
        &self,
        current_update: Option<&ConfigUpdate>,
        absent_services: &BTreeSet<ServiceName>,
    ) -> Result<Option<BTreeMap<ServiceName, Arc<ServiceConfig>>>, Vec<ResourceRejection>> {
        let current_services = current_update.map(|update| &update.snapshot.services);
        let mut services = current_services.cloned().unwrap_or_default();
        let mut rejections = Vec::new();
        services.retain(|name, _| !self.removed_services.contains(name));
        let mut has_changed = current_services
            .is_some_and(|current_services| current_services.len() != services.len());
        for name in self.affected_services() {
            let current_service = services.get(name);
            let Some(service) = self.rebuild_service(
                name,
                current_service.map(|current_service| &**current_service),
                &mut rejections,
            ) else {
                continue;
            };
            if current_service.is_none_or(|current_service| **current_service != service) {
                has_changed = true;
                services.insert(name.clone(), Arc::new(service));
            }
        }
        if has_changed || current_update.is_none_or(|update| update.absent != *absent_services) {
            self.check_backends(&services, absent_services, &mut rejections);
        }
        if rejections.is_empty() { Ok(has_changed.then_some(services)) } else { Err(rejections) }
    }

    /// Records the removal of a resource, or returns a rejection if the resource cannot be removed.
    fn record_removal(&mut self, key: &ResourceKey) -> Option<ResourceRejection> {
        match key {
            ResourceKey::Workload => {
                let reason = "the workload configuration can be replaced, not removed";
                return Some(ResourceRejection::new(key.clone(), reason));
            }
            ResourceKey::Service(name) => {
                self.removed_services.insert(name.clone());
            }
            ResourceKey::Address(address) => {
                self.addresses.insert(*address, None);
            }
            ResourceKey::Name(name) => {
                self.dns_records.insert(name.clone(), None);
            }
            ResourceKey::Endpoint(EndpointId { service, port, workload }) => {
                let changes = self.endpoints.entry(service.clone()).or_default();
                changes.insert((*port, workload.clone()), None);
            }
        }
        None
    }

    /// Records a new or changed resource.
    fn record_resource(&mut self, resource: Resource) {
        match resource {
            Resource::Workload(config) => self.config = Some(Arc::from(config)),
            Resource::Service(service) => {
                self.services.insert(service.name.clone(), service);
            }
            Resource::AddressEntry(address, address_entry) => {
                self.addresses.insert(address, Some(Arc::new(address_entry)));
            }
            Resource::DnsRecord(name, dns_record) => {
                self.dns_records.insert(name, Some(Arc::new(dns_record)));
            }
            Resource::Endpoint(endpoint) => {
                let EndpointId { service, port, workload } = endpoint.id.clone();
                let changes = self.endpoints.entry(service).or_default();
                changes.insert((port, workload), Some(Arc::new(endpoint)));
            }
        }
    }

    /// Returns the services that the delta adds or changes, and the services whose endpoints it changes.
    fn affected_services(&self) -> BTreeSet<&ServiceName> {
        self.services.keys().chain(self.endpoints.keys()).collect()
    }

    /// Returns the resulting service with its endpoints. If neither the delta nor the current configuration
    /// contains the service, rejects its endpoints and returns `None`.
    fn rebuild_service(
        &self,
        name: &ServiceName,
        current_service: Option<&ServiceConfig>,
        rejections: &mut Vec<ResourceRejection>,
    ) -> Option<ServiceConfig> {
        let empty_changes = EndpointChanges::new();
        let changes = self.endpoints.get(name).unwrap_or(&empty_changes);
        let Some(mut service) =
            self.services.get(name).cloned().or_else(|| current_service.map(without_endpoints))
        else {
            let orphaned_endpoints = changes.values().flatten();
            let reject =
                |endpoint: &Arc<Endpoint>| endpoint_rejection(endpoint, "its service is unknown");
            rejections.extend(orphaned_endpoints.map(reject));
            return None;
        };
        let retained_endpoints = current_service.into_iter().flat_map(service_endpoints);
        let retained_endpoints = retained_endpoints
            .map(|(port, endpoint)| ((port, endpoint.id.workload.clone()), endpoint));
        let mut endpoints: BTreeMap<_, _> = retained_endpoints.collect();
        for (endpoint_key, change) in changes {
            match change {
                // An equal endpoint keeps its `Arc`, which updates share while it is unchanged.
                Some(new_endpoint)
                    if endpoints
                        .get(endpoint_key)
                        .is_some_and(|current_endpoint| *current_endpoint == new_endpoint) => {}
                Some(new_endpoint) => {
                    endpoints.insert(endpoint_key.clone(), new_endpoint);
                }
                None => {
                    endpoints.remove(endpoint_key);
                }
            }
        }
        for ((port, _), endpoint) in endpoints {
            match service.ports.get_mut(&port) {
                Some(port) => port.endpoints.push(Arc::clone(endpoint)),
                None => {
                    rejections.push(endpoint_rejection(endpoint, "its service has no such port"))
                }
            }
        }
        Some(service)
    }

    /// Checks that every backend of every rule is in `services` or in `absent_services`. If this delta removes a
    /// service to which an unchanged service refers, the removal is rejected. For any other missing backend, the
    /// referring service is rejected.
    fn check_backends(
        &self,
        services: &BTreeMap<ServiceName, Arc<ServiceConfig>>,
        absent_services: &BTreeSet<ServiceName>,
        rejections: &mut Vec<ResourceRejection>,
    ) {
        for (name, service) in services {
            let mut backends = service.ports.values().flat_map(PortConfig::backends);
            let missing_backend = backends.find(|backend| {
                !services.contains_key(&backend.service)
                    && !absent_services.contains(&backend.service)
            });
            let Some(backend) = missing_backend else {
                continue;
            };
            let (referrer, missing) = (name.clone(), backend.service.clone());
            let route = find_route_to_backend(service, &missing)
                .map_or(String::new(), |key| key.to_string());
            let removes_used_service =
                self.removed_services.contains(&missing) && !self.services.contains_key(name);
            let (key, cause, reason) = if removes_used_service {
                let reason = format!("cannot be removed: {route} of {referrer} refers to it");
                (missing, referrer, reason)
            } else {
                let reason = format!(
                    "{route} refers to service {missing}, which is neither present nor marked as absent"
                );
                (referrer, missing, reason)
            };
            rejections.push(ResourceRejection {
                key: ResourceKey::Service(key),
                reason,
                because: Some(ResourceKey::Service(cause)),
            });
        }
    }
}

/// Returns the resulting map after additions and removals; `None` without changes.
fn merge_changes<K: Ord + Clone, V: PartialEq>(
    changes: &BTreeMap<K, Option<Arc<V>>>,
    current_entries: Option<&BTreeMap<K, Arc<V>>>,
) -> Option<BTreeMap<K, Arc<V>>> {
    let differs = |(key, new_value): (&K, &Option<Arc<V>>)| {
        current_entries.and_then(|current_entries| current_entries.get(key)) != new_value.as_ref()
    };
    if !changes.iter().any(differs) {
        return None;
    }
    let mut merged_entries = current_entries.cloned().unwrap_or_default();
    for (key, new_value) in changes {
        match new_value {
            // An equal value keeps its `Arc`, which updates share while it is unchanged.
            Some(new_value) if merged_entries.get(key) == Some(new_value) => {}
            Some(new_value) => drop(merged_entries.insert(key.clone(), Arc::clone(new_value))),
            None => drop(merged_entries.remove(key)),
        }
    }
    Some(merged_entries)
}

/// Returns a copy of a service without its endpoints.
fn without_endpoints(service: &ServiceConfig) -> ServiceConfig {
    let mut service = service.clone();
    for port in service.ports.values_mut() {
        port.endpoints = Vec::new();
    }
    service
}

/// Returns the rejection of an endpoint that does not fit its service. The service is the cause: the endpoint may
/// be valid after a change of the service.
fn endpoint_rejection(endpoint: &Endpoint, reason: &str) -> ResourceRejection {
    ResourceRejection {
        key: ResourceKey::Endpoint(endpoint.id.clone()),
        reason: reason.to_owned(),
        because: Some(ResourceKey::Service(endpoint.id.service.clone())),
    }
}

/// Returns the first route of a service that forwards to this backend; `None` if no route does.
fn find_route_to_backend(service: &ServiceConfig, backend: &ServiceName) -> Option<ObjectKey> {
    let mut ports = service.ports.values();
    ports.find_map(|port| {
        let rule = port.rules.iter().find(|rule| has_backend(&rule.backends, backend));
        let tls_rule = port.tls_rules.iter().find(|rule| has_backend(&rule.backends, backend));
        let tcp_rule = port.tcp_rule.iter().find(|rule| has_backend(&rule.backends, backend));
        let key = rule.map(|rule| rule.kind.object_key(rule.route.clone()));
        let key = key.or_else(|| tls_rule.map(|rule| ObjectKey::TlsRoute(rule.route.clone())));
        key.or_else(|| tcp_rule.map(|rule| rule.kind.object_key(rule.route.clone())))
    })
}

fn has_backend(backends: &[WeightedBackend], service: &ServiceName) -> bool {
    backends.iter().any(|backend| backend.service == *service)
}
