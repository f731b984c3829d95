//! Tracks the resources that one workload's proxy holds, and applies deltas to them. The subscriber performs no
//! IO.

mod staging;

use std::sync::Arc;

use leno_model::Snapshot;

use crate::held_versions::HeldVersions;
use crate::key::{ResourceKey, ResourceVersion};
use crate::message::{ConfigUpdate, Delta, ResourceRejection};
use crate::stored::{self, InvalidStoredConfig};
use crate::subscriber::staging::DecodedDelta;

/// The proxy's held resource versions, and the configuration built from them.
#[derive(Debug, Clone, Default)]
pub struct Subscriber {
    held_versions: HeldVersions,
    /// The current configuration; `None` before the first complete delta.
    current_update: Option<ConfigUpdate>,
}

/// A validated delta that is not applied yet.
#[derive(Debug)]
pub struct StagedDelta {
    removed: Vec<ResourceKey>,
    upserts: Vec<(ResourceKey, ResourceVersion)>,
    update: ConfigUpdate,
}

impl StagedDelta {
    /// Returns the resulting configuration.
    #[must_use]
    pub fn update(&self) -> &ConfigUpdate {
        &self.update
    }
}

impl Subscriber {
    /// Creates a subscriber without resources.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the held versions, for the first message of a stream.
    #[must_use]
    pub fn held_versions(&self) -> Vec<(ResourceKey, ResourceVersion)> {
        self.held_versions.all_resources()
    }

    /// Returns the current configuration; `None` before the first complete delta.
    #[must_use]
    pub fn current_update(&self) -> Option<&ConfigUpdate> {
        self.current_update.as_ref()
    }

    /// Validates a whole delta without applying it.
    ///
    /// The resulting configuration shares the [`Arc`]s of unchanged services and endpoints with the current
    /// one.
    ///
    /// # Errors
    /// A reason for each rejected resource: its content is invalid, or it refers to a service that is neither
    /// held nor absent, or to a port that its service lacks.
    pub fn stage(&self, delta: Delta) -> Result<StagedDelta, Vec<ResourceRejection>> {
        let upsert_versions =
            delta.upserts.iter().map(|upsert| (upsert.key.clone(), upsert.version()));
        let upsert_versions = upsert_versions.collect();
        let decoded_delta = DecodedDelta::decode(&delta)?;
        let current_update = self.current_update.as_ref();
        let Some(config) = decoded_delta.build_workload_config(current_update) else {
            let reason = "the first update must contain the workload configuration";
            return Err(vec![ResourceRejection::new(ResourceKey::Workload, reason)]);
        };
        let absent = match (delta.absent, current_update) {
            (Some(absent), _) => absent,
            (None, Some(current_update)) => current_update.absent.clone(),
            (None, None) => Default::default(),
        };
        let services = decoded_delta.build_services(current_update, &absent)?;
        let addresses = decoded_delta.build_addresses(current_update);
        let names = decoded_delta.build_dns_records(current_update);
        let snapshot = match current_update.map(|current_update| &current_update.snapshot) {
            Some(old_snapshot)
                if Arc::ptr_eq(&old_snapshot.config, &config)
                    && services.is_none()
                    && addresses.is_none()
                    && names.is_none() =>
            {
                Arc::clone(old_snapshot)
            }
            old_snapshot => Arc::new(Snapshot {
                config,
                services: services
                    .or_else(|| old_snapshot.map(|old_snapshot| old_snapshot.services.clone()))
                    .unwrap_or_default(),
                addresses: addresses
                    .or_else(|| old_snapshot.map(|old_snapshot| old_snapshot.addresses.clone()))
                    .unwrap_or_default(),
                names: names
                    .or_else(|| old_snapshot.map(|old_snapshot| old_snapshot.names.clone()))
                    .unwrap_or_default(),
            }),
        };
        let update = ConfigUpdate { snapshot, absent, change: delta.change };
        Ok(StagedDelta { removed: delta.removed, upserts: upsert_versions, update })
    }

    /// Applies a staged delta.
    pub fn commit(&mut self, staged_delta: StagedDelta) -> &ConfigUpdate {
        for key in &staged_delta.removed {
            self.held_versions.remove(key);
        }
        for (key, version) in staged_delta.upserts {
            self.held_versions.insert(key, version);
        }
        self.current_update.insert(staged_delta.update)
    }

    /// Encodes the current configuration for the disk; empty if there is none. See [`ConfigUpdate::to_bytes`].
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.current_update.as_ref().map(ConfigUpdate::to_bytes).unwrap_or_default()
    }

    /// Decodes the output of [`Self::to_bytes`] or [`ConfigUpdate::to_bytes`].
    ///
    /// # Errors
    /// [`InvalidStoredConfig`] if the bytes are truncated, modified or of another format.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, InvalidStoredConfig> {
        let delta = stored::decode_stored(bytes)?;
        let mut subscriber = Self::new();
        let staged_delta = subscriber.stage(delta).map_err(|rejections| {
            let first_rejection = rejections.first().map(ToString::to_string);
            InvalidStoredConfig::Invalid(first_rejection.unwrap_or_default())
        })?;
        subscriber.commit(staged_delta);
        Ok(subscriber)
    }
}

#[cfg(test)]
mod tests;
