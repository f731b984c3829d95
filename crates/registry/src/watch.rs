//! Watches the files of a source: reads them again after file system events, and sends the updates to the control plane.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use crate::file::{FileSource, RegistryUpdate};
use crate::scan::{ContentMode, DirectoryIdentity, has_supported_extension, scan_paths};

/// Reads the source now and after every change, and sends the updates.
///
/// The first update is always sent; later ones if objects or rejections change, and always after a notification
/// of `reload_requests`. Changes that follow each other within 50 ms are combined, for at most 250 ms. Ends when
/// the receiver of the updates is dropped. If the system cannot watch, files are read every 500 ms instead.
///
/// # Errors
/// [`WatchError`] if the task that reads the files panicked; the objects that were sent remain valid.
pub async fn watch_source(
    source: FileSource,
    update_sender: Sender<RegistryUpdate>,
    reload_requests: Arc<Notify>,
) -> Result<(), WatchError> {
    let file_events = Arc::new(Notify::new());
    let watches = DirectoryWatches::new(&source, Arc::clone(&file_events));
    let mut watched_source = WatchedSource { watches, source };
    let mut last_update: Option<RegistryUpdate> = None;
    let mut is_reload_requested = false;
    let mut first_event_at = None;
    loop {
        let mut update;
        let now = Instant::now();
        (watched_source, update) =
            spawn_blocking(move || watched_source.watch_and_read(now)).await.map_err(WatchError)?;
        update.first_event_at = first_event_at;
        if watched_source.watches.has_new_directories {
            // A file may have changed between the reading and the watching.
            file_events.notify_one();
        }
        let is_changed = !update.changes.is_empty()
            || last_update.as_ref().is_none_or(|previous_update| {
                previous_update.rejected != update.rejected
                    || previous_update.warnings != update.warnings
            });
        if is_changed || is_reload_requested {
            last_update = Some(RegistryUpdate { changes: Vec::new(), ..update.clone() });
            if update_sender.send(update).await.is_err() {
                return Ok(());
            }
        }
        let next_poll =
            watched_source.watches.needs_polling.then(|| Instant::now() + POLL_INTERVAL);
        let next_reload = watched_source.source.next_reload_at().map(Instant::from_std);
        let next_reading = next_poll.into_iter().chain(next_reload).min();
        (is_reload_requested, first_event_at) = tokio::select! {
            () = update_sender.closed() => return Ok(()),
            () = reload_requests.notified() => (true, None),
            // While the content of a file is uncertain, the time of the event that made it uncertain is retained.
            event_at = wait_until_quiet(&file_events, next_reading) => {
                (false, event_at.map(Instant::into_std).or(first_event_at))
            }
            () = wait_until_replaced(Arc::clone(&watched_source.watches.identities)) => (false, None),
        };
    }
}

