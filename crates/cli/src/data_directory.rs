//! Finds, creates and locks the data directory of a mesh, which has its keys, tokens and sockets. Only one mesh
//! runs on a directory.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use leno_identity::{open_lock, quote_path};

/// Selects the data directory.
#[derive(Debug, Clone, Args)]
pub(crate) struct DataDirectoryArgs {
    /// Data directory of the mesh [default: ~/.local/state/leno/default]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(flatten)]
    home: HomeArgs,
}

/// The user's base directories, from the environment only.
#[derive(Debug, Clone, Args)]
pub(crate) struct HomeArgs {
    // Text, because clap rejects empty paths: empty means unset (the XDG specification).
    #[arg(long, env = "XDG_STATE_HOME", hide = true)]
    state_home: Option<OsString>,
    #[arg(long, env = "XDG_CACHE_HOME", hide = true)]
    cache_home: Option<OsString>,
    #[arg(long, env = "HOME", hide = true)]
    user_home: Option<OsString>,
}

impl DataDirectoryArgs {
    /// Returns the absolute path of the directory, which may not exist yet.
    ///
    /// # Errors
    /// Without the option, if there is no home directory.
    pub(crate) fn path(&self) -> anyhow::Result<PathBuf> {
        let selected_path = match &self.data {
            Some(path) => path.clone(),
            None => self.home.state_directory()?.join("default"),
        };
        let absolute_path = std::path::absolute(&selected_path)
            .with_context(|| format!("the data directory{}", self.data_option()))?;
        Ok(resolve_volume_path(absolute_path))
    }

    /// Returns ` --data DIRECTORY`, to append to a command in a hint; empty for the default directory.
    pub(crate) fn data_option(&self) -> String {
        match &self.data {
            Some(path) => format!(" --data {}", path.display()),
            None => String::new(),
        }
    }

    /// Adds `--data` to the Leno commands in a text that accept it, unless the directory is the default.
    pub(crate) fn add_data_option(&self, text: &str) -> String {
        let option = self.data_option();
        let mut result = String::new();
        let mut remaining = text;
        while let Some(start) = remaining.find(PROGRAM) {
            let (prefix, command) = remaining.split_at(start);
            let is_word = !prefix.ends_with(|c: char| c.is_alphanumeric() || "-_./".contains(c));
            let position = option_position(command).filter(|_| is_word);
            let (command_words, suffix) = command.split_at(position.unwrap_or(PROGRAM.len()));
            result.push_str(prefix);
            result.push_str(command_words);
            if position.is_some() && !suffix.starts_with(" --data") {
                result.push_str(&option);
            }
            remaining = suffix;
        }
        result.push_str(remaining);
        result
    }
}

/// Returns the position for the option `--data` in a text that begins with a Leno command, in bytes; `None` if
/// the command does not have the option.
fn option_position(text: &str) -> Option<usize> {
    let word_end = |text: &str| text.find(|c: char| !c.is_ascii_lowercase() && c != '-');
    let find_word_end = |start: usize| {
        let remaining = text.get(start..)?;
        Some(start + word_end(remaining).unwrap_or(remaining.len()))
    };
    let first_word_end = find_word_end(PROGRAM.len())?;
    let end_of_second_word = || {
        let has_second_word = text.get(first_word_end..)?.starts_with(' ');
        find_word_end(first_word_end + 1).filter(|end| has_second_word && *end > first_word_end + 1)
    };
    match text.get(PROGRAM.len()..first_word_end)? {
        "get" | "ca" => end_of_second_word(),
        "explain" => end_of_second_word().filter(|end| {
            text.get(first_word_end + 1..*end)
                .is_some_and(|topic| ["request", "change"].contains(&topic))
        }),
        "bug-report" | "diagnose" | "revoke" | "status" | "tap" | "token" | "top" => {
            Some(first_word_end)
        }
        _ => None,
    }
}

/// The program name at the start of each command.
const PROGRAM: &str = "leno ";

