//! Compiles the DNS records of the names that a sidecar queries.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use leno_discovery::MAX_ADDRESSES_OF_NAME;
use leno_model::{DnsRecord, Service, ServiceName};

use crate::mesh::Mesh;

/// Returns the DNS records of these names; the record of a missing service is empty. The records are the same for all
/// clients, because the service configuration and the server's sidecar decide about authorization.
pub(crate) fn dns_records(
    mesh: &Mesh,
    queried_names: &BTreeSet<ServiceName>,
) -> BTreeMap<ServiceName, Arc<DnsRecord>> {
    let record_for = |name: &ServiceName| {
        let service = mesh.service(name);
        let dns_record = service.map(|service| service_record(mesh, service)).unwrap_or_default();
        (name.clone(), Arc::new(dns_record))
    };
    queried_names.iter().map(record_for).collect()
}

/// Returns the addresses of the service, or of its workloads that receive requests, with or without a sidecar,
/// as cluster DNS would. Empty if there are more than [`MAX_ADDRESSES_OF_NAME`]: cluster DNS then resolves the
/// name.
fn service_record(mesh: &Mesh, service: &Service) -> DnsRecord {
    let addresses: BTreeSet<IpAddr> = match service.addresses.is_empty() {
        false => service.addresses.clone(),
        true => {
            let workloads = mesh
                .service_workloads(&service.name)
                .chain(mesh.unmeshed_workloads_of(&service.name));
            let receiving_workloads =
                workloads.filter(|workload| workload.ready || service.unready);
            let addresses = receiving_workloads.flat_map(|workload| workload.addresses());
            addresses
                .filter(|address| {
                    !address.is_loopback() && service.families.includes_address(*address)
                })
                .collect()
        }
    };
    match addresses.len() <= MAX_ADDRESSES_OF_NAME {
        true => addresses.into_iter().collect(),
        false => DnsRecord::default(),
    }
}

#[cfg(test)]
mod tests {
    use leno_model::{Change, IpFamilies, Object};

    use super::*;
    use crate::fixture::{BOOKINFO, mesh_with_sidecars, service_name, workload_name};

    fn resolve_name(mesh: &Mesh, name: &str) -> Vec<IpAddr> {
        let name = service_name(name);
        dns_records(mesh, &BTreeSet::from([name.clone()]))[&name].addresses().to_vec()
    }

    fn move_to(mesh: &mut Mesh, name: &str, address: [u8; 4], ready: bool) {
        let mut moved = mesh.workload(&workload_name(name)).unwrap().clone();
        (moved.address, moved.ready) = (address.into(), ready);
        let affected_set = mesh.apply(Change::Upsert(Object::Workload(moved)));
        assert!(
            affected_set.services.contains(&service_name("reviews")),
            "sidecars that queried the name receive the change"
        );
    }

    #[test]
    fn a_name_resolves_to_the_addresses_of_its_service_or_else_of_its_workloads() {
        let mut mesh = mesh_with_sidecars(BOOKINFO);
        assert_eq!(resolve_name(&mesh, "missing"), [] as [IpAddr; 0]);
        // Loopback addresses differ per machine.
        assert_eq!(resolve_name(&mesh, "reviews"), [] as [IpAddr; 0]);
        move_to(&mut mesh, "reviews-v1-1", [10, 1, 0, 1], true);
        move_to(&mut mesh, "reviews-v2-1", [10, 1, 0, 2], false);
        assert_eq!(resolve_name(&mesh, "reviews"), [IpAddr::from([10, 1, 0, 1])]);
        let mut changed = mesh.service(&service_name("reviews")).unwrap().clone();
        changed.unready = true;
        mesh.apply(Change::Upsert(Object::Service(changed.clone())));
        assert_eq!(resolve_name(&mesh, "reviews").len(), 2);
        let mut dual_stack = mesh.workload(&workload_name("reviews-v1-1")).unwrap().clone();
        dual_stack.other_addresses.insert("fd00:1::1".parse().unwrap());
        mesh.apply(Change::Upsert(Object::Workload(dual_stack)));
        assert_eq!(resolve_name(&mesh, "reviews").len(), 3);
        changed.families = IpFamilies::V6;
        mesh.apply(Change::Upsert(Object::Service(changed.clone())));
        assert_eq!(resolve_name(&mesh, "reviews"), ["fd00:1::1".parse::<IpAddr>().unwrap()]);
        changed.addresses.extend([IpAddr::from([10, 96, 0, 1]), "fd00::1".parse().unwrap()]);
        let affected_set = mesh.apply(Change::Upsert(Object::Service(changed)));
        assert!(affected_set.services.contains(&service_name("reviews")));
        assert_eq!(
            resolve_name(&mesh, "reviews"),
            [IpAddr::from([10, 96, 0, 1]), "fd00::1".parse().unwrap()]
        );
    }
}
