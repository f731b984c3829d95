//! Finds and stops the processes that an application started, including those in other process groups and sessions.
//!
//! The first process of an application gets a unique environment variable, which its descendants inherit, and
//! adopts its orphaned descendants. When the first process exits, `leno up` adopts the remaining descendants;
//! it kills them when the application stops, even if they have cleared the variable.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use leno_model::WorkloadName;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, child_subreaper, getpgrp, getpid, pidfd_open,
    pidfd_send_signal, set_child_subreaper, waitpid,
};
use tokio::time::{Instant, sleep};

use super::child;
use super::procfs::{self, ProcessEntry};

/// One run of an application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApplicationRun {
    /// The process ID of the first process.
    first_pid: i32,
    /// The start time of the first process, in clock ticks since boot.
    start_time: u64,
    /// The environment variable of the run, with its value: `LENO_APPLICATION_RUN=PID_NAMESPACE/FIRST_PID/START_TIME`.
    environment_entry: String,
    /// The descendants at the last call of `record_descendants`, with their start times.
    recorded_descendants: BTreeMap<i32, u64>,
}

impl ApplicationRun {
    /// Returns the run with this first process; `None` if the process has exited.
    pub(crate) fn from_first_process(first_pid: i32) -> Option<Self> {
        let pid_namespace = fs::read_link(PID_NAMESPACE_LINK).ok()?;
        let start_time = procfs::read_process(first_pid)?.start_time;
        Some(Self::new(&pid_namespace.to_string_lossy(), first_pid, start_time))
    }

    /// Returns the run with this first process, which may have exited. `start_time` is in clock ticks since
    /// boot.
    pub(super) fn new(pid_namespace: &str, first_pid: i32, start_time: u64) -> Self {
        let environment_entry = format!("{RUN_VARIABLE}={pid_namespace}/{first_pid}/{start_time}");
        Self { first_pid, start_time, environment_entry, recorded_descendants: BTreeMap::new() }
    }

    /// Returns the name and the value of the environment variable that marks the run's processes.
    pub(crate) fn environment_variable(&self) -> Option<(&str, &str)> {
        self.environment_entry.split_once('=')
    }

    /// Signals the live processes of the run.
    pub(super) fn signal_all(&self, signal: Signal) {
        for pid in self.member_processes() {
            // A process that has just exited needs no signal.
            let _sent = self.send_signal(pid, signal);
        }
    }

    /// Records the descendants of the first process; does nothing once the first process has exited.
    pub(super) fn record_descendants(&mut self) {
        if procfs::read_process(self.first_pid)
            .is_none_or(|process| process.start_time != self.start_time)
        {
            return;
        }
        let pids = procfs::process_tree(self.first_pid).into_iter();
        self.recorded_descendants =
            pids.filter_map(|pid| Some((pid, procfs::read_process(pid)?.start_time))).collect();
    }

    /// Waits for the processes to exit, and kills those that remain after `max_wait`, including those started
    /// meanwhile. Returns descriptions of the killed processes.
    pub(super) async fn wait_or_kill(&self, max_wait: Duration) -> Vec<String> {
        let start = Instant::now();
        let (mut killed, mut was_empty) = (BTreeMap::new(), false);
        loop {
            let members = self.killable_processes();
            let elapsed = start.elapsed();
            // A process that executes a new program shows no environment for a moment.
            if members.is_empty() && was_empty {
                break;
            }
            was_empty = members.is_empty();
            if elapsed >= max_wait + KILL_TIMEOUT {
                tracing::warn!(processes = ?members, "processes of an application remain after SIGKILL");
                break;
            }
            if elapsed >= max_wait {
                for pid in members {
                    let description = procfs::describe_process(pid);
                    if self.send_signal(pid, Signal::KILL) {
                        killed.insert(pid, description);
                    }
                }
            }
            sleep(CHECK_INTERVAL).await;
        }
        reap_adopted();
        killed.into_values().collect()
    }

    /// Returns the live processes of the run, and the processes that `leno up` adopted and that have no run
    /// variable: these may belong to this run or to an earlier one.
    fn killable_processes(&self) -> Vec<i32> {
        procfs::all_pids()
            .filter(|pid| self.contains(*pid) || self.may_belong_to_run(*pid))
            .collect()
    }

