//! Collects all differences between a proxy's resources and a snapshot, in an order that allows a split into
//! several deltas.

use std::collections::BTreeSet;
use std::sync::Arc;

use leno_model::{EndpointId, PortConfig, ServiceConfig, ServiceName, Snapshot};

use super::sendable::RetainedResources;
use crate::held_versions::{HeldService, HeldVersions, service_endpoints};
use crate::key::ResourceKey;
use crate::message::Upsert;
use crate::resource::{
    encode_address_entry, encode_dns_record, encode_endpoint, encode_service,
    encode_workload_config,
};

/// All differences between the held and the desired resources of a proxy.
///
/// The differences are sent in the order of the fields, so that the references of a proxy stay valid after each
/// delta. Endpoints are removed before their port and added after it. Addresses are added after their services,
/// and DNS names last. Services are removed after the last reference to them.
#[derive(Debug, Default)]
pub(super) struct PendingDelta {
    /// Removed endpoints of services that remain.
    removed_endpoints: Vec<ResourceKey>,
    /// The new or changed workload configuration, then new and changed services.
    config_upserts: Vec<Upsert>,
    /// New and changed endpoints.
    endpoint_upserts: Vec<Upsert>,
    /// New and changed address entries.
    address_upserts: Vec<Upsert>,
    /// New and changed DNS records.
    name_upserts: Vec<Upsert>,
    /// Removed services, addresses and names.
    removed_resources: Vec<ResourceKey>,
}

/// The first differences of a [`PendingDelta`], as many as fit into one delta.
pub(super) struct DeltaPrefix {
    pub(super) upserts: Vec<Upsert>,
    pub(super) removed: Vec<ResourceKey>,
    /// True if these are all differences.
    pub(super) whole: bool,
}

impl PendingDelta {
    pub(super) fn new(
        snapshot: &Snapshot,
        synced_snapshot: Option<&Snapshot>,
        held_versions: &HeldVersions,
        retained: RetainedResources<'_>,
    ) -> Self {
        let mut pending_delta = Self::default();
        if synced_snapshot
            .is_none_or(|synced_snapshot| !is_same(&synced_snapshot.config, &snapshot.config))
        {
            pending_delta.add_workload_config(snapshot, held_versions, retained);
        }
        for (name, service) in &snapshot.services {
            let synced_service =
                synced_snapshot.and_then(|synced_snapshot| synced_snapshot.services.get(name));
            if synced_service.is_none_or(|synced_service| !is_same(synced_service, service)) {
                let synced_service = synced_service.map(|synced_service| &**synced_service);
                pending_delta.add_service(
                    service,
                    synced_service,
                    held_versions.services.get(name),
                    retained,
                );
            }
        }
        pending_delta.add_addresses(snapshot, synced_snapshot, held_versions, retained);
        pending_delta.add_names(snapshot, synced_snapshot, held_versions, retained);
        for (name, service) in &held_versions.services {
            if !snapshot.services.contains_key(name) {
                pending_delta.remove_service(name, service, retained);
            }
        }
        pending_delta
    }

    pub(super) fn is_empty(&self) -> bool {
        self.removed_endpoints.is_empty()
            && self.config_upserts.is_empty()
            && self.endpoint_upserts.is_empty()
            && self.address_upserts.is_empty()
            && self.name_upserts.is_empty()
            && self.removed_resources.is_empty()
    }

    /// True if the workload configuration is new or changed; it is then the first upsert.
    pub(super) fn has_workload_config(&self) -> bool {
        self.config_upserts.first().is_some_and(|upsert| upsert.key == ResourceKey::Workload)
    }

    /// Returns the resources that exceed the size limit.
    pub(super) fn oversized_resources(&self) -> impl Iterator<Item = &Upsert> {
        let upserts =
            self.config_upserts.iter().chain(&self.endpoint_upserts).chain(&self.address_upserts);
        let upserts = upserts.chain(&self.name_upserts);
        upserts.filter(|upsert| upsert.content.len() > MAX_RESOURCE_BYTES)
    }

