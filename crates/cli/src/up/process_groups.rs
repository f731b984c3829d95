//! Records the process groups of applications in the data directory, so that the next `leno up` can kill the groups
//! that a killed `leno up` left.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use leno_identity::{FileOrigin, read_regular};
use leno_model::WorkloadName;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::descendants::ApplicationRun;
use super::procfs::{self, ProcessEntry};
use crate::data_directory::create_private_directory;
use crate::output;

/// A process group, with the fields that distinguish it from a later group with the same ID.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ProcessGroup {
    /// The boot ID.
    boot: String,
    /// The PID namespace.
    namespace: String,
    /// The ID of the group and of its first process.
    leader: i32,
    /// The start time of its first process, in clock ticks since boot.
    started: u64,
    /// The ID of the group's session.
    session: i32,
    /// The process ID of `leno up`, and the start time of that process in clock ticks since boot.
    supervisor: (i32, u64),
}

/// Returns the path of the record of an application's process group.
pub(super) fn record_path(data_directory: &Path, workload: &WorkloadName) -> PathBuf {
    data_directory
        .join(RECORDS_DIRECTORY)
        .join(workload.namespace.as_str())
        .join(workload.name.as_str())
}

/// Records the process group of this process, which becomes an application.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn record_group(path: &Path) -> anyhow::Result<()> {
    write_record(path, i32::try_from(std::process::id())?)
}

/// Restores the record of a running application whenever it is missing, as after the removal of the data
/// directory. Never returns.
pub(super) async fn maintain_record(path: &Path, pid: i32) -> Infallible {
    let mut is_failure_reported = false;
    loop {
        sleep(RECORD_CHECK_INTERVAL).await;
        let metadata_result = fs::symlink_metadata(path);
        if !metadata_result.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            continue;
        }
        match write_record(path, pid) {
            Ok(()) => {
                is_failure_reported = false;
                tracing::warn!(path = %path.display(), "the record of an application was removed and is restored");
            }
            Err(error) if !is_failure_reported => {
                is_failure_reported = true;
                let error = output::format_error(&error);
                tracing::warn!(path = %path.display(), error, "the record of an application was removed and cannot be restored");
            }
            Err(_) => {}
        }
    }
}

/// Records the process group of an application with this first process, a child of `leno up`.
fn write_record(path: &Path, pid: i32) -> anyhow::Result<()> {
    let process = procfs::read_process(pid)
        .filter(|process| !process.is_zombie)
        .with_context(|| format!("/proc does not show the process {pid}"))?;
    let (boot, namespace) = (boot_id()?, pid_namespace()?);
    // A supervisor that has exited already has the start time 0, which no running `leno up` has.
    let supervisor = (
        process.parent,
        procfs::read_process(process.parent).map_or(0, |process| process.start_time),
    );
    let ProcessEntry { group: leader, session, start_time: started, .. } = process;
    let group = ProcessGroup { boot, namespace, leader, started, session, supervisor };
    let record = serde_json::to_vec(&group)?;
    if let Some(directory) = path.parent() {
        create_private_directory(directory)?;
    }
    leno_identity::replace_private(path, &record)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Removes the record of a process group without remaining processes.
pub(super) fn remove_record(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove the record of an application");
    }
}

