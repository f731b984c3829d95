//! Services with endpoints without a sidecar, which a gateway views differently when policies change.

use std::collections::BTreeSet;

use leno_model::{Service, ServiceName, Workload, WorkloadName};

use super::{Mesh, Touched};

impl Mesh {
    /// The services that select an endpoint without a sidecar, by name.
    pub(crate) fn in_front_of_bystander(
        &self,
        workload: &WorkloadName,
    ) -> impl Iterator<Item = &Service> {
        let names = self.bystanders.selecting.of(workload);
        names.filter_map(|name| self.services.get(name))
    }

    /// The services with endpoints without a sidecar, by name.
    pub(crate) fn services_with_bystanders(&self) -> impl Iterator<Item = &Service> {
        let names = self.bystanders.selected.keys();
        names.filter_map(|name| self.services.get(name))
    }

    /// True when a gateway leads to a service, directly or by the routes of another one.
    pub(crate) fn is_led_to(&self, service: &ServiceName) -> bool {
        let routed = self.routes.leading_to(service).chain(self.tls_routes.leading_to(service));
        let routed = routed.chain(self.gateway_tcp_routes.leading_to(service));
        let parents: BTreeSet<&ServiceName> =
            routed.chain(self.splits.leading_to(service)).chain([service]).collect();
        let mut backends = self.gateways.values().flat_map(|gateway| gateway.backends());
        backends.any(|backend| parents.contains(&backend.service))
    }

    /// The services with endpoints without a sidecar, where policies about some workloads change.
    pub(super) fn touch_unenforced(
        &self,
        is_about: impl Fn(&Workload) -> bool,
        touched: &mut Touched,
    ) {
        let services = self.bystanders.selected.keys().filter(|service| {
            let mut all = self.behind(service).chain(self.bystanders_behind(service));
            all.any(&is_about)
        });
        touched.services.extend(services.cloned());
    }

    /// An endpoint without a sidecar is left out because of the policies of all services that select it: when one of these
    /// changes, so do the others.
    pub(super) fn touch_beside(&self, touched: &mut Touched) {
        let bystanders = touched.services.iter().flat_map(|name| self.bystanders_behind(name));
        let beside = bystanders.flat_map(|workload| self.bystanders.selecting.of(&workload.name));
        let beside: Vec<ServiceName> = beside.cloned().collect();
        touched.services.extend(beside);
    }
}
