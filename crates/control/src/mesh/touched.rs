//! Touched: what a change may have changed, in terms of who could notice.

use std::collections::BTreeSet;
use std::net::IpAddr;

use leno_model::{ServiceAccount, ServiceName, Workload, WorkloadName};

/// What a change may have changed. Never too little; too much costs a compilation whose equal
/// output is not sent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Touched {
    /// Everything, for everybody.
    pub(crate) everybody: bool,
    /// What these workloads' own sidecars know about them: plan and existence.
    pub(crate) workloads: BTreeSet<WorkloadName>,
    /// How these services look, to whoever uses them.
    pub(crate) services: BTreeSet<ServiceName>,
    /// How all services look to clients under these accounts.
    pub(crate) accounts: BTreeSet<ServiceAccount>,
    /// What is at these addresses.
    pub(crate) addresses: BTreeSet<IpAddr>,
}

impl Touched {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.everybody |= other.everybody;
        self.workloads.extend(other.workloads);
        self.services.extend(other.services);
        self.accounts.extend(other.accounts);
        self.addresses.extend(other.addresses);
    }
}

/// Whether services look the same with either version of a workload behind them.
pub(super) fn same_to_clients(old: Option<&Workload>, new: Option<&Workload>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => {
            old.labels == new.labels
                && old.ports == new.ports
                && old.account == new.account
                && old.admission == new.admission
                && old.ready == new.ready
                && old.terminating == new.terminating
                && old.weight == new.weight
                // Names may stand for them.
                && old.addresses().eq(new.addresses())
        }
        (None, None) => true,
        _ => false,
    }
}
