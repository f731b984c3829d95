//! Selects the next delta for one proxy from the differences between its held and its desired resources.
//!
//! One delta is in flight at a time, and the newest desired configuration wins. A rejected delta leaves the
//! proxy unchanged. The rejected resources are withheld until they, or their dependencies, change; the other
//! resources of the delta are sent again without them.
//!
//! A control plane that has just started cannot distinguish removed endpoints from endpoints whose sidecars
//! have not reconnected. It sets a [partial configuration](Publisher::set_partial_update), and the proxy
//! retains these [`UnknownEndpoints`].
//!
//! A rule may refer to a service that does not exist. Such a service is absent, and the control plane sends the
//! set of absent services, because a proxy rejects references to services that are neither held nor absent.

mod pending_delta;
mod rejected_resources;
mod sendable;

use std::collections::BTreeSet;
use std::sync::Arc;

use leno_model::{ServiceName, Snapshot};

use crate::held_versions::HeldVersions;
use crate::key::{ChangeId, ResourceKey, ResourceVersion};
use crate::message::{ConfigUpdate, Delta, ResourceRejection};
use crate::publisher::pending_delta::{DeltaPrefix, MAX_RESOURCE_BYTES, PendingDelta};
use crate::publisher::rejected_resources::RejectedResources;
use crate::publisher::sendable::{RetainedResources, select_sendable_part};
use crate::unknown_endpoints::UnknownEndpoints;

/// The control plane's state of one proxy: its held, rejected and desired resources. It performs no IO.
#[derive(Debug, Default)]
pub struct Publisher {
    /// The versions that the proxy holds, according to its Hello and its acknowledgements.
    held_versions: HeldVersions,
    /// A snapshot that the proxy holds exactly. Parts of the desired snapshot that equal it need no comparison
    /// with the held versions.
    synced_snapshot: Option<Arc<Snapshot>>,
    /// The absent services that the proxy acknowledged in this stream.
    acknowledged_absent: Option<BTreeSet<ServiceName>>,
    /// The set of absent services that the proxy rejected; `None` if it rejected none, or may accept the set
    /// now.
    rejected_absent: Option<BTreeSet<ServiceName>>,
    /// The change of the configuration whose absent services were sent again, together with the resources that
    /// depend on them; `None` if they were never sent again.
    resent_with_dependents: Option<ChangeId>,
    rejected_resources: RejectedResources,
    /// Resources that are too large to send, not yet taken by [`Self::take_oversized`].
    oversized_resources: Vec<ResourceRejection>,
    /// The newest desired configuration.
    desired_config: Option<DesiredConfig>,
    /// True if the desired configuration or the held resources changed since the last comparison.
    needs_comparison: bool,
    /// The delta that the proxy has neither acknowledged nor rejected; `None` if the next one may be sent.
    delta_in_flight: Option<UnacknowledgedDelta>,
    /// The nonce of the last delta.
    last_nonce: u64,
}

/// The desired configuration of the proxy.
#[derive(Debug, Clone)]
struct DesiredConfig {
    update: ConfigUpdate,
    unknown_endpoints: UnknownEndpoints,
}

/// The acknowledgement of a delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcknowledgedDelta {
    /// The newest change in the delta.
    pub change: ChangeId,
    /// True if the proxy now holds all resources of that change, except for rejected ones.
    pub whole: bool,
}

impl Publisher {
    /// Creates the state of a proxy that connects with these held versions.
    #[must_use]
    pub fn new(held_versions: Vec<(ResourceKey, ResourceVersion)>) -> Self {
        Self { held_versions: held_versions.into_iter().collect(), ..Self::default() }
    }

    /// Replaces the desired configuration; an older one that was not sent is dropped.
    ///
    /// Every backend service of a rule must be in the snapshot or be absent.
    pub fn set_update(&mut self, update: ConfigUpdate) {
        self.set_partial_update(update, UnknownEndpoints::default());
    }

