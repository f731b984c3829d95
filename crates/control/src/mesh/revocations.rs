//! Combines the revoked workloads of the `MeshConfig` with those that an operator revoked with `leno revoke`.

use std::collections::BTreeSet;

use leno_model::{Instance, MeshConfig, Revocations, RevokedWorkload, Workload};

use super::{AffectedSet, Mesh};

impl Mesh {
    /// True if a workload is revoked, individually or by its account.
    pub(crate) fn is_revoked(&self, workload: &Workload) -> bool {
        // A workload without a pod has no UID, so a revocation with a UID does not refer to it.
        let instance = workload.uid.clone().map_or(Instance::Registration(0), Instance::Pod);
        self.revocations.accounts.contains(&workload.account)
            || self.revocations.covers_workload(&workload.name, Some(&instance))
    }

    pub(crate) fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    /// Sets the revocations by `leno revoke`, in addition to those of the config.
    pub(crate) fn set_revocations(
        &mut self,
        operator_revocations: BTreeSet<RevokedWorkload>,
    ) -> AffectedSet {
        let all_proxies = self.operator_revocations != operator_revocations;
        self.operator_revocations = operator_revocations;
        self.collect_revocations();
        AffectedSet { all_proxies, ..AffectedSet::default() }
    }

    pub(super) fn set_config(&mut self, config: MeshConfig, affected_set: &mut AffectedSet) {
        affected_set.all_proxies |= self.config != config;
        self.config = config;
        self.collect_revocations();
    }

    /// Combines the revocations of both sources after a change of one of them.
    fn collect_revocations(&mut self) {
        self.revocations = Revocations {
            accounts: self.config.revoked.clone(),
            workloads: self
                .config
                .revoked_workloads
                .union(&self.operator_revocations)
                .cloned()
                .collect(),
        };
    }
}
