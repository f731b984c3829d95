//! Tracks which sidecars are connected, the grace period of each disconnected sidecar, and the grace period after
//! the startup of the control plane.

use std::collections::BTreeMap;
use std::time::Duration;

use leno_discovery::ConnectionId;
use leno_model::WorkloadName;
use tokio::time::Instant;

use crate::mesh::Mesh;
use crate::publish::GracePeriod;

/// Sidecars that are connected or were connected recently.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    sidecars: BTreeMap<WorkloadName, SidecarPresence>,
    /// Workloads with a changed port or account, each with the time until which requests wait for the new sidecar.
    awaited_sidecars: BTreeMap<WorkloadName, Instant>,
}

/// The presence of one sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SidecarPresence {
    /// The sidecar has this stream, here or at another control plane.
    Connected(ConnectionId),
    /// The stream of the sidecar ended, or it reconnected without its listeners; its grace period ends at this time.
    Missing(Instant),
}

impl Presence {
    /// Marks a sidecar as connected.
    pub(crate) fn mark_connected(&mut self, workload: &WorkloadName, connection: ConnectionId) {
        let presence = SidecarPresence::Connected(connection);
        self.sidecars.insert(workload.clone(), presence);
    }

    /// Marks a sidecar as missing after the end of its stream, unless it already has another stream.
    pub(crate) fn mark_missing(
        &mut self,
        workload: &WorkloadName,
        connection: ConnectionId,
        grace_end: Instant,
    ) {
        if let Some(presence) = self.sidecars.get_mut(workload)
            && *presence == SidecarPresence::Connected(connection)
        {
            *presence = SidecarPresence::Missing(grace_end);
        }
    }

    /// Marks a reconnected sidecar that has not reported its listeners. Its previous listeners stay in use until
    /// `grace_end`, although they may be outdated.
    pub(crate) fn mark_uncertain(&mut self, workload: &WorkloadName, grace_end: Instant) {
        let presence = SidecarPresence::Missing(grace_end);
        self.sidecars.insert(workload.clone(), presence);
    }

    /// Records that the port or account of a workload changed: requests wait for its sidecar until `deadline`.
    pub(crate) fn expect_sidecar(&mut self, workload: &WorkloadName, deadline: Instant) {
        self.awaited_sidecars.insert(workload.clone(), deadline);
    }

    /// Removes and returns the changed workloads with an expired deadline: requests no longer wait for their sidecars.
    pub(crate) fn take_expired_waits(&mut self, now: Instant) -> Vec<WorkloadName> {
        let expired = self.awaited_sidecars.extract_if(.., |_, deadline| *deadline <= now);
        expired.map(|(workload, _)| workload).collect()
    }

    /// Removes the sidecar of a workload.
    pub(crate) fn remove_workload(&mut self, workload: &WorkloadName) {
        self.sidecars.remove(workload);
    }

    /// Removes and returns the workloads whose sidecar did not reconnect within its grace period.
    pub(crate) fn take_lost(&mut self, now: Instant) -> Vec<WorkloadName> {
        let mut lost = Vec::new();
        self.sidecars.retain(|workload, presence| match presence {
            SidecarPresence::Missing(grace_end) if *grace_end <= now => {
                lost.push(workload.clone());
                false
            }
            SidecarPresence::Missing(_) | SidecarPresence::Connected(_) => true,
        });
        lost
    }

    /// Returns the next time at which the wait for a sidecar ends; `None` if no sidecar is awaited.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let end_time = |presence: &SidecarPresence| match presence {
            SidecarPresence::Missing(end_time) => Some(*end_time),
            SidecarPresence::Connected(_) => None,
        };
        let grace_ends = self.sidecars.values().filter_map(end_time);
        grace_ends.chain(self.awaited_sidecars.values().copied()).min()
    }

    /// True during the grace period of a workload's disconnected sidecar.
    pub(crate) fn is_missing(&self, workload: &WorkloadName) -> bool {
        let presence = self.sidecars.get(workload);
        matches!(presence, Some(SidecarPresence::Missing(_)))
    }
}

/// The startup grace period, in which sidecars reconnect.
#[derive(Debug)]
pub(crate) struct StartupGrace {
    /// The latest end of the period; `None` if it is over.
    latest_end: Option<Instant>,
}

impl StartupGrace {
    pub(crate) fn new(now: Instant, startup_grace: Duration) -> Self {
        Self { latest_end: Some(now + startup_grace) }
    }

    /// Returns the state of the startup grace period.
    pub(crate) fn grace_state(&self) -> GracePeriod {
        match self.latest_end {
            Some(_) => GracePeriod::Active,
            None => GracePeriod::Ended,
        }
    }

    /// Returns the latest end of the period; `None` if it is over.
    pub(crate) fn latest_end(&self) -> Option<Instant> {
        self.latest_end
    }

    /// Ends the period if it is over: at `latest_end`, or when every workload is registered. Returns true if this call
    /// ended it.
    pub(crate) fn end_if_over(&mut self, mesh: &Mesh, now: Instant) -> bool {
        let Some(latest_end) = self.latest_end else {
            return false;
        };
        let has_ended =
            now >= latest_end || mesh.workloads().all(|workload| mesh.is_registered(workload));
        if has_ended {
            self.latest_end = None;
        }
        has_ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: ConnectionId = ConnectionId(1);
    const SECOND: ConnectionId = ConnectionId(2);

    fn workload_name() -> WorkloadName {
        WorkloadName::new("bookinfo", "ratings-1").unwrap()
    }

    #[test]
    fn a_sidecar_that_does_not_reconnect_is_lost_after_the_grace_period() {
        let now = Instant::now();
        let grace = Duration::from_secs(10);
        let mut presence = Presence::default();
        presence.mark_connected(&workload_name(), FIRST);
        assert_eq!(presence.next_deadline(), None);
        presence.mark_missing(&workload_name(), FIRST, now + grace);
        assert!(presence.is_missing(&workload_name()));
        assert_eq!(presence.take_lost(now + grace / 2), []);
        assert_eq!(presence.next_deadline(), Some(now + grace));
        assert_eq!(presence.take_lost(now + grace), [workload_name()]);
        assert_eq!(presence.next_deadline(), None);
    }

    #[test]
    fn requests_wait_for_the_sidecar_of_a_changed_workload_until_a_deadline() {
        let (now, wait) = (Instant::now(), Duration::from_secs(30));
        let mut presence = Presence::default();
        presence.expect_sidecar(&workload_name(), now + wait);
        // The old sidecar is removed meanwhile.
        presence.remove_workload(&workload_name());
        assert_eq!(presence.take_expired_waits(now), []);
        assert_eq!(presence.next_deadline(), Some(now + wait));
        assert_eq!(presence.take_expired_waits(now + wait), [workload_name()]);
        assert_eq!(presence.next_deadline(), None);
    }

    #[test]
    fn the_end_of_an_old_stream_has_no_effect_after_a_new_one_started() {
        let now = Instant::now();
        let mut presence = Presence::default();
        presence.mark_connected(&workload_name(), FIRST);
        presence.mark_connected(&workload_name(), SECOND);
        presence.mark_missing(&workload_name(), FIRST, now);
        assert_eq!(presence.take_lost(now), []);
        assert!(!presence.is_missing(&workload_name()));
    }
}
