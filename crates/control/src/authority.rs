//! Follows the files of the certificate authority and of the revoked workloads: publishes their contents when the
//! files change, and writes files again that were removed by mistake.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_identity::{
    Authority, AuthorityError, AuthorityFiles, AuthoritySource, RevocationFile,
    check_private_directory,
};
use leno_model::RevokedWorkload;
use rustix::fs::OFlags;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::config::Config;
use crate::data_directory::DataDirectory;

/// A receiver of the current authority, which is read for every signature and every set of roots.
pub(crate) type AuthorityReceiver = watch::Receiver<Arc<Authority>>;

/// Follows the files of the authority and of revocations.
pub(crate) fn follow_files(
    config: &Config,
    authority: watch::Sender<Arc<Authority>>,
    revoked_workloads: watch::Sender<RevokedWorkloads>,
    directory: Arc<DataDirectory>,
) -> impl Future<Output = ()> + use<> {
    let (source, trusted_file) = (config.authority_source(), config.intermediates_file());
    let revocation_file =
        FollowedRevocationFile::from_file(RevocationFile::in_directory(config.shared_directory()));
    async move {
        let authority_task = follow_authority(source, trusted_file, authority, directory);
        let revocation_task = follow_revocations(revocation_file, revoked_workloads);
        let ((), ()) = tokio::join!(authority_task, revocation_task);
    }
}

/// Polls for a changed authority at the path of the current one, until all receivers are dropped. An unusable
/// authority is logged once, and the previous one remains in use. If the data directory was removed, the same
/// files are written again.
///
/// The intermediates that members trust are kept in the file `trusted_file`.
async fn follow_authority(
    source: AuthoritySource,
    trusted_file: PathBuf,
    authority_sender: watch::Sender<Arc<Authority>>,
    directory: Arc<DataDirectory>,
) {
    let trust_domain = authority_sender.borrow().trust_domain().clone();
    let mut files = OwnAuthorityFiles::from_source(&source);
    loop {
        // After a panic, no files are known, and none are restored any more.
        files = spawn_blocking(move || files.read_or_restore()).await.unwrap_or_default();
        tokio::select! {
            () = authority_sender.closed() => return,
            () = sleep(CHECK_INTERVAL) => {}
        }
        let (source, trust_domain, trusted_file) =
            (source.clone(), trust_domain.clone(), trusted_file.clone());
        let previous_authority = Arc::clone(&authority_sender.borrow());
        let open_task = spawn_blocking(move || {
            let now = SystemTime::now();
            let opened_authority =
                source.open(&trust_domain, now)?.as_successor_of(&previous_authority, now);
            opened_authority.save_trusted_intermediates(&trusted_file)?;
            Ok::<_, AuthorityError>(opened_authority)
        });
        // After a panic, the next check tries again.
        let Ok(open_result) = open_task.await else { continue };
        match open_result {
            Ok(new_authority) => {
                directory.record_authority_problem(None);
                let new_authority = Arc::new(new_authority);
                let changed = authority_sender.send_if_modified(|current| {
                    let changed = **current != *new_authority;
                    if changed {
                        *current = Arc::clone(&new_authority);
                    }
                    changed
                });
                if changed {
                    tracing::info!(
                        roots = new_authority.roots().certificates().len(),
                        "the authority changed"
                    );
                }
            }
            Err(error) => {
                if directory.record_authority_problem(Some(error.to_string())) {
                    tracing::error!(%error, "cannot load the files of the authority; the previous authority remains in use");
                }
            }
        }
    }
}

/// The files of the control plane's own authority, kept in case the data directory is removed.
#[derive(Debug, Default)]
struct OwnAuthorityFiles {
    /// The authority's directory; `None` if an external issuer, such as cert-manager, provides the authority.
    directory: Option<PathBuf>,
    /// The files as last read; empty before the first read.
    files: AuthorityFiles,
    /// The parent directory of the authority's directory.
    parent_directory: OpenedDirectory,
}

impl OwnAuthorityFiles {
    fn from_source(source: &AuthoritySource) -> Self {
        let directory = match source {
            AuthoritySource::BuiltIn(directory) => Some(directory.clone()),
            // The external issuer restores its own files.
            AuthoritySource::Intermediate(_) => None,
        };
        Self { directory, ..Self::default() }
    }

