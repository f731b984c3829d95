//! Registrations: a number per workload that joined with a token, increased by each such join.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest;
use leno_model::WorkloadName;

use crate::authority::LEAF_LIFETIME_MAX;
use crate::directory::{check_if_exists, create_private_directory};
use crate::disk::{self, FileReaders};

/// The latest registration of each workload that joined with a token: one small file each, shared by all
/// control planes of the mesh. Certificates of older registrations are not renewed.
///
/// The number is the time of the join in milliseconds, so it increases even if the file of a previous join was
/// removed. A file is removed once every earlier certificate has expired; a file removed before that, together
/// with the data directory of a running control plane, is written again at its next read.
#[derive(Debug)]
pub struct Registrations {
    dir: PathBuf,
    /// The registrations read or written since the start; at most [`REGISTRATIONS_MAX`].
    known: Mutex<BTreeMap<WorkloadName, u64>>,
}

impl Registrations {
    /// Opens or creates the directory.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn open(dir: &Path) -> io::Result<Self> {
        create_private_directory(dir)?;
        Ok(Self { dir: dir.to_owned(), known: Mutex::default() })
    }

    /// Returns the latest registration of a workload; 0 if there is none.
    ///
    /// # Errors
    /// If the file of the workload cannot be read, or was removed and cannot be written again. The registration
    /// is unknown then, and no certificate may be renewed.
    pub fn latest_number(&self, workload: &WorkloadName) -> io::Result<u64> {
        if let Some(number) = self.read(workload)? {
            self.cache_number(workload, number);
            return Ok(number);
        }
        let known = self.lock_known().get(workload).copied();
        let Some(number) = known else { return Ok(0) };
        create_private_directory(&self.dir)?;
        match disk::create(
            &self.path_of(workload),
            &render_record(workload, number),
            FileReaders::Owner,
        ) {
            Ok(()) => Ok(number),
            // Another control plane has registered the workload meanwhile.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Ok(self.read(workload)?.unwrap_or(number))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the number in a workload's file, if any.
    fn read(&self, workload: &WorkloadName) -> io::Result<Option<u64>> {
        check_if_exists(&self.dir)?;
        let path = self.path_of(workload);
        let Some(text) = disk::read(&path, FileReaders::Owner)? else { return Ok(None) };
        let number = text.split_once('\n').and_then(|(name, rest)| {
            let is_its = name.parse().as_ref() == Ok(workload);
            rest.trim_end().parse().ok().filter(|_| is_its)
        });
        number.map(Some).ok_or_else(|| {
            let cause = io::Error::new(io::ErrorKind::InvalidData, "not a registration: remove it");
            disk::file_error("read", &path, cause)
        })
    }

    /// Registers a workload again and returns the number for its next certificates.
    ///
    /// # Errors
    /// If the directory cannot be read or written, or contains [`REGISTRATIONS_MAX`] workloads.
    pub fn register_again(&self, workload: &WorkloadName, now: SystemTime) -> io::Result<u64> {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        // The directory may have been removed.
        create_private_directory(&self.dir)?;
        let newest = self.latest_number(workload)?;
        if newest == 0 && self.remove_expired(now)? >= REGISTRATIONS_MAX {
            let message = format!("{REGISTRATIONS_MAX} workloads have joined in the last 90 days");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, message));
        }
        let number = millis.max(newest.saturating_add(1));
        disk::replace(
            &self.path_of(workload),
            &render_record(workload, number),
            FileReaders::Owner,
        )?;
        self.cache_number(workload, number);
        Ok(number)
    }

    /// Removes registrations older than the maximum certificate lifetime and returns the number of the
    /// remaining ones.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn remove_expired(&self, now: SystemTime) -> io::Result<usize> {
        self.lock_known().retain(|_, number| {
            let since = UNIX_EPOCH + Duration::from_millis(*number);
            now.duration_since(since).unwrap_or_default() <= LEAF_LIFETIME_MAX + MARGIN
        });
        let at = |cause| disk::file_error("read", &self.dir, cause);
        let mut left = 0;
        for entry in fs::read_dir(&self.dir).map_err(at)? {
            let entry = entry.map_err(at)?;
            let written = entry.metadata().and_then(|facts| facts.modified());
            let age = written.ok().and_then(|at| now.duration_since(at).ok()).unwrap_or_default();
            if age > LEAF_LIFETIME_MAX + MARGIN {
                disk::remove(&entry.path())?;
            } else {
                left += 1;
            }
        }
        Ok(left)
    }

    fn cache_number(&self, workload: &WorkloadName, number: u64) {
        let mut known = self.lock_known();
        if known.len() < REGISTRATIONS_MAX || known.contains_key(workload) {
            known.insert(workload.clone(), number);
        }
    }

    fn lock_known(&self) -> MutexGuard<'_, BTreeMap<WorkloadName, u64>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A workload name may be longer than a file name can be.
    fn path_of(&self, workload: &WorkloadName) -> PathBuf {
        let name = digest::digest(&digest::SHA256, workload.to_string().as_bytes());
        let name: String = name.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        self.dir.join(name)
    }
}

