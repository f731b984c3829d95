//! Services whose endpoints somebody lists, and those endpoints: gateways alone lead there.

use std::collections::BTreeMap;
use std::net::IpAddr;

use leno_model::{Name, ObjectKey, Service, ServiceName, Workload, WorkloadName};

use leno_registry::{Place, Warning};

use super::services::Services;
use super::{Ledger, Origin};
use crate::read::selects;

/// Services without selectors, and what slices say of them.
#[derive(Default)]
pub(super) struct Listed {
    services: Services,
    workloads: BTreeMap<WorkloadName, Workload>,
    by_slice: BTreeMap<Origin, Vec<WorkloadName>>,
}

impl Listed {
    pub(super) fn service(&self, name: &ServiceName) -> Option<&Service> {
        self.services.get(name)
    }

    /// The services of a namespace.
    pub(super) fn services_of<'a>(
        &'a self,
        namespace: &'a Name,
    ) -> impl Iterator<Item = &'a Service> {
        self.services.of_namespace(namespace)
    }

    pub(super) fn remove_service(&mut self, name: &ServiceName) -> Option<Service> {
        self.services.remove(name)
    }

    pub(super) fn workload(&self, name: &WorkloadName) -> Option<&Workload> {
        self.workloads.get(name)
    }

    /// The workloads from a name on.
    pub(super) fn workloads_from(
        &self,
        first: WorkloadName,
    ) -> impl Iterator<Item = (&WorkloadName, &Workload)> {
        self.workloads.range(first..)
    }
}

impl Ledger {
    /// The service of this name, whoever says where its endpoints are.
    pub(super) fn service(&self, name: &ServiceName) -> Option<&Service> {
        self.services.get(name).or_else(|| self.listed.service(name))
    }

    pub(super) fn see_listed(&mut self, service: Service) {
        let name = service.name.clone();
        // Clients in the mesh do not call it: there is nothing to prefer.
        self.see_nearness(&name, None);
        let before = self.services.remove(&name);
        let before = self.listed.services.insert(service).or(before);
        self.touch_service(&name, before.as_ref());
    }

    /// What a slice says now, in place of what it said.
    pub(super) fn see_endpoints(&mut self, origin: &Origin, workloads: Vec<Workload>) {
        for name in self.listed.by_slice.remove(origin).unwrap_or_default() {
            self.listed.workloads.remove(&name);
            self.dirty.insert(ObjectKey::Workload(name));
        }
        if workloads.is_empty() {
            return;
        }
        let names: Vec<WorkloadName> = workloads.iter().map(|it| it.name.clone()).collect();
        for workload in workloads {
            self.dirty.insert(ObjectKey::Workload(workload.name.clone()));
            self.listed.workloads.insert(workload.name.clone(), workload);
        }
        self.listed.by_slice.insert(origin.clone(), names);
    }

    /// Whether an address that somebody listed is that of a pod of another namespace.
    pub(super) fn is_borrowed(&self, workload: &Workload) -> bool {
        let edge = self.edge.as_ref();
        edge.is_some_and(|it| it.is_of_others(workload.address, &workload.name.namespace))
    }

    /// A pod has come to this address, or has gone.
    pub(super) fn touch_address(&mut self, address: IpAddr) {
        let there = self.listed.workloads.iter().filter(|(_, it)| it.address == address);
        self.dirty.extend(there.map(|(name, _)| ObjectKey::Workload(name.clone())));
    }

    /// What is said of listed addresses that are not led to.
    pub(super) fn borrowed(&self) -> impl Iterator<Item = Warning> {
        let all = self.listed.workloads.iter().filter(|(_, it)| self.is_borrowed(it));
        all.map(|(name, workload)| Warning {
            at: Place {
                kind: Some("EndpointSlice".to_owned()),
                name: Some(name.to_string()),
                field: Some("endpoints".to_owned()),
                ..Place::default()
            },
            problem: format!("{} is a pod of another namespace", workload.address),
            remedy: "lead to a Service there, with a ReferenceGrant".to_owned(),
        })
    }

    /// Whether gateways lead to a workload, or the name of a service that has no address itself.
    pub(super) fn is_led_to(&self, workload: &Workload) -> bool {
        let mut own = self.services.near(workload);
        own.any(|it| it.addresses.is_empty() && selects(&it.selector, &workload.labels))
            || self.is_behind_gateway(workload)
    }

    /// True for a workload behind a service that a gateway leads to.
    pub(super) fn is_behind_gateway(&self, workload: &Workload) -> bool {
        let mut services = self.services.near(workload).chain(self.listed.services.near(workload));
        services.any(|service| {
            self.gateways_lead_to(&service.name) && selects(&service.selector, &workload.labels)
        })
    }
}
