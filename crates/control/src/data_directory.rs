//! Reports the status of the data directory: the result of a test write, the error of the authority's files, and the
//! number of dropped log lines.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use leno_identity::check_private_directory;
use leno_telemetry::{DroppedLines, lines_dropped};

use crate::status::DirectoryStatus;

/// The data directory, for the admin socket and the page.
#[derive(Debug)]
pub(crate) struct DataDirectory {
    path: PathBuf,
    /// The number of recently dropped log lines.
    log_lines_dropped: AtomicU64,
    /// The error of the authority's files; `None` while they are valid.
    authority_problem: Mutex<Option<String>>,
}

impl DataDirectory {
    pub(crate) fn new(path: PathBuf) -> Arc<Self> {
        Arc::new(Self {
            path,
            log_lines_dropped: AtomicU64::new(0),
            authority_problem: Mutex::default(),
        })
    }

    /// Reads the counter of dropped log lines periodically, for the lifetime of the control plane.
    pub(crate) async fn track_dropped_lines(&self) {
        let mut dropped_lines = DroppedLines::default();
        loop {
            let recent_lines = dropped_lines.record_count(lines_dropped(), Instant::now());
            self.log_lines_dropped.store(recent_lines, Ordering::Relaxed);
            tokio::time::sleep(LOG_CHECK_INTERVAL).await;
        }
    }

    /// Records the error of the authority's files; returns true if it differs from the previous one.
    pub(crate) fn record_authority_problem(&self, problem: Option<String>) -> bool {
        let mut recorded_problem =
            self.authority_problem.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = *recorded_problem != problem;
        *recorded_problem = problem;
        is_new
    }

    /// Performs a test write and returns the status of the directory; `None` while the process exits.
    pub(crate) async fn directory_status(&self) -> Option<DirectoryStatus> {
        let path = self.path.clone();
        let log_lines_dropped = self.log_lines_dropped.load(Ordering::Relaxed);
        let authority_problem =
            self.authority_problem.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let test_write = tokio::task::spawn_blocking(move || {
            let problem = write_error(&path);
            let directory = path.display().to_string();
            DirectoryStatus { directory, problem, authority_problem, log_lines_dropped }
        });
        test_write.await.ok()
    }
}

/// Returns the error of a small write to the directory, if it fails. Nothing is written to a directory that
/// another user controls.
fn write_error(directory: &Path) -> Option<String> {
    if let Err(error) = check_private_directory(directory) {
        return Some(error.to_string());
    }
    let path = test_file_path(directory);
    let write_result = write_test_file(&path);
    let remove_result = std::fs::remove_file(&path);
    let is_absent =
        remove_result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    // A file that was never created need not be removed.
    let remove_result = if is_absent { Ok(()) } else { remove_result };
    write_result.and(remove_result).err().map(|error| error.to_string())
}

/// Writes a test file with more bytes than file systems store within an inode.
fn write_test_file(path: &Path) -> io::Result<()> {
    let mut file = std::fs::File::options().write(true).create_new(true).open(path)?;
    file.write_all(&[0; TEST_FILE_BYTES])
}

/// Returns a file name that is unique in the directory.
fn test_file_path(directory: &Path) -> PathBuf {
    let number = TEST_WRITES.fetch_add(1, Ordering::Relaxed);
    directory.join(format!(".write-test-{}-{number}", std::process::id()))
}

/// The interval of reading the counter of dropped log lines.
const LOG_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The number of test writes of this process, for unique file names.
static TEST_WRITES: AtomicU64 = AtomicU64::new(0);
/// The size of the test file in bytes, a block of common file systems.
const TEST_FILE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_directory_that_cannot_be_written_is_a_problem_and_no_test_file_remains() {
        let scratch = tempfile::tempdir().unwrap();
        assert_eq!(write_error(scratch.path()), None);
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
        assert!(write_error(&scratch.path().join("absent")).is_some());
    }

    #[test]
    fn no_test_file_is_written_to_a_directory_that_another_user_controls() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = std::fs::File::open(scratch.path()).unwrap();
        for (mode, is_private) in [(0o777, false), (0o720, false), (0o755, true)] {
            std::fs::set_permissions(scratch.path(), Permissions::from_mode(mode)).unwrap();
            directory.set_modified(SystemTime::UNIX_EPOCH).unwrap();
            assert_eq!(write_error(scratch.path()).is_none(), is_private, "{mode:o}");
            let modified = directory.metadata().unwrap().modified().unwrap();
            assert_eq!(modified != SystemTime::UNIX_EPOCH, is_private, "{mode:o}");
        }
    }
}
