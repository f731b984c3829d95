//! Runs a child process: forwards its output to the console, and stops it gracefully or by force.

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
    /// True if the process is reaped, and no process may be signaled anymore.
    is_reaped: bool,
    output_tasks: JoinSet<()>,
    console_progress: ConsoleProgress,
}

/// The processes that stop together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopScope {
    /// The process itself.
    Process,
    /// The process and its descendants that stayed in its process group. They are killed when the process exits,
    /// because they would hold the ports that the next process needs.
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
        let pid = process
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::other("the process has no id"))?;
        started_pids().insert(pid.as_raw_nonzero().get());
        let (mut output_tasks, console_progress) = (JoinSet::new(), ConsoleProgress::default());
        let clone_inputs = |output_stream| {
            (console.clone(), line_source.clone(), output_stream, console_progress.clone())
        };
        if let Some(pipe) = process.stdout.take() {
            let (console, line_source, output_stream, console_progress) =
                clone_inputs(console.standard_output());
            output_tasks.spawn_local(console.forward_output(
                line_source,
                output_stream,
                console_progress,
                pipe,
            ));
        }
        if let Some(pipe) = process.stderr.take() {
            let (console, line_source, output_stream, console_progress) =
                clone_inputs(OutputStream::Stderr);
            output_tasks.spawn_local(console.forward_output(
                line_source,
                output_stream,
                console_progress,
                pipe,
            ));
        }
        Ok(Self { process, pid, scope, is_reaped: false, output_tasks, console_progress })
    }

    /// Returns the process ID.
    pub(super) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Waits until the process has exited. Part of its output may still be unread, see
    /// [`ChildProcess::finish_output`]. Cancel safe: may be dropped and called again.
    pub(super) async fn wait_until_exited(&mut self) -> io::Result<ExitStatus> {
        let status = self.process.wait().await?;
        self.kill();
        Ok(status)
    }

    /// Waits until the output of an exited process is on the console.
    ///
    /// A process that left the group may keep the pipe open and continue to write. The bytes in the pipe at the
    /// exit come first; they are on the console once no line follows for `OUTPUT_PAUSE`.
    pub(super) async fn finish_output(&mut self) {
        let deadline = Instant::now() + OUTPUT_TIMEOUT;
        let mut line_count = self.console_progress.line_count();
        while timeout(OUTPUT_PAUSE, self.wait_for_output()).await.is_err()
            && Instant::now() < deadline
        {
            match self.console_progress.line_count() {
                new_count if new_count == line_count => break,
                new_count => line_count = new_count,
            }
        }
    }

    /// Waits up to `OUTPUT_GRACE` for the output of an exited process. A new task of `tasks` forwards output
    /// that is still missing then, so that the caller can continue.
    pub(super) async fn finish_output_in_background(mut self, tasks: &mut JoinSet<()>) {
        if timeout(OUTPUT_GRACE, self.wait_for_output()).await.is_ok() {
            return;
        }
        while tasks.try_join_next().is_some() {}
        // Tasks must not accumulate, so the missing output of earlier processes is lost.
        if tasks.len() >= MAX_OUTPUT_TASKS {
            tasks.abort_all();
        }
        tasks.spawn_local(async move { self.finish_output().await });
    }

    /// Sends SIGTERM, and SIGKILL if processes remain after `max_wait`.
    pub(super) async fn stop(mut self, max_wait: Duration) -> StopOutcome {
        let deadline = Instant::now() + max_wait;
        self.send_signal(Signal::TERM);
        let outcome = match timeout_at(deadline, self.wait_until_all_exited()).await {
            Ok(()) => StopOutcome::Graceful,
            Err(_) => StopOutcome::Forced,
        };
        self.kill();
        let finish = async {
            drop(self.wait_until_exited().await);
            self.finish_output().await;
        };
        drop(timeout(KILL_TIMEOUT, finish).await);
        outcome
    }

    /// Waits until the process has exited, and with [`StopScope::Group`] all processes of its group.
    async fn wait_until_all_exited(&mut self) {
        drop(self.process.wait().await);
        if self.scope == StopScope::Process {
            return;
        }
        // A zombie still counts as a member of the group. If only zombies remain, the end of the output ends the
        // wait, because no process can write to it anymore.
        while test_kill_process_group(self.pid).is_ok() {
            // Orphaned members may be children of this process.
            while let Ok(Some(_)) = waitpgid(self.pid, WaitOptions::NOHANG) {}
            if timeout(GROUP_CHECK_INTERVAL, self.wait_for_output()).await.is_ok() {
                return;
            }
        }
    }

    /// Waits until no process can write to the output, and all of the output is on the console.
    async fn wait_for_output(&mut self) {
        while self.output_tasks.join_next().await.is_some() {}
    }

    /// Kills the remaining processes.
    fn kill(&mut self) {
        if !self.is_reaped {
            self.send_signal(Signal::KILL);
            // After the process is reaped, its ID may belong to another process.
            self.is_reaped = self.process.id().is_none();
        }
    }

    /// Signals the process or its group. A group ID is reserved while the group has members, a process ID until
    /// the process is reaped.
    fn send_signal(&self, signal: Signal) {
        if self.is_reaped {
            return;
        }
        let delivery = match self.scope {
            StopScope::Process if self.process.id().is_none() => return,
            StopScope::Process => kill_process(self.pid, signal),
            StopScope::Group => kill_process_group(self.pid, signal),
        };
        if let Err(error) = delivery {
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

/// Returns the process IDs of all [`ChildProcess`]es that are not dropped yet.
fn started_pids() -> MutexGuard<'static, BTreeSet<i32>> {
    static STARTED_PIDS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());
    STARTED_PIDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The way in which a process stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopOutcome {
    /// The process exited after SIGTERM.
    Graceful,
    /// The process was killed.
    Forced,
}

/// The pause without a line after which the output of an exited process is complete: longer than a blocked
/// console takes to drop a line.
const OUTPUT_PAUSE: Duration = Duration::from_millis(1500);
/// The maximum time to read the output of an exited process.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum wait for the last lines of a process before its exit is reported.
const OUTPUT_GRACE: Duration = Duration::from_millis(100);
/// The maximum number of tasks per application that read the output of exited processes.
const MAX_OUTPUT_TASKS: usize = 8;
/// The maximum wait for a killed process to exit. It takes longer only if the process hangs in a system call.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);
/// The interval between two checks for members of a group.
const GROUP_CHECK_INTERVAL: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream as SocketPair;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixStream;
    use tokio::task::LocalSet;

    use super::*;

    /// Starts a script that writes "ready" to descriptor 3. Returns the other end of that descriptor, which stays open
    /// while any process of the script lives.
    async fn start_script(script: &str) -> (ChildProcess, UnixStream) {
        let (socket, child_socket) = SocketPair::pair().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("exec 3<&0; {script}")]).stdin(OwnedFd::from(child_socket));
        let console = Console::start(OutputStream::Stderr).unwrap();
        let line_source = LineSource::new("child".to_owned(), "child");
        let child = ChildProcess::spawn(command, StopScope::Group, &console, &line_source).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut socket = UnixStream::from_std(socket).unwrap();
        let mut line = [0; 6];
        with_timeout(socket.read_exact(&mut line)).await.unwrap();
        assert_eq!(&line, b"ready\n");
        (child, socket)
    }

    /// Waits with a timeout, so that a test fails instead of hanging.
    async fn with_timeout<T>(future: impl Future<Output = T>) -> T {
        timeout(Duration::from_secs(20), future).await.expect("the future completes in time")
    }

    async fn expect_all_exited(mut socket: UnixStream) {
        assert_eq!(with_timeout(socket.read(&mut [0; 1])).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn no_process_of_a_group_outlives_its_first_process() {
        let test = async {
            let script = "trap '' TERM; sleep 1000 & echo ready >&3; exit 7";
            let (mut child, socket) = start_script(script).await;
            assert_eq!(with_timeout(child.wait_until_exited()).await.unwrap().code(), Some(7));
            expect_all_exited(socket).await;
            let (child, socket) = start_script("sleep 1000 & echo ready >&3; wait").await;
            drop(child);
            expect_all_exited(socket).await;
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test]
    async fn a_process_that_keeps_the_output_open_does_not_delay_a_restart() {
        let test = async {
            // The loop ends when its output is closed.
            let script = "setsid sh -c 'echo ready >&3; while echo x; do sleep 0.1; done' & read go <&3; exit 7";
            let (mut child, mut socket) = start_script(script).await;
            socket.write_all(b"go\n").await.unwrap();
            let start = Instant::now();
            assert_eq!(with_timeout(child.wait_until_exited()).await.unwrap().code(), Some(7));
            let mut outputs = JoinSet::new();
            child.finish_output_in_background(&mut outputs).await;
            assert!(start.elapsed() < OUTPUT_TIMEOUT, "{:?}", start.elapsed());
            // A task reads the rest of the output.
            assert_eq!(outputs.len(), 1);
            assert!(outputs.try_join_next().is_none());
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test]
    async fn a_group_is_stopped_as_a_whole() {
        let test = async {
            for (script, max_wait, expected) in [
                ("sleep 1000 & echo ready >&3; wait", LONG_TIMEOUT, StopOutcome::Graceful),
                // A shell that forks with a trap set may lose a signal meant for the child.
                (
                    "sleep 1000 & trap 'exit 0' TERM; echo ready >&3; wait",
                    LONG_TIMEOUT,
                    StopOutcome::Graceful,
                ),
                (
                    "(trap '' TERM; echo ready >&3; sleep 1000) & wait",
                    SHORT_TIMEOUT,
                    StopOutcome::Forced,
                ),
                ("trap '' TERM; echo ready >&3; sleep 1000", SHORT_TIMEOUT, StopOutcome::Forced),
            ] {
                let (child, socket) = start_script(script).await;
                assert_eq!(with_timeout(child.stop(max_wait)).await, expected, "{script}");
                expect_all_exited(socket).await;
            }
        };
        LocalSet::new().run_until(test).await;
    }

    const LONG_TIMEOUT: Duration = Duration::from_secs(15);
    const SHORT_TIMEOUT: Duration = Duration::from_millis(100);
}