impl HomeArgs {
    /// Returns the directory of Leno's state for this user.
    ///
    /// # Errors
    /// If there is no home directory.
    pub(crate) fn state_directory(&self) -> anyhow::Result<PathBuf> {
        let state_directory = self.resolve_directory(&self.state_home, ".local/state");
        state_directory.context("no home directory for state: set HOME or XDG_STATE_HOME")
    }

    /// Returns the cache directory for this user.
    ///
    /// # Errors
    /// If there is no home directory.
    pub(crate) fn cache_directory(&self) -> anyhow::Result<PathBuf> {
        let cache_directory = self.resolve_directory(&self.cache_home, ".cache");
        cache_directory.context("no home directory for the build cache: set HOME or XDG_CACHE_HOME")
    }

    /// Returns the directory `leno` in an XDG directory, or else in its default below the home directory; `None`
    /// without both.
    fn resolve_directory(
        &self,
        xdg_directory: &Option<OsString>,
        path_in_home: &str,
    ) -> Option<PathBuf> {
        // The XDG specification: relative paths are ignored.
        let absolute_directory =
            xdg_directory.as_ref().map(PathBuf::from).filter(|path| path.is_absolute());
        let user_home = self.user_home.as_ref().filter(|user_home| !user_home.is_empty());
        let default_directory = || Some(Path::new(user_home?).join(path_in_home));
        Some(absolute_directory.or_else(default_directory)?.join("leno"))
    }
}

/// A data directory that no other process uses until this is dropped.
#[derive(Debug)]
pub(crate) struct ClaimedDataDirectory {
    path: PathBuf,
    /// The open lock file; closing it releases the lock.
    _lock: File,
}

impl ClaimedDataDirectory {
    /// Creates the directory if needed, accessible to its owner only, and locks it.
    ///
    /// # Errors
    /// If the directory cannot be created, locked or written, or another mesh runs on it.
    pub(crate) fn claim(path: PathBuf) -> anyhow::Result<Self> {
        create_private_directory(&path)?;
        let lock_path = path.join(LOCK_FILE);
        let mut lock = open_lock_file(&path)?;
        let is_locked = lock_with_timeout(&lock, LOCK_TIMEOUT)
            .with_context(|| format!("cannot lock {}", lock_path.display()))?;
        let holder_note = match is_locked {
            true => find_holder_of_removed_lock(&path, &lock),
            false => read_lock_holder(&mut lock),
        };
        if let Some(holder_note) = holder_note {
            bail!(
                "the data directory {} is in use by another mesh{holder_note}: stop that mesh, or set another \
                 directory with --data",
                path.display()
            );
        }
        lock.set_len(0)
            .and_then(|()| write!(lock, "{}", std::process::id()))
            .with_context(|| format!("cannot write {}", lock_path.display()))?;
        Ok(Self { path, _lock: lock })
    }

    /// Creates the directory if needed and locks it; `None` if another mesh runs on it. Does not write the
    /// process ID.
    ///
    /// # Errors
    /// If the directory cannot be created or locked.
    pub(crate) fn claim_unless_used(path: PathBuf) -> anyhow::Result<Option<Self>> {
        Self::claim_with_timeout(path, LOCK_TIMEOUT)
    }

    /// Claims the directory as [`Self::claim_unless_used`] does, with this timeout for the lock.
    fn claim_with_timeout(path: PathBuf, timeout: Duration) -> anyhow::Result<Option<Self>> {
        create_private_directory(&path)?;
        let mut lock = open_lock_file(&path)?;
        let context = || format!("cannot lock {}", path.join(LOCK_FILE).display());
        let mut is_locked = lock_with_timeout(&lock, timeout).with_context(context)?;
        // If the process in the lock file is not alive, the lock belongs to a process that cleans the directory
        // and exits soon.
        if !is_locked && !is_holder_alive(&mut lock) {
            is_locked = lock_with_timeout(&lock, CLEAN_TIMEOUT).with_context(context)?;
        }
        let is_used = !is_locked || find_holder_of_removed_lock(&path, &lock).is_some();
        Ok((!is_used).then_some(Self { path, _lock: lock }))
    }

