//! Reads and edits the file of workloads that operators have revoked with `leno` on this machine. All control planes with
//! this directory read the file.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use leno_model::{RevokedWorkload, Uid, WorkloadName};

use crate::directory::{check_private_if_exists, create_private_directory};
use crate::disk::{self, FileAccess};

/// The file `revoked` in a directory: one workload per line, with a Pod's UID if only that Pod is revoked.
#[derive(Debug, Clone)]
pub struct RevocationFile {
    directory: PathBuf,
}

impl RevocationFile {
    /// Returns the file in this directory, which may not exist.
    #[must_use]
    pub fn in_directory(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// Returns all revoked workloads.
    ///
    /// # Errors
    /// An I/O error if the file cannot be read or has an invalid line; no workload is returned then.
    pub fn read(&self) -> io::Result<BTreeSet<RevokedWorkload>> {
        Ok(self.read_existing()?.unwrap_or_default())
    }

    /// Returns all revoked workloads; `None` if the file does not exist. No command removes the file:
    /// [`RevocationFile::remove`] leaves an empty file. A file that has vanished was therefore lost.
    ///
    /// # Errors
    /// The errors of [`RevocationFile::read`].
    pub fn read_existing(&self) -> io::Result<Option<BTreeSet<RevokedWorkload>>> {
        check_private_if_exists(&self.directory)?;
        let path = self.directory.join(REVOKED_FILE);
        let Some(text) = disk::read(&path, FileAccess::AllUsers)? else { return Ok(None) };
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let revoked_workloads = lines.map(|(index, line)| {
            parse_line(line).ok_or_else(|| {
                let message = format!(
                    "line {}: {line:?} is not a workload: write `NAMESPACE/NAME`, followed by a pod's UID to revoke that pod only",
                    index + 1
                );
                disk::file_error("read", &path, io::Error::new(io::ErrorKind::InvalidData, message))
            })
        });
        revoked_workloads.collect::<io::Result<_>>().map(Some)
    }

    /// Returns the directory of the file.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Adds the workloads of a file that was removed from this directory; creates a missing file. Returns false if all
    /// workloads were already present.
    ///
    /// # Errors
    /// An I/O error if the file cannot be read or written.
    pub fn restore_workloads(&self, workloads: &BTreeSet<RevokedWorkload>) -> io::Result<bool> {
        self.edit_under_lock(|revoked| {
            let count_before = revoked.len();
            revoked.extend(workloads.iter().cloned());
            Ok(revoked.len() > count_before)
        })
    }

    /// Adds a workload; returns false if it was present.
    ///
    /// # Errors
    /// An I/O error if the file cannot be read or written, or contains [`MAX_REVOKED_WORKLOADS`] workloads.
    pub fn add_workload(&self, workload: RevokedWorkload) -> io::Result<bool> {
        self.edit_under_lock(|revoked| {
            if revoked.len() >= MAX_REVOKED_WORKLOADS && !revoked.contains(&workload) {
                let message = format!(
                    "{MAX_REVOKED_WORKLOADS} workloads are revoked: remove the revocations of expired certificates"
                );
                return Err(io::Error::new(io::ErrorKind::QuotaExceeded, message));
            }
            Ok(revoked.insert(workload))
        })
    }

    /// Removes the revocation of a workload: with a UID only that of the Pod, otherwise also those of all its Pods. Returns
    /// false if neither was revoked.
    ///
    /// # Errors
    /// An I/O error if the file cannot be read or written.
    pub fn remove(&self, workload: &RevokedWorkload) -> io::Result<bool> {
        self.edit_under_lock(|revoked| {
            let count_before = revoked.len();
            let is_removed = |candidate: &RevokedWorkload| {
                candidate.workload == workload.workload
                    && (workload.uid.is_none() || candidate.uid == workload.uid)
            };
            revoked.retain(|candidate| !is_removed(candidate));
            Ok(revoked.len() < count_before)
        })
    }

    /// Edits the file while a lock excludes other processes. Returns true if `edit` has changed the workloads.
    fn edit_under_lock(
        &self,
        edit: impl FnOnce(&mut BTreeSet<RevokedWorkload>) -> io::Result<bool>,
    ) -> io::Result<bool> {
        let lock_path = self.directory.join(LOCK_FILE);
        let _lock =
            self.lock_directory().map_err(|cause| disk::file_error("lock", &lock_path, cause))?;
        let mut revoked = self.read()?;
        let is_changed = edit(&mut revoked)?;
        if is_changed {
            let mut text = String::new();
            for RevokedWorkload { workload, uid } in &revoked {
                text.push_str(&workload.to_string());
                if let Some(uid) = uid {
                    text.push(' ');
                    text.push_str(uid.as_str());
                }
                text.push('\n');
            }
            disk::replace(
                &self.directory.join(REVOKED_FILE),
                text.as_bytes(),
                FileAccess::AllUsers,
            )?;
        }
        Ok(is_changed)
    }

    /// Creates the directory if it is missing, and locks it by its lock file. If another process removes the directory
    /// while this process waits for the lock, the directory is created and locked again.
    fn lock_directory(&self) -> io::Result<File> {
        for _ in 0..MAX_LOCK_ATTEMPTS {
            // `NotFound` means that another process has just removed the directory or its parent.
            match create_private_directory(&self.directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                result => result?,
            }
            let lock = match disk::open_lock(&self.directory.join(LOCK_FILE)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                result => result?,
            };
            lock.lock()?;
            // Without a hard link, the file was removed together with its directory.
            if lock.metadata()?.nlink() > 0 {
                return Ok(lock);
            }
        }
        let problem = "the directory is removed repeatedly: retry the command";
        Err(io::Error::new(io::ErrorKind::NotFound, problem))
    }
}

/// Parses `NAMESPACE/NAME`, optionally followed by the UID of a Pod.
fn parse_line(line: &str) -> Option<RevokedWorkload> {
    let mut words = line.split_whitespace();
    let workload: WorkloadName = words.next()?.parse().ok()?;
    let uid = match words.next() {
        None => None,
        Some(uid) => Some(Uid::new(uid).ok()?),
    };
    words.next().is_none().then_some(RevokedWorkload { workload, uid })
}

/// Maximum number of revoked workloads: every sidecar receives all of them.
pub const MAX_REVOKED_WORKLOADS: usize = 1024;

/// The file of revoked workloads.
const REVOKED_FILE: &str = "revoked";
/// The lock file, which a process locks while it edits the file of revoked workloads.
const LOCK_FILE: &str = "revoked.lock";
/// Maximum number of attempts to lock the directory if it is removed during each of them.
const MAX_LOCK_ATTEMPTS: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::workload_name;

