//! Stores gateways and finds their proxies. Also stores the unmeshed workloads (workloads without a sidecar) that
//! gateways and sidecars may send requests to.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_model::{
    GATEWAY_LABEL, Gateway, GatewayName, Name, Service, ServiceName, Workload, WorkloadName,
    gateway_account, is_proxy_of,
};

use super::{AffectedSet, Index, Mesh, service_selects};

/// Unmeshed workloads. They are stored separately from the members of the mesh, because unmeshed workloads do not
/// join, have no proxy configuration, and are neither counted nor named by policies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct UnmeshedWorkloads {
    by_name: BTreeMap<WorkloadName, Workload>,
    /// The unmeshed workloads that each service selects.
    pub(super) workloads_by_service: Index<ServiceName, WorkloadName>,
    /// The services that select each unmeshed workload.
    pub(super) services_by_workload: Index<WorkloadName, ServiceName>,
}

impl Mesh {
    /// Returns the gateway that a workload is a proxy of; `None` for all other workloads.
    pub(crate) fn gateway_of(&self, workload: &Workload) -> Option<&Arc<Gateway>> {
        let name = Name::new(workload.labels.get(GATEWAY_LABEL)?).ok()?;
        let namespace = workload.name.namespace.clone();
        let gateway = self.gateways.get(&GatewayName { namespace, name })?;
        is_proxy_of(&gateway.name, workload).then_some(gateway)
    }

    /// Returns the workloads of a service that have a sidecar, by name. Gateway proxies are members without a sidecar.
    pub(crate) fn workloads_with_sidecar(
        &self,
        service: &ServiceName,
    ) -> impl Iterator<Item = &Workload> {
        self.service_workloads(service).filter(|workload| self.gateway_of(workload).is_none())
    }

    /// Returns the unmeshed workloads of a service, by name.
    pub(crate) fn unmeshed_workloads_of(
        &self,
        service: &ServiceName,
    ) -> impl Iterator<Item = &Workload> {
        let UnmeshedWorkloads { by_name, workloads_by_service, .. } = &self.unmeshed_workloads;
        workloads_by_service.values_for(service).filter_map(|name| by_name.get(name))
    }

    /// Returns all unmeshed workloads, by name.
    #[cfg(test)]
    pub(super) fn unmeshed_workloads(&self) -> impl Iterator<Item = &Workload> {
        self.unmeshed_workloads.by_name.values()
    }

    /// Adds, replaces or removes (`None`) a gateway. Marks its proxies, their services and their addresses as
    /// affected.
    pub(super) fn set_gateway(
        &mut self,
        name: &GatewayName,
        new: Option<Gateway>,
        affected_set: &mut AffectedSet,
    ) {
        let is_same = self.gateways.get(name).map(|old| &**old) == new.as_ref();
        match new {
            _ if is_same => return,
            Some(new) => drop(self.gateways.insert(name.clone(), Arc::new(new))),
            None => drop(self.gateways.remove(name)),
        }
        let account = gateway_account(name);
        let workload_names = account.iter().flat_map(|account| self.account_workloads(account));
        let proxies = workload_names
            .filter_map(|workload_name| self.workload(workload_name))
            .filter(|workload| is_proxy_of(name, workload));
        for proxy in proxies {
            affected_set.workloads.insert(proxy.name.clone());
            // The addresses of the proxy join or leave the mesh.
            affected_set
                .services
                .extend(self.services_of(&proxy.name).map(|service| service.name.clone()));
            self.mark_addresses_affected(&proxy.name, affected_set);
        }
    }

    /// Adds, replaces or removes (`None`) an unmeshed workload. Marks the services that select it as affected.
    pub(super) fn set_unmeshed_workload(
        &mut self,
        name: &WorkloadName,
        new: Option<Workload>,
        affected_set: &mut AffectedSet,
    ) {
        let old = self.unmeshed_workloads.by_name.get(name);
        if old == new.as_ref() {
            return;
        }
        // Without a change of labels, such as when only the readiness changes, the same services select the workload.
        if let (Some(old), Some(new)) = (old, &new)
            && old.labels == new.labels
        {
            let services: Vec<ServiceName> =
                self.unmeshed_workloads.services_by_workload.values_for(name).cloned().collect();
            self.unmeshed_workloads.by_name.insert(name.clone(), new.clone());
            services.iter().for_each(|service| self.mark_service_affected(service, affected_set));
            return;
        }
        self.unmeshed_workloads.by_name.remove(name);
        let mut services = self.unmeshed_workloads.services_by_workload.remove_key(name);
        for service in &services {
            self.unmeshed_workloads.workloads_by_service.remove(service, name);
        }
        if let Some(new) = new {
            for service in self.services.values().filter(|service| service_selects(service, &new)) {
                self.unmeshed_workloads.workloads_by_service.insert(&service.name, name);
                self.unmeshed_workloads.services_by_workload.insert(name, &service.name);
                services.insert(service.name.clone());
            }
            self.unmeshed_workloads.by_name.insert(name.clone(), new);
        }
        for service in &services {
            self.mark_service_affected(service, affected_set);
        }
    }

    /// Updates the unmeshed workloads that a service selects, after the service was added, changed or removed.
    pub(super) fn select_unmeshed_workloads(&mut self, name: &ServiceName, new: Option<&Service>) {
        let UnmeshedWorkloads { by_name, workloads_by_service, services_by_workload } =
            &mut self.unmeshed_workloads;
        for workload in workloads_by_service.remove_key(name) {
            services_by_workload.remove(&workload, name);
        }
        let Some(new) = new else { return };
        for workload in by_name.values().filter(|workload| service_selects(new, workload)) {
            workloads_by_service.insert(name, &workload.name);
            services_by_workload.insert(&workload.name, name);
        }
    }
}
