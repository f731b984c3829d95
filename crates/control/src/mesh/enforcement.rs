//! Finds the services with unmeshed endpoints (workloads without a sidecar). A gateway does not send requests to an
//! unmeshed endpoint with policies that only a sidecar could enforce, so a change of policies affects the
//! configuration of these services.

use std::collections::BTreeSet;

use leno_model::{Service, ServiceName, Workload, WorkloadName};

use super::{AffectedSet, Mesh};

impl Mesh {
    /// Returns the services that select an unmeshed endpoint, by name.
    pub(crate) fn services_of_unmeshed_workload(
        &self,
        workload: &WorkloadName,
    ) -> impl Iterator<Item = &Service> {
        let names = self.unmeshed_workloads.services_by_workload.values_for(workload);
        names.filter_map(|name| self.services.get(name))
    }

    /// Returns the services with unmeshed endpoints, by name.
    pub(crate) fn services_with_unmeshed_workloads(&self) -> impl Iterator<Item = &Service> {
        let names = self.unmeshed_workloads.workloads_by_service.keys();
        names.filter_map(|name| self.services.get(name))
    }

    /// True if a gateway routes to a service, directly or by the routes of another service.
    pub(crate) fn is_reached_by_gateway(&self, service: &ServiceName) -> bool {
        let parents_with_routes = self
            .http_routes
            .parents_of_backend(service)
            .chain(self.tls_routes.parents_of_backend(service))
            .chain(self.gateway_tcp_routes.parents_of_backend(service));
        let parents: BTreeSet<&ServiceName> = parents_with_routes
            .chain(self.traffic_splits.parents_of_backend(service))
            .chain([service])
            .collect();
        let mut backends = self.gateways.values().flat_map(|gateway| gateway.backends());
        backends.any(|backend| parents.contains(&backend.service))
    }

    /// Marks the services with unmeshed endpoints after a change of policies: those for which `is_affected` is true
    /// for at least one workload, with or without a sidecar.
    pub(super) fn mark_unmeshed_services_affected(
        &self,
        is_affected: impl Fn(&Workload) -> bool,
        affected_set: &mut AffectedSet,
    ) {
        let services = self.unmeshed_workloads.workloads_by_service.keys().filter(|service| {
            let mut workloads =
                self.service_workloads(service).chain(self.unmeshed_workloads_of(service));
            workloads.any(&is_affected)
        });
        affected_set.services.extend(services.cloned());
    }

    /// Marks the services that share an unmeshed endpoint with an affected service: a policy of any service that
    /// selects the endpoint may exclude it.
    pub(super) fn mark_shared_services_affected(&self, affected_set: &mut AffectedSet) {
        let unmeshed_workloads =
            affected_set.services.iter().flat_map(|name| self.unmeshed_workloads_of(name));
        let sharing_services: Vec<ServiceName> = unmeshed_workloads
            .flat_map(|workload| {
                self.unmeshed_workloads.services_by_workload.values_for(&workload.name)
            })
            .cloned()
            .collect();
        affected_set.services.extend(sharing_services);
    }
}
