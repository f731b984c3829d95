//! Stores registrations: for each workload that joined with a token, a number that increases with each join. Certificates
//! contain the number, so that the control plane recognizes those of a previous join.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest;
use leno_model::WorkloadName;

use crate::authority::MAX_LEAF_LIFETIME;
use crate::directory::{check_private_if_exists, create_private_directory};
use crate::disk::{self, FileAccess};

/// The latest registration of each workload that joined with a token: one small file each, shared by all
/// control planes of the mesh. Certificates of older registrations are not renewed.
///
/// The number is the time of the join in milliseconds, so it increases even if the file of a previous join was
/// removed. A file is removed once every earlier certificate has expired; a file removed before that, together
/// with the data directory of a running control plane, is written again at its next read.
#[derive(Debug)]
pub struct Registrations {
    directory: PathBuf,
    /// The numbers read or written since this process started, by workload; at most [`MAX_REGISTRATIONS`].
    cached_numbers: Mutex<BTreeMap<WorkloadName, u64>>,
}

impl Registrations {
    /// Opens or creates the directory.
    ///
    /// # Errors
    /// An I/O error if the directory cannot be created.
    pub fn open(directory: &Path) -> io::Result<Self> {
        create_private_directory(directory)?;
        Ok(Self { directory: directory.to_owned(), cached_numbers: Mutex::default() })
    }

    /// Returns the latest registration number of a workload; 0 if the workload is not registered.
    ///
    /// # Errors
    /// An I/O error if the file of the workload cannot be read, or was removed and cannot be written again. The
    /// registration is unknown then, and no certificate may be renewed.
    pub fn latest_number(&self, workload: &WorkloadName) -> io::Result<u64> {
        if let Some(number) = self.read(workload)? {
            self.cache_number(workload, number);
            return Ok(number);
        }
        let cached_number = self.lock_cache().get(workload).copied();
        let Some(number) = cached_number else { return Ok(0) };
        create_private_directory(&self.directory)?;
        match disk::create(
            &self.file_path(workload),
            &render_record(workload, number),
            FileAccess::Owner,
        ) {
            Ok(()) => Ok(number),
            // Another control plane has registered the workload in the meantime.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Ok(self.read(workload)?.unwrap_or(number))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the number in a workload's file; `None` if the file does not exist.
    fn read(&self, workload: &WorkloadName) -> io::Result<Option<u64>> {
        check_private_if_exists(&self.directory)?;
        let path = self.file_path(workload);
        let Some(text) = disk::read(&path, FileAccess::Owner)? else { return Ok(None) };
        let number = text.split_once('\n').and_then(|(name, number_text)| {
            let is_for_workload = name.parse().as_ref() == Ok(workload);
            number_text.trim_end().parse().ok().filter(|_| is_for_workload)
        });
        number.map(Some).ok_or_else(|| {
            let cause = io::Error::new(io::ErrorKind::InvalidData, "not a registration: remove it");
            disk::file_error("read", &path, cause)
        })
    }

    /// Registers a workload, which may be registered already, and returns the number for its next certificates.
    ///
    /// # Errors
    /// An I/O error if the directory cannot be read or written, or contains [`MAX_REGISTRATIONS`] workloads.
    pub fn register(&self, workload: &WorkloadName, now: SystemTime) -> io::Result<u64> {
        let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let milliseconds_since_epoch = u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX);
        // The directory may have been removed.
        create_private_directory(&self.directory)?;
        let latest_number = self.latest_number(workload)?;
        // A registered workload has a file already; only a new workload counts against the limit.
        if latest_number == 0 && self.remove_expired(now)? >= MAX_REGISTRATIONS {
            let message = format!("{MAX_REGISTRATIONS} workloads have joined in the last 90 days");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, message));
        }
        let number = milliseconds_since_epoch.max(latest_number.saturating_add(1));
        disk::replace(
            &self.file_path(workload),
            &render_record(workload, number),
            FileAccess::Owner,
        )?;
        self.cache_number(workload, number);
        Ok(number)
    }

    /// Removes registrations older than the maximum certificate lifetime, and returns the count of remaining registrations.
    ///
    /// # Errors
    /// An I/O error if the directory cannot be read.
    pub fn remove_expired(&self, now: SystemTime) -> io::Result<usize> {
        self.lock_cache().retain(|_, number| {
            let joined_at = UNIX_EPOCH + Duration::from_millis(*number);
            now.duration_since(joined_at).unwrap_or_default() <= MAX_LEAF_LIFETIME + CLOCK_MARGIN
        });
        let add_path = |cause| disk::file_error("read", &self.directory, cause);
        let mut remaining_count = 0;
        for entry in fs::read_dir(&self.directory).map_err(add_path)? {
            let entry = entry.map_err(add_path)?;
            let modified_at = entry.metadata().and_then(|metadata| metadata.modified());
            let known_age =
                modified_at.ok().and_then(|modified_at| now.duration_since(modified_at).ok());
            // A file of unknown age is retained.
            if known_age.is_some_and(|age| age > MAX_LEAF_LIFETIME + CLOCK_MARGIN) {
                disk::remove(&entry.path())?;
            } else {
                remaining_count += 1;
            }
        }
        Ok(remaining_count)
    }

    /// Caches the number of a workload, unless the cache is full.
    fn cache_number(&self, workload: &WorkloadName, number: u64) {
        let mut cached_numbers = self.lock_cache();
        if cached_numbers.len() < MAX_REGISTRATIONS || cached_numbers.contains_key(workload) {
            cached_numbers.insert(workload.clone(), number);
        }
    }

    /// Locks the cache, even if another holder of the lock has panicked.
    fn lock_cache(&self) -> MutexGuard<'_, BTreeMap<WorkloadName, u64>> {
        self.cached_numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the file of a workload. Its name is a hash, because a workload name may be longer than a file name.
    fn file_path(&self, workload: &WorkloadName) -> PathBuf {
        let name_digest = digest::digest(&digest::SHA256, workload.to_string().as_bytes());
        let file_name: String =
            name_digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        self.directory.join(file_name)
    }
}

