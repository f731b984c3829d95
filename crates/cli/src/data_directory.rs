//! The data directory of a mesh, with its keys, tokens and sockets; one mesh per directory.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use leno_identity::{create_private_directory, open_lock, quote_path};

/// Selects the data directory.
#[derive(Debug, Clone, Args)]
pub(crate) struct DataArgs {
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

impl DataArgs {
    /// Returns the absolute path of the directory, which may not exist yet.
    ///
    /// # Errors
    /// If it is not given and there is no home directory.
    pub(crate) fn path(&self) -> anyhow::Result<PathBuf> {
        let path = match &self.data {
            Some(path) => path.clone(),
            None => self.home.state_directory()?.join("default"),
        };
        let path = std::path::absolute(&path);
        let path = path.with_context(|| format!("the data directory{}", self.option_hint()))?;
        Ok(within_volume(path))
    }

    /// Returns the option that selects this directory in another command, for hints; empty for the default.
    pub(crate) fn option_hint(&self) -> String {
        match &self.data {
            Some(path) => format!(" --data {}", path.display()),
            None => String::new(),
        }
    }

    /// Adds the option of [`DataArgs::option_hint`] to the Leno commands in a text.
    pub(crate) fn add_data_option(&self, text: &str) -> String {
        let option = self.option_hint();
        let mut result = String::new();
        let mut remaining = text;
        while let Some(start) = remaining.find(PROGRAM) {
            let (prefix, command) = remaining.split_at(start);
            let is_word = !prefix.ends_with(|c: char| c.is_alphanumeric() || "-_./".contains(c));
            let length = command_length(command).filter(|_| is_word);
            let (command_words, suffix) = command.split_at(length.unwrap_or(PROGRAM.len()));
            result.push_str(prefix);
            result.push_str(command_words);
            if length.is_some() && !suffix.starts_with(" --data") {
                result.push_str(&option);
            }
            remaining = suffix;
        }
        result.push_str(remaining);
        result
    }
}

/// Returns the length of a Leno command that has the option `--data`, up to the position of the option; `None`
/// for other words.
fn command_length(text: &str) -> Option<usize> {
    let word_end = |text: &str| text.find(|c: char| !c.is_ascii_lowercase() && c != '-');
    let find_word_end = |start: usize| {
        let remaining = text.get(start..)?;
        Some(start + word_end(remaining).unwrap_or(remaining.len()))
    };
    let first_end = find_word_end(PROGRAM.len())?;
    let second_end = || {
        let has_more = text.get(first_end..)?.starts_with(' ');
        find_word_end(first_end + 1).filter(|end| has_more && *end > first_end + 1)
    };
    match text.get(PROGRAM.len()..first_end)? {
        "get" | "ca" => second_end(),
        "explain" => second_end().filter(|end| {
            text.get(first_end + 1..*end)
                .is_some_and(|topic| ["request", "change"].contains(&topic))
        }),
        "bug-report" | "diagnose" | "revoke" | "status" | "tap" | "token" | "top" => {
            Some(first_end)
        }
        _ => None,
    }
}

/// The start of each command.
const PROGRAM: &str = "leno ";

impl HomeArgs {
    /// Returns the directory of Leno's state for this user.
    ///
    /// # Errors
    /// If there is no home directory.
    pub(crate) fn state_directory(&self) -> anyhow::Result<PathBuf> {
        let state = self.resolve_directory(&self.state_home, ".local/state");
        state.context("no home directory for state: set HOME or XDG_STATE_HOME")
    }

    /// Returns the cache directory for this user.
    ///
    /// # Errors
    /// If there is no home directory.
    pub(crate) fn cache_directory(&self) -> anyhow::Result<PathBuf> {
        let cache = self.resolve_directory(&self.cache_home, ".cache");
        cache.context("no home directory for the build cache: set HOME or XDG_CACHE_HOME")
    }