    /// Returns the path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn open_lock_file(directory: &Path) -> anyhow::Result<File> {
    let path = directory.join(LOCK_FILE);
    open_lock(&path).with_context(|| format!("cannot open {}", path.display()))
}

/// True if a mesh has run on the directory.
pub(crate) fn has_mesh_run(directory: &Path) -> bool {
    directory.join(LOCK_FILE).exists()
}

/// Locks a file; false if another process still holds the lock after the timeout. A killed process keeps its
/// locks until the system has reclaimed its memory.
///
/// # Errors
/// If the lock operation fails for another reason.
pub(crate) fn lock_with_timeout(file: &File, timeout: Duration) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => return Ok(true),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let handle = file.try_clone()?;
    let (sender, receiver) = mpsc::channel();
    // The thread ends with the process: the caller reports the failed lock and exits.
    std::thread::Builder::new().name("lock".to_owned()).spawn(move || {
        drop(sender.send(handle.lock()));
    })?;
    match receiver.recv_timeout(timeout) {
        Ok(outcome) => outcome.map(|()| true),
        Err(_) => Ok(false),
    }
}

/// Creates a directory and its missing parents, accessible to the owner only, whatever the umask; an existing
/// directory stays unchanged.
///
/// # Errors
/// If the directory cannot be created, or another user may change its content.
pub(crate) fn create_private_directory(path: &Path) -> anyhow::Result<()> {
    let display = path.display();
    leno_identity::create_private_directory(path)?;
    let metadata = std::fs::metadata(path).with_context(|| format!("cannot inspect {display}"))?;
    let own_user = rustix::process::geteuid().as_raw();
    match belongs_to_other_user(metadata.uid(), own_user) {
        false => Ok(()),
        true => bail!(
            "the directory {display}, which contains keys, is owned by user {}: `chown {own_user} {}`, or use \
             another one",
            metadata.uid(),
            quote_path(&display.to_string())
        ),
    }
}

/// True for the directory of a user other than this one and root.
fn belongs_to_other_user(owner: u32, own_user: u32) -> bool {
    owner != own_user && owner != ROOT_USER
}

/// Returns the subdirectory to use if the path is a new container volume, which Kubernetes creates owned by root
/// and world-writable; otherwise the path itself.
pub(crate) fn resolve_volume_path(path: PathBuf) -> PathBuf {
    let Some(parent) = path.parent() else { return path };
    let (Ok(metadata), Ok(parent_metadata)) = (std::fs::metadata(&path), std::fs::metadata(parent))
    else {
        return path;
    };
    let is_mounted = metadata.dev() != parent_metadata.dev();
    match is_mounted && is_new_volume(metadata.mode(), metadata.uid()) {
        true => path.join(VOLUME_SUBDIRECTORY),
        false => path,
    }
}

/// True if owner and mode are those of a new volume: root's and world-writable, without the sticky bit.
fn is_new_volume(mode: u32, owner: u32) -> bool {
    owner == ROOT_USER && mode & 0o007 == 0o007 && mode & STICKY_BIT == 0
}

/// The maximum wait for a lock that a killed process may still hold, until the kernel has released it.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// The maximum wait for a process that cleans up after a killed mesh; longer than applications take to exit.
pub(crate) const CLEAN_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns a text that names the process in the lock file, to append to a message; the text is empty if the
/// file is empty. The result is always `Some`, because a process holds the lock.
fn read_lock_holder(lock: &mut File) -> Option<String> {
    let mut text = String::new();
    Some(match lock.take(MAX_PID_BYTES).read_to_string(&mut text) {
        Ok(1..) => format!(" (process {})", text.trim()),
        _ => String::new(),
    })
}

