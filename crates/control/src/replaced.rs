//! Records sidecars that were rejected because another sidecar of the same workload had replaced them. While such a
//! workload has no connected sidecar, it is published, so that a supervisor can start a new sidecar.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leno_model::WorkloadName;
use tokio::sync::watch;
use tokio::time::Instant;

/// Workloads without a connected sidecar for which a replaced sidecar tries to connect, each with the sequence number
/// of its last rejection. The numbers increase over all workloads.
pub type ReplacedSidecars = BTreeMap<WorkloadName, u64>;

/// Rejections of replaced sidecars since the last connection of a sidecar of their workload.
#[derive(Debug, Default)]
pub(crate) struct ReplacedRejections {
    /// The sequence number of the last rejection.
    last_number: u64,
    /// The rejections by workload; only workloads of the mesh.
    rejections: BTreeMap<WorkloadName, ReplacedRejection>,
    /// The rejections that the supervisor sees: only of workloads without a connected sidecar.
    published: watch::Sender<Arc<ReplacedSidecars>>,
}

/// The rejections of the replaced sidecar of one workload.
#[derive(Debug, Clone, Copy)]
struct ReplacedRejection {
    /// The sequence number of the last rejection.
    last_number: u64,
    /// The time of the first rejection.
    first_rejected_at: Instant,
}

impl ReplacedRejections {
    /// Records that a sidecar of a workload of the mesh was rejected as replaced.
    pub(crate) fn record_rejection(&mut self, workload: &WorkloadName, now: Instant) {
        self.last_number += 1;
        let new_rejection =
            ReplacedRejection { last_number: self.last_number, first_rejected_at: now };
        self.rejections.entry(workload.clone()).or_insert(new_rejection).last_number =
            self.last_number;
    }

    /// Removes a workload that left the mesh, or whose sidecar joined or connected.
    pub(crate) fn remove_workload(&mut self, workload: &WorkloadName) {
        self.rejections.remove(workload);
    }

    /// Publishes the workloads for which `is_absent` is true and whose first rejection is at least `grace_period` ago.
    /// A sidecar that has just joined connects within `grace_period`.
    pub(crate) fn publish_absent(
        &self,
        is_absent: impl Fn(&WorkloadName) -> bool,
        grace_period: Duration,
        now: Instant,
    ) {
        let grace_has_passed = |rejection: &ReplacedRejection| {
            now.saturating_duration_since(rejection.first_rejected_at) >= grace_period
        };
        let absent_sidecars: ReplacedSidecars = self
            .rejections
            .iter()
            .filter(|(name, rejection)| grace_has_passed(rejection) && is_absent(name))
            .map(|(name, rejection)| (name.clone(), rejection.last_number))
            .collect();
        self.published.send_if_modified(|published| {
            let differs = **published != absent_sidecars;
            if differs {
                *published = Arc::new(absent_sidecars);
            }
            differs
        });
    }

    /// Returns a receiver of the published workloads.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<ReplacedSidecars>> {
        self.published.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_sidecar_is_published_after_the_grace_period() {
        let (name, now) = ("shop/cart-1".parse::<WorkloadName>().unwrap(), Instant::now());
        let (grace_period, mut replaced) = (Duration::from_secs(10), ReplacedRejections::default());
        let published = replaced.subscribe();
        let publish = |replaced: &ReplacedRejections, absent: bool, at: Instant| {
            replaced.publish_absent(|_| absent, grace_period, at);
            published.borrow().get(&name).copied()
        };
        replaced.record_rejection(&name, now);
        assert_eq!(publish(&replaced, true, now), None);
        replaced.record_rejection(&name, now + grace_period);
        assert_eq!(publish(&replaced, false, now + grace_period), None);
        assert_eq!(publish(&replaced, true, now + grace_period), Some(2));
        replaced.record_rejection(&name, now + grace_period);
        assert_eq!(publish(&replaced, true, now + grace_period), Some(3));
        replaced.remove_workload(&name);
        assert_eq!(publish(&replaced, true, now + grace_period), None);
    }
}
