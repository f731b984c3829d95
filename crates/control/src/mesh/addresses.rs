//! Indexes addresses: services by their cluster IPs, workloads by their own IP addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use leno_model::{PlaintextClient, Service, ServiceName, Workload, WorkloadName};
use leno_registry::NODE_NETWORK_LABEL;

use super::{AffectedSet, Index, Mesh};

/// Services and workloads by address. Loopback addresses differ per machine and are not included.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Addresses {
    services_by_address: Index<IpAddr, ServiceName>,
    workloads_by_address: Index<IpAddr, WorkloadName>,
}

impl Addresses {
    /// Updates the index for an added, changed or removed workload.
    pub(super) fn update_workload(
        &mut self,
        old: Option<&Workload>,
        new: Option<&Workload>,
        affected_set: &mut AffectedSet,
    ) {
        for (workload, address) in old.into_iter().flat_map(reachable_addresses) {
            self.workloads_by_address.remove(&address, &workload.name);
        }
        for (workload, address) in new.into_iter().flat_map(reachable_addresses) {
            self.workloads_by_address.insert(&address, &workload.name);
        }
        let changed_addresses = old.into_iter().chain(new).flat_map(reachable_addresses);
        affected_set.addresses.extend(changed_addresses.map(|(_, address)| address));
    }

    /// Updates the index for an added, changed or removed service.
    pub(super) fn update_service(
        &mut self,
        old: Option<&Service>,
        new: Option<&Service>,
        affected_set: &mut AffectedSet,
    ) {
        for (service, address) in old.iter().flat_map(service_addresses) {
            self.services_by_address.remove(address, &service.name);
        }
        for (service, address) in new.iter().flat_map(service_addresses) {
            self.services_by_address.insert(address, &service.name);
        }
        let changed_addresses = old.iter().chain(&new).flat_map(service_addresses);
        affected_set.addresses.extend(changed_addresses.map(|(_, address)| *address));
    }
}

/// Returns the addresses at which clients on other machines reach a workload.
fn reachable_addresses(workload: &Workload) -> impl Iterator<Item = (&Workload, IpAddr)> {
    let addresses = workload.addresses().filter(|address| !address.is_loopback());
    addresses.map(move |address| (workload, address))
}

fn service_addresses<'a>(service: &&'a Service) -> impl Iterator<Item = (&'a Service, &'a IpAddr)> {
    let service: &'a Service = service;
    service.addresses.iter().map(move |address| (service, address))
}

/// True for an address that only this workload has. Loopback addresses are shared, and so are the addresses of a
/// workload with the label for the node's network.
pub(crate) fn is_own_address(address: IpAddr, labels: &BTreeMap<String, String>) -> bool {
    !address.is_loopback() && !labels.contains_key(NODE_NETWORK_LABEL)
}

impl Mesh {
    /// Classifies a plaintext client by its address: a member is a workload with a sidecar, which should use mutual TLS.
    pub(crate) fn plaintext_client(&self, address: IpAddr) -> PlaintextClient {
        let address = address.to_canonical();
        let names = self.addresses.workloads_by_address.values_for(&address);
        let mut workloads = names.filter_map(|name| self.workload(name));
        match workloads
            .any(|workload| workload.sidecar && is_own_address(address, &workload.labels))
        {
            true => PlaintextClient::Member,
            false => PlaintextClient::Other,
        }
    }

    /// Returns the service at an address. If an address moves between services, both may have it for a moment, and the
    /// first by name is returned.
    pub(crate) fn service_at(&self, address: IpAddr) -> Option<&Service> {
        self.addresses.services_by_address.values_for(&address).find_map(|name| self.service(name))
    }

    /// Returns the workload at an address. A terminated workload may still be listed next to its successor, so workloads
    /// with a connected sidecar are preferred, then ready ones.
    pub(crate) fn workload_at(&self, address: IpAddr) -> Option<&Workload> {
        let names = self.addresses.workloads_by_address.values_for(&address);
        let workloads = names.filter_map(|name| self.workload(name));
        workloads.max_by_key(|workload| {
            (self.sidecar_listeners(&workload.name).is_some(), workload.ready)
        })
    }

    /// Marks the address entries of a workload as affected.
    pub(super) fn mark_addresses_affected(
        &self,
        workload: &WorkloadName,
        affected_set: &mut AffectedSet,
    ) {
        let addresses = self.workload(workload).into_iter().flat_map(reachable_addresses);
        affected_set.addresses.extend(addresses.map(|(_, address)| address));
    }
}

#[cfg(test)]
mod tests {
    use leno_model::{Change, Object};

    use super::*;
    use crate::fixture::{BOOKINFO, mesh_with_sidecars, workload_name};

    /// Regression: events advised clients to join the mesh although they were members.
    #[test]
    fn a_plaintext_client_at_a_workloads_own_address_is_a_member() {
        let no_labels = BTreeMap::new();
        let node_labels = BTreeMap::from([(NODE_NETWORK_LABEL.to_owned(), String::new())]);
        for (labels, sidecar, client_address, expected) in [
            (&no_labels, true, "10.1.0.1", PlaintextClient::Member),
            (&no_labels, true, "::ffff:10.1.0.1", PlaintextClient::Member),
            (&no_labels, true, "fd00::1", PlaintextClient::Member),
            (&no_labels, true, "10.1.0.2", PlaintextClient::Other),
            (&no_labels, true, "127.0.0.1", PlaintextClient::Other),
            (&no_labels, false, "10.1.0.1", PlaintextClient::Other),
            (&node_labels, true, "10.1.0.1", PlaintextClient::Other),
        ] {
            let mut mesh = mesh_with_sidecars(BOOKINFO);
            let mut member = mesh.workload(&workload_name("productpage-1")).unwrap().clone();
            member.address = "10.1.0.1".parse().unwrap();
            member.other_addresses.insert("fd00::1".parse().unwrap());
            member.labels.extend(labels.clone());
            member.sidecar = sidecar;
            mesh.apply(Change::Upsert(Object::Workload(member)));
            let client = mesh.plaintext_client(client_address.parse().unwrap());
            assert_eq!(client, expected, "{client_address} {sidecar} {labels:?}");
        }
    }
}
