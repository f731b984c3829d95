//! Stores the state of a proxy for restarts in the state directory: key and certificate, the last applied snapshot,
//! virtual addresses, and the addresses of listeners and control planes.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use leno_discovery::Subscriber;
use leno_identity::{
    Credential, FileOrigin, check_private_directory, create_private_directory, open_lock,
    read_regular, remove_temporary_files, replace_private,
};
use leno_model::WorkloadName;
use tokio::sync::Notify;

use crate::virtual_addresses::VirtualAddresses;

/// The directory of the state that one workload's proxy keeps over restarts.
#[derive(Debug, Clone)]
pub(crate) struct StateDir {
    path: PathBuf,
    directory_lock: Arc<Mutex<DirectoryLock>>,
    /// The content of the small files that were written, by name, to restore files that are removed.
    written_files: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    /// The files that could not be written, with the last error.
    unwritten_files: Arc<Mutex<UnwrittenFiles>>,
    /// Notified when a write fails.
    write_failed: Arc<Notify>,
}

/// The lock of the directory.
#[derive(Debug)]
enum DirectoryLock {
    /// Held while the proxy serves.
    Held(File),
    /// The lock file could not be created, for example on a full disk.
    Absent,
    /// Released: another process may use the directory.
    Released,
}

/// The files that could not be written.
#[derive(Debug, Default)]
struct UnwrittenFiles {
    /// The latest content of each file, by name.
    files: BTreeMap<String, Vec<u8>>,
    /// The error of the last failed write.
    last_error: Option<String>,
}

