//! Listen addresses of sidecars, and sidecars that are expected with another port or account.

use std::collections::BTreeSet;

use leno_model::{Workload, WorkloadName};

use super::{AffectedSet, Listeners, Mesh};

/// Recently changed workloads. They are ignored by comparisons: meshes with the same objects are equal,
/// whatever their history.
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
        self.listening.get(workload)
    }

    /// True if the sidecar of a workload is connected and has opened every port of its application.
    pub(crate) fn is_registered(&self, workload: &Workload) -> bool {
        let Some(listeners) = self.listening.get(&workload.name) else {
            return false;
        };
        let mut ports = workload.ports.iter();
        ports.all(|port| listeners.contains_key(&port.port))
    }

    /// True if the port or account of a workload with a sidecar has just changed.
    pub(crate) fn has_changed(&self, workload: &WorkloadName) -> bool {
        self.changed.0.contains(workload)
    }

    /// True if it has changed and its sidecar is not connected yet with the new port or account.
    pub(crate) fn is_awaited(&self, workload: &Workload) -> bool {
        self.has_changed(&workload.name) && !self.is_registered(workload)
    }

    /// Sets the listen addresses of a workload's sidecar; `None` if it disconnected.
    pub(crate) fn set_listeners(
        &mut self,
        name: &WorkloadName,
        listeners: Option<Listeners>,
    ) -> AffectedSet {
        let mut affected_set = AffectedSet::default();
        if !self.workloads.contains_key(name) {
            return affected_set;
        }
        let before = self.listening.remove(name);
        if before != listeners {
            affected_set.services.extend(self.selecting.values_for(name).cloned());
            self.touch_address_of(name, &mut affected_set);
        }
        if let Some(listeners) = listeners {
            self.listening.insert(name.clone(), listeners);
        }
        affected_set
    }

    /// Ends the wait for the sidecar of a changed workload: requests no longer wait for it.
    pub(crate) fn give_up(&mut self, name: &WorkloadName) -> AffectedSet {
        let mut affected_set = AffectedSet::default();
        if self.workload(name).is_some_and(|workload| self.is_awaited(workload)) {
            affected_set.services.extend(self.selecting.values_for(name).cloned());
        }
        self.changed.0.remove(name);
        affected_set
    }

    /// Removes a changed workload's sidecar if it may still be that of the old workload.
    pub(super) fn keep_sidecar(
        &mut self,
        name: &WorkloadName,
        old: Option<&Workload>,
        new: Option<&Workload>,
    ) {
        let Some(new) = new else {
            self.listening.remove(name);
            self.changed.0.remove(name);
            return;
        };
        let Some(old) = old else { return };
        let has_sidecar = self.listening.contains_key(name);
        // The sidecar has the old identity, and clients would expect the new one.
        if old.account != new.account {
            self.listening.remove(name);
        }
        // If another change follows before the sidecar reconnects, the mark stays.
        if has_sidecar && (old.account != new.account || old.ports != new.ports) {
            self.changed.0.insert(name.clone());
        }
    }
}
