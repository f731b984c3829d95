//! Indexes access policies by the namespace that they apply to.

use std::collections::BTreeMap;

use leno_model::{
    AccessPolicy, DefaultPolicy, Name, PolicyAction, PolicyName, RequestNeed, ServiceAccount,
    ServiceName, Workload,
};

use super::{AffectedSet, Index, Mesh};

/// All access policies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct AccessPolicies {
    by_name: BTreeMap<PolicyName, AccessPolicy>,
    by_namespace: Index<Name, PolicyName>,
}

impl AccessPolicies {
    pub(super) fn has_policy(&self, name: &PolicyName) -> bool {
        self.by_name.contains_key(name)
    }
}

impl Mesh {
    /// Returns all access policies, by name.
    pub(crate) fn access_policies(&self) -> impl ExactSizeIterator<Item = &AccessPolicy> {
        self.access_policies.by_name.values()
    }

    /// Returns the access policies that apply to a workload, by name.
    pub(crate) fn access_policies_of(
        &self,
        workload: &Workload,
    ) -> impl Iterator<Item = &AccessPolicy> {
        let AccessPolicies { by_name, by_namespace } = &self.access_policies;
        let names = by_namespace.values_for(&workload.account.namespace);
        let policies = names.filter_map(|name| by_name.get(name));
        policies.filter(|policy| policy.selects_account(&workload.account))
    }

    /// True if an access policy allows some request of this account to a workload.
    pub(crate) fn allows_client(&self, client: &ServiceAccount, workload: &Workload) -> bool {
        self.access_policies_of(workload).any(|policy| policy.allows_any_from(client))
    }

    /// True if an access policy affects requests to some workload: with the default policy `allow`, only deny
    /// rules do.
    pub(crate) fn is_policy_enforced(&self, policy: &AccessPolicy) -> bool {
        let denies = policy.rules.iter().any(|rule| rule.action == PolicyAction::Deny);
        let is_subject = |workload: &&Workload| policy.selects_account(&workload.account);
        let mut default_policies =
            self.workloads().filter(is_subject).map(|workload| self.default_policy_of(workload));
        default_policies.any(|default_policy| denies || default_policy != DefaultPolicy::Allow)
    }

    /// Adds, replaces or removes (`None`) an access policy.
    pub(super) fn set_access_policy(
        &mut self,
        name: &PolicyName,
        new: Option<AccessPolicy>,
        affected_set: &mut AffectedSet,
    ) {
        let old = self.access_policies.by_name.remove(name);
        self.access_policies.by_namespace.remove(&name.namespace, name);
        if old != new {
            for policy in old.iter().chain(&new) {
                self.mark_policy_affected(policy, affected_set);
            }
        }
        if let Some(new) = new {
            self.access_policies.by_namespace.insert(&name.namespace, name);
            self.access_policies.by_name.insert(name.clone(), new);
        }
    }

    /// Marks the workloads that a policy applies to, and their services in two cases. Clients that match a wildcard of
    /// the policy may gain or lose access to a workload that denies by default. A rule that matches requests changes
    /// the protocol of ports without a declared one.
    fn mark_policy_affected(&self, policy: &AccessPolicy, affected_set: &mut AffectedSet) {
        let is_subject = |workload: &&Workload| policy.selects_account(&workload.account);
        self.mark_unmeshed_services_affected(
            |workload| policy.selects_account(&workload.account),
            affected_set,
        );
        let inspects_requests =
            policy.rules.iter().any(|rule| rule.request_need() != RequestNeed::None);
        for workload in self.workloads().filter(is_subject) {
            affected_set.workloads.insert(workload.name.clone());
            if inspects_requests || self.default_policy_of(workload) == DefaultPolicy::Deny {
                let services: Vec<ServiceName> = self
                    .services_of(&workload.name)
                    .map(|service| &service.name)
                    .cloned()
                    .collect();
                for service in &services {
                    self.mark_service_affected(service, affected_set);
                }
            }
        }
    }
}