/// Kills the processes of applications that a killed `leno up` left, and returns their descriptions. The caller
/// has claimed the data directory, so that no other `leno up` runs them.
pub(super) async fn stop_leftovers(data_directory: &Path) -> Vec<String> {
    let mut killed_processes = Vec::new();
    for path in list_files(&data_directory.join(RECORDS_DIRECTORY))
        .iter()
        .flat_map(|namespace_directory| list_files(namespace_directory))
    {
        let record = read_regular(&path, FileOrigin::Leno, MAX_RECORD_BYTES).ok().flatten();
        let group = record.and_then(|record| serde_json::from_slice::<ProcessGroup>(&record).ok());
        let has_ended = match group {
            Some(group) if group.is_leftover() => {
                killed_processes.extend(group.kill_all().await);
                // Kills the application's processes that left the group.
                let run = ApplicationRun::new(&group.namespace, group.leader, group.started);
                killed_processes.extend(run.wait_or_kill(Duration::ZERO).await);
                group.live_members().is_empty() && run.member_processes().is_empty()
            }
            // The group's supervisor may be running and need the record.
            Some(group) => boot_id().is_ok_and(|boot| boot != group.boot),
            None => true,
        };
        if has_ended {
            remove_record(&path);
        }
    }
    killed_processes
}

impl ProcessGroup {
    /// True if the group belongs to this boot and PID namespace and its supervisor has exited. The lock of the
    /// data directory does not prove that the supervisor has exited: the directory may have been removed while
    /// in use.
    fn is_leftover(&self) -> bool {
        let (supervisor_pid, supervisor_start) = self.supervisor;
        boot_id().is_ok_and(|boot| boot == self.boot)
            && pid_namespace().is_ok_and(|namespace| namespace == self.namespace)
            && !procfs::read_process(supervisor_pid)
                .is_some_and(|process| process.start_time == supervisor_start && !process.is_zombie)
    }

    /// Kills all members, including those started meanwhile, for `KILL_TIMEOUT` at most. Returns descriptions
    /// of the killed processes.
    async fn kill_all(&self) -> Vec<String> {
        let deadline = Instant::now() + KILL_TIMEOUT;
        let mut killed_processes = BTreeMap::new();
        loop {
            let members = self.live_members();
            if members.is_empty() {
                break;
            }
            if Instant::now() >= deadline {
                tracing::warn!(
                    processes = ?members,
                    "processes of an application of a killed `leno up` remain after SIGKILL"
                );
                break;
            }
            for pid in members {
                let description = procfs::describe_process(pid);
                if self.kill_member(pid) {
                    killed_processes.insert(pid, description);
                }
            }
            sleep(CHECK_INTERVAL).await;
        }
        killed_processes.into_values().collect()
    }

    /// Returns the live members. The kernel does not reuse the ID of a group while the group has members: if a
    /// process with another start time has the ID, all members have ended.
    fn live_members(&self) -> Vec<i32> {
        let leader = procfs::read_process(self.leader);
        if leader.is_some_and(|leader| leader.start_time != self.started) {
            return Vec::new();
        }
        let is_member =
            |pid: &i32| procfs::read_process(*pid).is_some_and(|process| self.contains(&process));
        procfs::all_pids().filter(is_member).collect()
    }

    /// True for a live member of the group.
    fn contains(&self, process: &ProcessEntry) -> bool {
        process.group == self.leader
            && process.session == self.session
            && process.start_time >= self.started
            && !process.is_zombie
    }

    /// Kills a member; false if it has already ended. The pidfd refers to one process: the signal reaches no
    /// other after an ID is reused.
    fn kill_member(&self, pid: i32) -> bool {
        let pidfd = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let Some(pidfd) = pidfd else { return false };
        procfs::read_process(pid).is_some_and(|process| self.contains(&process))
            && pidfd_send_signal(pidfd, Signal::KILL).is_ok()
    }
}

fn boot_id() -> anyhow::Result<String> {
    let boot =
        fs::read_to_string(BOOT_ID_FILE).with_context(|| format!("cannot read {BOOT_ID_FILE}"))?;
    Ok(boot.trim().to_owned())
}

fn pid_namespace() -> anyhow::Result<String> {
    let namespace = fs::read_link(PID_NAMESPACE_LINK)
        .with_context(|| format!("cannot read {PID_NAMESPACE_LINK}"))?;
    Ok(namespace.to_string_lossy().into_owned())
}

