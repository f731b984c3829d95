//! Creates directories that only their owner may enter, and checks that no other user may have created a directory or
//! may modify it.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use crate::disk::file_error;

/// Creates a directory that only its owner may enter, and its missing parents, regardless of the umask. An
/// existing directory is not changed, but checked like in [`check_private_directory`].
///
/// # Errors
/// An I/O error if the directory cannot be created, or another user may control it.
pub fn create_private_directory(path: &Path) -> io::Result<()> {
    create_private_for_user(current_user_id(), path)
        .map_err(|error| error.into_io_error("create", path))
}

/// Checks that no other user can control a directory: group and others may not write to it, and in each parent
/// that others may write to (such as `/tmp`), the next directory on the path belongs to this user or root.
/// Otherwise another user may have created it first.
///
/// # Errors
/// An I/O error if the directory does not exist, or another user may control it.
pub fn check_private_directory(path: &Path) -> io::Result<()> {
    check_private_for_user(current_user_id(), path)
        .map_err(|error| error.into_io_error("use", path))
}

/// Checks a directory like [`check_private_directory`], but accepts one that does not exist.
///
/// # Errors
/// An I/O error if another user may control the directory.
pub(crate) fn check_private_if_exists(path: &Path) -> io::Result<()> {
    match check_private_directory(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// The reason that a directory is not used.
enum DirectoryError {
    /// A system call failed.
    Io(io::Error),
    /// Another user may control the directory.
    Unsafe(UnsafeDirectory),
}

/// The position of a checked path: the private directory itself (`Final`), or one of its parents.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PathPosition {
    Ancestor,
    Final,
}

/// A directory that another user may control.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum UnsafeDirectory {
    #[error(
        "other users can write to the directory {path}, which contains keys: run `chmod 700 {}`, or use another directory",
        quote_path(path)
    )]
    Writable { path: String },
    #[error(
        "the directory {path}, on the path to keys, belongs to user {owner}, and {parent} is \
         writable for other users: use a directory that no other user can create, or run the \
         command as user {owner} if the directory is that user's (`sudo -u '#{owner}' …`)"
    )]
    OtherOwner { path: String, parent: String, owner: u32 },
}

impl DirectoryError {
    fn into_io_error(self, action: &'static str, path: &Path) -> io::Error {
        match self {
            Self::Io(cause) => file_error(action, path, cause),
            Self::Unsafe(problem) => io::Error::new(io::ErrorKind::PermissionDenied, problem),
        }
    }
}

/// Returns the effective user id of this process.
fn current_user_id() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Creates the directory and its missing parents as the user with this id, and checks it.
fn create_private_for_user(user_id: u32, path: &Path) -> Result<(), DirectoryError> {
    let path = std::path::absolute(path).map_err(DirectoryError::Io)?;
    let missing_directories: Vec<&Path> =
        path.ancestors().take_while(|parent| !parent.exists()).collect();
    if let Some(existing) =
        path.ancestors().nth(missing_directories.len()).filter(|_| !missing_directories.is_empty())
    {
        // No directory is created in another user's directory.
        check_path(user_id, existing, PathPosition::Ancestor)?;
    }
    for parent in missing_directories.into_iter().rev() {
        create_directory(parent).map_err(DirectoryError::Io)?;
    }
    check_private_for_user(user_id, &path)
}

/// Checks that no user but root and the user with this id can control the directory.
fn check_private_for_user(user_id: u32, path: &Path) -> Result<(), DirectoryError> {
    let path = std::path::absolute(path).map_err(DirectoryError::Io)?;
    check_path(user_id, &path, PathPosition::Final)?;
    let metadata = fs::metadata(&path).map_err(DirectoryError::Io)?;
    match metadata.mode() & OTHERS_WRITE_MODE {
        0 => Ok(()),
        _ => Err(DirectoryError::Unsafe(UnsafeDirectory::Writable {
            path: path.display().to_string(),
        })),
    }
}

/// Checks the owners of the directories on an absolute path, and on its canonical path if a directory on the path is a
/// symbolic link.
fn check_path(
    user_id: u32,
    path: &Path,
    path_position: PathPosition,
) -> Result<(), DirectoryError> {
    check_owners(user_id, path, path_position)?;
    let target = fs::canonicalize(path).map_err(DirectoryError::Io)?;
    match target == path {
        true => Ok(()),
        false => check_owners(user_id, &target, path_position),
    }
}

/// Checks the owner of each directory on a path that another user could have created, because others may write to its
/// parent. The owner of the parent is accepted, since that user controls the directory anyway; the final directory must
/// belong to this user or root.
fn check_owners(
    user_id: u32,
    path: &Path,
    path_position: PathPosition,
) -> Result<(), DirectoryError> {
    let ancestors: Vec<&Path> = path.ancestors().collect();
    for pair in ancestors.windows(2) {
        let [directory, parent] = pair else { continue };
        let parent_metadata = fs::metadata(parent).map_err(DirectoryError::Io)?;
        if parent_metadata.mode() & OTHERS_WRITE_MODE == 0 {
            continue;
        }
        let owner = fs::symlink_metadata(directory).map_err(DirectoryError::Io)?.uid();
        let is_trusted = |owner: u32| owner == user_id || owner == ROOT_USER_ID;
        let is_final = path_position == PathPosition::Final && *directory == path;
        if !is_trusted(owner) && (is_final || owner != parent_metadata.uid()) {
            return Err(DirectoryError::Unsafe(UnsafeDirectory::OtherOwner {
                path: directory.display().to_string(),
                parent: parent.display().to_string(),
                owner,
            }));
        }
    }
    Ok(())
}

