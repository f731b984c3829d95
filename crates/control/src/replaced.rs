//! Workloads with a rejected sidecar: another one joined in its place, and is no longer connected.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leno_model::WorkloadName;
use tokio::sync::watch;
use tokio::time::Instant;

/// Workloads without a connected sidecar whose replaced sidecar tries to connect, each with the number of its
/// last rejection. Numbers increase.
pub type ReplacedSidecars = BTreeMap<WorkloadName, u64>;

/// Rejections of replaced sidecars since the last connection of a sidecar of their workload.
#[derive(Debug, Default)]
pub(crate) struct ReplacedRejections {
    count: u64,
    /// The rejections by workload; only workloads of the mesh.
    rejected: BTreeMap<WorkloadName, ReplacedRejection>,
    published: watch::Sender<Arc<ReplacedSidecars>>,
}

#[derive(Debug, Clone, Copy)]
struct ReplacedRejection {
    last_number: u64,
    since: Instant,
}

impl ReplacedRejections {
    /// Records that a sidecar of a workload of the mesh was rejected as replaced.
    pub(crate) fn record_rejection(&mut self, workload: &WorkloadName, now: Instant) {
        self.count += 1;
        let new_rejection = ReplacedRejection { last_number: self.count, since: now };
        self.rejected.entry(workload.clone()).or_insert(new_rejection).last_number = self.count;
    }

    /// Removes a workload that left the mesh, or whose sidecar joined or connected.
    pub(crate) fn remove_workload(&mut self, workload: &WorkloadName) {
        self.rejected.remove(workload);
    }

    /// Publishes the workloads for which `is_absent` is true. A sidecar that has just joined connects within
    /// `grace`.
    pub(crate) fn publish_absent(
        &self,
        is_absent: impl Fn(&WorkloadName) -> bool,
        grace: Duration,
        now: Instant,
    ) {
        let grace_has_passed =
            |rejection: &ReplacedRejection| now.saturating_duration_since(rejection.since) >= grace;
        let absent = self
            .rejected
            .iter()
            .filter(|(name, rejection)| grace_has_passed(rejection) && is_absent(name));
        let absent: ReplacedSidecars =
            absent.map(|(name, rejection)| (name.clone(), rejection.last_number)).collect();
        self.published.send_if_modified(|published| {
            let differs = **published != absent;
            if differs {
                *published = Arc::new(absent);
            }
            differs
        });
    }

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
        let (grace, mut replaced) = (Duration::from_secs(10), ReplacedRejections::default());
        let published = replaced.subscribe();
        let publish = |replaced: &ReplacedRejections, absent: bool, at: Instant| {
            replaced.publish_absent(|_| absent, grace, at);
            published.borrow().get(&name).copied()
        };
        replaced.record_rejection(&name, now);
        assert_eq!(publish(&replaced, true, now), None);
        replaced.record_rejection(&name, now + grace);
        assert_eq!(publish(&replaced, false, now + grace), None);
        assert_eq!(publish(&replaced, true, now + grace), Some(2));
        replaced.record_rejection(&name, now + grace);
        assert_eq!(publish(&replaced, true, now + grace), Some(3));
        replaced.remove_workload(&name);
        assert_eq!(publish(&replaced, true, now + grace), None);
    }
}