    /// Reads the files again, or writes them if the data directory was removed as a whole. If only the
    /// authority's directory is missing, nothing is written: an operator may be replacing it.
    fn read_or_restore(mut self) -> Self {
        let Some(directory) = &self.directory else { return self };
        let Some(parent) = directory.parent() else { return self };
        // The parent directory is opened before the files are read. If another directory replaces it meanwhile, the
        // next check detects that.
        let current_parent = self.parent_directory.reopen_at(parent);
        if !is_absent(directory) {
            let checked_directory = check_private_directory(directory);
            match checked_directory.and_then(|()| AuthorityFiles::read(directory)) {
                Ok(files)
                    if files.source(directory)
                        == Some(AuthoritySource::BuiltIn(directory.clone())) =>
                {
                    self.files = files;
                    self.parent_directory = current_parent;
                }
                // Incomplete files, or those of an external issuer, are never restored.
                Ok(_) | Err(_) => {}
            }
        } else if self.files != AuthorityFiles::default()
            && self.parent_directory.is_removed_from(parent)
        {
            match self.files.write(directory) {
                Ok(()) => tracing::warn!(
                    path = %directory.display(),
                    "the data directory was removed; rewriting the files of the authority"
                ),
                Err(error) => tracing::error!(
                    path = %directory.display(), %error,
                    "the data directory was removed, and the files of the authority cannot be rewritten yet"
                ),
            }
        }
        self
    }
}

/// An open directory handle. It stays open so that no later directory gets the same inode number.
#[derive(Debug, Clone, Default)]
struct OpenedDirectory(Option<(FileIdentity, Arc<File>)>);

impl OpenedDirectory {
    /// Opens the directory that is now at the path; returns this one if none can be opened there.
    fn reopen_at(&self, path: &Path) -> Self {
        if self.0.is_some() && !self.is_removed_from(path) {
            return self.clone();
        }
        // Without `DIRECTORY`, opening a named pipe would block until a writer appears.
        let mut options = File::options();
        options.read(true).custom_flags(OFlags::DIRECTORY.bits().cast_signed());
        options
            .open(path)
            .and_then(|file| Ok((file_identity(&file.metadata()?), Arc::new(file))))
            .map_or_else(|_| self.clone(), |identity_and_file| Self(Some(identity_and_file)))
    }

    /// True unless `self` and `other` are both open and are the same directory.
    fn differs_from(&self, other: &Self) -> bool {
        let identity = |directory: &Self| directory.0.as_ref().map(|(identity, _)| *identity);
        identity(self).is_none_or(|own_identity| identity(other) != Some(own_identity))
    }