fn list_files(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// The directory of the records in the data directory.
const RECORDS_DIRECTORY: &str = "applications";
/// The maximum size of a record, which has a few short fields.
const MAX_RECORD_BYTES: u64 = 4096;
/// The file with the ID of this boot.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";
/// The link that identifies the PID namespace of this process.
const PID_NAMESPACE_LINK: &str = "/proc/self/ns/pid";
/// The maximum wait for killed processes to exit. They take longer only if a process hangs in a system call.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval between two checks for remaining processes.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// The interval between two checks of the record of a running application.
const RECORD_CHECK_INTERVAL: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Starts a shell with one child, and kills the shell. Returns their group, in which the child remains, and the
    /// killed shell.
    fn start_orphans() -> (ProcessGroup, Child) {
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 600 & echo; wait"]).process_group(0).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let mut line = [0; 1];
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut line).unwrap();
        let process = procfs::read_process(i32::try_from(shell.id()).unwrap()).unwrap();
        let ProcessEntry { group, session, start_time: started, .. } = process;
        let (boot, namespace) = (boot_id().unwrap(), pid_namespace().unwrap());
        shell.kill().unwrap();
        shell.wait().unwrap();
        let supervisor = (0, 0);
        (ProcessGroup { boot, namespace, leader: group, started, session, supervisor }, shell)
    }

    fn write_group(data: &Path, group: &ProcessGroup) -> PathBuf {
        let path = record_path(data, &"shop/cart-1".parse().unwrap());
        create_private_directory(path.parent().unwrap()).unwrap();
        leno_identity::replace_private(&path, &serde_json::to_vec(group).unwrap()).unwrap();
        path
    }

    #[tokio::test]
    async fn leftovers_of_a_killed_leader_are_killed_without_other_groups() {
        let data = tempfile::tempdir().unwrap();
        let (group, _shell) = start_orphans();
        assert_eq!(group.live_members().len(), 1);
        let changed = |change: &dyn Fn(&mut ProcessGroup)| {
            let mut changed = group.clone();
            change(&mut changed);
            changed
        };
        let own_pid = i32::try_from(std::process::id()).unwrap();
        let own_start = procfs::read_process(own_pid).unwrap().start_time;
        for (changed, stays) in [
            (changed(&|group| group.boot.push('x')), false),
            (changed(&|group| group.namespace.push('x')), true),
            (changed(&|group| group.session += 1), false),
            (changed(&|group| group.supervisor = (own_pid, own_start)), true),
            // The group starts after its members.
            (changed(&|group| group.started = u64::MAX), false),
            // The ID belongs to a process with another start time.
            (changed(&|group| (group.leader, group.started) = (own_pid, 1)), false),
        ] {
            let path = write_group(data.path(), &changed);
            assert_eq!(stop_leftovers(data.path()).await, [""; 0], "{changed:?}");
            assert_eq!(path.exists(), stays, "{changed:?}");
            assert_eq!(group.live_members().len(), 1);
        }
        write_group(data.path(), &group);
        let ended = stop_leftovers(data.path()).await;
        assert!(ended.len() == 1 && ended[0].starts_with("sleep (process "), "{ended:?}");
        assert!(group.live_members().is_empty());
        assert_eq!(stop_leftovers(data.path()).await, [""; 0]);
    }

    #[tokio::test]
    async fn a_removed_record_is_written_again() {
        let scratch = tempfile::tempdir().unwrap();
        let data = scratch.path().join("data");
        let path = record_path(&data, &"shop/cart-1".parse().unwrap());
        let mut child = Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        write_record(&path, pid).unwrap();
        let text = fs::read(&path).unwrap();
        fs::remove_dir_all(&data).unwrap();
        let restored = async {
            while !path.exists() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            never = maintain_record(&path, pid) => match never {},
            () = restored => {}
        }
        assert_eq!(fs::read(&path).unwrap(), text);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(write_record(&path, pid).is_err(), "it has ended");
    }
}
