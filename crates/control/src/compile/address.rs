//! Compiles address entries: the services and workloads at the addresses that sidecars query.

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

/// The entries of the addresses that a sidecar queried, and the resources that the entries depend on.
#[derive(Debug, Default)]
pub(crate) struct AddressEntries {
    pub(crate) by_address: BTreeMap<IpAddr, Arc<AddressEntry>>,
    /// The services at these addresses; the querying sidecar needs their configurations too.
    pub(crate) services: BTreeSet<ServiceName>,
    /// All services that the entries depend on: if one changes, an entry may change.
    pub(crate) dependencies: BTreeSet<ServiceName>,
    /// Addresses of workloads with a sidecar that has not reported yet.
    pub(crate) unreported: BTreeSet<IpAddr>,
}

/// Returns the entries of these addresses. They are the same for all clients, because the service configuration and the
/// server's sidecar decide about authorization.
pub(crate) fn address_entries(
    mesh: &Mesh,
    queried_addresses: &BTreeSet<IpAddr>,
    service_configs: &mut ServiceConfigCache,
) -> AddressEntries {
    let mut address_entries = AddressEntries::default();
    for address in queried_addresses {
        let address_entry = address_entries.address_entry(mesh, *address, service_configs);
        address_entries.by_address.insert(*address, Arc::new(address_entry));
    }
    address_entries
}

impl AddressEntries {
    fn address_entry(
        &mut self,
        mesh: &Mesh,
        address: IpAddr,
        service_configs: &mut ServiceConfigCache,
    ) -> AddressEntry {
        if let Some(service) = mesh.service_at(address) {
            return match self.is_mesh_service(mesh, service, service_configs) {
                true => {
                    self.services.insert(service.name.clone());
                    AddressEntry::Service(service.name.clone())
                }
                false => AddressEntry::External,
            };
        }
        // A gateway serves external clients. A sidecar that connects to its address is one of them, so the address is
        // external for the sidecar.
        let workload =
            mesh.workload_at(address).filter(|workload| mesh.gateway_of(workload).is_none());
        let Some(workload) = workload else {
            return AddressEntry::External;
        };
        let ports = self.forwarded_ports(mesh, workload);
        if mesh.sidecar_listeners(&workload.name).is_none() {
            self.unreported.insert(address);
        }
        AddressEntry::Workload { workload: workload.name.clone(), ports }
    }

    /// True if sidecars balance over the endpoints of a service, or of a service that its routes forward to.
    /// Otherwise clients reach the service as if there were no mesh, because its namespace may not be migrated yet.
    fn is_mesh_service(
        &mut self,
        mesh: &Mesh,
        service: &Service,
        service_configs: &mut ServiceConfigCache,
    ) -> bool {
        self.dependencies.insert(service.name.clone());
        if is_balanced(mesh, &service.name) {
            return true;
        }
        // The configuration is cached, because many sidecars query the same addresses repeatedly.
        let Some(service_config) =
            service_configs.service_config(mesh, &ClientClass::AllClients, &service.name)
        else {
            return false;
        };
        self.dependencies.extend(backend_services(&service_config).cloned());
        backend_services(&service_config).any(|name| is_balanced(mesh, name))
    }