    fn resolve_directory(&self, xdg: &Option<OsString>, in_home: &str) -> Option<PathBuf> {
        // The XDG specification: relative paths are ignored.
        let xdg = xdg.as_ref().map(PathBuf::from).filter(|path| path.is_absolute());
        let home = self.user_home.as_ref().filter(|home| !home.is_empty());
        let home = || Some(Path::new(home?).join(in_home));
        Some(xdg.or_else(home)?.join("leno"))
    }
}

/// A data directory that no other process uses until this is dropped.
#[derive(Debug)]
pub(crate) struct ClaimedDataDirectory {
    path: PathBuf,
    _lock: File,
}

impl ClaimedDataDirectory {
    /// Creates the directory if needed, accessible to its owner only, and locks it.
    ///
    /// # Errors
    /// If it cannot be used, or another mesh runs on it.
    pub(crate) fn claim(path: PathBuf) -> anyhow::Result<Self> {
        create_private(&path)?;
        let lock_path = path.join(LOCK_FILE);
        let mut lock = lock_file(&path)?;
        let locked = lock_within(&lock, MAX_LOCK_WAIT)
            .with_context(|| format!("cannot lock {}", lock_path.display()))?;
        let process = match locked {
            true => find_holder_of_removed_lock(&path, &lock),
            false => read_lock_holder(&mut lock),
        };
        if let Some(process) = process {
            bail!(
                "the data directory {} is in use by another mesh{process}: stop that mesh, or set another \
                 directory with --data",
                path.display()
            );
        }
        lock.set_len(0)
            .and_then(|()| write!(lock, "{}", std::process::id()))
            .with_context(|| format!("cannot write {}", lock_path.display()))?;
        Ok(Self { path, _lock: lock })
    }

    /// Claims the directory as [`ClaimedDataDirectory::claim`] does; `None` if another mesh runs on it.
    ///
    /// # Errors
    /// If it cannot be used.
    pub(crate) fn claim_unless_used(path: PathBuf) -> anyhow::Result<Option<Self>> {
        Self::claim_within(path, MAX_LOCK_WAIT)
    }

