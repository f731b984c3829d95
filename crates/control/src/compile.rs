//! Compiles the configuration of one sidecar from the mesh. The functions are pure and deterministic.

mod access;
mod address;
mod boundary;
mod dns_record;
mod enforcement;
mod service;
mod split;
mod workload_config;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use leno_discovery::UnknownEndpoints;
use leno_model::{AddressEntry, DnsRecord, ServiceName, Snapshot, Workload};

use self::enforcement::is_balanced;
use self::service::{backend_services, unreported_endpoints};
use self::workload_config::compile_workload_config;
use crate::mesh::Mesh;

pub(crate) use self::access::missing_references;
pub(crate) use self::address::address_entries;
pub(crate) use self::boundary::{missing_groups, policy_problems};
pub(crate) use self::dns_record::dns_records;
pub(crate) use self::enforcement::{
    PlaintextRestriction, excluded_endpoints, restricted_workloads,
};
pub(crate) use self::service::{
    ClientClass, ServiceConfigCache, compile_service, is_opaque, target_port,
};
pub(crate) use self::split::{overriding_objects, tcp_conflict};

/// The configuration of one workload's sidecar, before it is numbered and sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CompiledConfig {
    pub(crate) snapshot: Arc<Snapshot>,
    /// Services that do not exist, but that the sidecar subscribes to or a rule names.
    pub(crate) absent: BTreeSet<ServiceName>,
}

/// Returns the services that a workload uses: those of its fixed listeners and its subscriptions.
pub(crate) fn used_services(
    workload: &Workload,
    subscriptions: &BTreeSet<ServiceName>,
) -> BTreeSet<ServiceName> {
    let outbound_listeners = workload.outbound_listeners.iter().map(|listener| &listener.service);
    outbound_listeners.chain(subscriptions).cloned().collect()
}

/// Compiles a workload's configuration: its proxy configuration, `root_services`, the services that its gateway
/// routes to, and the backends of their routes.
///
/// Requests reach a backend directly, regardless of the backend's own routes. But the application may also call the
/// backend by name, and then those routes apply. Backends are therefore included as services, with the backends of
/// their own routes.
pub(crate) fn compile_config(
    mesh: &Mesh,
    workload: &Workload,
    root_services: &BTreeSet<ServiceName>,
    service_configs: &mut ServiceConfigCache,
) -> CompiledConfig {
    let client_class = ClientClass::for_client(mesh, workload);
    let workload_config = Arc::new(compile_workload_config(mesh, workload));
    let mut services = BTreeMap::new();
    let mut absent = BTreeSet::new();
    let gateway_backends = workload_config.gateway.iter().flat_map(|gateway| gateway.backends());
    let gateway_services: BTreeSet<&ServiceName> =
        gateway_backends.map(|backend| &backend.service).collect();
    let mut pending_services: Vec<ServiceName> =
        root_services.iter().chain(gateway_services).cloned().collect();
    // The loop terminates: each name is visited once, and a new name comes from the routes of an existing service.
    while let Some(name) = pending_services.pop() {
        if services.contains_key(&name) || absent.contains(&name) {
            continue;
        }
        match service_configs.service_config(mesh, &client_class, &name) {
            Some(service_config) => {
                pending_services.extend(backend_services(&service_config).cloned());
                services.insert(name, service_config);
            }
            None => {
                absent.insert(name);
            }
        }
    }
    // `with_addresses` and `with_dns_records` set these.
    let (addresses, names) = (BTreeMap::new(), BTreeMap::new());
    CompiledConfig {
        snapshot: Arc::new(Snapshot { config: workload_config, services, addresses, names }),
        absent,
    }
}

/// Compiles a slice of the service configurations that a workload needs and the cache lacks. Returns true if the cache
/// then has all of them, and false if another slice may remain.
pub(crate) fn prepare_services(
    mesh: &Mesh,
    workload: &Workload,
    services: &BTreeSet<ServiceName>,
    addresses: &BTreeSet<IpAddr>,
    service_configs: &mut ServiceConfigCache,
) -> bool {
    let client_class = ClientClass::for_client(mesh, workload);
    let work_limit = service_configs.compiled_count().saturating_add(SLICE_SERVICE_CONFIGS);
    let mut visited_services = BTreeSet::new();
    let mut pending_services: Vec<ServiceName> =
        used_services(workload, services).into_iter().collect();
    for address in addresses {
        let Some(service) = mesh.service_at(*address) else { continue };
        if !is_balanced(mesh, &service.name) {
            // The address entry depends on the backends in this configuration.
            service_configs.service_config(mesh, &ClientClass::AllClients, &service.name);
        }
        pending_services.push(service.name.clone());
        if service_configs.compiled_count() >= work_limit {
            return false;
        }
    }
    // The loop terminates like the one in `compile_config`.
    while let Some(name) = pending_services.pop() {
        if visited_services.contains(&name) {
            continue;
        }
        if let Some(service_config) = service_configs.service_config(mesh, &client_class, &name) {
            pending_services.extend(backend_services(&service_config).cloned());
        }
        visited_services.insert(name);
        if service_configs.compiled_count() >= work_limit {
            return false;
        }
    }
    true
}

impl CompiledConfig {
    /// Sets the entries of the queried addresses.
    pub(crate) fn with_addresses(mut self, entries: BTreeMap<IpAddr, Arc<AddressEntry>>) -> Self {
        Arc::make_mut(&mut self.snapshot).addresses = entries;
        self
    }

    /// Sets the DNS records of the queried names.
    pub(crate) fn with_dns_records(mut self, names: BTreeMap<ServiceName, Arc<DnsRecord>>) -> Self {
        Arc::make_mut(&mut self.snapshot).names = names;
        self
    }
}

/// Returns the endpoints that are missing from a workload's configuration because their sidecars have not
/// reported yet.
pub(crate) fn find_unknown_endpoints(
    mesh: &Mesh,
    workload: &Workload,
    compiled_config: &CompiledConfig,
) -> UnknownEndpoints {
    let client_class = ClientClass::for_client(mesh, workload);
    let service_configs = compiled_config.snapshot.services.values();
    service_configs
        .flat_map(|service_config| unreported_endpoints(mesh, &client_class, service_config))
        .collect()
}

/// The number of service configurations compiled in one slice: a few milliseconds.
const SLICE_SERVICE_CONFIGS: u64 = 256;

#[cfg(test)]
mod tests;
