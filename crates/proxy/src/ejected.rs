//! The endpoints that outlier detection has ejected, over all threads, for the admin endpoint.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use leno_model::{Endpoint, ServicePolicyName};
use leno_traffic::outlier::EjectionCause;

/// The endpoints that are currently ejected. Requests do not access it, only ejections, unejections and the
/// admin endpoint.
#[derive(Default)]
pub(crate) struct EjectedEndpoints {
    /// The ejected endpoints of each cluster state, by its number.
    clusters: Mutex<BTreeMap<u64, Vec<EjectionRecord>>>,
    next_cluster_number: AtomicU64,
}

/// An endpoint ejected by one thread.
#[derive(Debug, Clone)]
pub(crate) struct EjectionRecord {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) policy: ServicePolicyName,
    pub(crate) cause: EjectionCause,
    /// The time of the ejection.
    pub(crate) since: Instant,
}

impl EjectedEndpoints {
    /// Returns a number for a new cluster state.
    pub(crate) fn next_number(&self) -> u64 {
        self.next_cluster_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Replaces the ejected endpoints of one cluster state.
    pub(crate) fn set_entries(&self, cluster: u64, entries: Vec<EjectionRecord>) {
        match entries.is_empty() {
            true => self.lock().remove(&cluster),
            false => self.lock().insert(cluster, entries),
        };
    }

    /// Returns the number of ejected endpoints of one cluster state.
    pub(crate) fn count(&self, cluster: u64) -> usize {
        self.lock().get(&cluster).map_or(0, Vec::len)
    }

    /// Returns each ejected endpoint with the number of threads that ejected it, and the entry of the first of
    /// them.
    pub(crate) fn snapshot(&self) -> Vec<(usize, EjectionRecord)> {
        let mut endpoints: Vec<(usize, EjectionRecord)> = Vec::new();
        for entry in self.lock().values().flatten() {
            match endpoints
                .iter_mut()
                .find(|(_, existing)| existing.endpoint.id == entry.endpoint.id)
            {
                Some((threads, _)) => *threads += 1,
                None => endpoints.push((1, entry.clone())),
            }
        }
        endpoints.sort_by(|(_, first), (_, second)| first.endpoint.id.cmp(&second.endpoint.id));
        endpoints
    }

    /// Locks the table, also after a panic of another thread: no update leaves a partial state.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<EjectionRecord>>> {
        self.clusters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