/// True if the process ID in the lock file, which the last mesh wrote, belongs to a live process.
fn is_holder_alive(lock: &mut File) -> bool {
    let mut text = String::new();
    let read_result = lock.take(MAX_PID_BYTES).read_to_string(&mut text);
    let pid = text.trim().parse::<u32>().ok().filter(|_| read_result.is_ok());
    // A zombie has no executable.
    pid.is_some_and(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok())
}

/// Returns a text that names the process of a mesh that still runs after its data directory was removed,
/// together with the lock file. The tasks of that mesh recreate the directory, so another mesh must not use it.
/// The removed lock file is still open in that process. `None` if there is no such process.
fn find_holder_of_removed_lock(directory: &Path, lock: &File) -> Option<String> {
    // Only a new lock file is empty.
    if lock.metadata().is_ok_and(|metadata| metadata.len() > 0) {
        return None;
    }
    let path = std::fs::canonicalize(directory).ok()?.join(LOCK_FILE);
    let removed_path = PathBuf::from(format!("{} (deleted)", path.display()));
    let holds_removed_lock = |process: &Path| {
        // Processes of other users do not show their files.
        let files = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        files
            .map(|file| std::fs::read_link(file.path()))
            .any(|target| target.is_ok_and(|target| target == removed_path))
    };
    let processes = std::fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        name.bytes().all(|byte| byte.is_ascii_digit()).then_some((entry.path(), name))
    });
    let mut holders = processes.filter(|(process, _)| holds_removed_lock(process));
    holders.next().map(|(_, pid)| format!(" (process {pid})"))
}