impl StateDir {
    /// Opens the directory, or creates it for its owner only. One proxy at a time may hold it: two would share
    /// their addresses and displace each other at the control plane.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        create_private_directory(path)?;
        let lock = match lock_directory(path) {
            Ok(file) => DirectoryLock::Held(file),
            Err(error) => match error.kind() {
                // The lock is not a regular file, or another proxy holds it.
                io::ErrorKind::InvalidData | io::ErrorKind::ResourceBusy => return Err(error),
                _ => {
                    // A full disk must not keep a proxy from its stored snapshot.
                    tracing::warn!(%error, "cannot lock the state directory");
                    DirectoryLock::Absent
                }
            },
        };
        if let Err(error) = remove_temporary_files(path) {
            tracing::warn!(%error, "cannot remove temporary files of the previous run from the state \
                directory");
        }
        let directory_lock = Arc::new(Mutex::new(lock));
        let (written_files, unwritten_files, write_failed) =
            (Arc::default(), Arc::default(), Arc::default());
        Ok(Self {
            path: path.to_owned(),
            directory_lock,
            written_files,
            unwritten_files,
            write_failed,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Releases the directory to the next process of this workload. Afterwards this process only completes the
    /// requests in progress.
    pub(crate) fn release(&self) {
        let lock = std::mem::replace(&mut *self.directory_lock(), DirectoryLock::Released);
        if let DirectoryLock::Held(file) = lock
            && let Err(error) = file.unlock()
        {
            tracing::warn!(%error, "cannot release the state directory");
        }
    }

    /// True if the directory or a file that this proxy wrote is absent. `has_snapshot`: the proxy has written a
    /// snapshot.
    pub(crate) fn is_damaged(&self, has_snapshot: bool) -> bool {
        let lock_is_gone = match &*self.directory_lock() {
            // A removed file has no links, even while this process keeps it open.
            DirectoryLock::Held(file) => {
                file.metadata().map_or(true, |metadata| metadata.nlink() == 0)
            }
            DirectoryLock::Absent => true,
            DirectoryLock::Released => return false,
        };
        let written = lock_mutex(&self.written_files);
        let is_missing = |name: &str| is_absent(&self.path.join(name));
        lock_is_gone
            || written.keys().any(|name| is_missing(name))
            || (has_snapshot && is_missing(SNAPSHOT_FILE))
    }

    /// Recreates a directory that was removed, and writes the absent files. `snapshot`: the encoded snapshot. The
    /// certificate is not written here: `ControlClient::report_state_problem` retries it.
    pub(crate) fn restore_files(&self, snapshot: Option<&[u8]>) {
        if let Err(error) = self.restore_lock() {
            if self.unwritten_files().record_failed(LOCK_FILE, b"", &error) {
                tracing::warn!(%error, "the state directory was removed, and creating it again fails");
            }
            return;
        }
        self.unwritten_files().record_written(LOCK_FILE);
        let written_files = lock_mutex(&self.written_files).clone();
        let small_files =
            written_files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
        for (name, bytes) in small_files.chain(snapshot.map(|bytes| (SNAPSHOT_FILE, bytes))) {
            if is_absent(&self.path.join(name)) {
                self.write_file(name, bytes);
            }
        }
    }

    /// Recreates and locks the directory if its lock file is gone.
    ///
    /// # Errors
    /// Another proxy has recreated the directory and holds the lock, or the directory cannot be created.
    fn restore_lock(&self) -> io::Result<()> {
        let mut lock = self.directory_lock();
        match &*lock {
            DirectoryLock::Held(file) if file.metadata()?.nlink() > 0 => return Ok(()),
            DirectoryLock::Held(_) | DirectoryLock::Absent => {}
            DirectoryLock::Released => return Ok(()),
        }
        create_private_directory(&self.path)?;
        *lock = DirectoryLock::Held(lock_directory(&self.path)?);
        tracing::warn!(path = %self.path.display(), "the state directory was removed; creating it again");
        Ok(())
    }

    fn directory_lock(&self) -> MutexGuard<'_, DirectoryLock> {
        lock_mutex(&self.directory_lock)
    }

    /// Returns the stored certificate; `None` if it is absent, expired, or issued to another workload than
    /// `workload`.
    pub(crate) fn stored_credential(
        &self,
        workload: &WorkloadName,
        now: SystemTime,
    ) -> Option<Credential> {
        let credential = match Credential::load(&self.path) {
            Ok(stored) => stored?,
            Err(error) => {
                tracing::warn!(%error, "the stored certificate cannot be used; joining again");
                return None;
            }
        };
        let is_valid = credential.workload() == Some(workload) && !credential.is_expired(now);
        is_valid.then_some(credential)
    }

    /// Returns a subscriber with the stored snapshot. The subscriber is empty if no snapshot is stored or the
    /// stored one cannot be read.
    pub(crate) fn stored_subscriber(&self) -> Subscriber {
        let Some(bytes) = self.read_file(SNAPSHOT_FILE) else {
            return Subscriber::new();
        };
        Subscriber::from_bytes(&bytes).unwrap_or_else(|error| {
            tracing::warn!(%error, "the stored configuration is unusable; waiting for a new one");
            Subscriber::new()
        })
    }

    /// Stores the encoded snapshot for the next start.
    pub(crate) fn store_snapshot(&self, bytes: &[u8]) {
        self.write_file(SNAPSHOT_FILE, bytes);
    }

    /// Returns the stored address of a listener or a control plane by its name; `None` if no valid address is stored.
    pub(crate) fn stored_address(&self, name: &str) -> Option<SocketAddr> {
        let address = String::from_utf8(self.read_file(&address_file(name))?).ok()?;
        address.trim().parse().ok()
    }

    /// Stores the address of a listener or a control plane for the next start.
    pub(crate) fn store_address(&self, name: &str, address: SocketAddr) {
        self.store_small_file(&address_file(name), address.to_string().as_bytes());
    }

    /// Returns the stored virtual addresses of services; empty if none are stored.
    pub(crate) fn stored_virtual_addresses(&self) -> VirtualAddresses {
        let text = self.read_file(VIRTUAL_ADDRESSES_FILE).unwrap_or_default();
        VirtualAddresses::from_text(&String::from_utf8_lossy(&text))
    }

    /// Stores the text form of the virtual addresses of services.
    pub(crate) fn store_virtual_addresses(&self, text: &str) {
        self.store_small_file(VIRTUAL_ADDRESSES_FILE, text.as_bytes());
    }

    fn store_small_file(&self, name: &str, bytes: &[u8]) {
        lock_mutex(&self.written_files).insert(name.to_owned(), bytes.to_vec());
        self.write_file(name, bytes);
    }

    /// Returns the content of a file; `None` if the file does not exist or cannot be read.
    fn read_file(&self, name: &str) -> Option<Vec<u8>> {
        match read_regular(&self.path.join(name), FileOrigin::Leno, MAX_FILE_BYTES) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::warn!(name, %error, "cannot read a file of the state directory");
                None
            }
        }
    }

    /// Writes a file atomically. On a full disk the proxy continues; only the state for a restart is lost.
    fn write_file(&self, name: &str, bytes: &[u8]) {
        // The snapshot of a gateway contains private keys.
        let check_result = check_private_directory(&self.path);
        match check_result.and_then(|()| replace_private(&self.path.join(name), bytes)) {
            Ok(()) => self.unwritten_files().record_written(name),
            Err(error) => {
                if self.unwritten_files().record_failed(name, bytes, &error) {
                    tracing::warn!(name, %error, "cannot write the state directory");
                }
                self.write_failed.notify_one();
            }
        }
    }

    /// Records the result of writing the certificate. `ControlClient::report_state_problem` retries failed
    /// writes.
    pub(crate) fn record_certificate_write(&self, result: &io::Result<()>) {
        match result {
            Ok(()) => self.unwritten_files().record_written(CERTIFICATE),
            Err(error) => {
                self.unwritten_files().record_failed(CERTIFICATE, b"", error);
                self.write_failed.notify_one();
            }
        }
    }

    /// Retries all failed writes except those of the certificate and the lock file.
    pub(crate) fn retry_writes(&self) {
        let files = self.unwritten_files().files.clone();
        let has_content = |name: &str| ![CERTIFICATE, LOCK_FILE].contains(&name);
        for (name, bytes) in files.into_iter().filter(|(name, _)| has_content(name)) {
            self.write_file(&name, &bytes);
        }
    }

    /// Returns the error of the last failed write; `None` if all files are written.
    pub(crate) fn last_write_error(&self) -> Option<String> {
        self.unwritten_files().last_error.clone()
    }

    /// True while the current certificate is not on disk.
    pub(crate) fn lacks_certificate(&self) -> bool {
        let is_released = matches!(*self.directory_lock(), DirectoryLock::Released);
        !is_released
            && (self.unwritten_files().files.contains_key(CERTIFICATE)
                || !Credential::is_saved(&self.path))
    }

    /// Resolves after a write has failed.
    pub(crate) async fn wait_for_write_failure(&self) {
        self.write_failed.notified().await;
    }

    fn unwritten_files(&self) -> MutexGuard<'_, UnwrittenFiles> {
        lock_mutex(&self.unwritten_files)
    }
}

