//! Workloads revoked by an operator on this machine, in a file that all control planes of the mesh read.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use leno_model::{RevokedWorkload, Uid, WorkloadName};

use crate::directory::{check_if_exists, create_private_directory};
use crate::disk::{self, FileReaders};

/// The file `revoked` in a directory: one workload per line, with a Pod's UID if only that Pod is revoked.
#[derive(Debug, Clone)]
pub struct RevocationFile {
    dir: PathBuf,
}

impl RevocationFile {
    /// Returns the file in this directory, which may not exist.
    #[must_use]
    pub fn in_directory(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// Returns all revoked workloads.
    ///
    /// # Errors
    /// If the file cannot be read or has an invalid line; no workload is returned then.
    pub fn read(&self) -> io::Result<BTreeSet<RevokedWorkload>> {
        Ok(self.read_existing()?.unwrap_or_default())
    }

    /// Returns all revoked workloads as [`RevocationFile::read`]; `None` if the file does not exist.
    /// [`RevocationFile::remove`] leaves an empty file, so the removal of an existing file has another cause.
    ///
    /// # Errors
    /// As [`RevocationFile::read`].
    pub fn read_existing(&self) -> io::Result<Option<BTreeSet<RevokedWorkload>>> {
        check_if_exists(&self.dir)?;
        let path = self.dir.join(FILE);
        let Some(text) = disk::read(&path, FileReaders::Everyone)? else { return Ok(None) };
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let read = lines.map(|(index, line)| {
            line_of(line).ok_or_else(|| {
                let message = format!(
                    "line {}: {line:?} is not a workload: write `NAMESPACE/NAME`, followed by a pod's UID to revoke that pod only",
                    index + 1
                );
                disk::file_error("read", &path, io::Error::new(io::ErrorKind::InvalidData, message))
            })
        });
        read.collect::<io::Result<_>>().map(Some)
    }

    /// Returns the directory of the file.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.dir
    }

    /// Adds workloads of a previous, removed file of this directory; creates a missing file. Returns false if
    /// all were present.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn add_former(&self, workloads: &BTreeSet<RevokedWorkload>) -> io::Result<bool> {
        self.edit_locked(|all| {
            let before = all.len();
            all.extend(workloads.iter().cloned());
            Ok(all.len() > before)
        })
    }

    /// Adds a workload; false if it was present.
    ///
    /// # Errors
    /// If the file cannot be read or written, or contains [`REVOKED_MAX`] workloads.
    pub fn add_workload(&self, workload: RevokedWorkload) -> io::Result<bool> {
        self.edit_locked(|all| {
            if all.len() >= REVOKED_MAX && !all.contains(&workload) {
                let message = format!(
                    "{REVOKED_MAX} workloads are revoked: remove the revocations of expired certificates"
                );
                return Err(io::Error::new(io::ErrorKind::QuotaExceeded, message));
            }
            Ok(all.insert(workload))
        })
    }

    /// Removes a workload: with a UID only that Pod, otherwise all entries with the name; false if it was not
    /// present.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn remove(&self, workload: &RevokedWorkload) -> io::Result<bool> {
        self.edit_locked(|all| {
            let before = all.len();
            let is_meant = |it: &RevokedWorkload| {
                it.workload == workload.workload
                    && (workload.uid.is_none() || it.uid == workload.uid)
            };
            all.retain(|it| !is_meant(it));
            Ok(all.len() < before)
        })
    }

    /// Edits the file under a lock between processes.
    fn edit_locked(
        &self,
        change: impl FnOnce(&mut BTreeSet<RevokedWorkload>) -> io::Result<bool>,
    ) -> io::Result<bool> {
        let path = self.dir.join(LOCK);
        let _lock =
            self.lock_directory().map_err(|cause| disk::file_error("lock", &path, cause))?;
        let mut all = self.read()?;
        let changed = change(&mut all)?;
        if changed {
            let mut text = String::new();
            for RevokedWorkload { workload, uid } in &all {
                text.push_str(&workload.to_string());
                if let Some(uid) = uid {
                    text.push(' ');
                    text.push_str(uid.as_str());
                }
                text.push('\n');
            }
            disk::replace(&self.dir.join(FILE), text.as_bytes(), FileReaders::Everyone)?;
        }
        Ok(changed)
    }

    /// Locks the directory that currently has the path: it may be removed while this process waits for the
    /// lock.
    fn lock_directory(&self) -> io::Result<File> {
        for _ in 0..LOCKS_MAX {
            match create_private_directory(&self.dir) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                created => created?,
            }
            let lock = match disk::open_lock(&self.dir.join(LOCK)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            lock.lock()?;
            if lock.metadata()?.nlink() > 0 {
                return Ok(lock);
            }
        }
        let problem = "the directory is removed repeatedly: retry the command";
        Err(io::Error::new(io::ErrorKind::NotFound, problem))
    }
}

