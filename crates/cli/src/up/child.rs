//! A child process, its output, and its graceful or forced end.

use std::collections::BTreeSet;
use std::io;
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{
    Pid, Signal, WaitOptions, kill_process, kill_process_group, test_kill_process_group, waitpgid,
};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::console::{Console, ConsoleProgress, LineSource, OutputStream};

/// A child process in its own process group: signals of the terminal to the foreground group do not reach it,
/// so that the supervisor controls the shutdown order. Killed on drop.
#[derive(Debug)]
pub(super) struct ChildProcess {
    process: tokio::process::Child,
    pid: Pid,
    scope: StopScope,
    /// True if no process is left to signal.
    exited: bool,
    output: JoinSet<()>,
    shown: ConsoleProgress,
}

/// The processes that end together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopScope {
    /// The process itself.
    Process,
    /// The process and its descendants that stayed in its group. They do not outlive the process: they would
    /// hold the ports that the next one needs.
    Group,
}

impl ChildProcess {
    /// Starts a command. Its output goes to the console under the name of `line_source`.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub(super) fn spawn(
        mut command: Command,
        scope: StopScope,
        console: &Console,
        line_source: &LineSource,
    ) -> io::Result<Self> {
        let mut process = command
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let pid = process.id().and_then(|id| i32::try_from(id).ok());
        let pid = pid.and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("the process has no id"))?;
        started_pids().insert(pid.as_raw_nonzero().get());
        let (mut output, shown) = (JoinSet::new(), ConsoleProgress::default());
        let follow = |to| (console.clone(), line_source.clone(), to, shown.clone());
        if let Some(source) = process.stdout.take() {
            let (console, line_source, to, progress) = follow(console.standard_output());
            output.spawn_local(console.forward_output(line_source, to, progress, source));
        }
        if let Some(source) = process.stderr.take() {
            let (console, line_source, to, progress) = follow(OutputStream::Error);
            output.spawn_local(console.forward_output(line_source, to, progress, source));
        }
        Ok(Self { process, pid, scope, exited: false, output, shown })
    }

    /// Returns its process ID.
    pub(super) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Waits until it has exited. Part of its output may still be unread, see [`ChildProcess::finish_output`]. Cancel
    /// safe: may be dropped and called again.
    pub(super) async fn wait_until_ended(&mut self) -> io::Result<ExitStatus> {
        let status = self.process.wait().await?;
        self.kill();
        Ok(status)
    }

    /// Waits until the output of an exited process is on the console.
    ///
    /// A process that left the group may keep the pipe open and continue to write. The bytes in the pipe at the
    /// exit come first; they are on the console once no line follows for `LAST_WORDS`.
    pub(super) async fn finish_output(&mut self) {
        let until = Instant::now() + LAST_WORDS_MAX;
        let mut shown = self.shown.line_count();
        while timeout(LAST_WORDS, self.wait_for_output()).await.is_err() && Instant::now() < until {
            match self.shown.line_count() {
                lines if lines == shown => break,
                lines => shown = lines,
            }
        }
    }

    /// Waits up to `OUTPUT_FIRST` for the output of an exited process, and leaves the rest to one of `tasks`,
    /// so that the caller can continue.
    pub(super) async fn leave_output(mut self, tasks: &mut JoinSet<()>) {
        if timeout(OUTPUT_FIRST, self.wait_for_output()).await.is_ok() {
            return;
        }
        while tasks.try_join_next().is_some() {}
        if tasks.len() >= OUTPUTS_MAX {
            tasks.abort_all();
        }
        tasks.spawn_local(async move { self.finish_output().await });
    }

    /// Sends SIGTERM, and SIGKILL if it has not ended after `max_wait`.
    pub(super) async fn stop(mut self, max_wait: Duration) -> StopOutcome {
        let until = Instant::now() + max_wait;
        self.send_signal(Signal::TERM);
        let end = match timeout_at(until, self.wait_until_gone()).await {
            Ok(()) => StopOutcome::Orderly,
            Err(_) => StopOutcome::Forced,
        };
        self.kill();
        let complete = async {
            drop(self.wait_until_ended().await);
            self.finish_output().await;
        };
        drop(timeout(KILL_MAX_WAIT, complete).await);
        end
    }

    /// Waits until all processes within reach have ended.
    async fn wait_until_gone(&mut self) {
        drop(self.process.wait().await);
        if self.scope == StopScope::Process {
            return;
        }
        // A zombie that is not reaped still counts as a member of the group; then the end of the output
        // decides.
        while test_kill_process_group(self.pid).is_ok() {
            // Orphaned members may be children of this process.
            while let Ok(Some(_)) = waitpgid(self.pid, WaitOptions::NOHANG) {}
            if timeout(GROUP_LOOK_EVERY, self.wait_for_output()).await.is_ok() {
                return;
            }
        }
    }

    /// Waits until no process can write to its output and all of it is on the console.
    async fn wait_for_output(&mut self) {
        while self.output.join_next().await.is_some() {}
    }

    /// Kills the remaining processes.
    fn kill(&mut self) {
        if !self.exited {
            self.send_signal(Signal::KILL);
            // After the process is reaped, its ID may belong to another process.
            self.exited = self.process.id().is_none();
        }
    }

    /// Signals the process or its group. A group ID is reserved while the group has members, a process ID until
    /// the process is reaped.
    fn send_signal(&self, signal: Signal) {
        if self.exited {
            return;
        }
        let sent = match self.scope {
            StopScope::Process if self.process.id().is_none() => return,
            StopScope::Process => kill_process(self.pid, signal),
            StopScope::Group => kill_process_group(self.pid, signal),
        };
        if let Err(error) = sent {
            tracing::debug!(pid = self.pid(), %error, "a signal was not delivered");
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.kill();
        started_pids().remove(&self.pid());
    }
}

