//! A test write to the data directory: `leno status` shows that the disk takes no state.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The error of a small write to the directory, if it fails.
pub(crate) fn problem(directory: &Path) -> Option<String> {
    let path = draft(directory);
    let written = write(&path);
    let removed = std::fs::remove_file(&path);
    let absent = removed.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let removed = if absent { Ok(()) } else { removed };
    written.and(removed).err().map(|error| error.to_string())
}

/// More than file systems keep within an inode.
fn write(path: &Path) -> io::Result<()> {
    let mut file = std::fs::File::options().write(true).create_new(true).open(path)?;
    file.write_all(&[0; TEST_BYTES])
}

/// A name that no other file of the directory has.
fn draft(directory: &Path) -> PathBuf {
    let number = WRITES.fetch_add(1, Ordering::Relaxed);
    directory.join(format!(".write-test-{}-{number}", std::process::id()))
}

static WRITES: AtomicU64 = AtomicU64::new(0);
/// The size of a block.
const TEST_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_takes_no_file_is_a_problem_and_nothing_stays_behind() {
        let scratch = tempfile::tempdir().unwrap();
        assert_eq!(problem(scratch.path()), None);
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
        assert!(problem(&scratch.path().join("absent")).is_some());
    }
}
