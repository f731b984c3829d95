//! The policies of services, by whom they are about.

use std::collections::{BTreeMap, BTreeSet};

use leno_model::{
    Name, PolicyScope, PortGuard, PortLimits, ServiceName, ServicePolicy, ServicePolicyName,
    Treatment,
};

use super::{Index, Mesh, Touched};

/// All policies of services.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Policies {
    by_name: BTreeMap<ServicePolicyName, ServicePolicy>,
    by_service: Index<ServiceName, ServicePolicyName>,
    by_namespace: Index<Name, ServicePolicyName>,
}

impl Policies {
    pub(super) fn all(&self) -> impl Iterator<Item = &ServicePolicy> {
        self.by_name.values()
    }

    pub(super) fn has(&self, name: &ServicePolicyName) -> bool {
        self.by_name.contains_key(name)
    }

    /// The policies that may be about a service.
    fn of(&self, service: &ServiceName) -> impl Iterator<Item = &ServicePolicy> {
        let names = self.by_service.of(service).chain(self.by_namespace.of(&service.namespace));
        names.filter_map(|name| self.by_name.get(name))
    }

    /// Takes a policy out, and says what it was.
    fn take(&mut self, name: &ServicePolicyName) -> Option<ServicePolicy> {
        let old = self.by_name.remove(name)?;
        for service in services(&old) {
            self.by_service.remove(service, name);
        }
        self.by_namespace.remove(&name.namespace, name);
        Some(old)
    }

    fn put(&mut self, policy: ServicePolicy) {
        for service in services(&policy) {
            self.by_service.insert(service, &policy.name);
        }
        if policy.scope == PolicyScope::Namespace {
            self.by_namespace.insert(&policy.name.namespace, &policy.name);
        }
        self.by_name.insert(policy.name.clone(), policy);
    }
}

impl Mesh {
    /// What policies say about a port of a service.
    pub(crate) fn treatment(&self, service: &ServiceName, port: u16) -> Treatment {
        Treatment::of(self.policies.of(service), service, port)
    }

    /// What policies say may come in at a port of a service.
    pub(crate) fn limits(&self, service: &ServiceName, port: u16) -> Option<PortLimits> {
        PortLimits::of(self.policies.of(service), service, port)
    }

    /// What policies say else decides about requests at a port of a service.
    pub(crate) fn guards(&self, service: &ServiceName, port: u16) -> Vec<PortGuard> {
        PortGuard::of(self.policies.of(service), service, port)
    }

    pub(super) fn set_policy(
        &mut self,
        name: &ServicePolicyName,
        new: Option<ServicePolicy>,
        touched: &mut Touched,
    ) {
        let old = self.policies.take(name);
        let differs = old != new;
        let is_inbound = old.iter().chain(&new).any(|policy| policy.rule.is_inbound());
        let mut about = BTreeSet::new();
        for policy in old.iter().chain(&new) {
            about.extend(services(policy).cloned());
            if policy.scope == PolicyScope::Namespace {
                let all = self.services.keys();
                about.extend(all.filter(|s| s.namespace == name.namespace).cloned());
            }
        }
        if let Some(new) = new {
            self.policies.put(new);
        }
        if differs {
            if is_inbound {
                let behind = about.iter().flat_map(|service| self.selected.of(service));
                touched.workloads.extend(behind.cloned());
            }
            touched.services.extend(about);
        }
    }
}

/// The services that a policy names.
fn services(policy: &ServicePolicy) -> impl Iterator<Item = &ServiceName> {
    let targets = match &policy.scope {
        PolicyScope::Services(targets) => targets.as_slice(),
        PolicyScope::Namespace => &[],
    };
    targets.iter().map(|target| &target.service)
}
