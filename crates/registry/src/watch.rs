//! File watching: reads files again when they change.

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
use crate::scan::{ContentMode, DirectoryIdentity, is_yaml, scan_paths};

/// Reads the source now and after every change, and sends the updates.
///
/// The first update is always sent; later ones if objects or rejections change, and always on `demand`. Changes
/// within a short quiet period are combined. Ends when the receiver of the updates is dropped. If the system
/// cannot watch, files are read at short intervals instead.
///
/// # Errors
/// [`WatchError`] if the reader failed; the state of the mesh is unchanged.
pub async fn watch_source(
    source: FileSource,
    updates: Sender<RegistryUpdate>,
    demand: Arc<Notify>,
) -> Result<(), WatchError> {
    let wake = Arc::new(Notify::new());
    let mut turn =
        WatchedSource { watches: DirectoryWatches::new(&source, Arc::clone(&wake)), source };
    let mut last: Option<RegistryUpdate> = None;
    let mut asked = false;
    let mut noticed = None;
    loop {
        let mut update;
        let now = Instant::now();
        (turn, update) =
            spawn_blocking(move || turn.arm_and_read(now)).await.map_err(WatchError)?;
        update.noticed = noticed;
        if turn.watches.found_new {
            // A file may have changed between the reading and the watching.
            wake.notify_one();
        }
        let has_changed = !update.changes.is_empty()
            || last.as_ref().is_none_or(|last| {
                last.rejected != update.rejected || last.warnings != update.warnings
            });
        if has_changed || asked {
            last = Some(RegistryUpdate { changes: Vec::new(), ..update.clone() });
            if updates.send(update).await.is_err() {
                return Ok(());
            }
        }
        let poll = turn.watches.blind.then(|| Instant::now() + POLL_EVERY);
        let again = turn.source.again_at().map(Instant::from_std);
        let max_wait = poll.into_iter().chain(again).min();
        (asked, noticed) = tokio::select! {
            () = updates.closed() => return Ok(()),
            () = demand.notified() => (true, None),
            // The noticed time of an uncertain file is the time at which it became uncertain.
            first = wait_until_quiet(&wake, max_wait) => (false, first.map(Instant::into_std).or(noticed)),
            () = until_replaced(Arc::clone(&turn.watches.identities)) => (false, None),
        };
    }
}