/// An error of [`watch_source`]: the task that reads the files panicked or was cancelled, which is a defect.
#[derive(Debug, thiserror::Error)]
#[error("the file reader failed; the last valid state stays in use, restart to watch again")]
pub struct WatchError(#[source] tokio::task::JoinError);

/// Waits for an event, and then for a quiet period; returns the time of the first event. Returns `None` if no event
/// occurs before `deadline`.
async fn wait_until_quiet(file_events: &Notify, deadline: Option<Instant>) -> Option<Instant> {
    match deadline {
        Some(deadline) if timeout_at(deadline, file_events.notified()).await.is_err() => {
            return None;
        }
        Some(_) => {}
        None => file_events.notified().await,
    }
    let first_event_at = Instant::now();
    let latest_deadline = first_event_at + MAX_READ_DELAY;
    loop {
        let quiet_deadline = latest_deadline.min(Instant::now() + QUIET_TIME);
        if timeout_at(quiet_deadline, file_events.notified()).await.is_err() {
            return Some(first_event_at);
        }
    }
}

/// Returns when a watched directory is replaced. Mounting and unmounting cause no events.
async fn wait_until_replaced(identities: DirectoryIdentities) {
    loop {
        tokio::time::sleep(IDENTITY_CHECK_INTERVAL).await;
        let identities = Arc::clone(&identities);
        let replacement_check = spawn_blocking(move || {
            identities
                .iter()
                .any(|(path, identity)| DirectoryIdentity::from_path(path).ok() != *identity)
        });
        // After a failed check, the files are read: a needless reading is harmless.
        if replacement_check.await.unwrap_or(true) {
            return;
        }
    }
}

/// A source and its watches.
struct WatchedSource {
    source: FileSource,
    watches: DirectoryWatches,
}

impl WatchedSource {
    /// Watches first, then reads, so that changes in between are noticed.
    fn watch_and_read(mut self, now: Instant) -> (Self, RegistryUpdate) {
        self.watches.update_watches(self.source.paths());
        let update = self.source.reload_with_grace(now.into_std());
        self.watches.has_new_directories = self.watches.update_watches(self.source.paths());
        (self, update)
    }
}

/// The watched directories. Files are not watched: saving by rename replaces them.
struct DirectoryWatches {
    watcher: Option<RecommendedWatcher>,
    relevant_paths: Arc<Mutex<RelevantPaths>>,
    watched_directories: BTreeSet<PathBuf>,
    /// True if the last update of the watches found new or replaced directories.
    has_new_directories: bool,
    /// True if a directory cannot be watched.
    needs_polling: bool,
    /// The directory identities at the time of the reading.
    identities: DirectoryIdentities,
}

/// The watched directories and their identities; `None` for a directory that does not exist.
type DirectoryIdentities = Arc<BTreeMap<PathBuf, Option<DirectoryIdentity>>>;

/// The paths with events that cause a reading.
#[derive(Debug, Default)]
struct RelevantPaths {
    /// Directories in which every event is relevant.
    directories: BTreeSet<PathBuf>,
    /// Relevant paths in other directories.
    paths: BTreeSet<PathBuf>,
}

impl DirectoryWatches {
    fn new(source: &FileSource, file_events: Arc<Notify>) -> Self {
        let relevant_paths = Arc::new(Mutex::new(RelevantPaths::default()));
        let shared_paths = Arc::clone(&relevant_paths);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let relevant_paths = shared_paths.lock().unwrap_or_else(PoisonError::into_inner);
            // An error means that events were lost.
            if event.map_or(true, |event| relevant_paths.is_relevant(&event)) {
                file_events.notify_one();
            }
        });
        if let Err(error) = &watcher {
            tracing::warn!(%error, paths = ?source.paths(), "cannot watch files, reading them at intervals");
        }
        Self {
            needs_polling: watcher.is_err(),
            watcher: watcher.ok(),
            relevant_paths,
            watched_directories: BTreeSet::new(),
            has_new_directories: false,
            identities: DirectoryIdentities::default(),
        }
    }

    /// Watches the directories in which a change can affect `paths`, and no others. Returns true if one of the directories
    /// is new or was replaced.
    fn update_watches(&mut self, paths: &[PathBuf]) -> bool {
        let (relevant_paths, directories) = RelevantPaths::from_paths(paths);
        *self.relevant_paths.lock().unwrap_or_else(PoisonError::into_inner) = relevant_paths;
        let with_identity =
            |directory: &PathBuf| (directory.clone(), DirectoryIdentity::from_path(directory).ok());
        let identities = Arc::new(directories.iter().map(with_identity).collect());
        let is_replaced = self.identities != identities;
        self.identities = identities;
        let Some(watcher) = &mut self.watcher else {
            return false;
        };
        for directory in self.watched_directories.difference(&directories) {
            // The directory usually no longer exists, and neither does its watch.
            watcher.unwatch(directory).ok();
        }
        let mut needs_polling = false;
        for directory in &directories {
            // Every directory is watched anew, because another one of the same name may have replaced it.
            match watcher.watch(directory, RecursiveMode::NonRecursive) {
                Ok(()) => {}
                // The watch of its parent directory reports its creation.
                Err(error) if is_missing_directory(&error) => {}
                Err(error) => {
                    if !self.needs_polling {
                        tracing::warn!(%error, path = ?directory, "cannot watch, reading at intervals");
                    }
                    needs_polling = true;
                }
            }
        }
        self.needs_polling = needs_polling;
        self.watched_directories = directories;
        is_replaced
    }
}

impl RelevantPaths {
    /// Returns the relevant paths of these sources, and the directories to watch.
    fn from_paths(paths: &[PathBuf]) -> (Self, BTreeSet<PathBuf>) {
        let mut resolved = ResolvedPath::default();
        for path in paths {
            resolved.follow_path(path);
        }
        let scan = scan_paths(paths, ContentMode::Skip);
        for symlink in &scan.symlinks {
            resolved.follow_path(symlink);
        }
        // Only the canonical path of each directory: if a directory is watched under several paths, the system reports its
        // events under the path that was added last.
        let directories = scan.directories.keys().filter_map(|path| fs::canonicalize(path).ok());
        let relevant_paths = Self { directories: directories.collect(), paths: resolved.entries };
        let mut watched_directories = resolved.directories;
        watched_directories.extend(relevant_paths.directories.iter().cloned());
        (relevant_paths, watched_directories)
    }

    /// True if the event may have changed the objects of the source.
    fn is_relevant(&self, event: &notify::Event) -> bool {
        match event.kind {
            // Read events are ignored, because our own readings cause them.
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => {}
            EventKind::Access(_) => return false,
            _ => {}
        }
        let is_data_event = matches!(
            event.kind,
            EventKind::Access(_) | EventKind::Modify(notify::event::ModifyKind::Data(_))
        );
        let is_relevant_child = |path: &PathBuf| {
            let is_listed =
                path.parent().is_some_and(|directory| self.directories.contains(directory));
            // Writes to other files, such as logs, are irrelevant.
            is_listed && (!is_data_event || has_supported_extension(path))
        };
        let is_relevant_path = |path: &PathBuf| {
            self.paths.contains(path) || self.directories.contains(path) || is_relevant_child(path)
        };
        event.paths.is_empty() || event.paths.iter().any(is_relevant_path)
    }
}

