//! Access policies, by the namespace that they are about.

use std::collections::BTreeMap;

use leno_model::{
    AccessPolicy, Name, PolicyAction, PolicyName, RequestNeed, ServiceAccount, ServiceName,
    TrafficMode, Workload,
};

use super::{Index, Mesh, Touched};

/// All access policies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct AccessPolicies {
    by_name: BTreeMap<PolicyName, AccessPolicy>,
    by_namespace: Index<Name, PolicyName>,
}

impl AccessPolicies {
    pub(super) fn has(&self, name: &PolicyName) -> bool {
        self.by_name.contains_key(name)
    }
}

impl Mesh {
    /// All access policies, by name.
    pub(crate) fn access_policies(&self) -> impl ExactSizeIterator<Item = &AccessPolicy> {
        self.access_policies.by_name.values()
    }

    /// The access policies that are about a workload, by name.
    pub(crate) fn access_policies_of(
        &self,
        workload: &Workload,
    ) -> impl Iterator<Item = &AccessPolicy> {
        let AccessPolicies { by_name, by_namespace } = &self.access_policies;
        let names = by_namespace.of(&workload.account.namespace);
        let policies = names.filter_map(|name| by_name.get(name));
        policies.filter(|policy| policy.is_about(&workload.account))
    }

    /// Whether an access policy lets clients under this account call a workload in some way.
    pub(crate) fn lets_call(&self, client: &ServiceAccount, workload: &Workload) -> bool {
        self.access_policies_of(workload).any(|policy| policy.allows_something_to(client))
    }

    /// Whether an access policy decides at some workload.
    pub(crate) fn is_policy_in_force(&self, policy: &AccessPolicy) -> bool {
        let denies = policy.rules.iter().any(|rule| rule.action == PolicyAction::Deny);
        let about = |workload: &&Workload| policy.is_about(&workload.account);
        let mut modes = self.workloads().filter(about).map(|workload| self.mode_of(workload));
        modes.any(|mode| denies || mode != TrafficMode::Permissive)
    }

    pub(super) fn set_access_policy(
        &mut self,
        name: &PolicyName,
        new: Option<AccessPolicy>,
        touched: &mut Touched,
    ) {
        let old = self.access_policies.by_name.remove(name);
        self.access_policies.by_namespace.remove(&name.namespace, name);
        if old != new {
            for policy in old.iter().chain(&new) {
                self.touch_policy(policy, touched);
            }
        }
        if let Some(new) = new {
            self.access_policies.by_namespace.insert(&name.namespace, name);
            self.access_policies.by_name.insert(name.clone(), new);
        }
    }

    /// What it is about decides differently; and clients whom it lets call a strict workload may
    /// be any that its wildcards fit. A rule that looks at requests changes the protocol of ports without a declared one.
    fn touch_policy(&self, policy: &AccessPolicy, touched: &mut Touched) {
        let about = |workload: &&Workload| policy.is_about(&workload.account);
        self.touch_unenforced(|workload| policy.is_about(&workload.account), touched);
        let looks_at_requests =
            policy.rules.iter().any(|rule| rule.request_need() != RequestNeed::None);
        for workload in self.workloads().filter(about) {
            touched.workloads.insert(workload.name.clone());
            if looks_at_requests || self.mode_of(workload) == TrafficMode::Strict {
                let services = self.in_front_of(&workload.name).map(|service| &service.name);
                let services: Vec<ServiceName> = services.cloned().collect();
                for service in &services {
                    self.touch_service(service, touched);
                }
            }
        }
    }
}
