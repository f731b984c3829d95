//! Writes files atomically through temporary files, and reads Leno's own files and secrets, after a check that no other
//! user may read a secret.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use aws_lc_rs::rand;

use crate::regular_file::{self, FileOrigin};

/// The users that may read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileAccess {
    /// The owner only: mode 0600.
    Owner,
    /// All users: mode 0644.
    AllUsers,
}

/// Replaces or creates `path` atomically: after a crash it has its old or its new contents.
pub(crate) fn replace(path: &Path, contents: &[u8], access: FileAccess) -> io::Result<()> {
    let temporary_path = write_temporary_file(path, contents, access)?;
    fs::rename(&temporary_path, path).map_err(|cause| {
        fs::remove_file(&temporary_path).ok();
        file_error("write", path, cause)
    })?;
    sync_parent(path)
}

/// Replaces or creates a file atomically that only its owner may read. A symbolic link in its place is replaced, not
/// followed.
///
/// # Errors
/// An I/O error if the file cannot be written.
pub fn replace_private(path: &Path, contents: &[u8]) -> io::Result<()> {
    replace(path, contents, FileAccess::Owner)
}

/// Removes temporary files left by a crash in a directory that no other process uses.
///
/// # Errors
/// An I/O error if the directory cannot be read, or a temporary file cannot be removed.
pub fn remove_temporary_files(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_temporary_name) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Opens a lock file, and creates it if missing; does not lock it. A symbolic link in its place is an error.
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

/// Returns the secret in a file that only its owner may read; creates a file with a random secret if there is none. A
/// symbolic link in its place is an error.
///
/// # Errors
/// An I/O error if the file cannot be read or written, others may read it, or it contains no secret.
pub fn read_or_create_secret(path: &Path) -> io::Result<String> {
    match fs::symlink_metadata(path) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            let secret = crate::generate_secret()?;
            match create(path, secret.as_bytes(), FileAccess::Owner) {
                Ok(()) => return Ok(secret),
                // Another process created the file first: its secret is read below.
                Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {}
                Err(cause) => return Err(cause),
            }
        }
        // If this is not a regular file, the read below fails.
        Ok(_) => {}
        Err(cause) => return Err(file_error("read", path, cause)),
    }
    let text = read(path, FileAccess::Owner)?.unwrap_or_default();
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
pub(crate) fn create(path: &Path, contents: &[u8], access: FileAccess) -> io::Result<()> {
    let temporary_path = write_temporary_file(path, contents, access)?;
    let result = fs::hard_link(&temporary_path, path);
    // A temporary file that cannot be removed is harmless: its name marks it as temporary.
    fs::remove_file(&temporary_path).ok();
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
/// An I/O error if the path is a symbolic link or no regular file, other users may access the file although `access` is
/// [`FileAccess::Owner`], it is larger than [`MAX_FILE_BYTES`], or it is not UTF-8.
pub(crate) fn read(path: &Path, access: FileAccess) -> io::Result<Option<String>> {
    read_from_origin(path, FileOrigin::Leno, access)
}

/// Reads a file that the user or the platform provides; `None` if it does not exist. Unlike with [`read`], symbolic links
/// are followed.
///
/// # Errors
/// The errors of [`read`], except the one for a symbolic link.
pub(crate) fn read_user_file(path: &Path, access: FileAccess) -> io::Result<Option<String>> {
    read_from_origin(path, FileOrigin::User, access)
}

fn read_from_origin(
    path: &Path,
    origin: FileOrigin,
    access: FileAccess,
) -> io::Result<Option<String>> {
    let add_path = |cause| file_error("read", path, cause);
    let file = match regular_file::open_regular(path, origin) {
        Ok(file) => file,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(add_path(cause)),
    };
    // The mode is that of the open file: another process cannot replace it between check and read.
    let mode = file.metadata().map_err(add_path)?.permissions().mode() & 0o777;
    if access == FileAccess::Owner && mode & 0o077 != 0 {
        let message = format!(
            "other users can read this secret (mode {mode:04o}): run `chmod 600 {}`, or replace it if it was exposed",
            path.display()
        );
        return Err(add_path(io::Error::new(io::ErrorKind::PermissionDenied, message)));
    }
    let text = regular_file::read_bounded(file, MAX_FILE_BYTES);
    text.and_then(regular_file::bytes_to_text).map(Some).map_err(add_path)
}

/// Removes the file `path` durably; returns `false` if it does not exist.
pub(crate) fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => sync_parent(path).map(|()| true),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(cause) => Err(file_error("remove", path, cause)),
    }
}

