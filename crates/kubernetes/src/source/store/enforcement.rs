//! Computes the condition `Enforced` of policies. If the condition is false, it names an endpoint without a
//! sidecar, which clients exclude because nothing enforces the policy there.

use leno_model::{
    AccessPolicy, DefaultPolicy, MeshConfig, Object, PolicyAction, PolicyScope, Service,
    ServicePolicy, Workload,
};

use super::ObjectStore;
use crate::read::matches_selector;
use crate::status::StatusCondition;

impl ObjectStore {
    /// Returns the condition `Enforced` of a policy that sidecars enforce, or `None` for other objects.
    /// `accepted` is its `Accepted` condition.
    pub(super) fn enforced_condition(
        &self,
        object: &Object,
        config: &MeshConfig,
        accepted: &StatusCondition,
    ) -> Option<StatusCondition> {
        let excluded_endpoints = match object {
            Object::ServicePolicy(policy) if policy.rule.is_inbound() => {
                self.excluded_by_service_policy(policy)
            }
            Object::AccessPolicy(policy) => self.excluded_by_access_policy(policy, config),
            _ => return None,
        };
        let (status, reason, message) = match (accepted.status, excluded_endpoints.first()) {
            ("True", None) => ("True", "Enforced", ENFORCED_MESSAGE.to_owned()),
            ("True", Some(first_endpoint)) => {
                let first_endpoint = &first_endpoint.name;
                let remainder = match excluded_endpoints.len() - 1 {
                    0 => String::new(),
                    count => format!(" and {count} more"),
                };
                let message = format!("{EXCLUDED_MESSAGE} {first_endpoint}{remainder}");
                ("False", "EndpointsWithoutSidecar", message)
            }
            _ => ("False", "Invalid", "the policy is not in force".to_owned()),
        };
        Some(StatusCondition { name: "Enforced", status, reason, message })
    }

    /// Marks statuses as changed if a change of a pod affects the enforcement of policies.
    pub(super) fn mark_enforcement(
        &mut self,
        old_pod: Option<&Workload>,
        new_pod: Option<&Workload>,
    ) {
        let relevant_fields = |workload: &Workload| {
            (
                workload.sidecar,
                workload.labels.clone(),
                workload.account.clone(),
                workload.admission,
            )
        };
        if self.statuses_stale || old_pod.map(relevant_fields) == new_pod.map(relevant_fields) {
            return;
        }
        let mut versions = old_pod.into_iter().chain(new_pod);
        self.statuses_stale = versions.any(|workload| {
            self.is_routed_to(workload)
                || self.has_joined(workload)
                    && (!workload.sidecar || self.has_unmeshed_sibling(workload))
        });
    }

    /// Returns true if a service of the pod also has a pod without a sidecar.
    fn has_unmeshed_sibling(&self, workload: &Workload) -> bool {
        let services =
            self.services.may_select(workload).chain(self.selectorless.may_select(workload));
        let mut services =
            services.filter(|service| matches_selector(&service.selector, &workload.labels));
        services.any(|service| self.endpoints_of(service).any(|workload| !workload.sidecar))
    }

    /// Returns the endpoints without a sidecar that clients exclude because of a policy, by name.
    fn excluded_by_service_policy<'a>(&'a self, policy: &'a ServicePolicy) -> Vec<&'a Workload> {
        let services: Vec<&Service> = match &policy.scope {
            PolicyScope::Services(parents) => {
                parents.iter().filter_map(|parent| self.mesh_service(&parent.service)).collect()
            }
            PolicyScope::Namespace => {
                let selectorless = self.selectorless.services_in(&policy.name.namespace);
                self.services.in_namespace(&policy.name.namespace).chain(selectorless).collect()
            }
        };
        self.excluded_endpoints(&services)
    }

    /// Returns the endpoints without a sidecar that clients exclude because of a policy about accounts: the
    /// endpoints of services with a workload at which the policy rejects requests.
    fn excluded_by_access_policy<'a>(
        &'a self,
        policy: &'a AccessPolicy,
        config: &MeshConfig,
    ) -> Vec<&'a Workload> {
        let rejects_requests = |workload: &&Workload| {
            let has_action = |action| policy.rules.iter().any(|rule| rule.action == action);
            policy.selects_account(&workload.account)
                && match config.default_policy_of(workload) {
                    DefaultPolicy::DryRun => false,
                    DefaultPolicy::Allow => has_action(PolicyAction::Deny),
                    DefaultPolicy::Deny => true,
                }
        };
        let services = self.services.in_namespace(&policy.name.namespace);
        let mut services: Vec<&Service> =
            services.chain(self.selectorless.services_in(&policy.name.namespace)).collect();
        services.retain(|service| {
            self.endpoints_of(service).any(|workload| rejects_requests(&workload))
        });
        self.excluded_endpoints(&services)
    }

    /// Returns the endpoints without a sidecar that clients exclude. Sidecars exclude them from services with
    /// at least one meshed endpoint, and from services to which routes of other services route. Gateways
    /// exclude them from every service.
    fn excluded_endpoints<'a>(&'a self, services: &[&'a Service]) -> Vec<&'a Workload> {
        let endpoints = services.iter().flat_map(|service| {
            let has_meshed_endpoint = self.endpoints_of(service).any(|workload| workload.sidecar);
            let unmeshed_endpoints =
                self.endpoints_of(service).filter(|workload| !workload.sidecar);
            unmeshed_endpoints.filter(move |workload| {
                has_meshed_endpoint
                    || self.is_behind_gateway(workload)
                    || self.is_behind_route(workload)
            })
        });
        let mut endpoints: Vec<&Workload> = endpoints.collect();
        endpoints.sort_by(|left, right| left.name.cmp(&right.name));
        endpoints.dedup_by(|left, right| left.name == right.name);
        endpoints
    }

    /// Returns the pods that a service selects, or the addresses that EndpointSlices list for it.
    pub(super) fn endpoints_of<'a>(
        &'a self,
        service: &'a Service,
    ) -> impl Iterator<Item = &'a Workload> {
        let listed =
            self.listed_endpoints_of(service).filter(|workload| !self.is_meshed_pod(workload));
        self.pods_behind(service).chain(listed)
    }
}

/// The message of the condition for a policy that each endpoint enforces.
const ENFORCED_MESSAGE: &str = "clients exclude no endpoints for lack of a sidecar";
/// The message of the condition for a policy with excluded endpoints, followed by their names.
const EXCLUDED_MESSAGE: &str =
    "only a sidecar enforces the policy; clients do not use endpoints without one:";
