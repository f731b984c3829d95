//! Shares the certificate authority of the mesh between all control planes of a cluster, in a Secret.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::watcher::{Config, Event};
use leno_identity::{AuthorityError, AuthorityFiles, AuthoritySource};
use leno_model::TrustDomain;
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use crate::api::{ApiError, NamespaceName, ObjectApi};
use crate::well_known::{AUTHORITY_NAME, AUTHORITY_SECRET, CONTROL, ROOTS_CONFIG_MAP, ROOTS_NAME};

/// The authority's Secret and the directory in which this control plane keeps a copy.
///
/// A control plane reopens the directory periodically. Changes to the Secret by another control plane or by
/// cert-manager are written to the directory. Changes that `leno ca` makes to the directory are written to
/// the Secret.
pub struct SharedAuthority {
    secrets: ObjectApi<Secret>,
    config_maps: ObjectApi<ConfigMap>,
    directory: PathBuf,
    trust_domain: TrustDomain,
    /// The last seen version of the Secret.
    last_secret: Option<Secret>,
    /// The content of the directory when it last equaled the Secret.
    synced_files: AuthorityFiles,
    /// The content of the directory at the last poll, if it differed from the Secret.
    unsynced_files: Option<AuthorityFiles>,
    /// The roots last written to the ConfigMap.
    published_roots: Option<String>,
}

impl SharedAuthority {
    /// Creates the shared authority. No request is sent and no file is written yet.
    #[must_use]
    pub fn new(
        client: Client,
        namespace: &NamespaceName,
        directory: &Path,
        trust_domain: TrustDomain,
    ) -> Self {
        Self {
            secrets: ObjectApi::for_namespace(client.clone(), namespace),
            config_maps: ObjectApi::for_namespace(client, namespace),
            directory: directory.to_owned(),
            trust_domain,
            last_secret: None,
            synced_files: AuthorityFiles::default(),
            unsynced_files: None,
            published_roots: None,
        }
    }

    /// Writes the Secret to the directory. If there is no Secret, creates it from the directory, and first
    /// creates an authority there if the directory has none. The first control plane to create the Secret wins.
    ///
    /// # Errors
    /// When the Secret or the directory cannot be used, or the Secret was deleted although roots are published.
    pub async fn establish_authority(&mut self) -> Result<AuthoritySource, SharedAuthorityError> {
        let mut existing_secret =
            self.secrets.get_opt(&AUTHORITY_NAME).await.map_err(SharedAuthorityError::Read)?;
        if existing_secret.is_none() && self.has_orphaned_roots().await? {
            // The control plane that published the roots had created the Secret before.
            existing_secret =
                self.secrets.get_opt(&AUTHORITY_NAME).await.map_err(SharedAuthorityError::Read)?;
            existing_secret.as_ref().ok_or(SharedAuthorityError::DeletedInUse)?;
        }
        if existing_secret.is_none() {
            let files = self.open_or_create_authority()?;
            let create_result =
                self.secrets.create(&PostParams::default(), &build_secret(&files)).await;
            existing_secret = match create_result {
                Ok(secret) => {
                    tracing::info!("the CA is stored in the Secret `{AUTHORITY_SECRET}`");
                    Some(secret)
                }
                Err(error) if is_conflict(&error) => self
                    .secrets
                    .get_opt(&AUTHORITY_NAME)
                    .await
                    .map_err(SharedAuthorityError::Read)?,
                Err(error) => return Err(SharedAuthorityError::Write(error)),
            };
        }
        let secret = existing_secret.ok_or(SharedAuthorityError::DeletedDuringStartup)?;
        let source = read_authority_files(&secret)
            .source(&self.directory)
            .ok_or(SharedAuthorityError::Incomplete)?;
        self.adopt_secret(secret)?;
        // Report an unusable authority now rather than with the first certificate.
        source.open(&self.trust_domain, SystemTime::now())?;
        self.publish_roots().await;
        Ok(source)
    }

