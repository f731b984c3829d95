//! Holds the data that the statuses of many objects share, collected once for each update.

use std::collections::{BTreeMap, BTreeSet};

use leno_model::{MeshConfig, Name, PolicyScope, ReferenceGrant, ServiceName, ServicePolicy};

use crate::source::store::conflicts::ConflictIndex;

/// The data for the statuses of one update.
#[derive(Default)]
pub(super) struct StatusContext<'a> {
    pub(super) grants: Vec<&'a ReferenceGrant>,
    /// The policies that target services, by service.
    policies_by_service: BTreeMap<&'a ServiceName, Vec<&'a ServicePolicy>>,
    /// The policies that target a whole namespace.
    policies_by_namespace: BTreeMap<&'a Name, Vec<&'a ServicePolicy>>,
    pub(super) conflicts: ConflictIndex<'a>,
    /// The settings of the mesh.
    pub(super) config: MeshConfig,
}

impl<'a> StatusContext<'a> {
    pub(super) fn for_config(config: MeshConfig) -> Self {
        Self { config, ..Self::default() }
    }

    pub(super) fn add_policy(&mut self, policy: &'a ServicePolicy) {
        match &policy.scope {
            PolicyScope::Namespace => {
                self.policies_by_namespace.entry(&policy.name.namespace).or_default().push(policy);
            }
            PolicyScope::Services(parents) => {
                let services: BTreeSet<&ServiceName> =
                    parents.iter().map(|parent| &parent.service).collect();
                for service in services {
                    self.policies_by_service.entry(service).or_default().push(policy);
                }
            }
        }
    }

    /// Returns the policies that may apply to a service.
    pub(super) fn policies_for(&self, service: &ServiceName) -> Vec<&'a ServicePolicy> {
        let service_policies = self.policies_by_service.get(service);
        let namespace_policies = self.policies_by_namespace.get(&service.namespace);
        service_policies.into_iter().chain(namespace_policies).flatten().copied().collect()
    }
}
