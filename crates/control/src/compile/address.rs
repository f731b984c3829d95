//! Address entries: the services and workloads at the addresses that sidecars query.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use leno_model::{
    AddressEntry, AddressPort, Endpoint, EndpointId, Service, ServiceName, ServicePort, Workload,
};

use super::enforcement::is_balanced;
use super::service::{
    ClientClass, ServiceConfigCache, backend_services, port_protocol, target_port,
};
use crate::mesh::Mesh;

/// The entries of some addresses.
#[derive(Debug, Default)]
pub(crate) struct AddressEntries {
    pub(crate) at: BTreeMap<IpAddr, Arc<AddressEntry>>,
    /// The services among them; the querying sidecar needs these too.
    pub(crate) services: BTreeSet<ServiceName>,
    /// All services that the result depends on: if one changes, the result may change.
    pub(crate) decided_by: BTreeSet<ServiceName>,
    /// Addresses of workloads with a sidecar that has not reported yet.
    pub(crate) unheard: BTreeSet<IpAddr>,
}

/// Returns the entries of these addresses. They are the same for all clients: authorization is decided
/// elsewhere.
pub(crate) fn address_entries(
    mesh: &Mesh,
    asked: &BTreeSet<IpAddr>,
    views: &mut ServiceConfigCache,
) -> AddressEntries {
    let mut address_entries = AddressEntries::default();
    for address in asked {
        let address_entry = address_entries.address_entry(mesh, *address, views);
        address_entries.at.insert(*address, Arc::new(address_entry));
    }
    address_entries
}

impl AddressEntries {
    fn address_entry(
        &mut self,
        mesh: &Mesh,
        address: IpAddr,
        views: &mut ServiceConfigCache,
    ) -> AddressEntry {
        if let Some(service) = mesh.service_at(address) {
            return match self.is_of_mesh(mesh, service, views) {
                true => {
                    self.services.insert(service.name.clone());
                    AddressEntry::Service(service.name.clone())
                }
                false => AddressEntry::External,
            };
        }
        // Clients of a gateway's address are external, even inside the cluster.
        let workload = mesh.workload_at(address).filter(|it| mesh.gateway_of(it).is_none());
        let Some(workload) = workload else {
            return AddressEntry::External;
        };
        let ports = self.forwarded_ports(mesh, workload);
        if mesh.sidecar_listeners(&workload.name).is_none() {
            self.unheard.insert(address);
        }
        AddressEntry::Workload { workload: workload.name.clone(), ports }
    }

    /// True if sidecars balance over the endpoints of a service, or of a service that its routes forward to.
    /// Otherwise its clients reach it as if there were no mesh: namespaces are migrated one by one.
    fn is_of_mesh(
        &mut self,
        mesh: &Mesh,
        service: &Service,
        views: &mut ServiceConfigCache,
    ) -> bool {
        self.decided_by.insert(service.name.clone());
        if is_balanced(mesh, &service.name) {
            return true;
        }
        // Kept in the views: many sidecars query the same addresses repeatedly.
        let Some(view) = views.service_config(mesh, &ClientClass::AllClients, &service.name) else {
            return false;
        };
        self.decided_by.extend(backend_services(&view).cloned());
        backend_services(&view).any(|name| is_balanced(mesh, name))
    }

    /// Returns the ports of a workload that services forward to. If several services forward to one port, the
    /// port has the service under which it is counted.
    fn forwarded_ports(&mut self, mesh: &Mesh, workload: &Workload) -> BTreeMap<u16, AddressPort> {
        let mut services: Vec<&Service> = mesh.in_front_of(&workload.name).collect();
        // Stable sort: services are ordered by name.
        services.sort_by_key(|service| service.selector.len());
        let mut ports = BTreeMap::new();
        for service in services {
            self.decided_by.insert(service.name.clone());
            for port in &service.ports {
                if let Some(number) = target_port(&port.target, workload) {
                    let found = || address_entry_port(mesh, workload, service, port, number);
                    ports.entry(number).or_insert_with(found);
                }
            }
        }
        ports
    }
}

