//! Atomic file writes, and secrets readable only by their owner.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use aws_lc_rs::rand;

use crate::regular_file::{self, FileOrigin};

/// The users that may read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileReaders {
    /// The owner only: mode 0600.
    Owner,
    /// All users: mode 0644.
    AllUsers,
}

/// Replaces or creates `path` atomically: after a crash it has its old or its new contents.
pub(crate) fn replace(path: &Path, contents: &[u8], readers: FileReaders) -> io::Result<()> {
    let draft = write_draft(path, contents, readers)?;
    fs::rename(&draft, path).map_err(|cause| {
        fs::remove_file(&draft).ok();
        file_error("write", path, cause)
    })?;
    sync_parent(path)
}

/// Replaces or creates a file atomically that only its owner may read. A link in its place is replaced, not
/// followed.
///
/// # Errors
/// An I/O error if the file cannot be written.
pub fn replace_private(path: &Path, contents: &[u8]) -> io::Result<()> {
    replace(path, contents, FileReaders::Owner)
}

/// Removes drafts left by a crash in a directory that no other process uses.
///
/// # Errors
/// An I/O error if the directory cannot be read, or a draft cannot be removed.
pub fn remove_drafts(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_draft) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Opens the lock file of a directory, and creates it if missing. A link in its place is an error.
///
/// # Errors
/// An I/O error if the file cannot be opened.
pub fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let result = options.custom_flags(regular_file::open_flags(FileOrigin::Leno)).open(path);
    let file =
        result.map_err(|cause| regular_file::explain_error(path, FileOrigin::Leno, cause))?;
    match file.metadata()?.file_type() {
        file_type if file_type.is_file() => Ok(file),
        file_type => Err(regular_file::wrong_type_error(file_type, FileOrigin::Leno)),
    }
}

/// Returns the secret in a file that only its owner may read; creates it if there is no file. A link in its
/// place is an error.
///
/// # Errors
/// An I/O error if the file cannot be read or written, others may read it, or it contains no secret.
pub fn read_or_create_secret(path: &Path) -> io::Result<String> {
    match fs::symlink_metadata(path) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            let secret = crate::generate_secret()?;
            match create(path, secret.as_bytes(), FileReaders::Owner) {
                Ok(()) => return Ok(secret),
                // Another process created the file first: its secret is read below.
                Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {}
                Err(cause) => return Err(cause),
            }
        }
        // The read reports another file type.
        Ok(_) => {}
        Err(cause) => return Err(file_error("read", path, cause)),
    }
    let text = read(path, FileReaders::Owner)?.unwrap_or_default();
    match text.trim() {
        text if text.len() >= MIN_SECRET_CHARACTERS => Ok(text.to_owned()),
        _ => {
            let problem = "contains no secret: remove it";
            Err(file_error("use", path, io::Error::new(io::ErrorKind::InvalidData, problem)))
        }
    }
}

/// Creates `path` with all of its contents, or fails with `AlreadyExists`.
///
/// A hard link is the portable way to create a file both exclusively and atomically: with `O_EXCL` alone, other
/// processes could read an empty file.
pub(crate) fn create(path: &Path, contents: &[u8], readers: FileReaders) -> io::Result<()> {
    let draft = write_draft(path, contents, readers)?;
    let result = fs::hard_link(&draft, path);
    fs::remove_file(&draft).ok();
    result.map_err(|cause| file_error("create", path, cause))?;
    sync_parent(path)
}

/// Moves a directory to a path that does not exist or is an empty directory.
pub(crate) fn move_directory(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to).map_err(|cause| file_error("create", to, cause))?;
    sync_parent(to)
}

/// Reads a file written by Leno; `None` if it does not exist.
///
/// # Errors
/// An I/O error if the file is a link or not a regular file, is readable by others although `readers` is
/// [`FileReaders::Owner`], is larger than [`MAX_FILE_BYTES`], or is not text.
pub(crate) fn read(path: &Path, readers: FileReaders) -> io::Result<Option<String>> {
    read_from(path, FileOrigin::Leno, readers)
}

/// Reads a file that the user or the platform provides; `None` if it does not exist. Unlike with [`read`], links are
/// followed.
///
/// # Errors
/// The errors of [`read`], except that for a link.
pub(crate) fn read_user_file(path: &Path, readers: FileReaders) -> io::Result<Option<String>> {
    read_from(path, FileOrigin::User, readers)
}

fn read_from(path: &Path, origin: FileOrigin, readers: FileReaders) -> io::Result<Option<String>> {
    let add_path = |cause| file_error("read", path, cause);
    let file = match regular_file::open_regular(path, origin) {
        Ok(file) => file,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(add_path(cause)),
    };
    // The mode is that of the open file: another process cannot replace it between check and read.
    let mode = file.metadata().map_err(add_path)?.permissions().mode() & 0o777;
    if readers == FileReaders::Owner && mode & 0o077 != 0 {
        let message = format!(
            "other users can read this secret (mode {mode:04o}): run `chmod 600 {}`, or replace it if it was exposed",
            path.display()
        );
        return Err(add_path(io::Error::new(io::ErrorKind::PermissionDenied, message)));
    }
    let text = regular_file::read_bounded(file, MAX_FILE_BYTES);
    text.and_then(regular_file::bytes_to_text).map(Some).map_err(add_path)
}