/// Creates one directory with the mode 0700; succeeds if the directory exists already.
fn create_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(PRIVATE_MODE).create(path) {
        // A umask may have removed even the owner's permissions.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(PRIVATE_MODE)),
        // Another process created the directory first. The caller checks its owner and mode.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Quotes a path for a POSIX shell, if it has characters that a shell would interpret.
#[must_use]
pub fn quote_path(path: &str) -> String {
    let is_unquoted = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%".contains(c);
    match path.chars().all(is_unquoted) {
        true => path.to_owned(),
        false => format!("'{}'", path.replace('\'', "'\\''")),
    }
}

/// Read, write and search permission for the owner only.
const PRIVATE_MODE: u32 = 0o700;
/// Write permission of group or others.
const OTHERS_WRITE_MODE: u32 = 0o022;
/// The user id of the superuser.
const ROOT_USER_ID: u32 = 0;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::SharedDirectory;

    fn directory_problem(user_id: u32, path: &Path) -> Option<String> {
        match check_private_for_user(user_id, path) {
            Ok(()) => None,
            Err(DirectoryError::Io(cause)) => panic!("{}: {cause}", path.display()),
            Err(DirectoryError::Unsafe(problem)) => Some(problem.to_string()),
        }
    }

    #[test]
    fn a_directory_and_its_parents_are_created_for_their_owner_only() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("a/b");
        create_private_directory(&path).unwrap();
        create_private_directory(&path).unwrap();
        for created in [&path, &scratch.path().join("a")] {
            assert_eq!(fs::metadata(created).unwrap().mode() & 0o777, 0o700);
        }
        for (mode, accepted) in [(0o755, true), (0o775, false), (0o1777, false), (0o702, false)] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let result = create_private_directory(&path);
            let hint = format!("`chmod 700 {}`", path.display());
            match result {
                Ok(()) => assert!(accepted, "{mode:o}"),
                Err(error) => assert!(!accepted && error.to_string().contains(&hint), "{error}"),
            }
        }
    }

    #[test]
    fn directories_of_other_users_in_a_shared_directory_are_rejected() {
        let shared = SharedDirectory::new();
        let SharedDirectory { user_id, other_user_id, .. } = shared;
        let other_users_directory = shared.create_for_other_user("data");
        let parent = shared.path().display();
        let expected =
            format!("{parent}/data, on the path to keys, belongs to user {other_user_id}, ");
        for path in
            [other_users_directory.clone(), shared.create_in(&other_users_directory, "tokens")]
        {
            let problem = directory_problem(user_id, &path).expect("it is another user's");
            assert!(problem.contains(&expected), "{problem}");
            assert!(
                problem.contains(&format!("{parent} is writable for other users: ")),
                "{problem}"
            );
            assert!(problem.contains(&format!("`sudo -u '#{other_user_id}' …`")), "{problem}");
        }
        assert!(
            create_private_for_user(user_id, &other_users_directory.join("authority/new")).is_err()
        );
        assert!(!other_users_directory.join("authority").exists(), "no directory is created there");
        // A link is checked by its own owner, and by the directories on the path of its target.
        let link = shared.path().join("link");
        std::os::unix::fs::symlink(&other_users_directory, &link).unwrap();
        assert!(
            directory_problem(user_id, &link)
                .expect("its target is another user's")
                .contains("belongs to")
        );
        let private = tempfile::tempdir().unwrap();
        let other_users_link = shared.path().join("foreign-link");
        std::os::unix::fs::symlink(private.path(), &other_users_link).unwrap();
        shared.change_owner(&other_users_link);
        assert!(
            directory_problem(user_id, &other_users_link)
                .expect("the link belongs to another user")
                .contains("foreign-link")
        );
        // Directories of this user and of root are accepted.
        let runs_as = rustix::process::geteuid().as_raw();
        let own_directory = shared.create_own("own");
        assert_eq!(directory_problem(runs_as, &own_directory), None);
        assert_eq!(directory_problem(runs_as, &shared.create_in(&own_directory, "tokens")), None);
    }

    #[test]
    fn no_file_is_read_from_a_directory_that_others_may_write_to() {
        let directory = tempfile::tempdir().unwrap();
        let now = std::time::SystemTime::now();
        let workload = crate::testing::workload_name("a");
        let tokens = crate::Tokens::open(directory.path()).unwrap();
        let registrations = crate::Registrations::open(directory.path()).unwrap();
        let revoked = crate::RevocationFile::in_directory(directory.path());
        let token = tokens.issue_token(&workload, Duration::from_secs(60), now).unwrap();
        let number = registrations.register(&workload, now).unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
        for error in [
            tokens.redeem(&token, &workload, now).unwrap_err().to_string(),
            registrations.latest_number(&workload).unwrap_err().to_string(),
            revoked.read().unwrap_err().to_string(),
        ] {
            assert!(error.contains("other users can write to the directory"), "{error}");
        }
        fs::set_permissions(directory.path(), Permissions::from_mode(0o700)).unwrap();
        tokens.redeem(&token, &workload, now).unwrap();
        assert_eq!(registrations.latest_number(&workload).unwrap(), number);
        assert!(revoked.read().unwrap().is_empty());
    }

    #[test]
    fn paths_in_hints_are_quoted_for_a_shell() {
        for (path, expected) in
            [("/var/lib/leno", "/var/lib/leno"), ("/a b/it's", "'/a b/it'\\''s'")]
        {
            assert_eq!(quote_path(path), expected);
        }
    }
}
