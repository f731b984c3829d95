//! Sidecars of workloads: where they listen, and which of them are expected with another port or account.

use std::collections::BTreeSet;

use leno_model::{Workload, WorkloadName};

use super::{Listeners, Mesh, Touched};

/// Workloads with a recent change. Two meshes with the same objects are equal, whatever changed before.
#[derive(Debug, Clone, Default)]
pub(super) struct Changed(BTreeSet<WorkloadName>);

impl PartialEq for Changed {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Changed {}

impl Mesh {
    /// The addresses at which a workload's sidecar accepts mutual TLS; `None` without a sidecar.
    pub(crate) fn listeners(&self, workload: &WorkloadName) -> Option<&Listeners> {
        self.listening.get(workload)
    }

    /// True when the sidecar of a workload is there and has opened every port of its application.
    pub(crate) fn is_registered(&self, workload: &Workload) -> bool {
        let Some(listeners) = self.listening.get(&workload.name) else {
            return false;
        };
        let mut ports = workload.ports.iter();
        ports.all(|port| listeners.contains_key(&port.port))
    }

    /// True for a workload of which the port or account changed a moment ago, while it had a sidecar.
    pub(crate) fn has_changed(&self, workload: &WorkloadName) -> bool {
        self.changed.0.contains(workload)
    }

    /// The same while its sidecar is not there with the new port or account.
    pub(crate) fn is_awaited(&self, workload: &Workload) -> bool {
        self.has_changed(&workload.name) && !self.is_registered(workload)
    }

    /// The sidecar of a workload is there and listens so, or (`None`) is gone.
    pub(crate) fn listen(&mut self, name: &WorkloadName, listeners: Option<Listeners>) -> Touched {
        let mut touched = Touched::default();
        if !self.workloads.contains_key(name) {
            return touched;
        }
        let before = self.listening.remove(name);
        if before != listeners {
            touched.services.extend(self.selecting.of(name).cloned());
            self.touch_address_of(name, &mut touched);
        }
        if let Some(listeners) = listeners {
            self.listening.insert(name.clone(), listeners);
        }
        touched
    }

    /// The change of a workload is no longer recent: requests do not wait for its sidecar.
    pub(crate) fn give_up(&mut self, name: &WorkloadName) -> Touched {
        let mut touched = Touched::default();
        if self.workload(name).is_some_and(|workload| self.is_awaited(workload)) {
            touched.services.extend(self.selecting.of(name).cloned());
        }
        self.changed.0.remove(name);
        touched
    }

    /// A workload changed, and its sidecar may not be the one of the new workload.
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
        // A sidecar that the next change meets is not back yet: the mark stays.
        if has_sidecar && (old.account != new.account || old.ports != new.ports) {
            self.changed.0.insert(name.clone());
        }
    }
}