/// Adds the action and the path to a system error. The action completes "cannot …", such as `read`; the error's kind is
/// unchanged.
pub(crate) fn file_error(action: &'static str, path: &Path, cause: io::Error) -> io::Error {
    let path = path.to_owned();
    io::Error::new(cause.kind(), FileError { action, path, cause })
}

/// True if the file name is that of a temporary file, which a crash may have left behind.
pub(crate) fn is_temporary_name(name: &str) -> bool {
    name.starts_with(TEMPORARY_PREFIX)
}

/// A failed action on a file.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} `{}`: {cause}", path.display())]
struct FileError {
    action: &'static str,
    path: PathBuf,
    cause: io::Error,
}

/// Writes the contents durably to a new file next to `path`, and returns the path of the new file.
fn write_temporary_file(path: &Path, contents: &[u8], access: FileAccess) -> io::Result<PathBuf> {
    let mut random_bytes = [0u8; 8];
    rand::fill(&mut random_bytes)
        .map_err(|_| io::Error::other("the operating system provides no random bytes"))?;
    let temporary_path =
        path.with_file_name(format!("{TEMPORARY_PREFIX}{:016x}", u64::from_ne_bytes(random_bytes)));
    let mode = match access {
        FileAccess::Owner => 0o600,
        FileAccess::AllUsers => 0o644,
    };
    let write_contents = || {
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary_path)?;
        file.write_all(contents)?;
        file.sync_all()
    };
    write_contents().map_err(|cause| {
        fs::remove_file(&temporary_path).ok();
        file_error("write", path, cause)
    })?;
    Ok(temporary_path)
}

/// Makes a rename, hard link or removal of `path` durable: without the sync of its directory, a power loss could undo it.
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent)
        .and_then(|directory| directory.sync_all())
        .map_err(|cause| file_error("write", parent, cause))
}

/// Maximum size of a file in bytes. Keys, certificate chains and trust bundles have a few KiB.
const MAX_FILE_BYTES: u64 = 256 * 1024;

/// The name prefix of temporary files: each is written in full, then renamed or hard-linked to its final name.
const TEMPORARY_PREFIX: &str = ".draft-";

/// Minimum length of a secret in characters.
const MIN_SECRET_CHARACTERS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_readable_by_their_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        create(&path, b"one", FileAccess::Owner).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read(&path, FileAccess::Owner).unwrap().unwrap(), "one");
    }

    #[test]
    fn create_never_replaces_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        create(&path, b"one", FileAccess::Owner).unwrap();
        let error = create(&path, b"two", FileAccess::Owner).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(read(&path, FileAccess::Owner).unwrap().unwrap(), "one");
        replace(&path, b"three", FileAccess::Owner).unwrap();
        assert_eq!(read(&path, FileAccess::Owner).unwrap().unwrap(), "three");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn secrets_that_others_may_read_are_rejected_with_a_hint() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        replace(&path, b"one", FileAccess::AllUsers).unwrap();
        for mode in [0o640, 0o604, 0o620] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = read(&path, FileAccess::Owner).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            assert!(error.to_string().contains("chmod 600"), "{error}");
            assert!(read(&path, FileAccess::AllUsers).is_ok());
        }
    }

    #[test]
    fn a_symbolic_link_in_place_of_a_file_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let [other, path, lock] =
            ["other", "state", "lock"].map(|name| directory.path().join(name));
        fs::write(&other, "untouched").unwrap();
        for link in [&path, &lock] {
            std::os::unix::fs::symlink(&other, link).unwrap();
        }
        replace_private(&path, b"new").unwrap();
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        open_lock(&lock).unwrap_err();
        fs::remove_file(&lock).unwrap();
        std::os::unix::fs::symlink(directory.path().join("absent"), &lock).unwrap();
        open_lock(&lock).unwrap_err();
        fs::remove_file(&lock).unwrap();
        open_lock(&lock).unwrap();
        open_lock(&lock).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "untouched");
        assert!(!directory.path().join("absent").exists());
        fs::write(directory.path().join(".draft-0123"), "left").unwrap();
        remove_temporary_files(directory.path()).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3);
    }

    #[test]
    fn files_larger_than_the_limit_are_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("large");
        let largest = usize::try_from(MAX_FILE_BYTES).unwrap();
        replace(&path, &vec![b'a'; largest], FileAccess::Owner).unwrap();
        assert!(read(&path, FileAccess::Owner).is_ok());
        replace(&path, &vec![b'a'; largest + 1], FileAccess::Owner).unwrap();
        assert!(read(&path, FileAccess::Owner).is_err());
    }

    #[test]
    fn a_secret_is_reused_and_no_symbolic_link_is_followed() {
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