    /// Takes the first differences that fit into one delta.
    pub(super) fn take_prefix(self) -> DeltaPrefix {
        let mut available_bytes = MAX_DELTA_BYTES;
        let mut whole = true;
        // After the first difference that does not fit, no further one is taken, because their order matters.
        let mut take_bytes = |bytes: usize| {
            let remaining_bytes = available_bytes.checked_sub(bytes).filter(|_| whole);
            available_bytes = remaining_bytes.unwrap_or(available_bytes);
            whole = remaining_bytes.is_some();
            whole
        };
        let take_key = |key: &ResourceKey, take_bytes: &mut dyn FnMut(usize) -> bool| {
            take_bytes(encoded_size(key))
        };
        let mut removed = self.removed_endpoints;
        removed.retain(|key| take_key(key, &mut take_bytes));
        let mut upserts = self.config_upserts;
        upserts.extend(self.endpoint_upserts);
        upserts.extend(self.address_upserts);
        upserts.extend(self.name_upserts);
        upserts.retain(|upsert| take_bytes(encoded_size(&upsert.key) + upsert.content.len()));
        removed.extend(
            self.removed_resources.into_iter().filter(|key| take_key(key, &mut take_bytes)),
        );
        DeltaPrefix { upserts, removed, whole }
    }

    fn add_workload_config(
        &mut self,
        snapshot: &Snapshot,
        held_versions: &HeldVersions,
        retained: RetainedResources<'_>,
    ) {
        let upsert = Upsert {
            key: ResourceKey::Workload,
            content: encode_workload_config(&snapshot.config),
        };
        let version = Some(upsert.version());
        if held_versions.config != version && !retained.contains(&upsert.key, version) {
            self.config_upserts.push(upsert);
        }
    }

    /// Adds changed address entries, and removals of entries that the proxy no longer subscribes to.
    fn add_addresses(
        &mut self,
        snapshot: &Snapshot,
        synced_snapshot: Option<&Snapshot>,
        held_versions: &HeldVersions,
        retained: RetainedResources<'_>,
    ) {
        for (address, address_entry) in &snapshot.addresses {
            let synced_entry =
                synced_snapshot.and_then(|synced_snapshot| synced_snapshot.addresses.get(address));
            if synced_entry.is_some_and(|synced_entry| is_same(synced_entry, address_entry)) {
                continue;
            }
            let key = ResourceKey::Address(*address);
            let upsert = Upsert { key, content: encode_address_entry(address_entry) };
            let version = upsert.version();
            let is_held = held_versions.addresses.get(address) == Some(&version);
            if !is_held && !retained.contains(&upsert.key, Some(version)) {
                self.address_upserts.push(upsert);
            }
        }
        let removed_keys = held_versions
            .addresses
            .keys()
            .filter(|address| !snapshot.addresses.contains_key(address));
        let removed_keys = removed_keys.map(|address| ResourceKey::Address(*address));
        self.removed_resources.extend(removed_keys.filter(|key| !retained.contains(key, None)));
    }

    /// Adds changed DNS records, and removals of records that the proxy no longer subscribes to.
    fn add_names(
        &mut self,
        snapshot: &Snapshot,
        synced_snapshot: Option<&Snapshot>,
        held_versions: &HeldVersions,
        retained: RetainedResources<'_>,
    ) {
        for (name, dns_record) in &snapshot.names {
            let synced_record =
                synced_snapshot.and_then(|synced_snapshot| synced_snapshot.names.get(name));
            if synced_record.is_some_and(|synced_record| is_same(synced_record, dns_record)) {
                continue;
            }
            let key = ResourceKey::Name(name.clone());
            let upsert = Upsert { key, content: encode_dns_record(dns_record) };
            let version = upsert.version();
            let is_held = held_versions.names.get(name) == Some(&version);
            if !is_held && !retained.contains(&upsert.key, Some(version)) {
                self.name_upserts.push(upsert);
            }
        }
        let removed_keys =
            held_versions.names.keys().filter(|name| !snapshot.names.contains_key(name));
        let removed_keys = removed_keys.map(|name| ResourceKey::Name(name.clone()));
        self.removed_resources.extend(removed_keys.filter(|key| !retained.contains(key, None)));
    }

    fn add_service(
        &mut self,
        service: &ServiceConfig,
        synced_service: Option<&ServiceConfig>,
        held_service: Option<&HeldService>,
        retained: RetainedResources<'_>,
    ) {
        let key = ResourceKey::Service(service.name.clone());
        let upsert = Upsert { key, content: encode_service(service) };
        let version = Some(upsert.version());
        let held_version = held_service.and_then(|held_service| held_service.version);
        let is_sent = held_version != version && !retained.contains(&upsert.key, version);
        if is_sent {
            self.config_upserts.push(upsert);
        }
        // Without a version of the service itself, the proxy would reject its endpoints.
        if is_sent || held_version.is_some() {
            for (port_number, port) in &service.ports {
                let synced_port =
                    synced_service.and_then(|synced_service| synced_service.ports.get(port_number));
                self.add_endpoints(port, synced_port, held_service, retained);
            }
        }
        if let Some(held_service) = held_service {
            self.remove_endpoints(&service.name, Some(service), held_service, retained);
        }
    }