fn address_entry_port(
    mesh: &Mesh,
    workload: &Workload,
    service: &Service,
    port: &ServicePort,
    number: u16,
) -> AddressPort {
    let listeners = mesh.sidecar_listeners(&workload.name);
    // A revoked account is not called, and its traffic is not sent unprotected either.
    let listeners = listeners.filter(|_| !mesh.is_revoked(workload));
    let address = listeners.and_then(|listeners| listeners.get(&number)).copied();
    let id = EndpointId {
        service: service.name.clone(),
        port: port.port,
        workload: workload.name.clone(),
    };
    let endpoint = address.map(|address| {
        let account = Some(workload.account.clone());
        Arc::new(Endpoint { id, address, account, tags: BTreeMap::new(), weight: None })
    });
    let protocol = port_protocol(mesh, service, port);
    AddressPort { service: service.name.clone(), port: port.port, protocol, endpoint }
}

#[cfg(test)]
mod tests {
    use leno_model::{Change, Object};

    use super::*;
    use crate::fixture::{BOOKINFO, mesh_with_sidecars, service_name, workload_name};

    /// Bookinfo in a cluster: service `n` has the address 10.96.0.n, workload `n` has 10.1.0.n.
    fn bookinfo_cluster() -> Mesh {
        let mut mesh = mesh_with_sidecars(BOOKINFO);
        let services: Vec<Service> = mesh.services().cloned().collect();
        for (index, mut service) in services.into_iter().enumerate() {
            service.addresses.insert([10, 96, 0, u8::try_from(index + 1).unwrap()].into());
            mesh.apply(Change::Upsert(Object::Service(service)));
        }
        let workloads: Vec<Workload> = mesh.workloads().cloned().collect();
        for (index, mut workload) in workloads.into_iter().enumerate() {
            workload.address = [10, 1, 0, u8::try_from(index + 1).unwrap()].into();
            mesh.apply(Change::Upsert(Object::Workload(workload)));
        }
        mesh
    }

    fn compile_entry(mesh: &Mesh, address: [u8; 4]) -> AddressEntry {
        let address = IpAddr::from(address);
        AddressEntry::clone(
            &address_entries(mesh, &BTreeSet::from([address]), &mut ServiceConfigCache::default())
                .at[&address],
        )
    }

    fn address_of(mesh: &Mesh, name: &str) -> [u8; 4] {
        match mesh.workload(&workload_name(name)).unwrap().address {
            IpAddr::V4(address) => address.octets(),
            IpAddr::V6(_) => panic!("of another version"),
        }
    }

    #[test]
    fn an_address_is_a_service_or_a_workload_or_outside() {
        let mesh = bookinfo_cluster();
        assert_eq!(
            compile_entry(&mesh, [10, 96, 0, 1]),
            AddressEntry::Service(service_name("details"))
        );
        assert_eq!(compile_entry(&mesh, [192, 0, 2, 1]), AddressEntry::External);
        let found = compile_entry(&mesh, address_of(&mesh, "reviews-v2-1"));
        let AddressEntry::Workload { workload: name, ports } = found else { panic!("{found:?}") };
        assert_eq!(name, workload_name("reviews-v2-1"));
        assert_eq!(ports.keys().collect::<Vec<_>>(), [&9083]);
        // The service under which it is counted, not one of a single version.
        assert_eq!((&ports[&9083].service, ports[&9083].port), (&service_name("reviews"), 9080));
        let endpoint = ports[&9083].endpoint.as_ref().unwrap();
        assert_eq!(endpoint.account.as_ref().unwrap().name.as_str(), "reviews-beta");
    }

