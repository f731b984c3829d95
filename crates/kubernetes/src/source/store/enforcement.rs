//! Condition `Enforced` of policies: clients exclude endpoints without a sidecar.

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
        let pods = match object {
            Object::ServicePolicy(policy) if policy.rule.is_inbound() => {
                self.unmeshed_endpoints(policy)
            }
            Object::AccessPolicy(policy) => self.unenforced_access(policy, config),
            _ => return None,
        };
        let (status, reason, message) = match (accepted.status, pods.first()) {
            ("True", None) => ("True", "Enforced", ENFORCED.to_owned()),
            ("True", Some(first)) => {
                let first = &first.name;
                let others = match pods.len() - 1 {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                let message = format!("{LEFT_OUT} {first}{others}");
                ("False", "EndpointsWithoutSidecar", message)
            }
            _ => ("False", "Invalid", "the policy is not in force".to_owned()),
        };
        Some(StatusCondition { word: "Enforced", status, reason, message })
    }

    /// Marks statuses as changed if a change of a pod affects the enforcement of policies.
    pub(super) fn touch_enforcement(&mut self, before: Option<&Workload>, now: Option<&Workload>) {
        let shape =
            |it: &Workload| (it.sidecar, it.labels.clone(), it.account.clone(), it.admission);
        if self.statuses_stale || before.map(shape) == now.map(shape) {
            return;
        }
        let mut versions = before.into_iter().chain(now);
        self.statuses_stale = versions.any(|it| {
            self.is_led_to(it) || self.has_joined(it) && (!it.sidecar || self.has_unmeshed(it))
        });
    }

    /// Returns true if a service of the pod also has a pod without a sidecar.
    fn has_unmeshed(&self, workload: &Workload) -> bool {
        let services = self.services.may_select(workload).chain(self.listed.may_select(workload));
        let mut services = services.filter(|it| matches_selector(&it.selector, &workload.labels));
        services.any(|service| self.endpoints_of(service).any(|it| !it.sidecar))
    }

    /// Returns the endpoints without a sidecar that clients exclude because of a policy, by name.
    fn unmeshed_endpoints<'a>(&'a self, policy: &'a ServicePolicy) -> Vec<&'a Workload> {
        let services: Vec<&Service> = match &policy.scope {
            PolicyScope::Services(parents) => {
                parents.iter().filter_map(|it| self.mesh_service(&it.service)).collect()
            }
            PolicyScope::Namespace => {
                let listed = self.listed.services_of(&policy.name.namespace);
                self.services.of_namespace(&policy.name.namespace).chain(listed).collect()
            }
        };
        self.without_sidecar(&services)
    }

    /// Returns the endpoints without a sidecar that clients exclude because of a policy about accounts: those
    /// of services with a workload at which the policy rejects requests.
    fn unenforced_access<'a>(
        &'a self,
        policy: &'a AccessPolicy,
        config: &MeshConfig,
    ) -> Vec<&'a Workload> {
        let decides = |workload: &&Workload| {
            let action = |action| policy.rules.iter().any(|rule| rule.action == action);
            policy.is_about(&workload.account)
                && match config.mode_of(workload) {
                    DefaultPolicy::DryRun => false,
                    DefaultPolicy::Allow => action(PolicyAction::Deny),
                    DefaultPolicy::Deny => true,
                }
        };
        let services = self.services.of_namespace(&policy.name.namespace);
        let mut services: Vec<&Service> =
            services.chain(self.listed.services_of(&policy.name.namespace)).collect();
        services.retain(|service| self.endpoints_of(service).any(|it| decides(&it)));
        self.without_sidecar(&services)
    }

    /// Sidecars exclude them from services with at least one meshed endpoint and from those to which routes of
    /// others lead, gateways from every service.
    fn without_sidecar<'a>(&'a self, services: &[&'a Service]) -> Vec<&'a Workload> {
        let endpoints = services.iter().flat_map(|service| {
            let has_members = self.endpoints_of(service).any(|it| it.sidecar);
            let others = self.endpoints_of(service).filter(|it| !it.sidecar);
            others.filter(move |it| {
                has_members || self.is_behind_gateway(it) || self.is_behind_route(it)
            })
        });
        let mut found: Vec<&Workload> = endpoints.collect();
        found.sort_by(|one, other| one.name.cmp(&other.name));
        found.dedup_by(|one, other| one.name == other.name);
        found
    }

    /// Returns the pods that a service selects, or the addresses that EndpointSlices list for it.
    pub(super) fn endpoints_of<'a>(
        &'a self,
        service: &'a Service,
    ) -> impl Iterator<Item = &'a Workload> {
        let listed = self.listed_behind(service).filter(|it| !self.is_of_member(it));
        self.pods_behind(service).chain(listed)
    }
}

const ENFORCED: &str = "clients also use endpoints without a sidecar";
const LEFT_OUT: &str =
    "only a sidecar enforces the policy; clients do not use endpoints without one:";
