//! Follows the files with the objects of the mesh, records diagnostics about rejected objects, and keeps the trust
//! domain of a running mesh fixed.

use std::path::PathBuf;
use std::sync::Arc;

use leno_model::{Change, MeshConfig, Object, ObjectKey, TrustDomain};
use leno_registry::{
    FileSource, ObjectLocation, RegistryUpdate, RejectedDocument, Warning, watch_source,
};
use tokio::sync::{Notify, mpsc};

/// Reads the files, and reads them again after each change or reload, until the receiver of updates is dropped.
pub(crate) async fn follow_sources(
    paths: Vec<PathBuf>,
    updates: mpsc::Sender<RegistryUpdate>,
    reload: Arc<Notify>,
) {
    if let Err(error) = watch_source(FileSource::new(paths), updates, reload).await {
        tracing::error!(%error, "the files are no longer watched");
    }
}

/// Diagnostics of the registries for objects that are rejected, or only partly applied.
#[derive(Debug, Default)]
pub(crate) struct Diagnostics {
    pub(crate) rejected: Vec<RejectedDocument>,
    pub(crate) warnings: Vec<Warning>,
    /// The locations of the accepted objects that are read from files.
    pub(crate) locations: Vec<ObjectLocation>,
    /// The reason why the trust domain of the `MeshConfig` is not applied; `None` if it is.
    pub(crate) trust_domain_problem: Option<String>,
}

impl Diagnostics {
    /// Processes an update; returns its changes, adjusted to a mesh of `trust_domain`.
    pub(crate) fn process_update(
        &mut self,
        update: RegistryUpdate,
        trust_domain: &TrustDomain,
    ) -> Vec<Change> {
        for warning in update.warnings.iter().filter(|warning| !self.warnings.contains(warning)) {
            tracing::warn!(%warning, "a document is accepted with a warning");
        }
        self.warnings = update.warnings;
        self.locations = update.locations;
        // An update lists all rejected documents; each is logged once.
        for rejected in update.rejected.iter().filter(|rejected| !self.rejected.contains(rejected))
        {
            tracing::warn!(%rejected, "document rejected; the last valid version, if any, stays in use");
        }
        self.rejected = update.rejected;
        let changes = update.changes.into_iter();
        changes.map(|change| self.with_trust_domain(change, trust_domain)).collect()
    }

    /// Returns a change with the trust domain of the authority: all certificates of a running mesh have it.
    fn with_trust_domain(&mut self, change: Change, trust_domain: &TrustDomain) -> Change {
        let mut config = match change {
            Change::Upsert(Object::MeshConfig(config)) => config,
            Change::Remove(ObjectKey::MeshConfig) => MeshConfig::default(),
            other => return other,
        };
        self.trust_domain_problem = (config.trust_domain != *trust_domain).then(|| {
            format!(
                "the trust domain of a running mesh cannot change from {trust_domain} to {}: start again with a new data \
                 directory, or revert `spec.trustDomain`",
                config.trust_domain
            )
        });
        config.trust_domain = trust_domain.clone();
        Change::Upsert(Object::MeshConfig(config))
    }
}

/// Returns the trust domain that the first update of the registries requests.
#[must_use]
pub fn requested_trust_domain(update: &RegistryUpdate) -> TrustDomain {
    let config = update.changes.iter().find_map(|change| match change {
        Change::Upsert(Object::MeshConfig(config)) => Some(config.clone()),
        _ => None,
    });
    config.unwrap_or_default().trust_domain
}

/// Maximum queued updates for the state task; further ones wait in their source.
pub const MAX_UPDATES: usize = 16;