const LOCK_FILE: &str = "lock";
/// The name of the subdirectory in a world-writable volume.
const VOLUME_SUBDIRECTORY: &str = "leno";
/// The sticky bit: only owners remove entries of such a directory, as in `/tmp`.
const STICKY_BIT: u32 = 0o1000;
/// The superuser.
const ROOT_USER: u32 = 0;
/// The maximum length of a process ID in the lock file, in bytes.
const MAX_PID_BYTES: u64 = 20;

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_removed_directory_of_a_running_mesh_stays_claimed() {
        let scratch = tempfile::tempdir().unwrap();
        let data = scratch.path().join("data");
        let claim = || ClaimedDataDirectory::claim(data.clone());
        let running = claim().unwrap();
        let message = format!("is in use by another mesh (process {})", std::process::id());
        // The second time the directory exists again, as the tasks of the mesh recreate it.
        for is_recreated in [false, true] {
            std::fs::remove_dir_all(&data).unwrap();
            if is_recreated {
                create_private_directory(&data).unwrap();
            }
            for _ in 0..2 {
                let error = claim().unwrap_err().to_string();
                assert!(error.contains(&message), "{error}");
                assert!(ClaimedDataDirectory::claim_unless_used(data.clone()).unwrap().is_none());
            }
        }
        drop(running);
        claim().unwrap();
    }

    #[test]
    fn commands_in_hints_name_the_data_directory() {
        let home = HomeArgs { state_home: None, cache_home: None, user_home: None };
        let default = DataDirectoryArgs { data: None, home: home.clone() };
        let custom = DataDirectoryArgs { data: Some("/x".into()), home };
        for (text, expected) in [
            ("leno get workloads -o json", "leno get workloads --data /x -o json"),
            (
                "see `leno get rejected`, leno top",
                "see `leno get rejected --data /x`, leno top --data /x",
            ),
            (
                "leno get routes, leno get policies",
                "leno get routes --data /x, leno get policies --data /x",
            ),
            ("leno token shop/web-1", "leno token --data /x shop/web-1"),
            ("leno explain request --from a", "leno explain request --data /x --from a"),
            ("leno explain no-endpoint says", "leno explain no-endpoint says"),
            ("leno top --data /x", "leno top --data /x"),
            ("the log of `leno up`, `leno get`", "the log of `leno up`, `leno get`"),
            ("/usr/bin/leno top, a leno", "/usr/bin/leno top, a leno"),
            ("", ""),
        ] {
            assert_eq!(custom.add_data_option(text), expected);
            assert_eq!(default.add_data_option(text), text);
        }
    }

    /// Two concurrent `leno up --clean`: the second waits for the first, which is not a mesh.
    #[test]
    fn a_claim_waits_for_a_process_that_cleans_the_directory() {
        let scratch = tempfile::tempdir().unwrap();
        let data = scratch.path().join("data");
        let mesh = ClaimedDataDirectory::claim(data.clone()).unwrap();
        let claim =
            || ClaimedDataDirectory::claim_with_timeout(data.clone(), Duration::ZERO).unwrap();
        assert!(claim().is_none(), "a mesh runs");
        drop(mesh);
        let mut exited = std::process::Command::new("true").spawn().unwrap();
        exited.wait().unwrap();
        std::fs::write(data.join(LOCK_FILE), exited.id().to_string()).unwrap();
        let first = claim().unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(claim);
            // The second claim may begin before or after this line.
            std::thread::yield_now();
            drop(first);
            assert!(second.join().unwrap().is_some());
        });
    }

    #[test]
    fn new_volumes_are_detected_by_owner_and_mode() {
        for (mode, owner, expected) in [
            (0o777, ROOT_USER, true),
            // The setgid bit is set if the volume has a group.
            (0o2777, ROOT_USER, true),
            (0o1777, ROOT_USER, false),
            (0o755, ROOT_USER, false),
            (0o775, ROOT_USER, false),
            (0o777, 1500, false),
        ] {
            assert_eq!(is_new_volume(mode, owner), expected, "{mode:o} {owner}");
        }
        // Nothing is mounted here.
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().to_owned();
        assert_eq!(resolve_volume_path(path.clone()), path);
    }

    #[test]
    fn a_directory_belongs_to_one_mesh_at_a_time() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("a/b");
        let first = ClaimedDataDirectory::claim(path.clone()).unwrap();
        assert_eq!(first.path(), path);
        let error = ClaimedDataDirectory::claim(path.clone()).unwrap_err().to_string();
        let holder = format!("(process {})", std::process::id());
        assert!(error.contains(&holder) && error.contains("--data"), "{error}");
        drop(first);
        ClaimedDataDirectory::claim(path).unwrap();
    }

    #[test]
    fn a_directory_that_other_users_may_change_is_rejected() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("data");
        create_private_directory(&path).unwrap();
        for (mode, accepted) in [(0o755, true), (0o775, false), (0o1777, false), (0o702, false)] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let outcome = ClaimedDataDirectory::claim(path.clone()).map(drop);
            let hint = format!("chmod 700 {}", path.display());
            match outcome {
                Ok(()) => assert!(accepted, "{mode:o}"),
                Err(error) => {
                    assert!(!accepted && error.to_string().contains(&hint), "{mode:o}: {error}");
                }
            }
        }
        for (owner, own_user, expected) in
            [(1000, 1000, false), (0, 1000, false), (1000, 0, true), (1001, 1000, true)]
        {
            assert_eq!(belongs_to_other_user(owner, own_user), expected, "{owner} {own_user}");
        }
    }

    #[test]
    fn state_and_cache_directories_follow_the_xdg_specification() {
        let home = |xdg: Option<&str>, user_home: Option<&str>| HomeArgs {
            state_home: xdg.map(OsString::from),
            cache_home: xdg.map(OsString::from),
            user_home: user_home.map(OsString::from),
        };
        let in_home = (Some("/home/a/.local/state/leno"), Some("/home/a/.cache/leno"));
        for (args, (state, cache)) in [
            (home(Some("/xdg"), Some("/home/a")), (Some("/xdg/leno"), Some("/xdg/leno"))),
            (home(Some("relative"), Some("/home/a")), in_home),
            (home(None, Some("/home/a")), in_home),
            (home(None, None), (None, None)),
        ] {
            assert_eq!(args.state_directory().ok(), state.map(PathBuf::from), "{args:?}");
            assert_eq!(args.cache_directory().ok(), cache.map(PathBuf::from), "{args:?}");
        }
    }
}
