//! Registers the endpoints that outlier detection has ejected, over all data threads, for the admin endpoint.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use leno_model::{Endpoint, ServicePolicyName};
use leno_traffic::outlier::EjectionCause;

/// The endpoints that are currently ejected. Requests do not access the registry; only ejections, unejections
/// and the admin endpoint do.
#[derive(Default)]
pub(crate) struct EjectedEndpoints {
    /// The ejected endpoints of each outlier monitor, by its number. A monitor detects the outliers of one port under one
    /// policy, on one data thread.
    monitors: Mutex<BTreeMap<u64, Vec<EjectionRecord>>>,
    next_monitor_number: AtomicU64,
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
    /// Returns a number for a new outlier monitor.
    pub(crate) fn next_monitor_number(&self) -> u64 {
        self.next_monitor_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Replaces the ejected endpoints of one outlier monitor; an empty list removes the monitor.
    pub(crate) fn replace_records(&self, monitor_number: u64, records: Vec<EjectionRecord>) {
        match records.is_empty() {
            true => self.lock().remove(&monitor_number),
            false => self.lock().insert(monitor_number, records),
        };
    }

    /// Returns the number of ejected endpoints of one outlier monitor.
    pub(crate) fn count(&self, monitor_number: u64) -> usize {
        self.lock().get(&monitor_number).map_or(0, Vec::len)
    }

    /// Returns each ejected endpoint once, with the number of threads that ejected it, and the record of one of
    /// these threads.
    pub(crate) fn snapshot(&self) -> Vec<(usize, EjectionRecord)> {
        let mut ejected_endpoints: Vec<(usize, EjectionRecord)> = Vec::new();
        for record in self.lock().values().flatten() {
            match ejected_endpoints
                .iter_mut()
                .find(|(_, existing)| existing.endpoint.id == record.endpoint.id)
            {
                Some((thread_count, _)) => *thread_count += 1,
                None => ejected_endpoints.push((1, record.clone())),
            }
        }
        ejected_endpoints
            .sort_by(|(_, first), (_, second)| first.endpoint.id.cmp(&second.endpoint.id));
        ejected_endpoints
    }

    /// Locks the table, even if another thread panicked while holding the lock: no update leaves a partial
    /// state.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<EjectionRecord>>> {
        self.monitors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
