//! All differences between a proxy's resources and a snapshot, in an order that can be split.

use std::collections::BTreeSet;
use std::sync::Arc;

use leno_model::{EndpointId, PortConfig, ServiceConfig, ServiceName, Snapshot};

use super::sendable::Kept;
use crate::held_versions::{HeldService, HeldVersions, endpoints_of};
use crate::key::ResourceKey;
use crate::message::Upsert;
use crate::resource::{
    encode_address_entry, encode_dns_record, encode_endpoint, encode_plan, encode_service,
};

/// All differences between the held and the desired resources of a proxy.
///
/// In the order of the fields, each prefix keeps references valid: endpoints are removed before their port, and
/// added after it; addresses are added after their services, and names last; services are removed after the
/// last reference to them.
#[derive(Debug, Default)]
pub(super) struct PendingDelta {
    dropped: Vec<ResourceKey>,
    upserts: Vec<Upsert>,
    endpoints: Vec<Upsert>,
    addresses: Vec<Upsert>,
    names: Vec<Upsert>,
    removed: Vec<ResourceKey>,
}

impl PendingDelta {
    pub(super) fn new(
        snapshot: &Snapshot,
        agreed: Option<&Snapshot>,
        held: &HeldVersions,
        kept: Kept<'_>,
    ) -> Self {
        let mut draft = Self::default();
        if agreed.is_none_or(|agreed| !is_same(&agreed.config, &snapshot.config)) {
            draft.add_plan(snapshot, held, kept);
        }
        for (name, view) in &snapshot.services {
            let before = agreed.and_then(|agreed| agreed.services.get(name));
            if before.is_none_or(|before| !is_same(before, view)) {
                let before = before.map(|before| &**before);
                draft.add_service(view, before, held.services.get(name), kept);
            }
        }
        draft.add_addresses(snapshot, agreed, held, kept);
        draft.add_names(snapshot, agreed, held, kept);
        for (name, service) in &held.services {
            if !snapshot.services.contains_key(name) {
                draft.remove_service(name, service, kept);
            }
        }
        draft
    }

    pub(super) fn is_empty(&self) -> bool {
        self.dropped.is_empty()
            && self.upserts.is_empty()
            && self.endpoints.is_empty()
            && self.addresses.is_empty()
            && self.names.is_empty()
            && self.removed.is_empty()
    }

    pub(super) fn has_plan(&self) -> bool {
        self.upserts.first().is_some_and(|upsert| upsert.key == ResourceKey::Workload)
    }

    /// The resources that exceed the size limit.
    pub(super) fn oversized_resources(&self) -> impl Iterator<Item = &Upsert> {
        let all = self.upserts.iter().chain(&self.endpoints).chain(&self.addresses);
        let all = all.chain(&self.names);
        all.filter(|upsert| upsert.content.len() > RESOURCE_BYTES_MAX)
    }

    /// Takes a prefix that fits into one delta; true if it is everything.
    pub(super) fn take_prefix(self) -> (Vec<Upsert>, Vec<ResourceKey>, bool) {
        let mut room = DELTA_BYTES_MAX;
        let mut whole = true;
        let mut fits = |bytes: usize| {
            let left = room.checked_sub(bytes).filter(|_| whole);
            room = left.unwrap_or(room);
            whole = left.is_some();
            whole
        };
        let key_fits =
            |key: &ResourceKey, fits: &mut dyn FnMut(usize) -> bool| fits(encoded_size(key));
        let mut removed = self.dropped;
        removed.retain(|key| key_fits(key, &mut fits));
        let mut upserts = self.upserts;
        upserts.extend(self.endpoints);
        upserts.extend(self.addresses);
        upserts.extend(self.names);
        upserts.retain(|upsert| fits(encoded_size(&upsert.key) + upsert.content.len()));
        removed.extend(self.removed.into_iter().filter(|key| key_fits(key, &mut fits)));
        (upserts, removed, whole)
    }

    fn add_plan(&mut self, snapshot: &Snapshot, held: &HeldVersions, kept: Kept<'_>) {
        let upsert = Upsert { key: ResourceKey::Workload, content: encode_plan(&snapshot.config) };
        let version = Some(upsert.version());
        if held.config != version && !kept.contains(&upsert.key, version) {
            self.upserts.push(upsert);
        }
    }

    /// Adds address entries, and removals of unsubscribed ones.
    fn add_addresses(
        &mut self,
        snapshot: &Snapshot,
        agreed: Option<&Snapshot>,
        held: &HeldVersions,
        kept: Kept<'_>,
    ) {
        for (address, address_entry) in &snapshot.addresses {
            let before = agreed.and_then(|agreed| agreed.addresses.get(address));
            if before.is_some_and(|before| is_same(before, address_entry)) {
                continue;
            }
            let key = ResourceKey::Address(*address);
            let upsert = Upsert { key, content: encode_address_entry(address_entry) };
            let version = upsert.version();
            let is_held = held.addresses.get(address) == Some(&version);
            if !is_held && !kept.contains(&upsert.key, Some(version)) {
                self.addresses.push(upsert);
            }
        }
        let gone = held.addresses.keys().filter(|held| !snapshot.addresses.contains_key(held));
        let gone = gone.map(|address| ResourceKey::Address(*address));
        self.removed.extend(gone.filter(|key| !kept.contains(key, None)));
    }