    /// Synchronizes the directory and the Secret, and publishes the roots in the ConfigMap. Never returns.
    pub async fn run_synchronization(mut self) {
        let secret_selector =
            Config::default().fields(&format!("metadata.name={AUTHORITY_SECRET}"));
        let mut events = pin!(self.secrets.clone().watch(secret_selector));
        let mut poll_timer = interval(POLL_INTERVAL);
        poll_timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // `is_listed` is true after the first complete list: only then is a missing Secret known to be deleted.
        let (mut secret_exists, mut is_listed, mut poll_count) = (false, false, 0_u32);
        loop {
            let event = tokio::select! {
                Some(event) = events.next() => Some(event),
                _ = poll_timer.tick() => None,
            };
            match event {
                Some(Ok(Event::Init)) => secret_exists = false,
                Some(Ok(Event::InitApply(secret) | Event::Apply(secret))) => {
                    secret_exists = true;
                    self.adopt_changed_secret(secret);
                    self.publish_roots().await;
                }
                Some(Ok(Event::InitDone)) => {
                    is_listed = true;
                    if !secret_exists {
                        self.restore_secret().await;
                    }
                }
                Some(Ok(Event::Delete(_))) => {
                    secret_exists = false;
                    self.restore_secret().await;
                }
                Some(Err(error)) => {
                    tracing::warn!(%error, "cannot watch the Secret `{AUTHORITY_SECRET}`");
                }
                None => {
                    poll_count = poll_count.wrapping_add(1);
                    if poll_count.is_multiple_of(POLLS_PER_PUBLICATION) {
                        // Forces a write although our roots are unchanged: another client may have changed the ConfigMap.
                        self.published_roots = None;
                        self.publish_roots().await;
                    }
                    // The API server may have rejected the previous attempt to restore the Secret.
                    if is_listed && !secret_exists {
                        self.restore_secret().await;
                    } else if is_listed {
                        self.write_changes_to_secret().await;
                    }
                }
            }
        }
    }

    /// Returns true if roots are published but the directory has no authority. The caller calls it only if there is no
    /// Secret: it was then deleted, perhaps by mistake. This control plane must not create a new authority, which would
    /// invalidate all certificates of the mesh. A control plane that has a copy of the authority restores the Secret.
    async fn has_orphaned_roots(&self) -> Result<bool, SharedAuthorityError> {
        if AuthorityFiles::read(&self.directory)?.source(&self.directory).is_some() {
            // The authority is in the directory: the Secret is created from it.
            return Ok(false);
        }
        let read_result = self.config_maps.get_opt(&ROOTS_NAME).await;
        Ok(read_result.map_err(SharedAuthorityError::ReadRoots)?.is_some())
    }

    /// Opens the authority in the directory, or creates one.
    fn open_or_create_authority(&self) -> Result<AuthorityFiles, SharedAuthorityError> {
        let files = AuthorityFiles::read(&self.directory)?;
        let existing_source = files.source(&self.directory);
        let source =
            existing_source.unwrap_or_else(|| AuthoritySource::BuiltIn(self.directory.clone()));
        source.open_or_create(&self.trust_domain, SystemTime::now())?;
        Ok(AuthorityFiles::read(&self.directory)?)
    }

    /// Stores this version of the Secret, and writes its content to the directory if it differs.
    fn adopt_secret(&mut self, secret: Secret) -> io::Result<()> {
        let files = read_authority_files(&secret);
        if files != self.synced_files {
            files.write(&self.directory)?;
            self.synced_files = files;
            self.unsynced_files = None;
        }
        self.last_secret = Some(secret);
        Ok(())
    }

