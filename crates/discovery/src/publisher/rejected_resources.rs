//! Records the resources that a proxy rejected. The publisher withholds each of them until the resource itself
//! or a dependency changes.

use std::collections::BTreeMap;

use leno_model::Snapshot;

use crate::envelope::{MAX_REASON_BYTES, truncate_text};
use crate::held_versions::{HeldVersions, service_endpoints};
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
    retry_trigger: RetryTrigger,
}

/// The change that makes another attempt worthwhile.
#[derive(Debug)]
enum RetryTrigger {
    /// A change of the rejected content.
    ContentChanged,
    /// A change of the state of another resource.
    DependencyChanged(ResourceKey, DependencyState),
    /// Any configuration newer than this change: the proxy rejected a removal, or did not name the invalid resource
    /// of the delta.
    NextConfig(ChangeId),
}

/// The state of a resource that another one depends on.
#[derive(Debug, PartialEq, Eq)]
struct DependencyState {
    /// The version in the desired configuration; `None` if the configuration lacks the resource.
    desired_version: Option<ResourceVersion>,
    /// The version that the proxy holds, if any.
    held_version: Option<ResourceVersion>,
    /// True for a service that the desired configuration lists as absent.
    is_absent: bool,
}

impl RejectedResources {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// True if exactly this version was rejected, or the removal if `version` is `None`.
    pub(super) fn contains(&self, key: &ResourceKey, version: Option<ResourceVersion>) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.version == version)
    }

    /// Returns all rejections, with their reasons.
    pub(super) fn list_rejections(&self) -> impl Iterator<Item = ResourceRejection> {
        self.entries.iter().map(|(key, entry)| ResourceRejection {
            key: key.clone(),
            reason: entry.reason.clone(),
            because: match &entry.retry_trigger {
                RetryTrigger::DependencyChanged(key, _) => Some(key.clone()),
                RetryTrigger::ContentChanged | RetryTrigger::NextConfig(_) => None,
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
            RejectedResource {
                version: Some(version),
                reason,
                retry_trigger: RetryTrigger::ContentChanged,
            },
        );
    }

    /// Records the rejections of a delta. Returns true if one of them names a resource that the delta
    /// contained.
    pub(super) fn record_rejections(
        &mut self,
        sent_resources: &[(ResourceKey, Option<ResourceVersion>)],
        rejections: &[ResourceRejection],
        update: &ConfigUpdate,
        held_versions: &HeldVersions,
    ) -> bool {
        let rejections_by_key: BTreeMap<_, _> =
            rejections.iter().map(|rejection| (&rejection.key, rejection)).collect();
        let mut names_sent_resource = false;
        for (key, version) in sent_resources {
            let Some(rejection) = rejections_by_key.get(key) else {
                continue;
            };
            names_sent_resource = true;
            let retry_trigger = match &rejection.because {
                Some(dependency) => {
                    let state = DependencyState::new(dependency, update, held_versions);
                    RetryTrigger::DependencyChanged(dependency.clone(), state)
                }
                None if version.is_some() => RetryTrigger::ContentChanged,
                // A removal has no content that could change.
                None => RetryTrigger::NextConfig(update.change),
            };
            let reason = truncate_text(&rejection.reason, MAX_REASON_BYTES).to_owned();
            self.entries
                .insert(key.clone(), RejectedResource { version: *version, reason, retry_trigger });
        }
        names_sent_resource
    }

    /// Records a rejected delta whose rejections name none of its resources. None of these resources is sent
    /// again before the next configuration; otherwise the same delta would be sent and rejected forever.
    pub(super) fn record_rejected_delta(
        &mut self,
        sent_resources: &[(ResourceKey, Option<ResourceVersion>)],
        rejections: &[ResourceRejection],
        change: ChangeId,
    ) {
        let reason = match rejections.first() {
            Some(first_rejection) => {
                truncate_text(&first_rejection.to_string(), MAX_REASON_BYTES).to_owned()
            }
            None => "rejected without a reason".to_owned(),
        };
        for (key, version) in sent_resources {
            let (reason, retry_trigger) = (reason.clone(), RetryTrigger::NextConfig(change));
            self.entries
                .insert(key.clone(), RejectedResource { version: *version, reason, retry_trigger });
        }
    }

    /// Releases all resources that wait for the state of another resource. Returns true if any was released.
    pub(super) fn try_release_dependents(&mut self) -> bool {
        let old_count = self.entries.len();
        self.release_dependents();
        self.entries.len() < old_count
    }

    /// Releases all resources that wait for the state of another resource. Called after the proxy has accepted
    /// a set of absent services: references to these services are valid now, and services without references
    /// may be removable.
    pub(super) fn release_dependents(&mut self) {
        self.entries
            .retain(|_, entry| !matches!(entry.retry_trigger, RetryTrigger::DependencyChanged(..)));
    }

    /// Releases resources with another desired version than the rejected one or with a desired version that is
    /// held by now, and resources with a retry trigger that occurred.
    pub(super) fn release_outdated(&mut self, update: &ConfigUpdate, held_versions: &HeldVersions) {
        self.entries.retain(|key, entry| {
            let desired_version = find_desired_version(&update.snapshot, key);
            let is_withheld = match &entry.retry_trigger {
                RetryTrigger::ContentChanged => true,
                RetryTrigger::DependencyChanged(dependency, state) => {
                    DependencyState::new(dependency, update, held_versions) == *state
                }
                RetryTrigger::NextConfig(change) => update.change == *change,
            };
            is_withheld
                && desired_version == entry.version
                && desired_version != held_versions.version(key)
        });
    }
}

impl DependencyState {
    fn new(key: &ResourceKey, update: &ConfigUpdate, held_versions: &HeldVersions) -> Self {
        Self {
            desired_version: find_desired_version(&update.snapshot, key),
            held_version: held_versions.version(key),
            is_absent: key.service().is_some_and(|service| update.absent.contains(service)),
        }
    }
}

/// Returns the desired version of a resource; `None` if it is not in the snapshot.
fn find_desired_version(snapshot: &Snapshot, key: &ResourceKey) -> Option<ResourceVersion> {
    let content = match key {
        ResourceKey::Workload => encode_workload_config(&snapshot.config),
        ResourceKey::Service(name) => encode_service(snapshot.services.get(name)?),
        ResourceKey::Address(address) => encode_address_entry(snapshot.addresses.get(address)?),
        ResourceKey::Name(name) => encode_dns_record(snapshot.names.get(name)?),
        ResourceKey::Endpoint(id) => {
            let mut endpoints = service_endpoints(snapshot.services.get(&id.service)?);
            encode_endpoint(endpoints.find(|(_, endpoint)| endpoint.id == *id)?.1)
        }
    };
    Some(ResourceVersion::from_content(&content))
}