    /// Adds DNS records, and removals of unsubscribed ones.
    fn add_names(
        &mut self,
        snapshot: &Snapshot,
        agreed: Option<&Snapshot>,
        held: &HeldVersions,
        kept: Kept<'_>,
    ) {
        for (name, dns_record) in &snapshot.names {
            let before = agreed.and_then(|agreed| agreed.names.get(name));
            if before.is_some_and(|before| is_same(before, dns_record)) {
                continue;
            }
            let key = ResourceKey::Name(name.clone());
            let upsert = Upsert { key, content: encode_dns_record(dns_record) };
            let version = upsert.version();
            let is_held = held.names.get(name) == Some(&version);
            if !is_held && !kept.contains(&upsert.key, Some(version)) {
                self.names.push(upsert);
            }
        }
        let gone = held.names.keys().filter(|held| !snapshot.names.contains_key(held));
        let gone = gone.map(|name| ResourceKey::Name(name.clone()));
        self.removed.extend(gone.filter(|key| !kept.contains(key, None)));
    }

    fn add_service(
        &mut self,
        view: &ServiceConfig,
        before: Option<&ServiceConfig>,
        held: Option<&HeldService>,
        kept: Kept<'_>,
    ) {
        let key = ResourceKey::Service(view.name.clone());
        let upsert = Upsert { key, content: encode_service(view) };
        let version = Some(upsert.version());
        let held_version = held.and_then(|held| held.version);
        let send = held_version != version && !kept.contains(&upsert.key, version);
        if send {
            self.upserts.push(upsert);
        }
        // Endpoints of a service that the proxy rejects are not sent.
        if send || held_version.is_some() {
            for (number, port) in &view.ports {
                let before = before.and_then(|before| before.ports.get(number));
                self.add_endpoints(port, before, held, kept);
            }
        }
        if let Some(held) = held {
            self.drop_endpoints(&view.name, Some(view), held, kept);
        }
    }

    fn add_endpoints(
        &mut self,
        port: &PortConfig,
        before: Option<&PortConfig>,
        held: Option<&HeldService>,
        kept: Kept<'_>,
    ) {
        let mut before = before.map_or(&[][..], |port| &port.endpoints).iter().peekable();
        for endpoint in &port.endpoints {
            while before.next_if(|old| old.id < endpoint.id).is_some() {}
            if before.next_if(|old| is_same(old, endpoint)).is_some() {
                continue;
            }
            let key = ResourceKey::Endpoint(endpoint.id.clone());
            let upsert = Upsert { key, content: encode_endpoint(endpoint) };
            let version = upsert.version();
            let place = (endpoint.id.port, endpoint.id.workload.clone());
            let held = held.and_then(|held| held.endpoints.get(&place));
            if held != Some(&version) && !kept.contains(&upsert.key, Some(version)) {
                self.endpoints.push(upsert);
            }
        }
    }

    fn drop_endpoints(
        &mut self,
        name: &ServiceName,
        view: Option<&ServiceConfig>,
        held: &HeldService,
        kept: Kept<'_>,
    ) {
        let wanted = view.into_iter().flat_map(endpoints_of);
        let wanted = wanted.map(|(port, endpoint)| (port, &endpoint.id.workload));
        let wanted: BTreeSet<_> = wanted.collect();
        let gone = held.endpoints.keys().filter(|(port, name)| !wanted.contains(&(*port, name)));
        let keys = gone.map(|(port, workload)| {
            ResourceKey::Endpoint(EndpointId {
                service: name.clone(),
                port: *port,
                workload: workload.clone(),
            })
        });
        self.dropped.extend(keys.filter(|key| !kept.contains(key, None)));
    }

    fn remove_service(&mut self, name: &ServiceName, held: &HeldService, kept: Kept<'_>) {
        if held.version.is_none() {
            return self.drop_endpoints(name, None, held, kept);
        }
        let key = ResourceKey::Service(name.clone());
        if !kept.contains(&key, None) {
            self.removed.push(key);
        }
    }
}

fn is_same<T: PartialEq>(one: &Arc<T>, other: &Arc<T>) -> bool {
    Arc::ptr_eq(one, other) || one == other
}

/// The encoded size of a key in a message, rounded up.
fn encoded_size(key: &ResourceKey) -> usize {
    let names = match key {
        ResourceKey::Workload => 0,
        ResourceKey::Address(_) => ADDRESS_BYTES_MAX,
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
    names + KEY_BYTES
}

/// Tags, lengths, separators and the port of a key, and the tags and lengths around it.
const KEY_BYTES: usize = 48;

/// The length of an IPv6 address.
const ADDRESS_BYTES_MAX: usize = 16;

/// The maximum content of a delta: a message, minus its own fields and absent services.
const DELTA_BYTES_MAX: usize = 3 << 20;

/// The maximum size of a resource: a service with 10,000 rules is about half as large, and a delta has room for
/// it and a little more.
pub(super) const RESOURCE_BYTES_MAX: usize = 5 << 19;
