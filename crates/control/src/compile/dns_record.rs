//! DNS records for names that a sidecar queries.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use leno_discovery::ADDRESSES_OF_NAME_MAX;
use leno_model::{DnsRecord, Service, ServiceName};

use crate::mesh::Mesh;

/// Returns the DNS records of these names. They are the same for all clients: authorization is decided
/// elsewhere.
pub(crate) fn dns_record(
    mesh: &Mesh,
    asked: &BTreeSet<ServiceName>,
) -> BTreeMap<ServiceName, Arc<DnsRecord>> {
    let found = |name: &ServiceName| {
        let service = mesh.service(name);
        let found = service.map(|service| of_service(mesh, service)).unwrap_or_default();
        (name.clone(), Arc::new(found))
    };
    asked.iter().map(found).collect()
}

/// Returns the addresses of the service, or of its workloads that receive requests, with or without a sidecar,
/// as cluster DNS would. A set that does not fit is left to cluster DNS.
fn of_service(mesh: &Mesh, service: &Service) -> DnsRecord {
    let addresses: BTreeSet<IpAddr> = match service.addresses.is_empty() {
        false => service.addresses.clone(),
        true => {
            let all = mesh
                .service_workloads(&service.name)
                .chain(mesh.unmeshed_workloads_behind(&service.name));
            let ready = all.filter(|workload| workload.ready || service.unready);
            let addresses = ready.flat_map(|workload| workload.addresses());
            addresses
                .filter(|it| !it.is_loopback() && service.families.includes_address(*it))
                .collect()
        }
    };
    match addresses.len() <= ADDRESSES_OF_NAME_MAX {
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
        dns_record(mesh, &BTreeSet::from([name.clone()]))[&name].addresses().to_vec()
    }

    fn move_to(mesh: &mut Mesh, name: &str, address: [u8; 4], ready: bool) {
        let mut moved = mesh.workload(&workload_name(name)).unwrap().clone();
        (moved.address, moved.ready) = (address.into(), ready);
        let affected_set = mesh.apply(Change::Upsert(Object::Workload(moved)));
        assert!(
            affected_set.services.contains(&service_name("reviews")),
            "whoever looked it up is told"
        );
    }

    #[test]
    fn a_name_stands_for_the_service_or_for_who_is_behind_it() {
        let mut mesh = mesh_with_sidecars(BOOKINFO);
        assert_eq!(resolve_name(&mesh, "nobody"), [] as [IpAddr; 0]);
        // Loopback addresses differ per machine.
        assert_eq!(resolve_name(&mesh, "reviews"), [] as [IpAddr; 0]);
        move_to(&mut mesh, "reviews-v1-1", [10, 1, 0, 1], true);
        move_to(&mut mesh, "reviews-v2-1", [10, 1, 0, 2], false);
        assert_eq!(resolve_name(&mesh, "reviews"), [IpAddr::from([10, 1, 0, 1])]);
        let mut changed = mesh.service(&service_name("reviews")).unwrap().clone();
        changed.unready = true;
        mesh.apply(Change::Upsert(Object::Service(changed.clone())));
        assert_eq!(resolve_name(&mesh, "reviews").len(), 2);
        let mut dual = mesh.workload(&workload_name("reviews-v1-1")).unwrap().clone();
        dual.other_addresses.insert("fd00:1::1".parse().unwrap());
        mesh.apply(Change::Upsert(Object::Workload(dual)));
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
