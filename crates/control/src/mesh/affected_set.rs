//! The affected set of a change: the parts of the configuration that may differ afterwards.

use std::collections::BTreeSet;
use std::net::IpAddr;

use leno_model::{ServiceAccount, ServiceName, Workload, WorkloadName};

/// The affected set of a change. It is never too small; a superset costs a compilation, and its unchanged
/// output is not sent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct AffectedSet {
    /// All proxies and services.
    pub(crate) all_proxies: bool,
    /// Workloads with a changed proxy configuration, or added or removed.
    pub(crate) workloads: BTreeSet<WorkloadName>,
    /// Services with changed views, for all their clients.
    pub(crate) services: BTreeSet<ServiceName>,
    /// Accounts of clients with changed views of all services.
    pub(crate) accounts: BTreeSet<ServiceAccount>,
    /// Changed address entries.
    pub(crate) addresses: BTreeSet<IpAddr>,
}

impl AffectedSet {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.all_proxies |= other.all_proxies;
        self.workloads.extend(other.workloads);
        self.services.extend(other.services);
        self.accounts.extend(other.accounts);
        self.addresses.extend(other.addresses);
    }
}

/// True if services have the same views with either version of a workload.
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
                // DNS records may contain the addresses.
                && old.addresses().eq(new.addresses())
        }
        (None, None) => true,
        _ => false,
    }
}