/// Returns the content of a workload's file: the workload's name and its number, one per line.
fn render_record(workload: &WorkloadName, number: u64) -> Vec<u8> {
    format!("{workload}\n{number}\n").into_bytes()
}

/// Maximum number of registrations: several times the workloads of the largest measured mesh.
pub const MAX_REGISTRATIONS: usize = 65_536;

/// The time for which a registration is retained beyond [`MAX_LEAF_LIFETIME`], in case a clock is set back.
const CLOCK_MARGIN: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{now, workload_name};

    #[test]
    fn the_number_increases_with_each_join_and_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let registrations = Registrations::open(directory.path()).unwrap();
        let (name, other_name) = (workload_name("ratings-1"), workload_name("ratings-2"));
        assert_eq!(registrations.latest_number(&name).unwrap(), 0);
        let (start, first) = (now(), registrations.register(&name, now()).unwrap());
        let second = registrations.register(&name, start - Duration::from_secs(60)).unwrap();
        assert!(second > first && first > 0);
        let reopened = Registrations::open(directory.path()).unwrap();
        assert_eq!(
            (reopened.latest_number(&name).unwrap(), reopened.latest_number(&other_name).unwrap()),
            (second, 0)
        );
    }

    #[test]
    fn a_removed_directory_is_created_again() {
        let parent = tempfile::tempdir().unwrap();
        let registrations = Registrations::open(&parent.path().join("a/b")).unwrap();
        fs::remove_dir_all(parent.path().join("a")).unwrap();
        let name = workload_name("ratings-1");
        assert_eq!(registrations.latest_number(&name).unwrap(), 0);
        let first = registrations.register(&name, now()).unwrap();
        assert_eq!(registrations.latest_number(&name).unwrap(), first);
        // Certificates of a previous registration are still not renewed.
        fs::remove_dir_all(parent.path().join("a")).unwrap();
        assert_eq!(registrations.latest_number(&name).unwrap(), first);
        let reopened = Registrations::open(&parent.path().join("a/b")).unwrap();
        assert_eq!(reopened.latest_number(&name).unwrap(), first);
        // Another control plane registers the workload.
        fs::remove_dir_all(parent.path().join("a")).unwrap();
        let other_control_plane = Registrations::open(&parent.path().join("a/b")).unwrap();
        let second = other_control_plane.register(&name, now() + Duration::from_secs(1)).unwrap();
        assert_eq!(registrations.latest_number(&name).unwrap(), second);
    }

    #[test]
    fn a_registration_is_retained_for_the_maximum_certificate_lifetime() {
        let directory = tempfile::tempdir().unwrap();
        let registrations = Registrations::open(directory.path()).unwrap();
        let name = workload_name("ratings-1");
        let first = registrations.register(&name, now()).unwrap();
        assert_eq!(registrations.remove_expired(now() + MAX_LEAF_LIFETIME).unwrap(), 1);
        let after_expiry = now() + MAX_LEAF_LIFETIME + 2 * CLOCK_MARGIN;
        assert_eq!(registrations.remove_expired(after_expiry).unwrap(), 0);
        assert_eq!(registrations.latest_number(&name).unwrap(), 0);
        assert!(registrations.register(&name, after_expiry).unwrap() > first);
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let registrations = Registrations::open(directory.path()).unwrap();
        let name = workload_name("ratings-1");
        let path = registrations.file_path(&name);
        for text in
            ["", "bookinfo/ratings-1\n", "bookinfo/ratings-2\n7\n", "bookinfo/ratings-1\nx\n"]
        {
            disk::replace(&path, text.as_bytes(), FileAccess::Owner).unwrap();
            let error = registrations.latest_number(&name).unwrap_err().to_string();
            assert!(error.contains("not a registration"), "{error}");
        }
    }
}
