//! Resources that a proxy rejected, withheld until something relevant changes.

use std::collections::BTreeMap;

use leno_model::Snapshot;

use crate::envelope::{MAX_REASON_BYTES, truncate_text};
use crate::held_versions::{HeldVersions, endpoints_of};
use crate::key::{ChangeId, ResourceKey, ResourceVersion};
use crate::message::{ConfigUpdate, ResourceRejection};
use crate::resource::{
    encode_address_entry, encode_dns_record, encode_endpoint, encode_service,
    encode_workload_config,
};

/// Rejected resources, at most one entry for each resource that was sent.
#[derive(Debug, Default)]
pub(super) struct RejectedResources {
    entries: BTreeMap<ResourceKey, RejectedResource>,
}

/// One rejected resource.
#[derive(Debug)]
struct RejectedResource {
    /// The rejected content; `None` if its removal was rejected.
    version: Option<ResourceVersion>,
    reason: String,
    until: RetryTrigger,
}

/// The change that makes another attempt worthwhile.
#[derive(Debug)]
enum RetryTrigger {
    /// A change of the content itself.
    Changed,
    /// A change of the state of another resource.
    DependencyChanged(ResourceKey, DependencyState),
    /// Any newer configuration than that of this change: the proxy did not name the invalid part of the delta.
    NextConfig(ChangeId),
}

/// The state of a resource that another one depends on.
#[derive(Debug, PartialEq, Eq)]
struct DependencyState {
    desired: Option<ResourceVersion>,
    held: Option<ResourceVersion>,
    absent: bool,
}

impl RejectedResources {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// True if exactly this content, or the removal, was rejected.
    pub(super) fn contains(&self, key: &ResourceKey, version: Option<ResourceVersion>) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.version == version)
    }

    /// Returns all rejections, with their reasons.
    pub(super) fn list_rejections(&self) -> impl Iterator<Item = ResourceRejection> {
        self.entries.iter().map(|(key, entry)| ResourceRejection {
            key: key.clone(),
            reason: entry.reason.clone(),
            because: match &entry.until {
                RetryTrigger::DependencyChanged(key, _) => Some(key.clone()),
                RetryTrigger::Changed | RetryTrigger::NextConfig(_) => None,
            },
        })
    }

    /// Records a resource that is rejected before it is sent, until its content changes.
    pub(super) fn add_rejection(
        &mut self,
        key: ResourceKey,
        version: ResourceVersion,
        reason: &str,
    ) {
        let reason = reason.to_owned();
        self.entries.insert(
            key,
            RejectedResource { version: Some(version), reason, until: RetryTrigger::Changed },
        );
    }

    /// Records the rejections of a delta; returns true if one of them names a part of it.
    pub(super) fn record_rejections(
        &mut self,
        sent_resources: &[(ResourceKey, Option<ResourceVersion>)],
        rejections: &[ResourceRejection],
        update: &ConfigUpdate,
        held: &HeldVersions,
    ) -> bool {
        let by_key: BTreeMap<_, _> =
            rejections.iter().map(|rejection| (&rejection.key, rejection)).collect();
        let mut names_part = false;
        for (key, version) in sent_resources {
            let Some(rejection) = by_key.get(key) else {
                continue;
            };
            names_part = true;
            let until = match &rejection.because {
                Some(dependency) => {
                    let state = DependencyState::new(dependency, update, held);
                    RetryTrigger::DependencyChanged(dependency.clone(), state)
                }
                None if version.is_some() => RetryTrigger::Changed,
                None => RetryTrigger::NextConfig(update.change),
            };
            let reason = truncate_text(&rejection.reason, MAX_REASON_BYTES).to_owned();
            self.entries.insert(key.clone(), RejectedResource { version: *version, reason, until });
        }
        names_part
    }

    /// Records a rejected delta of which no part was named. None of its resources is sent again before the next
    /// configuration; otherwise the same delta would be sent and rejected forever.
    pub(super) fn reject_whole_delta(
        &mut self,
        sent_resources: &[(ResourceKey, Option<ResourceVersion>)],
        rejections: &[ResourceRejection],
        change: ChangeId,
    ) {
        let reason = match rejections.first() {
            Some(first) => truncate_text(&first.to_string(), MAX_REASON_BYTES).to_owned(),
            None => "rejected without a reason".to_owned(),
        };
        for (key, version) in sent_resources {
            let (reason, until) = (reason.clone(), RetryTrigger::NextConfig(change));
            self.entries.insert(key.clone(), RejectedResource { version: *version, reason, until });
        }
    }

    /// Releases all resources that wait for the state of another one; returns true if there were any.
    pub(super) fn try_release_dependents(&mut self) -> bool {
        let before = self.entries.len();
        self.release_dependents();
        self.entries.len() < before
    }

    /// Releases rejections about references after the proxy accepted a set of absent services: dangling
    /// references may be valid now, and referenced resources may be removable.
    pub(super) fn release_dependents(&mut self) {
        self.entries.retain(|_, entry| !matches!(entry.until, RetryTrigger::DependencyChanged(..)));
    }

    /// Releases resources that are no longer desired in the rejected form, and those that may be accepted now.
    pub(super) fn release(&mut self, update: &ConfigUpdate, held: &HeldVersions) {
        self.entries.retain(|key, entry| {
            let desired = desired_version(&update.snapshot, key);
            let is_withheld = match &entry.until {
                RetryTrigger::Changed => true,
                RetryTrigger::DependencyChanged(dependency, state) => {
                    DependencyState::new(dependency, update, held) == *state
                }
                RetryTrigger::NextConfig(change) => update.change == *change,
            };
            is_withheld && desired == entry.version && desired != held.version(key)
        });
    }
}

impl DependencyState {
    fn new(key: &ResourceKey, update: &ConfigUpdate, held: &HeldVersions) -> Self {
        Self {
            desired: desired_version(&update.snapshot, key),
            held: held.version(key),
            absent: key.service().is_some_and(|service| update.absent.contains(service)),
        }
    }
}

/// The desired version of a resource, if any.
fn desired_version(snapshot: &Snapshot, key: &ResourceKey) -> Option<ResourceVersion> {
    let content = match key {
        ResourceKey::Workload => encode_workload_config(&snapshot.config),
        ResourceKey::Service(name) => encode_service(snapshot.services.get(name)?),
        ResourceKey::Address(address) => encode_address_entry(snapshot.addresses.get(address)?),
        ResourceKey::Name(name) => encode_dns_record(snapshot.names.get(name)?),
        ResourceKey::Endpoint(id) => {
            let mut endpoints = endpoints_of(snapshot.services.get(&id.service)?);
            encode_endpoint(endpoints.find(|(_, endpoint)| endpoint.id == *id)?.1)
        }
    };
    Some(ResourceVersion::from_content(&content))
}