/// The result of resolving paths from the root directory, through every symbolic link.
#[derive(Debug, Default)]
struct ResolvedPath {
    /// The paths of all entries that were visited, including the first missing entry.
    entries: BTreeSet<PathBuf>,
    /// The directories that contain these entries.
    directories: BTreeSet<PathBuf>,
}

impl ResolvedPath {
    /// Resolves a path and adds its entries, including the entries of symbolic links' targets.
    fn follow_path(&mut self, path: &Path) {
        let Ok(path) = std::path::absolute(path) else {
            return;
        };
        let mut directory = PathBuf::from("/");
        let mut remaining_names: Vec<OsString> = reversed_components(&path);
        let mut symlink_count = 0;
        while let Some(name) = remaining_names.pop() {
            if name == ".." {
                directory.pop();
                continue;
            }
            let entry = directory.join(&name);
            self.directories.insert(directory.clone());
            self.entries.insert(entry.clone());
            let target = match fs::symlink_metadata(&entry) {
                Ok(metadata) if metadata.is_symlink() => fs::read_link(&entry),
                Ok(_) => {
                    directory = entry;
                    continue;
                }
                // The watch of `directory` reports the creation of the missing entry.
                Err(_) => return,
            };
            symlink_count += 1;
            let (Ok(target), true) = (target, symlink_count <= MAX_SYMLINKS) else {
                return;
            };
            if target.is_absolute() {
                directory = PathBuf::from("/");
            }
            remaining_names.extend(reversed_components(&target));
        }
    }
}

/// Returns the components of a path in reverse order.
fn reversed_components(path: &Path) -> Vec<OsString> {
    let names = path
        .components()
        .rev()
        .filter(|component| !matches!(component, Component::RootDir | Component::CurDir));
    names.map(|component| component.as_os_str().to_owned()).collect()
}

/// True if a directory could not be watched because it does not exist.
fn is_missing_directory(error: &notify::Error) -> bool {
    match &error.kind {
        notify::ErrorKind::PathNotFound | notify::ErrorKind::WatchNotFound => true,
        notify::ErrorKind::Io(error) => error.kind() == ErrorKind::NotFound,
        _ => false,
    }
}

/// The quiet period after the last event before files are read. Editors rarely take longer between a write and the
/// rename that follows it.
const QUIET_TIME: Duration = Duration::from_millis(50);
/// Maximum time from the first event to the reading, even if events follow each other without a quiet period.
const MAX_READ_DELAY: Duration = Duration::from_millis(250);
/// The polling interval for files that cannot be watched.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The interval between checks of the identities of watched directories.
const IDENTITY_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of symbolic links on a path, as in the Linux kernel.
const MAX_SYMLINKS: usize = 40;

#[cfg(test)]
mod tests {
    use notify::event::{CreateKind, DataChange, MetadataKind, ModifyKind};

    use super::*;

    #[test]
    fn only_events_that_may_change_objects_are_relevant() {
        let relevant_paths = RelevantPaths {
            directories: BTreeSet::from(["/etc/mesh".into()]),
            paths: BTreeSet::from(["/tmp/one.yaml".into(), "/tmp".into()]),
        };
        let written = EventKind::Modify(ModifyKind::Data(DataChange::Any));
        let closed_after_write = EventKind::Access(AccessKind::Close(AccessMode::Write));
        let created = EventKind::Create(CreateKind::Any);
        let mode_changed = EventKind::Modify(ModifyKind::Metadata(MetadataKind::Any));
        let opened = EventKind::Access(AccessKind::Open(AccessMode::Any));
        let closed_after_read = EventKind::Access(AccessKind::Close(AccessMode::Read));
        for (kind, path, expected) in [
            (written, "/etc/mesh/a.yaml", true),
            (closed_after_write, "/etc/mesh/a.yaml", true),
            (mode_changed, "/etc/mesh/a.yaml", true),
            (created, "/etc/mesh/..data", true),
            (created, "/etc/mesh/below", true),
            (created, "/etc/mesh", true),
            (written, "/tmp/one.yaml", true),
            // Our own reads, and unrelated events next to our files.
            (opened, "/etc/mesh/a.yaml", false),
            (closed_after_read, "/etc/mesh/a.yaml", false),
            (written, "/etc/mesh/app.log", false),
            (written, "/tmp/two.yaml", false),
            (created, "/tmp/two.yaml", false),
        ] {
            let event = notify::Event::new(kind).add_path(path.into());
            assert_eq!(relevant_paths.is_relevant(&event), expected, "{kind:?} {path}");
        }
        assert!(relevant_paths.is_relevant(&notify::Event::new(EventKind::Other)));
    }
}