fn line_of(line: &str) -> Option<RevokedWorkload> {
    let mut words = line.split_whitespace();
    let workload: WorkloadName = words.next()?.parse().ok()?;
    let uid = match words.next() {
        None => None,
        Some(uid) => Some(Uid::new(uid).ok()?),
    };
    words.next().is_none().then_some(RevokedWorkload { workload, uid })
}

/// Limit of revoked workloads: every sidecar receives all of them.
pub const REVOKED_MAX: usize = 1024;

const FILE: &str = "revoked";
const LOCK: &str = "revoked.lock";
/// Limit of lock attempts after removals of the directory.
const LOCKS_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::workload_name;

    #[test]
    fn reads_back_what_was_added_and_takes_it_back() {
        let dir = tempfile::tempdir().unwrap();
        let file = RevocationFile::in_directory(dir.path());
        assert!(file.read().unwrap().is_empty());
        let of = |name: &str, uid: Option<&str>| RevokedWorkload {
            workload: workload_name(name),
            uid: uid.map(|uid| Uid::new(uid).unwrap()),
        };
        for workload in [of("a", None), of("b", Some("x")), of("b", Some("y"))] {
            assert!(file.add_workload(workload.clone()).unwrap());
            assert!(!file.add_workload(workload).unwrap());
        }
        assert_eq!(file.read().unwrap().len(), 3);
        assert!(file.remove(&of("b", Some("y"))).unwrap());
        assert!(!file.remove(&of("b", Some("y"))).unwrap());
        assert!(file.remove(&of("b", None)).unwrap());
        assert_eq!(file.read().unwrap(), [of("a", None)].into());
    }

    #[test]
    fn a_lock_that_is_removed_while_a_program_waits_for_it_counts_for_nothing() {
        let above = tempfile::tempdir().unwrap();
        let dir = above.path().join("data");
        let file = RevocationFile::in_directory(&dir);
        let held = file.lock_directory().unwrap();
        let (begun, wait) = std::sync::mpsc::channel();
        let other = file.clone();
        let adding = std::thread::spawn(move || {
            begun.send(()).unwrap();
            other.add_workload(RevokedWorkload { workload: workload_name("a"), uid: None })
        });
        wait.recv().unwrap();
        // The other thread may create a lock file during the removal.
        while std::fs::remove_dir_all(&dir).is_err() {}
        let second = file.lock_directory().unwrap();
        drop((held, second));
        assert!(adding.join().unwrap().unwrap());
        assert_eq!(file.read().unwrap().len(), 1);
    }

    #[test]
    fn a_line_that_names_no_workload_is_an_error_of_the_whole_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = RevocationFile::in_directory(dir.path());
        std::fs::write(dir.path().join(FILE), "shop/web-1\nshop web-2\n").unwrap();
        let error = file.read().unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("NAMESPACE/NAME"), "{error}");
        assert!(
            file.add_workload(RevokedWorkload { workload: workload_name("a"), uid: None }).is_err()
        );
    }
}
