//! The workloads that an operator has revoked on this machine, in a file that all control planes of the mesh read.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use leno_model::{RevokedWorkload, Uid, WorkloadName};

use crate::directory::{check_if_exists, create_private_directory};
use crate::disk::{self, Readers};

/// The file `revoked` of a directory: one workload a line, with the UID of a pod behind it where one pod is meant.
#[derive(Debug, Clone)]
pub struct RevocationFile {
    dir: PathBuf,
}

impl RevocationFile {
    /// The one in this directory, which need not exist.
    #[must_use]
    pub fn in_directory(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// All workloads in it.
    ///
    /// # Errors
    /// When the file cannot be read or has a line that names no workload: then nothing of it is known.
    pub fn read(&self) -> io::Result<BTreeSet<RevokedWorkload>> {
        Ok(self.read_existing()?.unwrap_or_default())
    }

    /// All workloads in it, as [`RevocationFile::read`]; none if it does not exist. [`RevocationFile::remove`] leaves an
    /// empty file, so a file that existed was removed by something else.
    ///
    /// # Errors
    /// As [`RevocationFile::read`].
    pub fn read_existing(&self) -> io::Result<Option<BTreeSet<RevokedWorkload>>> {
        check_if_exists(&self.dir)?;
        let path = self.dir.join(FILE);
        let Some(text) = disk::read(&path, Readers::Everyone)? else { return Ok(None) };
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let read = lines.map(|(index, line)| {
            line_of(line).ok_or_else(|| {
                let message = format!(
                    "line {}: {line:?} is no workload: write `NAMESPACE/NAME`, and the UID of a pod \
                     behind it where one pod is meant",
                    index + 1
                );
                disk::file_error("read", &path, io::Error::new(io::ErrorKind::InvalidData, message))
            })
        });
        read.collect::<io::Result<_>>().map(Some)
    }

    /// Writes a file that was removed again, with these workloads; false if there is a file by now.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn restore(&self, workloads: &BTreeSet<RevokedWorkload>) -> io::Result<bool> {
        let path = self.dir.join(FILE);
        self.edit(|all| {
            let absent = disk::read(&path, Readers::Everyone)?.is_none();
            if absent {
                all.clone_from(workloads);
            }
            Ok(absent)
        })
    }

    /// Adds a workload; false when it was there.
    ///
    /// # Errors
    /// When the file cannot be read or written, or holds [`REVOKED_MAX`] workloads.
    pub fn add(&self, workload: RevokedWorkload) -> io::Result<bool> {
        self.edit(|all| {
            if all.len() >= REVOKED_MAX && !all.contains(&workload) {
                let message = format!(
                    "{REVOKED_MAX} workloads are revoked: take back those whose certificates have expired"
                );
                return Err(io::Error::new(io::ErrorKind::QuotaExceeded, message));
            }
            Ok(all.insert(workload))
        })
    }

    /// Removes a workload: with a UID that pod alone, otherwise all of that name; false when it was not there.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn remove(&self, workload: &RevokedWorkload) -> io::Result<bool> {
        self.edit(|all| {
            let before = all.len();
            let is_meant = |it: &RevokedWorkload| {
                it.workload == workload.workload
                    && (workload.uid.is_none() || it.uid == workload.uid)
            };
            all.retain(|it| !is_meant(it));
            Ok(all.len() < before)
        })
    }

    /// One edit at a time, of however many programs.
    fn edit(
        &self,
        change: impl FnOnce(&mut BTreeSet<RevokedWorkload>) -> io::Result<bool>,
    ) -> io::Result<bool> {
        create_private_directory(&self.dir)?;
        let path = self.dir.join(LOCK);
        let at = |cause| disk::file_error("lock", &path, cause);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let lock = options.open(&path).map_err(at)?;
        lock.lock().map_err(at)?;
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
            disk::replace(&self.dir.join(FILE), text.as_bytes(), Readers::Everyone)?;
        }
        Ok(changed)
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

/// The most workloads that may be revoked at once: each sidecar has all of them.
pub const REVOKED_MAX: usize = 1024;

const FILE: &str = "revoked";
const LOCK: &str = "revoked.lock";

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
            assert!(file.add(workload.clone()).unwrap());
            assert!(!file.add(workload).unwrap());
        }
        assert_eq!(file.read().unwrap().len(), 3);
        assert!(file.remove(&of("b", Some("y"))).unwrap());
        assert!(!file.remove(&of("b", Some("y"))).unwrap());
        assert!(file.remove(&of("b", None)).unwrap());
        assert_eq!(file.read().unwrap(), [of("a", None)].into());
    }

    #[test]
    fn a_removed_file_is_written_again_and_an_emptied_one_is_not() {
        let above = tempfile::tempdir().unwrap();
        let dir = above.path().join("data");
        let file = RevocationFile::in_directory(&dir);
        assert_eq!(file.read_existing().unwrap(), None);
        let workload = RevokedWorkload { workload: workload_name("a"), uid: None };
        file.add(workload.clone()).unwrap();
        let known = file.read().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(file.restore(&known).unwrap());
        assert_eq!(file.read_existing().unwrap(), Some(known.clone()));
        file.remove(&workload).unwrap();
        assert!(!file.restore(&known).unwrap());
        assert_eq!(file.read_existing().unwrap(), Some(BTreeSet::new()));
    }

    #[test]
    fn a_line_that_names_no_workload_is_an_error_of_the_whole_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = RevocationFile::in_directory(dir.path());
        std::fs::write(dir.path().join(FILE), "shop/web-1\nshop web-2\n").unwrap();
        let error = file.read().unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("NAMESPACE/NAME"), "{error}");
        assert!(file.add(RevokedWorkload { workload: workload_name("a"), uid: None }).is_err());
    }
}
