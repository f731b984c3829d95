//! All registries into one bounded queue, and what they refuse.

use std::path::PathBuf;
use std::sync::Arc;

use leno_model::{Change, MeshConfig, Object, ObjectKey, TrustDomain};
use leno_registry::{FileSource, Located, Rejected, Update, Warning, watch};
use tokio::sync::{Notify, mpsc};

/// Reads the files now and whenever they change, until the receiver is gone.
pub(crate) async fn follow(
    paths: Vec<PathBuf>,
    updates: mpsc::Sender<Update>,
    reload: Arc<Notify>,
) {
    if let Err(error) = watch(FileSource::new(paths), updates, reload).await {
        tracing::error!(%error, "the files are no longer watched");
    }
}

/// What the registries said about the objects that are not, or not quite, in force.
#[derive(Debug, Default)]
pub(crate) struct Remarks {
    pub(crate) rejected: Vec<Rejected>,
    pub(crate) warnings: Vec<Warning>,
    /// The places of the objects in force, where they are read from files.
    pub(crate) locations: Vec<Located>,
    /// Why the trust domain that the `MeshConfig` wants is not in force.
    pub(crate) trust_domain: Option<String>,
}

impl Remarks {
    /// Takes in an update; the changes in it are returned, fit for a mesh of `trust_domain`.
    pub(crate) fn take(&mut self, update: Update, trust_domain: &TrustDomain) -> Vec<Change> {
        for warning in update.warnings.iter().filter(|now| !self.warnings.contains(now)) {
            tracing::warn!(%warning, "a document is accepted with a warning");
        }
        self.warnings = update.warnings;
        self.locations = update.locations;
        // An update lists all that are refused as things stand; the log tells of each once.
        for rejected in update.rejected.iter().filter(|now| !self.rejected.contains(now)) {
            tracing::warn!(%rejected, "a document is refused; an earlier good one, if any, stays in force");
        }
        self.rejected = update.rejected;
        let changes = update.changes.into_iter();
        changes.map(|change| self.keep_trust_domain(change, trust_domain)).collect()
    }

    /// Every certificate of a running mesh is of one trust domain: that of the authority.
    fn keep_trust_domain(&mut self, change: Change, trust_domain: &TrustDomain) -> Change {
        let mut config = match change {
            Change::Upsert(Object::MeshConfig(config)) => config,
            Change::Remove(ObjectKey::MeshConfig) => MeshConfig::default(),
            other => return other,
        };
        self.trust_domain = (config.trust_domain != *trust_domain).then(|| {
            format!(
                "the mesh runs as trust domain {trust_domain}, and {} cannot replace it while it \
                 runs; start again with a new data directory, or set `spec.trustDomain` back",
                config.trust_domain
            )
        });
        config.trust_domain = trust_domain.clone();
        Change::Upsert(Object::MeshConfig(config))
    }
}

/// The trust domain that the first reading of the registries asks for.
#[must_use]
pub fn trust_domain_of(update: &Update) -> TrustDomain {
    let config = update.changes.iter().find_map(|change| match change {
        Change::Upsert(Object::MeshConfig(config)) => Some(config.clone()),
        _ => None,
    });
    config.unwrap_or_default().trust_domain
}

/// Updates that wait for the owner of the mesh; further ones wait in their source.
pub const UPDATES_MAX: usize = 16;
