//! Who is at which address: services where a cluster gave them some, workloads at their own.

use std::net::IpAddr;

use leno_model::{Service, ServiceName, Workload, WorkloadName};

use super::{Index, Mesh, Touched};

/// Who is at which address. Addresses of loopback are everybody's own, and not here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Addresses {
    services: Index<IpAddr, ServiceName>,
    workloads: Index<IpAddr, WorkloadName>,
}

impl Addresses {
    /// A workload is new, another one than before, or gone.
    pub(super) fn move_workload(
        &mut self,
        old: Option<&Workload>,
        new: Option<&Workload>,
        touched: &mut Touched,
    ) {
        for (workload, address) in old.into_iter().flat_map(addresses_at) {
            self.workloads.remove(&address, &workload.name);
        }
        for (workload, address) in new.into_iter().flat_map(addresses_at) {
            self.workloads.insert(&address, &workload.name);
        }
        let both = old.into_iter().chain(new).flat_map(addresses_at);
        touched.addresses.extend(both.map(|(_, address)| address));
    }

    /// A service is new, another one than before, or gone.
    pub(super) fn move_service(
        &mut self,
        old: Option<&Service>,
        new: Option<&Service>,
        touched: &mut Touched,
    ) {
        for (service, address) in old.iter().flat_map(addresses_of) {
            self.services.remove(address, &service.name);
        }
        for (service, address) in new.iter().flat_map(addresses_of) {
            self.services.insert(address, &service.name);
        }
        let both = old.iter().chain(&new).flat_map(addresses_of);
        touched.addresses.extend(both.map(|(_, address)| *address));
    }
}

/// Those that others reach it by.
fn addresses_at(workload: &Workload) -> impl Iterator<Item = (&Workload, IpAddr)> {
    let addresses = workload.addresses().filter(|address| !address.is_loopback());
    addresses.map(move |address| (workload, address))
}

fn addresses_of<'a>(service: &&'a Service) -> impl Iterator<Item = (&'a Service, &'a IpAddr)> {
    let service: &'a Service = service;
    service.addresses.iter().map(move |address| (service, address))
}

impl Mesh {
    /// The service at an address. While a change of two services is half in there may be two: the
    /// first by name.
    pub(crate) fn service_at(&self, address: IpAddr) -> Option<&Service> {
        self.addresses.services.of(&address).find_map(|name| self.service(name))
    }

    /// The workload at an address. While one that ended is not taken away yet there may be two: one
    /// whose sidecar is there and that takes requests, rather than the other.
    pub(crate) fn workload_at(&self, address: IpAddr) -> Option<&Workload> {
        let names = self.addresses.workloads.of(&address);
        let workloads = names.filter_map(|name| self.workload(name));
        workloads.max_by_key(|it| (self.listeners(&it.name).is_some(), it.ready))
    }

    /// What is at the address of a workload may look different now.
    pub(super) fn touch_address_of(&self, workload: &WorkloadName, touched: &mut Touched) {
        let addresses = self.workload(workload).into_iter().flat_map(addresses_at);
        touched.addresses.extend(addresses.map(|(_, address)| address));
    }
}