fn render_record(workload: &WorkloadName, number: u64) -> Vec<u8> {
    format!("{workload}\n{number}\n").into_bytes()
}

/// Limit of registrations: several times the largest measured mesh.
pub const REGISTRATIONS_MAX: usize = 65_536;

/// A margin for clocks that are set back.
const MARGIN: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{now, workload_name};

    #[test]
    fn each_join_has_a_higher_number_also_in_one_millisecond_and_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let registrations = Registrations::open(dir.path()).unwrap();
        let (one, other) = (workload_name("ratings-1"), workload_name("ratings-2"));
        assert_eq!(registrations.latest_number(&one).unwrap(), 0);
        let (at, first) = (now(), registrations.register_again(&one, now()).unwrap());
        let second = registrations.register_again(&one, at - Duration::from_secs(60)).unwrap();
        assert!(second > first && first > 0);
        let again = Registrations::open(dir.path()).unwrap();
        assert_eq!(
            (again.latest_number(&one).unwrap(), again.latest_number(&other).unwrap()),
            (second, 0)
        );
    }

    #[test]
    fn a_removed_directory_is_made_again() {
        let above = tempfile::tempdir().unwrap();
        let registrations = Registrations::open(&above.path().join("a/b")).unwrap();
        fs::remove_dir_all(above.path().join("a")).unwrap();
        let name = workload_name("ratings-1");
        assert_eq!(registrations.latest_number(&name).unwrap(), 0);
        let first = registrations.register_again(&name, now()).unwrap();
        assert_eq!(registrations.latest_number(&name).unwrap(), first);
        // Certificates of a previous registration are still not renewed.
        fs::remove_dir_all(above.path().join("a")).unwrap();
        assert_eq!(registrations.latest_number(&name).unwrap(), first);
        let again = Registrations::open(&above.path().join("a/b")).unwrap();
        assert_eq!(again.latest_number(&name).unwrap(), first);
        // Another control plane registers the workload.
        fs::remove_dir_all(above.path().join("a")).unwrap();
        let other = Registrations::open(&above.path().join("a/b")).unwrap();
        let second = other.register_again(&name, now() + Duration::from_secs(1)).unwrap();
        assert_eq!(registrations.latest_number(&name).unwrap(), second);
    }

    #[test]
    fn a_registration_is_kept_as_long_as_a_certificate_from_before_it_may_live() {
        let dir = tempfile::tempdir().unwrap();
        let registrations = Registrations::open(dir.path()).unwrap();
        let name = workload_name("ratings-1");
        let first = registrations.register_again(&name, now()).unwrap();
        assert_eq!(registrations.remove_expired(now() + LEAF_LIFETIME_MAX).unwrap(), 1);
        let late = now() + LEAF_LIFETIME_MAX + 2 * MARGIN;
        assert_eq!(registrations.remove_expired(late).unwrap(), 0);
        assert_eq!(registrations.latest_number(&name).unwrap(), 0);
        assert!(registrations.register_again(&name, late).unwrap() > first);
    }

    #[test]
    fn a_file_that_is_damaged_is_an_error_and_not_an_older_registration() {
        let dir = tempfile::tempdir().unwrap();
        let registrations = Registrations::open(dir.path()).unwrap();
        let name = workload_name("ratings-1");
        let path = registrations.path_of(&name);
        for text in
            ["", "bookinfo/ratings-1\n", "bookinfo/ratings-2\n7\n", "bookinfo/ratings-1\nx\n"]
        {
            disk::replace(&path, text.as_bytes(), FileReaders::Owner).unwrap();
            let error = registrations.latest_number(&name).unwrap_err().to_string();
            assert!(error.contains("not a registration"), "{error}");
        }
    }
}
