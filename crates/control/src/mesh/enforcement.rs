//! Services with unmeshed endpoints: a gateway's view of them depends on policies.

use std::collections::BTreeSet;

use leno_model::{Service, ServiceName, Workload, WorkloadName};

use super::{AffectedSet, Mesh};

impl Mesh {
    /// Returns the services that select an unmeshed endpoint, by name.
    pub(crate) fn in_front_of_unmeshed_workload(
        &self,
        workload: &WorkloadName,
    ) -> impl Iterator<Item = &Service> {
        let names = self.unmeshed_workloads.selecting.values_for(workload);
        names.filter_map(|name| self.services.get(name))
    }

    /// Returns the services with unmeshed endpoints, by name.
    pub(crate) fn services_with_unmeshed_workloads(&self) -> impl Iterator<Item = &Service> {
        let names = self.unmeshed_workloads.selected.keys();
        names.filter_map(|name| self.services.get(name))
    }

    /// True if a gateway routes to a service, directly or by the routes of another one.
    pub(crate) fn is_led_to(&self, service: &ServiceName) -> bool {
        let routed = self.routes.leading_to(service).chain(self.tls_routes.leading_to(service));
        let routed = routed.chain(self.gateway_tcp_routes.leading_to(service));
        let parents: BTreeSet<&ServiceName> =
            routed.chain(self.splits.leading_to(service)).chain([service]).collect();
        let mut backends = self.gateways.values().flat_map(|gateway| gateway.backends());
        backends.any(|backend| parents.contains(&backend.service))
    }

    /// Marks the services with unmeshed endpoints after a change of policies for some workloads.
    pub(super) fn touch_unenforced(
        &self,
        is_about: impl Fn(&Workload) -> bool,
        affected_set: &mut AffectedSet,
    ) {
        let services = self.unmeshed_workloads.selected.keys().filter(|service| {
            let mut all =
                self.service_workloads(service).chain(self.unmeshed_workloads_behind(service));
            all.any(&is_about)
        });
        affected_set.services.extend(services.cloned());
    }

    /// An unmeshed endpoint is left out because of the policies of all services that select it: a change of one
    /// affects the others.
    pub(super) fn touch_beside(&self, affected_set: &mut AffectedSet) {
        let unmeshed_workloads =
            affected_set.services.iter().flat_map(|name| self.unmeshed_workloads_behind(name));
        let beside = unmeshed_workloads
            .flat_map(|workload| self.unmeshed_workloads.selecting.values_for(&workload.name));
        let beside: Vec<ServiceName> = beside.cloned().collect();
        affected_set.services.extend(beside);
    }
}
