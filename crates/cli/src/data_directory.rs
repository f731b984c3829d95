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
    pub(crate) fn in_commands(&self, text: &str) -> String {
        let hint = self.option_hint();
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(PROGRAM) {
            let (before, command) = rest.split_at(at);
            let is_word = !before.ends_with(|c: char| c.is_alphanumeric() || "-_./".contains(c));
            let length = command_length(command).filter(|_| is_word);
            let (named, after) = command.split_at(length.unwrap_or(PROGRAM.len()));
            out.push_str(before);
            out.push_str(named);
            if length.is_some() && !after.starts_with(" --data") {
                out.push_str(&hint);
            }
            rest = after;
        }
        out.push_str(rest);
        out
    }
}

/// Returns the length of a Leno command that has the option `--data`, up to the position of the option; `None`
/// for other words.
fn command_length(text: &str) -> Option<usize> {
    let word = |text: &str| text.find(|c: char| !c.is_ascii_lowercase() && c != '-');
    let end_of = |start: usize| {
        let rest = text.get(start..)?;
        Some(start + word(rest).unwrap_or(rest.len()))
    };
    let first = end_of(PROGRAM.len())?;
    let second = || {
        let has_more = text.get(first..)?.starts_with(' ');
        end_of(first + 1).filter(|end| has_more && *end > first + 1)
    };
    match text.get(PROGRAM.len()..first)? {
        "get" | "ca" => second(),
        "explain" => second().filter(|end| {
            text.get(first + 1..*end).is_some_and(|topic| ["request", "change"].contains(&topic))
        }),
        "bug-report" | "diagnose" | "revoke" | "status" | "tap" | "token" | "top" => Some(first),
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
pub(crate) struct DataDirectory {
    path: PathBuf,
    _lock: File,
}

impl DataDirectory {
    /// Creates the directory if needed, accessible to its owner only, and locks it.
    ///
    /// # Errors
    /// If it cannot be used, or another mesh runs on it.
    pub(crate) fn claim(path: PathBuf) -> anyhow::Result<Self> {
        create_private(&path)?;
        let lock_path = path.join(LOCK_FILE);
        let mut lock = lock_file(&path)?;
        let locked = lock_within(&lock, LOCK_MAX_WAIT)
            .with_context(|| format!("cannot lock {}", lock_path.display()))?;
        let process = match locked {
            true => holder_of_removed(&path, &lock),
            false => lock_holder(&mut lock),
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

    /// As [`DataDirectory::claim`]; `None` if another mesh runs on the directory.
    ///
    /// # Errors
    /// If it cannot be used.
    pub(crate) fn claim_unless_used(path: PathBuf) -> anyhow::Result<Option<Self>> {
        Self::claim_within(path, LOCK_MAX_WAIT)
    }

    fn claim_within(path: PathBuf, max_wait: Duration) -> anyhow::Result<Option<Self>> {
        create_private(&path)?;
        let mut lock = lock_file(&path)?;
        let context = || format!("cannot lock {}", path.join(LOCK_FILE).display());
        let mut locked = lock_within(&lock, max_wait).with_context(context)?;
        // A lock without the process ID of a mesh belongs to a process that cleans the directory and ends soon.
        if !locked && !holder_lives(&mut lock) {
            locked = lock_within(&lock, CLEAN_MAX_WAIT).with_context(context)?;
        }
        let is_used = !locked || holder_of_removed(&path, &lock).is_some();
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
pub(crate) fn has_run(directory: &Path) -> bool {
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
    let waiting = file.try_clone()?;
    let (locked, outcome) = mpsc::channel();
    // The thread ends with the process: the caller reports the failed lock and exits.
    std::thread::Builder::new().name("lock".to_owned()).spawn(move || {
        drop(locked.send(waiting.lock()));
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
    let shown = path.display();
    create_private_directory(path)?;
    let found = std::fs::metadata(path).with_context(|| format!("cannot inspect {shown}"))?;
    let us = rustix::process::geteuid().as_raw();
    match is_foreign(found.uid(), us) {
        false => Ok(()),
        true => bail!(
            "the directory {shown}, which contains keys, is owned by user {}: `chown {us} {}`, or use \
             another one",
            found.uid(),
            quote_path(&shown.to_string())
        ),
    }
}

/// True for the directory of a user other than this one and root.
fn is_foreign(owner: u32, us: u32) -> bool {
    owner != us && owner != ROOT
}

/// Returns the subdirectory to use in a container volume: Kubernetes creates volumes as root's and
/// world-writable. Other paths stay unchanged.
pub(crate) fn within_volume(path: PathBuf) -> PathBuf {
    let Some(above) = path.parent() else { return path };
    let (Ok(found), Ok(above)) = (std::fs::metadata(&path), std::fs::metadata(above)) else {
        return path;
    };
    let is_mounted = found.dev() != above.dev();
    match is_mounted && is_everybodys(found.mode(), found.uid()) {
        true => path.join(IN_VOLUME),
        false => path,
    }
}

/// True if the directory is world-writable, as a new volume is.
fn is_everybodys(mode: u32, owner: u32) -> bool {
    owner == ROOT && mode & 0o007 == 0o007 && mode & STICKY == 0
}

/// Longer than the end of a killed process takes.
pub(crate) const LOCK_MAX_WAIT: Duration = Duration::from_secs(2);

/// Longer than the applications of a killed mesh take to end.
pub(crate) const CLEAN_MAX_WAIT: Duration = Duration::from_secs(30);

/// Returns the process that holds the lock, if it has written its process ID.
fn lock_holder(lock: &mut File) -> Option<String> {
    let mut text = String::new();
    Some(match lock.take(PID_BYTES_MAX).read_to_string(&mut text) {
        Ok(1..) => format!(" (process {})", text.trim()),
        _ => String::new(),
    })
}

/// True if the process ID in the lock file, written by the last mesh, is of a live process.
fn holder_lives(lock: &mut File) -> bool {
    let mut text = String::new();
    let read = lock.take(PID_BYTES_MAX).read_to_string(&mut text);
    let pid = text.trim().parse::<u32>().ok().filter(|_| read.is_ok());
    // A zombie has no executable.
    pid.is_some_and(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok())
}

/// Returns the process of a mesh that still runs after its data directory was removed, together with the lock.
/// Its parts recreate the directory, so another mesh must not use it. The removed lock is still open in that
/// process.
fn holder_of_removed(directory: &Path, lock: &File) -> Option<String> {
    // Only a new lock file has no process ID.
    if lock.metadata().is_ok_and(|found| found.len() > 0) {
        return None;
    }
    let path = std::fs::canonicalize(directory).ok()?.join(LOCK_FILE);
    let removed = PathBuf::from(format!("{} (deleted)", path.display()));
    let has_removed = |process: &Path| {
        // Processes of other users do not show their files.
        let files = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        files.map(|file| std::fs::read_link(file.path())).any(|to| to.is_ok_and(|to| to == removed))
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
const IN_VOLUME: &str = "leno";
/// The sticky bit: only owners remove entries of such a directory, as in `/tmp`.
const STICKY: u32 = 0o1000;
/// The superuser.
const ROOT: u32 = 0;
/// The maximum length of a process ID.
const PID_BYTES_MAX: u64 = 20;

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_directory_of_a_running_mesh_is_its_own_after_it_was_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let data = scratch.path().join("data");
        let claim = || DataDirectory::claim(data.clone());
        let running = claim().unwrap();
        let used = format!("is in use by another mesh (process {})", std::process::id());
        // The second time the directory exists again, as the parts of the mesh recreate it.
        for is_made_again in [false, true] {
            std::fs::remove_dir_all(&data).unwrap();
            if is_made_again {
                create_private(&data).unwrap();
            }
            for _ in 0..2 {
                let error = claim().unwrap_err().to_string();
                assert!(error.contains(&used), "{error}");
                assert!(DataDirectory::claim_unless_used(data.clone()).unwrap().is_none());
            }
        }
        drop(running);
        claim().unwrap();
    }

    #[test]
    fn commands_in_hints_name_the_data_directory() {
        let home = HomeArgs { state_home: None, cache_home: None, user_home: None };
        let default = DataArgs { data: None, home: home.clone() };
        let other = DataArgs { data: Some("/x".into()), home };
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
            assert_eq!(other.in_commands(text), expected);
            assert_eq!(default.in_commands(text), text);
        }
    }

    /// Two concurrent `leno up --clean`: the second waits for the first, which is not a mesh.
    #[test]
    fn opening_waits_for_a_process_that_cleans_the_directory() {
        let scratch = tempfile::tempdir().unwrap();
        let data = scratch.path().join("data");
        let killed = DataDirectory::claim(data.clone()).unwrap();
        let claim = || DataDirectory::claim_within(data.clone(), Duration::ZERO).unwrap();
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
    fn world_writable_volumes_are_reported() {
        for (mode, owner, expected) in [
            (0o777, ROOT, true),
            // With the setgid bit of a volume's group.
            (0o2777, ROOT, true),
            (0o1777, ROOT, false),
            (0o755, ROOT, false),
            (0o775, ROOT, false),
            (0o777, 1500, false),
        ] {
            assert_eq!(is_everybodys(mode, owner), expected, "{mode:o} {owner}");
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
        let first = DataDirectory::claim(path.clone()).unwrap();
        assert_eq!(first.path(), path);
        let refusal = DataDirectory::claim(path.clone()).unwrap_err().to_string();
        let holder = format!("(process {})", std::process::id());
        assert!(refusal.contains(&holder) && refusal.contains("--data"), "{refusal}");
        drop(first);
        DataDirectory::claim(path).unwrap();
    }

    #[test]
    fn a_directory_that_others_may_change_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("data");
        create_private(&path).unwrap();
        for (mode, accepted) in [(0o755, true), (0o775, false), (0o1777, false), (0o702, false)] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let outcome = DataDirectory::claim(path.clone()).map(drop);
            let hint = format!("chmod 700 {}", path.display());
            match outcome {
                Ok(()) => assert!(accepted, "{mode:o}"),
                Err(error) => {
                    assert!(!accepted && error.to_string().contains(&hint), "{mode:o}: {error}");
                }
            }
        }
        for (owner, us, expected) in
            [(1000, 1000, false), (0, 1000, false), (1000, 0, true), (1001, 1000, true)]
        {
            assert_eq!(is_foreign(owner, us), expected, "{owner} {us}");
        }
    }

    #[test]
    fn files_are_kept_where_the_user_keeps_them() {
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