    fn add_endpoints(
        &mut self,
        port: &PortConfig,
        synced_port: Option<&PortConfig>,
        held_service: Option<&HeldService>,
        retained: RetainedResources<'_>,
    ) {
        let mut synced_endpoints =
            synced_port.map_or(&[][..], |port| &port.endpoints).iter().peekable();
        for endpoint in &port.endpoints {
            // Both lists are ordered by ID.
            while synced_endpoints.next_if(|old_endpoint| old_endpoint.id < endpoint.id).is_some() {
            }
            if synced_endpoints.next_if(|old_endpoint| is_same(old_endpoint, endpoint)).is_some() {
                continue;
            }
            let key = ResourceKey::Endpoint(endpoint.id.clone());
            let upsert = Upsert { key, content: encode_endpoint(endpoint) };
            let version = upsert.version();
            let endpoint_key = (endpoint.id.port, endpoint.id.workload.clone());
            let held_version =
                held_service.and_then(|held_service| held_service.endpoints.get(&endpoint_key));
            if held_version != Some(&version) && !retained.contains(&upsert.key, Some(version)) {
                self.endpoint_upserts.push(upsert);
            }
        }
    }

    fn remove_endpoints(
        &mut self,
        name: &ServiceName,
        service: Option<&ServiceConfig>,
        held_service: &HeldService,
        retained: RetainedResources<'_>,
    ) {
        let desired_endpoints = service.into_iter().flat_map(service_endpoints);
        let desired_endpoints =
            desired_endpoints.map(|(port, endpoint)| (port, &endpoint.id.workload));
        let desired_endpoints: BTreeSet<_> = desired_endpoints.collect();
        let removed_endpoints = held_service
            .endpoints
            .keys()
            .filter(|(port, workload)| !desired_endpoints.contains(&(*port, workload)));
        let keys = removed_endpoints.map(|(port, workload)| {
            ResourceKey::Endpoint(EndpointId {
                service: name.clone(),
                port: *port,
                workload: workload.clone(),
            })
        });
        self.removed_endpoints.extend(keys.filter(|key| !retained.contains(key, None)));
    }

    fn remove_service(
        &mut self,
        name: &ServiceName,
        held_service: &HeldService,
        retained: RetainedResources<'_>,
    ) {
        if held_service.version.is_none() {
            return self.remove_endpoints(name, None, held_service, retained);
        }
        let key = ResourceKey::Service(name.clone());
        if !retained.contains(&key, None) {
            self.removed_resources.push(key);
        }
    }
}

/// True if two values are equal. Values of one `Arc` are not compared.
fn is_same<T: PartialEq>(left: &Arc<T>, right: &Arc<T>) -> bool {
    Arc::ptr_eq(left, right) || left == right
}

/// Returns the encoded size of a key in a message, rounded up.
fn encoded_size(key: &ResourceKey) -> usize {
    let name_bytes = match key {
        ResourceKey::Workload => 0,
        ResourceKey::Address(_) => MAX_ADDRESS_BYTES,
        ResourceKey::Service(name) | ResourceKey::Name(name) => {
            name.namespace.as_str().len() + name.name.as_str().len()
        }
        ResourceKey::Endpoint(id) => {
            let EndpointId { service, workload, .. } = id;
            service.namespace.as_str().len()
                + service.name.as_str().len()
                + workload.namespace.as_str().len()
                + workload.name.as_str().len()
        }
    };
    name_bytes + KEY_OVERHEAD_BYTES
}

/// The maximum size of a key apart from its names: tags, lengths, separators and the port.
const KEY_OVERHEAD_BYTES: usize = 48;

/// The length of an IPv6 address.
const MAX_ADDRESS_BYTES: usize = 16;

/// The maximum content of a delta: 3 MiB of a message of 4 MiB. The rest is for its own fields and absent services.
const MAX_DELTA_BYTES: usize = 3 << 20;

/// The maximum size of a resource, 2.5 MiB. A service with 10,000 rules is about half as large, and a delta has
/// room for a resource of the maximum size.
pub(super) const MAX_RESOURCE_BYTES: usize = 5 << 19;