/// Removes `path` durably; `false` if it was already gone.
pub(crate) fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => sync_parent(path).map(|()| true),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(cause) => Err(file_error("remove", path, cause)),
    }
}

/// Adds the path to a system error; the kind is unchanged.
pub(crate) fn file_error(action: &'static str, path: &Path, cause: io::Error) -> io::Error {
    let path = path.to_owned();
    io::Error::new(cause.kind(), FileError { action, path, cause })
}

/// True if the name is that of a draft, which a crash may have left behind.
pub(crate) fn is_draft(name: &str) -> bool {
    name.starts_with(DRAFT_PREFIX)
}

/// A failed action on a file.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} `{}`: {cause}", path.display())]
struct FileError {
    action: &'static str,
    path: PathBuf,
    cause: io::Error,
}

/// Writes the contents to a new file next to `path`, and returns the path of that file.
fn write_draft(path: &Path, contents: &[u8], readers: FileReaders) -> io::Result<PathBuf> {
    let mut random_bytes = [0u8; 8];
    rand::fill(&mut random_bytes)
        .map_err(|_| io::Error::other("the operating system provides no random bytes"))?;
    let draft =
        path.with_file_name(format!("{DRAFT_PREFIX}{:016x}", u64::from_ne_bytes(random_bytes)));
    let mode = match readers {
        FileReaders::Owner => 0o600,
        FileReaders::AllUsers => 0o644,
    };
    let write_contents = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft)?;
        file.write_all(contents)?;
        file.sync_all()
    };
    write_contents().map_err(|cause| {
        fs::remove_file(&draft).ok();
        file_error("write", path, cause)
    })?;
    Ok(draft)
}

/// Makes a rename, link or removal of `path` durable.
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent)
        .and_then(|directory| directory.sync_all())
        .map_err(|cause| file_error("write", parent, cause))
}

/// Maximum size of a file in bytes. Keys, chains and bundles have a few KiB.
const MAX_FILE_BYTES: u64 = 256 * 1024;

/// The prefix of the names of drafts: files that are complete and then renamed.
const DRAFT_PREFIX: &str = ".draft-";

/// Minimum length of a secret in characters.
const MIN_SECRET_CHARACTERS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_readable_by_their_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        create(&path, b"one", FileReaders::Owner).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read(&path, FileReaders::Owner).unwrap().unwrap(), "one");
    }

    #[test]
    fn create_never_replaces_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        create(&path, b"one", FileReaders::Owner).unwrap();
        let error = create(&path, b"two", FileReaders::Owner).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(read(&path, FileReaders::Owner).unwrap().unwrap(), "one");
        replace(&path, b"three", FileReaders::Owner).unwrap();
        assert_eq!(read(&path, FileReaders::Owner).unwrap().unwrap(), "three");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no drafts are left");
    }

    #[test]
    fn secrets_that_others_may_read_are_rejected_with_a_hint() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        replace(&path, b"one", FileReaders::AllUsers).unwrap();
        for mode in [0o640, 0o604, 0o620] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = read(&path, FileReaders::Owner).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            assert!(error.to_string().contains("chmod 600"), "{error}");
            assert!(read(&path, FileReaders::AllUsers).is_ok());
        }
    }

    #[test]
    fn a_link_in_place_of_a_file_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let [other, path, lock] = ["other", "state", "lock"].map(|name| dir.path().join(name));
        fs::write(&other, "untouched").unwrap();
        for link in [&path, &lock] {
            std::os::unix::fs::symlink(&other, link).unwrap();
        }
        replace_private(&path, b"new").unwrap();
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        open_lock(&lock).unwrap_err();
        fs::remove_file(&lock).unwrap();
        std::os::unix::fs::symlink(dir.path().join("absent"), &lock).unwrap();
        open_lock(&lock).unwrap_err();
        fs::remove_file(&lock).unwrap();
        open_lock(&lock).unwrap();
        open_lock(&lock).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "untouched");
        assert!(!dir.path().join("absent").exists());
        fs::write(dir.path().join(".draft-0123"), "left").unwrap();
        remove_drafts(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[test]
    fn files_larger_than_the_limit_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("large");
        let largest = usize::try_from(MAX_FILE_BYTES).unwrap();
        replace(&path, &vec![b'a'; largest], FileReaders::Owner).unwrap();
        assert!(read(&path, FileReaders::Owner).is_ok());
        replace(&path, &vec![b'a'; largest + 1], FileReaders::Owner).unwrap();
        assert!(read(&path, FileReaders::Owner).is_err());
    }

    #[test]
    fn a_secret_is_reused_and_no_link_is_followed() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("secret");
        let secret = read_or_create_secret(&path).unwrap();
        assert!(secret.len() >= MIN_SECRET_CHARACTERS);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read_or_create_secret(&path).unwrap(), secret);
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(read_or_create_secret(&link).unwrap_err().to_string().contains("is a link"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(
            read_or_create_secret(&path).unwrap_err().to_string().contains("other users can read")
        );
        let empty = scratch.path().join("empty");
        replace_private(&empty, b"short").unwrap();
        assert!(
            read_or_create_secret(&empty).unwrap_err().to_string().contains("contains no secret")
        );
    }
}