/// True if this process ID belongs to a [`ChildProcess`] that is not dropped yet.
pub(super) fn is_started(pid: i32) -> bool {
    started_pids().contains(&pid)
}

fn started_pids() -> MutexGuard<'static, BTreeSet<i32>> {
    static STARTED: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());
    STARTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end of a stopped process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopOutcome {
    /// It ended after SIGTERM.
    Orderly,
    /// It was killed.
    Forced,
}

/// The pause without a line after which the output of an exited process is complete: longer than a blocked
/// console takes to drop a line.
const LAST_WORDS: Duration = Duration::from_millis(1500);
/// The longest time to read that output.
const LAST_WORDS_MAX: Duration = Duration::from_secs(10);
/// The time for the last lines of a process before its exit is reported.
const OUTPUT_FIRST: Duration = Duration::from_millis(100);
/// The maximum number of tasks per application that read the output of exited processes.
const OUTPUTS_MAX: usize = 8;
/// The time for a killed process to end. The kernel needs no longer, unless the process hangs in a system call.
const KILL_MAX_WAIT: Duration = Duration::from_secs(2);
/// The interval between two checks for members of a group.
const GROUP_LOOK_EVERY: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream as SocketPair;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixStream;
    use tokio::task::LocalSet;

    use super::*;

    /// Runs a script that writes "ready" to descriptor 3, which stays open while any of its processes lives.
    async fn start(script: &str) -> (ChildProcess, UnixStream) {
        let (ours, theirs) = SocketPair::pair().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("exec 3<&0; {script}")]).stdin(OwnedFd::from(theirs));
        let console = Console::start(OutputStream::Error).unwrap();
        let line_source = LineSource::new("child".to_owned(), "child");
        let child = ChildProcess::spawn(command, StopScope::Group, &console, &line_source).unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut ours = UnixStream::from_std(ours).unwrap();
        let mut word = [0; 6];
        within_limit(ours.read_exact(&mut word)).await.unwrap();
        assert_eq!(&word, b"ready\n");
        (child, ours)
    }

    /// The timeout makes a test fail instead of hang.
    async fn within_limit<T>(what: impl Future<Output = T>) -> T {
        timeout(Duration::from_secs(20), what).await.expect("it happens at all")
    }

    async fn all_have_ended(mut socket: UnixStream) {
        assert_eq!(within_limit(socket.read(&mut [0; 1])).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn nothing_of_a_group_outlives_its_first_process() {
        let all = async {
            let script = "trap '' TERM; sleep 1000 & echo ready >&3; exit 7";
            let (mut child, socket) = start(script).await;
            assert_eq!(within_limit(child.wait_until_ended()).await.unwrap().code(), Some(7));
            all_have_ended(socket).await;
            let (child, socket) = start("sleep 1000 & echo ready >&3; wait").await;
            drop(child);
            all_have_ended(socket).await;
        };
        LocalSet::new().run_until(all).await;
    }

    #[tokio::test]
    async fn a_process_that_keeps_the_output_open_delays_no_restart() {
        let all = async {
            // The loop ends when its output is closed.
            let script = "setsid sh -c 'echo ready >&3; while echo x; do sleep 0.1; done' & read go <&3; exit 7";
            let (mut child, mut socket) = start(script).await;
            socket.write_all(b"go\n").await.unwrap();
            let began = Instant::now();
            assert_eq!(within_limit(child.wait_until_ended()).await.unwrap().code(), Some(7));
            let mut outputs = JoinSet::new();
            child.leave_output(&mut outputs).await;
            assert!(began.elapsed() < LAST_WORDS_MAX, "{:?}", began.elapsed());
            // A task reads the rest of the output.
            assert_eq!(outputs.len(), 1);
            assert!(outputs.try_join_next().is_none());
        };
        LocalSet::new().run_until(all).await;
    }

    #[tokio::test]
    async fn a_group_is_stopped_as_a_whole() {
        let all = async {
            for (script, max_wait, expected) in [
                ("sleep 1000 & echo ready >&3; wait", LONG, StopOutcome::Orderly),
                // A shell that forks with a trap set may lose a signal meant for the child.
                (
                    "sleep 1000 & trap 'exit 0' TERM; echo ready >&3; wait",
                    LONG,
                    StopOutcome::Orderly,
                ),
                ("(trap '' TERM; echo ready >&3; sleep 1000) & wait", SHORT, StopOutcome::Forced),
                ("trap '' TERM; echo ready >&3; sleep 1000", SHORT, StopOutcome::Forced),
            ] {
                let (child, socket) = start(script).await;
                assert_eq!(within_limit(child.stop(max_wait)).await, expected, "{script}");
                all_have_ended(socket).await;
            }
        };
        LocalSet::new().run_until(all).await;
    }

    const LONG: Duration = Duration::from_secs(15);
    const SHORT: Duration = Duration::from_millis(100);
}