    /// Returns the live processes of the run: those recorded as descendants, and those with the variable.
    pub(super) fn member_processes(&self) -> Vec<i32> {
        procfs::all_pids().filter(|pid| self.contains(*pid)).collect()
    }

    /// True for a live process that is recorded as a descendant, or has the variable.
    fn contains(&self, pid: i32) -> bool {
        let Some(process) = procfs::read_process(pid) else { return false };
        let is_recorded = self.recorded_descendants.get(&pid) == Some(&process.start_time);
        !process.is_zombie
            && process.start_time >= self.start_time
            && (is_recorded || self.has_variable(pid))
    }

    /// True for a live adopted process without the variable of any run: it belongs to this run, or to an earlier
    /// run.
    fn may_belong_to_run(&self, pid: i32) -> bool {
        adopted_process(pid)
            .is_some_and(|process| !process.is_zombie && process.start_time >= self.start_time)
            && !has_environment_entry(pid, |entry| entry.starts_with(RUN_VARIABLE.as_bytes()))
    }

    /// True for a process that started with the variable of this run.
    pub(super) fn has_variable(&self, pid: i32) -> bool {
        has_environment_entry(pid, |entry| entry == self.environment_entry.as_bytes())
    }

    /// Signals a process; false if it has exited or does not belong to the run. The pidfd refers to one process:
    /// the signal reaches no other after an ID is reused.
    fn send_signal(&self, pid: i32, signal: Signal) -> bool {
        let pidfd = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let Some(pidfd) = pidfd else { return false };
        (self.contains(pid) || self.may_belong_to_run(pid))
            && pidfd_send_signal(pidfd, signal).is_ok()
    }
}

/// True if the environment of a process has a matching entry, `NAME=VALUE`; false if it cannot be read.
fn has_environment_entry(pid: i32, is_match: impl Fn(&[u8]) -> bool) -> bool {
    let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { return false };
    environment.split(|byte| *byte == 0).any(is_match)
}

/// Makes this process, `leno up`, the subreaper of its applications' descendants, so that it adopts their
/// orphans. Does nothing as the init process of a PID namespace, which adopts all orphans of the namespace.
///
/// # Errors
/// If the kernel rejects the request.
pub(super) fn become_subreaper() -> anyhow::Result<()> {
    let own_pid = getpid();
    if own_pid.is_init() {
        return Ok(());
    }
    set_child_subreaper(Some(own_pid)).context("cannot become a child subreaper")
}

/// Returns the process with this ID, if it is a descendant of an exited application that `leno up` adopted. The
/// commands that `leno up` runs are in its process group, except sidecars and first processes of applications.
/// Returns `None` if `leno up` is no subreaper: an init process also adopts the orphans of other programs.
fn adopted_process(pid: i32) -> Option<ProcessEntry> {
    let (process, own_pid) = (procfs::read_process(pid)?, getpid().as_raw_nonzero().get());
    let is_adopted = process.parent == own_pid
        && process.group != getpgrp().as_raw_nonzero().get()
        && !child::is_started(pid)
        && matches!(child_subreaper(), Ok(Some(_)));
    is_adopted.then_some(process)
}

/// Reaps adopted processes that have exited.
fn reap_adopted() {
    for pid in procfs::all_pids()
        .filter(|pid| adopted_process(*pid).is_some_and(|process| process.is_zombie))
    {
        // Another call may have reaped the process.
        let _reaped = waitpid(Pid::from_raw(pid), WaitOptions::NOHANG).is_ok();
    }
}

/// The runs of all running applications, by workload. Clones share one map.
#[derive(Debug, Clone, Default)]
pub(super) struct ApplicationRuns(Rc<RefCell<BTreeMap<WorkloadName, ApplicationRun>>>);

impl ApplicationRuns {
    /// Adds an application that has started.
    pub(super) fn add_run(&self, workload: &WorkloadName, run: ApplicationRun) {
        self.0.borrow_mut().insert(workload.clone(), run);
    }

