//! Selection of the next delta for one proxy: differences between its held and its desired resources.
//!
//! One delta is in flight at a time, and the newest offer wins. A rejected delta leaves the proxy unchanged;
//! the rejected resources are withheld until they, or their dependencies, change, and the others are sent again
//! without them.
//!
//! A control plane that has just started cannot distinguish removed endpoints from those that have not
//! reconnected: it offers [in doubt](Publisher::offer_in_doubt), and the proxy keeps the uncertain ones.

mod pending_delta;
mod rejected_resources;
mod sendable;

use std::collections::BTreeSet;
use std::sync::Arc;

use leno_model::{ServiceName, Snapshot};

use crate::held_versions::HeldVersions;
use crate::key::{ChangeId, ResourceKey, ResourceVersion};
use crate::message::{ConfigUpdate, Delta, ResourceRejection};
use crate::publisher::pending_delta::{PendingDelta, RESOURCE_BYTES_MAX};
use crate::publisher::rejected_resources::RejectedResources;
use crate::publisher::sendable::{Kept, sendable_part};
use crate::unknown_endpoints::UnknownEndpoints;

/// The control plane's state of one proxy: its held, rejected and desired resources. No IO.
#[derive(Debug, Default)]
pub struct Publisher {
    held: HeldVersions,
    /// A snapshot that the proxy holds exactly; equal parts are not compared again.
    agreed: Option<Arc<Snapshot>>,
    /// The absent services that the proxy acknowledged in this stream.
    absent: Option<BTreeSet<ServiceName>>,
    /// The absent services that it rejected, as far as known.
    absent_refused: Option<BTreeSet<ServiceName>>,
    /// The offer with absent services that were sent once more, together with the resources that depend on
    /// them.
    reunited: Option<ChangeId>,
    rejected_resources: RejectedResources,
    oversized: Vec<ResourceRejection>,
    pushed: Option<DesiredConfig>,
    /// True if the offer or the held resources changed since the last comparison.
    stale: bool,
    in_flight: Option<UnacknowledgedDelta>,
    nonce: u64,
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
    /// True if the proxy now holds all that was offered with that change, except for rejected resources.
    pub whole: bool,
}

impl Publisher {
    /// Creates the state of a proxy that connects with these held versions.
    #[must_use]
    pub fn new(held: Vec<(ResourceKey, ResourceVersion)>) -> Self {
        Self { held: held.into_iter().collect(), ..Self::default() }
    }

    /// Replaces the offer; an older offer that was not sent is dropped.
    ///
    /// Every backend service of a rule must be in the snapshot or be absent.
    pub fn set_update(&mut self, update: ConfigUpdate) {
        self.offer_in_doubt(update, UnknownEndpoints::default());
    }

    /// Like [`Self::set_update`], but the proxy keeps its uncertain endpoints, and new services are sent only after
    /// their endpoints are known.
    pub fn offer_in_doubt(&mut self, update: ConfigUpdate, doubt: UnknownEndpoints) {
        if self.pushed.is_none() {
            self.held.share_names(&update.snapshot);
        }
        // The conflicting resources may have changed.
        self.absent_refused = None;
        self.pushed = Some(DesiredConfig { update, unknown_endpoints: doubt });
        self.stale = true;
    }

    /// The next delta to send; `None` while one is in flight, or without differences.
    ///
    /// The first delta of a stream is sent even without differences, so that the proxy knows that it is in
    /// sync.
    pub fn next_delta(&mut self) -> Option<Delta> {
        if self.in_flight.is_some() || !self.stale {
            return None;
        }
        let DesiredConfig { update, unknown_endpoints: doubt } = self.pushed.clone()?;
        self.rejected_resources.release(&update, &self.held);
        let snapshot = sendable_part(&update.snapshot, &doubt, &self.held);
        let draft = self.draft_delta(&snapshot, &doubt);
        let refused = self.absent_refused.as_ref() == Some(&update.absent);
        let absent = self.absent.as_ref() != Some(&update.absent) && !refused;
        let unusable = self.held.config.is_none() && !draft.has_plan();
        if unusable || draft.is_empty() && !absent {
            self.stale = false;
            if self.rejected_resources.is_empty() && doubt.is_empty() {
                self.agreed = Some(update.snapshot);
            }
            return None;
        }
        Some(self.create_delta(DesiredConfig { update, unknown_endpoints: doubt }, draft, absent))
    }

