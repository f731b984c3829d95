//! Defines the affected set of a change: the workloads, services, accounts and addresses for which the proxies'
//! configurations may differ after the change.

use std::collections::BTreeSet;
use std::net::IpAddr;

use leno_model::{
    RouteGroupName, ServiceAccount, ServiceName, TargetRule, TcpRouteName, TrafficSplit, Workload,
    WorkloadName,
};

use super::Mesh;

/// The affected set of a change. It contains at least everything that differs. It may contain more: an unchanged
/// configuration is compiled again, but not sent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct AffectedSet {
    /// True if all proxies and services are affected.
    pub(crate) all_proxies: bool,
    /// Workloads that were added or removed, or have a changed proxy configuration.
    pub(crate) workloads: BTreeSet<WorkloadName>,
    /// Services with a changed service configuration, for all their clients.
    pub(crate) services: BTreeSet<ServiceName>,
    /// Accounts of clients for which the configurations of all services may have changed.
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

impl Mesh {
    /// Marks the workloads of an account as affected.
    pub(super) fn mark_account_affected(
        &self,
        account: &ServiceAccount,
        affected_set: &mut AffectedSet,
    ) {
        affected_set.workloads.extend(self.account_workloads(account).cloned());
    }

    /// Marks the splits, boundary rules and policies that use a route group.
    pub(super) fn mark_group_users_affected(
        &self,
        name: &RouteGroupName,
        affected_set: &mut AffectedSet,
    ) {
        let uses_group =
            |split: &&TrafficSplit| split.groups.iter().flatten().any(|group| group == name);
        let splits = self.traffic_splits.all_routes().filter(uses_group);
        affected_set.services.extend(splits.map(|split| split.root.service.clone()));
        self.mark_boundary_users_affected(name, affected_set);
        self.mark_targets_affected(affected_set, |rule| match rule {
            TargetRule::Http { group, .. } => group == name,
            TargetRule::Tcp { .. } => false,
        });
    }

    /// Marks the workloads of policies that use a TCP route.
    pub(super) fn mark_tcp_route_users_affected(
        &self,
        name: &TcpRouteName,
        affected_set: &mut AffectedSet,
    ) {
        self.mark_targets_affected(affected_set, |rule| match rule {
            TargetRule::Http { .. } => false,
            TargetRule::Tcp { route } => route == name,
        });
    }

    fn mark_targets_affected(
        &self,
        affected_set: &mut AffectedSet,
        is_rule_affected: impl Fn(&TargetRule) -> bool,
    ) {
        if !self.has_evaluated_policies() {
            return;
        }
        for target in self
            .traffic_targets
            .values()
            .filter(|target| target.rules.iter().any(&is_rule_affected))
        {
            self.mark_account_affected(&target.destination, affected_set);
        }
    }
}

/// True if the service configurations of clients are the same with the `old` and the `new` version of a workload.
pub(super) fn is_same_for_clients(old: Option<&Workload>, new: Option<&Workload>) -> bool {
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