/// Locks the directory, for one proxy at a time.
fn lock_directory(directory: &Path) -> io::Result<File> {
    let file = open_lock(&directory.join(LOCK_FILE))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(io::Error::new(io::ErrorKind::ResourceBusy, "another proxy uses it"))
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// True if nothing exists at the path. A file that cannot be examined counts as present.
fn is_absent(path: &Path) -> bool {
    let metadata = std::fs::symlink_metadata(path);
    metadata.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Locks a mutex, even if another thread panicked while holding the lock: no update leaves a partial state.
fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl UnwrittenFiles {
    fn record_written(&mut self, name: &str) {
        self.files.remove(name);
        if self.files.is_empty() {
            self.last_error = None;
        }
    }

    /// Records a failed write. Returns true for the first failure of a file.
    fn record_failed(&mut self, name: &str, bytes: &[u8], error: &dyn std::fmt::Display) -> bool {
        self.last_error = Some(format!("{name}: {error}"));
        self.files.insert(name.to_owned(), bytes.to_vec()).is_none()
    }
}

fn address_file(name: &str) -> String {
    format!("{name}.address")
}

/// The name for the certificate and its key in the list of unwritten files.
const CERTIFICATE: &str = "certificate";
/// The file that the proxy locks while it holds the directory.
const LOCK_FILE: &str = "lock";
/// The file of the virtual addresses of services.
const VIRTUAL_ADDRESSES_FILE: &str = "names.txt";
/// The file of the encoded snapshot.
const SNAPSHOT_FILE: &str = "config.bin";
/// The maximum size of a file that is read: larger than the snapshot of the largest mesh.
const MAX_FILE_BYTES: u64 = 512 << 20;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_directory_belongs_to_one_proxy_until_it_is_released() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("state");
        let first_proxy = StateDir::open(&path).unwrap();
        let error = StateDir::open(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        assert!(error.to_string().contains("another proxy"), "{error}");
        first_proxy.release();
        StateDir::open(&path).unwrap();
    }

    #[test]
    fn failed_writes_are_retried_with_the_latest_content() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("state");
        let state = StateDir::open(&path).unwrap();
        // A directory in place of the file fails for every user.
        std::fs::create_dir_all(path.join(SNAPSHOT_FILE).join("in the way")).unwrap();
        state.store_snapshot(b"one");
        state.store_snapshot(b"two");
        let problem = state.last_write_error().unwrap();
        assert!(problem.starts_with(SNAPSHOT_FILE), "{problem}");
        state.retry_writes();
        assert!(state.last_write_error().is_some());
        std::fs::remove_dir_all(path.join(SNAPSHOT_FILE)).unwrap();
        state.retry_writes();
        assert_eq!(state.last_write_error(), None);
        assert_eq!(std::fs::read(path.join(SNAPSHOT_FILE)).unwrap(), b"two");
    }

    #[test]
    fn a_removed_directory_is_restored_unless_another_proxy_holds_it() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("of/web-1");
        let state = StateDir::open(&path).unwrap();
        state.store_snapshot(b"snapshot");
        state.store_address("admin", "127.0.0.1:7".parse().unwrap());
        state.store_virtual_addresses("names");
        assert!(!state.is_damaged(true));
        for removed in
            [scratch.path().join("of"), path.join(VIRTUAL_ADDRESSES_FILE), path.join(LOCK_FILE)]
        {
            match removed.is_dir() {
                true => std::fs::remove_dir_all(&removed).unwrap(),
                false => std::fs::remove_file(&removed).unwrap(),
            }
            assert!(state.is_damaged(true), "{removed:?}");
            state.restore_files(Some(b"snapshot"));
            assert!(!state.is_damaged(true) && state.last_write_error().is_none(), "{removed:?}");
            let content = |name: &str| std::fs::read_to_string(path.join(name)).unwrap();
            assert_eq!(
                (content(SNAPSHOT_FILE).as_str(), content(VIRTUAL_ADDRESSES_FILE).as_str()),
                ("snapshot", "names")
            );
            assert_eq!(state.stored_address("admin"), Some("127.0.0.1:7".parse().unwrap()));
            assert!(StateDir::open(&path).is_err(), "the lock is held again");
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
        }
        // A directory that others can write is not used, even if it belongs to the same user.
        std::fs::remove_dir_all(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(state.is_damaged(true));
        state.restore_files(Some(b"snapshot"));
        state.store_snapshot(b"snapshot");
        assert!(
            state.last_write_error().unwrap().contains("other users can write"),
            "{:?}",
            state.last_write_error()
        );
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        state.restore_files(Some(b"snapshot"));
        assert_eq!(state.last_write_error(), None);
        std::fs::remove_dir_all(&path).unwrap();
        let other_proxy = StateDir::open(&path).unwrap();
        state.restore_files(Some(b"snapshot"));
        assert!(
            state.last_write_error().unwrap().contains("another proxy"),
            "{:?}",
            state.last_write_error()
        );
        assert!(is_absent(&path.join(SNAPSHOT_FILE)));
        drop(other_proxy);
        state.restore_files(Some(b"snapshot"));
        assert_eq!(state.last_write_error(), None);
        state.release();
        std::fs::remove_dir_all(&path).unwrap();
        assert!(!state.is_damaged(true));
    }

    #[test]
    fn a_named_pipe_in_place_of_a_file_does_not_block_reads() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("state");
        let state = StateDir::open(&path).unwrap();
        for name in [SNAPSHOT_FILE, VIRTUAL_ADDRESSES_FILE, "admin.address", "credential.pem"] {
            let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
            rustix::fs::mkfifoat(rustix::fs::CWD, path.join(name), mode).unwrap();
        }
        let (done, result) = std::sync::mpsc::channel();
        let reader = state.clone();
        std::thread::spawn(move || {
            reader.stored_subscriber();
            reader.stored_virtual_addresses();
            let workload = "shop/web-1".parse().unwrap();
            let has_credential =
                reader.stored_credential(&workload, SystemTime::UNIX_EPOCH).is_some();
            done.send((reader.stored_address("admin"), has_credential))
        });
        let outcome = result.recv_timeout(std::time::Duration::from_secs(20));
        assert_eq!(outcome.expect("reading a named pipe blocks"), (None, false));
        state.store_snapshot(b"snapshot");
        assert_eq!(std::fs::read(path.join(SNAPSHOT_FILE)).unwrap(), b"snapshot");
    }

    #[test]
    fn stored_files_are_readable_by_their_owner_only() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("state");
        let state = StateDir::open(&path).unwrap();
        // A symbolic link in place of the draft or of the file is not followed.
        let other_file = scratch.path().join("other");
        std::fs::write(&other_file, "untouched").unwrap();
        for name in ["config.bin.new", SNAPSHOT_FILE] {
            std::os::unix::fs::symlink(&other_file, path.join(name)).unwrap();
        }
        state.store_snapshot(b"a key");
        assert_eq!(std::fs::read(&other_file).unwrap(), b"untouched");
        assert_eq!(std::fs::read(path.join(SNAPSHOT_FILE)).unwrap(), b"a key");
        let metadata = std::fs::metadata(path.join(SNAPSHOT_FILE)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    }
}
