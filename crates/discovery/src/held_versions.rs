//! Tracks the resource versions that a proxy holds, with endpoints grouped by service.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use leno_model::{Endpoint, EndpointId, ServiceConfig, ServiceName, Snapshot, WorkloadName};

use crate::key::{ResourceKey, ResourceVersion};

/// The versions of the resources that a proxy holds. The proxy and the control plane each keep a copy, and the
/// copies must agree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HeldVersions {
    /// The version of the workload configuration, if the proxy holds one.
    pub(crate) config: Option<ResourceVersion>,
    pub(crate) services: BTreeMap<ServiceName, HeldService>,
    /// The versions of the address entries.
    pub(crate) addresses: BTreeMap<IpAddr, ResourceVersion>,
    /// The versions of the DNS records.
    pub(crate) names: BTreeMap<ServiceName, ResourceVersion>,
}

/// The held versions of one service and its endpoints.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HeldService {
    /// The version of the service itself; `None` only for endpoints of a service that the proxy does not hold,
    /// which should not occur.
    pub(crate) version: Option<ResourceVersion>,
    /// The versions of the endpoints, by service port and workload.
    pub(crate) endpoints: BTreeMap<(u16, WorkloadName), ResourceVersion>,
}

impl HeldVersions {
    /// Returns the held version of a resource; `None` if the proxy does not hold it.
    pub(crate) fn version(&self, key: &ResourceKey) -> Option<ResourceVersion> {
        match key {
            ResourceKey::Workload => self.config,
            ResourceKey::Service(name) => self.services.get(name)?.version,
            ResourceKey::Address(address) => self.addresses.get(address).copied(),
            ResourceKey::Name(name) => self.names.get(name).copied(),
            ResourceKey::Endpoint(id) => {
                let endpoint_key = (id.port, id.workload.clone());
                self.services.get(&id.service)?.endpoints.get(&endpoint_key).copied()
            }
        }
    }

    /// Records that a version of a resource is held.
    pub(crate) fn insert(&mut self, key: ResourceKey, version: ResourceVersion) {
        match key {
            ResourceKey::Workload => self.config = Some(version),
            ResourceKey::Service(name) => {
                self.services.entry(name).or_default().version = Some(version);
            }
            ResourceKey::Address(address) => {
                self.addresses.insert(address, version);
            }
            ResourceKey::Name(name) => {
                self.names.insert(name, version);
            }
            ResourceKey::Endpoint(id) => {
                let service = self.services.entry(id.service).or_default();
                service.endpoints.insert((id.port, id.workload), version);
            }
        }
    }

    /// Removes a resource. Removing a service removes its endpoints.
    pub(crate) fn remove(&mut self, key: &ResourceKey) {
        match key {
            ResourceKey::Workload => self.config = None,
            ResourceKey::Service(name) => {
                self.services.remove(name);
            }
            ResourceKey::Address(address) => {
                self.addresses.remove(address);
            }
            ResourceKey::Name(name) => {
                self.names.remove(name);
            }
            ResourceKey::Endpoint(id) => {
                if let Some(service) = self.services.get_mut(&id.service) {
                    service.endpoints.remove(&(id.port, id.workload.clone()));
                    if service.version.is_none() && service.endpoints.is_empty() {
                        self.services.remove(&id.service);
                    }
                }
            }
        }
    }

    /// Shares the names of services and workloads with a snapshot, so that a thousand connections do not keep a
    /// thousand copies of the names that their proxies sent.
    pub(crate) fn share_names(&mut self, snapshot: &Snapshot) {
        let mut services = BTreeMap::new();
        for (name, service) in &snapshot.services {
            let Some(mut held_service) = self.services.remove(name) else {
                continue;
            };
            let mut endpoints = BTreeMap::new();
            for (port, endpoint) in service_endpoints(service) {
                let endpoint_key = (port, endpoint.id.workload.clone());
                if let Some(version) = held_service.endpoints.remove(&endpoint_key) {
                    endpoints.insert(endpoint_key, version);
                }
            }
            endpoints.append(&mut held_service.endpoints);
            held_service.endpoints = endpoints;
            services.insert(name.clone(), held_service);
        }
        services.append(&mut self.services);
        self.services = services;
    }

    /// Returns all held resources with their versions: the workload configuration, then each service before its
    /// endpoints, then addresses and names.
    pub(crate) fn all_resources(&self) -> Vec<(ResourceKey, ResourceVersion)> {
        let workload = self.config.map(|version| (ResourceKey::Workload, version));
        let services = self.services.iter().flat_map(|(name, service)| {
            let version =
                service.version.map(|version| (ResourceKey::Service(name.clone()), version));
            let endpoints = service.endpoints.iter().map(|((port, workload), version)| {
                let (service, port, workload) = (name.clone(), *port, workload.clone());
                (ResourceKey::Endpoint(EndpointId { service, port, workload }), *version)
            });
            version.into_iter().chain(endpoints)
        });
        let addresses = self.addresses.iter();
        let addresses =
            addresses.map(|(address, version)| (ResourceKey::Address(*address), *version));
        let names = self.names.iter();
        let names = names.map(|(name, version)| (ResourceKey::Name(name.clone()), *version));
        workload.into_iter().chain(services).chain(addresses).chain(names).collect()
    }
}

impl FromIterator<(ResourceKey, ResourceVersion)> for HeldVersions {
    fn from_iter<I: IntoIterator<Item = (ResourceKey, ResourceVersion)>>(versions: I) -> Self {
        let mut held_versions = Self::default();
        for (key, version) in versions {
            held_versions.insert(key, version);
        }
        held_versions
    }
}

/// Returns all endpoints of a service, each with its service port.
pub(crate) fn service_endpoints(
    service: &ServiceConfig,
) -> impl Iterator<Item = (u16, &Arc<Endpoint>)> {
    service.ports.iter().flat_map(|(port_number, port)| {
        port.endpoints.iter().map(move |endpoint| (*port_number, endpoint))
    })
}
