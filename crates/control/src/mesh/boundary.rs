//! Indexes the policies at the boundary of the mesh: ingress policies by namespace and egress policies by account.
//! Also stores the certificates of external principals.

use std::collections::{BTreeMap, BTreeSet};

use leno_model::{
    AccessCert, EgressPolicy, IngressBackend, IngressName, IngressPolicy, IngressSource, Name,
    PolicyName, RouteGroupName, ServiceAccount, ServiceName, WorkloadName,
};

use super::{AffectedSet, Index, Mesh};

/// All ingress and egress policies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct IngressAndEgress {
    /// The ingress policies. Of the policies of a namespace that open a port, the first by precedence applies.
    ingress: BTreeMap<IngressName, IngressPolicy>,
    ingress_by_namespace: Index<Name, IngressName>,
    egress: BTreeMap<PolicyName, EgressPolicy>,
    egress_by_source: Index<ServiceAccount, PolicyName>,
    /// The certificates of external principals; they are not compiled into configurations.
    access_certs: BTreeMap<PolicyName, AccessCert>,
}

impl IngressAndEgress {
    /// True if an ingress policy of this name exists.
    pub(super) fn has_ingress(&self, name: &IngressName) -> bool {
        self.ingress.contains_key(name)
    }
}

/// Queries of ingress and egress policies.
impl Mesh {
    /// Returns all ingress policies, by name.
    pub(crate) fn ingress_policies(&self) -> impl ExactSizeIterator<Item = &IngressPolicy> {
        self.boundary.ingress.values()
    }

    /// Returns the ingress policies of a namespace, the oldest first, then by name.
    pub(crate) fn ingress_in(&self, namespace: &Name) -> impl Iterator<Item = &IngressPolicy> {
        let names = self.boundary.ingress_by_namespace.values_for(namespace);
        let mut policies: Vec<&IngressPolicy> =
            names.filter_map(|name| self.boundary.ingress.get(name)).collect();
        policies.sort_by_key(|policy| policy.precedence());
        policies.into_iter()
    }

    /// Returns the name of the policy that opens the port of `backend` with precedence over `policy`; `None` if there
    /// is no such policy.
    pub(crate) fn preceding_ingress(
        &self,
        policy: &IngressPolicy,
        backend: &IngressBackend,
    ) -> Option<&IngressName> {
        let is_same_backend = |other: &IngressBackend| {
            (&other.service, other.port) == (&backend.service, backend.port)
        };
        let mut preceding = self
            .ingress_in(&policy.name.namespace)
            .take_while(|other| other.precedence() < policy.precedence());
        preceding.find(|other| other.backends.iter().any(is_same_backend)).map(|other| &other.name)
    }

    /// Returns all egress policies, by name.
    pub(crate) fn egress_policies(&self) -> impl ExactSizeIterator<Item = &EgressPolicy> {
        self.boundary.egress.values()
    }

    /// Returns all certificates of external principals, by name.
    pub(crate) fn access_certs(&self) -> impl ExactSizeIterator<Item = &AccessCert> {
        self.boundary.access_certs.values()
    }

    /// Returns the egress policies of an account, by name.
    pub(crate) fn egress_of(
        &self,
        account: &ServiceAccount,
    ) -> impl Iterator<Item = &EgressPolicy> {
        let names = self.boundary.egress_by_source.values_for(account);
        names.filter_map(|name| self.boundary.egress.get(name))
    }
}

/// Changes of ingress and egress policies. Each `set_` method adds, replaces or removes (`None`) an object.
impl Mesh {
    pub(super) fn set_access_cert(&mut self, name: &PolicyName, new: Option<AccessCert>) {
        match new {
            Some(new) => self.boundary.access_certs.insert(name.clone(), new),
            None => self.boundary.access_certs.remove(name),
        };
    }

    pub(super) fn set_ingress(
        &mut self,
        name: &IngressName,
        new: Option<IngressPolicy>,
        affected_set: &mut AffectedSet,
    ) {
        let old = self.boundary.ingress.remove(name);
        self.boundary.ingress_by_namespace.remove(&name.namespace, name);
        if old != new {
            for policy in old.iter().chain(&new) {
                affected_set.workloads.extend(self.backend_workloads(policy).cloned());
            }
        }
        if let Some(new) = new {
            self.boundary.ingress_by_namespace.insert(&name.namespace, name);
            self.boundary.ingress.insert(name.clone(), new);
        }
    }

    pub(super) fn set_egress(
        &mut self,
        name: &PolicyName,
        new: Option<EgressPolicy>,
        affected_set: &mut AffectedSet,
    ) {
        let old = self.boundary.egress.remove(name);
        for source in old.iter().flat_map(|old| &old.sources) {
            self.boundary.egress_by_source.remove(source, name);
        }
        if old != new {
            for source in old.iter().chain(&new).flat_map(|policy| &policy.sources) {
                self.mark_account_affected(source, affected_set);
            }
        }
        if let Some(new) = new {
            for source in &new.sources {
                self.boundary.egress_by_source.insert(source, name);
            }
            self.boundary.egress.insert(name.clone(), new);
        }
    }

    /// Marks workloads with ingress rules that name a service as a source, after the workloads of that service
    /// changed.
    pub(super) fn mark_ingress_affected(&self, affected_set: &mut AffectedSet) {
        if self.boundary.ingress.is_empty() {
            return;
        }
        // A change of a workload's address does not mark the workload's services as affected, because the services
        // stay the same for clients. But ingress rules contain the addresses.
        let services_of_changed_workloads = affected_set
            .workloads
            .iter()
            .flat_map(|name| self.services_by_workload.values_for(name));
        let changed_services: BTreeSet<&ServiceName> =
            affected_set.services.iter().chain(services_of_changed_workloads).collect();
        let is_affected = |source: &IngressSource| match source {
            IngressSource::Service(service) => changed_services.contains(service),
            IngressSource::Range(_) | IngressSource::Principal(_) | IngressSource::Named(_) => {
                false
            }
        };
        let policies = self.boundary.ingress.values();
        let workloads: BTreeSet<WorkloadName> = policies
            .filter(|policy| policy.sources.iter().any(is_affected))
            .flat_map(|policy| self.backend_workloads(policy).cloned())
            .collect();
        affected_set.workloads.extend(workloads);
    }

    /// Marks workloads with ingress or egress rules that refer to this `HTTPRouteGroup`.
    pub(super) fn mark_boundary_users_affected(
        &self,
        group: &RouteGroupName,
        affected_set: &mut AffectedSet,
    ) {
        for policy in self.boundary.ingress.values().filter(|policy| policy.groups.contains(group))
        {
            affected_set.workloads.extend(self.backend_workloads(policy).cloned());
        }
        for policy in self.boundary.egress.values().filter(|policy| policy.groups.contains(group)) {
            policy
                .sources
                .iter()
                .for_each(|source| self.mark_account_affected(source, affected_set));
        }
    }

    fn backend_workloads<'a>(
        &'a self,
        policy: &'a IngressPolicy,
    ) -> impl Iterator<Item = &'a WorkloadName> {
        let namespace = &policy.name.namespace;
        policy.backends.iter().flat_map(|backend| {
            let (namespace, name) = (namespace.clone(), backend.service.clone());
            self.workloads_by_service
                .values_for(&ServiceName { namespace, name })
                .collect::<Vec<_>>()
        })
    }
}