    /// Checks that these files can sign, in a scratch directory next to the one of the authority.
    fn check_files(&self, files: &AuthorityFiles) -> Result<(), SharedAuthorityError> {
        let scratch_directory = self.directory.with_extension("tried");
        files.write(&scratch_directory)?;
        let source = files.source(&scratch_directory).ok_or(SharedAuthorityError::Incomplete);
        let open_result = source.and_then(|source| {
            source
                .open(&self.trust_domain, SystemTime::now())
                .map(drop)
                .map_err(SharedAuthorityError::from)
        });
        std::fs::remove_dir_all(&scratch_directory)?;
        open_result
    }

    /// Adopts a changed Secret. If the new content cannot sign, the current authority stays in use.
    fn adopt_changed_secret(&mut self, secret: Secret) {
        let files = read_authority_files(&secret);
        if files != self.synced_files
            && let Err(error) = self.check_files(&files)
        {
            tracing::error!(%error, "cannot use the Secret `{AUTHORITY_SECRET}`; the previous authority stays in use");
            return;
        }
        if let Err(error) = self.adopt_secret(secret) {
            tracing::error!(%error, "cannot write the authority of the Secret `{AUTHORITY_SECRET}` to disk");
        }
    }

    /// Recreates the deleted Secret, because the members of the mesh have certificates of this authority.
    async fn restore_secret(&mut self) {
        let secret = build_secret(&self.synced_files);
        match self.secrets.create(&PostParams::default(), &secret).await {
            Ok(secret) => {
                tracing::warn!("the Secret `{AUTHORITY_SECRET}` was deleted; creating it again");
                self.last_secret = Some(secret);
            }
            // Another control plane was faster.
            Err(error) if is_conflict(&error) => {}
            Err(error) => {
                tracing::error!(%error, "the Secret `{AUTHORITY_SECRET}` was deleted and cannot be \
                                         created again");
            }
        }
    }

    /// Writes changes of the directory to the Secret. If the Secret was changed as well, its content wins.
    async fn write_changes_to_secret(&mut self) {
        // The next poll reads the directory again.
        let Ok(files) = AuthorityFiles::read(&self.directory) else { return };
        if files == self.synced_files {
            self.unsynced_files = None;
            return;
        }
        // A change may span several files: wait until two polls see the same content.
        if self.unsynced_files.as_ref() != Some(&files) {
            self.unsynced_files = Some(files);
            return;
        }
        // Other control planes must not receive an authority that cannot sign.
        let is_valid = files
            .source(&self.directory)
            .is_some_and(|source| source.open(&self.trust_domain, SystemTime::now()).is_ok());
        let Some(mut secret) = self.last_secret.clone().filter(|_| is_valid) else { return };
        fill_secret(&mut secret, &files);
        // The request contains the resource version, so that it fails if the Secret was changed as well.
        match self.secrets.replace(&AUTHORITY_NAME, &PostParams::default(), &secret).await {
            Ok(secret) => {
                tracing::info!("the local CA was changed; the Secret is updated");
                self.last_secret = Some(secret);
                self.synced_files = files;
                self.unsynced_files = None;
                self.publish_roots().await;
            }
            Err(error) if is_conflict(&error) => {
                tracing::warn!(
                    "the CA was changed both locally and in the Secret; the Secret takes precedence"
                );
            }
            Err(error) => {
                tracing::error!(%error, "the local CA was changed, but the Secret \
                                         `{AUTHORITY_SECRET}` cannot be updated");
            }
        }
    }

    /// Publishes the roots in a ConfigMap that all accounts may read.
    async fn publish_roots(&mut self) {
        let roots = self.synced_files.root_pem();
        let Some(roots) = roots.filter(|roots| self.published_roots.as_ref() != Some(roots)) else {
            return;
        };
        let config_map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": ROOTS_CONFIG_MAP},
            "data": {ROOTS_KEY: roots},
        });
        // `CONTROL` is the field manager. `force` takes over the roots if another field manager has changed them.
        let parameters = PatchParams::apply(CONTROL).force();
        match self.config_maps.patch(&ROOTS_NAME, &parameters, &Patch::Apply(config_map)).await {
            Ok(_) => self.published_roots = Some(roots),
            Err(error) => {
                tracing::warn!(%error, "cannot write the roots to the ConfigMap \
                                        `{ROOTS_CONFIG_MAP}`");
            }
        }
    }
}