    /// Like [`Self::set_update`], but the proxy retains unknown endpoints that it holds, and new services are
    /// sent only after their endpoints are known.
    pub fn set_partial_update(
        &mut self,
        update: ConfigUpdate,
        unknown_endpoints: UnknownEndpoints,
    ) {
        if self.desired_config.is_none() {
            self.held_versions.share_names(&update.snapshot);
        }
        // The resources because of which the proxy rejected the absent services may have changed.
        self.rejected_absent = None;
        self.desired_config = Some(DesiredConfig { update, unknown_endpoints });
        self.needs_comparison = true;
    }

    /// Returns the next delta to send; `None` while one is in flight, or without differences.
    ///
    /// The first delta of a stream is sent even without differences, so that the proxy knows that it is in
    /// sync.
    pub fn next_delta(&mut self) -> Option<Delta> {
        if self.delta_in_flight.is_some() || !self.needs_comparison {
            return None;
        }
        let DesiredConfig { update, unknown_endpoints } = self.desired_config.clone()?;
        self.rejected_resources.release_outdated(&update, &self.held_versions);
        let snapshot =
            select_sendable_part(&update.snapshot, &unknown_endpoints, &self.held_versions);
        let pending_delta = self.compare_resources(&snapshot, &unknown_endpoints);
        let is_absent_rejected = self.rejected_absent.as_ref() == Some(&update.absent);
        let includes_absent =
            self.acknowledged_absent.as_ref() != Some(&update.absent) && !is_absent_rejected;
        let lacks_workload_config =
            self.held_versions.config.is_none() && !pending_delta.has_workload_config();
        if lacks_workload_config || pending_delta.is_empty() && !includes_absent {
            self.needs_comparison = false;
            if self.rejected_resources.is_empty() && unknown_endpoints.is_empty() {
                self.synced_snapshot = Some(update.snapshot);
            }
            return None;
        }
        Some(self.create_delta(
            DesiredConfig { update, unknown_endpoints },
            pending_delta,
            includes_absent,
        ))
    }

    /// Handles the acknowledgement of a delta and describes it; `None` if no delta with this nonce is
    /// in flight.
    pub fn acknowledge(&mut self, nonce: u64) -> Option<AcknowledgedDelta> {
        let UnacknowledgedDelta { desired, upserts, removed, includes_absent, whole, .. } =
            self.take_in_flight(nonce)?;
        for key in removed {
            self.held_versions.remove(&key);
        }
        for (key, version) in upserts {
            self.held_versions.insert(key, version);
        }
        let DesiredConfig { update, unknown_endpoints } = desired;
        // With its new resources, the proxy may accept the absent services that it has rejected before.
        let had_rejected_absent = self.rejected_absent.take().is_some();
        let is_in_sync = whole && self.rejected_resources.is_empty() && !had_rejected_absent;
        self.needs_comparison |= !is_in_sync;
        if includes_absent {
            self.acknowledged_absent = Some(update.absent);
            self.rejected_resources.release_dependents();
        }
        self.synced_snapshot =
            (is_in_sync && unknown_endpoints.is_empty()).then_some(update.snapshot);
        Some(AcknowledgedDelta { change: update.change, whole })
    }

    /// Handles the rejection of a delta and returns its change; `None` if no delta with this nonce is in
    /// flight.
    ///
    /// The rejected versions are not recorded as held, and not sent again until they change.
    pub fn reject_delta(
        &mut self,
        nonce: u64,
        rejections: &[ResourceRejection],
    ) -> Option<ChangeId> {
        let UnacknowledgedDelta { desired, upserts, removed, includes_absent, .. } =
            self.take_in_flight(nonce)?;
        let update = desired.update;
        self.needs_comparison = true;
        let sent_resources: Vec<_> = upserts
            .into_iter()
            .map(|(key, version)| (key, Some(version)))
            .chain(removed.into_iter().map(|key| (key, None)))
            .collect();
        let change = update.change;
        let names_sent_resource = self.rejected_resources.record_rejections(
            &sent_resources,
            rejections,
            &update,
            &self.held_versions,
        );
        match (names_sent_resource, includes_absent) {
            // The named resources are withheld, so the next delta differs from this one.
            (true, _) => {}
            // The absent services were rejected because of held resources. New versions of these resources may
            // be withheld because they depend on the absent services. Both are sent together, once for each
            // desired configuration.
            (false, true)
                if self.resent_with_dependents != Some(change)
                    && self.rejected_resources.try_release_dependents() =>
            {
                self.resent_with_dependents = Some(change);
            }
            (false, true) => self.rejected_absent = Some(update.absent),
            (false, false) => {
                self.rejected_resources.record_rejected_delta(&sent_resources, rejections, change)
            }
        }
        Some(change)
    }

