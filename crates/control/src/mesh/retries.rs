//! Indexes retry policies by the client account that they apply to.

use std::collections::BTreeMap;

use leno_model::{PolicyName, RetryPolicy, ServiceAccount};

use super::{AffectedSet, Index, Mesh};

/// All retry policies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Retries {
    by_name: BTreeMap<PolicyName, RetryPolicy>,
    by_source: Index<ServiceAccount, PolicyName>,
}

impl Retries {
    pub(super) fn has_policy(&self, name: &PolicyName) -> bool {
        self.by_name.contains_key(name)
    }
}

impl Mesh {
    /// Returns all retry policies, by name.
    pub(crate) fn retry_policies(&self) -> impl ExactSizeIterator<Item = &RetryPolicy> {
        self.retries.by_name.values()
    }

    /// Returns the retry policies for requests of an account, the oldest first, then by name.
    pub(crate) fn retries_of(
        &self,
        account: &ServiceAccount,
    ) -> impl Iterator<Item = &RetryPolicy> {
        let names = self.retries.by_source.values_for(account);
        let mut policies: Vec<&RetryPolicy> =
            names.filter_map(|name| self.retries.by_name.get(name)).collect();
        policies.sort_by_key(|policy| policy.precedence());
        policies.into_iter()
    }

    /// Adds, replaces or removes (`None`) a retry policy.
    pub(super) fn set_retry(
        &mut self,
        name: &PolicyName,
        new: Option<RetryPolicy>,
        affected_set: &mut AffectedSet,
    ) {
        let old = self.retries.by_name.remove(name);
        if let Some(old) = &old {
            self.retries.by_source.remove(&old.source, name);
        }
        if old != new {
            for policy in old.iter().chain(&new) {
                self.mark_account_affected(&policy.source, affected_set);
            }
        }
        if let Some(new) = new {
            self.retries.by_source.insert(&new.source, name);
            self.retries.by_name.insert(name.clone(), new);
        }
    }
}