    /// Removes an application after all its processes have exited.
    pub(super) fn remove_run(&self, workload: &WorkloadName) {
        self.0.borrow_mut().remove(workload);
    }

    /// Kills all processes of the applications, including those in other sessions. `drop_supervisors` aborts the
    /// tasks that would restart applications.
    pub(super) async fn kill_all(&self, drop_supervisors: impl FnOnce()) {
        let mut runs: Vec<ApplicationRun> = self.0.borrow().values().cloned().collect();
        // The supervisors kill the first processes when they are dropped. Descendants are unknown after that.
        runs.iter_mut().for_each(ApplicationRun::record_descendants);
        drop_supervisors();
        runs.iter().for_each(|run| run.signal_all(Signal::KILL));
        let all_ended = async {
            for run in &runs {
                run.wait_or_kill(Duration::ZERO).await;
            }
        };
        if tokio::time::timeout(KILL_TIMEOUT, all_ended).await.is_err() {
            tracing::warn!("processes of applications remain after SIGKILL");
        }
    }
}

/// Returns the run of this process, which becomes an application.
///
/// # Errors
/// If `/proc` does not contain this process.
pub(crate) fn current_process_run() -> anyhow::Result<ApplicationRun> {
    let own_pid = i32::try_from(std::process::id())?;
    ApplicationRun::from_first_process(own_pid).context("/proc does not show this process")
}

/// The name of the variable in the environment of applications.
const RUN_VARIABLE: &str = "LENO_APPLICATION_RUN";
/// The link that identifies the PID namespace of this process.
const PID_NAMESPACE_LINK: &str = "/proc/self/ns/pid";
/// The maximum wait for killed processes to exit. They take longer only if a process hangs in a system call.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval between two checks for remaining processes.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Starts a shell that executes `script` with the variable of `run`, and waits for its first byte of output.
    fn start_shell(script: &str, run: &ApplicationRun) -> Child {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", script])
            .process_group(0)
            .stdout(Stdio::piped())
            .envs(run.environment_variable());
        let mut shell = shell.spawn().unwrap();
        shell.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        shell
    }

    async fn wait_for_members(run: &ApplicationRun, count: usize) {
        let reached = async {
            while run.member_processes().len() != count {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), reached).await.unwrap();
    }

    #[tokio::test]
    async fn only_members_are_killed_including_a_child_in_its_own_session() {
        let test_run = current_process_run().unwrap();
        let run = ApplicationRun::new("of a test", test_run.first_pid, test_run.start_time);
        let other_run =
            ApplicationRun::new("of another test", test_run.first_pid, test_run.start_time);
        let mut other_shell = start_shell("echo; exec sleep 600", &other_run);
        let mut parent = start_shell("setsid sh -c 'echo; exec sleep 600' & wait", &run);
        wait_for_members(&run, 2).await;
        parent.kill().unwrap();
        parent.wait().unwrap();
        wait_for_members(&run, 1).await;
        // The process started before this run.
        let later_run = ApplicationRun { start_time: u64::MAX, ..run.clone() };
        assert!(later_run.member_processes().is_empty());
        let killed = run.wait_or_kill(Duration::ZERO).await;
        assert_eq!(killed.len(), 1, "{killed:?}");
        assert!(run.member_processes().is_empty());
        wait_for_members(&other_run, 1).await;
        other_shell.kill().unwrap();
        other_shell.wait().unwrap();
    }

    #[tokio::test]
    async fn a_descendant_without_the_variable_is_killed() {
        let mut parent = Command::new("sh");
        parent.args(["-c", "env -i setsid sh -c 'echo; exec sleep 600' & wait"]);
        let mut parent = parent.process_group(0).stdout(Stdio::piped()).spawn().unwrap();
        parent.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let mut run =
            ApplicationRun::from_first_process(i32::try_from(parent.id()).unwrap()).unwrap();
        run.record_descendants();
        run.signal_all(Signal::TERM);
        parent.kill().unwrap();
        parent.wait().unwrap();
        run.wait_or_kill(Duration::ZERO).await;
        assert!(run.member_processes().is_empty());
    }
}