    /// Returns the newest change that the proxy has applied, except for rejected resources; `None` while a
    /// delta is in flight or pending. Valid after [`Self::next_delta`].
    #[must_use]
    pub fn applied_change(&self) -> Option<ChangeId> {
        let is_in_sync = self.delta_in_flight.is_none()
            && !self.needs_comparison
            && self.held_versions.config.is_some();
        self.desired_config.as_ref().filter(|_| is_in_sync).map(|desired| desired.update.change)
    }

    /// Returns the resources that the proxy rejects, with its reasons.
    pub fn rejected_resources(&self) -> impl Iterator<Item = ResourceRejection> {
        self.rejected_resources.list_rejections()
    }

    /// Takes the resources that were not sent because they are too large.
    pub fn take_oversized(&mut self) -> Vec<ResourceRejection> {
        std::mem::take(&mut self.oversized_resources)
    }

    /// Returns all differences between the held and the desired resources. Oversized resources are excluded,
    /// and recorded as rejected.
    fn compare_resources(
        &mut self,
        snapshot: &Snapshot,
        unknown_endpoints: &UnknownEndpoints,
    ) -> PendingDelta {
        loop {
            let retained = RetainedResources {
                rejected_resources: &self.rejected_resources,
                unknown_endpoints,
            };
            let pending_delta = PendingDelta::new(
                snapshot,
                self.synced_snapshot.as_deref(),
                &self.held_versions,
                retained,
            );
            let oversized_upserts: Vec<_> = pending_delta.oversized_resources().cloned().collect();
            if oversized_upserts.is_empty() {
                return pending_delta;
            }
            for upsert in oversized_upserts {
                let reason = format!(
                    "has {} bytes, of which at most {MAX_RESOURCE_BYTES} can be sent: split it",
                    upsert.content.len()
                );
                let rejection = ResourceRejection::new(upsert.key.clone(), reason);
                self.rejected_resources.add_rejection(
                    upsert.key.clone(),
                    upsert.version(),
                    &rejection.reason,
                );
                self.oversized_resources.push(rejection);
            }
        }
    }

    /// Creates a delta from the first differences that fit into one, and puts it in flight.
    fn create_delta(
        &mut self,
        desired: DesiredConfig,
        pending_delta: PendingDelta,
        includes_absent: bool,
    ) -> Delta {
        self.last_nonce += 1;
        let DeltaPrefix { upserts, removed, whole } = pending_delta.take_prefix();
        self.needs_comparison = !whole;
        let update = &desired.update;
        let delta = Delta {
            nonce: self.last_nonce,
            change: update.change,
            whole,
            removed,
            absent: includes_absent.then(|| update.absent.clone()),
            upserts,
        };
        let versions = delta.upserts.iter().map(|upsert| (upsert.key.clone(), upsert.version()));
        self.delta_in_flight = Some(UnacknowledgedDelta {
            nonce: self.last_nonce,
            upserts: versions.collect(),
            removed: delta.removed.clone(),
            desired,
            includes_absent,
            whole,
        });
        delta
    }

    /// Takes the delta in flight; `None` if its nonce is another one.
    fn take_in_flight(&mut self, nonce: u64) -> Option<UnacknowledgedDelta> {
        self.delta_in_flight.take_if(|delta_in_flight| delta_in_flight.nonce == nonce)
    }
}

/// A sent delta without a response.
#[derive(Debug)]
struct UnacknowledgedDelta {
    nonce: u64,
    desired: DesiredConfig,
    upserts: Vec<(ResourceKey, ResourceVersion)>,
    removed: Vec<ResourceKey>,
    /// True if the delta includes the set of absent services.
    includes_absent: bool,
    /// True if the delta contains all remaining differences.
    whole: bool,
}

#[cfg(test)]
mod tests;
