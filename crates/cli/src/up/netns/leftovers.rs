//! Removes the leftovers of killed `leno up --netns`: bridges, veth pairs, network namespaces and their files.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use leno_identity::{create_private_directory, open_lock};

use super::{remove_namespace, run_ip, run_ip_for_cleanup};
use crate::data_directory::{CLEAN_TIMEOUT, LOCK_TIMEOUT, lock_with_timeout};

/// A lock that the process which created a bridge holds for the lifetime of the bridge. The process ID alone is
/// not sufficient: a zombie keeps its ID, and the kernel reuses IDs.
#[derive(Debug)]
pub(super) struct BridgeLock {
    path: PathBuf,
    _file: File,
}

impl BridgeLock {
    /// Claims the name of a bridge for this process.
    ///
    /// # Errors
    /// If another process has the name, or the lock cannot be written.
    pub(super) fn new(bridge: &str) -> anyhow::Result<Self> {
        create_private_directory(Path::new(LOCK_DIRECTORY))?;
        let path = lock_path(bridge);
        let file =
            File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { path, _file: file }),
            Err(TryLockError::WouldBlock) => {
                bail!("{bridge} belongs to another `leno up --netns`; start again")
            }
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("{} cannot be locked", path.display()))
            }
        }
    }
}

impl Drop for BridgeLock {
    fn drop(&mut self) {
        // A remaining lock file does no harm: without a lock it marks no bridge as in use.
        drop(fs::remove_file(&self.path));
    }
}

/// The lock of the process that removes leftovers. Other processes wait, and look for leftovers after the removal.
#[derive(Debug)]
struct CleanupLock {
    _file: File,
}

impl CleanupLock {
    fn acquire() -> anyhow::Result<Self> {
        create_private_directory(Path::new(LOCK_DIRECTORY))?;
        let path = Path::new(LOCK_DIRECTORY).join(CLEANUP_LOCK_FILE);
        let context = || format!("{} cannot be locked", path.display());
        let file = open_lock(&path).with_context(context)?;
        // A process that hangs does not block the removal: removing a leftover twice is harmless.
        if !lock_with_timeout(&file, CLEAN_TIMEOUT).with_context(context)? {
            tracing::warn!("another process has been removing leftovers for a long time");
        }
        Ok(Self { _file: file })
    }
}

/// Removes the leftovers of all meshes that have exited, and returns their names.
///
/// # Errors
/// If there are leftovers, and this process is not permitted to remove them.
pub(in crate::up) fn remove_leftovers() -> anyhow::Result<Vec<String>> {
    if rustix::process::geteuid().is_root() {
        return remove_unused(None);
    }
    let names = [list_entries("/run/netns"), list_entries("/etc/netns"), list_links()].concat();
    let mut bridges = names.iter().filter_map(|name| bridge_name(name));
    if bridges.any(|bridge| !is_in_use(&bridge)) {
        bail!("removing network namespaces requires root: use sudo");
    }
    Ok(Vec::new())
}

/// Like [`remove_leftovers`], but also removes all objects of the bridge `own_bridge`. This process has claimed
/// the name but not created the bridge yet, so such objects belong to an earlier process with the same process
/// ID.
///
/// # Errors
/// If the lock cannot be acquired.
pub(super) fn remove_unused(own_bridge: Option<&str>) -> anyhow::Result<Vec<String>> {
    let _lock = CleanupLock::acquire()?;
    let mut removed_names = Vec::new();
    let mut bridges = BTreeSet::new();
    let is_leftover = |bridge: &str| own_bridge == Some(bridge) || !is_in_use(bridge);
    let namespace_names = [list_entries("/run/netns"), list_entries("/etc/netns")].concat();
    for name in namespace_names.into_iter().collect::<BTreeSet<_>>() {
        let Some(bridge) = bridge_name(&name).filter(|bridge| is_leftover(bridge)) else {
            continue;
        };
        remove_namespace(&name);
        bridges.insert(bridge);
        removed_names.push(name);
    }
    for name in list_links() {
        let Some(bridge) = bridge_name(&name).filter(|bridge| is_leftover(bridge)) else {
            continue;
        };
        run_ip_for_cleanup(&["link", "del", &name]);
        bridges.insert(bridge);
        removed_names.push(name);
    }
    for bridge in bridges.iter().filter(|bridge| own_bridge != Some(bridge.as_str())) {
        drop(fs::remove_file(lock_path(bridge)));
    }
    Ok(removed_names)
}