    fn claim_within(path: PathBuf, max_wait: Duration) -> anyhow::Result<Option<Self>> {
        create_private(&path)?;
        let mut lock = lock_file(&path)?;
        let context = || format!("cannot lock {}", path.join(LOCK_FILE).display());
        let mut locked = lock_within(&lock, max_wait).with_context(context)?;
        // A lock without the process ID of a mesh belongs to a process that cleans the directory and ends soon.
        if !locked && !is_holder_alive(&mut lock) {
            locked = lock_within(&lock, MAX_CLEAN_WAIT).with_context(context)?;
        }
        let is_used = !locked || find_holder_of_removed_lock(&path, &lock).is_some();
        Ok((!is_used).then_some(Self { path, _lock: lock }))
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn lock_file(directory: &Path) -> anyhow::Result<File> {
    let path = directory.join(LOCK_FILE);
    open_lock(&path).with_context(|| format!("cannot open {}", path.display()))
}

/// True if a mesh has run on the directory.
pub(crate) fn has_mesh_run(directory: &Path) -> bool {
    directory.join(LOCK_FILE).exists()
}

/// Locks a file, with a timeout for a process that is ending: a killed process keeps its locks until the system
/// has reclaimed its memory.
///
/// # Errors
/// If the file cannot be locked at all.
pub(crate) fn lock_within(file: &File, max_wait: Duration) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => return Ok(true),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let handle = file.try_clone()?;
    let (sender, outcome) = mpsc::channel();
    // The thread ends with the process: the caller reports the failed lock and exits.
    std::thread::Builder::new().name("lock".to_owned()).spawn(move || {
        drop(sender.send(handle.lock()));
    })?;
    match outcome.recv_timeout(max_wait) {
        Ok(outcome) => outcome.map(|()| true),
        Err(_) => Ok(false),
    }
}

/// Creates a directory and its missing parents, accessible to the owner only, whatever the umask; an existing
/// directory stays unchanged.
///
/// # Errors
/// If it cannot be created, or another user may change its content.
pub(crate) fn create_private(path: &Path) -> anyhow::Result<()> {
    let display = path.display();
    create_private_directory(path)?;
    let metadata = std::fs::metadata(path).with_context(|| format!("cannot inspect {display}"))?;
    let own_user = rustix::process::geteuid().as_raw();
    match is_of_other_user(metadata.uid(), own_user) {
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
fn is_of_other_user(owner: u32, own_user: u32) -> bool {
    owner != own_user && owner != ROOT
}

/// Returns the subdirectory to use in a container volume: Kubernetes creates volumes as root's and
/// world-writable. Other paths stay unchanged.
pub(crate) fn within_volume(path: PathBuf) -> PathBuf {
    let Some(parent) = path.parent() else { return path };
    let (Ok(metadata), Ok(parent)) = (std::fs::metadata(&path), std::fs::metadata(parent)) else {
        return path;
    };
    let is_mounted = metadata.dev() != parent.dev();
    match is_mounted && is_new_volume(metadata.mode(), metadata.uid()) {
        true => path.join(VOLUME_SUBDIRECTORY),
        false => path,
    }
}

/// True if owner and mode are those of a new volume: root's and world-writable, without the sticky bit.
fn is_new_volume(mode: u32, owner: u32) -> bool {
    owner == ROOT && mode & 0o007 == 0o007 && mode & STICKY == 0
}

/// Longer than the end of a killed process takes.
pub(crate) const MAX_LOCK_WAIT: Duration = Duration::from_secs(2);

/// Longer than the applications of a killed mesh take to end.
pub(crate) const MAX_CLEAN_WAIT: Duration = Duration::from_secs(30);

/// Returns the process that holds the lock, if it has written its process ID.
fn read_lock_holder(lock: &mut File) -> Option<String> {
    let mut text = String::new();
    Some(match lock.take(MAX_PID_BYTES).read_to_string(&mut text) {
        Ok(1..) => format!(" (process {})", text.trim()),
        _ => String::new(),
    })
}

/// True if the process ID in the lock file, written by the last mesh, is of a live process.
fn is_holder_alive(lock: &mut File) -> bool {
    let mut text = String::new();
    let read = lock.take(MAX_PID_BYTES).read_to_string(&mut text);
    let pid = text.trim().parse::<u32>().ok().filter(|_| read.is_ok());
    // A zombie has no executable.
    pid.is_some_and(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok())
}

/// Returns the process of a mesh that still runs after its data directory was removed, together with the lock.
/// Its parts recreate the directory, so another mesh must not use it. The removed lock is still open in that
/// process.
fn find_holder_of_removed_lock(directory: &Path, lock: &File) -> Option<String> {
    // Only a new lock file has no process ID.
    if lock.metadata().is_ok_and(|metadata| metadata.len() > 0) {
        return None;
    }
    let path = std::fs::canonicalize(directory).ok()?.join(LOCK_FILE);
    let removed = PathBuf::from(format!("{} (deleted)", path.display()));
    let has_removed = |process: &Path| {
        // Processes of other users do not show their files.
        let files = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        files
            .map(|file| std::fs::read_link(file.path()))
            .any(|target| target.is_ok_and(|target| target == removed))
    };
    let processes = std::fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        name.bytes().all(|byte| byte.is_ascii_digit()).then_some((entry.path(), name))
    });
    let mut holders = processes.filter(|(process, _)| has_removed(process));
    holders.next().map(|(_, pid)| format!(" (process {pid})"))
}

const LOCK_FILE: &str = "lock";
/// The name of the subdirectory in a world-writable volume.
const VOLUME_SUBDIRECTORY: &str = "leno";
/// The sticky bit: only owners remove entries of such a directory, as in `/tmp`.
const STICKY: u32 = 0o1000;
/// The superuser.
const ROOT: u32 = 0;
/// The maximum length of a process ID.
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
        // The second time the directory exists again, as the parts of the mesh recreate it.
        for is_recreated in [false, true] {
            std::fs::remove_dir_all(&data).unwrap();
            if is_recreated {
                create_private(&data).unwrap();
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
        let default = DataArgs { data: None, home: home.clone() };
        let custom = DataArgs { data: Some("/x".into()), home };
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
        let killed = ClaimedDataDirectory::claim(data.clone()).unwrap();
        let claim = || ClaimedDataDirectory::claim_within(data.clone(), Duration::ZERO).unwrap();
        assert!(claim().is_none(), "a mesh runs");
        drop(killed);
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        std::fs::write(data.join(LOCK_FILE), ended.id().to_string()).unwrap();
        let first = claim().unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(claim);
            // The second may begin before or after this.
            std::thread::yield_now();
            drop(first);
            assert!(second.join().unwrap().is_some());
        });
    }

    #[test]
    fn new_volumes_are_detected_by_owner_and_mode() {
        for (mode, owner, expected) in [
            (0o777, ROOT, true),
            // With the setgid bit of a volume's group.
            (0o2777, ROOT, true),
            (0o1777, ROOT, false),
            (0o755, ROOT, false),
            (0o775, ROOT, false),
            (0o777, 1500, false),
        ] {
            assert_eq!(is_new_volume(mode, owner), expected, "{mode:o} {owner}");
        }
        // Nothing is mounted here.
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().to_owned();
        assert_eq!(within_volume(path.clone()), path);
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
        create_private(&path).unwrap();
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
            assert_eq!(is_of_other_user(owner, own_user), expected, "{owner} {own_user}");
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