    /// Handles the acknowledgement of a delta; `None` if no delta with this nonce is in flight.
    pub fn acknowledge(&mut self, nonce: u64) -> Option<AcknowledgedDelta> {
        let UnacknowledgedDelta { pushed, upserts, removed, absent, whole, .. } =
            self.take_in_flight(nonce)?;
        for key in removed {
            self.held.remove(&key);
        }
        for (key, version) in upserts {
            self.held.insert(key, version);
        }
        let DesiredConfig { update, unknown_endpoints: doubt } = pushed;
        // With its new resources the proxy may accept the absent services that it rejected.
        let absent_refused = self.absent_refused.take().is_some();
        let settled = whole && self.rejected_resources.is_empty() && !absent_refused;
        self.stale |= !settled;
        if absent {
            self.absent = Some(update.absent);
            self.rejected_resources.absent_accepted();
        }
        self.agreed = (settled && doubt.is_empty()).then_some(update.snapshot);
        Some(AcknowledgedDelta { change: update.change, whole })
    }

    /// Handles the rejection of a delta and returns its change; `None` if no delta with this nonce is in
    /// flight.
    ///
    /// The rejected versions are not recorded as held, and not sent again until they change.
    pub fn reject_delta(&mut self, nonce: u64, refusals: &[ResourceRejection]) -> Option<ChangeId> {
        let UnacknowledgedDelta { pushed, upserts, removed, absent, .. } =
            self.take_in_flight(nonce)?;
        let update = pushed.update;
        self.stale = true;
        let sent: Vec<_> = upserts
            .into_iter()
            .map(|(key, version)| (key, Some(version)))
            .chain(removed.into_iter().map(|key| (key, None)))
            .collect();
        let change = update.change;
        let named = self.rejected_resources.record_rejections(&sent, refusals, &update, &self.held);
        match (named, absent) {
            (true, _) => {}
            // They were rejected because of held resources; better versions of those may be withheld for lack
            // of them. Both are sent together, once for each offer.
            (false, true) if self.reunited != Some(change) && self.rejected_resources.let_go() => {
                self.reunited = Some(change);
            }
            (false, true) => self.absent_refused = Some(update.absent),
            (false, false) => self.rejected_resources.refused_unnamed(&sent, refusals, change),
        }
        Some(change)
    }

    /// The newest change that the proxy has applied, except for rejected resources; `None` while a delta is in
    /// flight or due. Meaningful after [`Self::next_delta`].
    #[must_use]
    pub fn applied_change(&self) -> Option<ChangeId> {
        let at_rest = self.in_flight.is_none() && !self.stale && self.held.config.is_some();
        self.pushed.as_ref().filter(|_| at_rest).map(|pushed| pushed.update.change)
    }

    /// The resources that the proxy rejects, with its reasons.
    pub fn rejected_resources(&self) -> impl Iterator<Item = ResourceRejection> {
        self.rejected_resources.list_rejections()
    }

    /// Takes the resources that were not sent because they are too large.
    pub fn take_oversized(&mut self) -> Vec<ResourceRejection> {
        std::mem::take(&mut self.oversized)
    }

    /// All differences; oversized resources are excluded.
    fn draft_delta(&mut self, snapshot: &Snapshot, doubt: &UnknownEndpoints) -> PendingDelta {
        loop {
            let kept =
                Kept { rejected_resources: &self.rejected_resources, unknown_endpoints: doubt };
            let draft = PendingDelta::new(snapshot, self.agreed.as_deref(), &self.held, kept);
            let large: Vec<_> = draft.oversized_resources().cloned().collect();
            if large.is_empty() {
                return draft;
            }
            for upsert in large {
                let reason = format!(
                    "has {} bytes, of which at most {RESOURCE_BYTES_MAX} can be sent: split it",
                    upsert.content.len()
                );
                let refusal = ResourceRejection::new(upsert.key.clone(), reason);
                self.rejected_resources.set_aside(
                    upsert.key.clone(),
                    upsert.version(),
                    &refusal.reason,
                );
                self.oversized.push(refusal);
            }
        }
    }

    fn create_delta(&mut self, pushed: DesiredConfig, draft: PendingDelta, absent: bool) -> Delta {
        self.nonce += 1;
        let (upserts, removed, whole) = draft.take_prefix();
        self.stale = !whole;
        let update = &pushed.update;
        let delta = Delta {
            nonce: self.nonce,
            change: update.change,
            whole,
            removed,
            absent: absent.then(|| update.absent.clone()),
            upserts,
        };
        let versions = delta.upserts.iter().map(|upsert| (upsert.key.clone(), upsert.version()));
        self.in_flight = Some(UnacknowledgedDelta {
            nonce: self.nonce,
            upserts: versions.collect(),
            removed: delta.removed.clone(),
            pushed,
            absent,
            whole,
        });
        delta
    }

    fn take_in_flight(&mut self, nonce: u64) -> Option<UnacknowledgedDelta> {
        self.in_flight.take_if(|in_flight| in_flight.nonce == nonce)
    }
}

/// A sent delta without a response.
#[derive(Debug)]
struct UnacknowledgedDelta {
    nonce: u64,
    pushed: DesiredConfig,
    upserts: Vec<(ResourceKey, ResourceVersion)>,
    removed: Vec<ResourceKey>,
    absent: bool,
    whole: bool,
}

#[cfg(test)]
mod tests;