/// Returns the ID of the process that created a device or namespace, if Leno creates such names: `leno7`,
/// `leno7-2` or `ln7-2`. Returns `None` for similar names.
pub(super) fn creator_pid(name: &str) -> Option<u32> {
    let link_name = || name.strip_prefix("ln").filter(|suffix| suffix.contains('-'));
    let suffix = name.strip_prefix("leno").or_else(link_name)?;
    let parse_number = |text: &str| {
        let number: u32 = text.parse().ok()?;
        (number > 0 && number.to_string() == text).then_some(number)
    };
    match suffix.split_once('-') {
        None => parse_number(suffix),
        Some((process, host)) => parse_number(host).and(parse_number(process)),
    }
}

/// Returns the bridge of the mesh to which a device or namespace belongs: `leno7` for `leno7`, `leno7-2` and
/// `ln7-2`.
fn bridge_name(name: &str) -> Option<String> {
    creator_pid(name).map(|creator| format!("leno{creator}"))
}

/// True if the process that created a bridge is running. The lock of a process that was just killed may take a
/// moment to be released.
fn is_in_use(bridge: &str) -> bool {
    match File::open(lock_path(bridge)) {
        Ok(lock) => match creator_pid(bridge).is_some_and(is_leno_process) {
            true => !matches!(lock.try_lock(), Ok(())),
            false => !lock_with_timeout(&lock, LOCK_TIMEOUT).unwrap_or(false),
        },
        // Older releases create no lock.
        Err(_) => creator_pid(bridge).is_some_and(is_leno_process),
    }
}

/// True if this process ID belongs to Leno and is not a zombie.
fn is_leno_process(pid: u32) -> bool {
    let process_directory = Path::new("/proc").join(pid.to_string());
    // A zombie has no executable.
    let link_result = fs::read_link(process_directory.join("exe"));
    link_result.is_ok_and(|program| {
        program.file_name().is_some_and(|name| name.to_string_lossy().starts_with("leno"))
    })
}

/// Returns the bridges and veth devices of this network namespace. `/sys/class/net` is not used, because it may
/// show the devices of another namespace.
fn list_links() -> Vec<String> {
    let output = run_ip(&["-details", "-json", "link", "show"]).ok();
    let mut links = output
        .and_then(|output| serde_json::from_slice::<Vec<NetworkLink>>(&output).ok())
        .unwrap_or_default();
    // Leno creates only bridges and veth pairs.
    links.retain(|link| matches!(link.linkinfo.info_kind.as_str(), "bridge" | "veth"));
    links.into_iter().map(|link| link.ifname).collect()
}

/// A network device in the JSON output of iproute2.
#[derive(Debug, serde::Deserialize)]
struct NetworkLink {
    ifname: String,
    #[serde(default)]
    linkinfo: LinkInfo,
}

#[derive(Debug, Default, serde::Deserialize)]
struct LinkInfo {
    #[serde(default)]
    info_kind: String,
}

/// Returns the names of the entries of a directory; empty if it cannot be read.
fn list_entries(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn lock_path(bridge: &str) -> PathBuf {
    Path::new(LOCK_DIRECTORY).join(format!("{bridge}.lock"))
}

/// The directory of the lock files. Like network namespaces, the files do not survive a reboot.
const LOCK_DIRECTORY: &str = "/run/leno/netns";
/// The file of the [`CleanupLock`] in that directory; no bridge has this name.
const CLEANUP_LOCK_FILE: &str = "removal";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_attributed_to_the_bridge_of_their_creator() {
        for (name, bridge) in [
            ("leno7", Some("leno7")),
            ("leno7-2", Some("leno7")),
            ("ln7-2", Some("leno7")),
            ("ln7", None),
            ("lenovo", None),
            ("leno0", None),
            ("leno07-2", None),
            ("leno7-prod", None),
            ("ln7-uplink", None),
            ("leno7-2-3", None),
            ("leno", None),
            ("ln-1", None),
            ("eth0", None),
        ] {
            assert_eq!(bridge_name(name).as_deref(), bridge, "{name}");
        }
    }

    #[test]
    fn zombies_and_other_programs_are_not_running_meshes() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        // The child exits and stays a zombie until `wait`.
        let is_zombie = || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            stat.rsplit_once(')').is_some_and(|(_, suffix)| suffix.trim_start().starts_with('Z'))
        };
        while !is_zombie() {
            std::thread::yield_now();
        }
        assert!(!is_leno_process(pid));
        child.wait().unwrap();
        assert!(!is_leno_process(1) || pid == 1, "the first process of a test machine is no mesh");
    }
}