/// An error that leaves the control plane without an authority.
#[derive(Debug, thiserror::Error)]
pub enum SharedAuthorityError {
    /// The Secret cannot be read.
    #[error(
        "the Secret `{AUTHORITY_SECRET}` cannot be read: {0}; the control plane's account needs to \
         get, list, watch, create and update it"
    )]
    Read(#[source] ApiError),
    /// The Secret cannot be written.
    #[error("the Secret `{AUTHORITY_SECRET}` cannot be written: {0}")]
    Write(#[source] ApiError),
    /// The ConfigMap of the roots cannot be read.
    #[error(
        "the ConfigMap `{ROOTS_CONFIG_MAP}` cannot be read: {0}; the control plane's account needs \
         to get it"
    )]
    ReadRoots(#[source] ApiError),
    /// The Secret was deleted, but its roots are still published: members of the mesh use certificates of this authority.
    #[error(
        "the Secret `{AUTHORITY_SECRET}` is missing, and the ConfigMap `{ROOTS_CONFIG_MAP}` shows \
         that members have certificates of this CA: restore the Secret, or delete the ConfigMap to \
         start with a new CA, after which every pod of the mesh must be restarted"
    )]
    DeletedInUse,
    /// The Secret was deleted during startup.
    #[error("the Secret `{AUTHORITY_SECRET}` is being deleted: start again")]
    DeletedDuringStartup,
    /// The Secret lacks keys.
    #[error(
        "`{AUTHORITY_SECRET}` needs the keys `ca.key` and `ca.pem`, or `tls.key`, `tls.crt` and \
         `ca.crt` as cert-manager writes them"
    )]
    Incomplete,
    /// The directory cannot be used.
    #[error("the authority's directory cannot be used: {0}")]
    Io(#[from] io::Error),
    /// The authority in the Secret cannot sign.
    #[error("the authority cannot be used: {0}")]
    Authority(#[from] AuthorityError),
}

/// Extracts the authority's files from a Secret. Entries that are not UTF-8 are ignored.
fn read_authority_files(secret: &Secret) -> AuthorityFiles {
    let data = secret.data.iter().flatten();
    AuthorityFiles::from_files(data.filter_map(|(name, bytes)| {
        Some((name.as_str(), String::from_utf8(bytes.0.clone()).ok()?))
    }))
}

/// Builds a new Secret with these files.
fn build_secret(files: &AuthorityFiles) -> Secret {
    let mut labels = BTreeMap::new();
    labels.insert("app.kubernetes.io/part-of".to_owned(), "leno".to_owned());
    let metadata = ObjectMeta {
        name: Some(AUTHORITY_SECRET.to_owned()),
        labels: Some(labels),
        ..ObjectMeta::default()
    };
    let mut secret = Secret { metadata, ..Secret::default() };
    fill_secret(&mut secret, files);
    secret
}

/// Replaces the authority's entries in a Secret and keeps the others.
fn fill_secret(secret: &mut Secret, files: &AuthorityFiles) {
    let data = secret.data.get_or_insert_default();
    for name in AuthorityFiles::file_names() {
        data.remove(name);
    }
    let entries = files.iter().map(|(name, text)| (name.to_owned(), ByteString(text.into())));
    data.extend(entries);
}

/// Returns true for HTTP 409: another client created or changed the object first.
fn is_conflict(error: &ApiError) -> bool {
    error.status_code() == Some(409)
}

/// The key of the roots in their ConfigMap.
const ROOTS_KEY: &str = "roots.pem";

/// The interval between polls of the directory, which has a few small files.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The number of polls after which the ConfigMap is written again, to undo changes by other clients.
const POLLS_PER_PUBLICATION: u32 = 60;

#[cfg(test)]
mod tests;