/// The reader failed: a defect of this program.
#[derive(Debug, thiserror::Error)]
#[error("the file reader failed; the last valid state stays in use, restart to watch again")]
pub struct WatchError(#[source] tokio::task::JoinError);

/// Waits for a change, and then for a quiet period; returns the time of the first change. Times out at
/// `max_wait`.
async fn wait_until_quiet(wake: &Notify, max_wait: Option<Instant>) -> Option<Instant> {
    match max_wait {
        Some(until) if timeout_at(until, wake.notified()).await.is_err() => return None,
        Some(_) => {}
        None => wake.notified().await,
    }
    let first = Instant::now();
    let latest = first + QUIET_TIME_MAX;
    loop {
        let until = latest.min(Instant::now() + QUIET_TIME);
        if timeout_at(until, wake.notified()).await.is_err() {
            return Some(first);
        }
    }
}

/// Returns when a watched directory is replaced. Mounting and unmounting cause no events.
async fn until_replaced(identities: Identities) {
    loop {
        tokio::time::sleep(IDENTITIES_EVERY).await;
        let known = Arc::clone(&identities);
        let look = spawn_blocking(move || {
            known
                .iter()
                .any(|(path, identity)| DirectoryIdentity::from_path(path).ok() != *identity)
        });
        if look.await.unwrap_or(true) {
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
    fn arm_and_read(mut self, now: Instant) -> (Self, RegistryUpdate) {
        self.watches.update_watches(self.source.paths());
        let update = self.source.reload_warily(now.into_std());
        self.watches.found_new = self.watches.update_watches(self.source.paths());
        (self, update)
    }
}

/// The watched directories. Files are not watched: saving by rename replaces them.
struct DirectoryWatches {
    watcher: Option<RecommendedWatcher>,
    interest: Arc<Mutex<RelevantPaths>>,
    armed: BTreeSet<PathBuf>,
    /// True if the last arming found new or replaced directories.
    found_new: bool,
    /// True if a directory cannot be watched.
    blind: bool,
    /// The directory identities at the time of the reading.
    identities: Identities,
}

/// Watched directories, and their identities.
type Identities = Arc<BTreeMap<PathBuf, Option<DirectoryIdentity>>>;

/// The relevant events.
#[derive(Debug, Default)]
struct RelevantPaths {
    /// Directories in which every event is relevant.
    directories: BTreeSet<PathBuf>,
    /// Relevant paths in other directories.
    paths: BTreeSet<PathBuf>,
}

impl DirectoryWatches {
    fn new(source: &FileSource, wake: Arc<Notify>) -> Self {
        let interest = Arc::new(Mutex::new(RelevantPaths::default()));
        let known = Arc::clone(&interest);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let interest = known.lock().unwrap_or_else(PoisonError::into_inner);
            // An error means that events were lost.
            if event.map_or(true, |event| interest.is_relevant(&event)) {
                wake.notify_one();
            }
        });
        if let Err(error) = &watcher {
            tracing::warn!(%error, paths = ?source.paths(), "cannot watch files, reading them at intervals");
        }
        Self {
            blind: watcher.is_err(),
            watcher: watcher.ok(),
            interest,
            armed: BTreeSet::new(),
            found_new: false,
            identities: Identities::default(),
        }
    }

    /// Updates the watches; returns true if some are new.
    fn update_watches(&mut self, paths: &[PathBuf]) -> bool {
        let (interest, places) = RelevantPaths::from_paths(paths);
        *self.interest.lock().unwrap_or_else(PoisonError::into_inner) = interest;
        let identity = |place: &PathBuf| (place.clone(), DirectoryIdentity::from_path(place).ok());
        let identities = Arc::new(places.iter().map(identity).collect());
        let replaced = self.identities != identities;
        self.identities = identities;
        let Some(watcher) = &mut self.watcher else {
            return false;
        };
        for place in self.armed.difference(&places) {
            // It is usually gone, together with its watch.
            watcher.unwatch(place).ok();
        }
        let mut blind = false;
        for place in &places {
            // Repeated each time: a directory may have been replaced by another of the same name.
            match watcher.watch(place, RecursiveMode::NonRecursive) {
                Ok(()) => {}
                Err(error) if is_absence(&error) => {}
                Err(error) => {
                    if !self.blind {
                        tracing::warn!(%error, path = ?place, "cannot watch, reading at intervals");
                    }
                    blind = true;
                }
            }
        }
        self.blind = blind;
        self.armed = places;
        replaced
    }
}

impl RelevantPaths {
    /// Returns the relevant events for these paths, and the directories to watch.
    fn from_paths(paths: &[PathBuf]) -> (Self, BTreeSet<PathBuf>) {
        let mut way = ResolvedPath::default();
        for path in paths {
            way.follow_path(path);
        }
        let found = scan_paths(paths, ContentMode::Skip);
        for link in &found.links {
            way.follow_path(link);
        }
        // One path per directory: the system reports events under the one added last.
        let directories = found.directories.keys().filter_map(|path| fs::canonicalize(path).ok());
        let interest = Self { directories: directories.collect(), paths: way.steps };
        let mut places = way.places;
        places.extend(interest.directories.iter().cloned());
        (interest, places)
    }

    fn is_relevant(&self, event: &notify::Event) -> bool {
        match event.kind {
            // Read events are ignored, since we read ourselves.
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => {}
            EventKind::Access(_) => return false,
            _ => {}
        }
        let content = matches!(
            event.kind,
            EventKind::Access(_) | EventKind::Modify(notify::event::ModifyKind::Data(_))
        );
        let inside = |path: &PathBuf| {
            let listed = path.parent().is_some_and(|dir| self.directories.contains(dir));
            // Writes to other files, such as logs, are irrelevant.
            listed && (!content || is_yaml(path))
        };
        let matters = |path: &PathBuf| {
            self.paths.contains(path) || self.directories.contains(path) || inside(path)
        };
        event.paths.is_empty() || event.paths.iter().any(matters)
    }
}

/// The resolution of paths from the root, through every link.
#[derive(Debug, Default)]
struct ResolvedPath {
    /// Each entry on the path, and the first missing one.
    steps: BTreeSet<PathBuf>,
    /// The directories that contain these entries.
    places: BTreeSet<PathBuf>,
}

impl ResolvedPath {
    fn follow_path(&mut self, path: &Path) {
        let Ok(path) = std::path::absolute(path) else {
            return;
        };
        let mut at = PathBuf::from("/");
        let mut rest: Vec<OsString> = reversed_components(&path);
        let mut links = 0;
        while let Some(name) = rest.pop() {
            if name == ".." {
                at.pop();
                continue;
            }
            let step = at.join(&name);
            self.places.insert(at.clone());
            self.steps.insert(step.clone());
            let target = match fs::symlink_metadata(&step) {
                Ok(metadata) if metadata.is_symlink() => fs::read_link(&step),
                Ok(_) => {
                    at = step;
                    continue;
                }
                // The nearest directory reports the creation of the rest.
                Err(_) => return,
            };
            links += 1;
            let (Ok(target), true) = (target, links <= LINKS_MAX) else {
                return;
            };
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            rest.extend(reversed_components(&target));
        }
    }
}

/// Returns the components of a path in reverse order.
fn reversed_components(path: &Path) -> Vec<OsString> {
    let names =
        path.components().rev().filter(|c| !matches!(c, Component::RootDir | Component::CurDir));
    names.map(|component| component.as_os_str().to_owned()).collect()
}

/// True if a directory could not be watched because it does not exist.
fn is_absence(error: &notify::Error) -> bool {
    match &error.kind {
        notify::ErrorKind::PathNotFound | notify::ErrorKind::WatchNotFound => true,
        notify::ErrorKind::Io(error) => error.kind() == ErrorKind::NotFound,
        _ => false,
    }
}

/// Editors rarely write and rename at a longer interval.
const QUIET_TIME: Duration = Duration::from_millis(50);
/// The limit of the wait for a process that writes continuously.
const QUIET_TIME_MAX: Duration = Duration::from_millis(250);
/// The polling interval for files that cannot be watched.
const POLL_EVERY: Duration = Duration::from_millis(500);
/// The interval between checks of the identities of watched directories.
const IDENTITIES_EVERY: Duration = Duration::from_secs(2);
/// Limit of links on a path, as in the kernel.
const LINKS_MAX: usize = 40;

#[cfg(test)]
mod tests {
    use notify::event::{CreateKind, DataChange, MetadataKind, ModifyKind};

    use super::*;

    #[test]
    fn only_what_may_change_the_facts_matters() {
        let interest = RelevantPaths {
            directories: BTreeSet::from(["/etc/mesh".into()]),
            paths: BTreeSet::from(["/tmp/one.yaml".into(), "/tmp".into()]),
        };
        let wrote = EventKind::Modify(ModifyKind::Data(DataChange::Any));
        let closed = EventKind::Access(AccessKind::Close(AccessMode::Write));
        let created = EventKind::Create(CreateKind::Any);
        let changed_mode = EventKind::Modify(ModifyKind::Metadata(MetadataKind::Any));
        let opened = EventKind::Access(AccessKind::Open(AccessMode::Any));
        let was_read = EventKind::Access(AccessKind::Close(AccessMode::Read));
        for (kind, path, expected) in [
            (wrote, "/etc/mesh/a.yaml", true),
            (closed, "/etc/mesh/a.yaml", true),
            (changed_mode, "/etc/mesh/a.yaml", true),
            (created, "/etc/mesh/..data", true),
            (created, "/etc/mesh/below", true),
            (created, "/etc/mesh", true),
            (wrote, "/tmp/one.yaml", true),
            // Our own reads, and unrelated events next to our files.
            (opened, "/etc/mesh/a.yaml", false),
            (was_read, "/etc/mesh/a.yaml", false),
            (wrote, "/etc/mesh/app.log", false),
            (wrote, "/tmp/two.yaml", false),
            (created, "/tmp/two.yaml", false),
        ] {
            let event = notify::Event::new(kind).add_path(path.into());
            assert_eq!(interest.is_relevant(&event), expected, "{kind:?} {path}");
        }
        assert!(interest.is_relevant(&notify::Event::new(EventKind::Other)));
    }
}