    #[test]
    fn a_workload_is_at_its_addresses_of_both_versions() {
        let mut mesh = bookinfo_cluster();
        let name = workload_name("details-1");
        let mut dual = mesh.workload(&name).unwrap().clone();
        let other: IpAddr = "fd00:1::7".parse().unwrap();
        dual.other_addresses.insert(other);
        let affected_set = mesh.apply(Change::Upsert(Object::Workload(dual.clone())));
        assert!(
            affected_set.addresses.contains(&other)
                && affected_set.addresses.contains(&dual.address)
        );
        let found = address_entries(
            &mesh,
            &BTreeSet::from([other, dual.address]),
            &mut ServiceConfigCache::default(),
        );
        assert_eq!(found.at[&other], found.at[&dual.address]);
        assert!(
            matches!(&*found.at[&other], AddressEntry::Workload { workload, .. } if *workload == name)
        );
        dual.other_addresses.clear();
        let affected_set = mesh.apply(Change::Upsert(Object::Workload(dual)));
        assert!(affected_set.addresses.contains(&other));
        let found =
            address_entries(&mesh, &BTreeSet::from([other]), &mut ServiceConfigCache::default());
        assert_eq!(*found.at[&other], AddressEntry::External);
    }

    #[test]
    fn a_service_without_sidecars_is_outside_unless_its_routes_lead_to_one() {
        let mut mesh = bookinfo_cluster();
        let is_routed = |mesh: &Mesh| {
            let name = mesh.service(&service_name("reviews")).unwrap();
            let address = *name.addresses.first().unwrap();
            let found = address_entries(
                mesh,
                &BTreeSet::from([address]),
                &mut ServiceConfigCache::default(),
            );
            assert!(found.decided_by.contains(&service_name("reviews")));
            *found.at[&address] == AddressEntry::Service(service_name("reviews"))
        };
        assert!(is_routed(&mesh));
        let mut bare = mesh.service(&service_name("reviews")).unwrap().clone();
        bare.selector.clear();
        mesh.apply(Change::Upsert(Object::Service(bare)));
        assert!(is_routed(&mesh), "its route leads to both versions");
        for name in ["reviews-v1-1", "reviews-v2-1"] {
            let key = leno_model::ObjectKey::Workload(workload_name(name));
            let affected_set = mesh.apply(Change::Remove(key));
            assert!(!affected_set.addresses.is_empty());
        }
        assert!(!is_routed(&mesh));
    }

    #[test]
    fn who_waits_for_the_sidecar_of_a_workload_never_calls_it_without() {
        let mut mesh = bookinfo_cluster();
        let name = workload_name("details-1");
        let affected_set = mesh.set_listeners(&name, None);
        let address = mesh.workload(&name).unwrap().address;
        assert!(affected_set.addresses.contains(&address));
        let found =
            address_entries(&mesh, &BTreeSet::from([address]), &mut ServiceConfigCache::default());
        assert!(found.unheard.contains(&address));
        let AddressEntry::Workload { ports, .. } = &*found.at[&address] else { panic!("outside") };
        assert_eq!(ports[&9081].endpoint, None);
    }

    #[test]
    fn an_address_that_another_workload_got_is_that_ones() {
        let mut mesh = bookinfo_cluster();
        let mut successor = mesh.workload(&workload_name("stranger-1")).unwrap().clone();
        successor.address = mesh.workload(&workload_name("details-1")).unwrap().address;
        let affected_set = mesh.apply(Change::Upsert(Object::Workload(successor.clone())));
        assert!(affected_set.addresses.contains(&successor.address));
        let key = leno_model::ObjectKey::Workload(workload_name("details-1"));
        let affected_set = mesh.apply(Change::Remove(key));
        assert!(affected_set.addresses.contains(&successor.address));
        let found = address_entries(
            &mesh,
            &BTreeSet::from([successor.address]),
            &mut ServiceConfigCache::default(),
        );
        let AddressEntry::Workload { workload: name, .. } = &*found.at[&successor.address] else {
            panic!("outside")
        };
        assert_eq!(*name, workload_name("stranger-1"));
    }
}