    /// Returns the ports of a workload that services forward to. If several services forward to one port, its
    /// entry has the service under which the port's requests are counted.
    fn forwarded_ports(&mut self, mesh: &Mesh, workload: &Workload) -> BTreeMap<u16, AddressPort> {
        let mut services: Vec<&Service> = mesh.services_of(&workload.name).collect();
        // A service with fewer selector labels comes first, as in `port_services` of the workload's configuration. The sort
        // is stable, and services are ordered by name.
        services.sort_by_key(|service| service.selector.len());
        let mut ports = BTreeMap::new();
        for service in services {
            self.dependencies.insert(service.name.clone());
            for port in &service.ports {
                if let Some(port_number) = target_port(&port.target, workload) {
                    let create_port =
                        || address_entry_port(mesh, workload, service, port, port_number);
                    ports.entry(port_number).or_insert_with(create_port);
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
    port_number: u16,
) -> AddressPort {
    let listeners = mesh.sidecar_listeners(&workload.name);
    // A revoked account is not called, and its traffic is not sent unprotected either.
    let listeners = listeners.filter(|_| !mesh.is_revoked(workload));
    let address = listeners.and_then(|listeners| listeners.get(&port_number)).copied();
    let id = EndpointId {
        service: service.name.clone(),
        port: port.port,
        workload: workload.name.clone(),
    };
    // The client called this address, so there is no choice among endpoints by tags or weights.
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
                .by_address[&address],
        )
    }

    fn address_of(mesh: &Mesh, name: &str) -> [u8; 4] {
        match mesh.workload(&workload_name(name)).unwrap().address {
            IpAddr::V4(address) => address.octets(),
            IpAddr::V6(_) => panic!("an IPv6 address"),
        }
    }

    #[test]
    fn an_address_entry_is_a_service_a_workload_or_external() {
        let mesh = bookinfo_cluster();
        assert_eq!(
            compile_entry(&mesh, [10, 96, 0, 1]),
            AddressEntry::Service(service_name("details"))
        );
        assert_eq!(compile_entry(&mesh, [192, 0, 2, 1]), AddressEntry::External);
        let entry = compile_entry(&mesh, address_of(&mesh, "reviews-v2-1"));
        let AddressEntry::Workload { workload: name, ports } = entry else { panic!("{entry:?}") };
        assert_eq!(name, workload_name("reviews-v2-1"));
        assert_eq!(ports.keys().collect::<Vec<_>>(), [&9083]);
        // The service under which it is counted, not one of a single version.
        assert_eq!((&ports[&9083].service, ports[&9083].port), (&service_name("reviews"), 9080));
        let endpoint = ports[&9083].endpoint.as_ref().unwrap();
        assert_eq!(endpoint.account.as_ref().unwrap().name.as_str(), "reviews-beta");
    }

    #[test]
    fn a_dual_stack_workload_has_an_entry_for_each_address() {
        let mut mesh = bookinfo_cluster();
        let name = workload_name("details-1");
        let mut dual_stack = mesh.workload(&name).unwrap().clone();
        let second_address: IpAddr = "fd00:1::7".parse().unwrap();
        dual_stack.other_addresses.insert(second_address);
        let affected_set = mesh.apply(Change::Upsert(Object::Workload(dual_stack.clone())));
        assert!(
            affected_set.addresses.contains(&second_address)
                && affected_set.addresses.contains(&dual_stack.address)
        );
        let entries = address_entries(
            &mesh,
            &BTreeSet::from([second_address, dual_stack.address]),
            &mut ServiceConfigCache::default(),
        );
        assert_eq!(entries.by_address[&second_address], entries.by_address[&dual_stack.address]);
        assert!(
            matches!(&*entries.by_address[&second_address], AddressEntry::Workload { workload, .. } if *workload == name)
        );
        dual_stack.other_addresses.clear();
        let affected_set = mesh.apply(Change::Upsert(Object::Workload(dual_stack)));
        assert!(affected_set.addresses.contains(&second_address));
        let entries = address_entries(
            &mesh,
            &BTreeSet::from([second_address]),
            &mut ServiceConfigCache::default(),
        );
        assert_eq!(*entries.by_address[&second_address], AddressEntry::External);
    }

    #[test]
    fn a_service_without_sidecars_is_external_unless_it_routes_to_a_meshed_service() {
        let mut mesh = bookinfo_cluster();
        let has_service_entry = |mesh: &Mesh| {
            let name = mesh.service(&service_name("reviews")).unwrap();
            let address = *name.addresses.first().unwrap();
            let entries = address_entries(
                mesh,
                &BTreeSet::from([address]),
                &mut ServiceConfigCache::default(),
            );
            assert!(entries.dependencies.contains(&service_name("reviews")));
            *entries.by_address[&address] == AddressEntry::Service(service_name("reviews"))
        };
        assert!(has_service_entry(&mesh));
        let mut unselective = mesh.service(&service_name("reviews")).unwrap().clone();
        unselective.selector.clear();
        mesh.apply(Change::Upsert(Object::Service(unselective)));
        assert!(has_service_entry(&mesh), "its route refers to both versions");
        for name in ["reviews-v1-1", "reviews-v2-1"] {
            let key = leno_model::ObjectKey::Workload(workload_name(name));
            let affected_set = mesh.apply(Change::Remove(key));
            assert!(!affected_set.addresses.is_empty());
        }
        assert!(!has_service_entry(&mesh));
    }

    #[test]
    fn a_workload_without_a_connected_sidecar_has_no_endpoint() {
        let mut mesh = bookinfo_cluster();
        let name = workload_name("details-1");
        let affected_set = mesh.set_listeners(&name, None);
        let address = mesh.workload(&name).unwrap().address;
        assert!(affected_set.addresses.contains(&address));
        let entries =
            address_entries(&mesh, &BTreeSet::from([address]), &mut ServiceConfigCache::default());
        assert!(entries.unreported.contains(&address));
        let AddressEntry::Workload { ports, .. } = &*entries.by_address[&address] else {
            panic!("external")
        };
        assert_eq!(ports[&9081].endpoint, None);
    }

    #[test]
    fn a_reused_address_belongs_to_the_new_workload() {
        let mut mesh = bookinfo_cluster();
        let mut successor = mesh.workload(&workload_name("stranger-1")).unwrap().clone();
        successor.address = mesh.workload(&workload_name("details-1")).unwrap().address;
        let affected_set = mesh.apply(Change::Upsert(Object::Workload(successor.clone())));
        assert!(affected_set.addresses.contains(&successor.address));
        let key = leno_model::ObjectKey::Workload(workload_name("details-1"));
        let affected_set = mesh.apply(Change::Remove(key));
        assert!(affected_set.addresses.contains(&successor.address));
        let entries = address_entries(
            &mesh,
            &BTreeSet::from([successor.address]),
            &mut ServiceConfigCache::default(),
        );
        let AddressEntry::Workload { workload: name, .. } =
            &*entries.by_address[&successor.address]
        else {
            panic!("external")
        };
        assert_eq!(*name, workload_name("stranger-1"));
    }
}
