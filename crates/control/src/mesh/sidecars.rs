//! Stores the listen addresses of connected sidecars, and the workloads whose sidecar must reconnect with another
//! port or account.

use std::collections::BTreeSet;

use leno_model::{Workload, WorkloadName};

use super::{AffectedSet, Listeners, Mesh};

/// Recently changed workloads. Comparisons ignore them, because meshes with the same objects are equal regardless of
/// their history.
#[derive(Debug, Clone, Default)]
pub(super) struct ChangedWorkloads(BTreeSet<WorkloadName>);

impl PartialEq for ChangedWorkloads {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ChangedWorkloads {}

impl Mesh {
    /// Returns the mTLS addresses of a workload's sidecar; `None` without a sidecar.
    pub(crate) fn sidecar_listeners(&self, workload: &WorkloadName) -> Option<&Listeners> {
        self.sidecar_listeners.get(workload)
    }

    /// True if the sidecar of a workload is connected and has opened every port of its application.
    pub(crate) fn is_registered(&self, workload: &Workload) -> bool {
        let Some(listeners) = self.sidecar_listeners.get(&workload.name) else {
            return false;
        };
        let mut ports = workload.ports.iter();
        ports.all(|port| listeners.contains_key(&port.port))
    }

    /// True if the port or account of a workload with a sidecar has just changed.
    pub(crate) fn has_changed(&self, workload: &WorkloadName) -> bool {
        self.changed_workloads.0.contains(workload)
    }

    /// True if the port or account of a workload has just changed, and its sidecar is not connected with the
    /// new one yet.
    pub(crate) fn is_awaited(&self, workload: &Workload) -> bool {
        self.has_changed(&workload.name) && !self.is_registered(workload)
    }

    /// Sets the listen addresses of a workload's sidecar; `None` if it disconnected. Unknown workloads are ignored.
    pub(crate) fn set_listeners(
        &mut self,
        name: &WorkloadName,
        listeners: Option<Listeners>,
    ) -> AffectedSet {
        let mut affected_set = AffectedSet::default();
        if !self.workloads.contains_key(name) {
            return affected_set;
        }
        let previous_listeners = self.sidecar_listeners.remove(name);
        if previous_listeners != listeners {
            affected_set.services.extend(self.services_by_workload.values_for(name).cloned());
            self.mark_addresses_affected(name, &mut affected_set);
        }
        if let Some(listeners) = listeners {
            self.sidecar_listeners.insert(name.clone(), listeners);
        }
        affected_set
    }

    /// Stops waiting for the sidecar of a changed workload to reconnect: requests no longer wait for it.
    pub(crate) fn stop_waiting_for(&mut self, name: &WorkloadName) -> AffectedSet {
        let mut affected_set = AffectedSet::default();
        if self.workload(name).is_some_and(|workload| self.is_awaited(workload)) {
            affected_set.services.extend(self.services_by_workload.values_for(name).cloned());
        }
        self.changed_workloads.0.remove(name);
        affected_set
    }

    /// After a change of a workload, removes its sidecar if the sidecar may still have the identity of the `old`
    /// version.
    pub(super) fn update_sidecar(
        &mut self,
        name: &WorkloadName,
        old: Option<&Workload>,
        new: Option<&Workload>,
    ) {
        let Some(new) = new else {
            self.sidecar_listeners.remove(name);
            self.changed_workloads.0.remove(name);
            return;
        };
        let Some(old) = old else { return };
        let has_sidecar = self.sidecar_listeners.contains_key(name);
        // The sidecar has the old identity, and clients would expect the new one.
        if old.account != new.account {
            self.sidecar_listeners.remove(name);
        }
        // If another change follows before the sidecar reconnects, the workload stays marked as changed.
        if has_sidecar && (old.account != new.account || old.ports != new.ports) {
            self.changed_workloads.0.insert(name.clone());
        }
    }
}