    /// True if the path is missing or names another directory. False if no directory was opened.
    fn is_removed_from(&self, path: &Path) -> bool {
        let Some((own_identity, _)) = &self.0 else { return false };
        match fs::metadata(path) {
            Ok(metadata) => file_identity(&metadata) != *own_identity,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

/// The identity of a file: a device number, and an inode number on that device.
type FileIdentity = (u64, u64);

fn file_identity(metadata: &Metadata) -> FileIdentity {
    (metadata.dev(), metadata.ino())
}

fn is_absent(path: &Path) -> bool {
    let metadata = fs::symlink_metadata(path);
    metadata.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Polls for workloads revoked by `leno revoke`, until all receivers are dropped. An unreadable file changes
/// nothing, and a removed file is written again.
async fn follow_revocations(
    mut revocation_file: FollowedRevocationFile,
    revoked_workloads: watch::Sender<RevokedWorkloads>,
) {
    let mut has_failed = false;
    loop {
        let (mut followed_file, previous_workloads) =
            (revocation_file.clone(), revoked_workloads.borrow().clone());
        let read_task = spawn_blocking(move || {
            let read_result = followed_file.read(&previous_workloads);
            (followed_file, read_result)
        });
        if let Ok((followed_file, read_result)) = read_task.await {
            revocation_file = followed_file;
            match read_result {
                Ok(new) => {
                    has_failed = false;
                    revoked_workloads.send_if_modified(|old| {
                        let changed = *old != new;
                        if changed {
                            *old = new;
                        }
                        changed
                    });
                }
                Err(error) if !has_failed => {
                    has_failed = true;
                    tracing::error!(%error, "cannot read the revoked workloads; the previous list remains in force");
                }
                Err(_) => {}
            }
        }
        tokio::select! {
            () = revoked_workloads.closed() => return,
            () = sleep(CHECK_INTERVAL) => {}
        }
    }
}

/// The file of revoked workloads, with the directory from which it was last read.
#[derive(Debug, Clone)]
struct FollowedRevocationFile {
    file: RevocationFile,
    directory: OpenedDirectory,
}

impl FollowedRevocationFile {
    fn from_file(file: RevocationFile) -> Self {
        let directory = OpenedDirectory::default().reopen_at(file.directory());
        Self { file, directory }
    }

    /// Reads the revoked workloads. A missing file does not undo revocations, and neither does the file of a
    /// recreated directory: the operator undoes a revocation with `leno revoke --undo`, which leaves an empty
    /// file in the same directory.
    fn read(&mut self, previous_workloads: &RevokedWorkloads) -> io::Result<RevokedWorkloads> {
        for _ in 0..MAX_READ_ATTEMPTS {
            let directory = self.directory.reopen_at(self.file.directory());
            let revoked_workloads = self.read_in(&directory, previous_workloads)?;
            // If another directory is at the path by now, its file may list other workloads: read again.
            if previous_workloads.is_empty() || !directory.is_removed_from(self.file.directory()) {
                self.directory = directory;
                return Ok(revoked_workloads);
            }
        }
        Err(io::Error::new(io::ErrorKind::NotFound, "their directory is removed repeatedly"))
    }

    /// Reads the revoked workloads from the file in `directory`. If the file was removed, or is in another directory
    /// than before, adds the previously revoked workloads and writes them to the file.
    fn read_in(
        &self,
        directory: &OpenedDirectory,
        previous_workloads: &RevokedWorkloads,
    ) -> io::Result<RevokedWorkloads> {
        let is_other_directory = self.directory.differs_from(directory);
        let existing_workloads = self.file.read_existing()?;
        let is_removed = existing_workloads.is_none();
        let mut workloads = existing_workloads.unwrap_or_default();
        if (is_removed || is_other_directory) && !previous_workloads.is_subset(&workloads) {
            // The file is not read again: it may have been removed again.
            workloads.extend(previous_workloads.iter().cloned());
            if self.file.restore_workloads(previous_workloads)? {
                tracing::warn!(
                    workloads = previous_workloads.len(),
                    "the file of revoked workloads was removed; rewriting it"
                );
            }
        }
        Ok(workloads)
    }
}

/// The workloads that were revoked with `leno revoke`.
pub(crate) type RevokedWorkloads = BTreeSet<RevokedWorkload>;

/// Maximum attempts to read a file while its directory is replaced repeatedly.
const MAX_READ_ATTEMPTS: usize = 8;
/// The interval of checks; each reads three small files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::atomic::{AtomicBool, Ordering};

    use leno_model::TrustDomain;

    use super::*;

    #[test]
    fn revoked_workloads_stay_revoked_when_their_file_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let data = parent.path().join("data");
        let file = RevocationFile::in_directory(&data);
        let mut followed = FollowedRevocationFile::from_file(file.clone());
        assert!(followed.read(&RevokedWorkloads::new()).unwrap().is_empty());
        assert!(!data.exists());
        let workload = |name: &str| RevokedWorkload { workload: name.parse().unwrap(), uid: None };
        let first_revoked = workload("shop/web-1");
        file.add_workload(first_revoked.clone()).unwrap();
        let first_workloads = followed.read(&RevokedWorkloads::new()).unwrap();
        assert_eq!(first_workloads, [first_revoked.clone()].into());
        fs::remove_dir_all(&data).unwrap();
        assert_eq!(followed.read(&first_workloads).unwrap(), first_workloads);
        assert_eq!(file.read().unwrap(), first_workloads);
        // The file cannot be written: the caller keeps the previous workloads.
        fs::remove_dir_all(&data).unwrap();
        fs::write(&data, "").unwrap();
        followed.read(&first_workloads).unwrap_err();
        fs::remove_file(&data).unwrap();
        // `leno revoke` writes before this process does.
        file.add_workload(workload("shop/web-2")).unwrap();
        let both_workloads: RevokedWorkloads =
            [first_revoked.clone(), workload("shop/web-2")].into();
        assert_eq!(followed.read(&first_workloads).unwrap(), both_workloads);
        assert_eq!(file.read().unwrap(), both_workloads);
        file.remove(&first_revoked).unwrap();
        assert_eq!(followed.read(&both_workloads).unwrap(), [workload("shop/web-2")].into());
        file.remove(&workload("shop/web-2")).unwrap();
        assert!(followed.read(&both_workloads).unwrap().is_empty());
    }

    #[test]
    fn revoked_workloads_stay_revoked_while_their_directory_is_replaced_repeatedly() {
        let parent = tempfile::tempdir().unwrap();
        let (data, moved) = (parent.path().join("data"), parent.path().join("moved"));
        let file = RevocationFile::in_directory(&data);
        let workload = |name: &str| RevokedWorkload { workload: name.parse().unwrap(), uid: None };
        file.add_workload(workload("shop/web-1")).unwrap();
        let mut followed = FollowedRevocationFile::from_file(file.clone());
        let first_workloads = followed.read(&RevokedWorkloads::new()).unwrap();
        let has_ended = AtomicBool::new(false);
        let all_stay_revoked = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !has_ended.load(Ordering::Relaxed) {
                    drop(fs::rename(&data, &moved));
                    drop(fs::remove_dir_all(&moved));
                    drop(file.add_workload(workload("shop/web-2")));
                }
            });
            // A failed read changes nothing.
            let mut read = (0..1000).filter_map(|_| followed.read(&first_workloads).ok());
            let all_stay_revoked = read.all(|read| first_workloads.is_subset(&read));
            has_ended.store(true, Ordering::Relaxed);
            all_stay_revoked
        });
        assert!(all_stay_revoked);
    }

    #[test]
    fn the_authority_of_a_removed_data_directory_is_restored() {
        let scratch = tempfile::tempdir().unwrap();
        let data = scratch.path().join("data");
        let directory = data.join("authority");
        let (source, now) = (AuthoritySource::BuiltIn(directory.clone()), SystemTime::now());
        let domain = TrustDomain::new("x.example").unwrap();
        let first_authority = source.open_or_create(&domain, now).unwrap();
        let mut files = OwnAuthorityFiles::from_source(&source).read_or_restore();
        // Another process may have recreated the data directory, and writes may fail at first.
        for is_recreated in [false, true, false] {
            fs::remove_dir_all(&data).unwrap();
            if is_recreated {
                fs::create_dir(&data).unwrap();
                fs::write(data.join(".draft-authority"), "").unwrap();
                files = files.read_or_restore();
                assert!(is_absent(&directory));
                fs::remove_file(data.join(".draft-authority")).unwrap();
            }
            files = files.read_or_restore();
            assert!(source.open(&domain, now).unwrap() == first_authority);
        }
        // A data directory that another user can write to is not trusted, whatever its contents.
        let moved = scratch.path().join("moved");
        fs::rename(&data, &moved).unwrap();
        fs::create_dir(&data).unwrap();
        let other =
            AuthoritySource::BuiltIn(directory.clone()).open_or_create(&domain, now).unwrap();
        assert!(other != first_authority);
        fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
        assert!(
            source
                .open(&domain, now)
                .is_err_and(|error| error.to_string().contains("other users can"))
        );
        files = files.read_or_restore();
        fs::remove_dir_all(&data).unwrap();
        fs::remove_dir_all(&moved).unwrap();
        files.read_or_restore();
        assert!(source.open(&domain, now).unwrap() == first_authority);
        let issuer_files =
            OwnAuthorityFiles::from_source(&AuthoritySource::Intermediate(directory.clone()))
                .read_or_restore();
        fs::remove_dir_all(&data).unwrap();
        issuer_files.read_or_restore();
        assert!(is_absent(&directory));
    }

    #[test]
    fn an_authority_that_an_operator_removes_is_not_restored() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("authority");
        let (source, now) = (AuthoritySource::BuiltIn(directory.clone()), SystemTime::now());
        let domain = TrustDomain::new("x.example").unwrap();
        let first_authority = source.open_or_create(&domain, now).unwrap();
        let files = OwnAuthorityFiles::from_source(&source).read_or_restore();
        fs::remove_file(directory.join("ca.key")).unwrap();
        let files = files.read_or_restore();
        assert!(source.open(&domain, now).is_err());
        fs::remove_dir_all(&directory).unwrap();
        let files = files.read_or_restore();
        assert!(is_absent(&directory) && source.open(&domain, now).is_err());
        // After a replacement, the new authority is the one restored to a removed data directory.
        let second_authority = source.open_or_create(&domain, now).unwrap();
        assert!(second_authority != first_authority);
        let files = files.read_or_restore();
        let moved = scratch.path().with_extension("moved");
        fs::rename(scratch.path(), &moved).unwrap();
        files.read_or_restore();
        assert!(source.open(&domain, now).unwrap() == second_authority);
        fs::remove_dir_all(&moved).unwrap();
    }
}