    #[test]
    fn added_workloads_are_read_back_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let file = RevocationFile::in_directory(directory.path());
        assert!(file.read().unwrap().is_empty());
        let revocation = |name: &str, uid: Option<&str>| RevokedWorkload {
            workload: workload_name(name),
            uid: uid.map(|uid| Uid::new(uid).unwrap()),
        };
        for workload in
            [revocation("a", None), revocation("b", Some("x")), revocation("b", Some("y"))]
        {
            assert!(file.add_workload(workload.clone()).unwrap());
            assert!(!file.add_workload(workload).unwrap());
        }
        assert_eq!(file.read().unwrap().len(), 3);
        assert!(file.remove(&revocation("b", Some("y"))).unwrap());
        assert!(!file.remove(&revocation("b", Some("y"))).unwrap());
        assert!(file.remove(&revocation("b", None)).unwrap());
        assert_eq!(file.read().unwrap(), [revocation("a", None)].into());
    }

    #[test]
    fn a_lock_file_that_is_removed_during_the_wait_is_not_used() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("data");
        let file = RevocationFile::in_directory(&directory);
        let lock = file.lock_directory().unwrap();
        let (started, start) = std::sync::mpsc::channel();
        let other_file = file.clone();
        let thread = std::thread::spawn(move || {
            started.send(()).unwrap();
            other_file.add_workload(RevokedWorkload { workload: workload_name("a"), uid: None })
        });
        start.recv().unwrap();
        // The other thread may create a lock file during the removal.
        while std::fs::remove_dir_all(&directory).is_err() {}
        let second_lock = file.lock_directory().unwrap();
        drop((lock, second_lock));
        assert!(thread.join().unwrap().unwrap());
        assert_eq!(file.read().unwrap().len(), 1);
    }

    #[test]
    fn an_invalid_line_makes_the_whole_file_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let file = RevocationFile::in_directory(directory.path());
        std::fs::write(directory.path().join(REVOKED_FILE), "shop/web-1\nshop web-2\n").unwrap();
        let error = file.read().unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("NAMESPACE/NAME"), "{error}");
        assert!(
            file.add_workload(RevokedWorkload { workload: workload_name("a"), uid: None }).is_err()
        );
    }
}
