//! Policies that only a sidecar enforces, and the endpoints without a sidecar that gateways leave out because of them.

use std::collections::BTreeSet;

use leno_model::{ObjectKey, PolicyAction, ServiceName, TrafficMode, Workload, WorkloadName};

use super::{Mesh, Touched};

impl Mesh {
    /// The policies about a service port that the sidecar of an endpoint enforces. Gateways send no request to an
    /// endpoint without a sidecar while there is one: limits and guards of the service, and access policies about the account of any
    /// workload behind it.
    pub(crate) fn needing_sidecar(&self, service: &ServiceName, port: u16) -> BTreeSet<ObjectKey> {
        let limits = self.limits(service, port).map(|limits| limits.policy);
        let guards = self.guards(service, port).into_iter().map(|guard| guard.policy);
        let of_service = limits.into_iter().chain(guards).map(ObjectKey::ServicePolicy);
        let all = self.behind(service).chain(self.bystanders_behind(service));
        of_service.chain(all.flat_map(|workload| self.access_needing_sidecar(workload))).collect()
    }

    /// The same, of the policies about one account. In mode `audit` no access policy rejects anything; in mode
    /// `permissive` those that allow decide nothing.
    fn access_needing_sidecar(&self, workload: &Workload) -> impl Iterator<Item = ObjectKey> {
        let mode = self.mode_of(workload);
        let decides = move |action: PolicyAction| match mode {
            TrafficMode::Audit => false,
            TrafficMode::Permissive => action == PolicyAction::Deny,
            TrafficMode::Strict => true,
        };
        let access = self.access_policies_of(workload);
        let access =
            access.filter(move |policy| policy.rules.iter().any(|rule| decides(rule.action)));
        let access = access.map(|policy| ObjectKey::AccessPolicy(policy.name.clone()));
        let targets = self.targets_of(&workload.account);
        let targets = targets.filter(move |_| decides(PolicyAction::Allow));
        access.chain(targets.map(|target| ObjectKey::TrafficTarget(target.name.clone())))
    }

    /// The endpoints without a sidecar that gateways leave out because of a policy, by name. Empty where no gateway leads.
    pub(crate) fn left_out(&self, policy: &ObjectKey) -> BTreeSet<&WorkloadName> {
        let services = self.bystanders.selected.keys().filter(|service| self.is_led_to(service));
        let needs = |service: &&ServiceName| {
            let mut ports = self.service(service).into_iter().flat_map(|service| &service.ports);
            ports.any(|port| self.needing_sidecar(service, port.port).contains(policy))
        };
        let bystanders = services.filter(needs).flat_map(|service| self.bystanders_behind(service));
        bystanders.map(|workload| &workload.name).collect()
    }

    /// Whether a gateway leads to a service, directly or by the routes of another one.
    fn is_led_to(&self, service: &ServiceName) -> bool {
        let routed = self.routes.leading_to(service).chain(self.tls_routes.leading_to(service));
        let routed = routed.chain(self.gateway_tcp_routes.leading_to(service));
        let parents: BTreeSet<&ServiceName> =
            routed.chain(self.splits.leading_to(service)).chain([service]).collect();
        let mut backends = self.gateways.values().flat_map(|gateway| gateway.backends());
        backends.any(|backend| parents.contains(&backend.service))
    }

    /// The services that gateways see otherwise when policies about some workloads change: those with endpoints
    /// without a sidecar.
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
}
